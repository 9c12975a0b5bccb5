"""Names, versions, data folders and dataset_info.json as TFDS itself has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.errors import SourceError
from rlds2reverb.formats.tfds import BUNDLED, bundled_path
from rlds2reverb.formats.tfds.info import INFO_FIELDS, SPLIT_FIELDS, read_info
from rlds2reverb.formats.tfds.names import DatasetName, find, in_snake_case
from tests.support.profiles import scaled
from tests.support.raising import outcome_of

tfds = pytest.importorskip("tensorflow_datasets")

from etils import epath
from google.protobuf import json_format
from tensorflow_datasets.core import naming, read_only_builder
from tensorflow_datasets.core.proto import dataset_info_pb2
from tensorflow_datasets.core.utils import error_utils, file_utils

NAMES = st.one_of(
    st.from_regex(
        r"([a-z]{1,3}:)?[a-zA-Z][a-zA-Z0-9_]{0,6}(/[a-z0-9.+\-]{1,4})?(:[0-9*]{1,2}(\.[0-9*]{1,2}){1,2})?",
        fullmatch=True,
    ),
    st.text(alphabet="aB_1/:.*-+=,", max_size=12),
)


@settings(max_examples=scaled(600))
@given(NAMES)
def test_a_name_is_taken_apart_as_tfds_does(text: str) -> None:
    ours = outcome_of(SourceError, lambda: DatasetName.parse(text))
    theirs = outcome_of(Exception, lambda: naming.parse_builder_name_kwargs(text))
    if isinstance(theirs, Exception):
        assert isinstance(ours, SourceError)
        return
    name, arguments = theirs
    if isinstance(ours, SourceError):
        assert name.namespace or arguments.keys() - {"config", "version"} or "=" in text, ours
        return
    assert (ours.name, ours.config, ours.version) == (
        name.name,
        arguments.get("config", ""),
        arguments.get("version", ""),
    )


@given(st.from_regex("[a-zA-Z][a-zA-Z0-9_]{0,12}", fullmatch=True))
def test_camel_case_becomes_snake_case_as_in_tfds(name: str) -> None:
    assert in_snake_case(name) == naming.camelcase_to_snakecase(name)


VERSIONS = st.sampled_from(
    ["1.0.0", "1.9.0", "1.10.0", "2.0.0", "10.0.0", "01.0.0", "1.0", "incomplete.ABCDEF_3.0.0", "x", "0.0.1"]
)
CONFIGS = st.sampled_from(["", "a", "b"])
PLACES = st.lists(st.tuples(st.integers(0, 1), CONFIGS, VERSIONS, st.booleans()), max_size=6)
WANTED = st.tuples(CONFIGS, st.sampled_from(["", "1.0.0", "1.9.0", "1.*.*", "*.0.*", "*.*.*", "7.0.0", "2.0.0"]))


@settings(max_examples=scaled(300))
@given(PLACES, WANTED, st.sampled_from([None, "a", "b"]))
def test_a_dataset_is_found_where_tfds_finds_it(
    tmp_path_factory: pytest.TempPathFactory, places: list[Any], wanted: tuple[str, str], default: str | None
) -> None:
    folders = [tmp_path_factory.mktemp("data") for _ in range(2)]
    for number, config, version, is_prepared in places:
        place = folders[number] / "some_data" / config / version
        place.mkdir(parents=True, exist_ok=True)
        if is_prepared:
            (place / "features.json").touch()
    if default is not None:
        (folders[0] / "some_data" / ".config").mkdir(parents=True)
        (folders[0] / "some_data" / ".config" / "metadata.json").write_text(
            json.dumps({"default_config_name": default})
        )
    name = DatasetName("some_data", *wanted)
    ours = outcome_of(SourceError, lambda: find(name, folders))
    theirs = found_by_tfds(str(name), folders)
    assert (None if isinstance(ours, SourceError) else ours) == theirs


def found_by_tfds(name: str, folders: list[Path]) -> Path | None:
    """Where TFDS finds it; None when it is nowhere, or in two places."""
    kept = file_utils._REGISTERED_DATA_DIRS
    file_utils._REGISTERED_DATA_DIRS = {epath.Path(folder) for folder in folders}
    try:
        with error_utils.record_error_context():
            found = outcome_of(ValueError, lambda: read_only_builder._find_builder_dir(name))
    finally:
        file_utils._REGISTERED_DATA_DIRS = kept
    return None if found is None or isinstance(found, ValueError) else Path(found)


def test_the_fields_are_those_of_the_message() -> None:
    assert set(INFO_FIELDS) == {field.name for field in dataset_info_pb2.DatasetInfo.DESCRIPTOR.fields}
    assert set(SPLIT_FIELDS) == {field.name for field in dataset_info_pb2.SplitInfo.DESCRIPTOR.fields}


SPLITS = st.lists(
    st.builds(
        lambda name, lengths, size, template: dataset_info_pb2.SplitInfo(
            name=name, shard_lengths=lengths, num_bytes=size, filepath_template=template
        ),
        st.sampled_from(["train", "test", "a-b", "1"]),
        st.lists(st.integers(0, 2**46), max_size=3),
        st.integers(0, 2**62),
        st.sampled_from(["", "{SPLIT}-{SHARD_INDEX}"]),
    ),
    max_size=3,
    unique_by=lambda split: split.name,
)


@given(
    splits=SPLITS,
    config=st.sampled_from(["", "c"]),
    ordered=st.booleans(),
    file_format=st.sampled_from(["", "tfrecord", "parquet"]),
    original=st.booleans(),
    description=st.text(max_size=5),
)
def test_info_is_read_as_protobuf_reads_it(
    tmp_path_factory: pytest.TempPathFactory,
    splits: list[Any],
    config: str,
    ordered: bool,
    file_format: str,
    original: bool,
    description: str,
) -> None:
    message = dataset_info_pb2.DatasetInfo(
        name="x", version="1.0.0", config_name=config, splits=splits, disable_shuffling=ordered, file_format=file_format,
        description=description,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("info")
    text = json_format.MessageToJson(message, preserving_proto_field_name=original)
    (folder / "dataset_info.json").write_text(text)
    found = read_info(folder)
    assert (found.name, found.config, found.version, found.is_ordered) == ("x", config, "1.0.0", ordered)
    assert found.file_format == (file_format or "tfrecord")
    assert [
        (split.name, list(split.shard_lengths), split.num_bytes, split.file_names.template)
        for split in found.splits.values()
    ] == [(split.name, list(split.shard_lengths), split.num_bytes, split.filepath_template) for split in splits]


@pytest.mark.parametrize("name", BUNDLED)
def test_the_full_name_is_that_of_tfds(name: str) -> None:
    builder = tfds.builder_from_directory(str(bundled_path(name)))
    assert read_info(bundled_path(name)).full_name == builder.info.full_name
