"""A dataset that grows: what is there already, and the episodes that come.

A finished dataset is never changed in place. The new one is written beside it, begins with all that the old one has, and takes its place by one
rename; until then, and after a kill, the old one is whole. A format that can (`Destination.reopened`) takes over the files as they are; for any other
one the old episodes are written once more, and read back before the rename: where one of them would differ, the growing is refused.

What was recorded before is recognised by what was played (`Played`), which every format keeps.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path

import numpy as np

from rlds2reverb.conversion.guarding import check_free, check_path, list_files
from rlds2reverb.conversion.job import Job
from rlds2reverb.conversion.place import Place, open_place, place_of
from rlds2reverb.conversion.report import Losses
from rlds2reverb.episode import ACTION, OBSERVATION, REWARD, Array, Episode, content_digest, is_under, metadata_values
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.files import put
from rlds2reverb.formats import open_source
from rlds2reverb.formats.buckets import BucketPath
from rlds2reverb.formats.destination import ALL_ROWS, NEAR_ROWS, Destination, Loss, State, UnfitEpisode, are_equal
from rlds2reverb.formats.registry import DESTINATIONS
from rlds2reverb.formats.source import About, Source
from rlds2reverb.specs import ArraySpec, flatten

DUPLICATE = "duplicate"
"""The code of an episode that a dataset that grows has already."""

# In the folder of a conversion: the names of what is there, and of what was recognised as that.
NAMES_FILE, TAKEN_FILE = "names", "taken"
_NAME_BYTES = 16
_PLAYED = (OBSERVATION, ACTION, REWARD)


@dataclass(frozen=True)
class Played:
    """How an episode is recognised in the dataset that is written: by what was played. 16 bytes that depend on the observations, and on the
    actions and rewards of all rows but the last, as numbers.

    Formats keep other dtypes, flags and last rows; so a name by the whole content is another one in each of them.

    Attributes:
      paths: columns that are read back as they were; all of them, where no observation is.
      moved: path -> the one by which a column is read back, where it is another.
      keeps_end: whether the final observation is read back.
    """

    paths: tuple[str, ...]
    moved: Mapping[str, str]
    keeps_end: bool

    @classmethod
    def of(cls, job: Job) -> Played:
        losses = [loss for loss in job.losses if loss.path is not None]
        changed = [loss.path or "" for loss in losses if loss.now or loss.rows in (ALL_ROWS, NEAR_ROWS)]
        every = [path for path in job.content.columns if any(is_under(path, name) for name in _PLAYED)]
        paths = [
            path
            for path in every
            if not any(is_under(path, other) for other in changed) and job.content.columns[path].image is None
        ]
        if not any(is_under(path, OBSERVATION) for path in paths):
            # Actions and rewards alone may be those of many episodes. An episode that comes twice does less harm than one that is left out.
            paths = every
        entry = DESTINATIONS.find(job.destination.name)
        keeps_end = entry is None or "last_observation" not in entry[1].losses
        return cls(tuple(paths), Losses(job.losses).moved(), keeps_end)

    def name(self, columns: Mapping[str, Array]) -> bytes:
        """The name of an episode that is to be written."""
        return self._digest(
            {
                path: columns[path] if self._is_whole(path) else columns[path][:-1]
                for path in self.paths
                if path in columns
            }
        )

    def stored_names(self, source: Source) -> Iterator[bytes]:
        """The names of the episodes of a dataset of the format."""
        for episode in source:
            columns = episode.columns
            places = {path: self.moved.get(path, path) for path in self.paths}
            stored = {path: columns[place] for path, place in places.items() if place in columns}
            yield self.name(stored)
            if not self.keeps_end:  # then its last row may be that of the last action
                yield self._digest(stored)

    def _is_whole(self, path: str) -> bool:
        return self.keeps_end and is_under(path, OBSERVATION)

    def _digest(self, columns: Mapping[str, Array]) -> bytes:
        numbers = {
            path: column.astype(np.float64) if column.dtype.kind in "biuf" else column
            for path, column in columns.items()
        }
        return bytes.fromhex(content_digest(numbers))


class PlayedNames:
    """Names of the episodes that are there already, and of those that come; on disk as far as `sync` came.

    Each that is there stands for one that comes again: of equal episodes, those beyond are new ones. A deterministic environment gives many.

    Attributes:
      count: of all names, on disk when `sync` returns.
    """

    def __init__(self, path: Path, count: int) -> None:
        self._path, self._new = path, bytearray()
        if count:
            data = path.read_bytes()[: count * _NAME_BYTES] if path.exists() else b""
            if len(data) < count * _NAME_BYTES:
                raise ConfigError(
                    f"{path}: has fewer names than the dataset has episodes; begin anew with restart=True (--restart)"
                )
            path.write_bytes(data)
        else:
            path.unlink(missing_ok=True)
            data = b""
        self._there = Counter(data[at : at + _NAME_BYTES] for at in range(0, len(data), _NAME_BYTES))
        self.count = len(data) // _NAME_BYTES

    def take(self, name: bytes) -> bool:
        """Whether an episode of this name is there, which none has been recognised as yet."""
        left = self._there.get(name, 0)
        if left:
            self._there[name] = left - 1
        return left > 0

    def take_all(self, others: PlayedNames) -> None:
        """Takes what others have, as an earlier run did."""
        for name, times in others._there.items():
            self._there[name] -= times

    def add(self, name: bytes) -> None:
        """Adds an episode that has come; it is there for the next run, and not for this one."""
        self._new += name
        self.count += 1

    def add_there(self, names: Iterable[bytes]) -> None:
        """Adds episodes that are there already."""
        for name in names:
            self.add(name)
            self._there[name] += 1

    def sync(self) -> int:
        """Puts them on disk; returns their number."""
        if self._new:
            with self._path.open("ab") as file:
                file.write(self._new)
                put(file)
            self._new.clear()
        return self.count


@dataclass(frozen=True)
class Grown:
    """The dataset that grows.

    Attributes:
      episodes: that it has.
      files: a digest of its files, by which it is seen that it has changed meanwhile.
      is_exact: whether its files are taken over as they are; else its episodes are compared.
    """

    episodes: int
    files: str
    is_exact: bool


def files_digest(path: Path) -> str:
    """A digest of the names, sizes and times of a dataset's files."""
    digest = hashlib.sha256()
    names = [""] if path.is_file() else ["/".join(parts) for parts in list_files(path)]
    for name in sorted(names):
        status = (path / name if name else path).stat()
        digest.update(f"{name}|{status.st_size}|{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]


def is_there_to_grow(destination: Destination) -> bool:
    """Whether there is a dataset at the destination. One that a kill has left moved away is put back first."""
    path = check_path(destination.path)
    if not path.exists() and not isinstance(path, BucketPath):
        place = place_of(destination, path)
        if not place.is_new:
            with open_place(place):
                place.put_back()
    return path.exists()


def grown_job(job: Job) -> tuple[Job, Source]:
    """The job of a source that is added to the dataset at its destination; and that dataset.

    Raises:
      ConfigError: what is there is no dataset of the format, or its columns differ from the source's.
    """
    path, destination = job.destination.path, job.destination
    if isinstance(path, BucketPath):
        raise ConfigError(
            f"{path}: a dataset in a bucket does not grow; copy it here, append to the copy, and upload that"
        )
    check_free(destination, path, True)
    files = files_digest(path)
    old = _open(job, path)
    try:
        columns: dict[str, ArraySpec] = flatten(old.spec())
    except SourceError as error:
        raise ConfigError(f"{path}: nothing can be appended: {error}") from error
    changed = {loss.path for loss in job.losses if loss.path is not None and loss.rows == ALL_ROWS}
    moved = {loss.path: loss.now for loss in job.losses if loss.now is not None}
    lines = []
    ours = {moved.get(name) or name: spec for name, spec in job.content.columns.items()}
    for name, spec in ours.items():
        if name in columns:
            if not _is_alike(spec, columns[name]) and not any(is_under(name, other) for other in changed):
                lines.append(f'"{name}" is {columns[name]} there, and {spec} in the source')
        elif not any(is_under(name, other) for other in changed):
            lines.append(f'"{name}" is not there')
    # Further columns may be the format's own, such as times; `check_kept` sees whether they are made again.
    lines += [
        f'"{name}" is not in the source'
        for name in columns
        if name not in ours and any(is_under(name, part) for part in (*_PLAYED, "infos"))
    ]
    if lines:
        raise ConfigError(
            f"{path}: cannot grow by {job.source.name}: {'; '.join(lines)}. A dataset has one spec: make the columns alike by a transform, or write another dataset"
        )
    about = old.about
    by_options = destination.kept_facts(replace(job.content, about=About()))
    unlike = [
        name
        for name, value in job.content.about.facts.items()
        if name not in by_options and not _say_the_same(about.facts.get(name), value)
    ]
    losses = [
        Loss(
            "dataset_metadata",
            "the dataset that grows says otherwise, or nothing, and stays as it is",
            f"dataset/{name}",
            "none",
        )
        for name in unlike
    ]
    known = {loss.path for loss in job.losses if loss.code == "dataset_metadata"}
    content = replace(job.content, about=about)
    return replace(
        job,
        content=content,
        losses=(*job.losses, *(loss for loss in losses if loss.path not in known)),
        old_files=files,
    ), old


def _say_the_same(fact: object, other: object) -> bool:
    """Whether two facts are equal. Minari keeps authors as a set, so their order says nothing; before 0.5 they were one text with ";"."""
    if isinstance(fact, list) or isinstance(other, list):
        fact, other = (value.split(";") if isinstance(value, str) else value for value in (fact, other))
        if isinstance(fact, list) and isinstance(other, list):
            return sorted(str(value).strip() for value in fact) == sorted(str(value).strip() for value in other)
    return fact == other


def _open(job: Job, path: Path) -> Source:
    """A dataset of the destination, with those images as the bytes of their files that are written so."""
    source = open_source(job.destination.source(path))
    return source.with_encoded([name for name in job.encoded if name in source.images()])


def _is_alike(spec: ArraySpec, other: ArraySpec) -> bool:
    return spec.shape == other.shape and spec.dtype.newbyteorder("=") == other.dtype.newbyteorder("=")


def take_over(job: Job, old: Source, work: Path) -> tuple[State, Grown]:
    """Makes an empty folder begin with all that the old dataset has; returns the state from which a sink goes on.

    Raises:
      ConfigError: the format, or this dataset of it, cannot be continued exactly.
    """
    path, destination = job.destination.path, job.destination
    files = files_digest(path)
    if files != job.old_files:  # another process has appended between the opening and the lock, say
        raise ConfigError(
            f"{path}: has changed since it was opened to append to it; append once more, to what it is now"
        )
    reopened = getattr(destination, "reopened", None)
    if reopened is not None:
        state, episodes = reopened(path, work, job.content)
        return state, Grown(episodes, files, True)
    if near := [loss for loss in job.losses if loss.rows == NEAR_ROWS]:
        raise ConfigError(
            f"{path}: nothing can be appended exactly: {near[0].path} would be encoded once more: {near[0].text}"
        )
    episodes = 0
    sink = destination.sink(work, job.content, None)
    try:
        encode = destination.encoder(job.content)
        for episodes, episode in enumerate(old, 1):
            try:
                losses = sink.write(encode(_fitted(job, episode, path)))
            except UnfitEpisode as unfit:
                raise ConfigError(
                    f"{path}: episode {episodes - 1}: {unfit.path}: {unfit.why}: so nothing can be appended"
                ) from unfit
            if lost := [loss for loss in losses if loss.rows in (ALL_ROWS, NEAR_ROWS)]:
                raise ConfigError(
                    f"{path}: nothing can be appended exactly: episode {episodes - 1} would lose {lost[0].path}: {lost[0].text}"
                )
        state = sink.sync()
    finally:
        sink.close()
    return state, Grown(episodes, files, False)


def _fitted(job: Job, episode: Episode, path: Path) -> Episode:
    if episode.faults:
        raise ConfigError(f"{path}: {episode.title} cannot be read: {episode.faults[0][1]}; so nothing can be appended")
    if absent := [name for name in job.content.columns if name not in episode.columns]:
        raise ConfigError(f"{path}: {episode.title} lacks {absent[0]}; so nothing can be appended")
    columns = {name: episode.columns[name] for name in job.content.columns}
    return replace(episode, columns=columns, metadata=metadata_values(episode, episode.metadata))


def settle(place: Place, grown: Grown) -> None:
    """Ends an exchange of the old dataset and the new one that a kill has cut off before the old one was put away."""
    if place.result.exists() and place.path.exists() and files_digest(place.result) == grown.files:
        place.put_away()


def publish(place: Place, grown: Grown) -> None:
    """Puts the new dataset in the place of the old one.

    Raises:
      ConfigError: the old one is no longer what the new one begins with.
    """
    check_unchanged(place.path, grown)
    if not place.exchange():
        place.publish()


def check_unchanged(path: Path, grown: Grown) -> None:
    """Raises `ConfigError` if the old dataset is no longer what the new one begins with."""
    if not path.exists() or files_digest(path) != grown.files:
        raise ConfigError(
            f"{path}: has changed since it was begun to append to it; append anew to what it is now: restart=True (--restart)"
        )


def check_kept(job: Job, result: Path, old: Source, grown: Grown) -> None:
    """Compares the old episodes with what the new dataset has of them, unless its files were taken over.

    Raises:
      ConfigError: one differs, so that appending would change what is there; or that has changed meanwhile.
    """
    check_unchanged(job.destination.path, grown)
    if grown.is_exact:
        return
    new = _open(job, result)
    pairs = zip_longest(old, _first(new, grown.episodes))
    for number, (before, after) in enumerate(pairs):
        why = "it is missing" if before is None or after is None else _difference(before, after)
        if why:
            raise ConfigError(
                f"{job.destination.path}: nothing can be appended exactly: episode {number} would become another one: {why}. What is there stays; "
                "convert both into a new dataset (mix:)"
            )


def _first(source: Source, count: int) -> Iterator[Episode]:
    return islice(source.episodes(0, count), count)


def _difference(before: Episode, after: Episode) -> str:
    odd = [name for name in before.columns if not are_equal(before.columns[name], after.columns.get(name))]
    odd += [name for name in after.columns if name not in before.columns]
    if odd:
        return f'column "{odd[0]}"'
    old, new = (metadata_values(episode, episode.metadata) for episode in (before, after))
    # A format may add what it computes of every episode, as Minari's statistics of rewards.
    odd = [name for name, value in old.items() if name not in new or not np.array_equal(value, new[name])]
    return f'metadata "{odd[0]}"' if odd else ""
