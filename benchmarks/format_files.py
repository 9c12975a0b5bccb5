"""Half-cheetah episodes in the files of other systems, written as these lay them out, and read back by the bare library.

Each format has a function that writes so many episodes into a folder and gives the source's name, and one that reads every value
with the library that the files are made for, as plain loops over arrays do. Both are held to the same number of steps.
"""

from __future__ import annotations

import io
import itertools
import json
import pickle
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cramjam
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from benchmarks import data
from rlds2reverb.episodes import Array

TRANSITIONS = data.STEPS - 1
"""Actions of an episode."""

Columns = dict[str, Array]

_FLAGS = ("done", "terminated", "truncated")


@dataclass(frozen=True)
class FormatFiles:
    """One format.

    Attributes:
      name: of the benchmark's case.
      write: (folder, episodes) -> the source's name.
      read: folder -> how many transitions the bare library read.
      share: of the benchmark's items; formats that hold each step as text or as a file of its own get fewer.
      is_pushed: whether its steps are those of the TFDS dataset, so that pushes can be compared.
      is_mapped: whether the bare library does nothing but copy memory.
    """

    name: str
    write: Callable[[Path, int], str]
    read: Callable[[Path], int]
    share: float = 1.0
    is_pushed: bool = True
    is_mapped: bool = False


def episodes(count: int) -> Iterator[Columns]:
    """T + 1 observations, T of all else."""
    for one in itertools.islice(itertools.cycle(data.half_cheetah()), count):
        ends = np.arange(TRANSITIONS) == TRANSITIONS - 1
        yield {
            "observations": one["observation"],
            "actions": one["action"][:-1],
            "rewards": one["reward"][:-1],
            "ends": ends,
        }


def _write_minari(folder: Path, count: int) -> str:
    made = folder / "cheetah" / "bench-v0" / "data"
    made.mkdir(parents=True)
    with h5py.File(made / "main_data.hdf5", "w", track_order=True) as file:
        for number, one in enumerate(episodes(count)):
            group = file.create_group(f"episode_{number}")
            group.attrs["id"], group.attrs["total_steps"] = number, TRANSITIONS
            for key in ("observations", "actions", "rewards"):
                group.create_dataset(key, data=one[key], maxshape=(None, *one[key].shape[1:]), chunks=True)
            group.create_dataset("terminations", data=one["ends"] & False, maxshape=(None,), chunks=True)
            group.create_dataset("truncations", data=one["ends"], maxshape=(None,), chunks=True)
    return _told_of_minari(made, count, "hdf5")


def _told_of_minari(data_folder: Path, count: int, data_format: str) -> str:
    about = {
        "total_episodes": count,
        "total_steps": count * TRANSITIONS,
        "data_format": data_format,
        "dataset_id": "cheetah/bench-v0",
        "minari_version": "0.5.3",
        "observation_space": json.dumps(_box(17)),
        "action_space": json.dumps(_box(6)),
    }
    (data_folder / "metadata.json").write_text(json.dumps(about))
    return f"minari:{data_folder.parent}"


def _box(size: int) -> dict[str, Any]:
    bounds = {"low": [float("-inf")] * size, "high": [float("inf")] * size}
    return {"type": "Box", "dtype": "float32", "shape": [size], **bounds}


def _read_minari(folder: Path) -> int:
    with h5py.File(folder / "cheetah" / "bench-v0" / "data" / "main_data.hdf5") as file:
        steps = 0
        for number in range(len(file)):
            group = file[f"episode_{number}"]
            columns = [group[key][()] for key in ("observations", "actions", "rewards", "terminations", "truncations")]
            steps += len(columns[1])
    return steps


def _write_minari_parquet(folder: Path, count: int) -> str:
    """A folder for each episode; columns of actions end with a filling."""
    made = folder / "cheetah" / "bench-v0" / "data"
    for number, one in enumerate(episodes(count)):
        (made / str(number)).mkdir(parents=True)
        filled = {key: np.concatenate([column, column[-1:]]) for key, column in one.items() if key != "observations"}
        columns = {
            "observations": fixed(one["observations"]),
            "actions": fixed(filled["actions"]),
            "rewards": pa.array(filled["rewards"]),
            "terminations": pa.array(filled["ends"] & False),
            "truncations": pa.array(filled["ends"]),
        }
        pq.write_table(pa.table(columns), made / str(number) / "data.parquet")
        (made / str(number) / "metadata.json").write_text(json.dumps({"id": number, "total_steps": TRANSITIONS}))
    return _told_of_minari(made, count, "parquet")


