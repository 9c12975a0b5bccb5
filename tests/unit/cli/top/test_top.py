"""`rlds2reverb top` without a terminal, on servers in memory: blocks, JSON, exit codes, readers that leave."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlds2reverb import cli
from rlds2reverb.cli import top
from rlds2reverb.cli.top import pair_urls
from rlds2reverb.errors import ConfigError, ServerUnreachable
from rlds2reverb.testing import MemoryServer, MemoryTransport
from rlds2reverb.wire.messages import ServerInfo
from tests.support.cli.top_status import table
from tests.support.processes import END_SECONDS, REPOSITORY, dead_port

Run = Callable[..., tuple[int, str, str]]
HOSTILE = "b\x1b[2J"


class Gone:
    """The way to a server that does not answer."""

    def server_info(self, at_once: bool = False) -> ServerInfo:
        raise ServerUnreachable("server gone:1: nothing listens there")

    def close(self) -> None:
        pass


@pytest.fixture
def server() -> MemoryServer:
    limits: dict[str, Any] = {"samples_per_insert": 4.0, "min_diff": -10.0, "max_diff": 10.0}
    made = MemoryServer(table("a", calls=(0, 200), **limits), table(HOSTILE, calls=(0, 0)))
    for key in range(50):
        made.put("a", key)
    return made


@pytest.fixture
def run(server: MemoryServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the program in this process: its exit code, stdout, stderr. The server "gone:1" does not answer."""

    def way_to(address: str, *_: Any) -> Any:
        return Gone() if address == "gone:1" else MemoryTransport(server)

    monkeypatch.setattr(top, "GrpcTransport", way_to)

    def run(*arguments: str, last: str = "0.05") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rlds2reverb", "top", *arguments, "--interval", last])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0), *capsys.readouterr()

    return run


