"""What servers are filled with to measure their costs: vectors of any width, from memory and from files, and images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks import data, datasets, encoded, writers
from rlds2reverb import Episode, PushReport, open_source
from rlds2reverb.episode import Array
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.specs import Nest
from rlds2reverb.views.base import View
from rlds2reverb.views.trajectory import SequenceView, table_signature, two_step
from rlds2reverb.wire.insert import choose_chunk_length

ACTIONS = 2
FILE_LENGTH = 100
"""Steps of an episode in the files with half-cheetah's steps."""

LONG_BATCH = 16
"""Samples of a batch of long items, and of images."""


@dataclass(frozen=True)
class Content:
    """Something to fill a table with.

    Attributes:
      name: what people call it.
      signature: of its table.
      items: how many it makes.
      step_bytes, chunk_steps: bytes of a step in the items; steps of a chunk.
      push: fills the table; the accounts of its pushes.
      batch: samples of a batch.
    """

    name: str
    signature: Nest
    items: int
    step_bytes: float
    chunk_steps: int
    push: Callable[[Any], Sequence[PushReport]]
    batch: int = 256


def vectors(items: int, floats: int, length: int = data.STEPS) -> Content:
    """At least so many 2-step items from memory, `floats` float32 of observation a step, in episodes of `length` steps."""
    name = f"{floats} floats" if length == data.STEPS else f"{floats} floats, episodes of {length} steps"
    return _of_vectors(name, data.vectors(floats, ACTIONS, length), two_step(), -(-items // (length - 1)), length - 1)


def sequences(steps: int, floats: int, window: int) -> Content:
    """So many steps in items of `window` steps that do not overlap."""
    view, columns = SequenceView(window, stride=window), data.vectors(floats, ACTIONS)
    name = f"{floats} floats, items of {window} steps"
    content = _of_vectors(name, columns, view, steps // data.STEPS, data.STEPS // window)
    return replace(content, batch=LONG_BATCH)


def _of_vectors(name: str, columns: list[dict[str, Array]], view: View, count: int, each: int) -> Content:
    """So many episodes of `each` items."""
    row_bytes, window = view.cut(Episode(columns[0], {}, "one")).row_bytes, int(getattr(view, "length", 2))
    episodes = data.episodes(columns, count)

    def push(client: Any) -> list[PushReport]:
        return [client.push(episodes, writers.TABLE, view)]

    return Content(name, data.signature(columns), count * each, row_bytes, choose_chunk_length(row_bytes, window), push)


def files(steps: int) -> Content:
    """Half-cheetah's steps from TFDS files, in short episodes."""
    source = f"tfds:{datasets.short_episodes(steps, FILE_LENGTH)}"
    opened = open_source(source)
    first = next(iter(opened))
    cut = two_step().cut(first)
    return Content(
        "half-cheetah from files",
        table_signature(two_step().signature(filled_spec(opened.spec()))),
        sum(len(episode) - 1 for episode in opened),
        cut.row_bytes,
        choose_chunk_length(cut.row_bytes, 2),
        lambda client: [client.push(source, writers.TABLE, allow=("last_reward",))],
    )


def images(episodes: int, times: int, kept_encoded: bool) -> Content:
    """RT-1's images with what a policy uses beside them, several times over, decoded or as the files' bytes."""
    directory = datasets.open_x("rt1", episodes)
    name, table = f"tfds:{directory}", encoded.ENCODED if kept_encoded else encoded.DECODED
    kept = ("all",) if kept_encoded else ()
    lengths = list(map(len, open_source(name).with_encoded(("all",))))
    file_bytes = datasets.record_bytes(directory)
    whole = encoded.Data(name, file_bytes, sum(lengths))

    def push(client: Any) -> list[PushReport]:
        return [
            client.push(name, writers.TABLE, again=True, encoded=kept, transform=whole.transform) for _ in range(times)
        ]

    return Content(
        "images, kept encoded" if kept_encoded else "images, decoded",
        whole.table(table).signature,
        times * sum(length - 1 for length in lengths),
        file_bytes / sum(lengths),
        1,
        push,
        batch=LONG_BATCH,
    )
