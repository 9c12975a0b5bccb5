"""The config that `inspect --server-config` writes: a server starts from it, unchanged, and the push it names fills it."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_server.tables import MOST
from replay_server.template import ImageDraft, TableDraft, config_text

import rlds2reverb
from rlds2reverb.cli import cli
from rlds2reverb.errors import ServerUnreachable
from tests.conformance import bad_dataset
from tests.support.forks import Forks
from tests.support.processes import free_port, wait_until

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

SIGNATURE = rlds2reverb.open_source("bundled:cartpole").spec()


def program(*arguments: str) -> str:
    """What the command prints."""
    shown = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    return shown.stdout


@pytest.fixture
def address(forks: Forks, tmp_path: Path, written: str) -> Iterator[str]:
    """Of a server that runs by the written config, as it stands."""
    path, port = tmp_path / "server.yaml", free_port()
    path.write_text(written)
    environment = {"REPLAY__HTTP__PORT": "0", "REPLAY__GRPC__PORT": str(port)}
    with forks.module(tmp_path, "replay_server", "--config", str(path), cwd=tmp_path, **environment) as process:
        wait_until(lambda: process.poll() is not None or answers(f"localhost:{port}"), reason=lambda: process.errors)
        assert process.poll() is None, process.errors
        yield f"localhost:{port}"


def answers(address: str) -> bool:
    """Whether a server does."""
    with suppress(ServerUnreachable):
        rlds2reverb.connect(address, timeout_seconds=0.5).close()
        return True
    return False


@pytest.fixture
def written(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    source, *views = request.param
    if source == "bad":
        source = f"tfds:{bad_dataset.write(tmp_path / 'it is $bad')}"
    (tmp_path / "view file.yaml").write_text("view: sequence\nlength: 2\nstride: 2\n")
    return program("inspect", source, "--server-config", *(view.replace("@", f"@{tmp_path}/") for view in views))


@pytest.mark.parametrize("sign", ["\x1b", "\x9b", "\u202e", "\u2028", "\U000e0041"])
def test_signs_that_steer_a_terminal_are_escaped(sign: str) -> None:
    table = f"\u4f60{sign}[2J"
    draft = TableDraft("two_step", 3, {f"obs{sign}": SIGNATURE["reward"]})
    printed = config_text(f"tfds:/data/{sign}", ["--table", table], {table: draft})
    assert printed.replace("\n", "").isprintable()
    (written,) = yaml.safe_load(printed)["tables"]
    assert written["name"] == table
    assert list(written["signature"]) == [f"obs{sign}"]
    assert "\u4f60" in config_text("x", [], {"\u4f60": TableDraft("two_step", 3, {"obs": SIGNATURE["reward"]})})


def words_of(line: str) -> list[str]:
    """What a shell makes of a command line, without the program's name."""
    echo = 'rlds2reverb() { printf "%s\\0" "$@"; }; '
    shown = subprocess.run(["bash", "-c", echo + line], capture_output=True, check=True, timeout=60)
    return shown.stdout.decode().split("\0")[:-1]


def push_in(written: str) -> str:
    """The line of the head that fills the tables."""
    (push,) = (line for line in written.splitlines() if line.startswith("#   rlds2reverb push"))
    return push.removeprefix("#   ")


@pytest.mark.parametrize(
    "written",
    [
        ("bad", "--limit", "2"),
        ("bad", "--into", "steps=two_step:priority=reward", "--into", "every other=@view file.yaml"),
    ],
    indirect=True,
)
def test_a_server_starts_from_it_and_the_push_in_its_head_fills_it_up_to_the_room_that_it_tells(
    written: str, address: str
) -> None:
    program(*words_of(push_in(written).replace("localhost:8000", address)))
    (room,) = re.findall("^# max_size leaves room for at least a tenth more: (.*)[.] A full", written, re.MULTILINE)
    with rlds2reverb.connect(address) as client:
        tables = client.server_info().tables
    free = [f"{table.max_size - table.current_size} in {shlex.quote(name)}" for name, table in tables.items()]
    assert sorted(free) == sorted(room.split(", "))
    assert all(0 < table.current_size < table.max_size for table in tables.values())


def test_data_without_bad_episodes_is_pushed_as_it_is() -> None:
    push = push_in(program("inspect", "bundled:cartpole", "--server-config"))
    assert push == "rlds2reverb push bundled:cartpole --server localhost:8000 --table replay --view two_step"


