"""A LeRobot dataset as recordings."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2reverb.image_spec import ImageSpec
from rlds2reverb.readers.alignment import MARK
from rlds2reverb.readers.lerobot.dataset import Dataset
from rlds2reverb.readers.lerobot.episodes import LENGTH
from rlds2reverb.readers.lerobot.features import EPISODE_INDEX, IMAGE, VIDEO
from rlds2reverb.readers.lerobot.reader import Reader
from rlds2reverb.readers.lerobot.reading import left_out, remarks_of
from rlds2reverb.readers.lerobot.videos import check_library
from rlds2reverb.readers.nests import nested, value_spec
from rlds2reverb.readers.recordings import Recording, Recordings, each
from rlds2reverb.remarks import Remark
from rlds2reverb.specs import ArraySpec, Nest


class LeRobotRecordings(Recordings):
    """The episodes of a dataset.

    Args:
      dataset: what is read, and how.
      name: for messages.
      as_files: paths of images that are given as their files' bytes.

    Raises:
      SourceError: two columns cannot stand beside one another, or videos are to be decoded and PyAV is missing.
    """

    def __init__(self, dataset: Dataset, name: str, as_files: Collection[str] = ()) -> None:
        self.name, self._dataset, self._as_files = name, dataset, frozenset(as_files)
        self._odd: dict[str, set[int]] = {}
        if any(one.kind == VIDEO for one in dataset.steps.columns.values()):
            check_library()
        self._spec = nested({path: self._spec_of(path, one) for path, one in dataset.specs().items()}, name)

    @property
    def count(self) -> int:
        """As many as meta/ tells."""
        return len(self._dataset.episodes)

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """How rows became steps, what was left out, and what was odd in the episodes that were read so far."""
        dataset = self._dataset
        told = remarks_of(dataset.info.features, dataset.reading, dataset.steps.are_recorded, self.count, self._odd)
        return (*told, *left_out(dataset.episodes.left_out))

    def length_of(self, number: int) -> int:
        """As meta/ tells, and the row that is added."""
        rows, steps = int(self._dataset.episodes.columns[LENGTH][number]), self._dataset.steps
        return rows + (rows > 0 and not steps.are_recorded and steps.reading.last_step != MARK)

    def spec(self) -> Nest:
        """Of the features; the flags; the discount where `next.done` tells the end; the task where it is a column."""
        return self._spec

    def metadata_spec(self) -> Nest:
        """See `Dataset.metadata_of`."""
        example = self.metadata_of(0) if self.count else {EPISODE_INDEX: np.int64(0)}
        return nested({path: value_spec(value) for path, value in example.items()}, self.name)

    def metadata_of(self, number: int) -> Mapping[str, Any]:
        """One episode's."""
        return self._dataset.metadata_of(number)

    def images(self) -> Mapping[str, ImageSpec]:
        """Of the images in tables; not of depth maps, and not of videos."""
        return {
            path: ImageSpec((one.shape[0], one.shape[1], one.shape[2]), one.dtype, is_accurate=True)
            for path, one in self._dataset.steps.columns.items()
            if one.kind == IMAGE and not one.is_depth
        }

    def encoded(self, paths: Collection[str]) -> LeRobotRecordings:
        """The same, with these images as files."""
        return LeRobotRecordings(self._dataset, self.name, paths)

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        """The episodes of these numbers."""
        self._dataset.check_templates()
        reader = Reader(self._dataset, self._as_files, self._odd)
        try:
            yield from each(reader, numbers)
        finally:
            reader.close()

    def _spec_of(self, path: str, spec: ArraySpec) -> ArraySpec:
        return ArraySpec.of_images(self.images()[path]) if path in self._as_files else spec
