"""Names by content: counted, looked up, and put together from parts as one reading would."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb import episode as identity
from rlds2reverb.episode import (
    Copies,
    KnownEpisodes,
    Occurrences,
    copy_name,
    is_content,
    is_copy,
    number_of,
    repeated_ids,
)

CONTENTS = st.lists(st.sampled_from("abcdef").map(lambda one: f"content:{one}"), max_size=30)


@given(names=CONTENTS, merged_at=st.integers(1, 8))
def test_occurrences_are_counted_however_often_the_names_are_merged(names: list[str], merged_at: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identity, "_MERGED_AT", merged_at)
        occurrences, seen = Occurrences(), Counter[str]()
        for name in names:
            seen[name] += 1
            assert occurrences.count(name) == seen[name]
    assert occurrences.copies == len(names) - len(seen)


@given(st.dictionaries(st.text(st.characters(), max_size=8), st.integers(0, 2**32 - 1)), st.text(max_size=8))
def test_known_episodes_are_a_dict_that_can_be_sent(rows: dict[str, int], other: str) -> None:
    known = pickle.loads(pickle.dumps(KnownEpisodes.of(rows.items())))
    assert len(known) == len(rows)
    assert {name: known.get(name) for name in rows} == rows
    assert (other in known) == (other in rows)
    assert known.get(f"{other}|none") is None


def test_a_number_that_two_names_share_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "number_of", lambda name: 42)
    known = KnownEpisodes.of([("a", 1), ("b", 2)])
    assert [known.get(name) for name in "abc"] == [1, 2, None]


@given(CONTENTS, st.data())
def test_parts_that_count_for_themselves_come_to_the_names_of_one_reading(
    names: list[str], draw: st.DataObject
) -> None:
    cuts = sorted(draw.draw(st.sets(st.integers(0, len(names)), max_size=4)))
    parts = {at: names[start:stop] for at, (start, stop) in enumerate(zip([0, *cuts], [*cuts, len(names)]))}
    stored = {copy_name(name, number) for part in parts.values() for name, number in counted(part)}
    copies = Copies()
    order = draw.draw(st.permutations(list(parts)))
    for at in order:
        copies.take(at, [(place, number_of(name)) for place, name in enumerate(parts[at])])
    for at, found in copies.numbered().items():
        for place, number in found.items():
            name = copy_name(parts[at][place], number)
            assert name not in stored
            stored.add(name)
    assert stored == {copy_name(name, number) for name, number in counted(names)}


def counted(names: list[str]) -> list[tuple[str, int]]:
    occurrences = Occurrences()
    return [(name, occurrences.count(name)) for name in names]


def test_ids_that_callers_gave_are_no_contents() -> None:
    assert (is_content("content:ab"), is_content("mine")) == (True, False)
    assert [is_copy(name) for name in ("content:ab", "content:ab#2", "mine#2")] == [False, True, False]
    numbers = np.array([number_of(name) for name in ("content:a", "content:a", "x", "y", "x")], np.uint64)
    assert repeated_ids(numbers).tolist() == [number_of("x")]
    copies = Copies()
    assert [copies.take(part, [(0, number_of("x"))]) for part in range(2)] == [[False], [False]]
    assert copies.numbered() == {}
