"""Datasets with openpi's names of features: what is proposed for them works, and the row behind the last action is one of zeros."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from rlds2reverb.cli import cli
from rlds2reverb.errors import ViewError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.transform import transform_of
from rlds2reverb.formats.transform import transformed as apply_transform
from tests.support import strategies
from tests.support.formats.lerobot import written
from tests.support.push.in_memory import Server, push

FLOAT, UINT8 = np.dtype(np.float32), np.dtype(np.uint8)


@pytest.fixture
def name(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    columns: strategies.Columns = {"state": (FLOAT, (4,)), "actions": (FLOAT, (3,)), "image": (UINT8, (8, 8, 3))}
    episodes = [strategies.episode(rng, length, columns, episode_id=str(length)) for length in (4, 6)]
    written(tmp_path / "openpi", episodes)
    return f"lerobot:{tmp_path / 'openpi'}"


RENAMING = "rename=actions:action,image:observation/image,state:observation/state"


def test_the_added_row_has_zeros_for_actions_before_and_after_they_are_renamed(name: str) -> None:
    for source, path in (
        (open_source(name), "actions"),
        (apply_transform(open_source(name), transform_of(RENAMING)), "action"),
    ):
        for episode in source:
            assert not episode.columns[path][-1].any()
            assert episode.columns[path][:-1].any(1).all()


def test_what_errors_and_validate_propose_can_be_pushed(name: str) -> None:
    with pytest.raises(ViewError, match=f"--transform {re.escape(RENAMING)}$"):
        push(Server(), open_source(name))
    shown = CliRunner().invoke(cli, ["validate", name], catch_exceptions=False).output
    words = shlex.split(shown.rpartition("next:")[2])
    assert words[words.index("--transform") + 1] == RENAMING
    report = push(Server(), open_source(name), transform=RENAMING)
    assert (report.episodes_pushed, report.items_confirmed) == (2, 3 + 5)
