"""Batches for a robot's policy: a table and a dataset on disk, in the workers of a DataLoader, against LeRobot's own DataLoader.

Both sides run in the Python of LeRobot (`make setup-lerobot`), each in a process of its own with two workers, and give the same batches of
the same frames (`robot_loaders`). LeRobot decodes videos by torchcodec, which is faster here than PyAV, and its images are resized by torchvision.

- `robot/table/...`: the JPEG files in a table. `robot/small/...`: resized to 256x256 when they were pushed, cropped to 224x224 at random.
- `robot/local/...`: the JPEG files straight from disk, and LeRobot's own h264 videos, in global order.
- `..._of_decoder`: against the JPEG decoder alone, by threads on both cores, as whole pictures of the same files.
- `robot/memory`: of the loader's processes, over many batches of small images. `robot/step_bytes`: of the server, for each step.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from replay_server import TableConfig

from benchmarks import robot_sets
from benchmarks.children import Child, python_with
from benchmarks.common import Goal, Result, Run, Side, Size, alternate, comparison, figure
from benchmarks.memory import growth_per_item
from benchmarks.robot_loaders import BATCH, HISTORY, SIDE, VIEW
from benchmarks.robot_sets import AV1, H264, IMAGES, lerobot_set
from benchmarks.servers import BenchServer
from rlds2reverb import local
from rlds2reverb.formats import open_source

FULL = Size(items=40, reference_items=12, repeats=3)
SHORT = Size(items=6, reference_items=6, repeats=1)

EPISODES = {True: 12, False: 4}
"""Of the sets, at full size and in a short run."""

MEMORY_BATCHES = {True: 10_000, False: 300}
"""Of which memory is measured, after a fifth as many, in which buffers, arenas and the queue fill up."""

IMAGE = "observation/image"
FOR_A_POLICY = f"action=concat(world_vector,rotation_delta),select={IMAGE},observation/state,action"
TABLE, SMALL, TINY, RAW = "jpeg", "small", "tiny", "raw"

STORED: dict[str, dict[str, Any]] = {
    TABLE: {"transform": FOR_A_POLICY, "encoded": "all"},
    RAW: {"transform": FOR_A_POLICY},
    SMALL: {"transform": f"{FOR_A_POLICY},resize={IMAGE}:256x256", "encode": "jpeg:quality=95"},
    TINY: {"transform": f"{FOR_A_POLICY},resize={IMAGE}:64x64", "encode": "jpeg:quality=95"},
}
"""Table -> options of the push that fills it."""

GOALS: dict[str, dict[str, Goal]] = {
    "table": {IMAGES: Goal(4.0), H264: Goal(2.5), AV1: Goal(2.0)},
    "small": {H264: Goal(8.0)},
    "local/jpeg": {IMAGES: Goal(4.0)},
    "local/h264": {H264: Goal(1.5)},
}
SMALL_GOAL, FIRST_GOAL = Goal(0.7), Goal(2.0, at_most=True)
FLAT_GOAL, STEP_GOAL = Goal(1.01, at_most=True), Goal(0.1, at_most=True)

RIVALS = {IMAGES: "LeRobot, images", H264: "LeRobot, h264", AV1: "LeRobot, AV1"}


def run(size: Size) -> Iterator[Result]:
    """Rates in samples a second. `Size.items` counts our batches, `Size.reference_items` LeRobot's."""
    is_full = size.repeats > 1
    source = f"tfds:{robot_sets.jpeg_set(EPISODES[is_full])}"
    yield _step_bytes(source)
    with BenchServer([_table(source, name) for name in (TABLE, SMALL, TINY)]) as server:
        _fill(server, source)
        python = python_with("LeRobot", "lerobot")
        if python is not None:
            yield from _rates(server, source, python, size, EPISODES[is_full])
            yield _memory(server, python, MEMORY_BATCHES[is_full])


class Loader:
    """A loader in a process of its own."""

    def __init__(self, python: Path, **description: Any) -> None:
        environment = robot_sets.environment(python)
        self._child = Child(python, "benchmarks.robot_loaders", environment, description)
        self.firsts: list[float] = []  # seconds from a new loader to its first batch
        self.images = ""
        self.bytes: list[int] = []  # memory of its processes after each run

    def take(self, batches: int) -> Run:
        """Takes so many batches."""
        answer = self._child.ask(batches)
        self.firsts.append(answer["first_seconds"])
        self.bytes.append(answer["bytes"])
        self.images = answer["images"]
        return Run(batches * BATCH, answer["seconds"], 0.0)

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *error: Any) -> None:
        self._child.__exit__(*error)


