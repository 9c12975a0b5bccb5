"""What goes over a sample stream: requests, and responses that become whole samples.

Source: reverb_service.proto, SampleStreamResponse{entries(1){info(1), data(2) chunks, end_of_sequence(3)}}. Observed in 0.14: a large sample
comes in several entries, which may be in several responses; only the first has `info`, only the last `end_of_sequence`.

Chunks that are known already come again with every sample. So of large responses only the outlines are read, and a chunk is copied when
somebody asks for it. What protobuf would not write so, and what is small, is left to protobuf.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from rlds2reverb.errors import WireError
from rlds2reverb.wire.messages import SampleRequest
from rlds2reverb.wire.schema import message_class

ItemInfo = tuple[int, float, int, float, int]
"""Of one sample: its item's key, probability, table size, priority, times sampled; see `batches.SampleInfo`."""


class Samples(NamedTuple):
    """Samples as they came. Lists side by side: there is one for every item that is ever sampled, so objects would cost.

    Attributes:
      infos: what the server tells of each.
      trajectories: the bytes of each one's FlatTrajectory.
      entries: the SampleEntry messages of each; they hold the chunks.
    """

    infos: list[ItemInfo]
    trajectories: list[bytes]
    entries: list[list[Any]]

    def chunks(self, number: int) -> Iterator[Any]:
        """The SampledChunk messages of one sample."""
        for entry in self.entries[number]:
            yield from entry.data


class Entries:
    """Joins what comes in parts."""

    def __init__(self) -> None:
        self._begun: Samples | None = None  # the one sample whose end is still to come

    def lost(self) -> None:
        """The rest of a sample that came in part will not come."""
        self._begun = None

    def samples(self, message: bytes) -> Samples:
        """The samples that a response completes.

        Raises:
          WireError: no such response, or entries that make no sample.
        """
        try:
            found = outlines(message)
            if found is None:
                found = message_class("SampleStreamResponse").FromString(message).entries
        except DecodeError as error:
            raise WireError(f"SampleStreamResponse: {len(message)} bytes that are no such message ({error})") from error
        whole = Samples([], [], [])
        infos, trajectories, entries = whole
        for entry in found:
            info = entry.info
            item = info.item
            trajectory = item.flat_trajectory
            if not trajectory or self._begun is not None or not entry.end_of_sequence:
                self._join(entry, whole)
                continue
            infos.append((item.key, info.probability, info.table_size, item.priority, item.times_sampled))
            trajectories.append(trajectory)
            entries.append([entry])
        return whole

    def _join(self, entry: Any, whole: Samples) -> None:
        """Takes an entry that is not a sample by itself."""
        if entry.HasField("info"):
            self._begin(entry)
        elif self._begun is None:
            raise WireError("SampleStreamResponse: an entry that tells of no item, and none began before")
        else:
            self._begun.entries[0].append(entry)
        if entry.end_of_sequence and self._begun is not None:
            whole.infos.extend(self._begun.infos)
            whole.trajectories.extend(self._begun.trajectories)
            whole.entries.extend(self._begun.entries)
            self._begun = None

    def _begin(self, entry: Any) -> None:
        if self._begun is not None:
            raise WireError(f"sampled item {self._begun.infos[0][0]}: another one began before its end came")
        info = entry.info
        item = info.item
        of_item = (item.key, info.probability, info.table_size, item.priority, item.times_sampled)
        self._begun = Samples([of_item], [item.flat_trajectory], [[entry]])


_LARGE = 8192
"""Bytes of the first entry from which on a copy by protobuf costs more than this."""

_ENTRY, _INFO, _CHUNK, _END = 0x0A, 0x0A, 0x12, 0x18
"""Tags: of a response, and of an entry."""

_LENGTH_BITS = 28

_NO_INFO = message_class("SampleInfo")()


class _Unlike(Exception):
    """It is not what protobuf writes."""


class Outline:
    """A SampleEntry; its chunks are read when somebody asks for them.

    Attributes:
      info: SampleInfo message; an empty one when it has none.
      end_of_sequence: whether it is the last one of its sample.
    """

    def __init__(self, message: bytes, begin: int, end: int) -> None:
        self._message = message
        self._chunks: list[tuple[int, int]] = []
        self.info, self._has_info = _NO_INFO, False
        self.end_of_sequence = False
        while begin < end:
            tag = message[begin]
            if tag == _END and message[begin + 1] <= 1:
                self.end_of_sequence = message[begin + 1] == 1
                begin += 2
                continue
            start, begin = _span(message, begin + 1, end)
            if tag == _CHUNK:
                self._chunks.append((start, begin))
            elif tag == _INFO and not self._has_info:
                self.info, self._has_info = message_class("SampleInfo").FromString(message[start:begin]), True
            else:
                raise _Unlike
        if begin != end:
            raise _Unlike

    @property
    def data(self) -> Iterator[Any]:
        """The SampledChunk messages.

        Raises:
          WireError: one cannot be parsed.
        """
        for begin, end in self._chunks:
            try:
                yield message_class("SampledChunk").FromString(self._message[begin:end])
            except DecodeError as error:
                raise WireError(f"SampledChunk: {end - begin} bytes that are no such message ({error})") from error

    def HasField(self, name: str) -> bool:  # noqa: N802  as protobuf's messages
        """Whether it has an `info`, the only field that is asked for."""
        return name == "info" and self._has_info


def outlines(message: bytes) -> list[Outline] | None:
    """The entries of a response; None when protobuf is to read it.

    Raises:
      DecodeError: an entry's info cannot be parsed.
    """
    found: list[Outline] = []
    at, size = 0, len(message)
    try:
        while at < size:
            if message[at] != _ENTRY:
                return None
            begin, at = _span(message, at + 1, size)
            if not found and at - begin < _LARGE:
                return None
            found.append(Outline(message, begin, at))
    except (_Unlike, IndexError):
        return None
    return found


def _span(message: bytes, at: int, limit: int) -> tuple[int, int]:
    """Where a field begins and ends whose length stands there."""
    length = shift = 0
    while (byte := message[at]) >= 0x80:
        length |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > _LENGTH_BITS:
            raise _Unlike
    begin = at + 1
    end = begin + (length | byte << shift)
    if end > limit:
        raise _Unlike
    return begin, end


def encode_sample_request(request: SampleRequest) -> bytes:
    """SampleStreamRequest: table(1), num_samples(2), rate_limiter_timeout(3); only a timeout above 0 is one (observed in 0.14)."""
    message = message_class("SampleStreamRequest")(table=request.table, num_samples=request.samples)
    if request.timeout_seconds is not None:
        message.rate_limiter_timeout.milliseconds = max(1, math.ceil(1000 * request.timeout_seconds))
    data: bytes = message.SerializeToString()
    return data
