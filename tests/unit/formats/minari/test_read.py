"""Alignment, ends, and what differs between episodes."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.minari.read import MinariOptions, MinariRecordings
from rlds2reverb.formats.source import metadata_spec_of
from rlds2reverb.specs import spec_texts
from tests.support import damage
from tests.support.formats import minari as minari_data
from tests.support.formats.minari_written import Change, dataset, put

NO, YES = np.zeros(3, bool), np.array([False, False, True])


def opened(folder: Path, *changes: Any, options: str = "", **told: Any) -> Any:
    return open_source(dataset(folder, list(changes), told) + options)


def codes(source: Any) -> dict[str, int]:
    return {remark.code: remark.count for remark in source.notices}


@pytest.mark.parametrize(
    ("terminations", "truncations", "is_terminal", "told"),
    [
        (YES, NO, True, {}),
        (NO, YES, False, {}),
        (YES, YES, True, {"both_ends": 1}),
        (NO, NO, False, {"no_end": 1}),
        (YES.astype(np.int8)[:, None], NO, True, {}),
    ],
)
def test_ends(tmp_path: Path, terminations: Any, truncations: Any, is_terminal: bool, told: dict[str, int]) -> None:
    source = opened(tmp_path, put(terminations=terminations, truncations=truncations))
    (episode,) = source
    list(source)
    assert episode.columns["is_terminal"].tolist() == [False, False, False, is_terminal]
    assert episode.columns["is_first"].tolist() == [True, False, False, False]
    assert episode.columns["is_last"].tolist() == [False, False, False, True]
    assert episode.columns["discount"].tolist() == ([1, 1, 0, 0] if is_terminal else [1, 1, 1, 1])
    assert codes(source) == told


BAD = [
    (put(terminations=np.array([True, False, True])), "", "terminations: True at step 0 of 3"),
    (put(truncations=np.array([False, True, False])), "", "truncations: True at step 1 of 3"),
    (put(terminations=NO[:2]), "", "expected 3 flags"),
    (put(terminations=np.zeros(3)), "", "expected 3 flags"),
    (put(rewards=np.zeros(4)), "observations", "has 4 rows; expected 5, by the rewards"),
    (put(rewards=np.zeros((3, 2))), "reward", "expected a number per step"),
    (put(actions=np.arange(4)), "actions", "has 4 rows; expected 3"),
    (put(observations=np.zeros((3, 2), np.float32)), "observations", "has 3 rows; expected 4"),
    (put(observations=np.zeros((4, 3), np.float32)), "observation", "expected float32[2], as in other episodes"),
    (put(observations=np.full((4, 2), 0.1)), "observation", "does not hold exactly"),
    (put(observations=None), "observations", "found nothing"),
    (put(rewards=None), "rewards", "found nothing"),
    (put(observations=None, **{"observations/a": np.zeros((4, 2), np.float32)}), "observations", "found a group"),
    (put(observations=[b"a"] * 4), "observation", "found string"),
]


@pytest.mark.parametrize(("change", "path", "says"), BAD)
def test_a_bad_episode_is_named_and_the_others_are_read(tmp_path: Path, change: Any, path: str, says: str) -> None:
    good, bad, also_good = opened(tmp_path, None, change, None)
    assert good.faults == also_good.faults == ()
    ((where, why),) = bad.faults
    assert where == path
    assert says in why


def test_episodes_without_steps_have_one_row(tmp_path: Path) -> None:
    nothing = np.zeros(0)
    change = put(
        observations=np.zeros((1, 2), np.float32), actions=nothing.astype(int), rewards=nothing,
        terminations=nothing.astype(bool), truncations=nothing.astype(bool),
    )  # fmt: skip
    source = opened(tmp_path, None, change)
    _, episode = source
    assert len(episode) == 1
    assert episode.columns["is_first"] == episode.columns["is_last"] == [True]
    assert not episode.columns["is_terminal"]
    assert codes(source) == {"episode_length": 1}  # its total_steps is still 3


def test_dtypes_that_differ_are_cast_where_no_value_changes(tmp_path: Path) -> None:
    source = opened(
        tmp_path,
        None,
        put(rewards=np.array([0, 1, 2])),
        put(observations=np.ones((4, 2))),
        put(actions=np.arange(3, dtype=np.int8)),
    )
    episodes = list(source)
    assert [episode.faults for episode in episodes] == [()] * 4
    assert episodes[1].columns["reward"].tolist() == [0, 1, 2, 0]
    assert {str(episode.columns["reward"].dtype) for episode in episodes} == {"float64"}
    assert {str(episode.columns["observation"].dtype) for episode in episodes} == {"float32"}
    assert sorted(remark.path for remark in source.notices) == ["action", "observation", "reward"]


def test_values_are_read_as_stored_where_the_space_says_otherwise(tmp_path: Path) -> None:
    source = opened(tmp_path, put(observations=np.ones((4, 2))))
    assert source.spec()["observation"].dtype == np.float64
    assert codes(source) == {"space": 1}


def test_other_groups_and_infos(tmp_path: Path) -> None:
    rows = np.arange(4.0)
    change = put(
        **{"state/qpos": rows, "infos/short": rows[:3], "infos/one": 5, "infos/long": np.arange(9), "discount": rows}
    )
    changes = (
        change,
        put(**{"state/qpos": rows, "infos/short": rows[:3], "infos/more": rows}),
        put(**{"state/qpos": rows}),
    )
    source = opened(tmp_path / "all", *changes)
    assert all(episode.columns["state/qpos"].tolist() == rows.tolist() and not episode.faults for episode in source)
    left_out = {remark.path for remark in source.notices if remark.code == "left_out"}
    assert left_out == {"infos/one", "infos/long", "infos/more", "infos/short", "discount"}

    first, second, third = opened(tmp_path / "most", *changes, options="?spec_from=most")
    assert not first.faults
    assert second.columns["infos/short"].tolist() == [0, 1, 2, 0]
    assert third.faults[0][0] == "infos/short"
    assert "infos=drop" in third.faults[0][1]
    with pytest.raises(SourceError, match=r"spec_from=3: .*there are 3 episodes"):
        opened(tmp_path / "none", *changes, options="?spec_from=3").spec()


@pytest.mark.parametrize("odd", range(3))
def test_an_odd_episode_does_not_decide(tmp_path: Path, odd: int) -> None:
    changes = [
        put(
            **{
                "infos/size": np.zeros((4, 3 if number == odd else 2)),
                "infos/step": np.arange(4) / (2 - (number == odd)),
            }
        )
        for number in range(3)
    ]
    changes[odd] = put(**{"infos/size": np.zeros((4, 3)), "infos/step": np.arange(4)})
    source = opened(tmp_path / "all", *changes)
    assert [bool(episode.faults) for episode in source] == [number == odd for number in range(3)]
    assert {remark.code for remark in source.notices} == {"mixed_specs"}
    assert spec_texts(source.spec())["infos/step"] == "float64[]"
    rest = opened(tmp_path / "rest", *changes, options=f"?episodes={odd}")
    assert spec_texts(rest.spec())["infos/size"] == "float64[3]"


def test_a_count_that_is_not_the_files(tmp_path: Path) -> None:
    assert codes(opened(tmp_path / "a", None, None, total_episodes=10**15)) == {"episode_count": 10**15 - 2}
    fewer = opened(tmp_path / "b", None, None, None, total_episodes=2)
    assert codes(fewer) == {"episode_count": 1}
    assert len(list(fewer)) == fewer.episode_count == 2


def test_a_number_of_steps_that_is_not_the_rows_is_told(tmp_path: Path) -> None:
    def claim(group: h5py.Group) -> None:
        group.attrs["total_steps"] = 7

    source = opened(tmp_path, None, claim)
    assert [len(episode) for episode in source] == [4, 4]
    list(source)
    assert codes(source) == {"episode_length": 1}


def test_statistics_may_be_attributes_of_the_rewards(tmp_path: Path) -> None:
    """As Minari's Dataset Standards say, with rewards [T, 1]."""

    def tell(group: h5py.Group) -> None:
        rewards = group["rewards"][()][:, None]
        del group["rewards"]
        group["rewards"] = rewards
        group["rewards"].attrs.update({"sum": rewards.sum(), "max": rewards.max()})

    episodes = list(opened(tmp_path, tell, tell))
    for episode in episodes:
        assert episode.columns["reward"].shape == (len(episode),)
        assert episode.metadata["rewards_sum"] == episode.columns["reward"].sum()
        assert episode.metadata["rewards_max"] == episode.columns["reward"][:-1].max()


