"""Sampling a table as TorchRL's learners do, against TorchRL's own buffers in other processes, and beside those in the learner's own.

All sides run in the Python of TorchRL (of `make setup-learners`), each in a process of its own, and give TensorDicts of 256 transitions with the same
keys, shapes and dtypes. Rivals in other processes: `RayReplayBuffer`, an actor of Ray, and `RemoteTensorDictReplayBuffer` by
torch.distributed.rpc; each has the fastest of `SETTINGS` with these data. `LazyTensorStorage` and `LazyMemmapStorage` in the learner's process
send nothing, and are the limit. `torchrl/loop`: 256 steps are written before each sample, and are stored in the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from replay_server import TableConfig

from benchmarks import data
from benchmarks.children import Child, learners_environment, python_with
from benchmarks.common import Goal, Result, Run, Side, Size, alternate, comparison, note
from benchmarks.servers import BenchServer
from rlds2reverb import local

FULL = Size(items=100_000, reference_items=100_000, repeats=5)
SHORT = Size(items=10_000, reference_items=10_000, repeats=1)

OURS = "table"
REMOTE, DIRECT = ("RayReplayBuffer", "RemoteTensorDictReplayBuffer"), ("LazyTensorStorage", "LazyMemmapStorage")
SETTINGS: dict[str, Sequence[dict[str, Any]]] = {
    OURS: [{}],
    REMOTE[0]: [{"transport": "ray"}, {"transport": "ray", "prefetch": 3}, {"transport": "distributed"}],
    REMOTE[1]: [{}, {"prefetch": 3}],
    **{name: [{}] for name in DIRECT},
}
GOAL = Goal(2.0, fails_at=0.05)  # it is known to be far away
BATCH = 256
TABLES = ("sampled", "loop")
STORED = {"vectors": 50_000, "images": 4_000}
DIRECT_TIMES = 16
"""So many times more samples of a buffer in the learner's own process, whose run would otherwise end within milliseconds."""

IMAGES_SHARE = 8
"""So many times fewer samples of images than `Size` says."""


def run(size: Size) -> Iterator[Result]:
    """Rates in samples (transitions) a second; `Size` counts samples."""
    python = python_with("TorchRL", "learners")
    if python is None:
        return
    for kind, columns in (("vectors", data.half_cheetah()), ("images", data.pictures())):
        share = IMAGES_SHARE if kind == "images" else 1
        batches = [max(4, count // share // BATCH) for count in (size.items, size.reference_items)]
        steps = len(columns[0]["is_first"])
        episodes = data.episodes(columns, data.episodes_for(STORED[kind], steps))
        with local(episodes, "transition") as prepared:
            signature = prepared.signature
        tables = [TableConfig(name, signature, max_size=len(episodes) * (steps - 1)) for name in TABLES]
        with BenchServer(tables) as server, ExitStack() as stack:
            for name in TABLES:
                server.client.push(episodes, name, "transition")
            server.settle()
            stored = len(episodes) * (steps - 1)
            description = {"data": kind, "stored": stored, "address": server.address}
            sides = {
                name: stack.enter_context(
                    Child(python, "benchmarks.torchrl_buffers", learners_environment(), {"buffer": name, **description})
                )
                for name in SETTINGS
            }
            for case in [kind, "loop"] if kind == "vectors" else [kind]:
                yield from _case(case, sides, batches, size.repeats, stored)


def _case(case: str, sides: Mapping[str, Child], batches: Sequence[int], repeats: int, stored: int) -> Iterator[Result]:
    writes = case == "loop"
    best = {name: _best_setting(name, child, max(4, batches[1] // 5), writes) for name, child in sides.items()}
    columns: dict[str, Any] = {}

    def take(name: str, count: int) -> Run:
        answer = sides[name].ask({"options": best[name], "batches": count, "writes": writes})
        columns[name] = answer["columns"]
        return Run(count * BATCH, answer["seconds"], answer["processor_seconds"])

    counts = {name: batches[name != OURS] * (DIRECT_TIMES if name in DIRECT and not writes else 1) for name in sides}
    runs = alternate([Side(name, partial(take, name), counts[name]) for name in sides], repeats)
    for name in sides:
        if columns[name] != columns[OURS]:
            raise RuntimeError(f"{name} gives {columns[name]}, a table {columns[OURS]}")
        if name != OURS:
            goal = GOAL if name in REMOTE else None
            details = {"stored_items": stored, "batch": BATCH, "settings": best[name], "columns": columns[OURS]}
            yield comparison(f"torchrl/{case}/{name}", runs, OURS, name, "samples/s", goal, **details)


def _best_setting(name: str, child: Child, batches: int, writes: bool) -> dict[str, Any]:
    settings = SETTINGS[name]
    if len(settings) == 1:
        return settings[0]
    seconds = [child.ask({"options": setting, "batches": batches, "writes": writes})["seconds"] for setting in settings]
    for setting, duration in zip(settings, seconds):
        note(f"  {name} {setting}: {batches * BATCH / duration:,.0f}/s")
    return settings[seconds.index(min(seconds))]
