"""A column of one item in a few words: first values, their range, and of images the size."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlds2reverb.images import JPEG_START, image_size
from rlds2reverb.inspection.statistics import Range
from rlds2reverb.specs import dtype_name
from rlds2reverb.text import counted, shortened, visible

MOST_CHARACTERS = 80
"""Of a text, for people and for JSON."""

_PICTURE_VALUES = 256
"""Arrays of bytes with three dimensions and at least so many values are taken for pictures, whose first values are not shown."""


@dataclass(frozen=True)
class Brief:
    """A column of one item.

    Attributes:
      values: the first ones, as plain numbers or text; of encoded images, kind and size.
      total: number of all.
      span: of numbers; empty for text.
      text_bytes: of all texts and encoded images together; None for numbers.
      is_picture: whether they are pixels.
    """

    dtype: str
    shape: tuple[int, ...]
    values: tuple[Any, ...]
    total: int
    span: Range = field(default_factory=Range)
    text_bytes: int | None = None
    is_picture: bool = False

    @property
    def kind(self) -> str:
        """Dtype and shape: "float32[2, 4]"."""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    def text(self) -> str:
        """The values on one line."""
        shown = ", ".join(f'"{value}"' if isinstance(value, str) else _short(value) for value in self.values)
        shown += ", ..." if self.values and self.total > len(self.values) else ""
        parts = [] if self.is_picture else [shown]
        if self.text_bytes is not None:
            parts.append(f"({counted(self.text_bytes, 'byte')})")
        elif self.total > 1 and self.span.minimum is not None:
            parts.append(f"({_short(self.span.minimum)} to {_short(self.span.maximum)})")
        if self.total > 1 and self.span.not_finite:
            parts.append(f"({counted(self.span.not_finite, 'value')} not finite)")
        return " ".join(filter(None, parts)) or "no values"

    def as_dict(self) -> dict[str, Any]:
        about = {"bytes": self.text_bytes}
        if self.text_bytes is None:
            about = self.span.as_dict()
            del about["dimensions"]  # the values themselves stand beside it
        return {"dtype": self.dtype, "shape": list(self.shape), "values": list(self.values), **about}


def brief(value: Any, most: int) -> Brief:
    """The first `most` values of a column of one item: an array, or a scalar; text as bytes."""
    # as a text of its own, numpy would cut trailing zeros off
    array = np.asarray(value, object if isinstance(value, (bytes, str)) else None)
    first = array.reshape(-1)[:most].tolist()
    if array.dtype.kind in "OSU":
        texts = array.reshape(-1).tolist()
        size = sum(len(_bytes(text)) for text in texts)
        return Brief(dtype_name(array.dtype), array.shape, tuple(map(_text_of, first)), array.size, text_bytes=size)
    span = Range()
    span.add(array)
    is_picture = array.dtype == np.uint8 and array.ndim >= 3 and array.size >= _PICTURE_VALUES
    values = tuple(  # that JSON can carry
        value if isinstance(value, (bool, int, float)) else str(value) if isinstance(value, complex) else float(value)
        for value in first
    )
    return Brief(dtype_name(array.dtype), array.shape, values, array.size, span, is_picture=is_picture)


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _text_of(value: Any) -> str:
    """A text, shortened; of an encoded image, kind and size. Nothing in it can move a terminal's cursor."""
    data = _bytes(value)
    if (size := image_size(data)) is not None:
        kind = "jpeg" if data.startswith(JPEG_START) else "png"
        return f"{kind} image of {size[0]} x {size[1]}"
    return shortened(visible(data[: 4 * MOST_CHARACTERS + 4]), MOST_CHARACTERS)


def _short(value: Any) -> str:
    return str(value) if isinstance(value, (bool, int)) else f"{value:.4g}"
