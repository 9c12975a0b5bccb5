"""Recorded values as columns: lists of JSON, packed arrays, nests of both.

| recorded | column |
| --- | --- |
| a list of numbers, of lists of equal lengths | int64, bool or float64: JSON keeps no dtype. `floats` may make float32 of float64 |
| a packed array | as it was packed |
| a dict of columns, or a list of dicts | a column for each key, below the column's path |
| a tuple (packed), or as many lists as there are parts | columns "0", "1", ... below |
| a list of texts | text |

A packed value is base64 of an LZ4 frame of a pickle, as RLlib compresses columns. Some versions wrote the text of a Python `bytes`,
b'...', which is read as well. Source: rllib/utils/compression.py.
"""

from __future__ import annotations

import binascii
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import cramjam
import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.pickles import safe_loads, stable_repr
from rlds2reverb.formats.recordings import BrokenEpisode

Leaves = dict[str, Array]  # path below the column, "" for a plain one -> [rows, ...].
_DEEPEST = 20
_MOST_COLUMNS = 10_000
_EXACT = 2.0**53  # float64 holds all whole numbers up to here


class Converter:
    """Makes columns of recorded values; `floats` is the dtype of numbers with a point in lists."""

    def __init__(self, where: str, floats: np.dtype[Any]) -> None:
        self._where, self._floats = where, floats

    def leaves(self, name: str, value: Any, rows: int, keeps_dtype: bool = False) -> Leaves:
        """The columns of a recorded value. With `keeps_dtype`, numbers in a list have their own dtype, because it does not come from JSON.

        Raises:
          BrokenEpisode: it is of no kind of the module's table, or has another number of rows.
        """
        leaves: Leaves = {}
        self._add(leaves, name, "", value, rows, keeps_dtype)
        for path, column in leaves.items():
            if len(column) != rows:
                raise self._broken(name, f'"{path or name}" has {len(column):,} rows; expected {rows:,}')
        return leaves

    def _add(self, leaves: Leaves, name: str, path: str, value: Any, rows: int, is_packed_value: bool = False) -> None:
        if path.count("/") > _DEEPEST or len(leaves) > _MOST_COLUMNS:
            raise self._broken(name, "a nest that is too deep or too wide")
        if isinstance(value, str):
            self._add(leaves, name, path, self.unpack(name, value), rows, is_packed_value=True)
        elif isinstance(value, (dict, tuple)) or _is_tuple(value, rows):
            for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
                self._add(leaves, name, f"{path}/{key}" if path else str(key), part, rows, is_packed_value)
        elif isinstance(value, Sequence) and value and isinstance(value[0], (dict, tuple)):
            self._add(leaves, name, path, self._turn_rows(name, value), rows, is_packed_value)
        elif isinstance(value, list) and value and is_packed(value[0]):
            self._add(leaves, name, path, [self.unpack(name, packed) for packed in value], rows, is_packed_value=True)
        else:
            leaves[path] = self._make_column(name, value, is_packed_value)

    def unpack(self, name: str, value: Any) -> Any:
        """The value that a text packs."""
        if not is_packed(value):
            raise self._broken(name, f"a text that is no packed value: {str(value)[:60]!r}")
        return unpack_value(value, self._where, name)

    def _turn_rows(self, name: str, values: Sequence[Any]) -> Any:
        """Turns rows of nests into one nest of columns."""
        first = values[0]
        if isinstance(first, dict):
            if any(not isinstance(row, dict) or row.keys() != first.keys() for row in values):
                raise self._broken(name, "its dicts have different keys")
            return {key: [row[key] for row in values] for key in first}
        if any(not isinstance(row, tuple) or len(row) != len(first) for row in values):
            raise self._broken(name, "its tuples have different lengths")
        return tuple([row[at] for row in values] for at in range(len(first)))

    def _make_column(self, name: str, value: Any, is_packed_value: bool) -> Array:
        try:
            column, is_list = (value, False) if isinstance(value, np.ndarray) else (np.asarray(value), True)
        except (ValueError, TypeError, OverflowError) as error:
            raise self._broken(name, "its rows have different shapes") from error
        if column.ndim == 0:
            raise self._broken(name, "expected a list with a value per step, found one value")
        if column.dtype.kind in "OSU":
            flat = column.ravel().tolist()
            if odd := [type(text).__name__ for text in flat if not isinstance(text, (str, bytes))]:
                raise self._broken(name, f"values that are neither all numbers nor all texts, such as {odd[0]}")
            return encode_texts(flat).reshape(column.shape)
        # JSON has no dtypes: numpy makes float64 of whole numbers beside others, and from 2^53 on that may change them.
        if is_list and column.dtype == np.float64 and (np.abs(column) >= _EXACT).any() and not _is_exact(value):
            raise self._broken(name, "whole numbers beside others, which float64 does not hold exactly")
        if column.dtype.kind not in "biufc":
            raise self._broken(name, f"values of dtype {column.dtype}")
        return column.astype(self._floats) if column.dtype == np.float64 and is_list and not is_packed_value else column

    def _broken(self, name: str, why: str) -> BrokenEpisode:
        return BrokenEpisode(name, f'{self._where}: column "{name}": {why}')


