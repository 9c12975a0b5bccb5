"""A conversion by workers as a process of its own, to be killed or interrupted: python -m tests.scale.converted FOLDER COUNT GATE NAME WORKERS."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from rlds2reverb.conversion import convert
from rlds2reverb.destinations import converting
from tests.scale.gated import Gated


def main(folder: str, count: str, gate: str, name: str, workers: str) -> None:
    """Converts, with a sync after every episode, and prints the report as JSON."""
    converting.SYNC_SECONDS = 0.0
    try:
        convert(Gated(Path(folder), int(count), int(gate)), name, workers=int(workers))
    except KeyboardInterrupt as error:
        print(json.dumps(asdict(error.report)), flush=True)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main(*sys.argv[1:])
