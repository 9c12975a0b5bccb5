"""TFDS datasets without TFDS: which episodes, in which order, under which names; what is refused; what is left behind."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlds2reverb.errors import SourceError
from rlds2reverb.extras import how_to_install
from rlds2reverb.formats import open_source
from rlds2reverb.formats.tfds import read, selection
from rlds2reverb.formats.tfds.columns import EpisodeFeatures
from rlds2reverb.formats.tfds.read import TfdsSource
from tests.support.formats import tfds as examples

TEMPLATE = "{SPLIT}-{SHARD_INDEX}"

STEPS = {
    "observation": examples.tensor("int64"),
    "is_first": examples.tensor("bool"),
    "is_last": examples.tensor("bool"),
}


def episode(number: int, rows: int = 2) -> bytes:
    """A record whose observations are the number."""
    first, last = ([int(row == at) for row in range(rows)] for at in (0, rows - 1))
    return examples.example(
        {
            "steps/observation": examples.integers(*[number] * rows),
            "steps/is_first": examples.integers(*first),
            "steps/is_last": examples.integers(*last),
            "number": examples.integers(number),
        }
    )


def write(
    folder: Path, steps: Mapping[str, Any] = STEPS, info: Mapping[str, Any] = {}, **splits: Sequence[int]
) -> Path:
    """A dataset whose splits have files of so many episodes, numbered through each split."""
    folder.mkdir(parents=True, exist_ok=True)
    told = [
        {"name": name, "shardLengths": [str(length) for length in lengths], "filepathTemplate": TEMPLATE}
        for name, lengths in splits.items()
    ]
    (folder / "dataset_info.json").write_text(json.dumps({"name": "x", "version": "1.0.0", "splits": told, **info}))
    features = examples.episodes(steps, number=examples.tensor("int64"))
    (folder / "features.json").write_text(json.dumps(features))
    for name, lengths in splits.items():
        first = 0
        for shard, length in enumerate(lengths):
            examples.tfrecord(folder / f"{name}-{shard:05d}", [episode(first + at) for at in range(length)])
            first += length
    return folder


def numbers(source: Any) -> list[int]:
    return [int(read_episode.columns["observation"][0]) for read_episode in source]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "x" / "1.0.0", train=[20, 3, 17], test=[2])


def test_the_steps_of_small_files_are_counted_also_of_a_part(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples.tfrecord(folder / "test-00000", [episode(number, rows) for number, rows in enumerate((3, 1))])
    assert open_source(f"tfds:{folder}@test").episode_lengths() == [3, 1]
    assert open_source(f"tfds:{folder}@test[1:]").episode_lengths() == [1]
    assert open_source(f"tfds:{folder}@test").shard(1, 2).episode_lengths() == [1]
    assert open_source(f"tfds:{folder}@train").episode_lengths() == [2] * 40
    monkeypatch.setattr(read, "_MOST_COUNTED_BYTES", 100)
    assert open_source(f"tfds:{folder}@train").episode_lengths() is None


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records whose steps were counted; no file is small enough to be counted unasked."""
    where: list[str] = []
    length_of = EpisodeFeatures.length_of

    def counting(features: EpisodeFeatures, record: bytes, place: str) -> int | None:
        where.append(place)
        return length_of(features, record, place)

    monkeypatch.setenv("RLDS2REVERB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(read, "_MOST_COUNTED_BYTES", 0)
    monkeypatch.setattr(EpisodeFeatures, "length_of", counting)
    return where


def test_counted_steps_are_kept_and_a_file_is_counted_from_its_first_gap_to_the_last(
    folder: Path, counted: list[str]
) -> None:
    for shard, length in enumerate((20, 3, 17)):
        examples.tfrecord(folder / f"train-{shard:05d}", [episode(n, 1 + (shard + n) % 5) for n in range(length)])
    whole = [len(read_episode) for read_episode in open_source(f"tfds:{folder}")]
    for split, new in (("train[5:9]", 4), ("train[2:7]", 3), ("train[:25]", 25), ("train", 15), ("train[9:]", 0)):
        source = open_source(f"tfds:{folder}@{split}")
        assert source.episode_lengths() is None
        counted.clear()
        assert list(source.count_lengths()) == [len(read_episode) for read_episode in source]
        assert len(counted) == new, split
    assert list(open_source(f"tfds:{folder}").shard(1, 3).count_lengths()) == whole[1::3]
    examples.tfrecord(folder / "train-00001", [episode(n, 6) for n in range(3)])  # written anew
    counted.clear()
    assert sorted(open_source(f"tfds:{folder}").count_lengths())[-3:] == [6, 6, 6]
    assert len(counted) == 3


def test_without_a_folder_for_the_cache_they_are_counted_each_time(folder: Path, counted: list[str]) -> None:
    (folder.parents[1] / "cache").write_text("")
    for _ in range(2):
        assert open_source(f"tfds:{folder}@test").count_lengths() == [2, 2]
    assert len(counted) == 4


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["", "?order=file"]), st.sets(st.integers(0, 39)), st.booleans())
def test_single_episodes_are_those_of_a_whole_reading(
    folder: Path, order: str, chosen: set[int], reads_between: bool
) -> None:
    source = open_source(f"tfds:{folder}@train{order}")
    whole = numbers(source)
    with pytest.MonkeyPatch.context() as patched:
        if not reads_between:
            patched.setattr(selection, "_READ_ANYWAY_BYTES", 0)
        found = [(number, numbers([episode])[0]) for number, episode in source.at(sorted(chosen))]
    assert sorted(found) == [(number, whole[number]) for number in sorted(chosen)]


