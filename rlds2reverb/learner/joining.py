"""Joins samples of several parts, or servers, into one batch.

Feed         one part: hands out its samples few at a time, begins again at its end, restores its position
Piece        some samples of a part's batch
join_pieces  pieces -> one batch
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.batch import Batch, BatchInfo, columns_of, in_structure, pad_columns, paths_of, rows_are_free
from rlds2reverb.learner.options import PAD
from rlds2reverb.learner.states import State
from rlds2reverb.specs import ArraySpec, Nest, dtype_name, flatten
from rlds2reverb.wire.sample.batches import Column, place_columns


class Batches(Protocol):
    """What can be mixed: a `Sampler`, a `Local`, a `Mix`, or anything with these two methods.

    More methods are optional: `restart()` to begin again; `take(count)`, `state()` and `restore(state)` to be restored (`Restored`);
    `structure` for the names of its samples' columns.
    """

    def next_batch(self) -> Batch | None:
        """The next batch; None at the end."""

    def close(self) -> None: ...


@runtime_checkable
class Restored(Batches, Protocol):
    """Batches that can be restored."""

    def take(self, count: int) -> Batch | None:
        """The next `count` samples in one batch; fewer before the end, None at the end."""

    def state(self) -> State: ...

    def restore(self, state: Mapping[str, Any], anew: bool = False) -> None:
        """Goes to the position of a state; tables of a server cannot, and continue with other samples where `anew` allows it."""


@runtime_checkable
class Skipped(Protocol):
    """Batches with epochs, of which samples can be passed over."""

    def skip(self, count: int) -> int:
        """Passes over `count` samples; returns how many there were, 0 at the end."""

    def pass_over(self, count: int, world_size: int) -> int:
        """Passes over `count` samples of each of so many ranks; what follows is dealt to the ranks of now. Returns as `skip`."""

    def begin_epoch(self, number: int) -> None:
        """Begins the epoch of this number."""

    def fingerprint(self) -> str:
        """Tells data and orders apart."""


class Iterated:
    """An iterator of batches as `Batches`."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._left = batches

    def next_batch(self) -> Batch | None:
        return next(self._left, None)

    def close(self) -> None:
        pass


