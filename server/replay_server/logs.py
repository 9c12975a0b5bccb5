"""Structured logs on standard error, text for people or JSON for machines; long work logs its progress every ten seconds."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import structlog

Logger = Any  # what `structlog.get_logger` gives


def configure(form: Literal["text", "json"], level: str = "info") -> None:
    """Sets how every logger of this process writes; other libraries' lines come out in the same form."""
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
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer]
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # of other libraries only what is wrong
    logging.getLogger("replay_server").setLevel(level.upper())


def logger(name: str) -> Logger:
    return structlog.stdlib.get_logger(f"replay_server.{name}")


PROGRESS_SECONDS = 10.0
_JOIN_SECONDS = 5.0  # a folder that does not answer delays a line, and nothing else

Far = Callable[[], Mapping[str, Any]]
"""The progress now, as fields of a log line."""

_UNDER_WAY: list[tuple[str, float, Far]] = []  # event, monotonic time of its begin, progress; of this process


def under_way() -> list[dict[str, Any]]:
    """Long work that `log_progress` tells of, oldest first: `what`, `seconds` since its begin, and how far it is, where that is known."""
    works = []
    for event, began, far in _UNDER_WAY:
        fields: Mapping[str, Any] = {}
        with suppress(OSError):
            fields = far()
        works.append({"what": event, "seconds": round(time.monotonic() - began, 1), **fields})
    return works


@contextmanager
def log_progress(log: Logger, event: str, far: Far = dict, **begins: Any) -> Iterator[None]:
    """Logs that something begins, and every ten seconds that it continues, from a thread of its own.

    Args:
      far: called for each line but the first. An OSError of it costs that line its fields.
      begins: fields of the first line.
    """
    began, ended = time.monotonic(), threading.Event()

    def log_lines() -> None:
        while not ended.wait(PROGRESS_SECONDS):
            fields: Mapping[str, Any] = {}
            with suppress(OSError):
                fields = far()
            log.info(event, seconds=round(time.monotonic() - began, 1), **fields)

    log.info(event, **begins)
    thread = threading.Thread(target=log_lines, name="progress", daemon=True)
    entry = event, began, far
    _UNDER_WAY.append(entry)
    try:
        thread.start()
    except RuntimeError as error:  # no more threads here: the work matters more than its lines
        log.warning("nothing will tell how far it is", event_begun=event, error=str(error))
    try:
        yield
    finally:
        _UNDER_WAY.remove(entry)
        ended.set()
        if thread.ident is not None:
            thread.join(_JOIN_SECONDS)


def share(done: int, total: int) -> dict[str, Any]:
    """Bytes done, the total and the percentage; only the first where the total is not known."""
    if total <= 0:
        return {"bytes": done}
    return {"bytes": done, "of_bytes": total, "percent": min(100, 100 * done // total)}


def bytes_in(folder: Path) -> int:
    """Bytes of all files in a folder and below, now; files that vanish meanwhile or cannot be looked at count nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).stat().st_size
            except OSError:
                continue
    return total


def bytes_read(process: int | Literal["self"] = "self") -> int | None:
    """Bytes that a process has read since its start, from files and elsewhere; None where the system does not say (Linux does)."""
    try:
        text = Path(f"/proc/{process}/io").read_text(encoding="ascii")
    except OSError:
        return None
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("rchar:")), None)


class Reading:
    """Progress of this process in reading `total` bytes, by what it has read since."""

    def __init__(self, total: int) -> None:
        self._total, self._before = total, bytes_read()

    def far(self) -> Mapping[str, Any]:
        now = bytes_read()
        return {} if now is None or self._before is None else share(now - self._before, self._total)
