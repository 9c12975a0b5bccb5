"""Splits as parts of files, beside a list of all records that is sliced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rlds2reverb.errors import SourceError
from rlds2reverb.formats.tfds.info import FileNames, SplitInfo
from rlds2reverb.formats.tfds.splits import EvenPart, Part, parts_of

Record = tuple[str, int]


def splits(**lengths: Sequence[int]) -> dict[str, SplitInfo]:
    return {
        name: SplitInfo(name, tuple(counts), 0, FileNames("x", name, "tfrecord", "{SPLIT}-{SHARD_INDEX}"))
        for name, counts in lengths.items()
    }


def files(split: SplitInfo) -> list[list[Record]]:
    """Every record of a split, by file."""
    return [
        [(f"{split.name}-{number:05d}", at) for at in range(length)]
        for number, length in enumerate(split.shard_lengths)
    ]


def records(split: SplitInfo) -> list[Record]:
    return [record for file in files(split) for record in file]


def read(text: str, known: Mapping[str, SplitInfo], even: EvenPart | None = None) -> list[Record]:
    parts = parts_of(text, known, even)
    assert all(part.take > 0 and part.skip + part.take <= part.length for part in parts)
    return [(part.file, part.skip + at) for part in parts for at in range(part.take)]


LENGTHS = st.lists(st.integers(0, 9), max_size=6)


@st.composite
def slices(draw: st.DrawFn, count: int) -> slice:
    """A slice of so many records, with ends left out or counted from the end."""
    begin, end = sorted([draw(st.integers(0, count)), draw(st.integers(0, count))])
    written = [draw(st.sampled_from([bound, bound - count])) for bound in (begin, end)]
    if begin == 0 and draw(st.booleans()):
        return slice(None, written[1] or end)
    return slice(written[0], (written[1] or end) if end < count or draw(st.booleans()) else None)


@given(LENGTHS, st.data())
def test_numbers_slice_as_python_does(lengths: list[int], data: st.DataObject) -> None:
    known = splits(train=lengths)
    whole = records(known["train"])
    one = data.draw(slices(len(whole)))
    begin, end = ("" if bound is None else bound for bound in (one.start, one.stop))
    assert read(f"train[{begin}:{end}]", known) == whole[one]


@given(LENGTHS, st.integers(-6, 6), st.integers(-6, 6))
def test_files_slice_as_python_does(lengths: list[int], begin: int, end: int) -> None:
    known = splits(train=lengths)
    of_files = files(known["train"])
    assume(slice(begin, end).indices(len(lengths))[0] <= slice(begin, end).indices(len(lengths))[1])
    assume(begin >= -len(lengths) and end >= -len(lengths))
    assume(end != 0)  # which stands for all: see below
    wanted = [record for file in of_files[begin:end] for record in file]
    assert read(f"train[{begin}shard:{end}shard]", known) == wanted
    assert read(f"train[{begin}shard:{end}]", known) == wanted


def test_one_file_is_selected_by_its_number() -> None:
    known = splits(train=[3, 0, 2, 4])
    of_files = files(known["train"])
    for number in range(-4, 4):
        assert read(f"train[{number}shard]", known) == of_files[number]
    assert read("train[9shard]", known) == []
    assert read("train[:0shard]", known) == records(known["train"])  # as in TFDS


@given(st.integers(0, 100_000), st.integers(0, 100))
def test_percentages_share_out_every_record_once(count: int, percent: int) -> None:
    known = splits(train=[count])
    sizes = [
        sum(part.take for part in parts_of(text, known)) for text in (f"train[:{percent}%]", f"train[{percent}%:]")
    ]
    assert sum(sizes) == count
    assert abs(sizes[0] - count * percent / 100) <= 0.5


@pytest.mark.parametrize(
    ("text", "count", "wanted"),
    [
        ("train[:10%]", 15, 2), ("train[:10%]", 25, 2), ("train[:50%]", 5, 2), ("train[:50%]", 7, 4),
        ("train[-10%:]", 25, 2), ("train[12.5%:]", 8, 7), ("train[:1_0%]", 10, 1), ("train[1_0:]", 12, 2),
        ("train[25:75%]", 100, 50), ("train[:100%]", 3, 3), ("train[-100%:]", 3, 3), ("train[3:3]", 3, 0),
    ],
)  # fmt: skip
def test_halves_are_rounded_to_the_even_number(text: str, count: int, wanted: int) -> None:
    assert len(read(text, splits(train=[count]))) == wanted


def test_terms_are_joined_as_they_stand() -> None:
    known = splits(train=[2, 3], test=[4])
    train, test = records(known["train"]), records(known["test"])
    assert read("test + train[:3]+test[1:]", known) == test + train[:3] + test[1:]
    assert read("all", known) == train + test
    assert read("all+test", known) == train + test + test
    assert read("train+train", known) == train * 2
    assert read("all", splits(test=[1], all=[2])) == [("all-00000", 0), ("all-00000", 1)]


def test_a_part_names_file_skip_take_length_and_split() -> None:
    assert parts_of("train[1:6]", splits(train=[4, 0, 9])) == [
        Part("train-00000", 1, 3, 4, "train"),
        Part("train-00002", 0, 2, 9, "train"),
    ]


@given(LENGTHS, LENGTHS, st.integers(1, 8), st.booleans())
def test_even_parts_share_out_the_records_of_every_term(
    train: list[int], test: list[int], count: int, drop: bool
) -> None:
    known = splits(train=train, test=test)
    parts = [read("train+test", known, EvenPart(index, count, drop)) for index in range(count)]
    for name in ("train", "test"):
        whole = records(known[name])
        shares = [[record for record in part if record[0].startswith(name)] for part in parts]
        dealt = [record for share in shares for record in share]
        assert dealt == whole[: len(whole) // count * count if drop else None]
        sizes = [len(share) for share in shares]
        assert sizes == sorted(sizes, reverse=True)
        assert max(sizes) - min(sizes) <= (0 if drop else 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no split"), (" train", "is no split"), ("train+", "is no split"), ("train[", "is no split"),
        ("train[]", "is no split"), ("train[:]", "is no split"), ("train[1:2:3]", "is no split"), ("train[a:]", "is no split"),
        ("train[1:2]x", "is no split"), ("train[:1e9]", "is no split"), ("train[1shards:]", "is no split"),
        ("train[5]", r"one number selects a file, \[5shard\]"), ("train[5%]", "one number selects a file"),
        ("train[1.5:]", "invalid literal"), ("train[:1.2.3%]", "could not convert"), ("train[__:]", "invalid literal"),
        ("train[1.5shard]", "invalid literal"), ("train[:" + "9" * 5000 + "]", "digits"),
        ("train[:101%]", "expected percentages from -100 to 100"), ("train[-100.1%:]", "expected percentages"),
        ("train[:11]", "goes beyond the 10 records"), ("train[-11:]", "goes beyond the 10 records"),
        ("train[5:4]", "ends at record 4, before it begins at 5"), ("train[60%:-60%]", "ends at record 4, before"),
        ("other", "Unknown split 'other'"), ("train+other[:1]", "Unknown split 'other'"), ("all[:1]", "cannot be sliced"),
    ],
)  # fmt: skip
def test_what_is_no_split_is_refused_on_one_line(text: str, said: str) -> None:
    with pytest.raises(SourceError, match=said) as caught:
        parts_of(text, splits(train=[4, 6]))
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="train[]:-+%shd_.0123456789 ", max_size=20))
def test_any_text_is_a_split_or_refused(text: str) -> None:
    known = splits(train=[4, 6])
    try:
        found = read(f"train[{text}]", known)
    except SourceError:
        return
    assert set(found) <= set(records(known["train"]))
