"""Code in the pages about Python runs as it stands, page by page, from the top to the bottom."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tf_agents")

import reverb
from replay_server import TableConfig
from tf_agents.replay_buffers import reverb_utils

import rlds2reverb
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.views.trajectory import table_signature, two_step
from tests.support.forks import Forks
from tests.support.project import ROOT, code_of

PAGES = [
    "README.md",
    "docs/mixing.md",
    "docs/notebooks.md",
    "docs/own_episodes.md",
    "docs/scale.md",
    "docs/tf_agents.md",
    "docs/transforms.md",
    "docs/adapters/gymnasium.md",
    "docs/adapters/tensorflow.md",
    "docs/adapters/tf_agents.md",
    "docs/learner.md",
    "docs/writing.md",
]


def served(forks: Forks) -> AbstractContextManager[Any]:
    """A server with the table "replay"."""
    spec = filled_spec(rlds2reverb.open_source("bundled:cartpole").spec())
    return forks.embedded([TableConfig("replay", table_signature(two_step().signature(spec)))])


@pytest.fixture(scope="module")
def address(forks: Forks) -> Iterator[str]:
    """The server that the pages call localhost:8000."""
    with served(forks) as server:
        yield server.address


@pytest.fixture(scope="module")
def second(forks: Forks) -> Iterator[str]:
    """The server that the pages call localhost:8001; the table is empty."""
    with served(forks) as server:
        yield server.address


@pytest.fixture
def names(address: str) -> Iterator[dict[str, Any]]:
    """What the pages take for granted; the table is empty."""
    with rlds2reverb.connect(address) as client:
        client.reset("replay")
    observer = reverb_utils.ReverbAddTrajectoryObserver(reverb.Client(address), "replay", 2)
    yield {
        "rlds_data": rlds2reverb.load("bundled:cartpole@train[:3]"),
        "reverb_observer": observer,
        "policy_info_fn": lambda current, following: {"next_reward": following["reward"]},
    }
    observer.close()


def run(text: str, file: Path, names: dict[str, Any]) -> None:
    """As a script that stands in a file: of a function without one, TensorFlow traces a loop over a dataset for ever."""
    file.write_text(text)
    exec(compile(text, str(file), "exec"), names)


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs_and_prints_what_it_says(
    page: str, address: str, second: str, names: dict[str, Any], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    """A comment behind a print is what it prints."""
    monkeypatch.chdir(tmp_path)
    text = code_of(ROOT / page).replace("localhost:8000", address).replace("localhost:8001", second)
    text = text.replace("tfds:my_dataset", "bundled:cartpole")
    run(text, tmp_path / f"{Path(page).stem}.py", names)
    if "server" in names:
        names["server"].stop()
    names["client"].close()
    said = re.findall(r"^ *print\(.*\)  # (.*)$", text, re.MULTILINE)
    assert said
    assert set(said) <= set(capsys.readouterr().out.splitlines())
