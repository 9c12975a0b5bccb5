"""Texts in one pass: exact counts of those that are kept, and a bounded number of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.look.sketches import KEPT, Chosen, Texts
from tests.support.profiles import examples


def column(texts: Sequence[object]) -> np.ndarray:
    made = np.empty(len(texts), object)
    made[:] = list(texts)
    return made


@examples(30)
@given(st.lists(st.integers(0, 2000), max_size=2000), st.integers(0, 5), st.integers(1, 4))
def test_kept_ones_have_exact_counts_in_any_order_and_any_parts(numbers: list[int], seed: int, parts: int) -> None:
    all_texts = [b"%d" % number for number in numbers]
    whole, together = Texts(seed), Texts(seed)
    whole.add(column(list(reversed(all_texts))))
    for part in range(parts):
        other = Texts(seed)
        other.add(column(all_texts[part::parts]))
        together.add_texts(other)
    counts = Counter(all_texts)
    for sketch in (whole, together):
        assert sketch.total == len(all_texts)
        assert len(sketch.kept) == min(KEPT, len(counts))
        assert all(counts[text] == count for count, text in sketch.kept.values())
    assert (whole.kept, whole.distinct) == (together.kept, together.distinct)
    assert whole.is_estimate == (len(counts) > KEPT)


def test_many_different_ones_are_estimated() -> None:
    errors = []
    for seed in range(10):
        found = Texts(seed)
        found.add(column([b"%d" % number for number in range(20_000)]))
        errors.append(found.distinct / 20_000 - 1)
    assert abs(float(np.mean(errors))) < 0.1
    assert max(map(abs, errors)) < 0.35  # over five standard errors


def test_what_is_no_text_is_counted() -> None:
    found = Texts(0)
    found.add(column([b"a", "a", 3, None, b"a" * 1000]))
    assert (found.total, found.others, found.distinct) == (3, 2, 2)
    assert found.most_frequent(1) == [(2, b"a")]
    assert max(len(text) for _, text in found.kept.values()) == 300


@examples(50)
@given(st.lists(st.text(max_size=3), unique=True, max_size=30), st.integers(0, 3), st.randoms())
def test_the_same_are_chosen_in_any_order(names: list[str], seed: int, random: object) -> None:
    def chosen(ordered: list[str]) -> list[str]:
        made = Chosen[str](4, seed)
        for name in ordered:
            if made.wants(name):
                made.add(name, name)
        return made.values()

    mixed = list(names)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert chosen(names) == chosen(mixed)
    assert len(chosen(names)) == min(4, len(names))
    first, second = Chosen[str](4, seed), Chosen[str](4, seed)
    for sketch, part in ((first, names[::2]), (second, names[1::2])):
        for name in part:
            if sketch.wants(name):
                sketch.add(name, name)
    first.add_chosen(second)
    assert first.values() == chosen(names)