def test_a_damaged_episode_is_named_when_it_is_read_alone(folder: Path) -> None:
    examples.tfrecord(folder / "test-00000", [episode(0), b"no example"])
    source = open_source(f"tfds:{folder}@test")
    assert [number for number, _ in source.at([0])] == [0]
    with pytest.raises(SourceError, match="episode 1: cannot be read"):
        list(source.at([0, 1]))
    damage(folder / "test-00000", -3)
    source = open_source(f"tfds:{folder}@test")
    with pytest.raises(SourceError, match=r"test: cannot be read.*record 1 is damaged"):
        list(source.at([1]))


def test_a_damaged_record_is_no_matter_of_counting(folder: Path) -> None:
    examples.tfrecord(folder / "test-00000", [episode(0), b"no example"])
    source = open_source(f"tfds:{folder}@test")
    assert source.episode_lengths() is None
    with pytest.raises(SourceError, match="episode 1: cannot be read"):
        list(source)


def test_episodes_have_columns_metadata_and_a_name_of_their_place(folder: Path) -> None:
    source = open_source(f"tfds:{folder}@train[1:2]")
    assert isinstance(source, TfdsSource)
    assert source.name == f"tfds:{folder}@train[1:2]"
    assert source.episode_count == 1
    (one,) = source
    assert one.where == "x/1.0.0#train-00000__1"
    assert one.id.startswith("content:")
    assert {path: column.tolist() for path, column in one.columns.items()} == {
        "is_first": [True, False], "is_last": [False, True], "observation": [1, 1],
    }  # fmt: skip
    assert one.metadata == {"number": 1}
    assert str(source.spec()["observation"]) == "int64[]"
    assert str(source.metadata_spec()) == str({"number": source.spec()["observation"]})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", [*range(16), 20, 21, 22, *range(23, 39), 16, 17, 18, 19, 39]),
        ("?order=file", range(40)),
        ("@train?order=tfds", [*range(16), 20, 21, 22, *range(23, 39), 16, 17, 18, 19, 39]),
        ("@train[2shard]", range(23, 40)),
        ("@test+train[:2]", [0, 1, 0, 1]),
        ("@train?even=1of3,order=file", range(14, 27)),
        ("@train?even=2of3,drop_remainder=yes,order=file", range(26, 39)),
    ],
)
def test_splits_and_options_say_which_episodes_come_and_when(folder: Path, text: str, wanted: Sequence[int]) -> None:
    assert numbers(open_source(f"tfds:{folder}{text}")) == list(wanted)


