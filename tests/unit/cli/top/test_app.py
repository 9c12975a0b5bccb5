"""The live view, driven by textual's pilot: what matters is on it at any size, and its keys do what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("textual")

import msgspec
import numpy as np
from textual.pilot import Pilot
from textual.widgets import DataTable

from rlds2reverb.cli.top.app import TopApp
from rlds2reverb.cli.top.rows import SORTS
from rlds2reverb.cli.top.watching import Moment, Watch, WatchedServer
from rlds2reverb.specs import ArraySpec
from rlds2reverb.transport.http import Status
from tests.support.cli.top_status import NOW, STATUS, known, table
from tests.unit.cli.top.test_rows_texts import HOSTILE

SMALL, LARGE, TINY = (80, 24), (160, 50), (20, 5)
LIMITED: dict[str, Any] = {"samples_per_insert": 4.0, "min_diff": -10.0, "max_diff": 10.0}
TABLES = (
    table("free", size=50, calls=(50, 150)),
    table("blocked", calls=(100, 20), **LIMITED),
    table("empty", size=0, calls=(0, 0), min_size_to_sample=100),
)
MANY = known(*(table(f"table {number:03}") for number in range(100)))


class Still(Watch):
    """Knows what it was given."""

    def __init__(self, servers: tuple[WatchedServer, ...]) -> None:
        super().__init__((), 1.0, 1.0)
        self.held = servers

    def servers(self) -> tuple[WatchedServer, ...]:
        return self.held


def read(document: Any) -> Status:
    return msgspec.convert(document, Status)


SERVICE: dict[str, Any] = {"url": "http://a:80", "status": read(STATUS), "status_at": NOW}


def screen(pilot: Pilot[int]) -> str:
    """What stands on it, line by line."""
    compositor = pilot.app.screen._compositor
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in compositor.render_strips())


def driven(app: TopApp, size: tuple[int, int], drive: Callable[[Pilot[int]], Awaitable[None]]) -> TopApp:
    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await drive(pilot)

    asyncio.run(run())
    return app


def shown(*servers: WatchedServer, size: tuple[int, int] = SMALL, keys: tuple[str, ...] = (), **options: Any) -> str:
    seen: list[str] = []

    async def drive(pilot: Pilot[int]) -> None:
        await pilot.press(*keys)
        await pilot.pause()
        seen.append(screen(pilot))

    app = driven(TopApp(Still(servers), **options, now=lambda: NOW), size, drive)
    if app.failure is not None:
        raise app.failure
    return seen[0]


def line_of(text: str, begin: str) -> str:
    """The one line that begins so, but for spaces."""
    [found] = [line for line in text.splitlines() if line.lstrip().startswith(begin)]
    return found


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_table_has_its_numbers_and_its_waits_in_words(size: tuple[int, int]) -> None:
    text = shown(known(*TABLES, grown=20), size=size)
    row = [word for word in line_of(text, "free").replace(" / ", "/").split() if not set(word) & set("▁█░")]
    assert row[:7] == ["free", "50/100", "50%", "10.0", "10.0", "3/any", "-"]
    assert ("█████░░░░░" if size == LARGE else "██░░░") in line_of(text, "free")
    assert "inserts" in line_of(text, "blocked")
    assert line_of(text, "table ").strip() == 'table "blocked": inserting waits for 374 more samples'
    assert "sampling waits for 100 more inserts" not in text  # of a table that is just empty
    assert line_of(text, "empty").split()[-1] == "empty"


def test_a_wide_terminal_has_all_digits() -> None:
    big = replace(table("big"), current_size=1_234_567, max_size=2_000_000)
    assert "1.23M/2.00M" in shown(known(big), size=SMALL)
    assert "1,234,567 / 2,000,000" in shown(known(big), size=LARGE)


def test_a_tiny_terminal_keeps_names_and_the_most_telling_rate() -> None:
    text = shown(known(*TABLES, grown=20), size=TINY, keys=("end",))
    assert text.splitlines()[1].split() == ["TABLE", "INSERTS/S"]
    text = shown(known(TABLES[0], grown=20, name="a"), size=(20, 20))
    assert line_of(text, "free").split()[:2] == ["free", "10.0"]


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_memory_and_the_last_checkpoint_are_told(size: tuple[int, int]) -> None:
    text = " ".join(shown(known(**SERVICE), size=size).split())
    assert "up 2 h 0 min, memory 1.23 GB, checkpoint 42 (5.00 MB) 5 min ago" in text


def test_where_http_is_not_known_that_is_told() -> None:
    assert "memory, checkpoints: not known (no --http)" in shown(known())


def test_a_checkpoint_that_is_written_or_failed_is_told() -> None:
    part = STATUS["checkpoints"]
    writing = read({**STATUS, "checkpoints": {**part, "writing_since": NOW - 7}})
    assert "writing a checkpoint for 7 s" in shown(known(**{**SERVICE, "status": writing}), size=LARGE)
    failed = read(
        {**STATUS, "checkpoints": {**part, "last": None, "failures": 2, "last_error": "disk\nis \x1b[2J full"}}
    )
    text = shown(known(**{**SERVICE, "status": failed}))
    assert "no checkpoint yet" in text
    assert "checkpoints (2 failures): disk is \\x1b[2J full" in text


@pytest.mark.parametrize("problem", ["http://a:80: no answer (timed out)", ""])
@pytest.mark.parametrize(("seconds", "age"), [(10, "10 s"), (60, "1 min"), (7200, "2 h 0 min")])
def test_no_clock_of_a_server_goes_on_after_its_last_answer(seconds: int, age: str, problem: str) -> None:
    """Without a problem the next question is not answered yet, or not asked: the interval may be an hour."""
    old = {"status_at": NOW - seconds, "status_problem": problem}
    text = shown(known(**{**SERVICE, **old}), size=LARGE)
    assert f"{age} ago: up 2 h 0 min, memory 1.23 GB, checkpoint 42 (5.00 MB) 5 min ago" in text
    assert problem in text


def test_an_answer_that_just_came_has_no_age() -> None:
    assert "ago: up" not in shown(known(**{**SERVICE, "status_at": NOW - 2}))


def test_a_server_that_is_gone_is_shown_with_since_when_and_why() -> None:
    reason = "server localhost:8000: nothing listens there (connection refused)"
    text = shown(known(*TABLES, grown=20, problem=reason, answered_at=NOW - 90))
    assert "no answer since" in text
    assert "for 1 min" in text
    assert reason in text
    assert line_of(text, "free").split()[4:8] == ["-", "-", "3/any", "?"]  # as it was, and what is not known
    assert "1 server (1 silent)" in text


def test_a_server_that_never_answered_says_so() -> None:
    assert "(it never did)" in shown(known(problem="refused", answered_at=None))
    assert "asked, no answer yet" in shown(known(answered_at=None, history=()))


def test_a_question_that_waits_long_is_told() -> None:
    assert "no answer yet to a question of 8 s ago" in shown(known(asked_at=NOW - 8))
    assert "no answer yet" not in shown(known(asked_at=NOW - 1))


def test_a_restart_is_told_for_a_while() -> None:
    assert "restarted at" in shown(known(restarted_at=NOW - 60))
    assert "restarted" not in shown(known(restarted_at=NOW - 3600))


def test_rates_of_all_servers_are_added_in_the_title() -> None:
    title = shown(known(*TABLES[:2], grown=20), known(TABLES[0], grown=10, name="b:1"), size=LARGE).splitlines()[0]
    assert "25.0 inserts/s" in title
    assert "2 servers" in title
    assert "3 tables" in title


@pytest.mark.parametrize("size", [SMALL, LARGE, TINY, (1, 1)])
def test_whatever_servers_say_nothing_breaks_the_view(size: tuple[int, int]) -> None:
    names = [*HOSTILE, "[bold]", "東京" * 30, "a" * 500, "e\u0301" * 300]
    tables = (replace(TABLES[number % 3], name=name) for number, name in enumerate(names))
    text = shown(known(*tables, name=HOSTILE[0], problem="[red]no\x1b[2J answer", **SERVICE), size=size)
    assert all(line.isprintable() for line in text.splitlines())


def order(sort: str, is_reverse: bool = False) -> list[str]:
    text = shown(known(*TABLES, grown=20), sort=sort, is_reverse=is_reverse)
    found = [line.split()[0] for line in text.splitlines() if line.startswith("  ") and line.strip()]
    return [name for name in found if name in ("blocked", "empty", "free")]


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("name", ["blocked", "empty", "free"]),
        ("items", ["free", "blocked", "empty"]),
        ("full", ["free", "blocked", "empty"]),
        ("ratio", ["free", "blocked", "empty"]),
        ("waits", ["blocked", "free", "empty"]),
    ],
)
def test_tables_are_sorted_by_a_column_from_the_largest(sort: str, expected: list[str]) -> None:
    assert order(sort) == expected
    assert order(sort, is_reverse=True) == expected[::-1]


def test_s_goes_through_all_columns_and_r_turns_the_order_round() -> None:
    async def drive(pilot: Pilot[int]) -> None:
        for sort in SORTS:
            await pilot.press("s")
            assert f"sort: {sort}  " in screen(pilot)
        await pilot.press("r")
        assert "sort: waits (reverse)" in screen(pilot)
        await pilot.press("s")
        assert f"sort: {SORTS[0]}  " in screen(pilot)

    assert SORTS[-1] == "waits"
    driven(TopApp(Still((known(*TABLES),))), SMALL, drive)


def test_blocked_tables_come_first_and_numbers_in_names_count() -> None:
    tables = (
        *(table(f"t{number}") for number in range(1, 13)),
        *(replace(info, name=f"z {info.name}") for info in TABLES),
    )
    names = [line.split("  ")[1] for line in shown(known(*tables)).splitlines() if line[:3] in ("  t", "  z")]
    assert names == ["z blocked", *(f"t{number}" for number in range(1, 13)), "z free", "z empty"]


def marked(pilot: Pilot[int]) -> str:
    """The name in the row that is marked, which is on the screen in reverse."""
    table = pilot.app.query_one(DataTable)
    name = str(table.get_row_at(table.cursor_row)[0])
    strips = pilot.app.screen._compositor.render_strips()
    [line] = [strip for strip in strips if "".join(segment.text for segment in strip).startswith(name[:11])]
    first = next(segment for segment in line if segment.text.strip())
    assert first.style is not None
    assert first.style.reverse
    return name.strip()


def test_more_tables_than_lines_are_moved_through() -> None:
    async def drive(pilot: Pilot[int]) -> None:
        assert marked(pilot).startswith("▾ localhost")
        for key, first in [
            ("down", "table 000"), ("j", "table 001"), ("k", "table 000"), ("pagedown", "table 020"), ("pageup", "table 000"),
            ("end", "table 099"), ("up", "table 098"), ("home", "▾ localhost"), ("up", "▾ localhost"),
        ]:  # fmt: skip
            await pilot.press(key)
            await pilot.pause()
            assert marked(pilot).startswith(first)
        await pilot.press("end")
        await pilot.pause()
        assert "▾ localhost" not in screen(pilot)
        await pilot.press("s")
        await pilot.pause()
        assert "▾ localhost" in screen(pilot)

    driven(TopApp(Still((MANY,))), SMALL, drive)


def test_what_is_marked_stays_marked_in_another_order() -> None:
    async def drive(pilot: Pilot[int]) -> None:
        await pilot.press("end", "r")
        await pilot.pause()
        assert marked(pilot).startswith("empty")

    driven(TopApp(Still((known(*TABLES),))), LARGE, drive)


def test_enter_shows_the_details_of_a_table_and_is_left_by_escape() -> None:
    watch = Still((known(*TABLES, grown=20),))

    async def drive(pilot: Pilot[int]) -> None:
        await pilot.press("down", "enter")
        await pilot.pause()
        text = screen(pilot)
        assert "blocked  on localhost:8000" in text
        assert "10 of 100, 1 episode" in text
        assert "sampler uniform, remover fifo" in text
        assert "░ 10.0%" in text
        assert "no signature" in text
        assert line_of(text, "next").split(None, 1)[1].strip() == (
            "rlds2reverb sample --server localhost:8000 --table blocked"
        )
        assert "free" not in text
        await pilot.press("s", "escape")  # no order to change
        await pilot.pause()
        assert "free" in screen(pilot)
        assert "sort: waits" in screen(pilot)
        await pilot.press("enter")
        watch.held = (known(TABLES[0], problem="gone", answered_at=NOW - 90),)
        watch.on_change()
        await pilot.pause()
        assert 'the table "blocked" is gone' in screen(pilot)

    driven(TopApp(watch, now=lambda: NOW), LARGE, drive)


def test_details_have_the_signature_and_say_when_they_are_old() -> None:
    one = table("replay", signature={"observation": ArraySpec((4,), np.dtype(np.float32))})
    text = shown(known(one, problem="refused", answered_at=NOW - 90), keys=("down", "enter"))
    assert "for 1 min; all below is from before" in text
    assert "observation  float32[4]" in text
    assert "rlds2reverb sample --server localhost:8000 --table replay" in text


def test_details_propose_no_sample_that_takes_an_item_of_a_queue() -> None:
    text = shown(known(table("queue", max_times_sampled=1)), keys=("down", "enter"))
    assert "each item sampled at most 1 time" in text
    assert "next" not in text


def test_a_slash_filters_by_letters_of_names_until_escape() -> None:
    servers = (known(*TABLES), known(table("replay"), table("freezer"), name="Free:1"), known(table("x"), name="b:1"))

    async def drive(pilot: Pilot[int]) -> None:
        await pilot.press("slash", *"FRE")
        await pilot.pause()
        text = screen(pilot)
        assert all(name in text for name in ("free", "Free:1", "replay", "freezer"))  # all tables of that server
        assert "blocked" not in text
        assert "b:1" not in text
        await pilot.press("enter", "down", "enter")
        await pilot.pause()
        assert "free  on localhost:8000" in screen(pilot)
        await pilot.press("escape")
        await pilot.pause()
        assert 'filter "FRE"' in screen(pilot)
        await pilot.press("escape")
        await pilot.pause()
        assert "b:1" in screen(pilot)

    driven(TopApp(Still(servers)), LARGE, drive)


def test_letters_that_are_keys_elsewhere_are_typed_into_the_filter() -> None:
    async def drive(pilot: Pilot[int]) -> None:
        await pilot.press("slash", *"qhs")
        await pilot.pause()
        assert 'filter "qhs"' in screen(pilot)

    assert driven(TopApp(Still((known(*TABLES),))), SMALL, drive).failure is None


def test_enter_folds_a_server_and_f_all_of_them() -> None:
    async def drive(pilot: Pilot[int]) -> None:
        await pilot.press("enter")
        await pilot.pause()
        assert "localhost:8000  3 tables, 1 blocked; answers" in screen(pilot)
        assert "▸ localhost:8000" in screen(pilot)
        assert "free" not in screen(pilot)
        assert "other" in screen(pilot)
        await pilot.press("enter")
        await pilot.pause()
        assert "free" in screen(pilot)
        await pilot.press("f")
        await pilot.pause()
        assert "▸ b:1" in screen(pilot)
        assert "b:1  1 table; answers" in screen(pilot)
        assert "other" not in screen(pilot)
        await pilot.press("f")
        await pilot.pause()
        assert "other" in screen(pilot)

    driven(TopApp(Still((known(*TABLES), known(table("other"), name="b:1")))), LARGE, drive)


def test_a_wide_terminal_has_trends() -> None:
    past = tuple(Moment(2.0 * number, 1, {"free": (number * number, 0)}) for number in range(9))
    assert "  ▂▃▄▅▆▇██ " in shown(known(TABLES[0], past=past), size=LARGE)
    assert "▂" not in shown(known(TABLES[0], past=past))


UPLOAD = {
    "place": "gs://b/robots",
    "generations": 3,
    "sending": None,
    "behind_seconds": 0.0,
    "failures": 0,
    "last_error": "",
}


@pytest.mark.parametrize(
    ("upload", "said"),
    [
        ({**UPLOAD, "waiting": 0}, "uploads to gs://b/robots: up to date, 3 checkpoints there"),
        (
            {**UPLOAD, "sending": 43, "waiting": 2, "behind_seconds": 330.0},
            "uploads to gs://b/robots: sending checkpoint 43, 2 checkpoints waiting, 5 min behind",
        ),
        ({**UPLOAD, "behind_seconds": 330.0}, "uploads to gs://b/robots: 5 min behind"),  # of a server that counts none
        ({**UPLOAD, "generations": None}, "uploads to gs://b/robots: not looked at yet"),
        ({**UPLOAD, "failures": 2, "last_error": "access\nrefused"}, "uploads (2 failures): access refused"),
    ],
)
def test_uploads_of_checkpoints_are_told(upload: dict[str, Any], said: str) -> None:
    status = read({**STATUS, "checkpoints": {**STATUS["checkpoints"], "upload": upload}})
    assert said in shown(known(**{**SERVICE, "status": status}), size=LARGE)
    assert said in " ".join(shown(known(**{**SERVICE, "status": status})).split())


def test_nothing_is_told_of_uploads_where_none_are_configured() -> None:
    assert "uploads" not in shown(known(**SERVICE), size=LARGE)


@pytest.mark.parametrize("key", ["h", "question_mark", "escape"])
def test_the_help_tells_every_key_and_is_left_by_any_of_its_own(key: str) -> None:
    async def drive(pilot: Pilot[int]) -> None:
        await pilot.press("h")
        await pilot.pause()
        text = screen(pilot)
        assert all(word in text for word in ("quit", "sort", "reverse", "fold", "Enter", "PgUp", "Home"))
        await pilot.press("s", key)
        await pilot.pause()
        assert "table 000" in screen(pilot)
        assert "sort: waits" in screen(pilot)

    driven(TopApp(Still((MANY,))), SMALL, drive)


@pytest.mark.parametrize(("key", "ended_by"), [("q", 0), ("Q", 0), ("ctrl+c", 2)])
def test_it_ends(key: str, ended_by: int) -> None:
    async def drive(pilot: Pilot[int]) -> None:
        await pilot.press(key)

    assert driven(TopApp(Still((known(),))), SMALL, drive).return_value == ended_by


def test_what_is_news_is_drawn() -> None:
    watch = Still((known(*TABLES),))

    async def drive(pilot: Pilot[int]) -> None:
        watch.held = (known(table("another")),)
        watch.on_change()
        await pilot.pause()
        assert "another" in screen(pilot)

    driven(TopApp(watch), SMALL, drive)


def test_a_failure_of_the_watch_ends_it() -> None:
    class Failing(Still):
        def servers(self) -> tuple[WatchedServer, ...]:
            raise KeyError("bug")

    async def drive(_: Pilot[int]) -> None:
        return

    assert isinstance(driven(TopApp(Failing(())), SMALL, drive).failure, KeyError)


def test_colors_mark_who_waits_and_who_is_gone() -> None:
    red, green, yellow = 1, 2, 3

    def colors(server: WatchedServer) -> set[int | None]:
        seen: set[int | None] = set()

        async def drive(pilot: Pilot[int]) -> None:
            for strip in pilot.app.screen._compositor.render_strips():
                styles = [segment.style for segment in strip if segment.text.strip()]
                seen.update(style.color.number for style in styles if style and style.color)

        driven(TopApp(Still((server,))), SMALL, drive)
        return seen

    assert {green, yellow} <= colors(known(*TABLES))
    gone = colors(known(*TABLES, problem="gone"))
    assert red in gone
    assert yellow not in gone
