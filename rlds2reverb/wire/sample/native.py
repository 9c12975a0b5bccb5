"""The compiled reader of sample responses (`native.c`), where it was built; see there for what each function does."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.compiled import load_library
from rlds2reverb.episode import Array
from rlds2reverb.wire import codec

_INT, _POINTER, _BYTES = ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {  # name -> type of the result, types of the arguments
    "arena_open": (_POINTER, [_INT]),
    "arena_close": (None, [_POINTER]),
    "arena_kind": (_INT, [_POINTER, _INT, *[_POINTER] * 3]),
    "reader_open": (_POINTER, []),
    "reader_close": (None, [_POINTER]),
    "reader_parse": (_INT, [_POINTER, _BYTES, _INT, _INT, _POINTER]),
    "reader_first_end": (_INT, [_BYTES, _INT, _INT]),
    "reader_span": (None, [_POINTER, _INT, _POINTER, _POINTER]),
    "reader_alike": (_INT, [_POINTER, _INT, _INT]),
    "reader_layout": (_INT, [_POINTER, _POINTER, _INT, _INT, *[_POINTER] * 3]),
    "reader_place": (_INT, [_POINTER, _POINTER, _INT, _INT, _POINTER]),
    "reader_decode": (None, [_POINTER]),
    "reader_fill": (_INT, [_POINTER, _POINTER, _INT, _INT, _INT, *[_POINTER] * 4, _INT, *[_POINTER] * 5]),
    "reader_text": (_INT, [_POINTER, _POINTER]),
    "trajectories_read": (_INT, [_POINTER, _BYTES, _POINTER, _INT, _POINTER]),
    "trajectories_get": (None, [_POINTER] * 8),
}
_UNUSUAL, _NO_MEMORY, _NO_END = -1, -2, -3
_MOST_AXES = 32
LIBRARY = load_library(Path(__file__).with_name("native.c"), _FUNCTIONS)
"""None where it cannot be used."""


class SampleLayout(NamedTuple):
    """What samples of one kind have in common."""

    values: Array  # [3, columns] int64: kind of the rows, number of rows, whether the axis of rows is dropped
    kinds: list[tuple[np.dtype[Any], tuple[int, ...]]]  # by column: dtype and shape of a row

    def columns(self) -> Iterator[tuple[np.dtype[Any], tuple[int, ...]]]:
        """By column: dtype and shape of one sample."""
        for (dtype, shape), rows, is_squeezed in zip(self.kinds, *self.values[1:].tolist()):
            yield dtype, shape if is_squeezed else (rows, *shape)


class Arena:
    """Decoded chunks, in memory of their own. For one thread at a time."""

    def __init__(self, most_bytes: int) -> None:
        self.library = LIBRARY
        self.handle = self.library.arena_open(most_bytes)
        if not self.handle:
            raise MemoryError(f"no memory for an arena of {most_bytes} bytes")

    def kind(self, number: int) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Dtype and shape of the rows of a kind."""
        values = np.zeros(2 + _MOST_AXES, np.int64)  # number of the dtype, number of axes, sizes
        self.library.arena_kind(self.handle, number, *(values.ctypes.data + 8 * at for at in range(3)))
        return codec.numpy_dtype(int(values[0])), tuple(values[2 : 2 + values[1]].tolist())

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.library.arena_close(self.handle)


class Reader:
    """Reads the samples of one stream. None is returned for what `plain` has to read."""

    def __init__(self, arena: Arena) -> None:
        self._arena, self._library = arena, arena.library
        self._message = b""  # whose samples it has; held, because the library keeps pointers into its bytes
        self._count = self._decoded = 0  # the number of these, and of the first ones whose chunks were decoded ahead
        self._handle = self._library.reader_open()
        if not self._handle:
            raise MemoryError("no memory for a reader of samples")

    def first_end(self, message: bytes) -> int | None:
        """Where the first sample that ends in a response does; None when none does. The end of the response when it is unusual."""
        end = self._library.reader_first_end(message, 0, len(message))
        return None if end == _NO_END else len(message) if end < 0 else int(end)

    def parse(self, message: bytes, begin: int) -> tuple[int, int] | None:
        """The number of whole samples in a response from `begin` on, and where the last one ends."""
        whole = ctypes.c_int64()
        self._message = message
        count = _checked(self._library.reader_parse(self._handle, message, begin, len(message), ctypes.byref(whole)))
        self._count, self._decoded = count or 0, 0
        return None if count is None else (count, whole.value)

    def span(self, number: int) -> slice:
        """The bytes of a sample in the response."""
        begin, end = ctypes.c_int64(), ctypes.c_int64()
        self._library.reader_span(self._handle, number, ctypes.byref(begin), ctypes.byref(end))
        return slice(begin.value, end.value)

    def alike(self, first: int, limit: int) -> int:
        """Number of samples from `first` on, at most `limit`, with as many columns and rows."""
        return int(self._library.reader_alike(self._handle, first, limit))

    def layout(self, number: int) -> SampleLayout | None:
        """The layout of a sample, whose chunks are loaded into the arena."""
        room = 64  # columns; the reader says how many there are where that is too few
        while True:
            values = np.empty((3, room), np.int64)
            rows = (values.ctypes.data + at * values.strides[0] for at in range(3))
            columns = _checked(self._library.reader_layout(self._handle, self._arena.handle, number, room, *rows))
            if columns is None:
                return None
            if columns <= room:
                values = values[:, :columns].copy()
                return SampleLayout(values, [self._arena.kind(kind) for kind in values[0].tolist()])
            room = columns

    def fill(self, group: Group, first: int, count: int) -> int:
        """Copies samples into a group; returns how many: less where the next one is of another layout, or unusual."""
        if first >= self._decoded:
            self._decoded = first + self._decode_ahead(first)
        values, count = group.layout.values, min(count, self._decoded - first)
        done = _checked(
            self._library.reader_fill(
                self._handle,
                self._arena.handle,
                first,
                count,
                values.shape[1],
                *(values.ctypes.data + at * values.strides[0] for at in range(3)),
                group.places.ctypes.data,
                group.filled,
                *(values_of_info.ctypes.data for values_of_info in group.info),
            )
        )
        if not done:
            return 0
        if group.has_texts:
            text = ctypes.c_void_p()
            size = self._library.reader_text(self._handle, ctypes.byref(text))
            group.add_texts(ctypes.string_at(text, size) if size else b"", group.filled + done)
        group.filled += done
        return done

    def _decode_ahead(self, first: int) -> int:
        """Decodes missing chunks of the samples from `first` on, on two processors where there are many bytes; the number of samples."""
        size = ctypes.c_int64()
        arguments = self._handle, self._arena.handle, first, self._count - first
        count = self._library.reader_place(*arguments, ctypes.byref(size))
        begun = None
        if size.value > _MANY_BYTES and _PROCESSORS > 1:
            with suppress(RuntimeError):  # no thread can be started, or the interpreter ends
                begun = _helper(os.getpid()).submit(self._library.reader_decode, self._handle)
        # Both threads take chunks from one list, and ctypes releases the lock of the interpreter meanwhile.
        self._library.reader_decode(self._handle)
        # A helper that has not begun by now would find nothing left to decode, so it is not waited for.
        if begun is not None and not begun.cancel():
            begun.result()
        return int(_checked(count) or 0)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.reader_close(self._handle)