class Repeated(Iterated):
    """A list of batches as `Batches`, again and again."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        super().__init__(iter(batches))
        self._batches = batches

    def restart(self) -> None:
        self._left = iter(self._batches)


class Piece(NamedTuple):
    """Samples [start, stop) of a batch of a part; `part` is its number."""

    part: int
    batch: Batch
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


_NOT_REPEATED = (
    "its next samples cannot be repeated: a server draws them, and keeps no account of it. Give anew=True to continue with samples of "
    "the table as it is now; which part each sample comes from, and all other parts, are restored"
)


class Feed:
    """Hands out the samples of one part, or server; `name` is for messages.

    Attributes:
      structure: nest of the columns' names; None before the first batch.
      spec: of the items; None where it is not known yet.
    """

    def __init__(self, number: int, batches: Batches, name: str) -> None:
        self.number, self.batches, self.name = number, batches, name
        self._known_structure: Nest | None = getattr(batches, "structure", None)
        structure = self._known_structure
        is_spec = structure is not None and all(isinstance(leaf, ArraySpec) for leaf in flatten(structure).values())
        self.spec: Nest | None = structure if is_spec else None
        self.structure: Nest | None = None
        self._batch: Batch | None = None
        self._offset = 0

    @property
    def title(self) -> str:
        return f"part {self.number} ({self.name})"

    def take(self, count: int) -> Iterator[Piece]:
        """Yields the next `count` samples; fewer when the part ends, and cannot begin again. Raises ConfigError for an empty part."""
        while count and (piece := self._next_piece(count)) is not None:
            yield piece
            count -= piece.size

    def _next_piece(self, count: int) -> Piece | None:
        """At most `count` samples; None at the end."""
        if self._batch is None or self._offset == self._batch.size:
            batch = self._next_batch(count)
            if batch is None and hasattr(self.batches, "restart"):
                self.batches.restart()
                if (batch := self._next_batch(count)) is None:
                    raise ConfigError(f"mix: {self.title} is empty: it gives no sample")
            if batch is None:
                return None
            self.see(batch)
            self._batch, self._offset = batch, 0
        start, self._offset = self._offset, min(self._batch.size, self._offset + count)
        return Piece(self.number, self._batch, start, self._offset)

    def skip(self, count: int, world_size: int | None = None) -> None:
        """Passes over the next `count` samples of a part that can do that; others give every learner samples of its own.

        With `world_size` over those of each of so many ranks, see `Local.pass_over`. Raises ConfigError for an empty part.
        """
        part = self.batches
        if not isinstance(part, Skipped):
            return

        def skip_in_part() -> int:
            return part.skip(count) if world_size is None else part.pass_over(count, world_size)

        while count:
            skipped = skip_in_part()
            if not skipped and hasattr(part, "restart"):
                part.restart()
                if not (skipped := skip_in_part()):
                    raise ConfigError(f"mix: {self.title} is empty: it gives no sample")
            if not skipped:
                return
            count -= skipped

    def begin_epoch(self, number: int) -> None:
        """Begins the epoch of this number, where the part has epochs."""
        if isinstance(self.batches, Skipped):
            self.batches.begin_epoch(number)
            self._batch = None

    def _next_batch(self, count: int) -> Batch | None:
        return self.batches.take(count) if isinstance(self.batches, Restored) else self.batches.next_batch()

    def see(self, batch: Batch) -> None:
        """Learns `structure` and `spec` from the first batch."""
        if self.structure is not None:
            return
        self.structure = paths_of(batch.data, self._known_structure)
        if self.spec is None:
            self.spec = in_structure(map(_spec_of, columns_of(batch.data, self.structure)), self.structure)

    def rest(self) -> Piece | None:
        """The samples of the current batch that it has not handed out."""
        if self._batch is None or self._offset == self._batch.size:
            return None
        return Piece(self.number, self._batch, self._offset, self._batch.size)

    def state(self) -> State:
        """Its position; only its name if it cannot be restored."""
        return {"name": self.name, "at": self.batches.state() if isinstance(self.batches, Restored) else None}

    def fingerprint(self) -> str:
        """Its part's, where that has positions; else its name."""
        return self.batches.fingerprint() if isinstance(self.batches, Skipped) else self.name

    def check(self, state: object, anew: bool) -> None:
        """Raises ConfigError for the state of another kind of part, or, unless `anew`, for a part that cannot be restored."""
        if not isinstance(state, Mapping) or not {"name", "at"} <= state.keys():
            raise ConfigError(f"restore: {self.title}: the state has no part like it")
        if state["name"] != self.name:
            raise ConfigError(f"restore: part {self.number} was {state['name']}, is {self.name}")
        if (state["at"] is not None) != isinstance(self.batches, Restored):
            raise ConfigError(f"restore: {self.title}: the state is of another kind of part")
        if not isinstance(self.batches, Restored) and not anew:
            raise ConfigError(f"restore: {self.title}: {_NOT_REPEATED}")

    def restore(self, state: Mapping[str, Any], anew: bool) -> None:
        """Goes to the position of a checked state; a part that cannot be restored continues. Raises as its `restore` does."""
        if not isinstance(self.batches, Restored):
            return
        try:
            self.batches.restore(state["at"], anew=anew)
        except ConfigError as error:
            raise ConfigError(f"{self.title}: {error}") from error


def _spec_of(column: Column) -> ArraySpec:
    """The spec of a column's items; sizes in which they differ are free."""
    if not isinstance(column, list):
        return ArraySpec(column.shape[1:], column.dtype)
    shapes = [value.shape for value in column]
    if len({len(shape) for shape in shapes}) > 1:
        return ArraySpec((None,), column[0].dtype)
    return ArraySpec(tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes)), column[0].dtype)


def join_pieces(
    feeds: Sequence[Feed],
    pieces: Sequence[Piece],
    parts: Array,
    ragged: str,
    pad_to: int | None,
    places: Sequence[Array] | None = None,
) -> Batch:
    """Joins pieces into one batch. If only some parts have a weight or a mask, it is 1, or true for all rows of an item, in the others.

    Args:
      feeds: by number.
      pieces: the samples; without `places`, a feed's pieces are in the order in which they stand in the batch.
      parts: [B] number of the feed of each sample.
      ragged, pad_to: see `SampleOptions`.
      places: of each piece, the places of its samples in the batch; together each of [0, B) once.

    Raises:
      ConfigError: a part pads or stacks its samples, parts differ in a column's dtype, or items cannot be filled up to one shape.
    """
    places = _places(pieces, parts) if places is None else places
    for piece in pieces:
        if piece.batch.info.masks is not None:
            raise ConfigError('mix: a part pads its samples; leave that out there, and give ragged="pad" to mix')
        if piece.batch.info.key.ndim != 1:
            raise ConfigError(f"mix: part {piece.part} stacks its samples; leave that out there, and stack the mix")
    first = feeds[pieces[0].part]
    cut = [
        [column[piece.start : piece.stop] for column in columns_of(piece.batch.data, feeds[piece.part].structure)]
        for piece in pieces
    ]
    whole = []
    for path, values in zip(flatten(first.structure).values(), zip(*cut, strict=True), strict=True):
        _check_dtypes(path, values, pieces)
        whole.append(place_columns(values, places, len(parts)))
    batch = Batch(in_structure(whole, first.structure), _join_info(pieces, places, parts, whole))
    return _pad_batch(batch, first.structure, first.spec, pad_to) if ragged == PAD else batch