def _rates(server: BenchServer, source: str, python: Path, size: Size, episodes: int) -> Iterator[Result]:
    roots = {kind: str(lerobot_set(python, episodes, kind)) for kind in RIVALS}
    ours: dict[str, dict[str, Any]] = {
        "table": {"loader": "table", "address": server.address, "table": TABLE, "side": SIDE},
        "small": {"loader": "table", "address": server.address, "table": SMALL, "side": 256},
        "local/jpeg": {"loader": "local", "source": source, "transform": FOR_A_POLICY},
        "local/h264": {"loader": "local", "source": f"lerobot:{roots[H264]}?last_step=repeat"},
    }
    decoders = [
        Side(f"decoder, {table}", partial(_decode, _files(server, table), side), size.items // 2)
        for table, side in ((TABLE, SIDE), (SMALL, 0))
    ]
    # LeRobot's images by themselves: they take minutes.
    few = replace(size, items=size.items // 2, reference_items=2)
    for names, kinds, chosen in ((list(ours), (H264, AV1), size), (["table", "local/jpeg"], (IMAGES,), few)):
        with ExitStack() as stack:
            loaders = {name: stack.enter_context(Loader(python, **ours[name])) for name in names}
            rivals = {
                kind: stack.enter_context(Loader(python, loader="lerobot", root=roots[kind], kind=kind))
                for kind in kinds
            }
            sides = [Side(name, loader.take, chosen.items) for name, loader in loaders.items()]
            sides += [Side(RIVALS[kind], loader.take, chosen.reference_items) for kind, loader in rivals.items()]
            runs = alternate([*sides, *(decoders if H264 in kinds else [])], chosen.repeats)
        images = {name: loader.images for name, loader in loaders.items()}
        images |= {RIVALS[kind]: loader.images for kind, loader in rivals.items()}
        for name in names:
            for kind in kinds:
                if kind in GOALS[name]:
                    goal, label = GOALS[name][kind], RIVALS[kind].split()[-1].lower()
                    details = {"batch": BATCH, "images": images}
                    yield comparison(f"robot/{name}/{label}", runs, name, RIVALS[kind], "samples/s", goal, **details)
        if H264 in kinds:
            yield comparison("robot/table_of_decoder", runs, "table", f"decoder, {TABLE}", "samples/s")
            yield comparison("robot/small_of_decoder", runs, "small", f"decoder, {SMALL}", "samples/s", SMALL_GOAL)
            for name, loader in loaders.items():
                goal_of_first = FIRST_GOAL if name.startswith("local") else None
                seconds = statistics.median(loader.firsts)
                yield figure(f"robot/first_batch/{name}", seconds, "s", goal_of_first, seconds=loader.firsts)


def _decode(files: Sequence[bytes], side: int, batches: int) -> Run:
    """The decoder alone: as many pictures as the batches have, by a thread for each core, at the scale that the loaders decode at."""
    import simplejpeg

    count = batches * BATCH * HISTORY
    smallest = {"min_height": side, "min_width": side} if side else {}

    def decode(numbers: range) -> None:
        for number in numbers:
            simplejpeg.decode_jpeg(files[number % len(files)], "RGB", fastdct=True, fastupsample=False, **smallest)

    cores = len(os.sched_getaffinity(0))
    began = time.perf_counter()
    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(decode, [range(core, count, cores) for core in range(cores)]))
    return Run(batches * BATCH, time.perf_counter() - began, 0.0)


def _files(server: BenchServer, table: str) -> list[bytes]:
    """Image files of a table."""
    with server.client.sample(table, 256, samples=256, decode=False) as sampler:
        (batch,) = sampler
    return [file for row in batch.data["observation"]["image"] for file in row]


def _fill(server: BenchServer, source: str) -> None:
    for table in (TABLE, SMALL, TINY):
        server.client.push(source, table, VIEW, again=True, **STORED[table])


def _step_bytes(source: str) -> Result:
    """The server's memory for a step with a JPEG file over that with the pixels, each in a server of its own."""
    steps = sum(len(episode) - 1 for episode in open_source(source).with_encoded(("all",)))
    grown: dict[str, float] = {}
    for table, times in ((TABLE, 5), (RAW, 1)):  # files several times: a server grows by a few MB whatever comes

        def fill(server: BenchServer, table: str = table, times: int = times) -> int:
            for _ in range(times):
                server.client.push(source, table, VIEW, again=True, **STORED[table])
            return steps * times

        with BenchServer([_table(source, table)]) as server:
            grown[table] = growth_per_item(server, fill)
    details = {"jpeg_bytes": round(grown[TABLE]), "raw_bytes": round(grown[RAW])}
    return figure("robot/step_bytes", grown[TABLE] / grown[RAW], "of the raw bytes", STEP_GOAL, **details)


def _table(source: str, name: str) -> TableConfig:
    with local(source, VIEW, **STORED[name]) as batches:
        return TableConfig(name, batches.signature)


def _memory(server: BenchServer, python: Path, batches: int) -> Result:
    """The largest memory in the second half of the batches over that before the first, when the loader is warm."""
    part = batches // 20
    with Loader(python, loader="table", address=server.address, table=TINY, side=0, keeps=True) as loader:
        for _ in range(4 + 20):
            loader.take(part)
        warm, measured = loader.bytes[3], loader.bytes[4:]
    details = {"batches": batches, "megabytes": [round(size / 1e6, 1) for size in (warm, *measured)]}
    return figure("robot/memory", max(measured[10:]) / warm, "times", FLAT_GOAL, **details)
