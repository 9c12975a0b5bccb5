"""Reads back what was written, and compares it with what was to be written, episode by episode."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from pathlib import Path

import numpy as np

from rlds2reverb.conversion.job import Job
from rlds2reverb.conversion.report import Losses, rows_told
from rlds2reverb.episode import Array, Episode, metadata_path, metadata_values
from rlds2reverb.errors import ConversionError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.destination import LAST_ROW, are_equal
from rlds2reverb.formats.source import Source
from rlds2reverb.text import counted

_MOST_TOLD = 5


def verify(job: Job, path: Path, losses: Losses, tell: Callable[[int, Episode], object]) -> int:
    """Compares all episodes; returns their number.

    Args:
      job: what was converted.
      path: where the result is now.
      losses: reported differences, which are not compared.
      tell: called with the number of each compared episode, and the episode.

    Raises:
      ConversionError: an episode differs, is missing, or is surplus; the message says which.
      SourceError: one side cannot be read.
    """
    number = 0
    with closing(_each(_written(job, path))) as back, closing(_wanted(job)) as every:  # which read ahead in threads
        for number, wanted in enumerate(every, 1):
            found = next(back, None)
            if found is None:
                raise _differs(job, path, f"has {counted(number - 1, 'episode')}, and more were written")
            if odd := differences(wanted, found, losses.told(number - 1)):
                raise _differs(job, path, f"episode {number - 1}, from {wanted.title}: {'; '.join(odd[:_MOST_TOLD])}")
            tell(number, wanted)
        if next(back, None) is not None:
            raise _differs(job, path, f"has more than the {counted(number, 'episode')} that were written")
    return number


def differences(wanted: Episode, found: Episode, told: Mapping[str, str]) -> list[str]:
    """The differences, one text per column or feature, without those already reported (see `Losses.told`)."""
    odd = []
    for path, column in wanted.columns.items():
        rows, other = rows_told(told, path), found.columns.get(path)
        if rows == LAST_ROW and other is not None and len(other) == len(column):
            column, other = column[:-1], other[:-1]
        if rows in (None, LAST_ROW) and not are_equal(column, other):
            odd.append(f'column "{path}": {_difference(column, other)}')
    there = metadata_values(found, found.metadata)
    for name, value in wanted.metadata.items():
        one, other = _as_array(value), _as_array(there[name]) if name in there else None
        if rows_told(told, metadata_path(name)) is None and not are_equal(one, other):
            odd.append(f'metadata "{name}": {_difference(one, other)}')
    return odd


def _written(job: Job, path: Path) -> Source:
    source = open_source(job.destination.source(path))
    return source.with_encoded(job.encoded) if job.encoded else source


def _each(source: Source) -> Generator[Episode, None, None]:
    yield from source


def _wanted(job: Job) -> Generator[Episode, None, None]:
    ready = job.ready.silent()
    preparer = ready.preparer()
    for episode, found in ready.read():
        prepared, _ = job.prepared(preparer, episode, found)
        if prepared is not None:
            yield prepared


def _as_array(value: object) -> Array:
    if isinstance(value, bytes):
        text = np.empty((), object)
        text[()] = value
        return text
    return np.asarray(value)


def _difference(one: Array, other: Array | None) -> str:
    if other is None:
        return "is not there"
    if one.dtype != other.dtype or one.shape != other.shape:
        return f"expected {one.dtype}{list(one.shape)}, found {other.dtype}{list(other.shape)}"
    return "the values differ"


def _differs(job: Job, path: Path, what: str) -> ConversionError:
    final = job.destination.path
    where = f"It is at {final} already" if path == final.absolute() else f"Nothing was put into {final}"
    return ConversionError(
        f"{job.destination.name}: what was written is not what was read: {what}. {where}; the source changed meanwhile, or this is a fault of the program; begin anew with restart=True (--restart)"
    )
