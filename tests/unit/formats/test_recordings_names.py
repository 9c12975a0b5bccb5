"""How recordings get their names: by what they hold, never by where they lie, and without hiding that they cannot be named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from rlds2reverb.episode import Array, Episode, content_digest
from rlds2reverb.formats.recordings import RecordedSource, Recording, Recordings


class InMemory(Recordings):
    """Recordings that are given."""

    def __init__(self, name: str, *recordings: Recording) -> None:
        self.name, self._recordings = name, recordings

    @property
    def count(self) -> int:
        return len(self._recordings)

    def spec(self) -> Any:
        return {}

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        return (self._recordings[number] for number in numbers)


def objects(*values: Any) -> Array:
    column = np.empty(len(values), object)
    for at, value in enumerate(values):
        column[at] = value
    return column


def episodes(name: str, *columns: Mapping[str, Array]) -> list[Any]:
    return list(RecordedSource(InMemory(name, *map(Recording, columns))))


NUMBERS = {"observation": np.arange(3.0)}


@pytest.mark.parametrize(
    ("value", "kind"), [(1, "int"), (None, "NoneType"), (np.array(b"x", object), "ndarray"), ({"a": 1}, "dict")]
)
def test_objects_without_bytes_of_their_own_are_a_fault_of_their_episode(value: Any, kind: str) -> None:
    bad = {**NUMBERS, "infos": objects(b"", value, b"x")}
    episode, good = episodes("here", bad, NUMBERS)
    assert episode.faults == (("infos", f"expected text (bytes or str) in a column of objects, got {kind}"),)
    assert not episode.columns
    assert good.id == f"content:{content_digest(NUMBERS)}"
    assert not good.faults


def test_such_an_episode_is_named_by_what_can_be_named() -> None:
    bad = {**NUMBERS, "infos": objects(b"", 1)}
    here, there = episodes("here", bad)[0], episodes("there", NUMBERS, bad)[1]
    assert here.id == there.id
    others = {**bad, "observation": np.arange(3.0) + 1}
    assert episodes("here", others)[0].id != here.id
    assert here.id != Episode(NUMBERS).id
