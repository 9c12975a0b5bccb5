"""Shards that are missing: which of the split, what lies there instead, and a way on that can be followed; on a disk and in a bucket."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.tfds.info import FileNames
from tests.support.buckets import Faults, Storage
from tests.support.formats import tfds as examples
from tests.unit.formats.tfds.test_read import STEPS, episode, numbers

HINT = re.compile(r'read the shards that are there: "(@\S+)" behind the name$')


def describe(folder: Path, template: str = "", **splits: Sequence[int]) -> Path:
    """Writes the two files of JSON, of files of so many episodes."""
    folder.mkdir(parents=True, exist_ok=True)
    told = [
        {"name": name, "shardLengths": list(map(str, lengths)), "filepathTemplate": template}
        for name, lengths in splits.items()
    ]
    (folder / "dataset_info.json").write_text(json.dumps({"name": "x", "version": "1.0.0", "splits": told}))
    features = examples.episodes(STEPS, number=examples.tensor("int64"))
    (folder / "features.json").write_text(json.dumps(features))
    return folder


def fill(folder: Path, split: str, lengths: Sequence[int], dataset: str = "x") -> list[Path]:
    """Writes the shards of a split; observations are numbered through it."""
    paths = [folder / f"{dataset}-{split}.tfrecord-{at:05d}-of-{len(lengths):05d}" for at in range(len(lengths))]
    for at, (path, length) in enumerate(zip(paths, lengths)):
        first = sum(lengths[:at])
        examples.tfrecord(path, [episode(number) for number in range(first, first + length)])
    return paths


def refusal(name: str) -> str:
    with pytest.raises(SourceError) as caught:
        open_source(name)
    return str(caught.value)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_split_that_is_proposed_reads_what_is_there(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    lengths = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=9).filter(any))
    gone = data.draw(st.sets(st.sampled_from([at for at, length in enumerate(lengths) if length]), min_size=1))
    folder = describe(tmp_path_factory.mktemp("x"), train=lengths)
    for at, path in enumerate(fill(folder, "train", lengths)):
        if at in gone:
            path.unlink()
    why = refusal(f"tfds:{folder}")
    assert f'split "train" has {len(lengths)} shard' in why
    assert f"and {len(gone)} {'is' if len(gone) == 1 else 'are'} missing" in why
    for at in sorted(gone)[:3]:
        first, last = sum(lengths[:at]), sum(lengths[: at + 1]) - 1
        which = f"episode {first}" if first == last else f"episodes {first} to {last}"
        assert f"x-train.tfrecord-{at:05d}-of-{len(lengths):05d} (train[{at}shard], {which})" in why
    assert (f"and {len(gone) - 3} more" in why) == (len(gone) > 3)
    left = [
        number
        for at, length in enumerate(lengths)
        for number in range(sum(lengths[:at]), sum(lengths[:at]) + length)
        if at not in gone
    ]
    hint = HINT.search(why)
    assert (hint is not None) == bool(left)
    if hint is not None:
        assert sorted(numbers(open_source(f"tfds:{folder}{hint[1]}"))) == left


def test_files_of_another_count_or_name_are_told(tmp_path: Path) -> None:
    folder = describe(tmp_path / "1.0.0", train=[2] * 8, test=[1])
    fill(folder, "train", [4] * 4)
    fill(folder, "train", [1] * 2, "robot")
    fill(folder, "test", [1])
    why = refusal(f"tfds:{folder}")
    assert "8 are missing" in why
    assert (
        "the folder has 2 files robot-train.tfrecord-*-of-00002 and 4 files x-train.tfrecord-*-of-00004 instead" in why
    )
    assert "copy dataset_info.json and features.json" in why
    assert numbers(open_source(f"tfds:{folder}@test")) == [0], "another split is whole"


def test_each_split_is_told(tmp_path: Path) -> None:
    folder = describe(tmp_path / "1.0.0", train=[2, 2], test=[1])
    why = refusal(f"tfds:{folder}@all")
    assert 'split "train" has 2 shards by dataset_info.json, and 2 are missing' in why
    assert 'split "test" has 1 shard by dataset_info.json, and 1 is missing' in why


def test_only_shards_that_are_read_must_be_there(tmp_path: Path) -> None:
    folder = describe(tmp_path / "1.0.0", train=[2, 2, 2])
    fill(folder, "train", [2, 2, 2])[1].unlink()
    assert numbers(open_source(f"tfds:{folder}@train[:2]")) == [0, 1]
    assert "train[1shard], episodes 2 to 3" in refusal(f"tfds:{folder}@train[1:3]")


@pytest.mark.full
def test_it_is_the_same_where_tfds_reads(tmp_path: Path) -> None:
    folder = describe(tmp_path / "x" / "1.0.0", train=[2, 2])
    fill(folder, "train", [1] * 3)
    why = refusal(f"tfds:{folder}?reader=tfds")
    assert why == refusal(f"tfds:{folder}")
    assert "the folder has 3 files x-train.tfrecord-*-of-00003 instead" in why


def test_in_a_bucket(tmp_path: Path, storage: Storage, cloud: Faults) -> None:
    folder = describe(tmp_path / "1.0.0", train=[1, 2])
    fill(folder, "train", [3])
    storage.create("missing-shards")
    storage.upload(folder, "missing-shards", "x")
    why = refusal("tfds:s3://missing-shards/x")
    assert why == refusal(f"tfds:{folder}").replace(str(folder), "s3://missing-shards/x")
    assert "the folder has 1 file x-train.tfrecord-*-of-00001 instead" in why


TEMPLATES = {
    "": ("a-train.tfrecord-00002-of-00004", "2"),
    "{SPLIT}/{DATASET}-{SHARD_INDEX}.{FILEFORMAT}": ("train/b-00007.parquet", "7"),
    "{DATASET}{DATASET}.{SPLIT}.{SHARD_INDEX}.of.{NUM_SHARDS}.{NUM_SHARDS}": ("aa.train.00001.of.00003.00003", "1"),
    "{DATASET}-{SPLIT}.zst": ("c-train.zst", None),
}
REFUSED = {
    "": ("a-test.tfrecord-00002-of-00004", "a-train.tfrecord-00002-of-00004.rlds2reverb-index", "a-train.txt-00002-of-00004"),
    "{DATASET}{DATASET}.{SPLIT}.{SHARD_INDEX}.of.{NUM_SHARDS}.{NUM_SHARDS}": ("ab.train.00001.of.00003.00003", "aa.train.00001.of.00003.00004"),
}  # fmt: skip


@pytest.mark.parametrize("template", TEMPLATES)
def test_shards_are_known_by_any_template(template: str) -> None:
    pattern = FileNames("x", "train", "tfrecord", template).of_any_shard()
    path, shard = TEMPLATES[template]
    for start in ("", "/some/folder/"):
        match = pattern.search(f"{start}{path}")
        assert match is not None
        assert match.groupdict().get("shard") == (None if shard is None else f"0000{shard}")
    assert not [other for other in REFUSED.get(template, ()) if pattern.search(other)]


def test_no_template_makes_a_slow_pattern() -> None:
    """One of many places would try every way to divide a name between them, for longer than a test may take."""
    template = "{DATASET}{NUM_SHARDS}{SHARD_INDEX}" * 40 + "!"
    assert FileNames("x", "train", "tfrecord", template).of_any_shard().search("1" * 255) is None


@pytest.mark.full
def test_a_feature_that_records_lack_is_refused_where_tfds_fails(tmp_path: Path) -> None:
    """TFDS says that components have other sizes; what is read by it is told by the feature's name, too."""
    import tensorflow_datasets as tfds

    folder = describe(tmp_path / "x" / "1.0.0", train=[2])
    fill(folder, "train", [2])
    for feature in (examples.image(2, 2, 3), examples.sequence(examples.tensor("int64"))):
        features = examples.episodes({**STEPS, "wrist": feature}, number=examples.tensor("int64"))
        (folder / "features.json").write_text(json.dumps(features))
        dataset = tfds.builder_from_directory(str(folder)).as_dataset(split="train")
        with pytest.raises(Exception, match="All components must have the same size"):
            list(dataset)
        assert '"wrist"' in refusal(f"tfds:{folder}?reader=tfds")
        with pytest.raises(
            SourceError, match=r'x-train\.tfrecord-00000-of-00001, record 0: the record lacks .* "wrist"'
        ):
            list(open_source(f"tfds:{folder}"))
        assert numbers(open_source(f"tfds:{folder}").without(["wrist"])) == [0, 1]
