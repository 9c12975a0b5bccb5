"""The live view, driven by textual's pilot: what matters is on it at any size, and its keys do what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("textual")

import msgspec
from textual.pilot import Pilot

from rlds2reverb.cli.top.app import TopApp
from rlds2reverb.cli.top.rows import SORTS
from rlds2reverb.cli.top.watching import Known, Watch
from rlds2reverb.transport.http import Status
from tests.unit.cli.top.made import NOW, STATUS, known, table
from tests.unit.cli.top.test_texts import HOSTILE

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

    def __init__(self, servers: tuple[Known, ...]) -> None:
        super().__init__((), 1.0, 1.0)
        self.servers = servers

    def known(self) -> tuple[Known, ...]:
        return self.servers


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


def shown(*servers: Known, size: tuple[int, int] = SMALL, keys: tuple[str, ...] = (), **options: Any) -> str:
    seen: list[str] = []

    async def drive(pilot: Pilot[int]) -> None:
        await pilot.press(*keys)
        await pilot.pause()
        seen.append(screen(pilot))

    driven(TopApp(Still(servers), **options, now=lambda: NOW), size, drive)
    return seen[0]


def line_of(text: str, begin: str) -> str:
    """The one line that begins so, but for spaces."""
    [found] = [line for line in text.splitlines() if line.lstrip().startswith(begin)]
    return found


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_table_has_its_numbers_and_its_waits_in_words(size: tuple[int, int]) -> None:
    text = shown(known(*TABLES, grown=20), size=size)
    row = line_of(text, "free").replace(" / ", "/").split()
    assert row[:7] == ["free", "50/100", "50%", "10.0", "10.0", "3/any", "-"]
    assert "inserts" in line_of(text, "blocked")
    assert "inserts: its rate limiter waits for 374 more samples before the next insert" in text
    assert "samples: blocked: 100 more inserts before sampling may go on" in text


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
    assert line_of(text, "free").split()[3:7] == ["-", "-", "3/any", "?"]  # as it was, and what is not known
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
        ("waits", ["blocked", "empty", "free"]),
    ],
)
def test_tables_are_sorted_by_a_column_from_the_largest(sort: str, expected: list[str]) -> None:
    assert order(sort) == expected
    assert order(sort, is_reverse=True) == expected[::-1]


def test_s_goes_through_all_columns_and_r_turns_the_order_round() -> None:
    async def drive(pilot: Pilot[int]) -> None:
        for sort in (*SORTS[1:], SORTS[0]):
            await pilot.press("s")
            assert f"sort: {sort}  " in screen(pilot)
        await pilot.press("r")
        assert "sort: name (reverse)" in screen(pilot)
        await pilot.press("s")
        assert f"sort: {SORTS[1]}  " in screen(pilot)

    driven(TopApp(Still((known(*TABLES),))), SMALL, drive)


def test_more_tables_than_lines_are_scrolled_through() -> None:
    async def drive(pilot: Pilot[int]) -> None:
        for key, first in [
            ("down", "table 000"), ("j", "table 001"), ("k", "table 000"), ("pagedown", "table 0"), ("home", "localhost"),
        ]:  # fmt: skip
            await pilot.press(key)
            await pilot.pause()
            assert screen(pilot).splitlines()[2].strip().startswith(first)
        await pilot.press("end")
        await pilot.pause()
        assert "table 099" in screen(pilot)
        await pilot.press("s")
        await pilot.pause()
        assert "localhost" in screen(pilot)

    driven(TopApp(Still((MANY,))), SMALL, drive)


@pytest.mark.parametrize("key", ["h", "question_mark", "escape"])
def test_the_help_tells_every_key_and_is_left_by_any_of_its_own(key: str) -> None:
    async def drive(pilot: Pilot[int]) -> None:
        await pilot.press("h")
        await pilot.pause()
        text = screen(pilot)
        assert all(word in text for word in ("quit", "sort", "reverse", "PgUp", "Home", "WAITS"))
        await pilot.press("s", key)
        await pilot.pause()
        assert "table 000" in screen(pilot)
        assert "sort: name" in screen(pilot)

    driven(TopApp(Still((MANY,))), SMALL, drive)


@pytest.mark.parametrize(("key", "ended_by"), [("q", 0), ("Q", 0), ("ctrl+c", 2)])
def test_it_ends(key: str, ended_by: int) -> None:
    async def drive(pilot: Pilot[int]) -> None:
        await pilot.press(key)

    assert driven(TopApp(Still((known(),))), SMALL, drive).return_value == ended_by


def test_what_is_news_is_drawn() -> None:
    watch = Still((known(*TABLES),))

    async def drive(pilot: Pilot[int]) -> None:
        watch.servers = (known(table("another")),)
        watch.on_change()
        await pilot.pause()
        assert "another" in screen(pilot)

    driven(TopApp(watch), SMALL, drive)


def test_a_failure_of_the_watch_ends_it() -> None:
    class Failing(Still):
        def known(self) -> tuple[Known, ...]:
            raise KeyError("bug")

    async def drive(_: Pilot[int]) -> None:
        return

    assert isinstance(driven(TopApp(Failing(())), SMALL, drive).failure, KeyError)


def test_colors_mark_who_waits_and_who_is_gone() -> None:
    def styles(server: Known) -> str:
        seen: list[Any] = []

        async def drive(pilot: Pilot[int]) -> None:
            strips = pilot.app.screen._compositor.render_strips()
            seen.extend(
                f"{segment.text} {segment.style}" for strip in strips for segment in strip if segment.text.strip()
            )

        driven(TopApp(Still((server,))), SMALL, drive)
        return "\n".join(seen)

    alive, gone = styles(known(*TABLES)), styles(known(*TABLES, problem="gone"))
    assert "green" in alive
    assert "yellow" in alive
    assert "yellow" not in gone
    assert "red" in gone