def _is_exact(value: Any) -> bool:
    """Whether float64 holds all whole numbers in nested lists."""
    if isinstance(value, list):
        return all(map(_is_exact, value))
    return not isinstance(value, (int, np.integer)) or int(float(value)) == int(value)


def encode_texts(values: Sequence[Any]) -> Array:
    """A column of texts as `bytes`. Other values are written as JSON, or as Python writes them if JSON cannot; None and {} as empty texts."""
    encoded = [value if isinstance(value, bytes) else _text(value).encode("utf-8", "surrogatepass") for value in values]
    return np.array(encoded, object)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, dict) and not value):
        return ""
    try:
        return json.dumps(
            value,
            sort_keys=True,
            default=lambda part: part.tolist() if isinstance(part, (np.ndarray, np.generic)) else stable_repr(part),
        )
    except (TypeError, ValueError, RecursionError):  # keys that JSON or sorting refuses; a nest without end
        return stable_repr(value)


PACKED = b"BCJNG"  # occurs in every line that holds a packed value
_STARTS = ("BCJNG", "b'BCJNG", 'b"BCJNG')
_LARGEST = 1 << 31  # bytes of a packed value; RLlib's files have 64 MiB
_BOUND_OF_LZ4 = 255
_HAS_SIZE = 0x08
_HEADER = 15


def is_packed(text: Any) -> bool:
    """Whether a value begins with the base64 of an LZ4 frame's magic number."""
    return isinstance(text, str) and text.startswith(_STARTS)


def unpack_value(text: str, where: str, path: str) -> Any:
    """Unpacks a value of the column `path`. Raises `BrokenEpisode` if it is damaged, too large, or has more than values of numpy."""
    plain = text[2:-1] if text[:2] in ("b'", 'b"') else text
    try:
        frame = _decode_frame(plain)
        return safe_loads(bytes(cramjam.lz4.decompress(frame)), where)
    except SourceError as error:
        raise BrokenEpisode(path, str(error)) from error
    except (ValueError, cramjam.DecompressionError, MemoryError) as error:
        raise BrokenEpisode(path, f"{where}: a packed value cannot be unpacked: {error}") from error


def _decode_frame(text: str) -> bytes:
    """The LZ4 frame of a base64 text; refuses one that is too large, before memory is allocated."""
    frame = binascii.a2b_base64(text)  # strict decoding is much slower; comparing lengths finds the same errors
    if len(frame) != len(text) // 4 * 3 - text[-2:].count("=") or len(text) % 4:
        raise ValueError("no base64")
    bound = len(frame) * _BOUND_OF_LZ4
    if len(frame) >= _HEADER and frame[4] & _HAS_SIZE:
        (size,) = struct.unpack_from("<Q", frame, 6)
        if size > bound:
            raise ValueError(f"{size:,} bytes are announced, which {len(frame):,} cannot hold")
        bound = size
    if bound > _LARGEST:
        raise ValueError(f"{bound:,} bytes; expected at most {_LARGEST:,}")
    return frame


def _is_tuple(value: Any, rows: int) -> bool:
    """Whether a list holds columns instead of rows."""
    if not isinstance(value, list) or not value or len(value) == rows:
        return False
    return all(
        isinstance(part, (dict, str)) or (isinstance(part, (list, np.ndarray)) and len(part) == rows) for part in value
    )
