"""The long-running server under load: how fast /readyz answers, what a checkpoint, a stop and a restore take."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from replay_server.template import TableDraft, config_text

from benchmarks import data, writers
from benchmarks.common import Goal, Result, Size, figure, note
from benchmarks.servers import rss_bytes
from rlds2reverb import PushReport, connect

FULL = Size(items=1_000_000, reference_items=0, repeats=1)
SHORT = Size(items=100_000, reference_items=0, repeats=1)

READY_GOAL = Goal(1.0, at_most=True)
START_SECONDS = 120.0
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
        with _Service(path) as service:
            empty_bytes = rss_bytes(service.pid)
            with _Asking(service.url) as while_pushing, connect(service.address) as client:
                pushed = client.push(episodes, writers.TABLE)
            filled_bytes = rss_bytes(service.pid)
            with _Asking(service.url) as while_saving:
                saved = service.checkpoint()
            stop_seconds, code = service.stop()
        with _Service(path) as service:
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


class _Service:
    """`python -m replay_server` on free ports."""

    def __init__(self, config: Path) -> None:
        self._grpc, self._http = _free_port(), _free_port()
        self._command = [sys.executable, "-m", "replay_server", "--config", str(config)]
        for name, value in (
            ("grpc.port", self._grpc),
            ("http.port", self._http),
            ("checkpoints.folder", config.parent / "checkpoints"),
            ("checkpoints.every_seconds", "null"),
        ):
            self._command += ["--set", f"{name}={value}"]
        self.address, self.url = f"localhost:{self._grpc}", f"http://127.0.0.1:{self._http}"

    def __enter__(self) -> _Service:
        began = time.monotonic()
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)
        while self.ready_document()["status"] != "ready":
            if self._process.poll() is not None or time.monotonic() - began > START_SECONDS:
                self._process.kill()
                raise RuntimeError(f"the server did not start: {' '.join(self._command)}")
            time.sleep(0.05)
        self.start_seconds = time.monotonic() - began
        note(f"  the server was ready after {self.start_seconds:.1f} s")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ready_document(self) -> dict[str, Any]:
        return _get(f"{self.url}/readyz")

    def checkpoint(self) -> dict[str, Any]:
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/checkpoint", method="POST")) as answer:
            document: dict[str, Any] = json.load(answer)
        return document

    def stop(self) -> tuple[float, int]:
        began = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait()
        return time.monotonic() - began, code


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
            status = _get(f"{self._url}/readyz")["status"]
            self.seconds.append(time.monotonic() - began)
            self.ready += status == "ready"
            self.refused += status != "ready"


def _get(url: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(url) as answer:
            document: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        document = json.load(error)
    except OSError:
        return {"status": "unreachable"}
    return document


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