def _read_minari_parquet(folder: Path) -> int:
    return sum(
        read_numbers(pq.read_table(path)) - 1 for path in (folder / "cheetah" / "bench-v0" / "data").rglob("*.parquet")
    )


def _write_d4rl(folder: Path, count: int) -> str:
    path = folder / "cheetah.hdf5"
    made = list(episodes(count))
    with h5py.File(path, "w") as file:
        file["observations"] = np.concatenate([one["observations"][:-1] for one in made])
        file["next_observations"] = np.concatenate([one["observations"][1:] for one in made])
        for key in ("actions", "rewards"):
            file[key] = np.concatenate([one[key] for one in made])
        file["timeouts"] = np.concatenate([one["ends"] for one in made])
        file["terminals"] = np.zeros(count * TRANSITIONS, bool)
    return f"d4rl:{path}"


def _read_d4rl(folder: Path) -> int:
    """By the episode, as the memory of a reader that is to be compared."""
    with h5py.File(folder / "cheetah.hdf5") as file:
        keys = ("observations", "next_observations", "actions", "rewards", "terminals")
        stops = np.flatnonzero(file["timeouts"][()]) + 1
        for start, stop in zip([0, *stops], stops):
            columns = [file[key][start:stop] for key in keys]
            assert len(columns[0]) == TRANSITIONS
    return int(stops[-1])


def _write_robomimic(folder: Path, count: int) -> str:
    path = folder / "demos.hdf5"
    with h5py.File(path, "w") as file:
        group = file.create_group("data")
        group.attrs["total"], group.attrs["env_args"] = count * TRANSITIONS, json.dumps({"env_name": "x", "type": 1})
        for number, one in enumerate(episodes(count)):
            demo = group.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = TRANSITIONS
            demo["obs/state"], demo["next_obs/state"] = one["observations"][:-1], one["observations"][1:]
            demo["actions"], demo["rewards"], demo["dones"] = (
                one["actions"],
                one["rewards"],
                one["ends"].astype(np.int64),
            )
    return f"robomimic:{path}"


def _read_robomimic(folder: Path) -> int:
    steps = 0
    with h5py.File(folder / "demos.hdf5") as file:
        for number in range(len(file["data"])):
            demo = file[f"data/demo_{number}"]
            columns = [demo[key][()] for key in ("obs/state", "next_obs/state", "actions", "rewards", "dones")]
            steps += len(columns[2])
    return steps


def _write_ted(folder: Path, count: int) -> str:
    """TorchRL's H5 checkpoint."""
    path = folder / "checkpoint.h5"
    width = int(np.ceil(np.log10(count))) if count > 1 else 0
    with h5py.File(path, "w") as file:
        for number, one in enumerate(episodes(count)):
            group = file.create_group(f"traj_{number:0{width}d}")
            group["observation"], group["action"] = one["observations"], one["actions"]
            group["reward"] = one["rewards"][:, None]
            group["done"] = group["truncated"] = one["ends"][:, None]
            group["terminated"] = (one["ends"] & False)[:, None]
        file["_len"], file["is_full"], file["shift"] = count * TRANSITIONS, True, 0
    return f"ted:{path}"


def _read_ted(folder: Path) -> int:
    steps = 0
    with h5py.File(folder / "checkpoint.h5") as file:
        for name in file:
            if name.startswith("traj_"):
                columns = [file[name][key][()] for key in file[name]]
                steps += len(columns[0])
    return steps


def _write_ted_memmap(folder: Path, count: int) -> str:
    """What a ReplayBuffer of one memory-mapped storage dumps; a row holds what came after its step, too."""
    made = folder / "buffer" / "storage"
    held = list(episodes(count))
    joined = {key: np.concatenate([one[key] for one in held]) for key in ("actions", "rewards", "ends")}
    flags = {"done": joined["ends"], "truncated": joined["ends"], "terminated": joined["ends"] & False}
    root = {key: np.zeros_like(flag[:, None]) for key, flag in flags.items()} | {
        "observation": np.concatenate([one["observations"][:-1] for one in held]),
        "action": joined["actions"],
    }
    after = {key: flag[:, None] for key, flag in flags.items()} | {
        "observation": np.concatenate([one["observations"][1:] for one in held]),
        "reward": joined["rewards"][:, None],
    }
    _write_tensors(made, root)
    _write_tensors(made / "next", after)
    (made / "storage_metadata.json").write_text(json.dumps({"is_pytree": False, "len": count * TRANSITIONS}))
    return f"ted:{folder / 'buffer'}"


