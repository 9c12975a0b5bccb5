"""Runs a notebook's cells from the top to the bottom, as IPython does, and stores what they show.

`python scripts/run_notebook.py examples/quickstart.ipynb` writes the outputs into the file, unless it has them: times and samples may
differ. Jupyter is not needed: a cell's last expression is shown by its `_repr_html_`, or else by its repr.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import linecache
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
_NUMBER = re.compile(r"-?\d(?:[\d,.]|e[+-]?\d)*")

Cell = dict[str, Any]
Notebook = dict[str, Any]

_MOST_CHARACTERS = 300
"""Of a repr that stands beside HTML: what is shown is the HTML."""


def executed(notebook: Notebook, changes: Mapping[str, str] = {}) -> Notebook:
    """The notebook with the outputs of a run, and nothing but these of other runs.

    Args:
      notebook: as its JSON says; it stays as it is.
      changes: text of the code -> what stands there for this run, such as an address.

    Raises:
      Exception: what a cell raises; its traceback names the cell.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    cells: list[Cell] = []
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            code = "".join(cell["source"])
            for old, new in changes.items():
                code = code.replace(old, new)
            cell = {**cell, "execution_count": count, "outputs": _outputs(code, names, count, cell["id"])}
        cells.append(cell)
    return {**notebook, "cells": cells}


def text_of(notebook: Notebook) -> str:
    """The notebook as its file has it."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def shown_by(notebook: Notebook) -> dict[str, list[str]]:
    """Cell -> what it shows, with `#` for every number: equal for all runs of one code."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return {cell["id"]: [_NUMBER.sub("#", _shown(output)) for output in cell["outputs"]] for cell in cells}


def _shown(output: Cell) -> str:
    """HTML where there is some, else the text."""
    data = output.get("data", {})
    return "".join(output.get("text") or data.get("text/html") or data.get("text/plain") or ())


def _outputs(code: str, names: dict[str, Any], count: int, cell: str) -> list[Cell]:
    """Runs one cell in the namespace of all; what it printed, and what its last expression is."""
    file = f"<cell {cell}>"
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)  # for tracebacks
    tree = ast.parse(code, file)
    last = tree.body.pop() if _is_shown(tree, code) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, file, "exec"), names)  # noqa: S102 - it is a notebook of ours
        if isinstance(last, ast.Expr):
            value = names["_"] = eval(compile(ast.Expression(last.value), file, "eval"), names)  # noqa: S307
    outputs: list[Cell] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    if value is not None:
        outputs.append(
            {"data": _data(value), "execution_count": count, "metadata": {}, "output_type": "execute_result"}
        )
    return outputs


def _is_shown(tree: ast.Module, code: str) -> bool:
    """Whether the last statement is an expression, and no semicolon behind it keeps it quiet."""
    return bool(tree.body) and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";")


def _data(value: Any) -> dict[str, list[str]]:
    text = repr(value).replace(f"{ROOT}/", "")  # the same on any machine
    make = getattr(value, "_repr_html_", None)
    if make is None:
        return {"text/plain": _lines(text)}
    short = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
    return {"text/html": _lines(make()), "text/plain": _lines(short)}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", type=Path)
    file = parser.parse_args().notebook
    stored = json.loads(file.read_text(encoding="utf-8"))
    made = executed(stored)
    if shown_by(made) != shown_by(stored):
        file.write_text(text_of(made), encoding="utf-8")


if __name__ == "__main__":
    main()
