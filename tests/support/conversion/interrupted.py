"""The command line as a process that SIGINT reaches at a given moment: python -m tests.support.conversion.interrupted CALL FILE ARGUMENT...

A moment is a call of a function, whether of Python or of C, of a callback or not, so that the same number is the same moment. At the end the
number of calls is in FILE; CALL 0 is none of them.
"""

from __future__ import annotations

import signal
import sys
from itertools import count
from pathlib import Path

from rlds2reverb import cli
from rlds2reverb.conversion import convert as engine


def main(at: str, counted: str, *arguments: str) -> None:
    engine.SYNC_SECONDS = 0.0
    sys.argv[1:] = arguments
    calls, stop = count(1), int(at)

    def on_event(_: object, event: str, __: object) -> None:
        if event.endswith("call") and next(calls) == stop:
            signal.raise_signal(signal.SIGINT)

    sys.setprofile(on_event)
    try:
        cli.main()
    finally:
        sys.setprofile(None)
        Path(counted).write_text(str(next(calls)))


if __name__ == "__main__":
    main(*sys.argv[1:])
