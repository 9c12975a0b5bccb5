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
from pathlib import Path
from typing import Any

from replay_server.template import Wanted, config_text

from benchmarks import data, writers
from benchmarks.common import Goal, Result, Size, figure, note
from benchmarks.servers import rss_bytes
from rlds2reverb import connect

FULL = Size(items=1_000_000, reference_items=0, repeats=1)
SHORT = Size(items=100_000, reference_items=0, repeats=1)

READY_GOAL = Goal(1.0, at_most=True)
START_SECONDS = 120.0
_ASK_SECONDS = 0.1


def run(size: Size) -> Iterator[Result]:
    """2-step half-cheetah items. Times in seconds, memory in bytes an item beyond that of the empty server."""
    columns = data.half_cheetah()
    episodes = data.episodes_for(size.items, data.STEPS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.yaml"
        path.write_text(
            config_text("half-cheetah", "", {writers.TABLE: Wanted(size.items * 2, data.signature(columns))})
        )
        with _Service(path) as service:
            empty_bytes = rss_bytes(service.pid)
            with _Asking(service.url) as while_pushing, connect(service.address) as client:
                report = client.push(data.episodes(columns, episodes), writers.TABLE)
            items = report.items_confirmed
            filled_bytes = rss_bytes(service.pid)
            with _Asking(service.url) as while_saving:
                saved = service.checkpoint()
            stop_seconds, code = service.stop()
        with _Service(path) as service:
            restored = service.ready_document()["tables"][writers.TABLE]
            restored_bytes, restore_seconds = rss_bytes(service.pid), service.start_seconds
    if restored != items or code != 0:
        raise RuntimeError(f"{items} items were stored, {restored} restored; the server exited with {code}")
    common = {"items": items, "push_items_per_second": round(items / report.seconds)}
    yield figure(
        "service/readyz_slowest",
        max(while_pushing.seconds),
        "s",
        READY_GOAL,
        asked=len(while_pushing.seconds),
        **common,
    )
    yield figure(
        "service/checkpoint",
        saved["seconds"],
        "s",
        bytes_per_item=round(saved["bytes"] / items, 1),
        ready_answers=while_saving.ready,
        not_ready_answers=while_saving.refused,
        slowest_answer_seconds=round(max(while_saving.seconds, default=0.0), 3),
        **common,
    )
    yield figure("service/stop", stop_seconds, "s", what="SIGTERM to exit, with a checkpoint", **common)
    yield figure(
        "service/restore",
        restore_seconds,
        "s",
        what="start of the process to ready",
        bytes_per_item=round((restored_bytes - empty_bytes) / items, 1),
        bytes_per_item_before=round((filled_bytes - empty_bytes) / items, 1),
        restored_mb=round(restored_bytes / 1e6),
        empty_mb=round(empty_bytes / 1e6),
        **common,
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