def _write_tensors(folder: Path, columns: Columns) -> None:
    """A TensorDict in a folder."""
    folder.mkdir(parents=True)
    rows = len(next(iter(columns.values())))
    about: dict[str, Any] = {"shape": [rows], "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>"}
    for key, column in columns.items():
        about[key] = {"device": "cpu", "shape": list(column.shape), "dtype": f"torch.{column.dtype}"}
        column.tofile(folder / f"{key}.memmap")
    (folder / "meta.json").write_text(json.dumps(about))


def _read_ted_memmap(folder: Path) -> int:
    """By the trajectory, with what came after its last step at the end."""
    storage = folder / "buffer" / "storage"
    sizes = {"observation": 17, "action": 6}
    root, after = (
        {
            key: np.memmap(place / f"{key}.memmap", bool if key in _FLAGS else np.float32, "r").reshape(
                -1, sizes.get(key, 1)
            )
            for key in keys
        }
        for place, keys in (
            (storage, ("observation", "action")),
            (storage / "next", ("observation", "reward", *_FLAGS)),
        )
    )
    stops = np.flatnonzero(after["done"]) + 1
    for start, stop in zip([0, *stops], stops):
        observations = np.concatenate([root["observation"][start:stop], after["observation"][stop - 1 : stop]])
        columns = [
            np.array(root["action"][start:stop]),
            *(np.array(after[key][start:stop]) for key in ("reward", *_FLAGS)),
        ]
        assert len(observations) == len(columns[0]) + 1
    return int(stops[-1])