def test_metadata_that_not_every_episode_has_is_left_out_and_known_to_where(tmp_path: Path) -> None:
    def level(group: h5py.Group) -> None:
        group.attrs["level"] = 4
        group.attrs["seed"] = "None"

    source = opened(tmp_path, None, level)
    assert sorted(source.metadata_spec()) == ["id", "total_steps"]
    assert [sorted(episode.metadata) for episode in source] == [["id", "total_steps"]] * 2
    assert codes(source) == {"left_out": 1}
    chosen = open_source(f"minari:{tmp_path / 'own-v0'}?where=level=4")
    assert [episode.metadata["id"] for episode in chosen] == [1]


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"observation_space": None}, "has no spaces"),
        ({"observation_space": "{"}, "expected the JSON of a space"),
        ({"observation_space": '{"type": "Graph"}'}, "the space 'Graph' is not known"),
        (
            {"action_space": '{"type": "Dict", "subspaces": {"x": {"type": "Sequence"}}}'},
            "action_space/x: the space 'Sequence'",
        ),
        ({"data_format": "zarr"}, "expected one of hdf5, arrow, parquet"),
    ],
)
def test_metadata_that_cannot_be_read(tmp_path: Path, told: Any, says: str) -> None:
    with pytest.raises(SourceError, match="own-v0") as caught:
        opened(tmp_path, None, **told)
    assert says in str(caught.value)


