"""The pages about views, samplers and the adapters' tables work as they stand: their server takes the pushes that they write, and samples are what they say."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("reverb")

import yaml
from click.testing import CliRunner
from replay_server import EmbeddedServer, TableConfig
from replay_server.config import decode, table_configs

from rlds2reverb.cli import cli
from tests.support.project import ROOT, code_of

PAGES = [
    *(f"docs/views/{path.name}" for path in sorted((ROOT / "docs" / "views").glob("*.md"))),
    "docs/samplers.md",
]
ADAPTERS = "docs/adapters/tables.md"
SERVER = "server.yaml"


def files(page: str) -> dict[str, str]:
    """The files that a page has the reader write: name, in the block's first line, and text."""
    return dict(re.findall(r"^```yaml\n# (\S+)\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL))


def tables(page: str) -> list[TableConfig]:
    return list(table_configs(decode(yaml.safe_load(files(page)[SERVER]), f"{page}: {SERVER}")))


def commands(page: str) -> list[list[str]]:
    """The words of its commands."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    """Page -> the address of its server: one with the tables of all pages, which have different names, and one for the adapters' tables."""
    shared = EmbeddedServer([table for page in PAGES for table in tables(page)])
    with shared, EmbeddedServer(tables(ADAPTERS)) as own:
        yield {**dict.fromkeys(PAGES, shared.address), ADAPTERS: own.address}


@pytest.mark.parametrize("page", [*PAGES, ADAPTERS])
def test_a_page_works_from_the_top_to_the_bottom(
    page: str,
    addresses: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Commands first, then the code; a comment behind a print is what it prints."""
    monkeypatch.chdir(tmp_path)
    address = addresses[page]
    for name, text in files(page).items():
        Path(name).write_text(text)
    serve, *pushes = commands(page)
    assert serve == ["rlds2reverb", "serve", "--config", SERVER]
    assert pushes
    for words in pushes:
        arguments = [address if word == "localhost:8000" else word for word in words[1:]]
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 0, f"{' '.join(words)}: {done.output}"
    text = code_of(ROOT / page).replace("localhost:8000", address).replace("tfds:my_dataset", "bundled:cartpole")
    names: dict[str, Any] = {}
    exec(compile(text, page, "exec"), names)
    said = re.findall(r"^ *print\(.*\)  # (.*)$", text, re.MULTILINE)
    assert said
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in said if line not in printed] == []
