"""What is known of the ends of episodes goes to JSON and back, and a reading goes on from it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.prepare.endings import Endings, Shared, Single, endings_of, state_of, with_problems_of_ends
from rlds2reverb.prepare.problems import Problem
from tests.unit.prepare.test_endings import poisoned

ROWS = st.binary(max_size=8)
SINGLE = st.dictionaries(ROWS, st.builds(Single, st.text(), ROWS), max_size=4)
SHARED = st.dictionaries(
    ROWS,
    st.builds(Shared, st.text(), st.lists(ROWS, max_size=3).map(tuple), *(st.integers(0, 9),) * 3),
    max_size=4,
)


@given(st.builds(Endings, st.integers(0, 99), SINGLE, SHARED))
def test_what_is_known_comes_back(endings: Endings) -> None:
    found = endings_of(json.loads(json.dumps(state_of(endings))))
    assert found == endings
    assert list(found.single) == list(endings.single)  # the oldest goes first
    assert list(found.shared) == list(endings.shared)


def mixture(seed: int) -> list[Episode]:
    """Episodes that end by themselves, and others that share an end, in turns."""
    rng = np.random.default_rng(seed)
    shared, own = poisoned(rng, 6), [poisoned(rng, 1)[0] for _ in range(6)]
    mixed = [one for pair in zip(own, shared) for one in pair]
    return [replace(one, id=f"episode {number}") for number, one in enumerate(mixed)]


@given(st.integers(0, 99))
def test_a_reading_goes_on_as_if_it_had_not_stopped(seed: int) -> None:
    episodes = mixture(seed)
    seen: list[tuple[str, list[Problem]]] = []
    clear: list[tuple[int, Endings]] = []
    for one, problems in with_problems_of_ends(episodes, on_clear=lambda endings: clear.append((len(seen), endings))):
        seen.append((one.id, problems))
    assert any(problems for _, problems in seen)
    assert clear[-1][0] == len(episodes)
    for done, endings in clear:
        rest = with_problems_of_ends(episodes[done:], endings=endings_of(state_of(endings)))
        assert seen[done:] == [(one.id, problems) for one, problems in rest]