def test_a_dataset_without_episodes_has_no_spec(tmp_path: Path) -> None:
    source = opened(tmp_path)
    assert (list(source), source.episode_count) == ([], 0)
    with pytest.raises(SourceError, match="has no episodes"):
        source.spec()


def link(target: str, path: str = "/episode_0") -> Any:
    def change(group: h5py.Group) -> None:
        file, name = group.file, group.name
        del file[name]
        file[name] = h5py.ExternalLink(target, path)

    return change


def test_links_stay_in_the_folder_unless_they_may_lead_out_of_it(tmp_path: Path) -> None:
    dataset(tmp_path / "other", [None])
    target = tmp_path / "other" / "own-v0" / "data" / "main_data.hdf5"
    name = dataset(tmp_path, [None, link(str(target)), link("../../other/own-v0/data/main_data.hdf5")])
    faults = [episode.faults for episode in open_source(name)]
    assert faults[0] == ()
    for fault in faults[1:]:
        assert "episode_" in fault[0][1]
        assert "add links=follow" in fault[0][1]
    followed = list(open_source(f"{name}?links=follow"))
    assert [episode.faults for episode in followed] == [()] * 3
    assert followed[1].columns["observation"].tolist() == followed[0].columns["observation"].tolist()


def test_missing_targets_of_links_are_named(tmp_path: Path) -> None:
    _, gone, absent = open_source(
        dataset(tmp_path, [None, link("additional_data_0.hdf5"), link("main_data.hdf5", "/none")])
    )
    assert "additional_data_0.hdf5" in gone.faults[0][1]
    assert "episode_2" in absent.faults[0][1]


def with_sum(rewards: float) -> Any:
    return lambda group: group.attrs.update(rewards_sum=rewards)


def test_names_are_of_the_steps_not_of_the_place(tmp_path: Path) -> None:
    names = [
        next(iter(open_source(dataset(tmp_path / place, [change])))).id
        for place, change in (
            ("a", None),
            ("b", None),
            ("c", lambda group: group["rewards"].__setitem__(0, 7.0)),
            ("d", with_sum(2)),
            ("e", with_sum(3)),
        )
    ]
    assert names[0] == names[1]
    assert names[1] != names[2]
    assert names[3] == names[4] == names[0]  # metadata are no steps


