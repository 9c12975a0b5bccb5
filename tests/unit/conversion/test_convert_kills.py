"""A conversion that ends at any call that changes the disk, and is run again, gives the dataset that it gives undisturbed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.conversion import convert as engine
from rlds2reverb.conversion.convert import convert
from rlds2reverb.conversion.place import PREFIX
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats import open_destination
from tests.contract.destination_cases import data
from tests.contract.test_destinations import written
from tests.support.profiles import DEEP, SEED, drawn
from tests.unit.conversion.test_convert_odd_episodes import PLACES, VIDEO

CALLS = ("fsync", "replace", "rename", "unlink", "truncate", "rmdir", "mkdir")
FORMATS = ("tfds", "minari", "ted", "ted memmap", "ilr", "lerobot")


class Killed(BaseException):
    """In place of a signal that nobody can catch."""


@contextmanager
def killed_at(number: int | None) -> Iterator[Callable[[], int]]:
    """Every call of `os` from the one of this number on fails; tells how many there were."""
    made, patch = count(), pytest.MonkeyPatch()
    calls = 0

    def counting(call: Any) -> Any:
        def counted(*given: Any, **named: Any) -> Any:
            nonlocal calls
            calls = next(made) + 1
            if number is not None and calls >= number:
                raise Killed
            return call(*given, **named)

        return counted

    with patch.context() as patched:
        for name in CALLS:
            patched.setattr(os, name, counting(getattr(os, name)))
        yield lambda: calls


@pytest.mark.parametrize("place", [*FORMATS, "lerobot video"])
def test_a_kill_anywhere_loses_nothing(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SYNC_SECONDS", 0.0)
    is_video = place == "lerobot video"
    episodes = [data.with_images(number) if is_video else data.episode(number) for number in range(2)]

    def into(folder: str, is_there: bool) -> str:
        (tmp_path / folder).mkdir()
        name = (VIDEO if is_video else PLACES[place]).format(tmp_path / folder)
        if is_there:
            convert(episodes[1:], name)
        return name

    name = into("whole", True)
    with killed_at(None) as calls:
        convert(episodes, name, overwrite=True)
    wanted = written(open_destination(name))
    points = np.random.default_rng([SEED if DEEP else 0, len(place)]).permutation(calls()) + 1
    for point in points[: drawn(2, 60)].tolist():
        is_there = bool(point % 2)
        name = into(f"killed_at_{point}", is_there)
        with killed_at(point), suppress(Killed):
            convert(episodes, name, overwrite=is_there)
        with suppress(ConfigError):  # it was done already, but for a folder that it leaves
            convert(episodes, name, overwrite=is_there)
        destination = open_destination(name)
        assert written(destination) == wanted, point
        assert [path for path in destination.path.parent.iterdir() if path.name.startswith(PREFIX)] == [], point
