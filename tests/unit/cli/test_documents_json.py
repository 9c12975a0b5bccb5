"""--json: one document on stdout whatever happens, of the shape that its schema tells, for every command."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb import cli, client
from rlds2reverb.cli import inspect, output, show
from rlds2reverb.cli.documents import DOCUMENTS, schema_of
from rlds2reverb.cli.output import Answer, document, plain, wants_json
from rlds2reverb.conversion.report import ConvertReport
from rlds2reverb.episode import Episode
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.transform import Transform
from rlds2reverb.push.report import PushReport
from rlds2reverb.push.run import Push
from rlds2reverb.testing import table_info
from rlds2reverb.transport.http import ServerHttp, WrittenCheckpoint
from tests.support.cli.json_schema import faults
from tests.support.fake_reverb import FakeReverb
from tests.unit.formats.test_transform import EVERYTHING

WITHOUT_JSON = {
    "serve": "runs in the foreground; --log-format json makes each line of its log a document",
    "schema": "prints JSON anyway",
    "completion": "prints a script for a shell",
    "help": "prints what a person reads",
}
"""Command -> why it has no --json."""

HOW_TO = (
    "give it json_option (rlds2reverb/cli/options.py) and print by output.print_json; write its classes into "
    "rlds2reverb/cli/documents.py; show its real output here; run scripts/generate_docs.py. A command that cannot have it "
    "stands in WITHOUT_JSON with the reason."
)

SOURCE = "bundled:cartpole@train[:3]"
INFO = table_info("replay", max_size=100_000)
CHECKPOINT: dict[str, Any] = {
    "generation": 3, "folder": "/c/000003", "items": {"t": 5}, "bytes": 7, "seconds": 0.5, "written": True,
}  # fmt: skip

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def servers() -> Iterator[list[FakeReverb]]:
    """Two that take anything."""
    with ExitStack() as stack:
        yield [stack.enter_context(FakeReverb(INFO)) for _ in range(2)]


def strict(text: str) -> Any:
    """One document; NaN and Infinity, which are none of JSON's, fail."""

    def refuse(constant: str) -> None:
        pytest.fail(f"no JSON: {constant}")

    return json.loads(text, parse_constant=refuse)


def told(run: Run, *arguments: str, code: int = 0) -> Any:
    """The one document of a command, judged by the schema of that command."""
    ended, shown, said = run(*arguments, "--json")
    assert ended == code, said
    found = strict(shown)
    assert [*faults(found, schema_of(arguments[0]))] == []
    return found


def test_every_command_has_json_and_a_schema() -> None:
    context = click.Context(cli.cli)
    commands = {name: cli.cli.get_command(context, name) for name in cli.COMMANDS}
    with_json = {
        name
        for name, command in commands.items()
        if command is not None and any("--json" in p.opts for p in command.params)
    }
    lacking = [name for name in commands if name not in with_json and name not in WITHOUT_JSON]
    assert lacking == [], f"no --json: {lacking}: {HOW_TO}"
    assert with_json == set(DOCUMENTS), f"--json and schemas differ: {with_json ^ set(DOCUMENTS)}: {HOW_TO}"
    assert [name for name in WITHOUT_JSON if name not in commands] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_schema_is_closed_and_whole(name: str) -> None:
    schema = schema_of(name)

    def parts(one: Any) -> Iterator[dict[str, Any]]:
        for part in one.values() if isinstance(one, dict) else one if isinstance(one, list) else ():
            yield from parts(part)
        if isinstance(one, dict):
            yield one

    for part in parts(schema):
        if part.get("type") in ("object", ["object", "null"]) and "additionalProperties" not in part:
            pytest.fail(f"{name}: open to anything: {part}")
        if isinstance(part.get("$ref"), str):
            assert part["$ref"].removeprefix("#/$defs/") in schema["$defs"]
    assert schema["$schema"].endswith("2020-12/schema")


def test_the_schema_of_a_command_is_printed_whole(run: Run) -> None:
    code, shown, _ = run("schema", "push")
    assert (code, strict(shown)) == (0, schema_of("push"))


def test_of_an_inspection(run: Run) -> None:
    assert told(run, "inspect", SOURCE)["items"] > 0
    tables = told(run, "inspect", SOURCE, "--into", "a=two_step", "--into", "b=episode")["tables"]
    assert set(tables) == {"a", "b"}
    transform = ("--transform", "rename=observation:observation/state", "--transform", "reward_last=shift")
    assert told(run, "inspect", SOURCE, *transform)["transform"]


def test_of_a_comparison(run: Run) -> None:
    assert told(run, "inspect", SOURCE, "--against", SOURCE)["same"]
    found = told(run, "inspect", SOURCE, "--against", "bundled:half_cheetah@train[:1]")
    assert (found["same"], found["columns"]["action"]["state"]) == (False, "changed")
    assert "nowhere" in told(run, "inspect", SOURCE, "--against", "tfds:/nowhere", code=3)["error"]["message"]


