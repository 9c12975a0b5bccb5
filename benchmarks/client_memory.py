"""Memory of the pushing process while it pushes far more than the table holds; it must stay flat, and small without TensorFlow.

The push runs in a child process, from an endless `tf.data` RLDS dataset or from TFDS files; this process reads the child's
resident memory every time the child tells its progress.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence

from replay_server import TableConfig

from benchmarks import data, datasets, writers
from benchmarks.common import Goal, Result, Run, Size, figure, note, timed
from benchmarks.servers import BenchServer, rss_bytes

FULL = Size(items=5_000_000, reference_items=2_000_000, repeats=1)
SHORT = Size(items=200_000, reference_items=200_000, repeats=1)

GOAL = Goal(50, at_most=True)
FILES_GOAL = Goal(200, at_most=True)

TABLE_ITEMS = 100_000
WARM_UP_STEPS = TABLE_ITEMS
"""By then the table is full, every buffer has been used, and the server evicts."""

Samples = list[tuple[int, float]]
"""(steps read, MB) along the way."""


def run(size: Size) -> Iterator[Result]:
    """`Size.items` counts steps of `tf.data`: growth from the end of the warm-up to the end, in MB. `Size.reference_items`
    counts steps from files, in a process without TensorFlow: the most that it took, in MB.
    """
    dataset = ["benchmarks.client_memory", str(-(-size.items // data.STEPS))]
    samples, pushed = _pushed(dataset, size.items)
    yield _figure("client_memory", samples[-1][1] - samples[0][1], "MB of growth", GOAL, samples, pushed)
    files = ["benchmarks.push_child", f"tfds:{datasets.long_episodes(size.reference_items)}"]
    samples, pushed = _pushed(files, size.reference_items)
    yield _figure("client_memory/files", max(mb for _, mb in samples), "MB at most", FILES_GOAL, samples, pushed)


def _figure(name: str, value: float, unit: str, goal: Goal, samples: Samples, pushed: Run) -> Result:
    megabytes = [mb for _, mb in samples]
    return figure(
        name,
        value,
        unit,
        goal,
        first_mb=megabytes[0],
        last_mb=megabytes[-1],
        peak_mb=max(megabytes),
        tenths_mb=[megabytes[len(megabytes) * tenth // 10] for tenth in range(10)],
        samples=len(megabytes),
        steps=pushed.count,
        steps_per_second=round(pushed.rate),
        table_items=TABLE_ITEMS,
    )


def _pushed(child: Sequence[str], steps: int) -> tuple[Samples, Run]:
    """What the child took after the warm-up, and the push as a whole, start of the child included."""
    module, *arguments = child
    table = TableConfig(writers.TABLE, data.signature(data.half_cheetah()), max_size=TABLE_ITEMS)
    with BenchServer([table]) as server:
        command = [sys.executable, "-m", module, server.address, *arguments]
        samples, pushed = _watch(command, steps)
        server.expect(writers.TABLE, TABLE_ITEMS)
    return [(read, megabytes) for read, megabytes in samples if read >= WARM_UP_STEPS], pushed


def _watch(command: Sequence[str], steps: int) -> tuple[Samples, Run]:
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
    return samples, watch.run(steps)


if __name__ == "__main__":
    from benchmarks.push_child import push

    push(sys.argv[1], data.rlds_dataset(data.half_cheetah()).take(int(sys.argv[2])))
