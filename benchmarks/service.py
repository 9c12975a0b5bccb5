"""The long-running server under load: how fast /readyz answers, what a checkpoint, a stop and a restore take."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from replay_server.template import TableDraft, config_text

from benchmarks import data, writers
from benchmarks.common import Goal, Result, Size, figure
from benchmarks.replay_process import ReplayProcess, get
from benchmarks.servers import rss_bytes
from rlds2reverb import PushReport, connect

FULL = Size(items=1_000_000, reference_items=0, repeats=1)
SHORT = Size(items=100_000, reference_items=0, repeats=1)

READY_GOAL = Goal(1.0, at_most=True)
_ASK_SECONDS = 0.1


@dataclass(frozen=True)
class _Life:
    """What was seen of a server from its filling to its second start; bytes are of resident memory.

    Attributes:
      pushed: the push that filled it.
      while_pushing, while_saving: what /readyz answered meanwhile.
      saved: what the checkpoint on request says of itself.
      stop_seconds, restore_seconds: from SIGTERM to exit, and from the next start to ready.
      empty_bytes, filled_bytes, restored_bytes: before the push, after it, and of the second process.
    """

    pushed: PushReport
    while_pushing: _Asking
    while_saving: _Asking
    saved: Any
    stop_seconds: float
    restore_seconds: float
    empty_bytes: int
    filled_bytes: int
    restored_bytes: int


def run(size: Size) -> Iterator[Result]:
    """2-step half-cheetah items. Times in seconds, memory in bytes per item beyond that of the empty server."""
    life = _lived(size)
    items, saved, asked = life.pushed.items_confirmed, life.saved, life.while_saving
    figure_of = partial(figure, items=items, push_items_per_second=round(items / life.pushed.seconds))
    slowest = max(life.while_pushing.seconds)
    yield figure_of("service/readyz_slowest", slowest, "s", READY_GOAL, asked=len(life.while_pushing.seconds))
    yield figure_of(
        "service/checkpoint",
        saved["seconds"],
        "s",
        bytes_per_item=round(saved["bytes"] / items, 1),
        ready_answers=asked.ready,
        not_ready_answers=asked.refused,
        slowest_answer_seconds=round(max(asked.seconds, default=0.0), 3),
    )
    yield figure_of("service/stop", life.stop_seconds, "s", what="SIGTERM to exit, with a checkpoint")
    yield figure_of(
        "service/restore",
        life.restore_seconds,
        "s",
        what="start of the process to ready",
        bytes_per_item=round((life.restored_bytes - life.empty_bytes) / items, 1),
        bytes_per_item_before=round((life.filled_bytes - life.empty_bytes) / items, 1),
        restored_mb=round(life.restored_bytes / 1e6),
        empty_mb=round(life.empty_bytes / 1e6),
    )


def _lived(size: Size) -> _Life:
    """Fills a server, saves, stops and starts it again.

    Raises:
      RuntimeError: it lost items, or did not stop well.
    """
    columns = data.half_cheetah()
    episodes = data.episodes(columns, data.episodes_for(size.items, data.STEPS))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.yaml"
        wanted = TableDraft("two_step", size.items * 2, data.signature(columns))
        path.write_text(config_text("half-cheetah", [], {writers.TABLE: wanted}))
        with ReplayProcess(path) as service:
            empty_bytes = rss_bytes(service.pid)
            with _Asking(service.url) as while_pushing, connect(service.address) as client:
                pushed = client.push(episodes, writers.TABLE)
            filled_bytes = rss_bytes(service.pid)
            with _Asking(service.url) as while_saving:
                saved = service.checkpoint()
            stop_seconds, code = service.stop()
        with ReplayProcess(path) as service:
            restored = service.ready_document()["tables"][writers.TABLE]
            restored_bytes, restore_seconds = rss_bytes(service.pid), service.start_seconds
    if restored != pushed.items_confirmed or code != 0:
        raise RuntimeError(
            f"{pushed.items_confirmed} items were stored, {restored} restored; the server exited with {code}"
        )
    return _Life(
        pushed,
        while_pushing,
        while_saving,
        saved,
        stop_seconds,
        restore_seconds,
        empty_bytes,
        filled_bytes,
        restored_bytes,
    )


class _Asking:
    """Asks /readyz over and over in a thread; `seconds` of every answer, and how many were ready or refused."""

    def __init__(self, url: str) -> None:
        self._url, self._stopped = url, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.seconds: list[float] = []
        self.ready = self.refused = 0

    def __enter__(self) -> _Asking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_ASK_SECONDS):
            began = time.monotonic()
            status = get(f"{self._url}/readyz")["status"]
            self.seconds.append(time.monotonic() - began)
            self.ready += status == "ready"
            self.refused += status != "ready"