@pytest.mark.parametrize(
    ("seeds", "dtype"),
    [
        ((np.int64(3), np.int64(4)), np.int64),
        ((np.int64(3), np.uint64(1 << 63)), np.uint64),
        ((np.int32(3), np.int64(4)), np.int64),
        ((np.int64(-3), np.uint64(1 << 63)), None),
    ],
)
def test_numbers_keep_the_dtype_that_holds_them_all(tmp_path: Path, seeds: tuple[Any, Any], dtype: Any) -> None:
    """NumPy would make floats of int64 beside uint64, which do not hold them."""

    def change(number: int) -> Any:
        return lambda group: group.attrs.update(seed=seeds[number], level=seeds[number])

    source = opened(tmp_path, change(0), change(1))
    specs: Any = source.metadata_spec()
    for name in ("seed", "level"):
        assert (specs[name].dtype if name in specs else None) == dtype
        if dtype is not None:
            assert [episode.metadata[name] for episode in source] == list(seeds)


def numbers(source: Any) -> list[int]:
    return [int(episode.where.rpartition("#")[2]) for episode in source]


def test_episodes_whose_numbers_have_a_gap_are_all_read(tmp_path: Path) -> None:
    def moved(group: h5py.Group) -> None:
        group.file.move(group.name, "episode_7")

    source = opened(tmp_path, None, None, moved)
    assert (numbers(source), source.episode_count) == ([0, 1, 7], 3)
    assert codes(source) == {"episode_count": 1}
    assert "no episode 2" in source.notices[0].text


def test_another_writing_of_a_number_is_no_episode(tmp_path: Path) -> None:
    def doubled(group: h5py.Group) -> None:
        group.file.copy(group, "episode_00")

    assert numbers(opened(tmp_path / "a", doubled)) == [0]
    folder = minari_data.copied("0.5.4", "kinds/arrow-v0", tmp_path)
    before = numbers(open_source(f"minari:{folder}"))
    shutil.copytree(folder / "data/0", folder / "data/00")
    assert numbers(open_source(f"minari:{folder}")) == before


@pytest.mark.parametrize("file", ["metadata.json", "main_data.hdf5"])
def test_files_that_are_links_are_not_followed_out_of_the_folder(tmp_path: Path, file: str) -> None:
    name = dataset(tmp_path, [None])
    path = tmp_path / "own-v0" / "data" / file
    shutil.move(path, tmp_path / file)
    path.symlink_to(tmp_path / file)
    with pytest.raises(SourceError, match=f"{file}: a link that leads out of the dataset.*links=follow"):
        open_source(name)
    assert numbers(open_source(f"{name}?links=follow")) == [0]


@pytest.mark.parametrize("place", ["data/0", "data/0/observations"])
def test_parts_of_arrow_datasets_that_are_links_are_bad_episodes(tmp_path: Path, place: str) -> None:
    folder = minari_data.copied("0.5.4", "kinds/arrow-v0", tmp_path)
    path = folder / "data/0" if place == "data/0" else next((folder / "data/0").glob("*.arrow"))
    shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    first, *others = open_source(f"minari:{folder}")
    assert "a link that leads out of the dataset" in first.faults[0][1]
    assert not any(other.faults for other in others)
    assert not any(episode.faults for episode in open_source(f"minari:{folder}?links=follow"))


def test_a_snapshot_of_hugging_face_is_read_through_its_links(tmp_path: Path) -> None:
    cache = tmp_path / "datasets--a--b"
    dataset(cache / "snapshots" / "0123", [None])
    for path in (cache / "snapshots/0123/own-v0/data").iterdir():
        blob = cache / "blobs" / path.name
        blob.parent.mkdir(exist_ok=True)
        shutil.move(path, blob)
        path.symlink_to(blob)
    assert numbers(open_source(f"minari:{cache}/snapshots/0123/own-v0")) == [0]


