"""Names of sources and destinations: what stands in them as it is meant, and what is written otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import SourceError
from rlds2reverb.source_options import escaped, parted, read_options, unescaped

PATHS = st.text(st.sampled_from("?@;|,%2C5BF40 /az") | st.characters(codec="utf-8"))


@given(path=PATHS)
def test_a_path_that_is_escaped_is_found_whatever_it_holds(path: str) -> None:
    written = escaped(path)
    assert unescaped(written) == path
    for behind in ("", "?", "?order=file"):
        assert parted(written + behind) == (written, behind[1:])
    assert not set("@;|") & set(written)


@given(path=st.text(st.characters(codec="utf-8", exclude_characters="?@;|%")))
def test_a_path_without_signs_is_written_as_it_is(path: str) -> None:
    assert escaped(path) == unescaped(path) == path


@pytest.mark.parametrize("text", ["100%", "%20", "a%41", "%2", "%%", "50%2"])
def test_other_codes_are_none(text: str) -> None:
    assert escaped(text) == unescaped(text) == text


def test_values_may_hold_a_comma() -> None:
    assert read_options("x", "one=a%2Cb,two=%252c", {"one": str, "two": str}) == {"one": "a,b", "two": "%2c"}
    with pytest.raises(SourceError, match='option "one=a%2C": expected'):
        read_options("x", "one=a%2C", {"one": _refusing})


def test_a_path_with_a_sign_is_told_how_to_write(tmp_path: Path) -> None:
    path = tmp_path / "what?.npz"
    path.touch()
    with pytest.raises(
        SourceError, match=r'unknown option ".npz".*; for the path that is there write "x:.*what%3F\.npz"$'
    ):
        read_options(f"x:{path}", ".npz", {"one": str})
    with pytest.raises(SourceError, match=r"there are: one$"):
        read_options(f"x:{path}s", ".npzs", {"one": str})


def _refusing(_: str) -> None:
    raise ValueError("expected something else")
