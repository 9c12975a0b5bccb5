"""Structured logs on standard error, text for people or JSON for machines; what takes long says every ten seconds how far it is."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import structlog

Logger = Any
"""What `structlog.get_logger` gives."""


def configure(form: Literal["text", "json"], level: str = "info") -> None:
    """Sets how every logger of this process writes; what other libraries log comes out in the same form."""
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: Any = (
        structlog.processors.JSONRenderer(default=str)
        if form == "json"
        else structlog.dev.ConsoleRenderer(28, colors=sys.stderr.isatty())  # the name of the first differs by version
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # of other libraries only what is wrong
    logging.getLogger("replay_server").setLevel(level.upper())


def logger(name: str) -> Logger:
    """A logger under "replay_server"."""
    return structlog.stdlib.get_logger(f"replay_server.{name}")


PROGRESS_SECONDS = 10.0
_JOIN_SECONDS = 5.0
"""A folder that does not answer keeps a line waiting, and nothing else."""

Far = Callable[[], Mapping[str, Any]]
"""How far it is now, as fields of a log line."""


@contextmanager
def log_progress(log: Logger, event: str, far: Far = dict, **begins: Any) -> Iterator[None]:
    """Logs that something begins, and every ten seconds that it goes on, from a thread of its own.

    Args:
      log: where.
      event: what is done.
      far: asked for each line but the first. An OSError of it costs that line its fields.
      begins: fields of the first line.
    """
    began, ended = time.monotonic(), threading.Event()

    def go_on() -> None:
        while not ended.wait(PROGRESS_SECONDS):
            log.info(event, seconds=round(time.monotonic() - began, 1), **_fields(far))

    log.info(event, **begins)
    thread = threading.Thread(target=go_on, name="progress", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # no more threads here: the work matters more than its lines
        log.warning("nothing will tell how far it is", event_begun=event, error=str(error))
    try:
        yield
    finally:
        ended.set()
        if thread.ident is not None:
            thread.join(_JOIN_SECONDS)


def _fields(far: Far) -> Mapping[str, Any]:
    try:
        return far()
    except OSError:
        return {}


def share(done: int, total: int) -> dict[str, Any]:
    """How much of how much; the percentage is left out where the total is not known."""
    percent = {"percent": min(100, 100 * done // total)} if total > 0 else {}
    return {"bytes": done, "of_bytes": total, **percent} if total > 0 else {"bytes": done}


def bytes_in(folder: Path) -> int:
    """Of all files in a folder and below, now: files that others remove meanwhile, or that cannot be looked at, count nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).stat().st_size
            except OSError:
                continue
    return total


def bytes_read() -> int | None:
    """By this process, since its start, from files and elsewhere; None where the system does not say (Linux does)."""
    try:
        text = Path("/proc/self/io").read_text(encoding="ascii")
    except OSError:
        return None
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("rchar:")), None)


class Reading:
    """How far this process is with reading so many bytes, by what it has read since."""

    def __init__(self, total: int) -> None:
        self._total, self._before = total, bytes_read()

    def far(self) -> Mapping[str, Any]:
        """For `log_progress`."""
        now = bytes_read()
        return {} if now is None or self._before is None else share(now - self._before, self._total)
