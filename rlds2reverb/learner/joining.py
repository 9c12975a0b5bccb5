"""Samples of several parts -> one batch.

Piece         some samples of a part's batch
Feed          one part: hands out its samples few at a time, starts again at its end, keeps its position
Interleave    the parts of a mix: batches whose samples come from given parts
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, SpecMismatch
from rlds2reverb.learner.batch import Batch, BatchInfo, columns_of, in_structure, padded, paths_of, rows_are_free
from rlds2reverb.learner.options import PAD
from rlds2reverb.learner.states import State
from rlds2reverb.specs import ArraySpec, Nest, differences, dtype_name, flatten
from rlds2reverb.wire.sample.batches import Column, placed


class Piece(NamedTuple):
    """Some samples of a batch of a part.

    Attributes:
      part: the part's number.
      batch: of the part.
      start, stop: samples [start, stop) of it.
    """

    part: int
    batch: Batch
    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many."""
        return self.stop - self.start


def item_spec(data: Nest, structure: Nest) -> Nest:
    """The spec of one item of a batch; sizes in which its items differ are free."""
    return in_structure(map(_spec_of, columns_of(data, structure)), structure)


def check_alike(first: tuple[str, Nest], other: tuple[str, Nest]) -> None:
    """Refuses two parts whose items differ; each is its name, and the spec of its items. A size that is free in one fits any in the other.

    Raises:
      SpecMismatch: leaf by leaf, where they differ.
    """
    (one, spec), (another, found) = first, other
    lines = differences(found, spec)
    if lines and differences(spec, found):
        raise SpecMismatch(
            f'mix: "items" are those of {another}, "table" is {one}',
            lines,
            "give the parts the same view, the same transform and the same columns",
        )


def joined(
    pieces: Sequence[Piece],
    parts: Array,
    structures: Mapping[int, Nest],
    places: Sequence[Array] | None = None,
) -> Batch:
    """One batch. Where some parts tell a weight or a mask, those of the others are 1, and true for all rows that an item has.

    Args:
      pieces: the samples; without `places`, those of a part in the order in which they stand in the batch.
      parts: [B] of which part each sample is.
      structures: part -> nest of its columns.
      places: where the samples of each piece stand, which are of its part; together each of [0, B) once.

    Raises:
      ConfigError: a part pads or stacks its samples, or parts differ in a column's dtype.
    """
    places = _places(pieces, parts) if places is None else places
    for piece in pieces:
        if piece.batch.info.masks is not None:
            raise ConfigError('mix: a part pads its samples; leave that out there, and give ragged="pad" to mix')
        if piece.batch.info.key.ndim != 1:
            raise ConfigError(f"mix: part {piece.part} stacks its samples; leave that out there, and stack the mix")
    structure = structures[pieces[0].part]
    columns = zip(*(_cut(columns_of(one.batch.data, structures[one.part]), one) for one in pieces), strict=True)
    whole = []
    for path, values in zip(flatten(structure).values(), columns, strict=True):
        _check_dtypes(path, values, pieces)
        whole.append(placed(values, places, len(parts)))
    return Batch(in_structure(whole, structure), _joined_info(pieces, places, parts, whole))


def _places(pieces: Sequence[Piece], parts: Array) -> list[Array]:
    """Where the samples of each piece stand."""
    own = {part: np.flatnonzero(parts == part) for part in {piece.part for piece in pieces}}
    taken = dict.fromkeys(own, 0)
    out = []
    for piece in pieces:
        start = taken[piece.part]
        taken[piece.part] = start + piece.size
        out.append(own[piece.part][start : start + piece.size])
    return out


def _joined_info(
    pieces: Sequence[Piece], places: Sequence[Array], parts: Array, columns: Sequence[Column]
) -> BatchInfo:
    fields: dict[str, Any] = {}
    for name in BatchInfo._fields:
        values = [getattr(piece.batch.info, name) for piece in pieces]
        if name == "weight" and any(value is not None for value in values):
            values = [np.ones(one.batch.size, np.float32) if own is None else own for one, own in zip(pieces, values)]
        if name != "mask" and all(value is not None for value in values):
            own = [value[piece.start : piece.stop] for value, piece in zip(values, pieces)]
            fields[name] = placed(own, places, len(parts))
    known = BatchInfo(**{**dict.fromkeys(BatchInfo._fields), **fields})
    return known._replace(source=parts.astype(np.int64), mask=_joined_mask(pieces, places, columns))