def leaves_after(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of stdout leaves after so many blocks."""
    left = iter([True] * (blocks - 1))
    monkeypatch.setattr(top, "has_reader", lambda: next(left, False))


def test_once_prints_one_block(run: Run) -> None:
    code, shown, said = run("--server", "memory:1", "--once")
    assert (code, said) == (0, "")
    first, *others = shown.splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}", first)
    assert others == [
        "server memory:1: answers; memory, checkpoints: not known (no --http)",
        '  table "a": 50 of 100 items, 0 inserts/s, 0 samples/s, 4 samples per insert (rate limiter: 4)',
        "    inserts may go on (50 inserts and 200 samples so far)",
        "    samples may be taken (50 items)",
        '  table "b\\x1b[2J": 0 of 100 items, 0 inserts/s, 0 samples/s, - samples per insert (rate limiter: any)',
        "    inserts may go on (0 inserts and 0 samples so far)",
        "    sampling waits for 1 more insert (0 of at least 1 item)",
    ]


def test_once_as_json_has_every_field(run: Run) -> None:
    code, shown, said = run("--server", "one=memory:1", "--once", "--json")
    assert (code, said) == (0, "")
    document = json.loads(shown)
    assert document.keys() == {"time", "servers"}
    [server] = document["servers"]
    assert server.keys() == {
        "name", "answers", "problem", "answered_at", "restarted_at", "http", "http_problem", "service", "tables",
    }  # fmt: skip
    assert (server["name"], server["answers"], server["http"], server["service"]) == ("one", True, None, None)
    table, hostile = server["tables"]
    assert table.pop("rate_seconds") > 0
    assert table == {
        "name": "a", "size": 50, "max_size": 100, "inserts": 50, "samples": 200, "inserts_per_second": 0.0,
        "samples_per_second": 0.0, "samples_per_insert": 4.0, "samples_per_insert_wanted": 4.0,
        "insert_state": "inserts may go on (50 inserts and 200 samples so far)",
        "sample_state": "samples may be taken (50 items)",
        "inserts_blocked": False, "samples_blocked": False,
    }  # fmt: skip
    assert (hostile["name"], hostile["samples_per_insert"], hostile["samples_per_insert_wanted"]) == (
        HOSTILE,
        None,
        None,
    )
    assert "\x1b" not in shown  # JSON escapes it


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_once_with_a_server_that_does_not_answer_ends_with_5(run: Run, as_json: tuple[str, ...]) -> None:
    code, shown, said = run("--server", "memory:1", "--server", "gone:1", "--once", *as_json)
    assert code == 5
    assert said == "rlds2reverb: error: server gone:1: nothing listens there\n"
    assert "nothing listens there" in shown
    assert "inserts may go on" in shown  # the other one


def test_what_is_piped_is_a_block_for_each_interval(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves_after(3, monkeypatch)
    code, shown, _ = run("--server", "memory:1,gone:1")
    assert code == 0
    assert shown.count("server memory:1: answers") == 3
    assert shown.count("server gone:1: no answer since") == 3
    assert "\x1b" not in shown


def test_json_is_a_line_for_each_interval(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves_after(3, monkeypatch)
    code, shown, _ = run("--server", "memory:1", "--json")
    assert code == 0
    times = [json.loads(line)["time"] for line in shown.splitlines()]
    assert len(times) == 3
    assert times == sorted(times)


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_it_ends_when_its_reader_leaves(as_json: tuple[str, ...], tmp_path: Path) -> None:
    arguments = ("-m", "tests.support.cli.memory_view", "--server", "memory:1", "--interval", "0.05", *as_json)
    with (tmp_path / "errors").open("w+b") as errors:
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdout is not None
        with process:
            assert "memory:1" in process.stdout.readline() + process.stdout.readline()
            process.stdout.close()
            assert process.wait(END_SECONDS) == 0
        errors.seek(0)
        assert errors.read() == b""


def test_http_that_does_not_answer_is_told_and_is_no_error(run: Run) -> None:
    with dead_port() as port:
        code, shown, _ = run("--server", "memory:1", "--http", f"http://127.0.0.1:{port}", "--once")
    assert code == 0
    assert "memory, checkpoints: not known\n" in shown
    assert f"http://127.0.0.1:{port}: no answer" in shown


def test_tables_are_sorted_as_asked(run: Run) -> None:
    _, shown, _ = run("--server", "memory:1", "--once", "--sort", "items", "--reverse")
    assert shown.index("b\\x1b") < shown.index('"a"')


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing option '--server'"),
        (["--server", ","], "expected HOST:PORT"),
        (["--server", "a:1", "--http", "a"], "expected an address such as"),
        (["--server", "a:1", "--sort", "beauty"], "is not one of"),
        (["--server", "a:1", "--header", "x"], "expected NAME=VALUE"),
        (["--server", "a:1", "--tls-cert", "x.pem"], "go together"),
    ],
)
def test_what_makes_no_sense_ends_with_2(run: Run, arguments: list[str], said: str) -> None:
    code, shown, told = run(*arguments)
    assert (code, shown) == (2, "")
    assert said in told


@pytest.mark.parametrize("interval", ["0.01", "1e9", "1e300", "nan", "-1", "0"])
def test_an_interval_that_asks_too_often_or_never_is_refused(run: Run, interval: str) -> None:
    assert run("--server", "memory:1", last=interval)[:2] == (2, "")


def test_a_deadline_may_be_as_long_as_one_likes(run: Run) -> None:
    with dead_port() as port:
        code, shown, said = run(
            "--server", "memory:1", "--http", f"http://127.0.0.1:{port}", "--once", "--timeout", "1e300"
        )
    assert (code, said) == (0, "")
    assert "no answer" in shown


def test_an_address_is_checked_before_anything_is_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: str, *_: Any) -> Any:
        raise ConfigError(f'server address "{address}": expected HOST:PORT')

    monkeypatch.setattr(top, "GrpcTransport", refuse)
    code, shown, said = run("--server", "nonsense")
    assert (code, shown) == (2, "")
    assert "expected HOST:PORT" in said


# Servers and their HTTP addresses, as the command line pairs them.

A, B, U, V = "a:1", "b:2", "http://a:80", "https://b:81/x=y"


@pytest.mark.parametrize(
    ("servers", "urls", "expected"),
    [
        ([A], [], [(A, A, None)]),
        ([A, B], [U], [(A, A, U), (B, B, None)]),
        ([A, B], [U, V], [(A, A, U), (B, B, V)]),
        ([f"{A},{B}"], [U, V], [(A, A, U), (B, B, V)]),
        ([f"one={A}", f"two={B}"], [f"two={V}"], [("one", A, None), ("two", B, V)]),
        ([f"one={A}", B], [f"{A}={U}", f"{B}={V}"], [("one", A, U), (B, B, V)]),
        ([f" {A} , "], [], [(A, A, None)]),
    ],
)
def test_urls_belong_to_servers_by_place_or_by_name(
    servers: list[str], urls: list[str], expected: list[tuple[str, str, str | None]]
) -> None:
    assert pair_urls(servers, urls) == expected


@pytest.mark.parametrize(
    ("servers", "urls", "said"),
    [
        ([","], [], "expected HOST:PORT"),
        ([f"={A}"], [], "expected NAME=HOST:PORT"),
        ([f"x y={A}"], [], "expected NAME=HOST:PORT"),
        ([A, A], [], f'the name "{A}" stands twice'),
        ([f"x={A}", f"y={A}"], [], f'the address "{A}" stands twice'),
        ([f"x={A}", f"x={B}"], [], 'the name "x" stands twice'),
        ([A], [U, V], "more of them than servers"),
        ([A, B], [U, f"{A}={V}"], f"has one already, {U}"),
        ([A], [f"c={U}"], 'no --server is called "c"'),
        ([A], ["a:80"], "expected an address such as"),
    ],
)
def test_what_makes_no_sense_is_told(servers: list[str], urls: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        pair_urls(servers, urls)
