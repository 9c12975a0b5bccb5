"""What rows of tensors are, and how they lie in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.episodes import Array

_SPAN = 2  # a text's beginning and end


class Kind(NamedTuple):
    """What one row of a tensor is.

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
    def stored_dtype(self) -> np.dtype[Any]:
        """Of what lies in memory."""
        return np.dtype(np.int64) if self.is_text else self.dtype

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Of a row that lies in memory."""
        return (*self.shape, _SPAN) if self.is_text else self.shape

    @property
    def row_bytes(self) -> int:
        """Of a row that lies in memory."""
        return math.prod(self.stored_shape) * self.stored_dtype.itemsize

    def view(self, memory: Array) -> Array:
        """[rows, *stored_shape]: [bytes] uint8 as rows, from its beginning on. `row_bytes` is not 0."""
        whole = len(memory) // self.row_bytes * self.row_bytes
        rows: Array = memory[:whole].view(self.stored_dtype).reshape(-1, *self.stored_shape)
        return rows


def text_bytes(texts: Array) -> bytes:
    """All texts of a tensor, joined."""
    return b"".join(texts.ravel().tolist())


def text_spans(texts: Array, start: int) -> Array:
    """[*texts.shape, 2] int64: where each begins and ends when they lie joined at `start`."""
    lengths = np.fromiter(map(len, texts.ravel().tolist()), np.int64, texts.size)
    ends = start + np.cumsum(lengths)
    return np.stack([ends - lengths, ends], axis=-1).reshape(*texts.shape, _SPAN)


def texts_at(memory: Array, spans: Array) -> Array:
    """The other way: [..., 2] -> [...] object of bytes."""
    pairs: Sequence[Sequence[int]] = spans.reshape(-1, _SPAN).tolist()
    texts = np.empty(len(pairs), object)
    texts[:] = [memory[begin:end].tobytes() for begin, end in pairs]
    shaped: Array = texts.reshape(spans.shape[:-1])
    return shaped
