"""Which episodes the options choose; tests/systems/storage/test_minari.py compares draws with Minari's own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Array, Episode, content_digest
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.options import read_options, whole_number, words
from rlds2reverb.formats.recordings import (
    CHOICES,
    EpisodeChoice,
    RecordedSource,
    Recording,
    Recordings,
    parse_source_name,
)

SEED = 1 << 63


class Known(Recordings):
    """Ten episodes, or a number that only reading tells."""

    name = "known"
    count: int | None = None

    def __init__(self, count: int | None = 10) -> None:
        self.count = count

    def spec(self) -> Any:
        return {}

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        return iter(())


class Telling(Known):
    def metadata_of(self, number: int) -> Mapping[str, Any]:
        known = {
            "length": np.int64(number),
            "seed": np.uint64(SEED + number),
            "task": b"lift" if number % 2 else b"push",
        }
        return {**known, "rare": 1.5} if number == 3 else known


def chosen(options: str, recordings: Any = None) -> list[int] | None:
    parsed = EpisodeChoice.take_from(read_options("known", options, CHOICES))
    found = parsed.numbers(recordings or Telling())
    return None if found is None else list(found)


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ("", None),
        ("episodes=:", list(range(10))),
        ("episodes=2:4", [2, 3]),
        ("episodes=8:", [8, 9]),
        ("episodes=:2", [0, 1]),
        ("episodes=-2:", [8, 9]),
        ("episodes=:-8", [0, 1]),
        ("episodes=4", [4]),
        ("episodes=5:50", [5, 6, 7, 8, 9]),
        ("where=length>7", [8, 9]),
        ("where=length<1.5", [0, 1]),
        ("where=length=4", [4]),
        ("where=length=4.0", [4]),
        ("where=task=push,episodes=1:3", [2, 4]),
        ("where=rare=1.5", [3]),
        (f"where=seed={SEED + 1}", [1]),
        (f"where=seed>{SEED + 8}", [9]),
        ("sample=10,seed=3", list(range(10))),
        ("split=10", list(range(10))),
    ],
)
def test_the_episodes_that_options_choose(options: str, numbers: list[int] | None) -> None:
    assert chosen(options) == numbers


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("episodes=", "expected A:B"),
        ("episodes=a:b", "expected A:B"),
        ("episodes=1:2:3", "expected A:B"),
        ("episodes=-1", "expected A:B"),
        ("episodes=10", "episodes=10: there are 10, numbered from 0"),
        ("episodes=1" + "0" * 30, "expected A:B"),
        ("sample=11", "a sample of 11 episodes: there are 10"),
        ("sample=-1", "expected a whole number"),
        ("sample=2.5", "expected a whole number"),
        ("sample=\u0663", "expected a whole number"),
        ("split=6+5", "11 episodes; there are 10"),
        ("split=", "expected a whole number"),
        ("split=5+", "expected a whole number"),
        ("split=5+5,part=2", "it has 2 parts, numbered from 0"),
        ("sample=1,split=1", "do not go together"),
        ("part=0", "part goes with split only"),
        ("sample=1,part=0", "part goes with split only"),
        ("seed=1", "seed goes with sample or split only"),
        ("episodes=1:,seed=1", "seed goes with sample or split only"),
        ("where=length", "expected KEY=VALUE"),
        ("where==4", "expected KEY=VALUE"),
        ("where=task<push", "expected a number behind <"),
        ("where=lenght=4", 'no episode has metadata "lenght"; there are: length, rare, seed, task'),
        ("sample=1,sample=1", "is given twice"),
        ("samples=1", 'did you mean "sample=1"?'),
        ("episodes=4:2", "no episode is chosen; there are 10 episodes"),
        ("where=task=Push", "no episode is chosen"),
        ("sample=0", "no episode is chosen"),
        ("split=0+10,part=0", "no episode is chosen"),
        ("=", "unknown option"),
    ],
)
def test_nonsense_is_refused(options: str, says: str) -> None:
    with pytest.raises(SourceError, match=re.escape(says)):
        chosen(options)


def test_without_metadata_there_is_no_where() -> None:
    with pytest.raises(SourceError, match="no metadata that is known before they are read"):
        chosen("where=length=1", Known())


@pytest.mark.parametrize("options", ["sample=1", "split=1", "episodes=-1:", "episodes=:-1", "where=length=1"])
def test_what_needs_the_number_of_episodes_is_refused_where_only_reading_tells(options: str) -> None:
    with pytest.raises(SourceError, match="the number of episodes is unknown without reading them"):
        chosen(options, Known(None))
    assert chosen("episodes=2:4", Known(None)) == [2, 3]
    assert chosen("episodes=7", Known(None)) == [7]


@given(st.integers(2, 60), st.integers(0, 2**59), st.data())
def test_draws_are_those_of_numpys_generator_in_the_order_of_the_dataset(
    count: int, seed: int, data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, count - 1))
    rng = np.random.default_rng(seed)
    wanted = sorted(rng.choice(np.arange(count), size, replace=False).tolist())
    assert chosen(f"sample={size},seed={seed}", Known(count)) == wanted
    order = np.random.default_rng(seed).permutation(np.arange(count))
    split = f"split={size}+{count - size},seed={seed}"
    parts = [chosen(f"{split},part={part}", Known(count)) for part in (0, 1)]
    assert parts == [sorted(order[:size].tolist()), sorted(order[size:].tolist())]


@given(st.text(max_size=12), st.sampled_from(list(CHOICES)))
def test_any_text_is_a_choice_or_an_error_of_ours(text: str, option: str) -> None:
    try:
        found = chosen(f"{option}={text}")
    except SourceError:
        return
    assert found is None or found == sorted(set(found))


# Names of recorded sources, taken apart.

KNOWN = {"chunk": whole_number, "tail": words("keep", "drop")}


def test_a_name_is_taken_apart() -> None:
    found = parse_source_name("x", "a/b?chunk=2,episodes=1:3,tail=drop", KNOWN)
    assert (found.name, found.path) == ("x:a/b?chunk=2,episodes=1:3,tail=drop", Path("a/b"))
    assert found.options == {"chunk": 2, "tail": "drop"}
    assert found.choice.episodes == slice(1, 3)
    assert found.rename_options({"tail": "keeps"}) == {"chunk": 2, "keeps": "drop"}


def test_the_home_folder_is_found() -> None:
    assert parse_source_name("x", "~/a", KNOWN).path == Path("~/a").expanduser()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("tails=keep", 'unknown option "tails=keep"; there are: chunk, tail, episodes'),
        ("tail=cut", '"tail=cut": expected keep or drop'),
        ("chunk=1,chunk=1", "given twice"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: str, said: str) -> None:
    with pytest.raises(SourceError, match=said):
        parse_source_name("x", f"a?{options}", KNOWN)


# How recordings get their names: by what they hold, never by where they lie, and without hiding that they cannot be named.


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
