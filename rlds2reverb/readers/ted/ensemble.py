"""The buffers of an ensemble, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.recordings import Recording, Recordings
from rlds2reverb.readers.ted.recordings import TedRecordings
from rlds2reverb.remarks import Remark
from rlds2reverb.specs import Nest, differences


class EnsembleRecordings(Recordings):
    """The trajectories of several buffers with the same columns.

    Raises:
      SourceError: they have others.
    """

    def __init__(self, name: str, buffers: Sequence[TedRecordings]) -> None:
        self.name, self._buffers = name, buffers
        self._starts = [0, *accumulate(buffer.count for buffer in buffers)]
        for number, buffer in enumerate(buffers):
            found = differences(buffer.spec(), buffers[0].spec()) + differences(
                buffer.metadata_spec(), buffers[0].metadata_spec()
            )
            if found:
                raise SourceError(
                    f"{name}: buffer {number} has other columns than buffer 0: {'; '.join(found)}. Open one by buffer={number}, or join them by a mix"
                )

    @property
    def count(self) -> int:
        """The trajectories of all."""
        return self._starts[-1]

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """Those of each, which say of which."""
        return tuple(
            replace(remark, text=f"buffer {number}: {remark.text}")
            for number, buffer in enumerate(self._buffers)
            for remark in buffer.remarks
        )

    def spec(self) -> Nest:
        """That of each."""
        return self._buffers[0].spec()

    def metadata_spec(self) -> Nest:
        """That of each."""
        return self._buffers[0].metadata_spec()

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        """The trajectories of these numbers, over all buffers."""
        for at, buffer in enumerate(self._buffers):
            inside = [number - self._starts[at] for number in _between(numbers, self._starts[at], self._starts[at + 1])]
            for number, recording in zip(inside, buffer.read(inside)):
                yield replace(recording, name=f"{at}/{number}")

    def metadata_of(self, number: int) -> Mapping[str, Any]:
        """What is known of a trajectory without its steps."""
        at = next(at for at, stop in enumerate(self._starts[1:]) if number < stop)
        return self._buffers[at].metadata_of(number - self._starts[at])


def _between(numbers: Sequence[int], start: int, stop: int) -> list[int]:
    return [number for number in numbers if start <= number < stop]
