"""Keys as terminals send them, and what they change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.cli.top.keys import Choice, keys_of, pressed
from rlds2reverb.cli.top.rows import SORTS

SENT = {
    b"q": "q", b"?": "?", b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1b[5~": "page up",
    b"\x1b[6~": "page down", b"\x1b[H": "home", b"\x1b[1~": "home", b"\x1b[F": "end", b"\x1bOF": "end",
}  # fmt: skip
KEY = st.sampled_from([*SENT.values(), "s", "r", "h", "j", "k", " ", "\x1b", "x"])


@pytest.mark.parametrize(("data", "key"), SENT.items())
def test_a_key_is_known_by_what_is_sent_for_it(data: bytes, key: str) -> None:
    assert keys_of(data) == ([key], b"")


@given(st.lists(st.sampled_from(list(SENT))), st.data())
def test_keys_may_come_in_pieces(sent: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(sent)
    cut = data.draw(st.integers(0, len(whole)))
    first, left = keys_of(whole[:cut])
    second, nothing = keys_of(left + whole[cut:])
    assert first + second == [SENT[one] for one in sent]
    assert nothing == b""


@given(st.binary())
def test_any_bytes_are_keys_or_nothing(data: bytes) -> None:
    keys, left = keys_of(data)
    assert data.endswith(left)
    assert all(keys)


def test_what_is_not_known_is_passed_over() -> None:
    assert keys_of(b"\x1b[99;2uq\xc3\xa9") == (["q"], b"")


def test_the_key_escape_waits_for_what_may_follow() -> None:
    assert keys_of(b"\x1b") == ([], b"\x1b")


@given(st.lists(KEY), st.integers(0, 100), st.integers(1, 50))
def test_whatever_is_pressed_the_view_shows_lines_that_there_are(keys: list[str], lines: int, room: int) -> None:
    choice: Choice | None = Choice()
    for key in keys:
        if choice is None:
            break
        choice = pressed(choice, key, lines, room)
        if choice is not None:
            assert choice.sort in SORTS
            assert 0 <= choice.first <= max(0, lines - room)


def test_q_ends() -> None:
    assert pressed(Choice(), "q", 5, 5) is None
    assert pressed(Choice(helps=True), "q", 5, 5) is None


def test_s_goes_through_all_columns_and_begins_again() -> None:
    seen = [Choice()]
    for _ in SORTS:
        after = pressed(seen[-1], "s", 5, 5)
        assert after is not None
        seen.append(after)
    assert [one.sort for one in seen] == [*SORTS, SORTS[0]]


def test_r_turns_the_order_round_and_s_puts_it_back() -> None:
    turned = pressed(Choice(), "r", 5, 5)
    assert turned == Choice(is_reverse=True)
    assert pressed(turned, "s", 5, 5) == Choice(sort=SORTS[1])


@pytest.mark.parametrize("key", ["h", "?", "\x1b"])
def test_help_is_left_by_any_of_its_keys(key: str) -> None:
    assert pressed(Choice(first=3), "h", 50, 5) == Choice(helps=True)
    assert pressed(Choice(helps=True, first=2), key, 50, 5) == Choice()


def test_lines_pages_and_ends() -> None:
    first = 0
    for key, after in [("down", 1), ("page down", 10), ("up", 9), ("page up", 0), ("end", 90), ("home", 0)]:
        choice = pressed(Choice(first=first), key, 100, 10)
        assert choice is not None
        assert choice.first == after, key
        first = after
