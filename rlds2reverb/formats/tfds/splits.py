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

One thing differs: a slice whose end lies before its beginning is refused. TFDS accepts it and reads other records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rlds2reverb.errors import SourceError
from rlds2reverb.formats.tfds.info import SplitInfo
from rlds2reverb.text import counted

_TERM = re.compile(r"(?P<split>[\w-]+)(?:\[(?P<slice>[\d\w%:.-]+)\])?")
_BOUND = re.compile(r"(?:(?P<value>-?[\d_.]+)(?P<unit>%|shard)?)?")
_PLUS = re.compile(r"\s*\+\s*")
_HINT = "expected such as train, train[:10%], train[10:20], train[1shard:], train+test"


@dataclass(frozen=True)
class EvenPart:
    """One of the `count` parts that `tfds.even_splits` makes of a split; with `drop_remainder`, all have the same length, and what is over is in none."""

    index: int
    count: int
    drop_remainder: bool = False


@dataclass(frozen=True)
class Part:
    """Records of one file of a split: `take` of them, after the first `skip`, of `length` in all. The path begins at the version directory,
    which a template may lead out of.
    """

    file: str
    skip: int
    take: int
    length: int
    split: str = ""


def parts_of(split: str, splits: Mapping[str, SplitInfo], even: EvenPart | None = None) -> list[Part]:
    """The parts of files that a split stands for, in the order of its terms, or an even part of every term; empty when it has no record.

    Raises:
      SourceError: it is written wrongly, a split does not exist, a bound lies outside, or a slice ends before it begins.
    """
    parts = []
    for of_split, begin, end in _parse_ranges(split, splits):
        if even is not None:
            each, over = divmod(end - begin, even.count)
            over = 0 if even.drop_remainder else over
            begin += each * even.index + min(even.index, over)
            end = begin + each + (even.index < over)
        first = 0
        for number, length in enumerate(of_split.shard_lengths):
            skip, stop = max(begin - first, 0), min(end - first, length)
            if skip < stop:
                file = of_split.file_names.of_shard(number, len(of_split.shard_lengths))
                parts.append(Part(file, skip, stop - skip, length, of_split.name))
            first += length
    return parts


def _parse_ranges(text: str, splits: Mapping[str, SplitInfo]) -> Iterator[tuple[SplitInfo, int, int]]:
    """Records [begin, end) of splits, counted over all their files: one range for each term."""
    if text in splits:  # also one that is called "all"
        yield splits[text], 0, splits[text].num_examples
        return
    for term in _PLUS.split(text):
        match = _TERM.fullmatch(term)
        if match is None:
            raise SourceError(f'"{term}" is no split; {_HINT}')
        name, selector = match["split"], match["slice"]
        if name == "all":
            if selector:
                raise SourceError(f'"{term}": all splits together cannot be sliced; slice each of them')
            yield from ((split, 0, split.num_examples) for split in splits.values())
            continue
        if name not in splits:
            raise SourceError(f"Unknown split '{name}'")  # TFDS' own words
        split = splits[name]
        records = split.num_examples
        begin, end = (0, records) if selector is None else _parse_bounds(term, selector, split)
        if abs(begin) > records or abs(end) > records:
            raise SourceError(f'"{term}" goes beyond the {counted(records, "record")} of the split')
        begin, end = (bound + records if bound < 0 else bound for bound in (begin, end))
        if begin > end:
            raise SourceError(f'"{term}" ends at record {end:,}, before it begins at {begin:,}')
        yield split, begin, end


def _parse_bounds(term: str, selector: str, split: SplitInfo) -> tuple[int, int]:
    """Both ends of a slice as numbers of records; below 0 they count from the end."""
    bounds = [_BOUND.fullmatch(bound) for bound in selector.split(":")]
    if not 1 <= len(bounds) <= 2 or not all(bounds) or not any(bound[0] for bound in bounds if bound):
        raise SourceError(f'"{term}" is no split; {_HINT}')
    texts = [bound["value"] for bound in bounds if bound]
    unit = next((bound["unit"] for bound in bounds if bound and bound["unit"]), "")
    records, lengths = split.num_examples, split.shard_lengths
    first: int | None
    last: int | None
    try:
        if len(texts) == 1:
            if unit != "shard":
                raise SourceError(f'"{term}": one number selects a file, [{texts[0]}shard]; else write [BEGIN:END]')
            first, last = int(texts[0]), int(texts[0]) + 1
        elif unit == "%":
            low, high = (None if text is None else float(text) for text in texts)
            if max(abs(low or 0), abs(high or 0)) > 100:
                raise SourceError(f'"{term}": expected percentages from -100 to 100')
            # In TFDS' order of steps: floats round otherwise.
            begin = 0 if low is None else round(low * records / 100.0)
            return begin, records if high is None else round(high * records / 100.0)
        else:
            first, last = (None if text is None else int(text) for text in texts)
    except ValueError as error:
        raise SourceError(f'"{term}": {error}; {_HINT}') from error
    if unit == "shard":
        begin = 0 if first is None else sum(lengths[:first])
        if last is not None and last <= 0:
            last += len(lengths)
        return begin, records if last is None else sum(lengths[:last])
    return first or 0, records if last is None else last
