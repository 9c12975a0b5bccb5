"""Shards as il-representations writes them (`write_frames` with webdataset 0.1's TarWriter), and demonstrations as benchmarks do."""

from __future__ import annotations

import gzip
import io
import pickle
import sys
import tarfile
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import cramjam
import numpy as np


def _inflate_object(kind: Any, options: Any) -> None:
    raise AssertionError("is named, and never called")


class _Space:
    """A space that pickles as il-representations' does."""

    def __init__(self, kind: Any, options: dict[str, Any]) -> None:
        self.kind, self.options = kind, options

    def __reduce__(self) -> Any:
        return sys.modules["il_representations.envs.utils"]._inflate_object, (self.kind, self.options)


@contextmanager
def home_modules() -> Iterator[None]:
    """The modules that the pickles name, for as long as they are written."""
    enum = Enum("ColorSpace", {"RGB": "RGB", "GRAY": "GRAY"}, module="imitation.augment.color")
    inside: dict[str, dict[str, Any]] = {
        "il_representations.envs.utils": {"_inflate_object": _inflate_object},
        "gym.spaces.box": {"Box": type("Box", (), {})},
        "gym.spaces.discrete": {"Discrete": type("Discrete", (), {})},
        "imitation.augment.color": {"ColorSpace": enum},
    }
    modules: dict[str, Any] = {}
    for name, things in inside.items():
        for parent in (name.rsplit(".", end)[0] for end in range(3)):
            modules.setdefault(parent, types.ModuleType(parent))
        modules[name] = types.ModuleType(name)
        for key, thing in things.items():
            thing.__module__ = name
            setattr(modules[name], key, thing)
    with mock.patch.dict(sys.modules, modules):
        yield


def description(observation: Any, actions: int = 3, task: str = "Toy-v0", color: str = "RGB") -> bytes:
    """The metadata member."""
    with home_modules():
        box, discrete = sys.modules["gym.spaces.box"].Box, sys.modules["gym.spaces.discrete"].Discrete
        low = np.zeros_like(observation)
        meta = {
            "env_cfg": {"__doc__": "Minimal", "benchmark_name": "toy", "task_name": task},
            "action_space": _Space(discrete, {"n": actions}),
            "observation_space": _Space(box, {"low": low, "high": low + 1, "shape": low.shape, "dtype": low.dtype}),
            "color_space": sys.modules["imitation.augment.color"].ColorSpace(color),
        }
        return pickle.dumps(meta, 4)


def frames(trajectories: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """One dictionary per step of trajectories of columns [T, ...]."""
    for trajectory in trajectories:
        for step in range(len(trajectory["obs"])):
            yield {key: column[step] for key, column in trajectory.items()}


def archive(steps: Iterable[Mapping[str, Any]], first: bytes | None, protocol: int = 4, start: int = 0) -> bytes:
    """The tar archive of some steps."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        if first is not None:
            _add(tar, "_metadata.meta.pickle", first)
        for number, step in enumerate(steps, start):
            for key, value in sorted({**step, "frame": number}.items()):
                _add(tar, f"frame_{number:03d}.{key}.pickle", pickle.dumps(value, protocol))
    return packed.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.uname, member.gname, member.mtime = (
        len(data),
        0o444,
        "bigdata",
        "bigdata",
        1606235963,
    )
    tar.addfile(member, io.BytesIO(data))


def trajectory(
    rng: np.random.Generator, steps: int, size: int = 4, with_rewards: bool = True, is_done: bool = True
) -> dict[str, Any]:
    """The columns of one trajectory, observations of uint8 [size]."""
    seen = rng.integers(0, 256, (steps + 1, size), np.uint8)
    made: dict[str, Any] = {
        "obs": seen[:-1],
        "next_obs": seen[1:],
        "acts": rng.integers(0, 3, steps),
        "dones": (np.arange(steps) == steps - 1) & is_done,
        "infos": [{"state": rng.random(2), "note": f"step {at}"} for at in range(steps)],
    }
    if with_rewards:
        made["rews"] = rng.random(steps).astype(np.float32)
    return made


def joined(trajectories: list[Any]) -> dict[str, Any]:
    """The dict format."""
    found = {
        key: np.concatenate([recorded[key] for recorded in trajectories]) for key in trajectories[0] if key != "infos"
    }
    infos = np.empty(len(found["obs"]), object)
    infos[:] = [info for recorded in trajectories for info in recorded["infos"]]
    return {**found, "infos": infos}


def shard(path: Path, trajectories: Iterable[Mapping[str, Any]], *, task: str = "Toy-v0") -> Path:
    """Writes a shard, compressed where its name ends in .zst."""
    made = list(trajectories)
    data = archive(frames(made), description(np.asarray(made[0]["obs"][0]), task=task))
    path.write_bytes(bytes(cramjam.zstd.compress(data)) if path.name.endswith(".zst") else data)
    return path


class MAGICALTrajectory(NamedTuple):
    acts: Any
    obs: Any
    rews: Any
    infos: Any


class TrajectoryWithRew:
    def __init__(self, fields: Mapping[str, Any]) -> None:
        vars(self).update(fields)


def magical(path: Path, *fields: Any) -> None:
    """A demonstration of MAGICAL: its acts, obs, rews and infos."""
    value = {"trajectory": MAGICALTrajectory(*fields), "score": 1.0, "env_name": "Toy-v0"}
    _packed(path, value, MAGICALTrajectory, "magical.saved_trajectories")


def dm_control(path: Path, trajectories: Iterable[Mapping[str, Any]]) -> None:
    """A list of imitation's trajectories, each by its fields."""
    value = [TrajectoryWithRew(fields) for fields in trajectories]
    _packed(path, value, TrajectoryWithRew, "imitation.data.types")


def _packed(path: Path, value: Any, kind: Any, module: str) -> None:
    """Pickles values of a class as one of another module."""
    parents = [module.rsplit(".", at)[0] for at in range(module.count(".") + 1)]
    modules = {name: types.ModuleType(name) for name in parents}
    setattr(modules[module], kind.__name__, kind)
    renamed = mock.patch.object(kind, "__module__", module)
    with mock.patch.dict(sys.modules, modules), renamed, gzip.open(path, "wb") as file:
        pickle.dump(value, file)
