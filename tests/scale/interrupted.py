"""A push by workers as a process of its own, to be interrupted: python -m tests.scale.interrupted ADDRESS FOLDER COUNT GATE."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from rlds2reverb import connect
from rlds2reverb.errors import report_of
from tests.scale.gated import Gated


def main(address: str, folder: str, count: str, gate: str) -> None:
    """Pushes, and prints the report as JSON."""
    with connect(address) as client:
        try:
            client.push(Gated(Path(folder), int(count), int(gate)), "replay", workers=2)
        except KeyboardInterrupt as error:
            print(json.dumps(asdict(report_of(error))), flush=True)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
