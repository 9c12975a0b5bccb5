"""Structured logs on standard error: text for people or JSON for machines, one line per event."""

from __future__ import annotations

import logging
import sys
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
