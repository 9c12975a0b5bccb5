"""The script that runs notebooks does as IPython does."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from tests.support.look.notebooks import of_cells, runner

executed, shown_by = (getattr(runner(), name) for name in ("executed", "shown_by"))


def shown(*cells: str, **changes: str) -> Any:
    return list(shown_by(executed(of_cells(*cells), changes)).values())


@pytest.mark.parametrize(
    ("code", "outputs"),
    [
        ("'a'", ["'a'"]),
        ("'a';", []),
        ("x = 'a'", []),
        ("None", []),
        ("", []),
        ("# %pip install something", []),
        ("print('a')\n'b'", ["a\n", "'b'"]),
        ("if True:\n    'a'", []),
    ],
)
def test_the_last_expression_is_shown(code: str, outputs: list[str]) -> None:
    assert shown(code) == [outputs]


def test_cells_share_their_names_and_the_last_value() -> None:
    assert shown("a = 'x'", "a", "_ + 'y'") == [[], ["'x'"], ["'xy'"]]


def test_html_is_shown_where_there_is_some() -> None:
    code = "class Shown:\n    def _repr_html_(self): return '<b>3</b>'\nShown()"
    assert shown(code) == [["<b>#</b>"]]
    (cell,) = executed(of_cells(code))["cells"]
    assert sorted(cell["outputs"][0]["data"]) == ["text/html", "text/plain"]


@pytest.mark.parametrize("number", ["7", "-1.5", "0.25", "3,412", "-9.5e-05", "1e+19", "2e7"])
def test_numbers_do_not_count(number: str) -> None:
    """Nor a comma behind one, which may be of it."""
    assert shown(f"print('{number}, {number} items (to {number})')") == [["# # items (to #)\n"]]


def test_text_of_the_code_can_be_changed_for_a_run() -> None:
    assert shown("b = 'x'\nb", x="y") == [["'y'"]]


def test_the_notebook_that_is_run_stays_as_it_is() -> None:
    notebook = of_cells("'a'")
    executed(notebook)
    assert notebook == of_cells("'a'")


def test_what_a_cell_raises_is_raised_and_names_the_cell() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        executed(of_cells("a = 1", "\na / 0"))
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.lineno, last.line) == ("<cell c1>", 2, "a / 0")
