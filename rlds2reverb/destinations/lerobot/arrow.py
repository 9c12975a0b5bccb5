"""Columns of an episode as columns of Arrow, as LeRobot stores them; see `readers.lerobot.values`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from rlds2reverb.destinations.lerobot.fields import FILES, PIXELS, TEXT, Field
from rlds2reverb.destinations.png import png_files
from rlds2reverb.episodes import Array

_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def column(one: Field, values: Array) -> tuple[pa.Array, bool]:
    """[T, ...] as a column; and whether a text was changed, as it is no UTF-8."""
    if one.kind in (PIXELS, FILES):
        files = pa.array(png_files(values) if one.kind == PIXELS else list(values), pa.binary())
        return pa.StructArray.from_arrays([files, pa.nulls(len(files), pa.string())], fields=list(_IMAGE)), False
    if one.kind == TEXT:
        texts, is_changed = as_texts(values)
        return pa.array(texts, pa.string()), is_changed
    return numbers(values.reshape(len(values), *one.shape)), False


def numbers(values: Array) -> pa.Array:
    """[T, ...]: one value for each row as it is; one axis as lists of a fixed size; more as lists within lists."""
    flat = pa.array(np.ascontiguousarray(values.reshape(-1), values.dtype.newbyteorder("=")))
    *inner, last = values.shape[1:] or (1,)
    if values.size == len(values) and values.ndim <= 2:
        return flat
    if not inner:
        return pa.FixedSizeListArray.from_arrays(flat, last)
    for size in reversed(values.shape[1:]):
        flat = pa.ListArray.from_arrays(np.arange(0, len(flat) + 1, size, dtype=np.int32), flat)
    return flat


def as_texts(values: Iterable[Any]) -> tuple[list[str], bool]:
    """Text as `str`; and whether one was changed, as it is no UTF-8."""
    values = list(values)
    texts = [
        bytes(value).decode(errors="backslashreplace") if not isinstance(value, str) else value for value in values
    ]
    return texts, any(not isinstance(value, str) and text.encode() != value for text, value in zip(texts, values))


def schema(table: pa.Table, told: Mapping[str, Any]) -> pa.Schema:
    """The table's, with the features as the library `datasets` wants them told."""
    features = {name: _feature(one) for name, one in told.items()}
    return table.schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def _feature(told: Mapping[str, Any]) -> dict[str, Any]:
    shape, dtype = told["shape"], told["dtype"]
    if dtype == "image":
        return {"_type": "Image"}
    plain = {"dtype": dtype, "_type": "Value"}
    if shape == [1]:
        return plain
    if len(shape) == 1:
        return {"feature": plain, "length": shape[0], "_type": "Sequence"}
    return {"shape": shape, "dtype": dtype, "_type": f"Array{len(shape)}D"}
