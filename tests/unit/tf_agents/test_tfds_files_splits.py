"""Splits, file names and read order as TFDS itself has them, for any split and any files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from rlds2reverb.errors import SourceError
from rlds2reverb.formats.tfds.info import FileNames, SplitInfo
from rlds2reverb.formats.tfds.selection import runs
from rlds2reverb.formats.tfds.splits import EvenPart, parts_of
from tests.support.profiles import scaled
from tests.support.raising import outcome_of

tf = pytest.importorskip("tensorflow")
tfds = pytest.importorskip("tensorflow_datasets")

from tensorflow_datasets.core import naming, reader, subsplits_utils
from tensorflow_datasets.core import splits as tfds_splits
from tensorflow_datasets.core.utils import shard_utils

FOLDER = "/data/x/1.0.0"
TEMPLATES = ["", "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}", "{SPLIT}/{NUM_SHARDS}-{SHARD_INDEX}", "{SPLIT}"]

Files = list[tuple[str, int, int, int]]


def both(lengths: dict[str, list[int]], template: str = "") -> tuple[dict[str, SplitInfo], Any]:
    """The same splits as ours and as TFDS's."""
    ours = {
        name: SplitInfo(name, tuple(counts), 0, FileNames("x", name, "tfrecord", template))
        for name, counts in lengths.items()
    }
    names = naming.ShardedFileTemplate(Path(FOLDER), template, "x", None, "tfrecord")
    theirs = tfds_splits.SplitDict(
        [tfds_splits.SplitInfo(name, list(counts), 0, names.replace(split=name)) for name, counts in lengths.items()]
    )
    return ours, theirs


def ours_of(split: str, known: dict[str, SplitInfo], even: EvenPart | None = None) -> Files:
    return [(f"{FOLDER}/{part.file}", part.skip, part.take, part.length) for part in parts_of(split, known, even)]


def theirs_of(split: Any, known: Any) -> Files:
    return [
        (instruction.filename, instruction.skip, instruction.take, instruction.examples_in_shard)
        for instruction in known[split].file_instructions
    ]


def refused(split: Any, known: Any) -> bool:
    """Whether TFDS refuses it."""
    return isinstance(outcome_of(Exception, lambda: theirs_of(split, known)), Exception)


NUMBER = st.one_of(
    st.integers(-12, 40).map(str),
    st.sampled_from(["1_0", "2.5", "-0.4", "33.3", "99.9", "_1", "1__0", "1.", ".5", "007", "101"]),
)
BOUND = st.one_of(st.just(""), st.tuples(NUMBER, st.sampled_from(["", "%", "shard"])).map("".join))
SLICE = st.one_of(
    st.just(""),
    st.lists(BOUND, min_size=2, max_size=2).map(lambda bounds: f"[{':'.join(bounds)}]"),
    st.lists(BOUND, min_size=1, max_size=3).map(lambda bounds: f"[{':'.join(bounds)}]"),
)
TERM = st.tuples(st.sampled_from(["train", "train", "test", "a-b", "all", "other"]), SLICE).map("".join)
SPLIT = st.lists(TERM, min_size=1, max_size=3).flatmap(
    lambda terms: st.sampled_from(["+", " + "]).map(lambda plus: plus.join(terms))
)
LENGTHS = st.fixed_dictionaries({name: st.lists(st.integers(0, 30), max_size=5) for name in ("train", "test", "a-b")})


@settings(max_examples=scaled(900))
@given(SPLIT, LENGTHS, st.sampled_from(TEMPLATES))
@example("train[:-0.1%]", {"train": [10], "test": [], "a-b": []}, "")
@example("train[:-9shard]", {"train": [1, 2, 3], "test": [], "a-b": []}, "")
def test_a_split_is_the_same_parts_of_the_same_files(split: str, lengths: dict[str, list[int]], template: str) -> None:
    known, theirs = both(lengths, template)
    found = outcome_of(SourceError, lambda: ours_of(split, known))
    if isinstance(found, SourceError):
        assert "ends at record" in str(found) or refused(split, theirs), found
    else:
        assert found == theirs_of(split, theirs)


