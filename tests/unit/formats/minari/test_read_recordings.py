"""What is read is what Minari reads, of every generation and every kind of storage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlds2reverb.formats import open_source
from rlds2reverb.formats.minari.read import MinariOptions, MinariRecordings
from tests.support.formats import minari as made

_FIELDS = {"observations": "observation", "actions": "action", "rewards": "reward"}


def minari_path(path: str) -> str | None:
    """Our path of one of Minari's; None for the flags."""
    field, _, below = path.partition("/")
    if field in ("terminations", "truncations"):
        return None
    ours = _FIELDS.get(field, field)
    return f"{ours}/{below}" if below else ours


def same(ours: Any, theirs: Any) -> bool:
    if theirs.dtype.kind == "U":
        return [text.decode() for text in ours] == list(theirs)
    if theirs.dtype.kind in "SO":
        return list(ours) == list(theirs)
    return bool(ours.dtype == theirs.dtype and np.array_equal(ours, theirs))


@pytest.mark.parametrize(("version", "name", "options"), made.OWN)
def test_values_and_dtypes_are_those_that_minari_reads(version: str, name: str, options: str) -> None:
    source = open_source(f"minari:{made.dataset(version, name)}{options}")
    episodes = list(source)
    wanted = made.expected(version, name)
    assert len(episodes) == len(wanted) > 0
    for episode, theirs in zip(episodes, wanted):
        assert episode.faults == ()
        actions = len(theirs["rewards"])
        for path, values in theirs.items():
            ours = minari_path(path)
            if ours is not None and name != "blank-v0":
                assert same(episode.columns[ours][: len(values)], values), path
        assert len(episode) == actions + 1
        assert bool(episode.columns["is_terminal"][-1]) == bool(theirs["terminations"][-1])
        assert not episode.columns["is_terminal"][:-1].any()
        assert not any(
            np.any(episode.columns[path][-1]) for path in episode.columns if path.startswith(("action", "reward"))
        )


def test_equally_long_jpeg_files_are_images_as_well() -> None:
    episodes = list(open_source(f"minari:{made.dataset('0.5.4', 'blank-v0')}"))
    for episode, theirs in zip(episodes, made.expected("0.5.4", "blank-v0")):
        assert np.array_equal(episode.columns["observation"], theirs["observations"])
        assert np.array_equal(episode.columns["reward"][:-1], theirs["rewards"])
        assert episode.columns["reward"].dtype == np.float64


def test_infos_are_columns() -> None:
    for version, name, options in made.OWN:
        episode = next(iter(open_source(f"minari:{made.dataset(version, name)}{options}")))
        has_infos = "plain" not in name and "raw" not in name and "blank" not in name
        assert ("infos/at" in episode.columns) == has_infos
        if has_infos:
            assert episode.columns["infos/at"].tolist() == list(range(len(episode)))
            assert episode.columns["infos/inner/two"].shape == (len(episode), 2, 2)


def test_infos_may_be_left_out() -> None:
    source: Any = open_source(f"minari:{made.dataset('0.5.4', 'kinds/hdf5-v0')}?infos=drop")
    assert not [path for path in next(iter(source)).columns if path.startswith("infos")]
    assert source.notices == ()


def test_metadata_of_the_episodes() -> None:
    for kind in ("hdf5", "arrow", "parquet"):
        episodes = list(open_source(f"minari:{made.dataset('0.5.4', f'kinds/{kind}-v0')}"))
        assert [one.metadata["seed"] for one in episodes] == [1 << 63, 1, 2]
        assert {one.metadata["seed"].dtype for one in episodes} == {np.dtype(np.uint64)}
        assert [one.metadata["id"] for one in episodes] == [0, 1, 2]
        assert [one.metadata["options/level"] for one in episodes] == [2, 2, 2]
        assert [one.metadata["options/deep/name"] for one in episodes] == [b"hard"] * 3
        assert [one.metadata["total_steps"] for one in episodes] == [len(one) - 1 for one in episodes]


def test_what_was_linked_is_read_where_that_is_allowed() -> None:
    parts = made.expected("0.4.3", "two-own-v0")
    both = list(open_source(f"minari:{made.dataset('0.4.3', 'two-both-v0')}"))
    assert len(both) == len(parts) + 2
    assert len(list(open_source(f"minari:{made.dataset('0.4.2', 'two-own-v0')}"))) == 5


def test_the_spaces_bounds_are_in_the_spec() -> None:
    recordings = MinariRecordings(made.dataset("0.5.4", "kinds/hdf5-v0") / "data", "own", MinariOptions())
    spec = recordings.spec()
    assert (spec["observation/discrete"].minimum, spec["observation/discrete"].maximum) == (-2, 2)
    assert spec["observation/bounded"].maximum.tolist() == [1.0, 2.0]
    assert spec["observation/box"].minimum is None
    assert spec["observation/deep/pair/_index_0"].maximum.tolist() == [2, 3]
    assert (spec["observation/image"].minimum, spec["observation/image"].maximum) == (0, 255)


def test_images_may_stay_jpeg_files() -> None:
    source: Any = open_source(f"minari:{made.dataset('0.5.4', 'kinds/hdf5-v0')}")
    assert list(source.images()) == ["observation/image"]
    encoded = source.encoded(["observation/image"])
    episode, plain = next(iter(encoded)), next(iter(source))
    assert all(file.startswith(b"\xff\xd8\xff") for file in episode.columns["observation/image"])
    assert encoded.spec()["observation"]["image"].image == source.images()["observation/image"]
    assert episode.id == plain.id
    assert np.array_equal(episode.columns["observation/grey"], plain.columns["observation/grey"])
    raw: Any = open_source(f"minari:{made.dataset('0.5.2', 'kinds/hdf5-v0')}")
    assert raw.images() == {}
