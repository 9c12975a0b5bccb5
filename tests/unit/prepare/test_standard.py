"""What episodes are held to: filled, judged and normalised by one and the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlds2reverb import Episode
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.source import spec_of
from rlds2reverb.formats.transform import Transform, transformed
from rlds2reverb.prepare.checks import find_problems
from rlds2reverb.prepare.conventions import Conventions, fill_absent
from rlds2reverb.prepare.standard import Standard
from rlds2reverb.specs import ArraySpec
from tests import strategies

SHIFT = Conventions(last_reward="shift")


def without(episode: Episode, *fields: Any) -> Episode:
    return episode.with_only_columns({path: column for path, column in episode.columns.items() if path not in fields})


@pytest.mark.parametrize("fields", [(), ("reward",), ("reward", "discount", "is_terminal")])
def test_absent_fields_are_filled_and_expected(fields: tuple[str, ...]) -> None:
    episode = without(strategies.episode(np.random.default_rng(0), 4), *fields)
    standard = Standard.of(spec_of(episode), Conventions())
    filled = fill_absent(episode)
    assert set(standard.columns) == set(filled.columns)
    assert standard.problems(filled) == find_problems(filled, standard.columns) == []


def test_what_the_conventions_would_lose_is_a_problem_and_they_mend_what_is_good() -> None:
    episode = strategies.episode(np.random.default_rng(0), 4).with_columns(reward=np.array([0, 1, 2, 3], np.float32))
    standard = Standard.of(spec_of(episode), SHIFT)
    assert standard.normalise(episode).columns["reward"].tolist() == [1, 2, 3, 0]
    spoilt = episode.with_columns(reward=np.array([1, 0, 0, 0], np.float32))
    assert [problem.code for problem in standard.problems(fill_absent(spoilt))] == ["first_reward_lost"]
    assert Standard.of(spec_of(episode), Conventions()).problems(fill_absent(spoilt)) == []


def test_of_an_episode_that_cannot_be_read_only_the_fault_is_told() -> None:
    good = strategies.episode(np.random.default_rng(0), 4)
    broken = Episode({}, id="e", faults=(("reward", "17 rows; expected 20"), ("", "no ends")))
    task = {"task": ArraySpec((), np.dtype(object))}
    for standard in (Standard.of(spec_of(good), SHIFT), Standard.of(spec_of(good), SHIFT, task)):
        assert fill_absent(broken) is broken
        assert [(one.code, one.path, one.detail) for one in standard.problems(broken)] == [
            ("unreadable", "reward", "17 rows; expected 20"),
            ("unreadable", "", "no ends"),
        ]


def test_a_transform_adds_no_faults_to_an_episode_that_cannot_be_read() -> None:
    good = strategies.episode(np.random.default_rng(0), 4, episode_id="good")
    broken = Episode({}, id="broken", faults=(("reward", "17 rows"),))
    chosen = transformed(EpisodeList([good, broken]), Transform(drop=("reward",)))
    assert [one.faults for one in chosen] == [(), broken.faults]
