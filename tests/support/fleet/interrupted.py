"""A push by workers as a process of its own, to be interrupted: python -m tests.support.fleet.interrupted ADDRESS FOLDER COUNT GATE [forks].

With `forks` it forks a process that outlives it, once it has workers, and writes the number into the file `fork`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from rlds2reverb import PushReport, connect
from rlds2reverb.errors import report_of
from tests.support.gated import Gated


def main(address: str, folder: str, count: str, gate: str, forks: str = "") -> None:
    """Pushes, and prints the report as JSON."""
    mark = Path(folder) / "fork"

    def on_progress(_: object) -> None:
        if forks and not mark.exists():
            if not (pid := os.fork()):
                signal.pause()
            mark.write_text(str(pid))

    with connect(address) as client:
        try:
            source = Gated(Path(folder), int(count), int(gate))
            client.push(source, "replay", workers=2, on_progress=on_progress)
        except KeyboardInterrupt as error:
            print(json.dumps(asdict(report_of(error, PushReport))), flush=True)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
