"""Decoded chunks, kept for later samples: a chunk never changes.

All tensors lie in one ring of bytes, where the oldest chunks make room for new ones. A tensor begins at a multiple of the size of its
rows. So the whole memory, seen as rows of that dtype and shape, has the tensor's rows at whole numbers, and many rows of many
chunks are one `take`. Text lies there as bytes, and its rows say where each text is.

Memory is taken when it is first written: an arena that is larger than its table costs what the table does.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.wire.sample.trajectories import spread

_CHUNK_BYTES = 320
"""What is noted of a chunk takes about so many bytes, beside its tensors."""

_TENSOR_BYTES = 40
"""And so many for each tensor."""

_MOST_KINDS = 4096
"""Dtypes with shapes. Tables have a few; shapes that come once and never again must not pile up."""

_LONG_RUN = 32
"""Rows on average from which on each run is copied by itself: that costs about as much as the numbers of so many rows."""

FREED_SHARE = 8
"""The oldest chunks leave together, this part of all memory at least: what waits for its batch is gathered each time."""


class Noted(NamedTuple):
    """[n] int64 each: what is noted of tensors.

    Attributes:
      first_rows: where they begin, counted in rows of their kind.
      row_counts: how many they have; none where a tensor is a single number.
      kinds: number of their kind.
    """

    first_rows: Array
    row_counts: Array
    kinds: Array


class _Held(NamedTuple):
    key: int
    number: int
    tensors: int


class Arena:
    """Holds chunks by key.

    Args:
      most_bytes: of all that is held, notes included.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.clear()

    def clear(self) -> None:
        """Drops all chunks, and gives their memory back."""
        self._memory = np.empty(self._most_bytes, np.uint8)
        self._ring = Ring()
        self._order: deque[_Held] = deque()
        self._numbers: dict[int, int] = {}  # chunk key -> number of its first tensor
        self._free: dict[int, list[int]] = {}  # count of tensors -> numbers from which on as many are free
        self._noted = Noted(*(np.zeros(64, np.int64) for _ in Noted._fields))
        self._tensor_counts = np.zeros(64, np.int64)  # at the number of a chunk's first tensor
        self._next_number = self._note_bytes = 0
        self._kinds: list[Kind] = []
        self._kind_numbers: dict[Kind, int] = {}
        self._views: list[Array | None] = []

    def __contains__(self, key: int) -> bool:
        return key in self._numbers

    def find(self, keys: Sequence[int]) -> Array:
        """[n] int64: the number of each chunk's first tensor, -1 where the chunk is not held."""
        return np.fromiter(map(self._numbers.get, keys, repeat(-1)), np.int64, len(keys))

    def tensor_counts(self, numbers: Array) -> Array:
        """[n] int64: how many tensors the chunks have."""
        return self._tensor_counts[numbers]

    def noted(self, numbers: Array) -> Noted:
        """What is noted of tensors; the k-th of a chunk has the number of its first one, plus k."""
        return Noted(*(values[numbers] for values in self._noted))

    def take(self, kind_number: int, first_rows: Array, counts: Array) -> Array:
        """[sum of counts, ...]: so many rows of a kind from each first one on, copied. They must be those of tensors that are held."""
        kind, view = self._kinds[kind_number], self._views[kind_number]
        rows = int(counts.sum())
        if view is None:
            return np.empty((rows, *kind.shape), kind.dtype)
        if rows >= _LONG_RUN * len(counts):
            stored: Array = np.concatenate(
                [view[at : at + count] for at, count in zip(first_rows.tolist(), counts.tolist())]
            )
        else:
            stored = view.take(spread(first_rows, counts), axis=0, mode="clip")
        return texts_at(self._memory, stored) if kind.is_text else stored

    def add(self, key: int, tensors: Sequence[Array]) -> bool:
        """Puts a chunk there; False when there is no room beside the others."""
        kinds = [Kind(tensor.dtype, tensor.shape[1:]) for tensor in tensors]
        texts = [text_bytes(tensor) if kind.is_text else b"" for kind, tensor in zip(kinds, tensors)]
        pieces = [
            Place(kind.row_bytes * _row_count(tensor), kind.row_bytes or 1) for kind, tensor in zip(kinds, tensors)
        ]
        pieces += [Place(len(text), 1) for text in texts]
        note_bytes = self._note_bytes + _CHUNK_BYTES + _TENSOR_BYTES * len(tensors)
        end = self._most_bytes - note_bytes
        if self._ring.touched > end or len(self._kinds) + len(tensors) > _MOST_KINDS:
            return False
        if (starts := self._ring.place(pieces, end)) is None:
            return False
        self._note_bytes = note_bytes
        number = self._note(key, len(tensors))
        for at, (tensor, text) in enumerate(zip(tensors, texts)):
            text_start = starts[len(tensors) + at]
            self._memory[text_start : text_start + len(text)] = np.frombuffer(text, np.uint8)
            self._write(number + at, tensor, starts[at], text_start)
        return True

    def make_room(self) -> None:
        """The oldest chunks leave; all of them where that helps more."""
        freed, wanted = 0, self._most_bytes // FREED_SHARE + 1
        while self._order and freed < wanted:
            held = self._order.popleft()
            del self._numbers[held.key]
            self._free.setdefault(held.tensors, []).append(held.number)
            note_bytes = _CHUNK_BYTES + _TENSOR_BYTES * held.tensors
            self._note_bytes -= note_bytes
            freed += self._ring.drop_oldest() + note_bytes
        # What is held now is smaller than what was: memory that was touched for that has to be given back.
        if 2 * self._ring.used < self._ring.touched or len(self._kinds) > _MOST_KINDS // 2:
            self.clear()

    def _note(self, key: int, tensors: int) -> int:
        """The number of the first tensor of a new chunk."""
        if free := self._free.get(tensors):
            number = free.pop()
        else:
            number, self._next_number = self._next_number, self._next_number + max(1, tensors)
            self._make_notes_longer()
        self._numbers[key] = number
        self._order.append(_Held(key, number, tensors))
        self._tensor_counts[number] = tensors
        return number

    def _make_notes_longer(self) -> None:
        if self._next_number > len(self._tensor_counts):
            longer = 2 * self._next_number
            self._noted = Noted(*(_longer(values, longer) for values in self._noted))
            self._tensor_counts = _longer(self._tensor_counts, longer)

    def _write(self, number: int, tensor: Array, start: int, text_start: int) -> None:
        kind = Kind(tensor.dtype, tensor.shape[1:])
        kind_number = self._kind_numbers.setdefault(kind, len(self._kinds))
        if kind_number == len(self._kinds):
            self._kinds.append(kind)
            self._views.append(kind.view(self._memory) if kind.row_bytes else None)
        first_row, rows = start // max(1, kind.row_bytes), _row_count(tensor)
        for values, value in zip(self._noted, (first_row, rows, kind_number)):
            values[number] = value
        if (view := self._views[kind_number]) is not None and rows:
            view[first_row : first_row + rows] = text_spans(tensor, text_start) if kind.is_text else tensor