def _joined_mask(pieces: Sequence[Piece], places: Sequence[Array], columns: Sequence[Column]) -> Array | None:
    """[B, L], as long as the longest; of a part without one, all rows that its items have. None where no part has one."""
    masks = [None if (mask := one.batch.info.mask) is None else mask[one.start : one.stop] for one in pieces]
    length = max((mask.shape[1] for mask in masks if mask is not None), default=0)
    if all(mask is None for mask in masks):
        return None
    total = sum(piece.size for piece in pieces)
    ragged = [column for column in columns if isinstance(column, list)]
    rows = np.array([min((len(one[item]) for one in ragged), default=length) for item in range(total)], np.int64)  # [B]
    length = max([length, *(int(rows[place].max()) for place, mask in zip(places, masks) if mask is None)])
    whole = np.zeros((total, length), bool)
    for place, mask in zip(places, masks):
        if mask is None:
            whole[place] = np.arange(length) < rows[place, np.newaxis]
        else:
            whole[place, : mask.shape[1]] = mask
    return whole


def _check_dtypes(path: str, values: Sequence[Column], pieces: Sequence[Piece]) -> None:
    """Refuses columns that numpy would convert; images that only some parts decode, say."""
    dtypes = {dtype: piece.part for column, piece in zip(values, pieces) for dtype in _dtypes_of(column)}
    if len(dtypes) > 1:
        found = ", ".join(f"{dtype_name(dtype)} in part {part}" for dtype, part in dtypes.items())
        raise ConfigError(f'mix: column "{path}" is {found}; expected one dtype (`decode` and `view` must be the same)')


def _dtypes_of(column: Column) -> set[np.dtype[Any]]:
    return {value.dtype for value in column} if isinstance(column, list) else {column.dtype}


def _cut(columns: Sequence[Column], piece: Piece) -> list[Column]:
    return [column[piece.start : piece.stop] for column in columns]


def _spec_of(column: Column) -> ArraySpec:
    if not isinstance(column, list):
        return ArraySpec(column.shape[1:], column.dtype)
    shapes = [value.shape for value in column]
    if len({len(shape) for shape in shapes}) > 1:
        return ArraySpec((None,), column[0].dtype)
    return ArraySpec(tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes)), column[0].dtype)


def is_signature(structure: Nest | None) -> bool:
    """Whether a structure says what its leaves hold, as tables' signatures do."""
    return structure is not None and all(isinstance(leaf, ArraySpec) for leaf in flatten(structure).values())


_NOT_REPEATED = (
    "what it gives next cannot be repeated: a server draws, and keeps no account of it. Give anew=True to go on with samples of the "
    "table as it is now; which part each sample comes from, and all other parts, are restored"
)


class Batches(Protocol):
    """What can be mixed: a `Sampler`, a `Local`, a `Mix`, or anything with these two methods.

    Those that can begin again have `restart()`. Those that can be restored have `take(count)`, `state()` and `restore(state)`. Those that
    know what their samples are called tell it as `structure`.
    """

    def next_batch(self) -> Batch | None:
        """The next batch; None at the end."""

    def close(self) -> None:
        """Ends it."""


@runtime_checkable
class Restored(Batches, Protocol):
    """What knows where it stands."""

    def take(self, count: int) -> Batch | None:
        """The next so many samples in one batch; fewer before the end, None at the end."""

    def state(self) -> State:
        """Where it stands: plain values."""

    def restore(self, state: Mapping[str, Any], anew: bool = False) -> None:
        """Goes to where another one stood; what cannot, continues with other samples where `anew` allows it.

        Raises:
          ConfigError: the state is of something else, or cannot be restored.
        """


@runtime_checkable
class Restarts(Protocol):
    """What can begin again at its end."""

    def restart(self) -> None:
        """Begins again."""


class Iterated:
    """An iterator of batches as `Batches`."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._left = batches

    def next_batch(self) -> Batch | None:
        """The next one; None at the end."""
        return next(self._left, None)

    def close(self) -> None:
        """Nothing is to be closed."""


class Repeated(Iterated):
    """Batches that are there, as `Batches`: they come again and again."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        super().__init__(iter(batches))
        self._batches = batches

    def restart(self) -> None:
        """Begins again with the first."""
        self._left = iter(self._batches)


