"""The buffers that TorchRL made (tests/data/make_ted.py), and what it loads of them, put together step by step."""

from __future__ import annotations

import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episode import Array

ARCHIVES = sorted((Path(__file__).parents[2] / "data" / "ted").glob("*.tar.xz"))
VERSIONS = [path.name.removesuffix(".tar.xz") for path in ARCHIVES]


@cache
def folder(version: str) -> Path:
    """The buffers of a version, unpacked."""
    into = Path(tempfile.mkdtemp())
    with tarfile.open(ARCHIVES[VERSIONS.index(version)]) as archive:
        archive.extractall(into, filter="data")
    return into


def expected(version: str, name: str) -> dict[str, Array]:
    """Key, '/'-joined -> the rows of the storage; `start` and `stop` of trajectories."""
    with np.load(folder(version) / name / "expected.npz") as held:
        return {key.removeprefix("keys.").replace(".", "/"): held[key] for key in held.files}


def trajectories(held: dict[str, Array]) -> list[dict[str, Array]]:
    """RLDS' columns of each trajectory, step by step, in the order of their ids."""
    rows = len(held["action"])
    return sorted(
        (_episode(held, first, last, rows) for first, last in zip(held["start"], held["stop"])),
        key=lambda one: (one["trajectory_id"], len(one["action"])),
    )


def _episode(held: dict[str, Array], first: Array, last: Array, rows: int) -> dict[str, Array]:
    at = [int(first[0])]
    while at[-1] != last[0]:
        at.append((at[-1] + 1) % rows)
    place: list[Any] = [(step, *map(int, first[1:])) for step in at]
    made: dict[str, Any] = {"trajectory_id": held["collector/traj_ids"][place[0]]}
    for key, column in held.items():
        if f"next/{key}" in held and key not in ("done", "terminated", "truncated"):
            made[key] = np.stack([*(column[index] for index in place), held[f"next/{key}"][place[-1]]])
    for key in ("action", "log_prob"):
        made[key] = np.stack([*(held[key][index] for index in place), np.zeros_like(held[key][place[0]])])
    made["reward"] = np.append(np.concatenate([held["next/reward"][index] for index in place]), np.float32(0))
    terminal = bool(held["next/terminated"][place[-1]][0])
    made["is_terminal"] = np.arange(len(at) + 1) == len(at) if terminal else np.zeros(len(at) + 1, bool)
    return made
