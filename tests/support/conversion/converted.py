"""A conversion by workers as a process of its own, to be killed or interrupted: python -m tests.support.conversion.converted FOLDER COUNT GATE NAME WORKERS."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from rlds2reverb.conversion import convert as engine
from rlds2reverb.conversion.convert import convert
from tests.support.gated import Gated


def main(folder: str, count: str, gate: str, name: str, workers: str) -> None:
    """Converts, with a sync after every episode, and prints the report as JSON."""
    engine.SYNC_SECONDS = 0.0
    try:
        convert(Gated(Path(folder), int(count), int(gate)), name, workers=int(workers))
    except KeyboardInterrupt as error:
        print(json.dumps(asdict(error.report)), flush=True)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main(*sys.argv[1:])
