"""Names of sources and destinations: what stands in them as it is meant, and what is written otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats.options import escape_text, read_options, read_path_and_options, split_options, unescape_text

PATHS = st.text(st.sampled_from("?@;|,%2C5BF40 /az") | st.characters(codec="utf-8"))


@given(path=PATHS)
def test_a_path_that_is_escaped_is_found_whatever_it_holds(path: str) -> None:
    written = escape_text(path)
    assert unescape_text(written) == path
    for behind in ("", "?", "?order=file"):
        assert split_options(written + behind) == (written, behind[1:])
    assert not set("@;|") & set(written)


@given(path=st.text(st.characters(codec="utf-8", exclude_characters="?@;|%")))
def test_a_path_without_signs_is_written_as_it_is(path: str) -> None:
    assert escape_text(path) == unescape_text(path) == path


@pytest.mark.parametrize("text", ["100%", "%20", "a%41", "%2", "%%", "50%2"])
def test_other_codes_are_none(text: str) -> None:
    assert escape_text(text) == unescape_text(text) == text


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


@pytest.mark.parametrize(
    ("text", "path", "options"),
    [
        ("./le1?fps=5,task=observation/text", "./le1", "fps=5,task=observation/text"),
        ("/to/a?id=NS/name-v0", "/to/a", "id=NS/name-v0"),
        ("C:\\to\\a?root=D:\\b", "C:\\to\\a", "root=D:\\b"),
        ("/what?/x.npz", "/what?/x.npz", ""),
        ("/what?/x.npz?order=file", "/what?/x.npz", "order=file"),
        ("/a?order=file/what?/b", "/a?order=file/what?/b", ""),
        ("/a?", "/a", ""),
    ],
)
def test_options_may_hold_separators(text: str, path: str, options: str) -> None:
    assert split_options(text) == (path, options)


def test_an_option_in_the_path_of_what_is_to_be_made_is_refused() -> None:
    known = {"fps": str, "task": str}
    assert read_path_and_options("x:a?fps=5,task=b/c", "a?fps=5,task=b/c", known, ConfigError) == (
        "a",
        {"fps": "5", "task": "b/c"},
    )
    assert read_path_and_options("x:a?b=c/d?fps=5", "a?b=c/d?fps=5", known, ConfigError)[0] == "a?b=c/d"
    for text in ("a?task=b/c?fps=5", "a?fps=5/b?/c"):
        with pytest.raises(ConfigError, match=r'the option "(task|fps)" stands in the path "a.*Write "%3F"'):
            read_path_and_options(f"x:{text}", text, known, ConfigError)
    with pytest.raises(ConfigError, match='unknown option "fsp=a/b"'):
        read_path_and_options("x:a?fsp=a/b", "a?fsp=a/b", known, ConfigError)


def _refusing(_: str) -> None:
    raise ValueError("expected something else")
