"""A push as a process of its own, to be killed: python -m tests.support.faults.pusher ADDRESS TABLES SOURCE ON_INVALID [LEDGER]."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rlds2reverb.prepare import progress
from rlds2reverb.push import sender
from tests.support.faults import tools


def source_of(text: str) -> Any:
    """Episodes from "made:COUNT:STEPS:SEED[:BAD...]" (the episodes BAD end in a NaN), or a source by name."""
    scheme, *numbers = text.split(":")
    if scheme != "made":
        return text
    count, steps, seed, *bad = map(int, numbers)
    episodes = tools.make_episodes(count, steps, seed)
    for number in bad:
        episodes[number] = tools.with_nan_at_the_end(episodes[number])
    return episodes


def main(address: str, tables: str, source: str, on_invalid: str, ledger: str = "") -> None:
    """Pushes, and prints the report as JSON."""
    progress.PACE_SECONDS = -1.0  # the ledger is written after every episode, so that a kill meets many states of it
    sender.QUEUE_BYTES = tools.SMALL["window"].bytes  # and episodes are read only as fast as they are stored
    report = tools.push(
        address, source_of(source), *tables.split("+"), ledger=Path(ledger) if ledger else None, on_invalid=on_invalid
    )
    print(json.dumps(report.as_dict()))


if __name__ == "__main__":
    main(*sys.argv[1:])
