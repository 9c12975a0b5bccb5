"""The spec that several episodes agree on, against an obvious count."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import SourceError
from rlds2reverb.formats.agreement import EVERY, MOST, MOST_LOOKS, NoSpecFrom, SpecFrom, agree, look_at, spread
from rlds2reverb.formats.recordings import BrokenEpisode
from rlds2reverb.specs import ArraySpec

PATHS = ("action", "observation/a", "observation/b", "reward", "extra")
SPECS = [ArraySpec((size,), np.dtype(kind)) for size in (2, 3) for kind in ("float32", "float64")]
COLUMNS = st.dictionaries(st.sampled_from(PATHS), st.sampled_from(SPECS), min_size=1)


def told(found: Any) -> set[tuple[str, str]]:
    return {(notice.code, notice.path) for notice in found.notices}


@given(st.integers(1, 3000), st.integers(2, 20))
def test_looks_are_bounded_and_reach_both_ends(count: int, most: int) -> None:
    numbers = range(7, 7 + 3 * count, 3)
    found = spread(numbers, most)
    assert len(found) == min(count, most) == len(set(found))
    assert found == sorted(found)
    assert (found[0], found[-1]) == (numbers[0], numbers[-1])
    assert set(found) <= set(numbers)


@given(st.lists(COLUMNS, min_size=1, max_size=6))
def test_whatever_is_not_as_in_the_spec_is_told(episodes: list[dict[str, ArraySpec]]) -> None:
    looks = dict(enumerate(episodes))
    choices: tuple[SpecFrom, ...] = (EVERY, MOST, 0)
    for spec_from in choices:
        found = agree(looks, spec_from)
        for columns in episodes:
            for path in {*PATHS}:
                have, expected = columns.get(path), found.specs.get(path)
                if have != expected:
                    assert path in {notice.path for notice in found.notices}, (spec_from, path)
        if all(columns == episodes[0] for columns in episodes):
            assert (found.specs, found.notices) == (episodes[0], ())
            assert list(found.specs) == list(episodes[0])


@given(st.lists(COLUMNS, min_size=1, max_size=6))
def test_most_episodes_decide_on_a_dtype_and_the_earliest_of_a_tie(episodes: list[dict[str, ArraySpec]]) -> None:
    found = agree(dict(enumerate(episodes)), MOST)
    for path, spec in found.specs.items():
        specs = [columns[path] for columns in episodes if path in columns]
        counts = Counter(specs)
        assert spec == next(candidate for candidate in specs if counts[candidate] == max(counts.values()))


def test_a_column_that_some_lack_is_left_out_but_for_rewards_and_actions() -> None:
    number = ArraySpec((), np.dtype(np.float32))
    whole = dict.fromkeys(("observation/a", "observation/b", "action", "reward"), number)
    looks = {0: {"observation/a": number, "action": number}, 4: whole, 9: whole}
    found = agree(looks)
    assert set(found.specs) == {"observation/a", "action", "reward"}
    assert told(found) == {("left_out", "observation/b"), ("mixed_specs", "reward")}
    assert "2 of 3 episodes" in found.notices[0].text
    assert set(agree(looks, MOST).specs) == set(whole)
    assert set(agree(looks, 0).specs) == set(looks[0])


def test_episodes_without_a_common_observation_have_that_of_most() -> None:
    number = ArraySpec((), np.dtype(np.float32))
    looks = {n: {"observation/image" if n else "observation/state": number, "action": number} for n in range(4)}
    assert set(agree(looks).specs) == {"observation/image", "action"}
    plain = {0: {"observation": number, "action": number}, 1: {"observation/a": number, "action": number}}
    assert set(agree(plain).specs) == {"observation", "action"}


@pytest.mark.parametrize("at_once", [1, 4])
@pytest.mark.parametrize("broken", [range(1), range(40), range(101)])
def test_broken_episodes_are_passed_over(broken: range, at_once: int) -> None:
    def look(number: int) -> int:
        if number in broken:
            raise BrokenEpisode("", f"number {number} is broken")
        return number

    if len(broken) == 101:
        with pytest.raises(SourceError, match="number 0 is broken"):
            look_at(range(101), look, "data", at_once=at_once)
        return
    looks = look_at(range(101), look, "data", at_once=at_once)
    assert list(looks) == sorted(looks)
    assert all(number == found and number not in broken for number, found in looks.items())
    assert len(looks) <= MOST_LOOKS
    with pytest.raises(NoSpecFrom, match="spec_from=0: number 0"):
        look_at(range(101), look, "data", 0)


@given(st.integers(1, 30), st.integers(0, 40), st.integers(0, 29))
def test_any_episode_of_the_dataset_may_decide_and_no_other(count: int, spec_from: int, first: int) -> None:
    chosen = range(min(first, count - 1), count)
    if spec_from < count:
        assert spec_from in look_at(chosen, lambda number: number, "data", spec_from, count=count)
    else:
        with pytest.raises(NoSpecFrom, match=rf"data: spec_from={spec_from}: .* {count} episodes?, counted from 0"):
            look_at(chosen, lambda number: number, "data", spec_from, count=count)