@pytest.mark.parametrize("form", ["hdf5", "arrow", "parquet"])
def test_files_that_are_written_anew_between_passes_are_told(tmp_path: Path, form: str) -> None:
    folder = minari_data.copied("0.5.4", f"kinds/{form}-v0", tmp_path)
    source = open_source(f"minari:{folder}")
    assert numbers(source)
    path = next(path for path in sorted((folder / "data").rglob(f"*.{form}")))
    told = path.stat()
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns + 1_000))
    with pytest.raises(SourceError, match="written anew"):
        list(source)


def test_a_linked_part_that_is_written_anew_is_told(tmp_path: Path) -> None:
    dataset(tmp_path / "other", [None])
    part = tmp_path / "own-v0" / "data" / "additional_data_0.hdf5"
    source = opened(tmp_path, None, link(part.name))
    assert next(iter(source)).faults == ()
    shutil.copy(tmp_path / "other/own-v0/data/main_data.hdf5", part)
    with pytest.raises(SourceError, match="was not when the dataset was opened"):
        list(source)


def test_metadata_that_no_float_holds_beside_others_is_left_out(tmp_path: Path) -> None:
    def change(value: Any) -> Any:
        return lambda group: group.attrs.update(level=value)

    assert "level" not in opened(tmp_path / "a", change(np.int64(2**53 + 1)), change(np.float64(0.5))).metadata_spec()
    assert "level" in opened(tmp_path / "b", change(np.int64(2**53)), change(np.float64(0.5))).metadata_spec()


@pytest.mark.parametrize("form", ["arrow", "parquet"])
@pytest.mark.parametrize("content", [None, b"\xff no JSON", b"[1]"])
def test_an_episode_whose_metadata_cannot_be_read_is_a_bad_one(
    form: str, content: bytes | None, tmp_path: Path
) -> None:
    folder = minari_data.copied("0.5.4", f"kinds/{form}-v0", tmp_path)
    file = folder / "data" / "1" / "metadata.json"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    source = open_source(f"minari:{folder}")
    first, second, *_ = source
    assert not first.faults
    assert str(file) in second.faults[0][1]
    whole = minari_data.dataset("0.5.4", f"kinds/{form}-v0")
    assert metadata_spec_of(source) == metadata_spec_of(open_source(f"minari:{whole}"))


# Damaged files that Minari made: an error of ours, or a bad episode.


@pytest.mark.parametrize("part", damage.PARTS)
@pytest.mark.parametrize(
    ("version", "name", "options"), [case for case in minari_data.OWN if "kinds" in case[1] or case[0] < "0.5"]
)
def test_damaged_files_give_our_errors_or_bad_episodes(
    version: str, name: str, options: str, part: int, tmp_path: Path
) -> None:
    folder = minari_data.copied(version, name, tmp_path)
    files = sorted(path for path in (folder / "data").rglob("*") if path.is_file())
    damage.check_files(files, f"minari:{folder}{options}", f"{name} of {version}", part, few=12, deep=2_000)


# Numbers that Minari 0.5.3 took for images: its HDF5 writer stores every uint8 array of two or three sizes as JPEG files, its reader gives the files' bytes.


def box(*shape: int, high: int = 255) -> dict[str, Any]:
    return {
        "type": "Box",
        "dtype": "uint8",
        "shape": list(shape),
        "low": np.zeros(shape, int).tolist(),
        "high": np.full(shape, high).tolist(),
    }


def files_of(values: Array) -> list[bytes]:
    """The JPEG file of each row, as Minari encodes it: a row of numbers is an image of width 1."""
    files = []
    for row in values:
        held = io.BytesIO()
        Image.fromarray(row).save(held, format="JPEG")
        files.append(held.getvalue())
    return files


def pixels_of(files: list[bytes], shape: tuple[int, ...]) -> Array:
    return np.stack([np.array(Image.open(io.BytesIO(file))).reshape(shape) for file in files])


