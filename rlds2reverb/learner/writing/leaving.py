"""What becomes of a writer that nobody closes: what is finished is still sent, and the log is told."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from functools import partial

from rlds2reverb.errors import reason_of
from rlds2reverb.learner.batch_queue import LOG
from rlds2reverb.learner.writing.background import Background
from rlds2reverb.wording import counted

EXIT_SECONDS = 5.0
"""How long the end of the interpreter waits for what is on its way."""


def end_unclosed(background: Background, title: str, process: int, unfinished: Callable[[], str]) -> None:
    """Ends the sending of a writer that is dropped, or that the interpreter's end finds open.

    The garbage collector may run anywhere, with any lock held: so a thread does it. At its end, the interpreter starts none.

    Args:
      background: of the writer.
      title: what messages call it.
      process: that of its threads; in others this does nothing.
      unfinished: the episodes that have not ended, as a sentence; "" when there are none, or when nobody knows any more.
    """
    if os.getpid() != process:
        return
    if threading.main_thread().is_alive():
        threading.Thread(target=_end_dropped, args=(background, title), name="rlds2reverb-close", daemon=True).start()
        return
    _end_at_exit(background, title)
    if words := unfinished():
        LOG.warning("%s", words)


def _end_dropped(background: Background, title: str) -> None:
    at_exit = partial(_end_at_exit, background, title)
    atexit.register(at_exit)  # this thread may not live to see it through
    _end(background, title, None, "nobody holds it any more")
    atexit.unregister(at_exit)


def _end_at_exit(background: Background, title: str) -> None:
    _end(background, title, EXIT_SECONDS, "the interpreter ends")


def _end(background: Background, title: str, seconds: float | None, why: str) -> None:
    """Tells that it was not closed, where that matters, and what is not stored for it."""
    if seconds is None or not background.is_idle:
        LOG.warning(
            "%s: not closed, and %s: episodes that have ended are still sent, steps of others are not stored. close() it, or use it "
            "as a context manager",
            title,
            why,
        )
    failure = background.close(seconds)
    if failure is not None or not background.is_over:
        report = background.report
        cause = f"not confirmed within {seconds} s" if failure is None else reason_of(failure)
        LOG.warning(
            "%s: of %s that had ended not all items may be stored: %s",
            title,
            counted(report.episodes_unconfirmed, "episode"),
            cause,
        )
