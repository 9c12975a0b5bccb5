"""Shards that dataset_info.json says and the folder does not have: which part of the split they hold, what lies there instead, and how to go on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import groupby, islice
from pathlib import Path

from rlds2reverb.errors import SourceError
from rlds2reverb.files import check_regular
from rlds2reverb.formats.tfds.info import INFO_FILE, SplitInfo
from rlds2reverb.text import counted

_MOST_NAMED = 3
_MOST_RANGES = 5  # of shards that are there, in the split that reads them


def check_shards(directory: Path, files: Collection[str], splits: Mapping[str, SplitInfo]) -> None:
    """Refuses a version directory that lacks some of these files of its splits, all of them in one message.

    Args:
      files: paths from the version directory, or absolute ones.

    Raises:
      SourceError: a file is missing, cannot be looked at, or is no regular file.
    """
    listed: dict[Path, set[str]] = {}
    missing: set[str] = set()
    for file in files:
        path = directory / file
        if path.parent not in listed:  # one listing for all files: a look-up in a bucket takes as long as a listing
            listed[path.parent] = set()
            with suppress(OSError, ValueError):
                listed[path.parent] = {child.name for child in path.parent.iterdir() if child.is_file()}
        if path.name in listed[path.parent]:
            continue
        try:
            check_regular(path)
        except FileNotFoundError:
            missing.add(file)
        except OSError as error:
            raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
        except ValueError as error:  # a NUL in the name
            raise SourceError(f"{str(path)!r}: no path: {error}") from error
    if missing:
        sentences = "; ".join(_sentences(directory, missing, splits, listed))
        raise SourceError(f"{directory}: {sentences or f'there is no file {min(missing)}'}")


def _sentences(
    directory: Path, missing: set[str], splits: Mapping[str, SplitInfo], listed: Mapping[Path, set[str]]
) -> Iterator[str]:
    """What is missing, and how to go on: a sentence for each split that lacks files."""
    for split in splits.values():
        count = len(split.shard_lengths)
        files = [split.file_names.of_shard(number, count) for number in range(count)]
        lacking = [number for number, file in enumerate(files) if file in missing or str(directory / file) in missing]
        if not lacking:
            continue
        folder = (directory / files[lacking[0]]).parent
        other_sets = _other_sets(split, folder, listed.get(folder, set()) - {Path(file).name for file in files})
        there = [
            number
            for number, file in enumerate(files)
            if split.shard_lengths[number] and Path(file).name in listed.get((directory / file).parent, ())
        ]
        what = (
            f'split "{split.name}" has {counted(count, "shard")} by {INFO_FILE}, and {len(lacking):,} '
            f"{'is' if len(lacking) == 1 else 'are'} missing: {_name_files(split, files, lacking)}"
        )
        if other_sets:
            yield (
                f"{what}; the folder has {other_sets} instead, of another preparation of the dataset: copy {INFO_FILE} and "
                "features.json from where those files were written, or copy the missing shards"
            )
        else:
            yield f"{what}; copy what is missing from where the dataset was prepared{_suggest_present_shards(split.name, there, count)}"


def _name_files(split: SplitInfo, files: list[str], numbers: list[int]) -> str:
    """The first missing files, each with its part of the split."""
    named = []
    for number in numbers[:_MOST_NAMED]:
        first = sum(split.shard_lengths[:number])
        last = first + split.shard_lengths[number] - 1
        episodes = f"episode {first:,}" if first == last else f"episodes {first:,} to {last:,}"
        named.append(f"{files[number]} ({split.name}[{number}shard], {episodes})")
    more = len(numbers) - _MOST_NAMED
    return ", ".join(named) + (f" and {more:,} more" if more > 0 else "")


def _other_sets(split: SplitInfo, folder: Path, names: set[str]) -> str:
    """Files of this split in another count, in another file format or of another name of the dataset; "" for none."""
    pattern = split.file_names.of_any_shard()
    sets: dict[str, int] = defaultdict(int)
    for name in names:
        path = (folder / name).as_posix()
        match = pattern.search(path)
        if match is None:
            continue
        start, stop = match.span("shard") if "shard" in pattern.groupindex else (0, 0)
        before = len(path) - len(name)
        sets[f"{path[before:start]}*{path[stop:]}" if start >= before else name] += 1
    return " and ".join(f"{counted(count, 'file')} {name}" for name, count in islice(sorted(sets.items()), _MOST_NAMED))


def _suggest_present_shards(split: str, there: list[int], count: int) -> str:
    """How to read the shards that are there; "" where there are none, or they lie too far apart to be written."""
    ranges = []
    for _, group in groupby(enumerate(there), lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in group]
        first, stop = numbers[0], numbers[-1] + 1
        bounds = (
            f"{first or ''}{'shard' if first else ''}:{stop if stop < count else ''}{'shard' if stop < count else ''}"
        )
        ranges.append(f"{split}[{bounds}]")
    if not 0 < len(ranges) <= _MOST_RANGES:
        return ""
    return f', or read the shards that are there: "@{"+".join(ranges)}" behind the name'
