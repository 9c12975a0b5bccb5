"""dataset_info.json: proto3's JSON, as TFDS writes it and as somebody else may; and the names of a split's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import SourceError
from rlds2reverb.formats.tfds import BUNDLED, bundled_path
from rlds2reverb.formats.tfds.info import DatasetInfo, FileNames, read_info
from tests.support.raising import outcome_of


def info_of(folder: Path, **fields: Any) -> DatasetInfo:
    (folder / "dataset_info.json").write_text(json.dumps(fields))
    return read_info(folder)


SPLIT: dict[str, Any] = {"name": "train", "shardLengths": ["3", "2"], "numBytes": "70"}


@pytest.mark.parametrize("name", BUNDLED)
def test_the_shipped_datasets_say_what_they_have(name: str) -> None:
    found = read_info(bundled_path(name))
    assert (found.name, found.version, found.file_format, list(found.splits)) == (name, "1.0.0", "tfrecord", ["train"])


def test_numbers_are_texts_and_what_is_absent_has_its_default(tmp_path: Path) -> None:
    found = info_of(tmp_path, name="x", version="1.0.0", splits=[SPLIT, {"name": "a"}])
    assert found.splits["train"].shard_lengths == (3, 2)
    assert found.splits["train"].num_examples == 5
    assert found.splits["a"].shard_lengths == ()
    assert (found.config, found.file_format, found.is_ordered, found.has_features) == ("", "tfrecord", False, False)
    assert found.full_name == "x/1.0.0"


def test_fields_may_have_the_names_of_the_message_and_numbers_may_be_numbers(tmp_path: Path) -> None:
    split = {"name": "train", "shard_lengths": [3, 2.0], "num_bytes": 70, "filepath_template": None}
    plain = info_of(
        tmp_path,
        name="x",
        config_name="c",
        version="1.0.0",
        splits=[split],
        disable_shuffling=True,
        file_format="parquet",
    )
    assert plain.full_name == "x/c/1.0.0"
    assert plain.is_ordered
    assert plain.file_format == "parquet"
    assert plain.splits["train"].shard_lengths == (3, 2)
    camel = info_of(
        tmp_path, name="x", configName="c", version="1.0.0", splits=[SPLIT], disableShuffling=True, fileFormat="parquet"
    )
    assert camel == plain


GOOD: dict[str, Any] = {"name": "x", "version": "1.0.0", "splits": [SPLIT]}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"version": "one"}, 'version "one": expected MAJOR.MINOR.PATCH'),
        ({"version": "01.0.0"}, "expected MAJOR.MINOR.PATCH"),
        ({"version": ""}, "expected MAJOR.MINOR.PATCH"),
        ({"version": 3}, "version: expected a text, found 3"),
        ({"name": ["x"]}, "name: expected a text, found"),
        ({"nonsense": 1}, 'no field named "nonsense"; expected name, '),
        ({"file_format": "tfrecord", "fileFormat": "tfrecord"}, 'field "file_format" is there twice'),
        ({"fileFormat": "zip"}, 'fileFormat "zip": expected tfrecord, riegeli, array_record, parquet'),
        ({"disableShuffling": "true"}, "disableShuffling: expected true or false"),
        ({"isBlocked": "it is wrong", "configName": "c"}, "blocked this version: it is wrong"),
        ({"splits": 3}, "splits: expected a list, found 3"),
        ({"splits": [3]}, r"splits\[0\]: expected an object, found 3"),
        ({"splits": [{}]}, r'splits\[0\]: name "": expected a letter or a digit'),
        ({"splits": [SPLIT, SPLIT]}, 'there are two of the name "train"'),
        ({"splits": [{**SPLIT, "size": 1}]}, r'splits\[0\]: there is no field named "size"'),
        ({"splits": [{**SPLIT, "shardLengths": "3"}]}, "shardLengths: expected a list"),
        ({"splits": [{**SPLIT, "shardLengths": ["x"]}]}, "shardLengths: expected a whole number"),
        ({"splits": [{**SPLIT, "shardLengths": [True]}]}, "shardLengths: expected a whole number"),
        ({"splits": [{**SPLIT, "shardLengths": [1.5]}]}, "shardLengths: expected a whole number"),
        ({"splits": [{**SPLIT, "shardLengths": [float("inf")]}]}, "shardLengths: expected a whole number"),
        ({"splits": [{**SPLIT, "shardLengths": ["-1"]}]}, "shardLengths: expected numbers of at least 0"),
        ({"splits": [{**SPLIT, "shardLengths": [1 << 63]}]}, "shardLengths: expected a number of 64 bits"),
        ({"splits": [{**SPLIT, "shardLengths": [1 << 48, 1]}]}, "expected at most 281,474,976,710,656 in all"),
        ({"splits": [{**SPLIT, "numBytes": "1e3"}]}, "numBytes: expected a whole number"),
        ({"splits": [{**SPLIT, "filepathTemplate": 3}]}, "filepathTemplate: expected a text"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_its_place(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(SourceError, match=said) as caught:
        info_of(tmp_path, **{**GOOD, **fields})
    assert str(caught.value).startswith(f"{tmp_path}/dataset_info.json: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 900


def test_without_the_file_it_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(
        SourceError, match=r"dataset_info\.json: cannot be read: No such file.*expected a version directory"
    ):
        read_info(tmp_path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "shardLengths"]), inner, max_size=2)
    ),
    max_leaves=8,
)


@given(st.sampled_from([*GOOD, "fileFormat", "disableShuffling", "isBlocked", "features"]), VALUES)
def test_any_value_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, field: str, value: Any) -> None:
    folder = tmp_path_factory.mktemp("info")
    found = outcome_of(SourceError, lambda: info_of(folder, **{**GOOD, field: value}))
    assert isinstance(found, SourceError) or found.full_name


def test_more_shards_than_are_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SourceError, match="shardLengths: expected at most 100,000 shards, the most that are read, of 100,001"
    ):
        info_of(tmp_path, name="x", version="1.0.0", splits=[{"name": "train", "shardLengths": [0] * 100_001}])
    halves = [{"name": name, "shardLengths": [1] * 50_000} for name in ("a", "b")]
    assert len(info_of(tmp_path, name="x", version="1.0.0", splits=halves).splits["b"].shard_lengths) == 50_000
    with pytest.raises(
        SourceError, match=r"its 3 splits have 100,001 shards; expected at most 100,000 in all.*fewer and larger"
    ):
        info_of(tmp_path, name="x", version="1.0.0", splits=[*halves, {"name": "c", "shardLengths": [1]}])


def names(template: str, count: int, dataset: str = "x") -> list[str]:
    known = FileNames(dataset, "train", "tfrecord", template)
    return [known.of_shard(index, count) for index in range(count)]


def test_shards_are_numbered_with_five_digits_or_as_many_as_it_takes() -> None:
    assert names("", 2) == ["x-train.tfrecord-00000-of-00002", "x-train.tfrecord-00001-of-00002"]
    many = FileNames("x", "train", "tfrecord")
    assert many.of_shard(7, 99_999) == "x-train.tfrecord-00007-of-99999"
    assert many.of_shard(7, 100_000) == "x-train.tfrecord-000007-of-100000"


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        ("{SPLIT}/data.{FILEFORMAT}-{SHARD_INDEX}", "train/data.tfrecord-00001"),
        ("{DATASET}@{NUM_SHARDS}", "x@00003"),
        ("{{{DATASET}}}", "{x}"),
        ("/elsewhere/{SPLIT}", "/elsewhere/train"),
        ("plain", "plain"),
    ],
)
def test_a_template_is_filled_in(template: str, wanted: str) -> None:
    assert names(template, 3)[1] == wanted


@pytest.mark.parametrize(
    "template",
    ["{", "}", "{}", "{SHARDS}", "{0}", "{SPLIT!r}", "{SPLIT:>9999999999}", "{SPLIT.__class__}", "{{}", "{dataset}"],
)
def test_a_template_that_cannot_be_filled_in_is_refused(template: str) -> None:
    with pytest.raises(SourceError, match=r'split "train": .* cannot be filled in at ".*"; there are: {DATASET}'):
        names(template, 1)


def test_a_dataset_without_a_name_has_no_files_of_the_usual_name() -> None:
    with pytest.raises(SourceError, match="cannot be filled in at"):
        names("", 1, dataset="")
