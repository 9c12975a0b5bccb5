"""A few words of any array, and never a pass over a large one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from rlds2reverb.episode import Episode
from rlds2reverb.look.notebook import episode_html, values_of
from tests.support.look.pages import Page
from tests.support.strategies import array, dtypes, shapes


def told(value: Any) -> str:
    return Page(values_of(value)).text


@given(dtypes(), shapes())
def test_every_dtype_that_is_stored_can_be_told(dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    value = array(np.random.default_rng(0), dtype, shape)
    assert "cannot be shown" not in told(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.arange(6), "0, 1, 2, 3, ... (0 to 5)"),
        (np.array([np.nan, 1.0]), "nan, 1 (1 to 1) (1 value not finite)"),
        (np.zeros((0, 3)), "no values"),
        (b"text", '"text" (4 bytes)'),
        (3, "3"),
        (np.array([{}, 1], object), "objects that are no text: dict, int"),
        (None, "objects that are no text: NoneType"),
        (np.zeros(2, [("a", "f4"), ("b", "f4")]), "cannot be shown: TypeError"),
    ],
)
def test_a_few_words(value: Any, expected: str) -> None:
    assert told(value).startswith(expected)


def test_of_a_large_array_only_the_beginning_is_looked_at() -> None:
    assert told(np.broadcast_to(np.float32(1), (10**12, 3))) == "first 100,000 values: 1, 1, 1, 1, ... (1 to 1)"


def test_of_many_texts_only_the_first_ones_are_looked_at() -> None:
    texts = np.full(1_001, b"a", object)
    texts[-1] = object()
    assert told(texts).startswith('first 1,000 values: "a", "a", "a", "a", ... (1,000 bytes)')


def test_metadata_is_told_on_one_line_and_not_all_of_it() -> None:
    page = Page(episode_html(Episode({}, {f"name{number}": number for number in range(1000)}, id="e")))
    assert page.row("metadata").startswith("name0: 0; name1: 1; ")
    assert page.row("metadata").endswith("; and 980 more")
