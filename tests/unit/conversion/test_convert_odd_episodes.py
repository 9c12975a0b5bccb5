"""Whatever an episode has, each bit of it comes back, or its loss is told: of the whole column, or of its last row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.conversion.convert import convert
from rlds2reverb.episode import Array, Episode
from rlds2reverb.errors import ConversionError, InvalidEpisode
from rlds2reverb.formats import open_destination, open_source
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.registry import DESTINATIONS
from rlds2reverb.specs import ArraySpec, Nest
from tests.contract.destination_cases import data
from tests.contract.destination_cases.coming_back import assert_comes_back

PLACES = {
    "tfds": "tfds:{}/own",
    "minari": "minari:{}/own-v0",
    "ted": "ted:{}/own.h5",
    "ted memmap": "ted:{}/own?layout=memmap",
    "ted steps": "ted:{}/own?steps=infos.x+deep.action,discount=drop",
    "ilr": "ilr:{}/own",
    "ilr terminals": "ilr:{}/own?terminals=yes",
    "lerobot": "lerobot:{}/own",
    "lerobot keep": "lerobot:{}/own?last_step=keep",
    "lerobot task": "lerobot:{}/own?task=other",
}
VIDEO = "lerobot:{}/own?video=h264,fps=10"
"""A place for episodes with images; see `data.with_images`."""


def texts(*values: bytes) -> Array:
    made = np.empty(len(values), object)
    made[:] = values
    return made


def full(value: Any, *shape: int, dtype: Any = np.float32) -> Array:
    return np.full((4, *shape), value, dtype)


def with_last(path: str, value: Any) -> Array:
    column = data.episode(2).columns[path].copy()
    column[-1] = value
    return column


NAMES = (
    *("", "a//b", "b/", ".", "infos/..", "infos/x", "x", "x/y", "extras/reward", "extras/discount", "deep/action"),
    *("next/x", "next/reward", "next/action", "next.x", "episode", "index", "collector/traj_ids", "metadata/x"),
    *("dones", "frame", "terminals", "obs", "next_obs", "infos/done", "done", "deep/truncated", "timestamp"),
)

ODD: dict[str, Callable[[], tuple[Mapping[str, Array], Mapping[str, Any]]]] = {
    "negative zeros": lambda: ({"action": with_last("action", -0.0), "reward": with_last("reward", -0.0)}, {}),
    "no numbers": lambda: ({"infos/x": full(np.nan), "observation": full(np.inf, 2), "reward": full(np.nan)}, {}),
    "last rows": lambda: (
        {
            "action": full(1, 2),
            "reward": full(1),
            "discount": np.array([0.9, 0.9, 0, 0.5], np.float32),
            "timestamp": np.array([0, 0.1, 0.2, 9], np.float32),
            "language_instruction": texts(b"a", b"b", b"c", b"d"),
            "infos/x": np.arange(4.0),
            "action_mask": np.array([True, False, True, True]),
            "infos/image": np.arange(4 * 18 * 20 * 3, dtype=np.uint8).reshape(4, 18, 20, 3),
        },
        {},
    ),
    "ones": lambda: ({"reward": full(1, 1), "discount": np.array([[1], [1], [0], [0]], np.float32)}, {}),
    "other dtypes": lambda: ({"reward": np.array([2**60 + 1, 1, 0, 0]), "discount": np.array([1, 1, 0, 0])}, {}),
    "names": lambda: (
        {name: full(at, 2) for at, name in enumerate(NAMES) if name != "x"},
        {"": 1, ".": 2, "language_instruction": b"\xff"},
    ),
    "one place": lambda: ({name: full(at) for at, name in enumerate(("x", "infos/x", "a.b", "a/b"))}, {}),
    "texts": lambda: (
        {"action": texts(b"a", b"b", b"c", b""), "language_instruction": texts(b"\xff", b"a\0", b"", b"")},
        {"other": b"\xfe"},
    ),
    "tasks": lambda: ({}, {"language_instruction": b"pick", "other": b"place"}),
    "rewards": lambda: ({"reward/a": full(1), "reward/b": full(2, 2)}, {"benchmark_name": b"\xff", "task_name": 3}),
    "no action": lambda: ({"deep/action": full(1), "infos/x": full(2)}, {}),
    "terminal before": lambda: ({"is_terminal": np.array([False, True, False, True])}, {}),
    "terminal at first": lambda: ({"is_terminal": np.array([True, False, False, False])}, {}),
}
LEFT_OUT = {"no action": ("action",), "rewards": ("reward",)}
ALLOWED = ("terminal_inside", "terminal_discount", "terminal_unmarked", "nan", "infinite", "discount_range")


def episodes(kind: str) -> list[Episode]:
    columns, metadata = ODD[kind]()
    plain = {path: column for path, column in data.episode(2).columns.items() if path not in LEFT_OUT.get(kind, ())}
    described = {"other": b"", **metadata}
    return [Episode({**plain, **columns}, described, "a"), Episode({**plain, **columns}, described, "b")]


def test_every_format_is_among_the_places() -> None:
    assert {destination.scheme for destination in DESTINATIONS} == {
        place.partition(":")[0] for place in PLACES.values()
    }


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ODD)
def test_what_is_not_told_comes_back(place: str, kind: str, tmp_path: Path) -> None:
    name, given = PLACES[place].format(tmp_path), episodes(kind)
    if kind == "no action" and place in ("minari", "ilr", "ilr terminals"):
        return
    if "steps" in place and not {"infos/x", "deep/action"} <= set(given[0].columns):
        return
    report = convert(given, name, verify=True, allow=ALLOWED)
    assert report.verified == len(given)
    destination = open_destination(name)
    assert_comes_back(given, open_source(destination.source(destination.path)), report.losses)


@pytest.mark.parametrize("workers", [None, 2])
def test_an_episode_that_the_format_cannot_hold_is_a_bad_one(workers: int | None, tmp_path: Path) -> None:
    """LeRobot reads no numbers from 2^63 on, which the dtype has. The conversion goes on where it stopped, with another policy."""
    (plain, _), name = episodes("tasks"), f"lerobot:{tmp_path}/own"
    folder, numbers = tmp_path / "from", (1, 2**64 - 1, 3, 2**63 - 1)
    convert([with_number(plain, number) for number in numbers], f"tfds:{folder}/numbers")
    source = f"tfds:{folder}/numbers/1.0.0"
    message = r"infos/x.*18,446,744,073,709,551,615.*--on-invalid skip.*drop=infos/x"
    with pytest.raises(InvalidEpisode, match=message) as raised:
        convert(source, name, workers=workers)
    assert "--allow" not in str(raised.value)
    report = convert(source, name, workers=workers, on_invalid="skip", verify=True)
    assert report.rejected == {"unfit": 1}
    assert report.verified == report.episodes_written == 3
    assert [episode.columns["infos/x"][0] for episode in open_source(name)] == [1, 3, 2**63 - 1]


def with_number(episode: Episode, number: int) -> Episode:
    return Episode({**episode.columns, "infos/x": full(number, dtype=np.uint64)}, episode.metadata, f"{number}")


def test_numbers_that_the_spec_bounds_too_high_are_told_before_anything_is_written(tmp_path: Path) -> None:
    class Bounded(EpisodeList):
        def spec(self) -> Nest:
            bounded = ArraySpec((), np.dtype(np.uint64), minimum=2**63, maximum=2**64 - 1)
            return {**super().spec(), "infos": {"x": bounded}}

    source = Bounded([with_number(episodes("tasks")[0], 2**63)])
    with pytest.raises(ConversionError, match="column: infos/x"):
        convert(source, f"lerobot:{tmp_path}/own", strict=True)
    report = convert(source, f"lerobot:{tmp_path}/own", verify=True)
    assert ("column", "infos/x") in [(loss.code, loss.path) for loss in report.losses]
