"""Remarks of two kinds: notes on how data are read, and advice on faults."""

from __future__ import annotations

from rlds2reverb.episode import Notice, faults, note
from rlds2reverb.prepare.findings import Findings


def test_only_advice_rejects_strictly_and_only_what_is_not_allowed() -> None:
    advice, other = Notice("lost_records", "3 are missing", 3), Notice("space", "odd", path="action")
    every = (note("last_step", "it is repeated"), advice, other)
    assert faults(every) == [advice, other]
    assert faults(every, ["space"]) == [advice]
    findings = Findings(notices=every)
    assert findings.codes() == []
    assert findings.codes(strict=True) == ["lost_records", "space"]
    assert findings.codes(strict=True, allow=["space", "lost_records"]) == []


def test_a_remark_reads_as_kind_code_column_and_text() -> None:
    assert note("last_step", "it is repeated").line == "note last_step: it is repeated"
    assert Notice("space", "odd", 1, "action").line == 'advice space: column "action": odd'
    assert note("last_step", "x").as_dict() == {
        "code": "last_step",
        "text": "x",
        "count": 1,
        "path": "",
        "is_note": True,
    }
