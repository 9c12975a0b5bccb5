"""Names of recorded sources, taken apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats.options import whole_number, words
from rlds2reverb.formats.recordings import parse_source_name

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