def test_a_name_does_not_depend_on_split_order_or_place(folder: Path, tmp_path: Path) -> None:
    def names(text: str) -> dict[int, str]:
        return {int(read_episode.metadata["number"]): read_episode.id for read_episode in open_source(text)}

    whole = names(f"tfds:{folder}")
    assert names(f"tfds:{folder}?order=file") == whole
    part = names(f"tfds:{folder}@train[18:30]")
    assert part == {number: whole[number] for number in part}
    assert names(f"tfds:{write(tmp_path / 'copy', train=[20, 3, 17], test=[2])}") == whole


def test_an_ordered_dataset_is_read_file_by_file(tmp_path: Path) -> None:
    folder = write(tmp_path, info={"disableShuffling": True}, train=[20, 3, 17])
    assert numbers(open_source(f"tfds:{folder}")) == list(range(40))


@settings(max_examples=30)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=5).filter(any), st.integers(1, 4))
def test_shards_share_out_the_episodes(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], count: int
) -> None:
    source = open_source(f"tfds:{write(tmp_path_factory.mktemp('x'), train=lengths)}")
    whole = [read_episode.id for read_episode in source]
    assert len(whole) == sum(lengths) == source.episode_count
    for index in range(count):
        shard = source.shard(index, count)
        assert [read_episode.id for read_episode in shard] == whole[index::count]
        assert shard.episode_count == len(whole[index::count])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / "train-00001").unlink(), r"^F: split .train. has 3 shards by dataset_info.json, and 1 is missing: train-00001 \(train\[1shard\], episodes 20 to 22\)"),
        (lambda folder: damage(folder / "train-00001", 60), "^tfds:F, episode 16: cannot be read: F/train-00001: record 0 is"),
        (lambda folder: cut(folder / "train-00000", 5), "^tfds:F, episode 38: cannot be read: F/train-00000: .*record 19"),
        (
            lambda folder: examples.tfrecord(folder / "train-00001", [episode(20 + at) for at in range(4)]),
            "^tfds:F, episode 19: cannot be read: F/train-00001: there are more than the 3 records",
        ),
        (
            lambda folder: examples.tfrecord(folder / "train-00001", [episode(20), b"\xff" * 9, episode(22)]),
            "^tfds:F, episode 17: cannot be read: F/train-00001, record 1",
        ),
    ],
)  # fmt: skip
def test_a_damaged_file_is_told_with_the_episode_and_what_came_before_is_good(
    folder: Path, change: Callable[[Path], object], said: str
) -> None:
    good = numbers(open_source(f"tfds:{folder}"))
    change(folder)
    found: list[int] = []
    with pytest.raises(SourceError) as caught:
        found.extend(int(read_episode.metadata["number"]) for read_episode in open_source(f"tfds:{folder}"))
    text = str(caught.value).replace(str(folder), "F")
    assert re.search(said, text), text
    assert found == good[: len(found)]
    episode_number = text.partition("episode ")[2].partition(":")[0]
    assert not episode_number or len(found) == int(episode_number)


