"""`rlds2reverb sample` on a server in memory: what is shown, what is taken, what is said of the table."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlds2reverb import cli
from rlds2reverb.cli import sample
from rlds2reverb.cli.documents import schema_of
from rlds2reverb.client import Client
from rlds2reverb.learner import server_queue
from rlds2reverb.learner.options import SampleOptions
from rlds2reverb.specs import ArraySpec, ImageSpec
from rlds2reverb.testing import FREE_LIMITER, MemoryServer, MemoryTransport, table_info
from rlds2reverb.wire.messages import RateLimiter
from tests.support.cli.json_schema import faults

FLOAT = ArraySpec((2,), np.dtype(np.float32))
SIGNATURE = {"observation": FLOAT, "text": ArraySpec((), np.dtype(object))}
QUEUE = RateLimiter(1.0, 0.0, 10.0, 1, 0, 0)

Run = Callable[..., tuple[int, str, str]]


def text(value: bytes) -> Any:
    array = np.empty((), object)
    array[()] = value
    return array


def values(number: int) -> tuple[Any, ...]:
    return np.array([number, -0.5], np.float32), text(b"item %d" % number)


@pytest.fixture
def server() -> MemoryServer:
    """A plain table, a queue, an empty one, one without a signature, and one of images; three items each but for the empty one."""
    queue = replace(table_info("queue", SIGNATURE, sampler="fifo", rate_limiter=QUEUE), max_times_sampled=1)
    images = {"image": ArraySpec.of_images(ImageSpec((None, None, 3), np.dtype(np.uint8), "png"))}
    made = MemoryServer(
        table_info("plain", SIGNATURE, sampler="fifo"), queue, "empty", "untold", table_info("images", images)
    )
    for number in range(3):
        for table in ("plain", "queue", "untold"):
            made.put(table, 2**63 + number, values(number), priority=1.0 + number)
    made.put("images", 1, [text(b"no image")])
    return made


@pytest.fixture
def run(server: MemoryServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the program in this process: its exit code, stdout, stderr."""
    monkeypatch.setattr(sample, "open_client", lambda **_: Client(MemoryTransport(server)))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rlds2reverb", "sample", "--server", "memory:1", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0), *capsys.readouterr()

    return run


def test_a_sample_is_shown_with_all_that_the_server_tells(run: Run, server: MemoryServer) -> None:
    code, shown, said = run("--table", "plain")
    assert code == 0
    assert shown.splitlines() == [
        "sample 1 of 1: key 9223372036854775808",
        "  priority 1, probability 1, sampled 1 time",
        "    observation  float32[2]  0, -0.5 (-0.5 to 0)",
        '    text         string[]    "item 0" (6 bytes)',
    ]
    assert said.splitlines() == [
        'table "plain": 3 items; items stay however often they are sampled; its rate limiter lets any number of samples be taken',
        'table "plain": 1 sample taken; it had 3 and has 3 items; its rate limiter has counted 3 inserts and 1 sample, '
        "and lets any number be taken",
    ]
    assert server.tables["plain"].samples == 1


@pytest.mark.parametrize("samples", [1, 2, 7, 100])
@pytest.mark.parametrize("json_option", [(), ("--json",)])
def test_just_so_many_are_taken(run: Run, server: MemoryServer, samples: int, json_option: tuple[str, ...]) -> None:
    code, shown, _ = run("--table", "plain", "-n", str(samples), *json_option)
    assert code == 0
    assert server.tables["plain"].samples == samples
    assert shown.count("9223372036854775808") == samples  # first in, first out; the items stay


def test_each_sample_is_a_line_of_json(run: Run) -> None:
    code, shown, said = run("--table", "plain", "-n", "2", "--values", "1", "--json")
    assert code == 0
    first, second = map(json.loads, shown.splitlines())
    assert [fault for answer in (first, second) for fault in faults(answer, schema_of("sample"))] == []
    assert first == {
        "key": "9223372036854775808",
        "priority": 1.0,
        "probability": 1.0,
        "table_size": 3,
        "times_sampled": 1,
        "columns": {
            "observation": {
                "dtype": "float32", "shape": [2], "values": [0.0], "min": -0.5, "max": 0.0, "mean": -0.25, "not_finite": 0,
            },
            "text": {"dtype": "string", "shape": [], "values": ["item 0"], "bytes": 6},
        },
    }  # fmt: skip
    assert second["times_sampled"] == 2
    assert len(said.splitlines()) == 2


def test_what_is_not_finite_is_null_in_json(run: Run, server: MemoryServer) -> None:
    server.put("empty", 1, [np.array([np.nan, np.inf, 1.0])])
    code, shown, _ = run("--table", "empty", "--json")
    assert code == 0
    column = json.loads(shown)["columns"]["0"]
    assert [*faults(json.loads(shown), schema_of("sample"))] == []
    assert (column["values"], column["not_finite"], column["max"]) == ([None, None, 1.0], 2, 1.0)


def test_a_table_without_a_signature_has_numbered_columns(run: Run) -> None:
    code, shown, _ = run("--table", "untold")
    assert code == 0
    assert "    0  float32[2]" in shown
    assert "    1  string[]" in shown


def test_encoded_images_are_not_decoded(run: Run) -> None:
    """So one that is damaged can be looked at."""
    code, shown, _ = run("--table", "images")
    assert code == 0
    assert '"no image" (8 bytes)' in shown


