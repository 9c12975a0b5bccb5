"""Pushes a source in a process of its own, which imports nothing but this and rlds2reverb: `python -m benchmarks.push_child ADDRESS SOURCE`.

It prints the steps read, a few times per second, and goes on when it is told that it has been looked at.
"""

from __future__ import annotations

import sys
from typing import Any

from rlds2reverb import Progress, connect

TABLE = "replay"


def push(address: str, source: Any) -> None:
    """Pushes, and tells how far it is."""

    def tell(progress: Progress) -> None:
        print(progress.steps, flush=True)
        sys.stdin.readline()

    with connect(address) as client:
        client.push(source, TABLE, allow_eviction=True, on_progress=tell)


if __name__ == "__main__":
    push(sys.argv[1], sys.argv[2])
    if "tensorflow" in sys.modules:
        sys.exit("TensorFlow was imported")