def damage(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def cut(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rlds2reverb-read-ahead"]


def test_a_reader_that_is_dropped_in_the_middle_leaves_no_thread_and_no_open_file(folder: Path) -> None:
    reading = iter(open_source(f"tfds:{folder}"))
    next(reading)
    assert len(readers()) == 1
    del reading
    assert readers() == []


def test_opening_and_telling_the_spec_start_no_thread(folder: Path) -> None:
    source = open_source(f"tfds:{folder}")
    source.spec()
    assert readers() == []


def test_two_readings_do_not_disturb_one_another(folder: Path) -> None:
    source = open_source(f"tfds:{folder}")
    assert [read_episode.id == other.id for read_episode, other in zip(source, source, strict=True)] == [True] * 40


AUDIO = {**STEPS, "sound": examples.node("audio_feature.Audio", "audio", dtype="int64", shape={"dimensions": ["-1"]})}


def test_a_feature_that_only_tfds_reads_is_refused_by_name_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.delitem(sys.modules, "rlds2reverb.formats.tfds.by_tensorflow", raising=False)
    folder = write(tmp_path, AUDIO, train=[1])
    with pytest.raises(SourceError) as caught:
        open_source(f"tfds:{folder}")
    assert 'features.json: feature "steps/sound": its class' in str(caught.value)
    assert "Audio" in str(caught.value)
    assert str(caught.value).endswith(f". So TFDS has to read it, which needs tensorflow; {how_to_install('tfds')}")


@pytest.mark.parametrize(("file", "told"), [(b"BM" + b"\0" * 60, "BMP"), (b"\xff\xd8\xff", "cannot be decoded")])
def test_an_image_that_is_not_read_is_told_with_the_ways_around_it(tmp_path: Path, file: bytes, told: str) -> None:
    folder = write(tmp_path, {**STEPS, "image": examples.image(1, 1, 3)}, train=[1])
    record = examples.example({"steps/image": examples.texts(file), "number": examples.integers(1)})
    examples.tfrecord(folder / "train-00000", [record])
    with pytest.raises(
        SourceError,
        match=rf"episode 0: .*{told}.*; a split such as train\[:5\]\+train\[6:\] leaves it out, "
        r'and TFDS may read it: write "\?reader=tfds" behind the name$',
    ):
        numbers(open_source(f"tfds:{folder}"))


def test_riegeli_files_are_refused_in_a_sentence(tmp_path: Path) -> None:
    folder = write(tmp_path, info={"fileFormat": "riegeli"}, train=[1])
    with pytest.raises(SourceError, match="riegeli files are not read here"):
        open_source(f"tfds:{folder}")


def in_parquet(folder: Path, rows: Mapping[int, int]) -> Path:
    """The dataset's files as parquet, with so many rows in some of them."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    info = json.loads((folder / "dataset_info.json").read_text())
    (folder / "dataset_info.json").write_text(json.dumps({**info, "fileFormat": "parquet"}))
    first = 0
    for shard, length in enumerate(map(int, info["splits"][0]["shardLengths"])):
        data = [episode(first + at) for at in range(rows.get(shard, length))]
        parquet.write_table(pyarrow.table({"data": data}), folder / f"train-{shard:05d}")
        first += length
    return folder


def test_lost_records_are_refused_or_skipped_and_counted(folder: Path) -> None:
    in_parquet(folder, {0: 17})
    with pytest.raises(SourceError, match=r"has 17 records; expected 20.*\?lost_records=skip"):
        numbers(open_source(f"tfds:{folder}"))
    source = open_source(f"tfds:{folder}?lost_records=skip")
    assert source.episode_count == 37
    assert sorted(numbers(source)) == [*range(17), *range(20, 40)]
    (remark,) = source.notices
    assert (remark.code, remark.count) == ("lost_records", 3)
    assert (
        f"1 file with fewer records than dataset_info.json says, which are skipped, as asked; the first is {folder}"
        in (remark.text)
    )
    assert numbers(source)[:17] == [*range(16), 20]
    whole = [read_episode.id for read_episode in source]
    assert [read_episode.id for read_episode in source.shard(1, 3)] == whole[1::3]


def test_columns_keep_their_dtypes(folder: Path) -> None:
    (one, *_) = open_source(f"tfds:{folder}")
    assert {path: column.dtype for path, column in one.columns.items()} == {
        "is_first": np.dtype(bool), "is_last": np.dtype(bool), "observation": np.dtype(np.int64),
    }  # fmt: skip
