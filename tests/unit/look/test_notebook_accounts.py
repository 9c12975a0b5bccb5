"""What is told of pushes and conversions."""

from __future__ import annotations

from rlds2reverb.conversion.report import ConvertReport, Lost
from rlds2reverb.look.notebook import convert_html, push_html
from rlds2reverb.push.report import PushReport
from tests.support.look.pages import Page
from tests.unit.look.test_notebook_showing import MOST


def names_of(html: str) -> list[str]:
    return [row[0] for row in Page(html).cells]


def test_a_push_without_incidents_is_told_in_a_few_lines() -> None:
    report = PushReport("data", ("replay",), "two_step", 3, 30, 3, 30, items_confirmed=27, items_new=27, seconds=1.0)
    assert names_of(push_html(report)) == ["source", "tables", "read", "pushed", "confirmed", "speed"]
    assert Page(push_html(report)).row("confirmed") == "27 items, 27 new"
    assert Page(push_html(report)).row("speed") == "27.0 items/s, 0.0 MB in 1.00 s"


def test_what_went_wrong_is_told() -> None:
    report = PushReport(
        "data", ("a", "b"), "two_step", 5, 50, 2, 20, rejected={"nan": 1}, stopped="the disk is full", reconnects=2
    )
    page = Page(push_html(report))
    assert "Stopped: the disk is full" in page.text
    assert [page.row(name) for name in ("rejected", "not stored", "reconnects")] == [
        "nan 1  (0 steps)",
        "2 episodes read and not confirmed, the rest of the source not read",
        "2",
    ]


def test_every_server_has_a_row() -> None:
    part = PushReport("data", ("a",), "two_step", stopped="no answer")
    page = Page(
        push_html(PushReport("data", ("a",), "two_step", servers={f"host{number}:1": part for number in range(100)}))
    )
    assert page.row("host0:1") == "0 episodes, 0 items  (missing: no answer)"
    assert "and 60 more servers" in page.text


def test_a_million_codes_are_cut_short() -> None:
    html = push_html(
        PushReport("data", ("a",), "two_step", rejected={f"code{number}": 1 for number in range(1_000_000)})
    )
    assert len(html) < MOST
    assert Page(html).row("rejected").endswith(", ...")


def test_a_conversion_tells_what_was_lost() -> None:
    report = ConvertReport(
        "data", "ted:/x", episodes_written=1, steps_written=3, verified=1, losses=(Lost("a", "no place", "path"),) * 30
    )
    page = Page(convert_html(report))
    assert page.row("written") == "1 episode, 3 steps"
    assert page.row("verified").startswith("1 episode, equal to the source")
    assert "lost: path: no place" in page.text
    assert page.text.endswith("and 10 more")
