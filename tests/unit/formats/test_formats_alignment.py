"""Rows that hold the action and the reward that led to their observation, as DrQ-v2, V-D4RL and ExORL store them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.episode import Episode
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.prepare.conventions import fill_absent
from rlds2reverb.specs import flatten
from rlds2reverb.views import view_of
from tests.support.views.cutting import items_of

h5py = pytest.importorskip("h5py")

GAMMA = 0.99
LENGTHS = (4, 7, 5)


def stored(rng: np.random.Generator, actions: int, **others: Any) -> dict[str, Any]:
    """An episode as DrQ-v2's ReplayBufferStorage writes it: row 0 is the reset, with an action and a reward of zeros."""
    rows = actions + 1
    found: dict[str, Any] = {
        "observation": rng.integers(1, 255, (rows, 3, 4, 4), np.uint8),
        "action": rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
        "reward": rng.uniform(0.1, 1, (rows, 1)).astype(np.float32),
        "discount": np.ones((rows, 1), np.float32),
    }
    found["action"][0] = found["reward"][0] = 0
    found["discount"][-1] = 0
    return {**found, **others}


def sampled_by_drq(episode: dict[str, Any]) -> list[tuple[Any, ...]]:
    """All that ReplayBuffer._sample can draw with nstep 1, by its index idx: 1 to the number of actions."""
    return [
        (
            episode["observation"][idx - 1],
            episode["action"][idx],
            episode["reward"][idx],
            episode["discount"][idx] * GAMMA,
            episode["observation"][idx],
        )
        for idx in range(1, len(episode["action"]))
    ]


def transitions(episode: Episode) -> list[tuple[Any, ...]]:
    """The items of our transition view, in DrQ-v2's order."""
    cut = view_of("transition:extras=discount").cut(fill_absent(episode))
    found = [dict(zip(cut.fields, item)) for item in items_of(cut)]
    names = ("observation", "action", "next/reward", "extras/discount", "next/observation")
    return [tuple(item[name] for name in names) for item in found]


def write(folder: Path, episodes: list[dict[str, Any]]) -> str:
    folder.mkdir()
    for number, episode in enumerate(episodes):
        np.savez(folder / f"20260101_{number}_{len(episode['action']) - 1}.npz", **episode)
    return f"npz:{folder}"


def advice(source: Any) -> list[str]:
    return [notice.text for notice in source.notices if notice.code == "observations_after"]


