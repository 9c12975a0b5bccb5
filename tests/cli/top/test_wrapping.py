"""Lines of texts take the cells that there are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from rlds2reverb.cli.top.help import help_lines
from rlds2reverb.cli.top.wrapping import wrapped

TEXT = st.text(st.sampled_from("ab 東é"), max_size=60)


@given(TEXT, st.integers(2, 20))
def test_no_line_is_wider_and_no_character_is_lost(text: str, width: int) -> None:
    lines = wrapped(text, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


@given(st.integers(8, 200))
def test_help_is_as_narrow_as_the_terminal(width: int) -> None:
    assert all(cell_len(line) <= width for line in help_lines(width))
