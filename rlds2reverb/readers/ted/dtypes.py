"""Torch's names of dtypes, and numpy's dtypes of the same bytes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

_ALIKE = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip

DTYPES: dict[str, np.dtype[Any]] = {
    **{f"torch.{name}": np.dtype(name) for name in _ALIKE},
    "torch.bfloat16": np.dtype(ml_dtypes.bfloat16),
}
"""Torch's name -> numpy's dtype; both keep the same bytes, little-endian on disk."""

NAMES = {dtype: name for name, dtype in DTYPES.items()}
"""The other way."""
