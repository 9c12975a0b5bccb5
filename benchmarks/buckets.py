"""Data in a bucket against the same files on this machine's disk: pushes, requests and bytes, and what a delay of each answer costs.

The bucket is a small server of this machine (`bucket_server`), which takes one of its cores while it answers.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from replay_server import TableConfig

from benchmarks import data, datasets, writers
from benchmarks.common import Goal, Result, Run, Side, Size, alternate, comparison, figure, timed
from benchmarks.servers import BenchServer
from rlds2reverb.formats import open_source
from rlds2reverb.formats.objects import forget

FULL = Size(items=200_000, reference_items=200_000, repeats=5)
SHORT = Size(items=100_000, reference_items=100_000, repeats=1)

IMAGE_EPISODES = 48
"""Episodes of 43 steps with images, in a short run too: of four, opening the bucket takes longer than reading them."""

DELAY_SECONDS = 0.05

EPISODES = {True: 1_000_000, False: 40_000}
"""Episodes of two steps of which ten in the middle are read, at full size, and in a short run."""


@dataclass
class Bucket:
    """A server of a folder: its address, and what it has answered."""

    url: str

    def counts(self) -> tuple[int, int]:
        """Requests and bytes so far."""
        with urllib.request.urlopen(f"{self.url}/-/counts") as answer:
            found = json.load(answer)
        return found["requests"], found["bytes"]

    def chosen(self) -> None:
        """Lets `s3://` lead to it, without what is known of another one."""
        os.environ |= {"AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        forget()


@contextmanager
def bucket(folder: Path, delay: float = 0.0) -> Iterator[Bucket]:
    command = [sys.executable, "-m", "benchmarks.bucket_server", str(folder), str(delay)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Bucket(process.stdout.readline().strip())
        finally:
            process.kill()


def run(size: Size) -> Iterator[Result]:
    """Half-cheetah 2-step items, then RT-1's images of 256x320, then ten episodes among many, all from TFDS files."""
    columns = data.half_cheetah()
    vectors = datasets.long_episodes(size.items + data.STEPS)
    pictures = datasets.open_x("rt1", IMAGE_EPISODES)
    with ExitStack() as stack:
        server = stack.enter_context(BenchServer([TableConfig(writers.TABLE, data.signature(columns))]))
        near, far = (stack.enter_context(bucket(vectors, delay)) for delay in (0.0, DELAY_SECONDS))
        episodes = data.episodes_for(size.items, data.STEPS)

        def push(n: int, place: Bucket | None) -> Run:
            if place is None:
                return writers.push(server, f"tfds:{vectors}@train[:{n}]")
            place.chosen()
            return writers.push(server, f"tfds:s3://bench@train[:{n}]")

        sides = [
            Side("bucket", lambda n: push(n, near), episodes),
            Side("disk", lambda n: push(n, None), episodes),
            Side("bucket, 50 ms", lambda n: push(n, far), episodes),
        ]
        runs = alternate(sides, size.repeats)
        yield comparison("buckets/vectors", runs, "bucket", "disk", "items/s", Goal(0.8))
        yield comparison("buckets/delayed", runs, "bucket, 50 ms", "bucket", "items/s", Goal(0.7))
        near.chosen()
        before = near.counts()
        read = sum(len(episode) for episode in open_source("tfds:s3://bench@train"))
        requests, received = (now - then for now, then in zip(near.counts(), before))
        share = requests / (received / 1e6)
        yield figure("buckets/requests", share, "per MB", Goal(1.0, at_most=True), steps=read, megabytes=received / 1e6)
        yield _first_item(server, near)

        stored = stack.enter_context(bucket(pictures))

        def images(n: int, name: str) -> Run:
            stored.chosen()
            with timed() as watch:
                steps = sum(map(len, open_source(name).first(n)))
            return watch.run(steps)

        sides = [
            Side("bucket", lambda n: images(n, "tfds:s3://bench@train"), IMAGE_EPISODES),
            Side("disk", lambda n: images(n, f"tfds:{pictures}@train"), IMAGE_EPISODES),
        ]
        yield comparison("buckets/images", alternate(sides, size.repeats), "bucket", "disk", "steps/s", Goal(0.9))
    yield from _ten_episodes(EPISODES[size.repeats > 1], size.repeats)


def _first_item(server: BenchServer, place: Bucket) -> Result:
    """Seconds from opening a set in a bucket to the end of a push of its first episode."""
    place.chosen()
    begun = perf_counter()
    writers.push(server, "tfds:s3://bench@train[:1]")
    return figure("buckets/first_item", perf_counter() - begun, "s", Goal(2.0, at_most=True))


def _ten_episodes(episodes: int, repeats: int) -> Iterator[Result]:
    """Seconds from the start of a process to ten episodes out of a set, from deep in a file; with an index of its records and without one."""
    data_set = datasets.short_episodes(2 * episodes, 2)
    first = episodes * 7 // 10  # the files are four
    middle = f"@train[{first}:{first + 10}]"
    with ExitStack() as stack:
        server = stack.enter_context(bucket(data_set))
        server.chosen()
        for place, name in (("disk", f"tfds:{data_set}"), ("bucket", "tfds:s3://bench")):
            caches = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(repeats)]
            without = statistics.median(_seconds_of_ten(name + middle, cache) for cache in caches)
            _run("-m", "rlds2reverb", "index", "--quiet", name, cache=caches[0])
            before = server.counts()
            found = statistics.median(_seconds_of_ten(name + middle, caches[0]) for _ in range(repeats))
            requests, received = ((now - then) / repeats for now, then in zip(server.counts(), before))
            asked = {} if place == "disk" else {"requests": requests, "kilobytes": received / 1e3}
            goal = Goal(1.0, at_most=True)
            yield figure(
                f"buckets/ten_of_{place}", found, "s", goal, episodes=episodes, without_index_s=without, **asked
            )


_TEN = "import sys; from rlds2reverb.formats import open_source; assert sum(1 for _ in open_source(sys.argv[1])) == 10"


def _seconds_of_ten(name: str, cache: Path) -> float:
    begun = perf_counter()
    _run("-c", _TEN, name, cache=cache)
    return perf_counter() - begun


def _run(*arguments: str, cache: Path) -> None:
    environment = {**os.environ, "RLDS2REVERB_CACHE": str(cache)}
    subprocess.run([sys.executable, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)
