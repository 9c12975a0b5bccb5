"""What is kept, and what is dropped and closed."""

from __future__ import annotations

from functools import partial

import pytest

from rlds2reverb.formats.lru import LRU


def test_what_was_used_longest_ago_is_closed() -> None:
    closed: list[str] = []
    kept = LRU[int, str](2, close=closed.append)
    for number in (1, 2, 1, 3):
        assert kept.get(number, partial("file {}".format, number)) == f"file {number}"
    assert closed == ["file 2"]
    assert [number in kept for number in (1, 2, 3)] == [True, False, True]
    assert kept.get(1, lambda: "another") == "file 1"
    kept.clear()
    assert closed == ["file 2", "file 3", "file 1"] and len(kept) == 0


def test_sizes_count_and_the_last_value_always_stays() -> None:
    kept = LRU[str, bytes](10, size=len)
    for name, size in {"a": 4, "b": 4, "c": 4, "large": 100}.items():
        kept.get(name, partial(bytes, size))
        assert name in kept
        assert ("a" in kept) == (name in "ab")
    assert len(kept) == 1


def test_a_value_that_cannot_be_made_is_not_kept() -> None:
    kept = LRU[str, int](2)
    with pytest.raises(ZeroDivisionError):
        kept.get("a", lambda: 1 // 0)
    assert kept.get("a", lambda: 1) == 1