def test_what_leaves_a_queue_is_said_before_and_after(run: Run, server: MemoryServer) -> None:
    code, shown, said = run("--table", "queue", "-n", "2")
    assert code == 0
    assert shown.count("sampled 1 time, and has left the table") == 2
    before, after = said.splitlines()
    assert before == (
        'table "queue": 3 items; an item leaves with its first sample; 3 more samples may be taken before the next insert'
    )
    assert after == (
        'table "queue": 2 samples taken; it had 3 and has 1 item; its rate limiter has counted 3 inserts and 2 samples, '
        "and lets 1 more be taken"
    )
    assert [key - 2**63 for key in server.tables["queue"].items] == [2]


def test_more_than_there_are_is_an_error_after_those_that_came(run: Run, server: MemoryServer) -> None:
    code, shown, said = run("--table", "queue", "-n", "5", "--timeout-seconds", "0.3")
    assert code == 5
    assert shown.count("sample ") == 3
    lines = said.splitlines()
    assert lines[0].endswith("3 more samples may be taken before the next insert, 5 are wanted")
    assert lines[-2] == "3 of 5 samples came; the server may have taken one more"
    assert "no batch within 0.3 s" in lines[-1]
    assert 'table "queue": sampling waits for 1 more insert' in lines[-1]
    assert server.tables["queue"].samples == 3


def test_an_empty_table_says_what_it_waits_for(run: Run) -> None:
    code, shown, said = run("--table", "empty", "--json", "--timeout-seconds", "0.3")
    assert (code, json.loads(shown)["error"]["type"]) == (5, "Stalled")
    assert 'table "empty": 0 items; items stay however often they are sampled; sampling waits for 1 more insert' in said
    assert "0 of 1 sample came" in said
    assert said.count("rlds2reverb: error:") == 1


def test_a_wait_is_said_once_while_its_reason_stays(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_queue, "_DEADLINES", replace(server_queue._DEADLINES, notice=0.01))
    code, _, said = run("--table", "empty", "--timeout-seconds", "0.5")
    assert code == 5
    assert said.count('table "empty": waiting for samples: table "empty": sampling waits for 1 more insert') == 1


def test_it_waits_as_long_as_a_sampler_in_python(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    monkeypatch.setattr(
        sample, "_draw_samples", lambda client, table, samples, seconds: iter(given.append(seconds) or ())
    )
    run("--table", "plain")
    assert given == [SampleOptions().timeout_seconds]


def test_items_that_leave_later_say_when(run: Run, server: MemoryServer) -> None:
    table = replace(table_info("empty", sampler="fifo", rate_limiter=FREE_LIMITER), max_times_sampled=2)
    server.tables["empty"] = type(server.tables["empty"])(table)
    server.put("empty", 1, [np.arange(1)])
    code, shown, said = run("--table", "empty", "-n", "2")
    assert code == 0
    assert "an item leaves when it is sampled 2 times; its rate limiter lets any number" in said
    assert shown.count("has left the table") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Missing option '--table'"),
        (("--table", "nothere"), 'no table "nothere"; it has empty, images, plain, queue, untold'),
        (("--table", ""), 'no table ""'),
        (("--table", "plain", "-n", "0"), "0 is not in the range 1<=x<=1000000"),
        (("--table", "plain", "-n", "-3"), "-3 is not in the range 1<=x<=1000000"),
        (("--table", "plain", "-n", "1" + "0" * 21), "is not in the range 1<=x<=1000000"),
        (("--table", "plain", "-n", "1e3"), "'1e3' is not a valid integer"),
        (("--table", "plain", "--values", "-1"), "-1 is not in the range x>=0"),
        (("--table", "plain", "--timeout-seconds", "0"), "expected a positive number of seconds"),
        (("--table", "plain", "--timeout-seconds", "nan"), "expected a positive number of seconds"),
        (("--table", "plain", "--timeout-seconds", "inf"), "expected a positive number of seconds"),
        (("--table", "plain", "more"), "unexpected extra argument (more)"),
    ],
)
def test_a_command_line_that_makes_no_sense_takes_nothing(
    run: Run, server: MemoryServer, arguments: tuple[str, ...], said: str
) -> None:
    code, shown, talk = run(*arguments)
    assert (code, shown) == (2, "")
    assert said in talk
    assert len(talk.splitlines()) == 1
    assert not any(table.samples for table in server.tables.values())


def test_two_columns_of_one_name_are_the_tables_fault_and_nothing_is_taken(run: Run, server: MemoryServer) -> None:
    info = table_info("empty", {"a": {"b": FLOAT}, "a/b": FLOAT})
    server.tables["empty"] = type(server.tables["empty"])(info)
    server.put("empty", 1, [np.zeros(2, np.float32)] * 2)
    code, shown, said = run("--table", "empty")
    assert (code, shown) == (4, "")
    assert 'table "empty": its signature: two columns are both named "a/b"' in said
    assert server.tables["empty"].samples == 0


def test_ctrl_c_says_how_many_came(run: Run, server: MemoryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sample, "brief", interrupted)
    code, shown, said = run("--table", "plain", "-n", "50")
    assert (code, shown) == (130, "")
    lines = [line for line in said.splitlines()[1:] if line]
    assert lines == ["1 of 50 samples came; the server may have taken one more", "rlds2reverb: interrupted"]
    assert server.tables["plain"].samples <= 2  # the one that was asked for while this one was shown


def test_a_server_that_does_not_answer_is_said(run: Run, server: MemoryServer) -> None:
    server.is_away = True
    code, shown, said = run("--table", "plain")
    assert (code, shown) == (5, "")
    assert said.startswith("rlds2reverb: error: server memory: ")
