"""Minari's episodes as `Recordings`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episodes import OBSERVATION, Array, content_digest
from rlds2reverb.errors import SourceError
from rlds2reverb.identity import content_name
from rlds2reverb.image_spec import ImageSpec
from rlds2reverb.readers.features import Features, gathered
from rlds2reverb.readers.minari import remarks
from rlds2reverb.readers.minari.episodes import Rows, Wanted, conforming, rows_of, specs_of, with_pixels
from rlds2reverb.readers.minari.facts import HDF5, Facts, read_facts
from rlds2reverb.readers.minari.in_arrow import InArrow
from rlds2reverb.readers.minari.in_hdf5 import InHdf5
from rlds2reverb.readers.minari.spaces import Leaf
from rlds2reverb.readers.minari.stored import ACTIONS, OBSERVATIONS, Episodes, Stored
from rlds2reverb.readers.recordings import BrokenEpisode, Recording, Recordings
from rlds2reverb.remarks import Remark
from rlds2reverb.specs import ArraySpec, Nest

_MOST_TRIED = 32
"""Episodes that are looked at for the spec, until one can be read."""


@dataclass(frozen=True)
class Options:
    """How a dataset is read.

    Attributes:
      follow_links: whether links may lead out of its folder.
      others: whether infos and further groups become columns.
      stored_spaces: whether shapes and dtypes are taken from the files where the dataset has no spaces.
    """

    follow_links: bool = False
    others: bool = True
    stored_spaces: bool = False


class MinariRecordings(Recordings):
    """The episodes of a dataset.

    Args:
      folder: its folder `data`.
      name: what people call it.
      options: how it is read.

    Raises:
      SourceError: it cannot be read.
    """

    def __init__(self, folder: Path, name: str, options: Options = Options()) -> None:
        facts = read_facts(folder, options.follow_links)
        self.name, self._facts, self._options = name, facts, options
        self._stored = _storage(facts)
        told = facts.episodes
        self._numbers = list(self._stored.numbers[:told])
        self._wanted = Wanted(*_leaves(facts, options, self._stored, self._numbers), others=options.others)
        self._tally = remarks.Tally(told, self._stored.numbers)

    @property
    def count(self) -> int:
        """How many episodes the files have, up to as many as the metadata tell."""
        return len(self._numbers)

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """What was found so far."""
        return self._tally.remarks(self._features.left_out if "_features" in vars(self) else ())

    def length_of(self, number: int) -> int | None:
        """Its steps, and the row of the final observation."""
        steps = self.metadata_of(number).get("total_steps")
        return int(steps) + 1 if isinstance(steps, (int, np.integer)) and not isinstance(steps, bool) else None

    def spec(self) -> Nest:
        """As the first readable episode has it, with the spaces' bounds."""
        return dict(self._specs)

    def metadata_spec(self) -> Nest:
        """Of the features that all episodes have."""
        return dict(self._features.spec)

    def metadata_of(self, number: int) -> Mapping[str, Any]:
        """Every feature of an episode."""
        return self._features.of_each[number]

    def images(self) -> Mapping[str, ImageSpec]:
        """The colour images that are stored as JPEG."""
        return self._first[1] if self._numbers else {}

    def encoded(self, paths: Collection[str]) -> MinariRecordings:
        """The same with these images as their files."""
        other = MinariRecordings(self._facts.folder, self.name, self._options)
        other._wanted = replace(self._wanted, encoded=frozenset(paths))
        return other

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        """The episodes of these numbers."""
        with self._stored.opened() as episodes:
            for place in numbers:
                yield self._one(episodes, place)

    def _one(self, episodes: Episodes, place: int) -> Recording:
        number = self._numbers[place]
        kept = frozenset(path for path in self._first[1] if path.split("/")[0] == OBSERVATION)
        try:
            rows = rows_of(episodes(number), replace(self._wanted, encoded=self._wanted.encoded | kept))
            if not kept:
                return Recording(self._columns(number, rows), self._features.common(place), str(number))
        except BrokenEpisode as broken:
            return Recording({}, name=str(number), faults=((broken.path, broken.why),))
        stored = {path: column for path, column in rows.columns.items() if path in self._specs}
        return Recording(
            lambda: self._columns(number, with_pixels(rows, kept, self._wanted)),
            self._features.common(place),
            str(number),
            content=content_name(content_digest(stored)),
        )

    def _columns(self, number: int, rows: Rows) -> Mapping[str, Array]:
        """The rows as all episodes have them.

        Raises:
          BrokenEpisode: they are not.
        """
        rows = conforming(rows, self._specs)
        self._tally.note(number, rows.notes)
        return rows.columns

    @cached_property
    def _features(self) -> Features:
        told = dict(zip(self._stored.numbers, self._stored.metadata()))
        return gathered(told[number] or None for number in self._numbers)

    @property
    def _specs(self) -> Mapping[str, ArraySpec]:
        return self._first[0]

    @cached_property
    def _first(self) -> tuple[Mapping[str, ArraySpec], Mapping[str, ImageSpec]]:
        """Specs and images of the first episode that can be read."""
        why = f"{self.name}: has no episodes, so what they hold is not known"
        with self._stored.opened() as episodes:
            for number in self._numbers[:_MOST_TRIED]:
                try:
                    rows = rows_of(episodes(number), self._wanted)
                except BrokenEpisode as broken:
                    why = f"{self.name}: none of the first episodes can be read; the last: {broken.why}"
                    continue
                specs, notes = specs_of(rows, self._wanted)
                self._tally.note(number, notes)
                return specs, rows.jpeg
        raise SourceError(why)


def _storage(facts: Facts) -> Stored:
    if facts.format == HDF5:
        return InHdf5(facts)
    return InArrow(facts)


def _leaves(
    facts: Facts, options: Options, stored: Stored, numbers: Sequence[int]
) -> tuple[tuple[Leaf, ...], tuple[Leaf, ...]]:
    if facts.observation is not None and facts.action is not None:
        return facts.observation, facts.action
    if not options.stored_spaces or not isinstance(stored, InHdf5):
        raise SourceError(
            f"{facts.folder}: has no spaces, as before Minari 0.4 and in its combinations: they are those of the environment; "
            "add spaces=stored behind the name to take shapes and dtypes as the HDF5 files have them"
        )
    if not numbers:
        raise SourceError(f"{facts.folder}: has neither spaces nor episodes")
    try:
        return (
            facts.observation or stored.leaves(numbers[0], OBSERVATIONS),
            facts.action or stored.leaves(numbers[0], ACTIONS),
        )
    except BrokenEpisode as broken:
        raise SourceError(f"{facts.folder}: spaces=stored: {broken.why}") from broken
