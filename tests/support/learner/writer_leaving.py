"""Writers that are left open when their process ends, each a process of its own: python -m tests.support.learner.writer_leaving HOW."""

from __future__ import annotations

import atexit
import gc
import sys

from rlds2reverb.learner import writer as leaving
from tests.support.learner.loops import step, writer
from tests.support.push.in_memory import Server

if __name__ == "__main__":
    server = Server()
    server.hold()
    atexit.register(lambda: print("stored", len(server.contents()), flush=True))  # the last to run
    to = writer(server, name="actor")
    for number in range(4):
        to.append(step(number))
    to.end_episode(terminal=False)
    to.append(step())
    if sys.argv[1] == "drop":
        del to
        gc.collect()
    if sys.argv[1] in ("release", "drop"):
        atexit.register(server.release)  # the first to run, when nothing but the writer waits for it
    else:
        leaving.EXIT_SECONDS = 0.1
