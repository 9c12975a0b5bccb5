"""Names of a split's files."""

from __future__ import annotations

import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats.tfds.files import FileNames


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
