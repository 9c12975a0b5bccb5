"""The view at any size: as many lines as the terminal has, none wider, and what matters is on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from rlds2reverb.cli.top.keys import Choice
from rlds2reverb.cli.top.rows import SORTS
from rlds2reverb.cli.top.service import read
from rlds2reverb.cli.top.state import Known
from rlds2reverb.cli.top.view import Screen, screen
from tests.cli.top.made import NOW, STATUS, known, plain, table
from tests.cli.top.test_texts import HOSTILE

SMALL, LARGE, TINY = (80, 24), (160, 50), (20, 5)
LIMITED: dict[str, Any] = {"samples_per_insert": 4.0, "min_diff": -10.0, "max_diff": 10.0}
TABLES = (
    table("free", size=50, calls=(50, 150)),
    table("blocked", calls=(100, 20), **LIMITED),
    table("empty", size=0, calls=(0, 0), min_size_to_sample=100),
)
SERVICE: dict[str, Any] = {"url": "http://a:80", "service": read(STATUS), "service_at": NOW}


def shown(*servers: Known, size: tuple[int, int] = SMALL, choice: Choice = Choice(), **options: Any) -> str:
    return plain(screen(servers, choice, size, NOW, **options).lines)


def line_of(text: str, begin: str) -> str:
    """The one line that begins so, but for spaces."""
    [found] = [line for line in text.splitlines() if line.lstrip().startswith(begin)]
    return found


NAMES = st.one_of(st.text(max_size=30), st.sampled_from([*HOSTILE, "東京" * 30, "a" * 500, "e\u0301" * 300, "👩‍🚀"]))
SERVERS = st.builds(
    lambda names, problem, answers, kind: known(
        *(replace(one, name=name) for name, one in zip(names, TABLES)),
        name=names[0] if names else "x",
        problem=problem,
        answered_at=NOW - 5 if answers else None,
        **kind,
    ),
    st.lists(NAMES, max_size=3, unique=True),
    st.one_of(st.just(""), NAMES),
    st.booleans(),
    st.sampled_from([{}, SERVICE, {"url": "http://x", "service_problem": "no answer " * 40}]),
)


@given(
    st.lists(SERVERS, max_size=3),
    st.builds(Choice, st.sampled_from(SORTS), st.booleans(), st.integers(0, 50), st.booleans()),
    st.tuples(st.integers(1, 200), st.integers(1, 60)),
    st.booleans(),
)
def test_it_fits_terminals_of_any_size(servers: list[Known], choice: Choice, size: tuple[int, int], keys: bool) -> None:
    drawn = screen(servers, choice, size, NOW, keys)
    assert len(drawn.lines) == size[1]
    assert all(line.cell_len <= size[0] for line in drawn.lines)
    assert all(line.plain.isprintable() for line in drawn.lines)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_table_has_its_numbers_and_its_waits_in_words(size: tuple[int, int]) -> None:
    text = shown(known(*TABLES, grown=20), size=size)
    assert line_of(text, "free").replace(" / ", "/").split() == ["free", "50/100", "50%", "10.0", "10.0", "3/any", "-"]
    assert line_of(text, "blocked").split()[-1] == "inserts"
    assert "inserts: its rate limiter waits for 374 more samples before the next insert" in text
    assert "samples: blocked: 100 more inserts before sampling may go on" in text
    assert ("samples_per_insert 4, max_diff 10)" in text) == (size == LARGE)  # the counts, where there is room


def test_a_wide_terminal_has_all_digits() -> None:
    big = replace(table("big"), current_size=1_234_567, max_size=2_000_000)
    assert "1.23M/2.00M" in shown(known(big), size=SMALL)
    assert "1,234,567 / 2,000,000" in shown(known(big), size=LARGE)


def test_a_tiny_terminal_keeps_names_and_the_most_telling_rate() -> None:
    text = shown(known(*TABLES, grown=20), size=TINY, choice=Choice(first=100))
    assert text.splitlines()[1].split() == ["TABLE", "INSERTS/S"]
    assert line_of(text, "free").split() == ["free", "10.0"]


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_memory_and_the_last_checkpoint_are_told(size: tuple[int, int]) -> None:
    text = shown(known(**SERVICE), size=size)
    assert "up 2 h 0 min, memory 1.23 GB, checkpoint 42 (5.00 MB) 5 min ago" in text


def test_where_http_is_not_known_that_is_told() -> None:
    assert "memory, checkpoints: not known (no --http)" in shown(known())


def test_a_checkpoint_that_is_written_or_failed_is_told() -> None:
    part = STATUS["checkpoints"]
    writing = read({**STATUS, "checkpoints": {**part, "writing_since": NOW - 7}})
    assert "writing a checkpoint for 7 s" in shown(known(**{**SERVICE, "service": writing}))
    failed = read({**STATUS, "checkpoints": {**part, "last": None, "failures": 2, "last_error": "disk is full"}})
    text = shown(known(**{**SERVICE, "service": failed}))
    assert "no checkpoint yet" in text
    assert "checkpoints (2 failures): disk is full" in text


@pytest.mark.parametrize("problem", ["http://a:80: no answer (timed out)", ""])
@pytest.mark.parametrize(("seconds", "age"), [(10, "10 s"), (60, "1 min"), (7200, "2 h 0 min")])
def test_no_clock_of_a_server_goes_on_after_its_last_answer(seconds: int, age: str, problem: str) -> None:
    """Without a problem the next question is not answered yet, or not asked: the interval may be an hour."""
    old = {"service_at": NOW - seconds, "service_problem": problem}
    text = shown(known(**{**SERVICE, **old}), size=LARGE)
    assert f"{age} ago: up 2 h 0 min, memory 1.23 GB, checkpoint 42 (5.00 MB) 5 min ago" in text
    assert problem in text
    writing = read({**STATUS, "checkpoints": {**STATUS["checkpoints"], "writing_since": NOW - 4}})
    text = shown(known(**{**SERVICE, **old, "service": writing}), size=LARGE)
    assert f"{age} ago: up 2 h 0 min, memory 1.23 GB, writing a checkpoint for 4 s" in text


def test_an_answer_that_just_came_has_no_age() -> None:
    assert "ago: up" not in shown(known(**{**SERVICE, "service_at": NOW - 2}))


def test_a_server_that_is_gone_is_shown_with_since_when_and_why() -> None:
    reason = "server localhost:8000: nothing listens there (connection refused)"
    text = shown(known(*TABLES, grown=20, problem=reason, answered_at=NOW - 90))
    assert "no answer since" in text
    assert "for 1 min" in text
    assert reason in text
    assert line_of(text, "free").split()[3:] == ["-", "-", "3/any", "?"]  # as it was, and what is not known
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


def test_a_long_reason_takes_three_lines() -> None:
    drawn = screen([known(problem="because " * 200)], Choice(), SMALL, NOW)
    assert drawn.body == 5  # server, memory, reason
    assert plain(drawn.lines).splitlines()[6].rstrip().endswith("…")


def test_rates_of_all_servers_are_added_in_the_title() -> None:
    title = shown(known(*TABLES[:2], grown=20), known(TABLES[0], grown=10, name="b:1")).splitlines()[0]
    assert "25.0 inserts/s" in title
    assert "2 servers" in title
    assert "3 tables" in title


def order(choice: Choice) -> list[str]:
    text = shown(known(*TABLES, grown=20), choice=choice)
    return [
        name for name in (line.split(" ")[2] for line in text.splitlines() if line.startswith("  ")) if name.islower()
    ]


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
    assert [name for name in order(Choice(sort)) if name in expected] == expected
    assert [name for name in order(Choice(sort, is_reverse=True)) if name in expected] == expected[::-1]


def test_more_tables_than_lines_are_scrolled_through() -> None:
    many = known(*(table(f"table {number:03}") for number in range(100)))
    first = screen([many], Choice(), SMALL, NOW)
    assert (first.body, first.room) == (101, 21)
    assert "lines 1-21 of 101" in plain(first.lines)
    assert "table 019" in plain(first.lines)
    last = shown(many, choice=Choice(first=80))
    assert "lines 81-101 of 101" in last
    assert "table 099" in last
    assert "lines 81-101 of 101" in shown(many, choice=Choice(first=1000))


@pytest.mark.parametrize("size", [SMALL, LARGE, TINY])
def test_help_tells_every_key(size: tuple[int, int]) -> None:
    def page(first: int) -> Screen:
        return screen([known()], Choice(helps=True, first=first), size, NOW)

    lines = [text for first in range(page(0).body) for text in page(first).lines]
    text = plain(lines)
    assert all(word in text for word in ("quit", "sort", "reverse", "PgUp", "Home", "WAITS"))


def test_without_keys_the_footer_says_how_it_ends() -> None:
    assert "Ctrl-C ends" in shown(known(), keys=False).splitlines()[-1]


def test_colors_mark_who_waits_and_who_is_gone() -> None:
    def style_of(server: Known, name: str) -> Any:
        lines = screen([server], Choice(), SMALL, NOW).lines
        [line] = [one for one in lines if isinstance(one, Text) and one.plain.lstrip().startswith(name)]
        return str(line.spans[0].style if line.spans else line.style)

    assert "green" in style_of(known(*TABLES), "localhost")
    assert "red" in style_of(known(*TABLES, problem="gone"), "localhost")
    assert "yellow" in style_of(known(*TABLES), "blocked")
    assert "dim" in style_of(known(*TABLES, problem="gone"), "blocked")