def store(group: h5py.Group, name: str, files: list[bytes]) -> None:
    """As 0.5.3 does: rows of bytes if all files have one length, else arrays of any length."""
    del group[name]
    rows = [np.frombuffer(file, np.uint8) for file in files]
    dtype = h5py.vlen_dtype(np.uint8) if len({len(row) for row in rows}) > 1 else None
    group.create_dataset(name, data=rows, dtype=dtype, chunks=True)


def observed(files: list[bytes]) -> Change:
    return lambda group: store(group, "observations", files)


def values(rng: np.random.Generator, rows: int, shape: tuple[int, ...], is_constant: bool) -> Array:
    drawn = rng.integers(0, 256, (rows, *shape), dtype=np.uint8)
    return np.repeat(drawn[:1], rows, axis=0) if is_constant else drawn


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize("shape", [(3,), (500,), (5, 6), (7, 7, 3)])
def test_observations_are_the_pixels_of_the_files(tmp_path: Path, shape: tuple[int, ...], is_constant: bool) -> None:
    rng = np.random.default_rng(len(shape))
    files = [files_of(values(rng, 4, shape, is_constant)) for _ in range(2)]
    name = dataset(tmp_path, [*map(observed, files)], {"observation_space": json.dumps(box(*shape))})
    source = open_source(name)
    episodes = list(source)
    for episode, own in zip(episodes, files, strict=True):
        np.testing.assert_array_equal(episode.columns["observation"], pixels_of(own, shape))
        assert episode.columns["observation"].dtype == np.uint8
    (told,) = source.notices
    assert (told.code, told.path, told.count) == ("jpeg_values", "observation", 2)