def write_lerobot(folder: Path, count: int) -> str:
    """Version 3.0, with files of at most 100 episodes."""
    rows: list[dict[str, Any]] = []
    (folder / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
    (folder / "data" / "chunk-000").mkdir(parents=True)
    per_file = 100
    made = episodes(count)
    for file_number in range(-(-count // per_file)):
        tables = []
        for number in range(file_number * per_file, min(count, (file_number + 1) * per_file)):
            one = next(made)
            start = number * TRANSITIONS
            at = np.arange(TRANSITIONS)
            columns = {
                "observation.state": fixed(one["observations"][:-1]),
                "action": fixed(one["actions"]),
                "next.reward": pa.array(one["rewards"]),
                "next.done": pa.array(one["ends"]),
                "timestamp": pa.array((at / 50).astype(np.float32)),
                "frame_index": pa.array(at),
                "episode_index": pa.array(np.full(TRANSITIONS, number)),
                "index": pa.array(start + at),
                "task_index": pa.array(np.zeros(TRANSITIONS, np.int64)),
            }
            tables.append(pa.table(columns))
            where = {"data/chunk_index": 0, "data/file_index": file_number}
            whole = {"dataset_from_index": start, "dataset_to_index": start + TRANSITIONS}
            rows.append({"episode_index": number, "tasks": ["run"], "length": TRANSITIONS, **where, **whole})
        pq.write_table(pa.concat_tables(tables), folder / "data" / "chunk-000" / f"file-{file_number:03d}.parquet")
    pq.write_table(pa.Table.from_pylist(rows), folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    tasks = pa.table({"task_index": pa.array([0]), "task": pa.array(["run"])})
    pq.write_table(tasks, folder / "meta" / "tasks.parquet")
    one_number = {"shape": [1], "names": None}
    features = {
        "observation.state": {"dtype": "float32", "shape": [17], "names": None},
        "action": {"dtype": "float32", "shape": [6], "names": None},
        "next.reward": {"dtype": "float32", **one_number},
        "next.done": {"dtype": "bool", **one_number},
        "timestamp": {"dtype": "float32", **one_number},
        **{key: {"dtype": "int64", **one_number} for key in ("frame_index", "episode_index", "index", "task_index")},
    }
    about = {
        "codebase_version": "v3.0",
        "robot_type": None,
        "fps": 50,
        "features": features,
        "splits": {"train": f"0:{count}"},
        "total_episodes": count,
        "total_frames": count * TRANSITIONS,
        "total_tasks": 1,
        "chunks_size": 1000,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": None,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
    }
    (folder / "meta" / "info.json").write_text(json.dumps(about))
    return f"lerobot:{folder}"


def fixed(column: Array) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(column.ravel()), column.shape[1])


def _read_lerobot(folder: Path) -> int:
    return sum(read_numbers(pq.read_table(path)) for path in sorted((folder / "data").rglob("*.parquet")))


def read_numbers(table: pa.Table) -> int:
    """Columns of numbers, of lists of one length and of text as arrays; how many rows there are."""
    for name in table.column_names:
        column = table[name].combine_chunks()
        values = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
        values.to_numpy(zero_copy_only=False)
    return int(table.num_rows)


def _write_rllib(folder: Path, count: int) -> str:
    with (folder / "output-2024-01-01_00-00-00_worker-0_0.json").open("w") as file:
        for number, one in enumerate(episodes(count)):
            batch = {
                "obs": one["observations"][:-1],
                "new_obs": one["observations"][1:],
                "actions": one["actions"],
                "rewards": one["rewards"],
                "terminateds": one["ends"] & False,
                "truncateds": one["ends"],
                "eps_id": np.full(TRANSITIONS, number),
                "t": np.arange(TRANSITIONS),
            }
            file.write(
                json.dumps({"type": "SampleBatch", **{key: value.tolist() for key, value in batch.items()}}) + "\n"
            )
    return f"rllib:{folder}"


def _read_rllib(folder: Path) -> int:
    steps = 0
    for path in folder.glob("*.json"):
        with path.open() as file:
            for line in file:
                batch = json.loads(line)
                columns = [np.asarray(value) for key, value in batch.items() if key != "type"]
                steps += len(columns[0])
    return steps


def _write_ilr(folder: Path, count: int) -> str:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        _add(tar, "_metadata.meta.pickle", {"env_cfg": {"benchmark_name": "dm_control"}})
        at = 0
        for one in episodes(count):
            for t in range(TRANSITIONS):
                frame = {
                    "acts": one["actions"][t],
                    "dones": one["ends"][t],
                    "frame": at,
                    "next_obs": one["observations"][t + 1],
                    "obs": one["observations"][t],
                    "rews": one["rewards"][t],
                }
                for key, value in frame.items():
                    _add(tar, f"frame_{at:03d}.{key}.pickle", value)
                at += 1
    (folder / "demos.tar.zst").write_bytes(bytes(cramjam.zstd.compress(out.getvalue(), level=3)))
    return f"ilr:{folder / 'demos.tar.zst'}"


def _add(tar: tarfile.TarFile, name: str, value: Any) -> None:
    written = pickle.dumps(value, protocol=4)
    about = tarfile.TarInfo(name)
    about.size = len(written)
    tar.addfile(about, io.BytesIO(written))


def _read_ilr(folder: Path) -> int:
    """With the plain unpickler, which is what il-representations uses."""
    steps = 0
    written = bytes(cramjam.zstd.decompress((folder / "demos.tar.zst").read_bytes()))
    with tarfile.open(fileobj=io.BytesIO(written)) as tar:
        for member in tar:
            file = tar.extractfile(member)
            if file is not None:
                pickle.loads(file.read())
                steps += member.name.endswith(".acts.pickle")
    return steps


def _write_npz(folder: Path, count: int) -> str:
    for number, one in enumerate(episodes(count)):
        arrays = {**one, "terminals": one["ends"] & False, "timeouts": one["ends"]}
        del arrays["ends"]
        np.savez(folder / f"episode_{number:06d}.npz", **arrays)
    return f"npz:{folder}"


def _read_npz(folder: Path) -> int:
    steps = 0
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as file:
            columns = {key: file[key] for key in file}
        steps += len(columns["actions"])
    return steps


FORMATS = (
    FormatFiles("minari", _write_minari, _read_minari),
    FormatFiles("minari_parquet", _write_minari_parquet, _read_minari_parquet),
    FormatFiles("d4rl", _write_d4rl, _read_d4rl),
    FormatFiles("robomimic", _write_robomimic, _read_robomimic),
    FormatFiles("npz", _write_npz, _read_npz),
    FormatFiles("ted", _write_ted, _read_ted),
    FormatFiles("ted_memmap", _write_ted_memmap, _read_ted_memmap, is_mapped=True),
    FormatFiles("lerobot", write_lerobot, _read_lerobot),
    FormatFiles("rllib", _write_rllib, _read_rllib, share=0.1),
    FormatFiles("ilr", _write_ilr, _read_ilr, share=0.1),
)
