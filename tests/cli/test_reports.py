"""How a push looks, as a person reads it."""

from __future__ import annotations

import pytest

from rlds2reverb.cli.reports import print_report
from rlds2reverb.push.report import PushReport

MADE = {"a": 4000, "b": 3}


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (PushReport("s", ("a",), "v", items_made={"a": 4000}), ""),
        (PushReport("s", ("a", "b"), "v", items_made=MADE), "a 4,000, b 3"),
        (
            PushReport("s", ("a", "b"), "v", items_made=MADE, episodes_resumed=2),
            "a 4,000, b 3, those of resumed episodes included",
        ),
    ],
)
def test_what_was_made_is_no_part_of_what_was_confirmed(
    capsys: pytest.CaptureFixture[str], report: PushReport, line: str
) -> None:
    print_report(as_json=False, report=report)
    told = dict(row.split("  ", 1) for row in capsys.readouterr().out.splitlines())
    assert told["confirmed"].strip().startswith("0 items")
    assert "(" not in told["confirmed"]
    assert told.get("items made", "").strip() == line
