"""What episodes call their dataset: one text for each place, whichever way it is spelled and whichever episodes are read."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from rlds2reverb.formats import open_source
from rlds2reverb.formats.buckets import canonical, path_of
from rlds2reverb.formats.identity import identity_of, with_identity
from rlds2reverb.formats.mix import MixedSource
from rlds2reverb.formats.source import Source
from tests.support.modules import CHECKOUT

CARTPOLE = CHECKOUT / "rlds2reverb" / "formats" / "datasets" / "cartpole" / "1.0.0"


def datasets(source: str | Source) -> set[str]:
    return {episode.dataset for episode in open_source(source)}


def tfds(folder: Path) -> Path:
    """The bundled dataset, with a second split of equal records."""
    version = folder / "cartpole" / "1.0.0"
    shutil.copytree(CARTPOLE, version)
    shutil.copy(version / "cartpole-train.tfrecord-00000", version / "cartpole-test.tfrecord-00000")
    info = json.loads((version / "dataset_info.json").read_text())
    info["splits"].append({**info["splits"][0], "name": "test"})
    (version / "dataset_info.json").write_text(json.dumps(info))
    return version


def npz(folder: Path, count: int = 2) -> Path:
    folder.mkdir(parents=True)
    for number in range(count):
        rows = np.arange(4.0) + number
        np.savez(folder / f"e{number}.npz", observations=rows, actions=rows, rewards=rows)
    return folder


@pytest.mark.parametrize("reader", ["", pytest.param("?reader=tfds", marks=pytest.mark.full)])
def test_splits_of_tfds_and_folders_of_one_name_differ(tmp_path: Path, reader: str) -> None:
    here, there = tfds(tmp_path / "here"), tfds(tmp_path / "there")
    train, test = f"{here}@train", f"{here}@test"
    assert datasets(f"tfds:{here}{reader}") == {train}
    assert datasets(f"tfds:{here}@test{reader}") == {test}
    assert datasets(f"tfds:{there}{reader}") == {f"{there}@train"}
    assert datasets(f"tfds:{here}@train+test[:1]{reader}") == {train, test}
    for part in ("@train[:50%]", "@train[3:]"):
        assert datasets(f"tfds:{here}{part}{reader}") == {train}


@pytest.mark.parametrize("order", ["tfds", "file"])
def test_a_part_of_tfds_has_the_dataset_of_the_whole(tmp_path: Path, order: str) -> None:
    source = open_source(f"tfds:{tfds(tmp_path)}?order={order}")
    whole = {episode.dataset for episode in source}
    for part in (source.first(2), source.slice(3, 5), source.shard(1, 3)):
        assert {episode.dataset for episode in part} == whole
    assert {episode.dataset for _, episode in source.at([2, 4])} == whole
    assert {pickle.loads(pickle.dumps(episode)).dataset for episode in source} == whole


def test_spellings_and_choices_of_a_path_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = npz(tmp_path / "data" / "x")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    monkeypatch.chdir(tmp_path / "data")
    monkeypatch.setenv("HOME", str(tmp_path))
    spellings = ("x", "./x", "x/", f"{folder}", f"{folder}/", f"{folder}/../x", "~/data/x", f"{tmp_path}/link/x")
    for spelling in spellings:
        for option in ("", "?episodes=1:", "?last_step=repeat", "?episodes=0"):
            assert datasets(f"npz:{spelling}{option}") == {str(folder)}, spelling
    source = open_source("npz:x")
    for part in (source.first(1), source.shard(1, 2), source.without(["reward"])):
        assert {episode.dataset for episode in part} == {str(folder)}


def test_a_pattern_keeps_its_dataset_when_files_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = npz(tmp_path / "x", 1)
    monkeypatch.chdir(tmp_path)
    assert datasets("npz:x/e*.npz") == datasets(f"npz:{folder}/e*.npz") == {f"{folder}/e*.npz"}
    shutil.copy(folder / "e0.npz", folder / "e1.npz")
    assert datasets("npz:x/e*.npz") == {f"{folder}/e*.npz"}
    assert datasets("npz:x/e[1].npz") != datasets("npz:x/e[0].npz")


def test_several_paths_of_rllib_are_all_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"type": "SampleBatch", "obs": [[0.0]] * 2, "actions": [0, 1], "rewards": [0.0, 1.0], "eps_id": [1, 1]}
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "out.json").write_text(json.dumps({**row, "terminateds": [False, True]}) + "\n")
    monkeypatch.chdir(tmp_path)
    both = f"{tmp_path}/a;{tmp_path}/b"
    assert datasets("rllib:a") == datasets("rllib:a/") == {f"{tmp_path}/a"}
    assert datasets("rllib:a;b/") == datasets(f"rllib:{tmp_path}/a; {tmp_path}/./b") == {both}


def test_a_dataset_that_is_looked_up_by_name_lies_where_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = tfds(tmp_path)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert datasets("tfds:cartpole") == datasets("tfds:cartpole:1.0.0") == {f"{version}@train"}
    assert datasets("bundled:cartpole") == {f"{os.path.realpath(CARTPOLE)}@train"}


def test_ids_of_two_splits_are_two_episodes_and_parts_of_a_mix_have_their_own_place(tmp_path: Path) -> None:
    version = tfds(tmp_path)
    names = [f"tfds:{version}{split}[:1]" for split in ("@train", "@test")]
    identity = identity_of("id=seed")
    apart = [episode.id for name in names for episode in with_identity(open_source(name), identity)]
    mix = MixedSource([open_source(name) for name in names])
    assert sorted(episode.id for episode in with_identity(mix, identity)) == sorted(apart)
    assert len(set(apart)) == 2


def test_spellings_of_a_place_in_a_bucket_agree() -> None:
    spellings = ("s3://b/x/y", "s3://b/x/y/", "s3://b/x/./y", "s3://b/x/z/../y")
    assert {canonical(path_of(spelling)) for spelling in spellings} == {"s3://b/x/y"}