class Feed:
    """A part.

    Args:
      number: of the part.
      batches: where its samples come from.
      name: what messages call it.

    Attributes:
      number, batches, name: as given.
      structure: nest of the columns; None before the first batch.
      spec: of the items; None where it is not known yet.
    """

    def __init__(self, number: int, batches: Batches, name: str) -> None:
        self.number, self.batches, self.name = number, batches, name
        self._known_structure: Nest | None = getattr(batches, "structure", None)
        self.spec: Nest | None = self._known_structure if is_signature(self._known_structure) else None
        self.structure: Nest | None = None
        self._batch: Batch | None = None
        self._offset = 0

    def take(self, count: int) -> Iterator[Piece]:
        """The next so many samples; fewer when it ends, and cannot begin again.

        Raises:
          ConfigError: it is empty.
          Rlds2ReverbError: as its batches do.
        """
        while count and (piece := self._next_piece(count)) is not None:
            yield piece
            count -= piece.size

    def rest(self) -> Piece | None:
        """What is left of the batch in use."""
        if self._batch is None or self._offset == self._batch.size:
            return None
        return Piece(self.number, self._batch, self._offset, self._batch.size)

    def state(self) -> State:
        """Where it stands; of a part that cannot be restored, only its name."""
        return {"name": self.name, "at": self.batches.state() if isinstance(self.batches, Restored) else None}

    def check(self, state: object, anew: bool) -> None:
        """Refuses the state of another kind of part, before anything is restored.

        Raises:
          ConfigError: it is not, or the part cannot be restored, and `anew` is false.
        """
        if not isinstance(state, Mapping) or not {"name", "at"} <= state.keys():
            raise ConfigError(f"restore: part {self.number} ({self.name}): the state has no part like it")
        if state["name"] != self.name:
            raise ConfigError(f"restore: part {self.number} was {state['name']}, is {self.name}")
        if (state["at"] is not None) != isinstance(self.batches, Restored):
            raise ConfigError(f"restore: part {self.number} ({self.name}): the state is of another kind of part")
        if not isinstance(self.batches, Restored) and not anew:
            raise ConfigError(f"restore: part {self.number} ({self.name}): {_NOT_REPEATED}")

    def restore(self, state: Mapping[str, Any], anew: bool) -> None:
        """Goes to where another one stood, which `check` has seen; a part that cannot be restored continues. Raises as its `restore` does."""
        if not isinstance(self.batches, Restored):
            return
        try:
            self.batches.restore(state["at"], anew=anew)
        except ConfigError as error:
            raise ConfigError(f"part {self.number} ({self.name}): {error}") from error

    def _next_piece(self, count: int) -> Piece | None:
        """At least one sample, and at most so many; None at the end."""
        if self._batch is not None and self._offset < self._batch.size:
            start, self._offset = self._offset, min(self._batch.size, self._offset + count)
            return Piece(self.number, self._batch, start, self._offset)
        batch = self._next_batch(count)
        if batch is None:
            return None
        self._batch, self._offset = batch, min(batch.size, count)
        return Piece(self.number, batch, 0, self._offset)

    def _next_batch(self, count: int) -> Batch | None:
        batch = self._asked(count)
        if batch is None and isinstance(self.batches, Restarts):
            self.batches.restart()
            batch = self._asked(count)
            if batch is None:
                raise ConfigError(f"mix: part {self.number} ({self.name}) is empty: it gives no sample")
        if batch is not None:
            self.see(batch)
        return batch

    def _asked(self, count: int) -> Batch | None:
        return self.batches.take(count) if isinstance(self.batches, Restored) else self.batches.next_batch()

    def see(self, batch: Batch) -> None:
        """Sees what its samples are, at the first batch."""
        if self.structure is not None:
            return
        self.structure = paths_of(batch.data, self._known_structure)
        if self.spec is None:
            self.spec = item_spec(batch.data, self.structure)


def check_feeds(feeds: Sequence[Feed]) -> None:
    """Refuses parts whose items differ, as far as is known by now. Raises as `check_alike`."""
    known = [feed for feed in feeds if feed.spec is not None]
    for feed in known[1:]:
        check_alike((_title(known[0]), known[0].spec), (_title(feed), feed.spec))


def _title(feed: Feed) -> str:
    return f"part {feed.number} ({feed.name})"


class _Draft:
    """A batch in the making; kept when an error comes between, so that no sample is lost.

    Attributes:
      parts: [B] of which part each sample is to be.
      pieces: the samples that came.
    """

    def __init__(self, parts: Array) -> None:
        self.parts = parts
        self.pieces: list[Piece] = []

    def lacking(self, count: int) -> Array:
        """[count] how many samples of each part are still to come."""
        came = np.bincount([one.part for one in self.pieces], [one.size for one in self.pieces], count)
        lacking: Array = np.bincount(self.parts, minlength=count) - came.astype(np.int64)
        return lacking