def test_priorities_choose_the_sampler() -> None:
    tables = {"plain": TableDraft("v", 3, SIGNATURE), "weighed": TableDraft("v", 4, SIGNATURE, by_priority=True)}
    written = yaml.safe_load(config_text("bundled:cartpole", [], tables))["tables"]
    assert [table["sampler"] for table in written] == ["uniform", {"kind": "prioritized", "exponent": 1.0}]


@given(st.integers(0, MOST))
def test_room_is_a_tenth_or_a_little_more_and_a_round_number(items: int) -> None:
    size = TableDraft("v", items, SIGNATURE).max_size
    assert max(items, 1) <= size <= MOST
    if items and size < MOST:
        assert 11 * items <= 10 * size
        assert size < 1.1 * (1.1 * items + 1) + 1
        assert not str(size)[2:].strip("0")


def test_a_part_of_a_source_is_named_as_such() -> None:
    (whole, *_) = config_text("bundled:cartpole", [], {"t": TableDraft("v", 9, SIGNATURE)}).splitlines()
    (part, *_) = config_text("bundled:cartpole", [], {"t": TableDraft("v", 1, SIGNATURE)}, 1500).splitlines()
    assert whole == "# A replay server for 9 items of bundled:cartpole, for a push as below."
    assert part == "# A replay server for 1 item of the first 1,500 episodes of bundled:cartpole, for a push as below."


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12), min_size=2, max_size=4))
def test_any_words_stand_in_the_head_as_a_shell_reads_them(words: list[str]) -> None:
    source, *options = words
    written = config_text(source, options, {"t": TableDraft("v", 9, SIGNATURE)})
    assert list(yaml.safe_load(written)) == ["tables", "checkpoints"]
    assert words_of(push_in(written)) == ["push", source, "--server", "localhost:8000", *options]


def folder(source: str, **tables: TableDraft) -> str:
    """Of the checkpoints."""
    written: dict[str, dict[str, str]] = yaml.safe_load(config_text(source, [], tables))
    return written["checkpoints"]["folder"]


def test_every_source_and_every_set_of_tables_has_a_checkpoint_folder_of_its_own() -> None:
    pairs, others = TableDraft("two_step", 9, SIGNATURE), TableDraft("sequence:length=2,stride=2", 9, SIGNATURE)
    folders = [
        folder("bundled:cartpole", replay=pairs),
        folder("bundled:cartpole", replay=others),
        folder("bundled:cartpole", other=pairs),
        folder("bundled:cartpole", replay=pairs, other=pairs),
        folder("bundled_cartpole", replay=pairs),
        folder("tfds:/data/bundled/cartpole@train[:10%]", replay=pairs),
    ]
    assert len(set(folders)) == len(folders)
    assert folder("bundled:cartpole", replay=TableDraft("two_step", 500, SIGNATURE)) == folders[0]
    assert re.fullmatch(r"checkpoints/bundled-cartpole-replay-[0-9a-f]{8}", folders[0])


@given(st.text(), st.text(min_size=1))
def test_the_folders_name_is_safe(source: str, table: str) -> None:
    assert re.fullmatch(
        r"checkpoints/[A-Za-z0-9_][A-Za-z0-9_.-]{7,79}", folder(source, **{table: TableDraft("v", 1, SIGNATURE)})
    )


@pytest.mark.parametrize(
    ("image", "line"),
    [
        (
            ImageDraft("observation/image", False, 30_000, 245_760),
            "# observation/image: decoded, 245,760 bytes per step, 245.8 MB of memory; as its files have it: 30,000 bytes per step, "
            "30.0 MB of memory. For that give --encoded observation/image to inspect and push.",
        ),
        (
            ImageDraft("observation/image", True, 30_000, None),
            "# observation/image: as its files have it, 30,000 bytes per step, 30.0 MB of memory; decoded: unknown.",
        ),
        (ImageDraft("a\nb", True, 1, 2), "# $'\\x61\\x0a\\x62': as its files have it, "),
    ],
)
def test_the_head_has_both_sizes_of_images(image: ImageDraft, line: str) -> None:
    text = config_text("source", [], {"t": TableDraft("v", 9, SIGNATURE)}, None, [image], 1000)
    assert [row for row in text.splitlines() if row.startswith(line)]
    assert list(yaml.safe_load(text)) == ["tables", "checkpoints"]
