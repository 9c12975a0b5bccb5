"""The folders that TorchRL's dataset classes leave on disk, made by their own code of small files in place of a download.

.venv-learners/bin/python -m pytest tests/systems/storage/test_ted_datasets.py
"""

from __future__ import annotations

import gzip
import io
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

pytest.importorskip("torchrl")

import torch
from tensordict import TensorDict
from torchrl.data import TensorStorage
from torchrl.data.datasets import atari_dqn, common, gen_dgrl, openx, roboset, vd4rl

from rlds2reverb.episode import Array, Episode
from rlds2reverb.formats import open_source

RNG = np.random.default_rng(7)


def ends(*lengths: int) -> Array:
    """[sum] bool, true on the last step of each."""
    return np.concatenate([np.arange(length) == length - 1 for length in lengths])


def frames(count: int, *shape: int) -> Array:
    return RNG.integers(1, 255, (count, *(shape or (3, 4, 4))), np.uint8)


def codes(name: str) -> set[str]:
    return {notice.code for notice in open_source(name).notices}


def check(episodes: Sequence[Episode], wanted: Sequence[Mapping[str, Array]]) -> None:
    """Each column begins with these rows."""
    assert len(episodes) == len(wanted)
    for episode, rows in zip(episodes, wanted):
        assert not episode.faults
        assert len(episode) == len(rows["action"]) + 1
        for path, values in rows.items():
            np.testing.assert_array_equal(episode.columns[path][: len(values)], values, path)


def make_atari_split(folder: Path, run: int, lengths: Sequence[int], capacity: int, added: int) -> dict[str, Array]:
    """What AtariDQNExperienceReplay makes of a checkpoint of Dopamine's ring; its steps in the order of recording."""
    rows = {
        "observation": frames(capacity, 4, 4),
        "action": RNG.integers(0, 4, capacity).astype(np.int32),
        "reward": RNG.normal(size=capacity).astype(np.float32),
        "terminal": np.resize(ends(*lengths), capacity).astype(np.uint8),
    }
    turned = {
        name: np.roll(values, added % capacity, 0) if added > capacity else values for name, values in rows.items()
    }
    raw = {f"$store$_{name}_ckpt": values for name, values in turned.items()}
    raw |= {"add_count_ckpt": np.array(added), "invalid_range_ckpt": np.arange(5)}
    files = []
    for name, values in raw.items():
        file = folder / f"{name}.{run}.gz"
        with gzip.open(file, "wb") as output:
            np.save(output, values)
        files.append(str(file))
    atari = atari_dqn.AtariDQNExperienceReplay
    atari._preproc_run(folder / "Pong" / "5" / str(run), atari._list_runs(None, files), run)
    return rows


def test_atari_dqn(tmp_path: Path) -> None:
    """A full ring, one that was written over, and one that was not filled."""
    rings = [(0, 12), (1, 31), (2, 10)]
    rows = {run: make_atari_split(tmp_path, run, (5, 4), 12, added) for run, added in rings}
    name = f"ted:{tmp_path / 'Pong' / '5'}"
    wanted: list[dict[str, Array]] = []
    for run, added in rings:
        stops = [5, 9, min(added, 12)]
        for start, stop in zip([0, *stops], stops):
            of_steps = {key: values[start:stop] for key, values in rows[run].items() if key != "terminal"}
            last = rows[run]["observation"][stop - 1 : stop]
            wanted.append({**of_steps, "observation": np.concatenate([of_steps["observation"], last])})
    episodes = list(open_source(name))
    check(episodes, wanted)
    assert [bool(episode.columns["is_terminal"][-1]) for episode in episodes] == [True, True, False] * 3
    assert episodes[0].metadata["dataset_id"] == b"Pong/5"
    assert {"no_end", "cut_start"} == codes(name)
    check(list(open_source(f"{name}/1")), wanted[3:6])
    # TorchRL's own reading of the steps, of which those of a ring that was written over stand in the order of the file.
    storage: Any = atari_dqn._AtariStorage(tmp_path / "Pong" / "5")
    np.testing.assert_array_equal(storage.get(slice(0, 12))["observation"].numpy(), rows[0]["observation"])


