"""Responses of a sample stream -> whole samples.

Source: reverb_service.proto, SampleStreamResponse{entries(1){info(1), data(2) chunks, end_of_sequence(3)}}. Observed in 0.14: a large sample
comes in several entries, which may be in several responses; only the first has `info`, only the last `end_of_sequence`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from rlds2reverb.errors import WireError
from rlds2reverb.wire.schema import message_class


class Told(NamedTuple):
    """What the server tells of one sample; see `batches.SampleInfo`."""

    key: int
    probability: float
    table_size: int
    priority: float
    times_sampled: int


class Sample(NamedTuple):
    """One sample as it came.

    Attributes:
      told: of it.
      trajectory: the bytes of a FlatTrajectory.
      entries: SampleEntry messages, whose chunks may be needed.
    """

    told: Told
    trajectory: bytes
    entries: list[Any]

    def chunks(self) -> Iterator[Any]:
        """SampledChunk messages."""
        for entry in self.entries:
            yield from entry.data


class Entries:
    """Joins what comes in parts."""

    def __init__(self) -> None:
        self._open: Sample | None = None

    def lost(self) -> None:
        """The rest of a sample that came in part will not come."""
        self._open = None

    def samples(self, message: bytes) -> list[Sample]:
        """The samples that a response completes.

        Raises:
          WireError: no such response, or entries that make no sample.
        """
        try:
            response = message_class("SampleStreamResponse").FromString(message)
        except DecodeError as error:
            raise WireError(f"SampleStreamResponse: {len(message)} bytes that are no such message ({error})") from error
        whole: list[Sample] = []
        for entry in response.entries:
            sample = self._begun(entry) if entry.HasField("info") else self._continued(entry)
            if entry.end_of_sequence:
                self._open = None
                whole.append(sample)
            else:
                self._open = sample
        return whole

    def _begun(self, entry: Any) -> Sample:
        if self._open is not None:
            raise WireError(f"sampled item {self._open.told.key}: another one began before its end came")
        info = entry.info
        item = info.item
        told = Told(item.key, info.probability, info.table_size, item.priority, item.times_sampled)
        return Sample(told, item.flat_trajectory, [entry])

    def _continued(self, entry: Any) -> Sample:
        if self._open is None:
            raise WireError("SampleStreamResponse: an entry that tells of no item, and none began before")
        self._open.entries.append(entry)
        return self._open
