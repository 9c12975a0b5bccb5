"""How a push looks, as a person reads it."""

from __future__ import annotations

import json

import pytest

from rlds2reverb.cli.push import print_report
from rlds2reverb.episode import Notice, note
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


def test_what_was_said_of_the_dataset_and_done_to_its_ends_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    lost = Notice("lost_records", "50 of 150 are missing", 50)
    notices = (note("last_step", "it is repeated"), lost, Notice("rounded_float64", "all", 9, "action"))
    print_report(
        as_json=False, report=PushReport("s", ("a",), "v", ends_mended=1200, ends_found_late=1, notices=notices)
    )
    *fields, first, second, third = capsys.readouterr().out.splitlines()
    told = dict(row.split("  ", 1) for row in fields)
    assert told["ends"].strip() == "1,200 last observations not as recorded"
    assert told["ends late"].strip() == "1 episode stored whose end is not its own: notice ends_found_late"
    assert first == "note last_step: it is repeated"
    assert second == "advice lost_records: 50 of 150 are missing"
    assert third == 'advice rounded_float64: column "action": all'
    print_report(as_json=True, report=PushReport("s", ("a",), "v", notices=notices))
    assert json.loads(capsys.readouterr().out)["notices"][1] == notices[1].as_dict()
