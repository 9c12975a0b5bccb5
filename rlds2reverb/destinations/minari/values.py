"""Values as HDF5 holds them."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2reverb.episodes import Array

ATTRIBUTE_KINDS = "biufc"
"""Of numbers."""
_MOST_ATTRIBUTE_BYTES = 60_000
"""An attribute lies in the header of its group, which has 64 KiB."""


def is_name(part: str) -> bool:
    """Whether HDF5 has groups and datasets of such names."""
    return is_attribute(part) and part not in (".", "..")


def is_attribute(name: str) -> bool:
    """Whether HDF5 has attributes of such names."""
    return bool(name) and "\0" not in name


def encoded_texts(column: Array) -> tuple[Array, bool]:
    """Texts as `str`, and whether one had to be changed: HDF5 ends them at a NUL, and Minari reads UTF-8."""
    flat = column.ravel().tolist()
    texts = [_text(value) for value in flat]
    made = np.empty(len(texts), object)
    made[:] = texts
    return made.reshape(column.shape), any(text.encode() != value for text, value in zip(texts, flat))


def attribute(value: Any) -> Any:
    """A feature as an attribute; None where that does not hold it: it is too large, is no UTF-8, has a NUL, or is of a dtype that HDF5 lacks."""
    if isinstance(value, (bytes, str)) or (
        isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "OSU"
    ):
        plain = value.item() if isinstance(value, np.ndarray) else value
        data = plain.encode() if isinstance(plain, str) else plain
        text = _text(data)
        return text if text.encode() == data and len(data) < _MOST_ATTRIBUTE_BYTES else None
    made = np.asarray(value)
    return made[()] if made.dtype.kind in ATTRIBUTE_KINDS and made.nbytes < _MOST_ATTRIBUTE_BYTES else None


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace").replace("\0", "\\x00")