def _places(pieces: Sequence[Piece], parts: Array) -> list[Array]:
    own = {part: np.flatnonzero(parts == part) for part in {piece.part for piece in pieces}}
    taken = dict.fromkeys(own, 0)
    out = []
    for piece in pieces:
        start = taken[piece.part]
        taken[piece.part] = start + piece.size
        out.append(own[piece.part][start : start + piece.size])
    return out


def _check_dtypes(path: str, values: Sequence[Column], pieces: Sequence[Piece]) -> None:
    """Refuses columns of different dtypes, which numpy would convert without a word: images that only some parts decode, say."""
    dtypes = {
        value.dtype: piece.part
        for column, piece in zip(values, pieces)
        for value in (column if isinstance(column, list) else [column])
    }
    if len(dtypes) > 1:
        listed = ", ".join(f"{dtype_name(dtype)} in part {part}" for dtype, part in dtypes.items())
        raise ConfigError(
            f'mix: column "{path}" is {listed}; expected one dtype (`decode` and `view` must be the same)'
        )


def _join_info(pieces: Sequence[Piece], places: Sequence[Array], parts: Array, columns: Sequence[Column]) -> BatchInfo:
    fields: dict[str, Any] = {}
    for name in BatchInfo._fields:
        values = [getattr(piece.batch.info, name) for piece in pieces]
        if name == "weight" and any(value is not None for value in values):
            values = [
                np.ones(piece.batch.size, np.float32) if own is None else own for piece, own in zip(pieces, values)
            ]
        if name != "mask" and all(value is not None for value in values):
            own = [value[piece.start : piece.stop] for value, piece in zip(values, pieces)]
            fields[name] = place_columns(own, places, len(parts))
    info = BatchInfo(**{**dict.fromkeys(BatchInfo._fields), **fields})
    return info._replace(source=parts.astype(np.int64), mask=_join_masks(pieces, places, columns))


def _join_masks(pieces: Sequence[Piece], places: Sequence[Array], columns: Sequence[Column]) -> Array | None:
    """[B, L], as long as the longest; true for all rows of an item whose part has no mask. None if no part has a mask."""
    masks = [None if (mask := piece.batch.info.mask) is None else mask[piece.start : piece.stop] for piece in pieces]
    length = max((mask.shape[1] for mask in masks if mask is not None), default=0)
    if all(mask is None for mask in masks):
        return None
    total = sum(piece.size for piece in pieces)
    ragged = [column for column in columns if isinstance(column, list)]
    # [B]
    rows = np.array([min((len(column[item]) for column in ragged), default=length) for item in range(total)], np.int64)
    length = max([length, *(int(rows[place].max()) for place, mask in zip(places, masks) if mask is None)])
    whole = np.zeros((total, length), bool)
    for place, mask in zip(places, masks):
        if mask is None:
            whole[place] = np.arange(length) < rows[place, np.newaxis]
        else:
            whole[place, : mask.shape[1]] = mask
    return whole


def _pad_batch(batch: Batch, structure: Nest, spec: Nest, pad_to: int | None) -> Batch:
    names = list(flatten(structure).values())
    own = batch.info.mask
    is_free = rows_are_free(flatten(spec).values()) if own is None else [False] * len(names)
    columns, mask, masks = pad_columns(columns_of(batch.data, structure), names, is_free, pad_to)
    if mask is None:
        mask = own
    elif own is not None:  # rows of both masks, as long as the second
        both = np.zeros_like(mask)
        length = min(own.shape[1], mask.shape[1])
        both[:, :length] = own[:, :length] & mask[:, :length]
        mask = both
    return Batch(in_structure(columns, structure), batch.info._replace(mask=mask, masks=masks))


def cut_short(pieces: Sequence[Piece], parts: Array, count: int) -> tuple[list[Piece], Array]:
    """Cuts a draw before the first sample that its part did not give; returns the pieces, and [b] the parts of their samples."""
    got = np.bincount([piece.part for piece in pieces], [piece.size for piece in pieces], count).astype(np.int64)
    lacking = [np.flatnonzero(parts == number)[got[number] :] for number in range(count)]
    ends = [places[0] for places in lacking if len(places)]
    parts = parts[: min(ends)] if ends else parts
    left, out = np.bincount(parts, minlength=count), []
    for piece in pieces:
        size = min(piece.size, int(left[piece.part]))
        left[piece.part] -= size
        if size:
            out.append(piece._replace(stop=piece.start + size))
    return out, parts
