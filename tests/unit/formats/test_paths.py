"""Names with numbers."""

from __future__ import annotations

from rlds2reverb.formats.paths import by_number


def test_names_are_sorted_by_their_numbers() -> None:
    names = ["b1", "a10", "a-10", "10", "a-2-b", "2", "a-010", "a", ""]
    assert sorted(names, key=by_number) == ["", "2", "10", "a", "a10", "a-2-b", "a-010", "a-10", "b1"]