def test_actions_and_infos_are_as_well(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    actions, mask = (files_of(values(rng, rows, (4,), False)) for rows in (3, 4))

    def change(group: h5py.Group) -> None:
        store(group, "actions", actions)
        group["infos/mask"] = 0
        store(group, "infos/mask", mask)

    source = open_source(dataset(tmp_path, [change], {"action_space": json.dumps(box(4, high=9))}))
    (episode,) = source
    np.testing.assert_array_equal(episode.columns["action"][:-1], pixels_of(actions, (4,)))
    np.testing.assert_array_equal(episode.columns["infos/mask"], pixels_of(mask, (4,)))
    assert {notice.path for notice in source.notices} == {"action", "infos/mask"}


def test_numbers_that_begin_like_a_file_are_numbers_where_the_space_says_so(tmp_path: Path) -> None:
    rows = np.zeros((4, 6), np.uint8)
    rows[:, :3] = 0xFF, 0xD8, 0xFF

    def change(group: h5py.Group) -> None:
        del group["observations"]
        group["observations"] = rows

    source = open_source(dataset(tmp_path, [change], {"observation_space": json.dumps(box(6))}))
    (episode,) = source
    np.testing.assert_array_equal(episode.columns["observation"], rows)
    assert not source.notices


def test_a_damaged_file_makes_a_bad_episode(tmp_path: Path) -> None:
    files = files_of(values(np.random.default_rng(0), 4, (3,), True))
    files[2] = files[2][:20] + bytes(len(files[2]) - 20)
    changes = [observed([files[0]] * 4), observed(files)]
    source = open_source(dataset(tmp_path, [*changes], {"observation_space": json.dumps(box(3))}))
    good, bad = source
    assert len(good.columns["observation"]) == 4
    assert bad.faults


# What is read is what Minari reads, of every generation and every kind of storage.

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


@pytest.mark.parametrize(("version", "name", "options"), minari_data.OWN)
def test_values_and_dtypes_are_those_that_minari_reads(version: str, name: str, options: str) -> None:
    source = open_source(f"minari:{minari_data.dataset(version, name)}{options}")
    episodes = list(source)
    wanted = minari_data.expected(version, name)
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
    episodes = list(open_source(f"minari:{minari_data.dataset('0.5.4', 'blank-v0')}"))
    for episode, theirs in zip(episodes, minari_data.expected("0.5.4", "blank-v0")):
        assert np.array_equal(episode.columns["observation"], theirs["observations"])
        assert np.array_equal(episode.columns["reward"][:-1], theirs["rewards"])
        assert episode.columns["reward"].dtype == np.float64


def test_infos_are_columns() -> None:
    for version, name, options in minari_data.OWN:
        episode = next(iter(open_source(f"minari:{minari_data.dataset(version, name)}{options}")))
        has_infos = "plain" not in name and "raw" not in name and "blank" not in name
        assert ("infos/at" in episode.columns) == has_infos
        if has_infos:
            assert episode.columns["infos/at"].tolist() == list(range(len(episode)))
            assert episode.columns["infos/inner/two"].shape == (len(episode), 2, 2)


def test_infos_may_be_left_out() -> None:
    source: Any = open_source(f"minari:{minari_data.dataset('0.5.4', 'kinds/hdf5-v0')}?infos=drop")
    assert not [path for path in next(iter(source)).columns if path.startswith("infos")]
    assert source.notices == ()


def test_metadata_of_the_episodes() -> None:
    for kind in ("hdf5", "arrow", "parquet"):
        episodes = list(open_source(f"minari:{minari_data.dataset('0.5.4', f'kinds/{kind}-v0')}"))
        assert [episode.metadata["seed"] for episode in episodes] == [1 << 63, 1, 2]
        assert {episode.metadata["seed"].dtype for episode in episodes} == {np.dtype(np.uint64)}
        assert [episode.metadata["id"] for episode in episodes] == [0, 1, 2]
        assert [episode.metadata["options/level"] for episode in episodes] == [2, 2, 2]
        assert [episode.metadata["options/deep/name"] for episode in episodes] == [b"hard"] * 3
        assert [episode.metadata["total_steps"] for episode in episodes] == [len(episode) - 1 for episode in episodes]


def test_what_was_linked_is_read_where_that_is_allowed() -> None:
    parts = minari_data.expected("0.4.3", "two-own-v0")
    both = list(open_source(f"minari:{minari_data.dataset('0.4.3', 'two-both-v0')}"))
    assert len(both) == len(parts) + 2
    assert len(list(open_source(f"minari:{minari_data.dataset('0.4.2', 'two-own-v0')}"))) == 5


def test_the_spaces_bounds_are_in_the_spec() -> None:
    recordings = MinariRecordings(minari_data.dataset("0.5.4", "kinds/hdf5-v0") / "data", "own", MinariOptions())
    spec = recordings.spec()
    assert (spec["observation/discrete"].minimum, spec["observation/discrete"].maximum) == (-2, 2)
    assert spec["observation/bounded"].maximum.tolist() == [1.0, 2.0]
    assert spec["observation/box"].minimum is None
    assert spec["observation/deep/pair/_index_0"].maximum.tolist() == [2, 3]
    assert (spec["observation/image"].minimum, spec["observation/image"].maximum) == (0, 255)


def test_images_may_stay_jpeg_files() -> None:
    source: Any = open_source(f"minari:{minari_data.dataset('0.5.4', 'kinds/hdf5-v0')}")
    assert list(source.images()) == ["observation/image"]
    encoded = source.encoded(["observation/image"])
    episode, plain = next(iter(encoded)), next(iter(source))
    assert all(file.startswith(b"\xff\xd8\xff") for file in episode.columns["observation/image"])
    assert encoded.spec()["observation"]["image"].image == source.images()["observation/image"]
    assert episode.id == plain.id
    assert np.array_equal(episode.columns["observation/grey"], plain.columns["observation/grey"])
    raw: Any = open_source(f"minari:{minari_data.dataset('0.5.2', 'kinds/hdf5-v0')}")
    assert raw.images() == {}


def test_a_program_ends_while_it_reads() -> None:
    """The thread that reads ahead would be stopped with h5py's lock, for which the end of the program waited."""
    name = f"minari:{minari_data.dataset('0.5.4', 'plain/two-v3')}"
    program = f"from rlds2reverb.formats import open_source; episodes = iter(open_source({name!r})); next(episodes)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
