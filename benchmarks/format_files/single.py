"""Formats with a file per step, or per episode: il-representations, npz."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import cramjam
import numpy as np

from benchmarks.format_files.base import TRANSITIONS, FormatFiles, episodes


def _write_npz(folder: Path, count: int) -> str:
    for number, episode in enumerate(episodes(count)):
        arrays = {**episode, "terminals": episode["ends"] & False, "timeouts": episode["ends"]}
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


def _write_ilr(folder: Path, count: int) -> str:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        _add(tar, "_metadata.meta.pickle", {"env_cfg": {"benchmark_name": "dm_control"}})
        at = 0
        for episode in episodes(count):
            for t in range(TRANSITIONS):
                frame = {
                    "acts": episode["actions"][t],
                    "dones": episode["ends"][t],
                    "frame": at,
                    "next_obs": episode["observations"][t + 1],
                    "obs": episode["observations"][t],
                    "rews": episode["rewards"][t],
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


FORMATS = (
    FormatFiles("npz", _write_npz, _read_npz),
    FormatFiles("ilr", _write_ilr, _read_ilr, share=0.1),
)