@settings(max_examples=scaled(300))
@given(
    st.lists(st.sampled_from(["train", "test[2:]", "train[:50%]", "a-b[1shard:]"]), min_size=1, max_size=3).map(
        "+".join
    ),
    LENGTHS,
    st.integers(1, 7),
    st.booleans(),
    st.data(),
)
def test_an_even_part_is_that_of_even_splits(
    split: str, lengths: dict[str, list[int]], count: int, drop: bool, data: st.DataObject
) -> None:
    known, theirs = both(lengths)
    index = data.draw(st.integers(0, count - 1))
    wanted = subsplits_utils.even_splits(split, count, drop_remainder=drop)[index]
    assume(not refused(split, theirs))
    assert ours_of(split, known, EvenPart(index, count, drop)) == theirs_of(wanted, theirs)


@pytest.mark.parametrize("count", [1, 9, 99_999, 100_000])
@pytest.mark.parametrize("template", TEMPLATES)
def test_file_names_are_those_of_tfds(template: str, count: int) -> None:
    theirs = naming.ShardedFileTemplate(Path(FOLDER), template, "x", "train", "array_record")
    ours = FileNames("x", "train", "array_record", template)
    for index in (0, count // 2, count - 1):
        assert ours.of_shard(index, count) == theirs.relative_filepath(shard_index=index, num_shards=count)


@settings(max_examples=scaled(40))
@given(st.lists(st.sampled_from([0, 1, 5, 15, 16, 17, 31, 32, 33, 48, 50]), min_size=1, max_size=40))
def test_files_are_interleaved_as_tensorflow_does(lengths: list[int]) -> None:
    ours = [(run.file, run.first + number) for run in runs(lengths) for number in range(run.records)]
    assert ours == by_tensorflow(lengths)


def by_tensorflow(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """(file, record) as the call in TFDS's reader gives them."""
    files = tf.data.Dataset.from_tensor_slices((list(range(len(lengths))), tf.constant(lengths, tf.int64)))
    read = files.interleave(
        lambda file, length: tf.data.Dataset.range(length).map(lambda record: (tf.cast(file, tf.int64), record)),
        cycle_length=reader._get_default_interleave_cycle_length(disable_shuffling=False),
        block_length=tfds.ReadConfig().interleave_block_length,
        num_parallel_calls=tfds.ReadConfig().num_parallel_calls_for_interleave_files,
        deterministic=True,
    )
    return [(int(file), int(record)) for file, record in read.as_numpy_iterator()]


def test_an_ordered_dataset_is_read_with_one_file_at_a_time() -> None:
    assert reader._get_default_interleave_cycle_length(disable_shuffling=True) == 1


def test_a_reversed_slice_is_refused_where_tfds_reads_other_records() -> None:
    """If this fails, TFDS mended it, and the exception in the first test can go."""
    known, theirs = both({"train": [10]})
    assert theirs_of("train[5:4]", theirs) == [(f"{FOLDER}/x-train.tfrecord-00000-of-00001", 5, 5, 10)]
    with pytest.raises(SourceError, match="ends at record 4, before it begins at 5"):
        ours_of("train[5:4]", known)


@given(
    st.lists(
        st.sampled_from(
            [f"{FOLDER}/{name}" for name in ("train/a", "test/a", "xtrain/a", "deep/train/a", "a", "b", "t.1/a")]
        ),
        min_size=1,
        max_size=4,
    )
)
def test_the_names_of_episodes_begin_as_those_of_tfds(paths: list[str]) -> None:
    from rlds2reverb.formats.tfds.selection import id_prefixes

    theirs = reader._get_tfds_id_prefixes([shard_utils.FileInstruction(path, 0, 1, 1) for path in paths])
    assert id_prefixes(paths) == theirs
    assert all(re.search("[^/]$", prefix) for prefix in theirs.values())
