"""Shards for webdataset: members `frame_NNN.KEY.pickle` of tar archives, one group for each step, trajectory after trajectory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.ilr import archives, keys, metadata
from rlds2reverb.readers.ilr.findings import Findings
from rlds2reverb.readers.ilr.frames import Frame, Metadata, frames
from rlds2reverb.readers.ilr.layout import Layout
from rlds2reverb.readers.ilr.options import Options
from rlds2reverb.readers.ilr.trajectories import Cutting
from rlds2reverb.readers.recordings import Recording, Recordings
from rlds2reverb.remarks import Remark
from rlds2reverb.specs import ArraySpec, Nest
from rlds2reverb.wording import shortened

_TEXT = ArraySpec((), np.dtype(object))


@dataclass(frozen=True)
class Start:
    """What stands at the beginning of a shard.

    Attributes:
      features: what its description tells; {} when it has none.
      description: as it stands there.
      layout: of the first step.
    """

    features: Mapping[str, bytes]
    description: bytes
    layout: Layout


class _Wanted:
    """Which of the episodes, as they come, are among the numbers that are asked for."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._number, self._left = 0, iter(numbers)
        self._next = next(self._left, None)

    def is_over(self) -> bool:
        """Whether none is left."""
        return self._next is None

    def is_now(self) -> bool:
        """Whether the episode that comes is one."""
        return self._number == self._next

    def go_on(self) -> None:
        """It has come."""
        if self.is_now():
            self._next = next(self._left, None)
        self._number += 1


class ShardRecordings(Recordings):
    """The episodes of some shards, one shard after the other. A trajectory ends with its shard.

    Raises:
      SourceError: the first shard cannot be read, or has no step.
    """

    def __init__(self, paths: Sequence[Path], name: str, options: Options) -> None:
        self.name, self._paths, self._options = name, tuple(paths), options
        self._start = _start_of(self._paths[0])
        self._specs = self._start.layout.specs()
        self._findings = Findings()
        self._count: int | None = None

    @property
    def count(self) -> int | None:
        """None, for only reading tells; unless `counted` made it."""
        return self._count

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """What is known before reading, and what the last pass found."""
        return self._findings.remarks(keys.REWS in self._start.layout.values, self._options)

    def spec(self) -> Nest:
        """That of the first step."""
        return dict(self._specs)

    def metadata_spec(self) -> Nest:
        """What the first shard tells of itself, as texts."""
        return dict.fromkeys(self._start.features, _TEXT)

    @property
    def features(self) -> Mapping[str, bytes]:
        """What the first shard tells of itself."""
        return self._start.features

    def counted(self) -> ShardRecordings:
        """The same, with `count`: reads through all shards.

        Raises:
          SourceError: one cannot be read.
        """
        made = ShardRecordings(self._paths, self.name, self._options)
        made._count = sum(1 for _ in made._all(Findings(), _Wanted(())))
        return made

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        """The episodes of these numbers. Those before them are passed over, which takes the time of unpacking them."""
        self._findings = Findings()
        wanted = _Wanted(numbers)
        if wanted.is_over():
            return
        for recording in self._all(self._findings, wanted):
            if recording is not None:
                yield recording
            if wanted.is_over():
                return

    def _all(self, findings: Findings, wanted: _Wanted) -> Iterator[Recording | None]:
        """Every episode; None for one that is not wanted."""
        for path in self._paths:
            for recording in self._of_shard(path, findings, wanted):
                wanted.go_on()
                yield recording

    def _of_shard(self, path: Path, findings: Findings, wanted: _Wanted) -> Iterator[Recording | None]:
        cutting = Cutting(self._start.layout, self._options, findings, wanted.is_now)
        features, where = dict.fromkeys(self._start.features, b""), path.name
        with archives.opened(path) as file:
            is_first = True
            for found in frames(archives.members(file, where), where, cutting.wants):
                if isinstance(found, Metadata):
                    findings.metadata += found.data != self._start.description
                    told = metadata.features(found.data, found.where) if is_first else {}
                    features |= {key: told[key] for key in features if key in told}
                else:
                    for trajectory, is_done in cutting.step(found, where):
                        made = (
                            trajectory.recording(is_done, self._options, features, findings)
                            if trajectory.is_wanted
                            else None
                        )
                        yield made
                is_first = False
            for trajectory, _ in cutting.rest():
                yield trajectory.recording(False, self._options, features, findings) if trajectory.is_wanted else None


def _start_of(path: Path) -> Start:
    """The description and the first step.

    Raises:
      SourceError: they cannot be read, or there is no step.
    """
    features: Mapping[str, bytes] = {}
    description = b""
    with archives.opened(path) as file:
        for found in frames(archives.members(file, path.name), path.name, lambda key: True):
            if isinstance(found, Frame):
                return Start(features, description, Layout.of(found.values))
            if not description:
                description, features = found.data, metadata.features(found.data, found.where)
    raise SourceError(f"{shortened(str(path))}: no step; expected members such as frame_000.obs.pickle")
