"""Chunks as a server sends them -> their tensors.

Source of the delta encoding: reverb/cc/support/trajectory_util, tensor_compression.cc; observed with 0.14: only the legacy writer
sets the flag, and it acts on tensors of whole numbers with at least two axes, the rows included.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from rlds2reverb.episodes import Array
from rlds2reverb.errors import WireError
from rlds2reverb.wire import tensors
from rlds2reverb.wire.schema import message_class


def decode_chunk(chunk: Any) -> tuple[Array, ...]:
    """A SampledChunk message -> one array [rows, ...] per tensor.

    Raises:
      WireError: the tensors cannot be read.
    """
    try:
        data = message_class("ChunkTensors").FromString(chunk.data)
    except DecodeError as error:
        raise WireError(f"chunk {chunk.chunk_key}: {len(chunk.data)} bytes that are no tensors ({error})") from error
    decoded = (tensors.decode_tensor(tensor) for tensor in data.tensors)
    return tuple(_summed(tensor) for tensor in decoded) if chunk.delta_encoded else tuple(decoded)


def _summed(tensor: Array) -> Array:
    """Undoes the delta encoding: sums that wrap, row by row."""
    if tensor.dtype.kind not in "iu" or tensor.ndim < 2:
        return tensor
    return np.cumsum(tensor, axis=0, dtype=tensor.dtype)