class Group:
    """Samples of one layout, on their way into a batch.

    Args:
      room: number of samples that it takes.
      empty: as `numpy.empty`: gives the arrays of numbers.

    Attributes:
      columns: [room, ...] of each column.
      info: [room] each: key, probability, table size, priority, times sampled.
      filled: samples that it has.
      places: address of what is written of each column.
    """

    def __init__(self, layout: SampleLayout, room: int, empty: Callable[..., Array]) -> None:
        self.layout, self.room, self.filled = layout, room, 0
        self.columns: list[Array] = []
        self._spans: list[
            Array | None
        ] = []  # of texts: [room, ..., 2], where each begins and ends in the reader's text
        for dtype, shape in layout.columns():
            is_text = dtype == object
            self.columns.append(np.empty((room, *shape), dtype) if is_text else empty((room, *shape), dtype))
            self._spans.append(np.empty((room, *shape, 2), np.int64) if is_text else None)
        written = [column if spans is None else spans for column, spans in zip(self.columns, self._spans)]
        self.places = np.array([array.ctypes.data for array in written], np.uintp)
        self.info: tuple[Array, ...] = tuple(np.empty(room, dtype) for dtype in INFO_DTYPES)

    @property
    def has_texts(self) -> bool:
        return any(spans is not None for spans in self._spans)

    def add_texts(self, text: bytes, end: int) -> None:
        """Puts texts into their columns, of the samples up to `end`."""
        new = slice(self.filled, end)
        for column, spans in zip(self.columns, self._spans):
            if spans is not None:
                pairs: Sequence[Sequence[int]] = spans[new].reshape(-1, 2).tolist()
                texts = np.empty(len(pairs), object)
                texts[:] = [text[begin:stop] for begin, stop in pairs]
                column[new] = texts.reshape(column[new].shape)


_MANY_BYTES = 1 << 18
"""Fewer are decoded sooner than another thread wakes up."""

_PROCESSORS = os.cpu_count() or 1


@functools.cache
def _helper(process: int) -> ThreadPoolExecutor:
    """The second thread, for all readers of a process: a forked one does not have it."""
    return ThreadPoolExecutor(1, f"rlds2reverb-decode-{process}")


INFO_DTYPES = (np.uint64, np.float64, np.int64, np.float64, np.int32)


def trajectories(messages: Sequence[bytes]) -> tuple[list[Array], Array, Array, Array] | None:
    """FlatTrajectory messages -> the arrays of `trajectories.Slices` and `trajectories.Pointers`; None for what `plain` has to read."""
    library = LIBRARY
    reader = library.reader_open()
    if not reader:
        raise MemoryError("no memory for trajectories")
    try:
        ends = np.cumsum(np.fromiter(map(len, messages), np.int64, len(messages)))
        columns = ctypes.c_int64()
        data = b"".join(messages)
        slices = _checked(
            library.trajectories_read(reader, data, ends.ctypes.data, len(messages), ctypes.byref(columns))
        )
        if slices is None:
            return None
        of_slices = [np.empty(slices, dtype) for dtype in (np.uint64, np.int64, np.int64, np.int64)]
        slice_counts, squeezed = np.empty(columns.value, np.int64), np.empty(columns.value, np.bool_)
        column_counts = np.empty(len(messages), np.int64)
        arrays = (*of_slices, slice_counts, squeezed, column_counts)
        library.trajectories_get(reader, *(array.ctypes.data for array in arrays))
    finally:
        library.reader_close(reader)
    return of_slices, slice_counts, squeezed, column_counts


def _checked(result: int) -> int | None:
    if result == _NO_MEMORY:
        raise MemoryError("no memory for sampled chunks")
    return None if result == _UNUSUAL else result
