"""What a server makes of a sample stream: the other side of `requests` and `batches`, for servers in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from rlds2reverb.episodes import Array
from rlds2reverb.errors import WireError
from rlds2reverb.wire import tensors
from rlds2reverb.wire.messages import SampleRequest
from rlds2reverb.wire.schema import message_class
from rlds2reverb.wire.varint import bytes_field

TIMED_OUT = "Rate Limiter: Timeout exceeded before the right to insert was acquired."
"""What Reverb 0.14 says of samples, too."""


class Sampled(NamedTuple):
    """One sample, as the server tells of it; `values` are the item's, one array per column."""

    key: int
    priority: float
    times_sampled: int
    probability: float
    table_size: int
    values: tuple[Array, ...]


def decode_sample_request(message: bytes) -> SampleRequest:
    """The other way of `encode_sample_request`.

    Raises:
      WireError: not such a message.
    """
    try:
        proto = message_class("SampleStreamRequest").FromString(message)
    except (DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"SampleStreamRequest: {len(message)} bytes that are no such message ({error})") from error
    milliseconds = proto.rate_limiter_timeout.milliseconds
    return SampleRequest(proto.table, proto.num_samples, milliseconds / 1000 if milliseconds > 0 else None)


def encode_samples(samples: Iterable[Sampled]) -> bytes:
    """SampleStreamResponse: every item with a chunk of its own, one row per column, squeezed."""
    response = message_class("SampleStreamResponse")()
    for sample in samples:
        entry = response.entries.add(end_of_sequence=True)
        info, item = entry.info, entry.info.item
        info.probability, info.table_size = sample.probability, sample.table_size
        item.key, item.priority, item.times_sampled = sample.key, sample.priority, sample.times_sampled
        chunk = message_class("ChunkTensors")()
        for value in sample.values:
            row = value[np.newaxis]
            chunk.tensors.add().MergeFromString(
                tensors.tensor_header(row.dtype, row.shape) + _content_field(tensors.content_bytes(row))
            )
        content = chunk.SerializeToString()
        chunk_key = _key_of(content)
        entry.data.add(chunk_key=chunk_key, data=content)
        item.flat_trajectory = _trajectory(chunk_key, len(sample.values))
    data: bytes = response.SerializeToString()
    return data


def _key_of(content: bytes) -> int:
    """Another content has another key: what an item holds may change, a chunk never does."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _trajectory(chunk_key: int, columns: int) -> bytes:
    """The first row of every tensor of one chunk, squeezed."""
    trajectory = message_class("FlatTrajectory")()
    for number in range(columns):
        trajectory.columns.add(squeeze=True).chunk_slices.add(chunk_key=chunk_key, length=1, index=number)
    data: bytes = trajectory.SerializeToString()
    return data


def _content_field(content: bytes) -> bytes:
    return bytes_field(4, content)