def test_gen_dgrl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths, wanted = (5, 3, 4), []
    with tarfile.open(tmp_path / "bigfish.tar.xz", "w:xz") as archive:
        for number, length in enumerate(lengths):
            held = {
                "observations": frames(length + 1),
                "actions": RNG.integers(0, 15, length),
                "rewards": RNG.normal(size=length).astype(np.float32),
                "dones": ends(length),
            }
            wanted.append({"observation": held["observations"], "action": held["actions"], "reward": held["rewards"]})
            data = io.BytesIO()
            np.save(data, held, allow_pickle=True)  # type: ignore[arg-type]
            info = tarfile.TarInfo(f"bigfish/{number}.npy")
            info.size = data.tell()
            data.seek(0)
            archive.addfile(info, data)
    kind: Any = gen_dgrl.GenDGRLExperienceReplay
    monkeypatch.setattr(kind, "_get_category_len", classmethod(lambda *_: 20))
    dataset = object.__new__(kind)
    vars(dataset).update(split_trajs=False, dataset_id="bigfish-1M_E", _root=tmp_path)
    dataset._unpack_category_file(str(tmp_path), True, "1M_E", ("1M_E", "bigfish.tar.xz", ""))
    name = f"ted:{tmp_path / 'bigfish-1M_E'}"
    check(list(open_source(name)), wanted)
    assert codes(name) == {"unwritten"}


def make_roboset(folder: Path) -> tuple[Any, list[dict[str, Array]]]:
    files, wanted = [], {}
    for seed in range(2):
        files.append(str(folder / f"seed{seed}.h5"))
        with h5py.File(files[-1], "w") as file:
            for trial, length in enumerate((5, 3)):
                rows = {
                    "actions": RNG.normal(size=(length, 2)).astype(np.float32),
                    "observations": RNG.normal(size=(length, 3)).astype(np.float32),
                    "rewards": RNG.normal(size=length).astype(np.float32),
                    "done": ends(length),
                    "env_infos/qpos": RNG.normal(size=(length, 4)),
                }
                for key, values in rows.items():
                    file[f"Trial{trial}/{key}"] = values
                wanted[trial, seed] = {
                    "action": rows["actions"],
                    "observation": rows["observations"],
                    "reward": rows["rewards"],
                    "info/qpos": rows["env_infos/qpos"],
                }
    kind: Any = roboset.RobosetExperienceReplay
    dataset = object.__new__(kind)
    vars(dataset).update(split_trajs=False, dataset_id="DAPG(expert)/door", _root=folder / "roboset")
    dataset._preproc_h5(files)
    return dataset, [wanted[key] for key in sorted(wanted)]


def test_roboset(tmp_path: Path) -> None:
    """Trials of several files have the same numbers, so end flags divide them; the observation after the last step is 0."""
    dataset, wanted = make_roboset(tmp_path)
    name = f"ted:{dataset.data_path}"
    assert codes(name) >= {"done_inside", "no_last_observation"}
    check(list(open_source(f"{name}?trajectories=done")), wanted)
    episodes = list(open_source(f"{name}?trajectories=done,next=drop"))
    check(episodes, wanted)
    for episode in episodes:
        np.testing.assert_array_equal(episode.columns["observation"][-1], episode.columns["observation"][-2])
    marked = list(open_source(f"{name}?trajectories=done,next=drop,last_step=mark"))
    assert [len(episode) for episode in marked] == [5, 5, 3, 3]
    dataset.split_trajs = True
    dataset._make_split()  # [4, 5] with a mask
    check(list(open_source(f"ted:{dataset.data_path}")), wanted)


def test_preprocess(tmp_path: Path) -> None:
    dataset, wanted = make_roboset(tmp_path)
    held = SimpleNamespace(_storage=TensorStorage(TensorDict.load_memmap(dataset.data_path)))
    preprocess: Any = common.BaseDatasetExperienceReplay.preprocess
    preprocess(held, with_norm, num_workers=1, num_chunks=2, mp_start_method="fork", dest=tmp_path / "normed")
    episodes = list(open_source(f"ted:{tmp_path / 'normed'}?trajectories=done"))
    check(episodes, wanted)
    norms = np.linalg.norm(wanted[0]["observation"], axis=-1)
    np.testing.assert_allclose(episodes[0].columns["obs_norm"][:-1], norms, rtol=1e-6)