def _row_count(tensor: Array) -> int:
    return len(tensor) if tensor.ndim else 0


def _longer(values: Array, size: int) -> Array:
    out = np.zeros(size, values.dtype)
    out[: len(values)] = values
    return out


class Place(NamedTuple):
    """A place that is wanted.

    Attributes:
      size: bytes.
      step: it begins at a multiple of so many bytes, at least 1.
    """

    size: int
    step: int


class Ring:
    """Gives out places in a ring of bytes, where what came first leaves first; knows nothing of what is there.

    Attributes:
      used: bytes of all that is there, gaps within it included.
      touched: bytes from the beginning on that were ever given out.
    """

    def __init__(self) -> None:
        self.used = self.touched = 0
        self._head = 0  # where the youngest ends
        self._blocks: deque[tuple[int, int]] = deque()  # [start, end) of each, the oldest first

    def place(self, pieces: Sequence[Place], end: int) -> list[int] | None:
        """Where each piece begins; together they are one block. None when it does not fit before `end` and beside the others."""
        for begin, stop in self._gaps(end):
            starts, at = [], begin
            for piece in pieces:
                at += -at % piece.step
                starts.append(at)
                at += piece.size
            if at <= stop:
                self._blocks.append((begin, at))
                self._head = at
                self.used += at - begin
                self.touched = max(self.touched, at)
                return starts
        return None

    def drop_oldest(self) -> int:
        """The oldest block leaves; its bytes."""
        begin, end = self._blocks.popleft()
        self.used -= end - begin
        return end - begin

    def _gaps(self, end: int) -> Iterator[tuple[int, int]]:
        """[begin, end) of what is free. One byte stays free before the oldest, so that a full ring does not look empty."""
        if not self._blocks:
            yield 0, end
            return
        tail = self._blocks[0][0]
        if self._head >= tail:
            yield self._head, end
            yield 0, min(end, tail - 1)
        else:
            yield self._head, min(end, tail - 1)


_SPAN = 2  # a text's beginning and end


class Kind(NamedTuple):
    """What one row of a tensor is, and how it lies in memory.

    Attributes:
      dtype: of the tensor; object for text.
      shape: of one row.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def is_text(self) -> bool:
        """Whether what is stored says where the texts are."""
        return self.dtype == object

    @property
    def row_bytes(self) -> int:
        """Of a row that lies in memory."""
        return math.prod(self.shape) * (_SPAN * np.dtype(np.int64).itemsize if self.is_text else self.dtype.itemsize)

    def view(self, memory: Array) -> Array:
        """[bytes] uint8 as rows, from its beginning on: [rows, *shape], or [rows, *shape, 2] of text. `row_bytes` is not 0."""
        dtype, shape = (np.dtype(np.int64), (*self.shape, _SPAN)) if self.is_text else (self.dtype, self.shape)
        rows: Array = memory[: len(memory) // self.row_bytes * self.row_bytes].view(dtype).reshape(-1, *shape)
        return rows


def text_bytes(texts: Array) -> bytes:
    """All texts of a tensor, joined."""
    return b"".join(texts.ravel().tolist())


def text_spans(texts: Array, start: int) -> Array:
    """[*texts.shape, 2] int64: where each begins and ends when they lie joined at `start`."""
    lengths = np.fromiter(map(len, texts.ravel().tolist()), np.int64, texts.size)
    ends = start + np.cumsum(lengths)
    spans: Array = np.stack([ends - lengths, ends], axis=-1).reshape(*texts.shape, _SPAN)
    return spans


def texts_at(memory: Array, spans: Array) -> Array:
    """The other way: [..., 2] -> [...] object of bytes."""
    pairs: Sequence[Sequence[int]] = spans.reshape(-1, _SPAN).tolist()
    texts = np.empty(len(pairs), object)
    texts[:] = [memory[begin:end].tobytes() for begin, end in pairs]
    shaped: Array = texts.reshape(spans.shape[:-1])
    return shaped
