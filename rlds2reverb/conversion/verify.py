"""Reads back what was written, and compares it with what was to be written, episode by episode."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from pathlib import Path

import numpy as np

from rlds2reverb.conversion.job import Job
from rlds2reverb.conversion.report import Losses, reported_rows
from rlds2reverb.episode import Array, Episode, metadata_path, metadata_values
from rlds2reverb.errors import ConversionError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.destination import LAST_ROW, are_equal
from rlds2reverb.formats.source import Source
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.text import counted

_MOST_SHOWN = 5


def verify(job: Job, path: Path, losses: Losses, on_compared: Callable[[int], object]) -> int:
    """Compares all episodes; returns their number.

    Args:
      job: of the conversion.
      path: of the result.
      losses: reported differences, which are not compared.
      on_compared: called with the number of each compared episode.

    Raises:
      ConversionError: an episode differs, is missing, or is surplus; the message says which.
      SourceError: one side cannot be read.
    """
    number = 0
    source = open_source(job.destination.source(path))
    if job.encoded:
        source = source.with_encoded(job.encoded)
    with closing(_each(source)) as back, closing(_wanted(job)) as every:  # which read ahead in threads
        for number, wanted in enumerate(every, 1):
            found = next(back, None)
            if found is None:
                raise _differs(job, path, f"has {counted(number - 1, 'episode')}, and more were written")
            if odd := differences(wanted, found, losses.reported(number - 1)):
                raise _differs(job, path, f"episode {number - 1}, from {wanted.title}: {'; '.join(odd[:_MOST_SHOWN])}")
            on_compared(number)
        if next(back, None) is not None:
            raise _differs(job, path, f"has more than the {counted(number, 'episode')} that were written")
    return number


def differences(wanted: Episode, found: Episode, reported: Mapping[str, str]) -> list[str]:
    """The differences, one text per column or feature, without those already reported (see `Losses.reported`)."""
    odd = []
    for path, column in wanted.columns.items():
        rows, other = reported_rows(reported, path), found.columns.get(path)
        if rows == LAST_ROW and other is not None and len(other) == len(column):
            column, other = column[:-1], other[:-1]
        if rows in (None, LAST_ROW) and not are_equal(column, other):
            odd.append(f'column "{path}": {_difference(column, other)}')
    there = metadata_values(found, found.metadata)
    for name, value in wanted.metadata.items():
        one, other = _as_array(value), _as_array(there[name]) if name in there else None
        if reported_rows(reported, metadata_path(name)) is None and not are_equal(one, other):
            odd.append(f'metadata "{name}": {_difference(one, other)}')
    return odd


def _each(source: Source) -> Generator[Episode, None, None]:
    yield from source


def _wanted(job: Job) -> Generator[Episode, None, None]:
    ready = job.ready.silent()
    preparer = ready.preparer()
    for episode, found in ready.read():
        prepared = preparer.prepare(episode, found)
        if prepared.normalised is None:
            continue
        fitted = job.fitted(episode, prepared.normalised)
        if isinstance(fitted, Problem):
            preparer.reject(prepared, fitted)
        else:
            yield fitted


def _as_array(value: object) -> Array:
    return np.asarray(value, object if isinstance(value, bytes) else None)


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
