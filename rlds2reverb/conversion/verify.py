"""Reads back what was written, and compares it with what was to be written, episode by episode.

This package's reader returns every column, and is compared bit by bit. The destination's own library, where it is installed, reads the
dataset beside it: what a learner will see is compared, too, in the dtypes that the library has.

Images that became frames of a video are near to what they were, not equal: `FrameErrors` measures how near, and finds frames that are of
other rows, or no picture of them at all (`conversion.frames`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from rlds2reverb.conversion.by_library import differs, read_back, reader_of, version_of
from rlds2reverb.conversion.frames import FrameErrors, difference
from rlds2reverb.conversion.growing import Played
from rlds2reverb.conversion.job import UNFIT, Account, Job
from rlds2reverb.conversion.report import Losses, Nearness, reported_rows
from rlds2reverb.episode import Array, Episode, metadata_path, metadata_values
from rlds2reverb.errors import ConversionError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.buckets import BucketPath
from rlds2reverb.formats.destination import ALL_ROWS, LAST_ROW, are_equal
from rlds2reverb.formats.source import Source
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.text import counted

_MOST_SHOWN = 5
_OURS = "rlds2reverb"


def verify(
    job: Job, path: Path, account: Account, on_compared: Callable[[int], object], there: int = 0
) -> tuple[tuple[str, ...], dict[str, Nearness]]:
    """Compares all episodes.

    Returns who has read them (this package, and the destination's own library where it is installed), and how near the frames of videos are, by
    the path of their column.

    Args:
      job: of the conversion.
      path: of the result.
      account: has the reported differences, which are not compared, and the codes of the episodes that were rejected.
      on_compared: called with the number of each compared episode.
      there: episodes that the dataset had before, which are not compared.

    Raises:
      ConversionError: an episode differs, is missing, or is surplus; the message says which.
      SourceError: one side cannot be read.
    """
    number, losses = 0, account.losses
    errors = {near: FrameErrors() for near in losses.near_paths()}
    reader = None if isinstance(path, BucketPath) else reader_of(job.destination.name)
    library = _read_nothing() if reader is None else read_back(reader, path)
    source = open_source(job.destination.source(path))
    if job.encoded:
        source = source.with_encoded(job.encoded)
    with (  # which read ahead, in threads and a process
        closing(_read_all(source)) as back,
        closing(_read_written(job, UNFIT in account.policy.rejected, there)) as every,
        closing(library),
    ):
        for _ in range(there):
            next(back, None)
            if reader is not None:
                next(library, None)
        for number, written in enumerate(every, 1):
            stored = next(back, None)
            if stored is None:
                raise _differs(job, path, f"has {counted(number - 1, 'episode')}, and more were written")
            if stored.faults:
                unread = "; ".join(f'column "{column}": {why}' for column, why in stored.faults[:_MOST_SHOWN])
                raise _differs(job, path, f"episode {number - 1}, from {written.title}, cannot be read: {unread}")
            # A feature that another episode lost is no metadata of the dataset, and is stored in this episode.
            metadata = source.metadata_of(there + number - 1) or {}
            stored = replace(stored, metadata={**metadata, **stored.metadata})
            odd = differences(written, stored, losses.reported(number - 1), losses.moved(), errors)
            if reader is not None and not odd:
                try:
                    columns = next(library, None)
                except ImportError:  # it is installed, and lacks something
                    reader = None
                else:
                    if columns is None:
                        raise _differs(job, path, f"{version_of(reader)} reads {counted(number - 1, 'episode')} of it")
                    seen = _seen_differently(job, losses, number, written, columns)
                    odd = [f"{text}, as {version_of(reader)} reads it" for text in seen]
            if odd:
                raise _differs(job, path, f"episode {number - 1}, from {written.title}: {'; '.join(odd[:_MOST_SHOWN])}")
            on_compared(number)
        if next(back, None) is not None:
            raise _differs(job, path, f"has more than the {counted(number, 'episode')} that were written")
        nearness = {near: frame_errors.nearness() for near, frame_errors in errors.items()}
        if reader is None:
            return (_OURS,), nearness
        if next(library, None) is not None:
            surplus = f"{version_of(reader)} reads more than the {counted(number, 'episode')} that were written"
            raise _differs(job, path, surplus)
        return (_OURS, version_of(reader)), nearness


def _read_nothing() -> Generator[Mapping[str, Array], None, None]:
    yield from ()


def differences(
    written: Episode,
    stored: Episode,
    reported: Mapping[str, str],
    moved: Mapping[str, str] | None = None,
    near: Mapping[str, FrameErrors] | None = None,
) -> list[str]:
    """The differences, one text per column or feature, without those already reported (see `Losses.reported` and `Losses.moved`).

    Frames of the columns `near` are measured.
    """
    odd, places, frame_errors = [], moved or {}, near or {}
    for path, column in written.columns.items():
        rows, other = reported_rows(reported, path), stored.columns.get(places.get(path, path))
        if rows == LAST_ROW and other is not None and len(other) == len(column):
            column, other = column[:-1], other[:-1]
        if path in frame_errors:
            odd += [f'column "{path}": {why}' for why in frame_errors[path].add(column, other)]
        elif rows in (None, LAST_ROW) and not are_equal(column, other):
            odd.append(f'column "{path}": {difference(column, other)}')
    there = metadata_values(stored, stored.metadata)
    for name, value in written.metadata.items():
        before, after = _as_array(value), _as_array(there[name]) if name in there else None
        if reported_rows(reported, metadata_path(name)) is None and not are_equal(before, after):
            odd.append(f'metadata "{name}": {difference(before, after)}')
    return odd


def _seen_differently(
    job: Job, losses: Losses, number: int, written: Episode, columns: Mapping[str, Array]
) -> Iterator[str]:
    """What a library reads otherwise. Images that stay as files come as pixels, and are not compared; nor is what was reported."""
    reported, moved = losses.reported(number - 1, with_meaning=True), losses.moved()
    for path, column in written.columns.items():
        read = columns.get(moved.get(path, path))
        rows = reported_rows(reported, path)
        if read is None or rows == ALL_ROWS or job.content.columns[path].image is not None:
            continue
        if path in losses.near_paths():
            shown = len(column) - (rows == LAST_ROW)  # more may be read: the last row, in another form
            for why in FrameErrors().add(column[:shown], read[:shown]):
                yield f'column "{path}": {why}'
        elif differs(column, read, is_last_known=rows != LAST_ROW):
            yield f'column "{path}": expected {column.dtype}{list(column.shape)}, found {read.dtype}{list(read.shape)} of other values'


def _read_all(source: Source) -> Generator[Episode, None, None]:
    yield from source


def _read_written(job: Job, has_unfit: bool, there: int) -> Generator[Episode, None, None]:
    """The episodes that were written. Where some did not fit, each is encoded once more to find those.

    To a dataset that grows, those were added that it had not, of `there` episodes; each stands for one of the source.
    """
    names = Counter[bytes]()
    if job.old is not None:
        names.update(Played.of(job).stored_names(job.old.first(there)))
    ready = job.ready.silent()
    preparer = ready.preparer()
    for episode, problems in ready.read():
        prepared = preparer.prepare(episode, problems)
        if prepared.normalised is None:
            continue
        fitted = job.fit(episode, prepared.normalised)
        encoded = job.encode(fitted) if has_unfit and isinstance(fitted, Episode) else fitted
        if isinstance(fitted, Problem) or isinstance(encoded, Problem):
            preparer.reject(prepared, encoded)
        elif job.played is None:
            yield fitted
        elif names[name := job.played.name(fitted.columns)]:
            names[name] -= 1
        else:
            yield fitted


def _as_array(value: object) -> Array:
    return np.asarray(value, object if isinstance(value, bytes) else None)


def _differs(job: Job, path: Path, what: str) -> ConversionError:
    final = job.destination.path
    where = f"It is at {final} already" if path == final.absolute() else f"Nothing was put into {final}"
    return ConversionError(
        f"{job.destination.name}: what was written is not what was read: {what}. {where}; the source changed meanwhile, or this is a fault of the program; begin anew with restart=True (--restart)"
    )