def with_norm(data: Any) -> Any:
    return data.set("obs_norm", data.get("observation").norm(dim=-1))


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_vd4rl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Files of npz say where episodes end by is_last, those of HDF5 by step_type."""
    names, wanted = [], []
    for number, length in enumerate((6, 4)):
        last = ends(length)
        first = last[::-1]
        rows: dict[str, Array] = {
            "action": RNG.normal(size=(length, 2)).astype(np.float32),
            "reward": RNG.normal(size=length).astype(np.float32),
            "discount": np.ones(length, np.float32),
        }
        pixels = frames(length)
        names.append(f"v{number}.{kind}")
        if kind == "npz":
            flags = {"is_first": first, "is_last": last, "is_terminal": np.zeros_like(last)}
            np.savez(tmp_path / names[-1], image=pixels, **flags, **rows)
        else:
            rows["step_type"] = np.where(first, 0, np.where(last, 2, 1))
            with h5py.File(tmp_path / names[-1], "w") as file:
                for key, values in {**rows, "observation": pixels}.items():
                    file[key] = values
        observed = "observation/pixels" if kind == "hdf5" else "observation"
        wanted.append({"action": rows["action"], "reward": rows["reward"], observed: pixels})
    listed = {Path("vd4rl/main/walker"): [Path(name) for name in names]}
    replay: Any = vd4rl.VD4RLExperienceReplay
    monkeypatch.setattr(replay, "_parse_datasets", classmethod(lambda *_: listed))
    monkeypatch.setattr(
        replay, "_hf_hub_download", classmethod(lambda *arguments, tmpdir: str(tmp_path / arguments[2]))
    )
    replay._download_and_preproc("main/walker", tmp_path / "made", 0)
    name = f"ted:{tmp_path / 'made'}"
    check(list(open_source(name)), wanted)
    assert codes(name) == {"keys", "no_last_observation"}


def test_openx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [
        {
            "observation/state": RNG.normal(size=(length, 3)).astype(np.float32),
            "observation/view": frames(length),
            "action": RNG.normal(size=(length, 2)).astype(np.float32),
            "reward": ends(length).astype(np.float32),
            "language_instruction": np.array([f"do {length} ü".encode()] * length, object),
        }
        for length in (5, 3, 4)
    ]

    def read_steps(rows: Mapping[str, Array]) -> list[dict[str, Any]]:
        last = ends(len(rows["action"]))
        return [
            {
                "observation": {name: torch.tensor(rows[f"observation/{name}"][step]) for name in ("state", "view")},
                "action": torch.tensor(rows["action"][step]),
                "reward": torch.tensor(rows["reward"][step]),
                "is_first": torch.tensor(step == 0),
                "is_last": torch.tensor(last[step]),
                "is_terminal": torch.tensor(last[step]),
                "language_instruction": rows["language_instruction"][step].decode(),
            }
            for step in range(len(last))
        ]

    class Episodes:
        def __len__(self) -> int:
            return len(wanted)

        def __iter__(self) -> Any:
            return ({"data.pickle": {"steps": read_steps(rows)}} for rows in wanted)

    library = ModuleType("datasets")
    vars(library)["load_dataset"] = lambda *_, **__: Episodes()
    monkeypatch.setitem(sys.modules, "datasets", library)
    monkeypatch.setattr(openx, "_has_datasets", True)
    kind: Any = openx.OpenXExperienceReplay
    dataset = object.__new__(kind)
    vars(dataset).update(dataset_id="cmu_stretch", _root=tmp_path, streaming=False, split_trajs=False)
    dataset._download_and_preproc()
    name = f"ted:{tmp_path / 'cmu_stretch'}"
    episodes = list(open_source(name))
    check(episodes, wanted)
    assert [bool(episode.columns["is_terminal"][-1]) for episode in episodes] == [True] * 3
    assert codes(name) == {"no_last_observation"}
    check(list(open_source(f"{name}?next=drop")), wanted)
