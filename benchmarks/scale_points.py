"""How the costs of servers grow with what they hold: each point fills fresh servers, samples, saves, kills and restores them.

Every server is a `python -m replay_server` of its own, on this machine. Processor times are those of the processes, all threads;
wall times and rates are of everything on this machine's cores at once: the servers, the pusher, and whatever else runs.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from replay_server.template import TableDraft, config_text

from benchmarks import data, writers
from benchmarks.common import note, timed
from benchmarks.cost_model import Point
from benchmarks.replay_process import ReplayProcess
from benchmarks.scale_contents import Content
from benchmarks.servers import anonymous_bytes, forget_peak, peak_bytes, settle
from rlds2reverb import Client, connect

WARM_BATCHES = 8
_ROOM = 1.3
"""Places of a table for every item that it gets in the mean: hashing gives no two servers the same number of episodes."""


def point(content: Content, servers: int, samples: int) -> Point:
    """Fills so many servers, samples them, saves them, kills them and starts them again.

    Raises:
      RuntimeError: items were lost.
    """
    with tempfile.TemporaryDirectory() as folder:
        configs = [_config(Path(folder) / str(number), content, servers) for number in range(servers)]
        with _running(configs) as running:
            empty_bytes = _resident(running)
            pushed = _push(running, content)
            filled_bytes = _resident(running)
            sampled = _sample(running, content, samples)
            saved = _save(running)
        with _running(configs) as running:
            restored = sum(server.ready_document()["tables"][writers.TABLE] for server in running)
            if not pushed["items"] == restored == content.items:
                raise RuntimeError(f"{content.items} items: {pushed['items']} were stored, {restored} restored")
            measured = Point(
                content=content.name,
                servers=servers,
                step_bytes=content.step_bytes,
                chunk_steps=content.chunk_steps,
                **pushed,
                **sampled,
                **saved,
                empty_bytes=empty_bytes,
                memory_bytes=filled_bytes - empty_bytes,
                restored_bytes=_resident(running) - empty_bytes,
                restore_seconds=max(server.start_seconds for server in running),
                restore_processor=sum(server.start_processor_seconds for server in running),
            )
    note(f"  {content.name}: {measured.items:,} items, {servers} servers: {measured.memory_bytes / 1e6:,.0f} MB")
    return measured


def _config(folder: Path, content: Content, servers: int) -> Path:
    folder.mkdir()
    wanted = TableDraft("items", round(content.items / servers * _ROOM) + data.STEPS, content.signature)
    path = folder / "server.yaml"
    path.write_text(config_text(content.name, [], {writers.TABLE: wanted}))
    return path


@contextmanager
def _running(configs: Sequence[Path]) -> Iterator[list[ReplayProcess]]:
    """Starts all at once."""
    with ExitStack() as stack, ThreadPoolExecutor(len(configs)) as pool:
        yield list(pool.map(stack.enter_context, map(ReplayProcess, configs)))


def _push(running: Sequence[ReplayProcess], content: Content) -> dict[str, Any]:
    before = _processor(running)
    with _client(running) as client, timed() as watch:
        reports = content.push(client)
    _settle(running)
    return {
        "items": sum(report.items_confirmed for report in reports),
        "episodes": sum(report.episodes_pushed for report in reports),
        "steps": sum(report.steps_pushed for report in reports),
        "sent_bytes": sum(report.bytes for report in reports),
        "push_seconds": watch.seconds,
        "pusher_processor": watch.processor_seconds,
        "insert_processor": _processor_since(running, before),
    }


def _sample(running: Sequence[ReplayProcess], content: Content, samples: int) -> dict[str, Any]:
    batches = -(-samples // content.batch)
    with _client(running) as client:
        counted = _Counted(client.transport) if len(running) == 1 else None
        if counted:
            client = Client(counted)
        with client.sample(writers.TABLE, content.batch, decode=False) as sampler:
            for _ in range(WARM_BATCHES):
                sampler.next_batch()
            before, received = _processor(running), counted.bytes if counted else 0
            with timed() as watch:
                for _ in range(batches):
                    sampler.next_batch()
            served = _processor_since(running, before)
            received = counted.bytes - received if counted else 0
    _settle(running)
    return {
        "warm_samples": WARM_BATCHES * content.batch,
        "samples": batches * content.batch,
        "received_bytes": received,
        "sample_seconds": watch.seconds,
        "learner_processor": watch.processor_seconds,
        "serve_processor": served,
    }


class _Counted:
    """A transport that counts the bytes of the samples it hands over."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def sample_stream(self, messages: Iterator[bytes]) -> _CountedStream:
        """One that is counted."""
        return _CountedStream(self, self._transport.sample_stream(messages))


class _CountedStream:
    def __init__(self, counted: _Counted, stream: Any) -> None:
        self._counted, self._stream = counted, stream

    def __iter__(self) -> Iterator[bytes]:
        for message in self._stream:
            self._counted.bytes += len(message)
            yield message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _save(running: Sequence[ReplayProcess]) -> dict[str, Any]:
    """A checkpoint of all at once, on request; then another, for the memory that it takes."""
    _settle(running)
    for server in running:
        forget_peak(server.pid)
    held = sum(peak_bytes(server.pid) for server in running)
    before, began = _processor(running), time.monotonic()
    saved = _checkpoints(running)
    seconds, processor = time.monotonic() - began, _processor_since(running, before)
    _checkpoints(running)
    return {
        "checkpoint_seconds": seconds,
        "checkpoint_processor": processor,
        "checkpoint_bytes": sum(checkpoint["bytes"] for checkpoint in saved),
        "saving_bytes": sum(peak_bytes(server.pid) for server in running) - held,
    }


def _checkpoints(running: Sequence[ReplayProcess]) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(len(running)) as pool:
        return list(pool.map(ReplayProcess.checkpoint, running))


def _client(running: Sequence[ReplayProcess]) -> Any:
    """By names that stay: the same episodes on the same servers in every run."""
    if len(running) == 1:
        return connect(running[0].address)
    return connect([f"replay-{number}={server.address}" for number, server in enumerate(running)])


def _processor(running: Sequence[ReplayProcess]) -> float:
    return sum(server.processor_seconds() for server in running)


def _processor_since(running: Sequence[ReplayProcess], before: float) -> float:
    """Seconds since `before`. What is too short for the system's clock, which counts in ticks, counts as one tick."""
    return max(_processor(running) - before, 1 / os.sysconf("SC_CLK_TCK"))


def _resident(running: Sequence[ReplayProcess]) -> int:
    _settle(running)
    return sum(anonymous_bytes(server.pid) for server in running)


def _settle(running: Sequence[ReplayProcess]) -> None:
    for server in running:
        settle(server.pid)
