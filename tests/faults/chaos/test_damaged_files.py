"""Files of the checkpoint folder are damaged, hidden or replaced: a start is right or refused, never empty and ready."""

from __future__ import annotations

import os
import shutil
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_server.store import read_checkpoint

from tests.support.forks import Forks
from tests.support.raising import outcome_of

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(3600)]

ROUNDS = 150
CHECKPOINTS = 3


def test_a_start_from_damaged_files_is_right_or_refused(
    forks: Forks, tmp_path: Path, rng: np.random.Generator, size: float
) -> None:
    folder = tmp_path / "checkpoints"
    config: dict[str, Any] = {
        "tables": [{"name": "one"}],
        "checkpoints": {"folder": str(folder), "every_seconds": None, "keep": CHECKPOINTS, "on_shutdown": False},
    }
    _fill(forks, config)
    whole = tmp_path / "whole"
    _copy(folder, whole)
    held = {int(path.name): read_checkpoint(path).manifest.items for path in (whole / "generations").iterdir()}
    assert len(held) == CHECKPOINTS
    for _ in range(round(ROUNDS * size) or 1):
        files = sorted(path for path in (folder / "generations").rglob("*") if path.is_file())
        damaged = [files[n] for n in rng.choice(len(files), rng.integers(1, 5), replace=False)]
        for path in damaged:
            DAMAGE[str(rng.choice(list(DAMAGE)))](path, rng)
        service = outcome_of(RuntimeError, lambda: forks.start(config))
        if isinstance(service, RuntimeError):
            assert "CheckpointError" in str(service) or "Unreadable" in str(service), service
        else:
            assert service.restored in held
            assert service.sizes == held[service.restored] == service.manifest
            forks.end(service, signal.SIGKILL)
        shutil.rmtree(folder)
        _copy(whole, folder)
    service = forks.start(config)
    assert service.sizes == held[max(held)]
    forks.end(service, signal.SIGKILL)


def _copy(source: Path, target: Path) -> None:
    """Without the owner: of a folder that was copied nobody can tell at once whether its owner lives."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("LOCK", "OWNER.json"))


def _fill(forks: Forks, config: dict[str, Any]) -> None:
    """Checkpoints of ever more items."""
    service = forks.start(config, insert_into="one")
    for _ in range(CHECKPOINTS):
        assert _checkpoint(service.url) == 200
    forks.end(service, signal.SIGKILL)


def _checkpoint(url: str) -> int:
    with urllib.request.urlopen(
        urllib.request.Request(url + "/checkpoint?anew=1", method="POST"), timeout=60
    ) as answer:
        return int(answer.status)


def _truncate(path: Path, rng: np.random.Generator) -> None:
    os.truncate(path, int(rng.integers(0, max(1, path.stat().st_size))))


def _flip(path: Path, rng: np.random.Generator) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[int(rng.integers(len(data)))] ^= int(rng.integers(1, 256))
    path.write_bytes(data)


def _replace(make: Callable[[Path], object]) -> Callable[[Path, np.random.Generator], None]:
    def damage(path: Path, rng: np.random.Generator) -> None:
        path.unlink()
        make(path)

    return damage


DAMAGE: dict[str, Callable[[Path, np.random.Generator], object]] = {
    "truncated": _truncate,
    "flipped": _flip,
    "deleted": _replace(lambda path: None),
    "empty": _replace(lambda path: path.touch()),
    "pipe": _replace(os.mkfifo),
    "folder": _replace(lambda path: path.mkdir()),
    "link_to_itself": _replace(lambda path: path.symlink_to(path)),
    "random": lambda path, rng: path.write_bytes(rng.bytes(int(rng.integers(0, 5000)))),
}
