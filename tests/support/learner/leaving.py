"""Learners that end in the middle, each a process of its own: python -m tests.support.learner.leaving ADDRESS HOW."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import rlds2reverb
from rlds2reverb.learner.sampler import Sampler

FULL, EMPTY = "full", "empty"
"""Tables: one that gives samples for ever, one that gives none."""


def read_and_leave(client: Any) -> list[Sampler]:
    """Ends with streams open and samples on their way."""
    sampler = client.sample(FULL, 10, streams=2)
    next(sampler)
    return [sampler]


def leave_a_cycle(client: Any) -> None:
    """Ends with a sampler that only the garbage collector could find."""
    gc.disable()
    held: list[Any] = [client.sample(FULL, 10)]
    next(held[0])
    held.append(held)


def fail(client: Any) -> None:
    """Ends with an error in the loop."""
    for _ in client.sample(FULL, 10):
        raise ZeroDivisionError


def wait_in_a_thread(client: Any) -> list[Sampler]:
    """Ends while a thread of the learner waits for samples."""
    waits = threading.Event()
    sampler = client.sample(EMPTY, 10, on_wait=lambda _: waits.set())
    threading.Thread(target=lambda: list(sampler), daemon=True).start()
    waits.wait()
    return [sampler]


def wait(client: Any) -> None:
    """Waits for samples that never come, until it is interrupted."""
    list(client.sample(EMPTY, 10, on_wait=lambda _: print("waits", flush=True)))


def drop(client: Any) -> None:
    """Drops a sampler, and goes on once its threads have ended."""
    for _ in client.sample(FULL, 10, streams=3):
        break
    while any(thread.name.startswith("rlds2reverb") for thread in threading.enumerate()):
        threading.Event().wait(0.01)
    print("dropped", flush=True)


if __name__ == "__main__":
    kept = globals()[sys.argv[2]](rlds2reverb.connect(sys.argv[1]))
    print("leaves", flush=True)
