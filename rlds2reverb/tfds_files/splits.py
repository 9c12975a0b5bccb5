"""Which records of which files a split stands for.

The language is that of TFDS: terms joined by "+", each the name of a split and at most one slice:

| written | records |
| --- | --- |
| `train` | all |
| `train[10:20]`, `train[:-5]` | by number; below 0 counts from the end |
| `train[:10%]`, `train[12.5%:]` | by percent of all records, rounded to the nearest number, halves to the even one |
| `train[1shard]`, `train[:-1shard]`, `train[1shard:3shard]` | whole files |
| `all` | every split, in the order of the dataset |

Digits may have "_" between them. A unit counts for both ends. Source: tensorflow-datasets 4.9.10, core/splits.py,
subsplits_utils.py and utils/shard_utils.py.

One thing differs: a slice whose end lies before its beginning is refused. TFDS goes on with it and reads other records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rlds2reverb.errors import SourceError
from rlds2reverb.tfds_files.info import SplitInfo
from rlds2reverb.tfds_files.requests import EvenPart
from rlds2reverb.wording import counted

ALL = "all"

_TERM = re.compile(r"(?P<split>[\w-]+)(?:\[(?P<slice>[\d\w%:.-]+)\])?")
_BOUND = re.compile(r"(?:(?P<value>-?[\d_.]+)(?P<unit>%|shard)?)?")
_PLUS = re.compile(r"\s*\+\s*")
_HINT = "expected such as train, train[:10%], train[10:20], train[1shard:], train+test"


@dataclass(frozen=True)
class Part:
    """Records of one file: `take` of them, after the first `skip`.

    Attributes:
      file: path from the version directory, which a template may lead out of.
      skip: records left out at the beginning.
      take: records read; at least 1.
      length: records of the whole file.
    """

    file: str
    skip: int
    take: int
    length: int


@dataclass(frozen=True)
class _Range:
    """Records [begin, end) of a split, counted over all its files."""

    split: SplitInfo
    begin: int
    end: int


@dataclass(frozen=True)
class _Slice:
    """What stands between brackets: both ends in their unit, None where one is left out."""

    begin: float | None
    end: float | None
    unit: str


def parts_of(split: str, splits: Mapping[str, SplitInfo], even: EvenPart | None = None) -> list[Part]:
    """The parts of files that a split stands for, in the order of its terms; empty when it has no record.

    Args:
      split: as TFDS writes it.
      splits: those of the dataset, in its order.
      even: which even part of every term is meant; None for the whole.

    Raises:
      SourceError: it is not written so, a split does not exist, a bound lies outside, or a slice ends before it begins.
    """
    ranges = _ranges(split, splits)
    if even is not None:
        ranges = [_even_part(one, even) for one in ranges]
    return [part for one in ranges for part in _parts(one)]


def _ranges(text: str, splits: Mapping[str, SplitInfo]) -> list[_Range]:
    if text in splits:  # also one that is called "all"
        return [_whole(splits[text])]
    found: list[_Range] = []
    for term in _PLUS.split(text):
        match = _TERM.fullmatch(term)
        if match is None:
            raise SourceError(f'"{term}" is no split; {_HINT}')
        if match["split"] == ALL:
            if match["slice"]:
                raise SourceError(f'"{term}": all splits together cannot be sliced; slice each of them')
            found += map(_whole, splits.values())
        else:
            found.append(_range(term, match["split"], match["slice"], splits))
    return found


def _whole(split: SplitInfo) -> _Range:
    return _Range(split, 0, split.num_examples)


def _range(term: str, name: str, selector: str | None, splits: Mapping[str, SplitInfo]) -> _Range:
    wanted = _Slice(None, None, "") if selector is None else _parsed_slice(term, selector)
    if name not in splits:
        raise SourceError(f"Unknown split '{name}'")
    split = splits[name]
    begin, end = _in_records(wanted, split)
    count = split.num_examples
    if abs(begin) > count or abs(end) > count:
        raise SourceError(f'"{term}" goes beyond the {counted(count, "record")} of the split')
    begin, end = (bound + count if bound < 0 else bound for bound in (begin, end))
    if begin > end:
        raise SourceError(f'"{term}" ends at record {end:,}, before it begins at {begin:,}')
    return _Range(split, begin, end)


def _parsed_slice(term: str, selector: str) -> _Slice:
    bounds = [_BOUND.fullmatch(bound) for bound in selector.split(":")]
    if not 1 <= len(bounds) <= 2 or not all(bounds) or not any(bound[0] for bound in bounds if bound):
        raise SourceError(f'"{term}" is no split; {_HINT}')
    values = [bound["value"] for bound in bounds if bound]
    unit = next((bound["unit"] for bound in bounds if bound and bound["unit"]), "")
    try:
        if len(values) == 1:
            if unit != "shard":
                raise SourceError(f'"{term}": one number selects a file, [{values[0]}shard]; else write [BEGIN:END]')
            return _Slice(int(values[0]), int(values[0]) + 1, unit)
        kind = float if unit == "%" else int
        begin, end = (None if value is None else kind(value) for value in values)
    except ValueError as error:
        raise SourceError(f'"{term}": {error}; {_HINT}') from error
    if unit == "%" and max(abs(begin or 0), abs(end or 0)) > 100:
        raise SourceError(f'"{term}": expected percentages from -100 to 100')
    return _Slice(begin, end, unit)


def _in_records(wanted: _Slice, split: SplitInfo) -> tuple[int, int]:
    """Both ends as numbers of records; below 0 they count from the end."""
    count, lengths = split.num_examples, split.shard_lengths
    if wanted.unit == "%":
        begin = 0 if wanted.begin is None else round(wanted.begin * count / 100.0)
        return begin, count if wanted.end is None else round(wanted.end * count / 100.0)
    first, last = (None if end is None else int(end) for end in (wanted.begin, wanted.end))
    if wanted.unit == "shard":
        begin = 0 if first is None else sum(lengths[:first])
        if last is not None and last <= 0:
            last += len(lengths)
        return begin, count if last is None else sum(lengths[:last])
    return first or 0, count if last is None else last


def _even_part(one: _Range, even: EvenPart) -> _Range:
    each, over = divmod(one.end - one.begin, even.count)
    if even.drop_remainder:
        over = 0
    begin = one.begin + each * even.index + min(even.index, over)
    return _Range(one.split, begin, begin + each + (even.index < over))


def _parts(one: _Range) -> list[Part]:
    found, first = [], 0
    lengths = one.split.shard_lengths
    for number, length in enumerate(lengths):
        skip, end = max(one.begin - first, 0), min(one.end - first, length)
        if skip < end:
            found.append(Part(one.split.file_names.of_shard(number, len(lengths)), skip, end - skip, length))
        first += length
    return found