def test_of_every_operation_of_a_transform() -> None:
    schema = {**schema_of("inspect"), "anyOf": [{"$ref": "#/$defs/Transform"}]}
    for transform in (EVERYTHING, Transform()):
        assert [*faults(transform.as_dict(), schema)] == []
    assert schema["$defs"]["Transform"]["properties"].keys() == EVERYTHING.as_dict().keys()


TRANSFORMS = st.sampled_from([Transform().as_dict(), EVERYTHING.as_dict()])
REPORTS: dict[str, st.SearchStrategy[Any]] = {
    "convert": st.builds(ConvertReport, transform=TRANSFORMS),
    "push": st.builds(PushReport, transform=TRANSFORMS, servers=st.just({})),
    "record": st.builds(ConvertReport, transform=TRANSFORMS),
}


@pytest.mark.parametrize("command", REPORTS)
@settings(max_examples=20)
@given(data=st.data())
def test_whatever_a_report_holds_is_of_its_schema(command: str, data: st.DataObject) -> None:
    report = data.draw(REPORTS[command])
    if isinstance(report, PushReport):
        report = replace(report, servers={"a:1": report})
    assert [*faults(plain(report), schema_of(command))] == []


def bad(_: str) -> EpisodeList:
    """Two episodes: a good one, and one that is not finite and does not end; text that no encoding takes."""
    at = np.arange(4)
    flags = {"is_first": at == 0, "is_last": at == 3, "is_terminal": at == 3}
    good = {"observation": at.astype(np.float32), "action": at, "reward": at.astype(np.float32), **flags}
    worse = {**good, "reward": np.array([np.nan, np.inf, 1, 1], np.float32), "is_last": at < 0}
    return EpisodeList([Episode(good), Episode(worse)], "bad \udcff\x1b[31m\u202e")


def test_of_what_is_bad(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "open_dataset", bad)
    found = told(run, "validate", "mine", code=1)
    assert not found["valid"]
    assert found["problems"]
    inspected = told(run, "inspect", "mine")
    assert inspected["ranges"]["reward"]["not_finite"] == 2
    assert inspected["source"].startswith("bad \\udcff\x1b")


def test_of_a_good_dataset(run: Run) -> None:
    assert told(run, "validate", SOURCE)["valid"]


def test_of_pushes(run: Run, servers: list[FakeReverb]) -> None:
    to = ("--server", servers[0].address, "--table", "replay")
    assert told(run, "push", SOURCE, *to, "--dry-run")["tables"]["replay"]["free"] == 100_000
    assert told(run, "push", SOURCE, *to)["episodes_pushed"] == 3
    assert told(run, "mix", SOURCE, "bundled:cartpole@train[5:7]", *to)["episodes_read"] == 5


def test_of_several_servers(run: Run, servers: list[FakeReverb]) -> None:
    addresses = ",".join(server.address for server in servers)
    to = ("--server", addresses, "--table", "replay")
    assert len(told(run, "push", SOURCE, *to, "--dry-run")["servers"]) == 2
    assert len(told(run, "push", SOURCE, *to)["servers"]) == 2
    assert len(told(run, "status", "--server", addresses)["replay"]["servers"]) == 2


def test_of_a_status(run: Run, servers: list[FakeReverb]) -> None:
    assert told(run, "status", "--server", servers[0].address)["replay"]["max_size"] == 100_000


