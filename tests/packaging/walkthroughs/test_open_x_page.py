"""The page about Open X-Embodiment works from the top to the bottom: its commands, what they print, its code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("reverb")

import yaml
from click.testing import CliRunner
from replay_server.config import decode, table_configs

from rlds2reverb.cli import cli
from tests.support import open_x
from tests.support.forks import Forks

PAGE = Path(__file__).parents[3] / "examples" / "open_x.md"
MAKER = ["python", "examples/make_open_x.py"]
SERVER = "localhost:8000"

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_MEASURED = re.compile(r"[\d,]+(?= encoded)")
"""Sizes of JPEG files, which another version of the encoder may change by some bytes."""


@dataclass
class Reader:
    """Somebody who works through the page: what was printed last, the names of the code, the server that runs."""

    forks: Forks
    stack: ExitStack
    printed: str = ""
    names: dict[str, Any] = field(default_factory=dict)
    address: str = ""

    def sh(self, text: str) -> None:
        self.printed = ""
        for line in text.splitlines():
            words = shlex.split(line)
            if words[:2] == MAKER:
                open_x.script().main(words[2:])
            elif words[:2] == ["rlds2reverb", "serve"]:
                self._serve(Path(words[words.index("--config") + 1]))
            else:
                self._run(words)

    def yaml(self, text: str) -> None:
        name = re.match(r"# (\S+)\n", text)
        assert name is not None
        Path(name[1]).write_text(text)

    def text(self, text: str) -> None:
        """What the commands before it have printed."""
        printed = {_plain(line) for line in self.printed.splitlines()}
        assert [line for line in text.splitlines() if _plain(line) not in printed] == []

    def python(self, text: str) -> None:
        exec(compile(text.replace(SERVER, self.address), str(PAGE), "exec"), self.names)

    def _run(self, words: list[str]) -> None:
        assert words[0] == "rlds2reverb"
        words, target = (words[:-2], Path(words[-1])) if ">" in words else (words, None)
        done = CliRunner().invoke(cli, [self.address if word == SERVER else word for word in words[1:]])
        assert done.exit_code == 0, f"{shlex.join(words)}: {done.output}"
        self.printed += done.stdout
        if target is not None:
            target.write_text(done.stdout)

    def _serve(self, config: Path) -> None:
        self.stack.close()  # the server before
        tables = table_configs(decode(yaml.safe_load(config.read_text()), str(config)))
        self.address = self.stack.enter_context(self.forks.embedded(tables)).address


def _plain(line: str) -> str:
    return " ".join(_MEASURED.sub("N", line).split())


@pytest.fixture
def reader(forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        yield Reader(forks, stack)


def test_the_page_works_from_the_top_to_the_bottom(reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    """A comment behind a print is what it prints."""
    blocks = _BLOCK.findall(PAGE.read_text())
    assert {kind for kind, _ in blocks} == {"sh", "text", "yaml", "python"}
    for kind, text in blocks:
        capsys.readouterr()
        getattr(reader, kind)(text)
        said, printed = re.findall(r"^ *print\(.*\)  # (.*)$", text, re.MULTILINE), capsys.readouterr().out.splitlines()
        assert bool(said) == (kind == "python")
        assert [line for line in said if line not in printed] == []