def test_transitions_are_those_that_drq_samples(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    episodes = [stored(rng, actions) for actions in LENGTHS]
    name = write(tmp_path / "buffer", episodes)
    assert "in 3 of 3 episodes looked at" in advice(open_source(name))[0]
    assert advice(open_source(f"{name}?align=before")) == []
    source = open_source(f"{name}?align=after")
    assert advice(source) == []
    assert "align" in {notice.code for notice in source.notices}
    for episode, found in zip(episodes, source, strict=True):
        assert not found.faults
        assert len(found) == len(episode["action"])
        expected, got = sampled_by_drq(episode), transitions(found)
        assert len(expected) == len(got)
        for row, other in zip(expected, got):
            obs, action, reward, discount, after = other
            for left, right in zip(row, (obs, action, reward, np.asarray(discount) * GAMMA, after)):
                np.testing.assert_allclose(np.ravel(left), np.ravel(right), rtol=1e-6)


@pytest.mark.parametrize("scheme", ["npz", "d4rl"])
def test_one_file_of_such_rows(tmp_path: Path, scheme: str) -> None:
    rng = np.random.default_rng(2)
    episodes = [stored(rng, actions) for actions in LENGTHS]
    joined = {
        f"{key}s": np.concatenate([episode[key] for episode in episodes]) for key in ("observation", "action", "reward")
    }
    joined["terminals"] = np.concatenate([np.arange(actions + 1) == actions for actions in LENGTHS])
    path = tmp_path / f"data.{scheme}"
    if scheme == "npz":
        np.savez(path, **joined)
    else:
        with h5py.File(path, "w") as file:
            for key, column in joined.items():
                file[key] = column
    assert len(advice(open_source(f"{scheme}:{path}"))) == 1
    source = open_source(f"{scheme}:{path}?align=after")
    assert source.episode_lengths() == [actions + 1 for actions in LENGTHS]
    for episode, found in zip(episodes, source, strict=True):
        np.testing.assert_array_equal(found.columns["observation"], episode["observation"])
        np.testing.assert_array_equal(found.columns["action"][:-1], episode["action"][1:])
        assert np.ravel(found.columns["reward"])[:-1].tolist() == np.ravel(episode["reward"])[1:].tolist()
        assert found.columns["is_terminal"].tolist() == [False] * (len(found) - 1) + [True]
        assert set(found.columns) == set(flatten(source.spec()))
    with pytest.raises(SourceError, match="last_step goes with align=before"):
        open_source(f"{scheme}:{path}?align=after,last_step=mark")


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("is_one_file", [True, False])
def test_step_types_end_episodes_and_the_last_discount_says_how(
    tmp_path: Path, is_one_file: bool, is_terminal: bool
) -> None:
    rng = np.random.default_rng(3)
    episodes = []
    for actions in LENGTHS:
        types = np.ones((actions + 1, 1), np.uint8)
        types[0], types[-1] = 0, 2
        episode = stored(rng, actions, step_type=types)
        episode["action"][0] = 1  # so that only step_type tells
        episode["discount"][-1] = not is_terminal
        episodes.append(episode)
    if is_one_file:
        np.savez(
            tmp_path / "all.npz", **{key: np.concatenate([episode[key] for episode in episodes]) for key in episodes[0]}
        )
        name = f"npz:{tmp_path / 'all.npz'}"
    else:
        name = write(tmp_path / "buffer", episodes)
    assert "step_type" in advice(open_source(name))[0]
    found = list(open_source(f"{name}?align=after"))
    assert [len(episode) for episode in found] == [actions + 1 for actions in LENGTHS]
    assert [bool(episode.columns["is_terminal"][-1]) for episode in found] == [is_terminal] * 3


def test_rows_with_flags_keep_them(tmp_path: Path) -> None:
    """DreamerV3's replay has such rows, too, with flags of the observation."""
    rng = np.random.default_rng(4)
    episodes = []
    for actions in LENGTHS:
        rows = np.arange(actions + 1)
        flags = {"is_first": rows == 0, "is_last": rows == actions, "is_terminal": rows == actions}
        episodes.append(stored(rng, actions, **flags))
    name = write(tmp_path / "buffer", episodes)
    assert len(advice(open_source(name))) == 1
    source = open_source(f"{name}?align=after")
    for episode, found in zip(episodes, source, strict=True):
        assert not found.faults
        assert set(found.columns) == set(flatten(source.spec()))
        for key in ("observation", "is_first", "is_last", "is_terminal"):
            np.testing.assert_array_equal(found.columns[key], episode[key])
        np.testing.assert_array_equal(found.columns["action"][:-1], episode["action"][1:])
        assert not found.columns["action"][-1].any()


@pytest.mark.parametrize("kind", ["no zeros", "idle at first", "one episode", "numbered actions", "a reward at first"])
def test_other_rows_get_no_advice(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(5)
    episodes = [stored(rng, actions) for actions in LENGTHS]
    for episode in episodes:
        if kind == "no zeros":
            episode["action"][0] = 0.5
        elif kind == "idle at first":
            episode["action"][1] = 0
        elif kind == "numbered actions":
            episode["action"] = np.arange(len(episode["action"]))
        elif kind == "a reward at first":
            episode["reward"][0] = 1
    assert advice(open_source(write(tmp_path / "buffer", episodes[:1] if kind == "one episode" else episodes))) == []


def test_demonstrations_of_such_rows_are_told(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    with h5py.File(tmp_path / "demos.hdf5", "w") as file:
        for number, actions in enumerate(LENGTHS):
            episode = stored(rng, actions)
            group = file.create_group(f"data/demo_{number}")
            group["obs/image"], group["actions"] = episode["observation"], episode["action"]
            group["rewards"] = episode["reward"][:, 0]
    name = f"robomimic:{tmp_path / 'demos.hdf5'}"
    assert len(advice(open_source(name))) == 1
    assert advice(open_source(f"{name}?align=before")) == advice(open_source(f"{name}?align=after")) == []


def test_a_file_with_an_observation_before_its_first_action_needs_none_of_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    episodes = [stored(rng, actions) for actions in LENGTHS]
    for episode in episodes:
        episode |= {key: episode[key][:-1] for key in ("action", "reward", "discount")}
    name = write(tmp_path / "buffer", episodes)
    assert advice(open_source(name)) == []
    for found in open_source(f"{name}?align=after"):
        assert "has an observation before its first action; read it with align=before" in found.faults[0][1]