def test_of_an_episode(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(run, "show", SOURCE, "-1")
    assert found["title"] == "Episode 2 (index 0 to 2)"
    assert len(found["numbers"]["reward"]["curves"][0]["values"]) == found["steps"]
    assert "columns" in told(run, "show", SOURCE, "0", "--columns", "nothing", code=2)["error"]["message"]
    monkeypatch.setattr(show, "open_dataset", bad)
    assert told(run, "show", "mine", "1")["numbers"]["reward"]["curves"][0]["values"] == [None, None, 1, 1]


def test_of_a_live_view(run: Run, servers: list[FakeReverb]) -> None:
    found = told(run, "top", "--once", "--interval", "0.05", "--server", servers[0].address)
    assert [table["name"] for table in found["servers"][0]["tables"]] == ["replay"]


class Interrupted(Push):
    """One that is interrupted when it has done everything."""

    def run(self) -> Any:
        super().run()
        raise KeyboardInterrupt


def test_a_push_that_is_stopped_tells_what_is_stored_and_why_it_stopped(
    run: Run, servers: list[FakeReverb], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "Push", Interrupted)
    account = told(run, "push", SOURCE, "--server", servers[0].address, "--table", "replay", code=130)
    assert account["episodes_pushed"] == 3
    assert account["error"]["kind"] == "interrupted"
    assert account["stopped"] == "interrupted"


def test_of_a_conversion(run: Run, tmp_path: Path) -> None:
    name = f"tfds:{tmp_path / 'mine'}"
    assert told(run, "convert", SOURCE, name, "--verify")["verified"] == 3
    error = told(run, "convert", SOURCE, name, code=2)["error"]
    assert error["kind"] == "usage"
    assert told(run, "convert", SOURCE, f"ted:{tmp_path / 'other'}")["losses"]


def test_of_a_recording_without_a_place(run: Run) -> None:
    assert "say where the episodes go" in told(run, "record", "CartPole-v1", code=2)["error"]["message"]


def test_of_an_index(run: Run) -> None:
    found = told(run, "index", SOURCE, "--quiet")
    (shard,) = found["shards"]
    assert found["records"] == shard["records"] > 0
    assert Path(shard["index"]).is_file()


def test_of_a_checkpoint(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {**CHECKPOINT, "written": False}
    monkeypatch.setattr(ServerHttp, "checkpoint", lambda *_: WrittenCheckpoint(**answer))
    assert told(run, "checkpoint") == answer


@pytest.mark.full
def test_of_the_demo(run: Run) -> None:
    assert told(run, "demo", "--dataset", "cartpole")["table_size"] > 0


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (("push", SOURCE), 2, "usage"),
        (("push", SOURCE, "--server", "NOBODY", "--table", "t"), 5, "server"),
        (("inspect", "tfds:/nowhere/at/all"), 3, "source"),
        (("inspect", SOURCE, "--view", "none"), 2, "usage"),
        (("validate", "nonsense:x"), 3, "source"),
        (("status", "--server", "NOBODY"), 5, "server"),
        (("sample", "--server", "NOBODY", "--table", "t"), 5, "server"),
        (("checkpoint", "--http", "http://NOBODY"), 5, "server"),
        (("checkpoint", "--unknown"), 2, "usage"),
    ],
)
def test_an_error_is_a_document_as_well(run: Run, arguments: tuple[str, ...], code: int, kind: str) -> None:
    with socket.socket() as nobody:  # bound, and not listened at
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        given = [argument.replace("NOBODY", address) for argument in arguments]
        ended, shown, said = run(*given, "--json")
    error = strict(shown)["error"]
    assert [*faults(strict(shown), schema_of(arguments[0]))] == []
    assert (ended, error["exit_code"], error["kind"]) == (code, code, kind)
    assert error["message"] in said
    assert shown.count("\n") == 1


def test_a_command_that_does_not_exist_and_a_bug_are_documents_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert strict(run("nothing", "--json")[1])["error"]["kind"] == "usage"

    def fail(_: str) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(inspect, "open_dataset", fail)
    assert told(run, "validate", SOURCE, code=70)["error"]["type"] == "RuntimeError"


def test_without_json_an_error_leaves_stdout_empty(run: Run) -> None:
    assert run("inspect", "nonsense:x")[:2] == (3, "")
    assert not wants_json(["validate", "--", "--json"])


def test_numbers_are_exact_and_bytes_never_come() -> None:
    values = {
        "big": np.int64(2**63 - 1),
        "bigger": np.uint64(2**64 - 1),
        "bad": np.float32("nan"),
        "yes": np.bool_(True),
    }
    assert strict(document(values)) == {"big": 2**63 - 1, "bigger": 2**64 - 1, "bad": None, "yes": True}
    with pytest.raises(TypeError, match="bytes: expected what JSON can carry"):
        plain({"a": [b"raw"]})


def test_lines_for_people_hold_no_escape(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_fields({"observation/\x1b[31mred": "float32 \u202e"})
    output.print_columns([["a\nb", "c"]])
    output.print_lines(["table \x07"])
    assert capsys.readouterr().out == "observation/\\x1b[31mred  float32 \\u202e\na\\nb  c\ntable \\x07\n"


def test_letters_are_told_as_codes_where_stdout_has_no_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    class Narrow:
        encoding = "cp1252"

    monkeypatch.setattr(sys, "stdout", Narrow())
    assert document({"name": "日本"}).isascii()


def test_a_stdout_that_is_full_leaves_the_words_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(click, "echo", full)
    Answer(is_wanted=True).print_error(ValueError("x"), "x", 70)


def test_the_judge_of_these_tests_finds_what_is_wrong() -> None:
    schema = schema_of("checkpoint")
    assert [*faults(CHECKPOINT, schema)] == []
    wrong: list[tuple[str, Any]] = [("more", 1), ("generation", -1), ("generation", "3"), ("seconds", float("nan"))]
    for name, value in (*wrong, ("items", {"t": True})):
        assert [*faults({**CHECKPOINT, name: value}, schema)], name
    assert [*faults({name: CHECKPOINT[name] for name in CHECKPOINT if name != "bytes"}, schema)]
    with pytest.raises(ValueError, match="does not know"):
        [*faults(1, {"multipleOf": 2})]
