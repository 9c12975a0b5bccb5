"""What the chunk length costs and buys: push rate, server memory and sampling rate, and what is chosen by default."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from replay_server import TableConfig

from benchmarks import data, sampling, writers
from benchmarks.common import Result, Size, figure, note
from benchmarks.memory import growth_per_item
from benchmarks.servers import BenchServer
from rlds2reverb import Episode
from rlds2reverb.episode import Array
from rlds2reverb.views.trajectory import two_step
from rlds2reverb.wire.insert import choose_chunk_length

FULL = Size(items=100_000, reference_items=0, repeats=3)
SHORT = Size(items=20_000, reference_items=0, repeats=1)

IMAGE_SHARE = 10
"""Images are this many times fewer than `Size` says."""

SAMPLED_SHARE = 4
"""One sample is taken for so many items."""

LENGTHS = (1, 2, 4, 8, 16, 32, 64)


def run(size: Size) -> Iterator[Result]:
    """One line per chunk length, for small steps and for images; the figure is the push rate in items per second.

    A single repeat measures the chosen lengths only.
    """
    yield from _lengths("half_cheetah", data.half_cheetah(), size.items, size.repeats)
    yield from _lengths("images", data.pictures(), size.items // IMAGE_SHARE, size.repeats)


def _lengths(name: str, columns: list[dict[str, Array]], items: int, repeats: int) -> Iterator[Result]:
    cut = two_step().cut(Episode(columns[0], {}, "row"))
    chosen = choose_chunk_length(cut.row_bytes, 2, cut.text_bytes)
    for length in sorted({*LENGTHS, chosen}) if repeats > 1 else [chosen]:
        yield _measure(name, columns, items, repeats, length, is_chosen=length == chosen)


def _measure(
    name: str, columns: list[dict[str, Array]], items: int, repeats: int, length: int, is_chosen: bool
) -> Result:
    episodes = data.episodes(columns, data.episodes_for(items, len(columns[0]["is_first"])))
    with BenchServer([TableConfig(writers.TABLE, data.signature(columns))]) as server:

        def push() -> float:
            return writers.push(server, episodes, chunk_length=length).rate

        def fill(filled: BenchServer) -> int:
            return writers.push(filled, episodes, chunk_length=length).count

        batches = max(10, items // (SAMPLED_SHARE * sampling.BATCH))
        item_bytes = growth_per_item(server, fill)
        rates = [push() for _ in range(repeats)]
        samples = [sampling.sample(server, writers.TABLE, batches) for _ in range(repeats)]
    result = figure(
        f"chunk_length/{name}/{length}",
        statistics.median(rates),
        "items/s",
        chosen=is_chosen,
        server_bytes_per_item=round(item_bytes),
        samples_per_second=round(statistics.median(run.rate for run in samples)),
        items=items,
        repeats=repeats,
    )
    note(f"  {name}, {length} rows: {result['value']:,} items/s, {result['parameters']}")
    return result
