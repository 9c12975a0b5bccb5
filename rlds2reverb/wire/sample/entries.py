"""Responses of a sample stream -> whole samples.

Source: reverb_service.proto, SampleStreamResponse{entries(1){info(1), data(2) chunks, end_of_sequence(3)}}. Observed in 0.14: a large sample
comes in several entries, which may be in several responses; only the first has `info`, only the last `end_of_sequence`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from rlds2reverb.errors import WireError
from rlds2reverb.wire.sample.outlines import outlines
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