class Interleave:
    """The parts of a mix.

    Args:
      feeds: one per part.
      ragged, pad_to: see `MixOptions`.

    Raises:
      SpecMismatch: the items of two parts differ, as far as they tell.

    Attributes:
      feeds: as given.
      is_over: a part has ended that cannot begin again.
    """

    def __init__(self, feeds: Sequence[Feed], ragged: str, pad_to: int | None = None) -> None:
        self.feeds, self._ragged, self._pad_to = feeds, ragged, pad_to
        self.is_over = False
        self._known = 0
        self._draft: _Draft | None = None
        self._check()

    @property
    def structure(self) -> Nest | None:
        """The nest of the samples; None where it is not known yet."""
        known = [feed.spec if feed.spec is not None else feed.structure for feed in self.feeds]
        return next((one for one in known if one is not None), None)

    def begin(self, parts: Array) -> None:
        """Begins a batch: `parts`, [B], says of which part each sample is to be."""
        self._draft = _Draft(parts)

    def finish(self) -> Batch | None:
        """The batch that was begun. An error on the way loses nothing: the next call continues with what came before it.

        Returns:
          B samples; the first of them before the one that its part cannot give; None where that is the first.

        Raises:
          SpecMismatch: the items of two parts differ.
          ConfigError: a part is empty.
          Rlds2ReverbError: as the parts do.
        """
        draft = self._draft
        if draft is None:
            return None
        for feed, count in zip(self.feeds, draft.lacking(len(self.feeds)).tolist()):
            for piece in feed.take(count):
                draft.pieces.append(piece)
        self._check()
        self.drop()
        pieces, parts = draft.pieces, draft.parts
        if sum(piece.size for piece in pieces) < len(parts):
            self.is_over = True
            pieces, parts = cut_short(pieces, parts, len(self.feeds))
        return joined_of(self.feeds, pieces, parts, self._ragged, self._pad_to) if len(parts) else None

    @property
    def is_begun(self) -> bool:
        """Whether an error left a batch unfinished."""
        return self._draft is not None

    def drop(self) -> None:
        """Forgets the batch that was begun, and what came for it."""
        self._draft = None

    def close(self) -> None:
        """Closes all parts."""
        for feed in self.feeds:
            feed.batches.close()

    def _check(self) -> None:
        """Compares the parts whenever one more is known."""
        known = sum(feed.spec is not None for feed in self.feeds)
        if known != self._known:
            check_feeds(self.feeds)
            self._known = known


def joined_of(
    feeds: Sequence[Feed],
    pieces: Sequence[Piece],
    parts: Array,
    ragged: str,
    pad_to: int | None,
    places: Sequence[Array] | None = None,
) -> Batch:
    """One batch of what feeds gave.

    Args:
      feeds: by number.
      pieces: the samples; without `places`, those of a feed in the order in which they stand in the batch.
      parts: [B] of which feed each sample is.
      ragged, pad_to: see `SampleOptions`.
      places: see `joined`.

    Raises:
      ConfigError: a part pads its samples, parts differ in a column's dtype, or items cannot be filled up to one shape.
    """
    batch = joined(pieces, parts, {feed.number: feed.structure for feed in feeds}, places)
    first = feeds[pieces[0].part]
    return _padded(batch, first.structure, first.spec, pad_to) if ragged == PAD else batch


def cut_short(pieces: Sequence[Piece], parts: Array, count: int) -> tuple[list[Piece], Array]:
    """What comes before the first sample that its part did not give: the samples, and [b] their parts.

    Args:
      pieces: the samples that came.
      parts: [B] the parts that were asked for; below 0 for none.
      count: of parts.
    """
    got = np.bincount([one.part for one in pieces], [one.size for one in pieces], count).astype(np.int64)
    lacking = [np.flatnonzero(parts == number)[got[number] :] for number in range(count)]
    ends = [*(places[0] for places in lacking if len(places)), *np.flatnonzero(parts < 0)[:1]]
    parts = parts[: min(ends)] if ends else parts
    return _only(pieces, np.bincount(parts, minlength=count)), parts


def _padded(batch: Batch, structure: Nest, spec: Nest, pad_to: int | None) -> Batch:
    names = list(flatten(structure).values())
    is_free = rows_are_free(flatten(spec).values()) if batch.info.mask is None else [False] * len(names)
    columns, mask, masks = padded(columns_of(batch.data, structure), names, is_free, pad_to)
    info = batch.info._replace(mask=_in_both(batch.info.mask, mask), masks=masks)
    return Batch(in_structure(columns, structure), info)


def _in_both(one: Array | None, other: Array | None) -> Array | None:
    """[B, L] rows of both masks, as long as the second; a mask that is not there has all."""
    if one is None or other is None:
        return other if one is None else one
    both = np.zeros_like(other)
    length = min(one.shape[1], other.shape[1])
    both[:, :length] = one[:, :length] & other[:, :length]
    return both


def _only(pieces: Sequence[Piece], wanted: Array) -> list[Piece]:
    """The first so many samples of each part."""
    left, out = wanted.copy(), []
    for piece in pieces:
        count = min(piece.size, int(left[piece.part]))
        left[piece.part] -= count
        if count:
            out.append(piece._replace(stop=piece.start + count))
    return out
