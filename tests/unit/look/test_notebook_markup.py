"""Text stays text, whatever it is, and nothing grows without bound."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.look.html import Html
from rlds2reverb.look.notebook import (
    MOST_CARD,
    MOST_CHARACTERS,
    MOST_ROWS,
    card,
    fields,
    guard,
    list_values,
    rows,
    text,
)
from tests.support.look.pages import Page

any_text = st.text(st.characters(exclude_categories=()), max_size=400)  # surrogates, controls and all


@given(any_text)
def test_a_text_is_read_back_with_what_cannot_be_seen_written_out(value: str) -> None:
    html = text(value)
    html.encode("utf-8")
    shown = Page(html).text
    assert all(character == " " or unicodedata.category(character)[0] not in "CZ" for character in shown)
    if value.isprintable() and len(value) <= MOST_CHARACTERS:
        assert shown == value


def test_a_long_text_is_cut() -> None:
    assert Page(text("a" * 10**6)).text == "a" * MOST_CHARACTERS + "..."


@given(st.dictionaries(any_text, any_text, max_size=9), any_text, any_text)
def test_a_card_is_whole_whatever_it_is_told(told: dict[str, str], kind: str, name: str) -> None:
    cells = [(text(key), text(value)) for key, value in told.items()]
    made = card(
        kind,
        name,
        [
            lambda: fields({key: text(value) for key, value in told.items()}),
            lambda: rows(("a", "b"), len(cells), cells, "c"),
        ],
    )
    assert len(Page(made).cells) == 2 * len(told) + 1


def test_more_rows_than_are_shown_are_counted_and_not_made() -> None:
    made = []

    def one(number: int) -> list[Html]:
        made.append(number)
        return [text(number)]

    page = Page(rows(("n",), 10_000, map(one, range(10_000)), "column"))
    assert len(made) == MOST_ROWS
    assert page.cells[-1] == [f"and {10_000 - MOST_ROWS:,} more columns"]


def test_a_card_that_is_full_says_so() -> None:
    asked = []

    def part(number: int) -> Html:
        asked.append(number)
        return Html("a" * 70_000)

    html = card("Thing", "one", [lambda number=number: part(number) for number in range(50)])  # type: ignore[misc]
    assert asked == [0, 1, 2]
    assert len(html) < MOST_CARD
    assert Page(html).text.endswith("and more, which is too long for a notebook")


def test_a_value_that_cannot_be_made_says_why_and_the_others_stay() -> None:
    def fails() -> Html:
        raise ValueError("no <such> thing")

    page = Page(fields({"bad": fails, "good": text("yes"), "empty": Html("")}))
    assert page.cells == [["bad", "cannot be shown: ValueError: no <such> thing"], ["good", "yes"]]


def test_an_interruption_is_no_value_that_cannot_be_shown() -> None:
    def stopped() -> Html:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guard(stopped)


def test_a_list_tells_how_many_more_there_are() -> None:
    assert Page(list_values(range(12), 12, 3)).text == "0, 1, 2 and 9 more"
    assert Page(list_values(["a"], 1)).text == "a"
    assert list_values((), 0) == ""
