"""Hypothesis strategies of the wire suite: columns in any memory layout, cuts of every kind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rlds2reverb.cuts import Cut, Field, Window
from rlds2reverb.episode import Array
from rlds2reverb.views.base import View
from rlds2reverb.views.trajectory import SequenceView, WholeEpisode
from rlds2reverb.wire.insert import EncodedEpisode, EpisodeEncoder, Part
from tests.support import strategies


class Encoder(EpisodeEncoder):
    """Encodes single cuts for some tables."""

    def __init__(self, tables: Iterable[str], push_seed: int, chunk_length: int | None = None) -> None:
        super().__init__(chunk_length)
        self._tables, self._push_seed = tuple(tables), push_seed

    def encode_cut(self, name: str, cut: Cut) -> EncodedEpisode:
        return self.encode(name, [Part(self._tables, self._push_seed, name, cut)])


LAYOUTS = ("plain", "strided", "reversed", "fortran", "big-endian", "constant")
TEXT_LAYOUTS = ("plain", "strided", "reversed", "S", "U", "str")


def laid_out(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...], layout: str) -> Array:
    """Random values [rows, ...] in one of `LAYOUTS` (text: `TEXT_LAYOUTS`)."""
    if layout == "strided":
        return strategies.array(rng, dtype, (2 * shape[0], *shape[1:]))[::2]
    values = strategies.array(rng, dtype, shape)
    if layout == "reversed":
        return values[::-1]
    if layout == "fortran":
        return np.asfortranarray(values)
    if layout == "constant":
        return np.broadcast_to(values[:1], shape) if values.size else values
    if layout == "big-endian" and dtype.kind in "iufc" and dtype.itemsize > 1:
        return values.astype(dtype.newbyteorder(">"))
    if layout in ("S", "U", "str"):
        words = np.array(["", "a", "snäppy", "日本", "x" * 130], object)[rng.integers(0, 5, shape)]
        return {"S": lambda: np.char.encode(words.astype("U"), "utf-8"), "U": lambda: words.astype("U")}.get(
            layout, lambda: words
        )()
    return values


@st.composite
def columns(draw: st.DrawFn, rows: int) -> Array:
    """One column [rows, ...]."""
    dtype = draw(st.one_of(strategies.dtypes(), st.just(np.dtype(object))))
    layout = draw(st.sampled_from(TEXT_LAYOUTS if dtype == object else LAYOUTS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return laid_out(rng, dtype, (rows, *draw(strategies.shapes())), layout)


@st.composite
def hand_made(draw: st.DrawFn, max_rows: int = 60) -> Cut:
    """A cut that no view makes: fields that share columns, several windows, anchors unsorted or of their own."""
    rows = draw(st.integers(1, max_rows))
    span = draw(st.integers(1, rows))
    lowest = draw(st.integers(-5, 5))
    groups = draw(st.lists(window_groups(lowest, span), min_size=1, max_size=5))
    low = min(window.start for group in groups for window in group)
    high = max(window.stop for group in groups for window in group)
    anchors = draw(st.lists(st.integers(-low, rows - high), min_size=1, max_size=20, unique=True))
    own = st.lists(st.integers(-low, rows - high), min_size=len(anchors), max_size=len(anchors))
    priorities = draw(st.lists(st.floats(allow_nan=False), min_size=len(anchors), max_size=len(anchors)))
    stored = [f"column{number}" for number in range(draw(st.integers(1, len(groups))))]
    fields = {}
    for number, group in enumerate(groups):
        column = stored[number] if number < len(stored) else draw(st.sampled_from(stored))
        array = draw(st.none() | own)
        fields[f"field{number}"] = Field(column, group, None if array is None else np.array(array, np.int64))
    return Cut(
        {column: draw(columns(rows)) for column in stored},
        fields,
        np.array(anchors, np.int64),
        np.array(priorities, np.float64),
    )


@st.composite
def window_groups(draw: st.DrawFn, lowest: int, span: int) -> tuple[Window, ...]:
    """The windows of one field: mostly one; several in any order, which may overlap, and are not squeezed."""
    if draw(st.integers(0, 3)):
        return (draw(windows_within(lowest, span)),)
    several = draw(st.lists(windows_within(lowest, span), min_size=1, max_size=4))
    return tuple(Window(window.start, window.stop) for window in several)


@st.composite
def windows_within(draw: st.DrawFn, lowest: int, span: int) -> Window:
    """A window inside [lowest, lowest + span); of one row it may be squeezed."""
    start = lowest + draw(st.integers(0, span - 1))
    stop = draw(st.integers(start + 1, lowest + span))
    return Window(start, stop, stop == start + 1 and draw(st.booleans()))


@st.composite
def of_views(draw: st.DrawFn) -> Cut:
    """The cut of a random episode by a view of the library, with at least one item."""
    length, stride = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    pad_end = draw(st.booleans())
    sequence = SequenceView(length, stride, pad_end, pad_end and draw(st.booleans()), draw(st.floats(0, 10)))
    views: list[View] = [sequence, WholeEpisode()]
    view = draw(st.sampled_from(views))
    cut = view.cut(draw(strategies.episodes()))
    return cut if len(cut.anchors) else WholeEpisode().cut(draw(strategies.episodes()))


def cuts() -> st.SearchStrategy[Cut]:
    """Any cut with at least one item."""
    return st.one_of(hand_made(), of_views())


def chunk_length() -> st.SearchStrategy[int]:
    """Chunk lengths: short ones mostly, and some longer than the episodes."""
    return st.one_of(st.integers(1, 12), st.integers(1, 300))
