"""A column of one item in a few words: first values, what they span, and of images the size."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.images import JPEG_START, image_size
from rlds2reverb.inspection.statistics import Range
from rlds2reverb.specs import dtype_name
from rlds2reverb.text import counted, visible

MOST_CHARACTERS = 80
"""Of a text, for people and for JSON."""

_PICTURE_VALUES = 256
"""Arrays of bytes with three dimensions and so many values are taken for pictures: their first values tell nothing."""


@dataclass(frozen=True)
class Brief:
    """What is told of a column.

    Attributes:
      dtype: its name, as signatures have it.
      shape: sizes.
      values: the first ones, as plain numbers or text; of encoded images, kind and size.
      total: how many there are.
      span: of numbers; nothing in it of text.
      text_bytes: of all texts and encoded images together; None of numbers.
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
        parts = [] if self.is_picture else [_listed(self.values, self.total)]
        if self.text_bytes is not None:
            parts.append(f"({counted(self.text_bytes, 'byte')})")
        elif self.total > 1 and self.span.minimum is not None:
            parts.append(f"({_short(self.span.minimum)} to {_short(self.span.maximum)})")
        if self.total > 1 and self.span.not_finite:
            parts.append(f"({counted(self.span.not_finite, 'value')} not finite)")
        return " ".join(filter(None, parts)) or "no values"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        about = self.span.as_dict() if self.text_bytes is None else {"bytes": self.text_bytes}
        return {"dtype": self.dtype, "shape": list(self.shape), "values": list(self.values), **about}


def brief(value: Any, most: int) -> Brief:
    """What is to be told of one column of one item.

    Args:
      value: an array, or a scalar; text as bytes.
      most: how many of its values.
    """
    array = _array(value)
    first = array.reshape(-1)[:most].tolist()
    if array.dtype.kind in "OSU":
        texts = array.reshape(-1).tolist()
        size = sum(len(_bytes(one)) for one in texts)
        return Brief(dtype_name(array.dtype), array.shape, tuple(map(_text_of, first)), array.size, text_bytes=size)
    span = Range()
    span.add(array)
    is_picture = array.dtype == np.uint8 and array.ndim >= 3 and array.size >= _PICTURE_VALUES
    return Brief(
        dtype_name(array.dtype), array.shape, tuple(map(_plain, first)), array.size, span, is_picture=is_picture
    )


def _array(value: Any) -> Array:
    if isinstance(value, (bytes, str)):  # numpy would cut trailing zeros off
        array = np.empty((), object)
        array[()] = value
        return array
    return np.asarray(value)


def _plain(value: Any) -> Any:
    """A number that JSON can carry; a complex one becomes text."""
    return (
        value if isinstance(value, (bool, int, float)) else str(value) if isinstance(value, complex) else float(value)
    )


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _text_of(value: Any) -> str:
    """A text, shortened; of an encoded image kind and size. Nothing in it can move a terminal's cursor."""
    data = _bytes(value)
    if (size := image_size(data)) is not None:
        kind = "jpeg" if data.startswith(JPEG_START) else "png"
        return f"{kind} image of {size[0]} x {size[1]}"
    text = data[: 4 * MOST_CHARACTERS + 4].decode("utf-8", "backslashreplace")
    shown = visible(text)
    return shown if len(shown) <= MOST_CHARACTERS else f"{shown[:MOST_CHARACTERS]}..."


def _listed(values: tuple[Any, ...], total: int) -> str:
    shown = ", ".join(f'"{one}"' if isinstance(one, str) else _short(one) for one in values)
    return f"{shown}, ..." if values and total > len(values) else shown


def _short(value: Any) -> str:
    return str(value) if isinstance(value, (bool, int)) else f"{value:.4g}"
