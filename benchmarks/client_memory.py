"""Memory of the pushing process while it pushes far more than the table holds; it must stay flat.

The push runs in a child process, from an endless `tf.data` RLDS dataset; this process reads the child's resident memory
every time the child tells its progress.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from replay_server import TableConfig

from benchmarks import data, writers
from benchmarks.common import Goal, Result, Run, Size, figure, note, timed
from benchmarks.servers import BenchServer, rss_bytes

FULL = Size(items=5_000_000, reference_items=0, repeats=1)
SHORT = Size(items=300_000, reference_items=0, repeats=1)

GOAL = Goal(50, at_most=True)
TABLE_ITEMS = 100_000
WARM_UP_STEPS = TABLE_ITEMS
"""By then the table is full, every buffer has been used, and the server evicts."""


def run(size: Size) -> Iterator[Result]:
    """`Size` counts steps; the figure is the growth from the end of the warm-up to the end, in MB."""
    table = TableConfig(writers.TABLE, data.signature(data.half_cheetah()), max_size=TABLE_ITEMS)
    with BenchServer([table]) as server:
        samples, pushed = _watch(server, -(-size.items // data.STEPS))
        server.expect(writers.TABLE, TABLE_ITEMS)
    warm = [megabytes for steps, megabytes in samples if steps >= WARM_UP_STEPS]
    yield figure(
        "client_memory",
        warm[-1] - warm[0],
        "MB of growth",
        GOAL,
        first_mb=warm[0],
        last_mb=warm[-1],
        peak_mb=max(warm),
        tenths_mb=[warm[len(warm) * tenth // 10] for tenth in range(10)],
        samples=len(warm),
        steps=pushed.count,
        steps_per_second=round(pushed.rate),
        table_items=TABLE_ITEMS,
    )


def _watch(server: BenchServer, episodes: int) -> tuple[list[tuple[int, float]], Run]:
    """(steps read, MB) along the way, and the push as a whole, start of the child included."""
    command = [sys.executable, "-m", "benchmarks.client_memory", server.address, str(episodes)]
    samples = []
    with timed() as watch, subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdin is not None  # noqa: PT018 - we asked for pipes
        for line in child.stdout:
            samples.append((int(line), round(rss_bytes(child.pid) / 1e6, 1)))
            child.stdin.write("\n")
            child.stdin.flush()
    if child.returncode:
        raise RuntimeError(f"the pushing process ended with exit code {child.returncode}")
    note(f"  {len(samples)} samples, {samples[0][1]} MB first, {samples[-1][1]} MB last")
    return samples, watch.run(episodes * data.STEPS)


def _push(address: str, episodes: int) -> None:
    """The child: prints the steps read, a few times per second, and goes on when it is told that it has been looked at."""
    from rlds2reverb import Progress, connect

    def tell(progress: Progress) -> None:
        print(progress.steps, flush=True)
        sys.stdin.readline()

    dataset = data.rlds_dataset(data.half_cheetah()).take(episodes)
    with connect(address) as client:
        client.push(dataset, writers.TABLE, allow_eviction=True, on_progress=tell)


if __name__ == "__main__":
    _push(sys.argv[1], int(sys.argv[2]))
