"""Remarks of two kinds: notes on how data are read, and advice on faults. Every code is of one kind, and stands where users look for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlds2reverb.readers.lerobot.read import ODD
from rlds2reverb.readers.minari import remarks as of_minari
from rlds2reverb.remarks import Remark, faults, note
from rlds2reverb.validation import CODES
from rlds2reverb.validation.findings import Findings

ROOT = Path(__file__).parent.parent
TABLES = {"readers/minari/remarks.py": (*of_minari._TEXTS, of_minari.EPISODE_COUNT), "readers/lerobot/read.py": ODD}
"""Module -> the codes of which it makes remarks by a table."""
PAGES = {
    "readers/d4rl": "d4rl",
    "readers/ilr": "il_representations",
    "readers/lerobot": "lerobot",
    "readers/minari": "minari",
    "readers/npz": "npz",
    "readers/rllib": "rllib",
    "readers/robomimic": "robomimic",
    "readers/ted": "ted",
    "stored": "reverb",
}
"""Package -> its page."""


def made(module: Path) -> Iterator[tuple[str, bool]]:
    """(code, is a note) of every remark that a module can make."""
    for call in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("Remark", "note"):
            if call.args and isinstance(call.args[0], ast.Constant):
                yield str(call.args[0].value), call.func.id == "note"
            elif module.name != "remarks.py" or module.parent.name != "rlds2reverb":
                where = module.relative_to(ROOT / "rlds2reverb").as_posix()
                yield from ((code, False) for code in TABLES[where])


MADE = {module: kinds for module in sorted((ROOT / "rlds2reverb").rglob("*.py")) if (kinds := dict(made(module)))}


def test_many_modules_make_remarks() -> None:
    assert len(MADE) > 15


@pytest.mark.parametrize("module", MADE, ids=lambda module: module.relative_to(ROOT / "rlds2reverb").as_posix())
def test_a_remark_is_a_note_or_has_a_code_that_users_can_allow(module: Path) -> None:
    for code, is_note in MADE[module].items():
        assert re.fullmatch(r"[a-z0-9_]+", code), code
        assert is_note != (code in CODES), code
        assert is_note or CODES[code].is_of_dataset, code


@pytest.mark.parametrize(("package", "page"), PAGES.items())
def test_the_page_of_a_format_tells_its_remarks_and_their_kinds(package: str, page: str) -> None:
    wanted = {
        code: is_note
        for module, kinds in MADE.items()
        if (ROOT / "rlds2reverb" / package) in module.parents
        for code, is_note in kinds.items()
    }
    section = (ROOT / "docs" / "formats" / f"{page}.md").read_text().partition("## Remarks\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (note|advice) \| ", section, re.MULTILINE)
    assert {code: kind == "note" for codes, kind in rows for code in re.findall(r"\w+", codes)} == wanted


def test_only_advice_rejects_strictly_and_only_what_is_not_allowed() -> None:
    advice, other = Remark("lost_records", "3 are missing", 3), Remark("space", "odd", path="action")
    every = (note("last_step", "it is repeated"), advice, other)
    assert faults(every) == [advice, other]
    assert faults(every, ["space"]) == [advice]
    findings = Findings(remarks=every)
    assert findings.codes() == []
    assert findings.codes(strict=True) == ["lost_records", "space"]
    assert findings.codes(strict=True, allow=["space", "lost_records"]) == []


def test_a_remark_reads_as_kind_code_column_and_text() -> None:
    assert note("last_step", "it is repeated").line == "note last_step: it is repeated"
    assert Remark("space", "odd", 1, "action").line == 'advice space: column "action": odd'
    assert note("last_step", "x").as_dict() == {
        "code": "last_step",
        "text": "x",
        "count": 1,
        "path": "",
        "is_note": True,
    }
