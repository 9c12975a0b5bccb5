"""LeRobot's datasets as a source: `lerobot:PATH[?OPTIONS]`, `lerobot:ORG/NAME[?OPTIONS]`.

| option | values | meaning |
| --- | --- | --- |
| `last_step` | `repeat`, `mark` | what follows the last action; see `formats.rows` |
| `done_means` | `terminal`, `timeout`, `nothing` | what `next.done` says of an episode's end |
| `task` | `column`, `metadata`, `skip` | where the text of a row's task goes |
| `videos` | `decode`, `skip` | whether videos become columns |
| `tolerance` | seconds | how far a frame may be from its row's time |
| `reserved` | `skip`, `columns` | whether LeRobot's counters become columns |

Behind the rows of an episode stands one more, with the observation after the last action:

| column | in the added row |
| --- | --- |
| action, `next.*` | zeros, or empty text |
| everything else, the discount among it | the last row's value |
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episode import (
    ACTION,
    DISCOUNT,
    FLAGS,
    IS_FIRST,
    IS_LAST,
    IS_TERMINAL,
    REWARD,
    Array,
    Notice,
    content_hash,
    is_under,
    note,
)
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.lerobot.features import (
    DONE,
    EPISODE_INDEX,
    FRAME_INDEX,
    IMAGE,
    INDEX,
    LANGUAGE_INSTRUCTION,
    NUMBER,
    TASK_INDEX,
    TIMESTAMP,
    VIDEO,
    Feature,
)
from rlds2reverb.formats.lerobot.meta import LENGTH, Episodes, Info, read_episodes, read_info, read_tasks
from rlds2reverb.formats.lerobot.values import TableRows, Taken, column, image_files
from rlds2reverb.formats.lerobot.videos import Clip, check_libraries, check_library, decoded
from rlds2reverb.formats.options import Parse, one_of, parted, unescaped, words
from rlds2reverb.formats.paths import check_link
from rlds2reverb.formats.recordings import BrokenEpisode, Recording, Recordings, asked, each
from rlds2reverb.formats.rows import LAST_STEPS, MARK, REPEAT, flags, terminal_discount, zero_row
from rlds2reverb.formats.source import Source
from rlds2reverb.identity import content_name
from rlds2reverb.specs import ArraySpec, ImageSpec, Nest, nested, value_spec
from rlds2reverb.text import shortened

DECODE, SKIP = "decode", "skip"
COLUMN, METADATA = "column", "metadata"
TERMINAL, TIMEOUT, NOTHING = "terminal", "timeout", "nothing"

TOLERANCE_SECONDS = 1e-4
"""lerobot's `tolerance_s`."""


@dataclass(frozen=True)
class Reading:
    """The options.

    Attributes:
      last_step: "repeat" or "mark".
      done_means: what `next.done` on the last row means: "terminal", "timeout", or "nothing" (it stays a column).
      task: where the task's text goes: "column", "metadata" or "skip"; None for "metadata" unless an episode has several tasks.
      videos: "decode" or "skip".
      tolerance: seconds between a row and its frame.
      reserved: whether LeRobot's counters of rows, episodes and tasks become columns.
    """

    last_step: str = REPEAT
    done_means: str = TERMINAL
    task: str | None = None
    videos: str = DECODE
    tolerance: float = TOLERANCE_SECONDS
    reserved: bool = False

    @property
    def label(self) -> str:
        """The options that differ from the defaults and change what an episode holds."""
        values = asdict(self), asdict(Reading())
        return "".join(
            f"|{key}={value}" for key, value in values[0].items() if value != values[1][key] and key != "tolerance"
        )


_LAST_STEPS = {
    REPEAT: "no observation stands behind an episode's last action: the last one is repeated there (last_step=mark makes the last row the last step)",
    MARK: "no observation stands behind an episode's last action: the last row is the last step, so learners do not see its action and its reward",
}
_DONE = {
    TERMINAL: "next.done on an episode's last row is taken for a terminal end, which LeRobot does not tell from one that was cut (done_means=timeout or nothing)",
    TIMEOUT: "next.done on an episode's last row is taken for one that was cut",
}
ODD = {
    "frame_index": "episodes whose frame_index or index does not count their rows one by one; the rows were taken in the file's order",
    "done_inside": "episodes with next.done before their last row, which RLDS cannot say; done_means=nothing keeps it as a column",
}
"""Code -> what was found in an episode."""


_REPO = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?", re.ASCII)
_REVISIONS = ("v3.0", "v2.1", "v2.0", "main")


def _seconds(text: str) -> float:
    found = float(text) if re.fullmatch(r"(\d{1,9}(\.\d{0,12})?|\.\d{1,12})(e-?\d)?", text, re.ASCII) else math.nan
    if not found > 0:
        raise ValueError("expected a number of seconds above 0")
    return found


OPTIONS: dict[str, Parse] = {
    "last_step": words(*LAST_STEPS),
    "done_means": words(TERMINAL, TIMEOUT, NOTHING),
    "task": words(COLUMN, METADATA, SKIP),
    "videos": words(DECODE, SKIP),
    "tolerance": _seconds,
    "reserved": one_of(skip=False, columns=True),
}
"""The format's own options, and how each is read."""


def open_lerobot(text: str) -> Source:
    """Opens a LeRobot dataset by the text after "lerobot:".

    Raises:
      SourceError: there is no such dataset, it is damaged or of another version, or an option makes no sense.
    """
    wanted = asked("lerobot", text, OPTIONS)
    dataset = read_dataset(_folder(wanted.name, wanted.text), Reading(**wanted.options))
    return wanted.source_of(LeRobotRecordings(dataset, wanted.name))


def folder_of(text: str) -> Path:
    """The folder of a dataset by the text after "lerobot:".

    Raises:
      SourceError: there is none.
    """
    return _folder(f"lerobot:{text}", unescaped(parted(text)[0]))


def _folder(people: str, where: str) -> Path:
    """The folder of a path, or of a dataset that lerobot keeps under its name.

    Source of the places: utils/constants.py and dataset_metadata.py of lerobot 0.6.1; huggingface_hub's constants and cache.
    """
    if "\0" in where or not where:
        raise SourceError(f'"{people}": expected a folder, or ORG/NAME')
    path = Path(where).expanduser()
    if path.is_dir() or path.is_absolute() or where.startswith((".", "~")) or not _REPO.fullmatch(where):
        return path
    places = list(_places(where))
    for place in places:
        if (place / "meta/info.json").is_file():
            return place
    raise SourceError(
        f'"{people}": no folder {path}, and no dataset of that name in {places[0].parent.parent} (HF_LEROBOT_HOME); '
        "download it with lerobot or huggingface-cli, or give its folder"
    )


def _places(repo: str) -> Iterator[Path]:
    """Where lerobot looks for a dataset of that name: its own folder, then the snapshots it downloaded, by version."""
    home = _home()
    yield home / repo
    cache = home / "hub" / f"datasets--{repo.replace('/', '--')}"
    for revision in _REVISIONS:
        commit = cache / "refs" / revision
        if commit.is_file() and re.fullmatch(
            r"[0-9a-f]{1,64}", name := commit.read_text(errors="replace")[:80].strip()
        ):
            yield cache / "snapshots" / name
    yield from sorted(cache.glob("snapshots/*"))


def _home() -> Path:
    """HF_LEROBOT_HOME; by default the folder `lerobot` in Hugging Face's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    hugging_face = os.environ.get("HF_HOME") or str(Path(cache) / "huggingface")
    return Path(os.environ.get("HF_LEROBOT_HOME") or str(Path(hugging_face) / "lerobot")).expanduser()


class LeRobotRecordings(Recordings):
    """The episodes of a dataset.

    Args:
      dataset: what is read, and how.
      name: for messages.
      as_files: paths of images that are given as their files' bytes.

    Raises:
      SourceError: two columns cannot stand beside one another, or videos are to be decoded and PyAV is missing.
    """

    def __init__(self, dataset: Dataset, name: str, as_files: Collection[str] = ()) -> None:
        self.name, self._dataset, self._as_files = name, dataset, frozenset(as_files)
        self._odd: dict[str, set[int]] = {}
        if any(one.kind == VIDEO for one in dataset.steps.columns.values()):
            check_library()
        self._spec = nested({path: self._spec_of(path, one) for path, one in dataset.specs().items()}, name)

    @property
    def count(self) -> int:
        """The number of episodes in meta/."""
        return len(self._dataset.episodes)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """How rows became steps, what was left out, and what was unusual in the episodes read so far."""
        return tuple(self._notices())

    def _notices(self) -> Iterator[Notice]:
        dataset, reading = self._dataset, self._dataset.reading
        features, episodes = dataset.info.features, self.count
        if dataset.steps.are_recorded:
            yield note("last_step", "the dataset has is_first and is_last: its rows are steps as they are", episodes)
        else:
            yield note("last_step", _LAST_STEPS[reading.last_step], episodes)
        if DONE in features and reading.done_means in _DONE:
            yield note("done_means", _DONE[reading.done_means], episodes)
        for feature in features.values():
            if feature.kind == VIDEO and reading.videos == SKIP:
                yield note("videos_skipped", "its video is left out (videos=skip)", episodes, feature.path)
            elif feature.kind == VIDEO and feature.is_depth:
                text = (
                    "a depth map's codes, 0 to 4095, as the video has them; meta/info.json tells how they become metres"
                )
                yield note("depth_codes", text, episodes, feature.path)
        for code, found in self._odd.items():
            yield Notice(code, ODD[code], len(found))
        if names := dataset.episodes.left_out:
            text = f"metadata that is not one number or text for every episode, of one kind: {shortened(', '.join(names))}; left out"
            yield Notice("left_out", text, len(names))

    def length_of(self, number: int) -> int:
        """Rows according to meta/, plus the row that is added."""
        rows, steps = int(self._dataset.episodes.columns[LENGTH][number]), self._dataset.steps
        return rows + (rows > 0 and not steps.are_recorded and steps.reading.last_step != MARK)

    def spec(self) -> Nest:
        """The features, the flags, the discount if `next.done` marks the end, and the task if it is a column."""
        return self._spec

    def metadata_spec(self) -> Nest:
        """See `Dataset.metadata_of`."""
        example = self.metadata_of(0) if self.count else {EPISODE_INDEX: np.int64(0)}
        return nested({path: value_spec(value) for path, value in example.items()}, self.name)

    def metadata_of(self, number: int) -> Mapping[str, Any]:
        """One episode's."""
        return self._dataset.metadata_of(number)

    def images(self) -> Mapping[str, ImageSpec]:
        """The images in tables, without depth maps and videos."""
        return {
            path: ImageSpec((one.shape[0], one.shape[1], one.shape[2]), one.dtype, is_accurate=True)
            for path, one in self._dataset.steps.columns.items()
            if one.kind == IMAGE and not one.is_depth
        }

    def encoded(self, paths: Collection[str]) -> LeRobotRecordings:
        """The same recordings, with these images as files."""
        return LeRobotRecordings(self._dataset, self.name, paths)

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        """The episodes of these numbers."""
        self._dataset.check_templates()
        reader = Reader(self._dataset, self._as_files, self._odd)
        try:
            yield from each(reader, numbers)
        finally:
            reader.close()

    def _spec_of(self, path: str, spec: ArraySpec) -> ArraySpec:
        return ArraySpec.of_images(self.images()[path]) if path in self._as_files else spec


_COUNTED = (FRAME_INDEX, INDEX)


class Reader:
    """Reads episodes. Keeps one file of rows open.

    Args:
      dataset: what is read.
      as_files: paths of images that are given as their files' bytes.
      odd: collects the numbers of unusual episodes, by the codes of `ODD`.

    Raises:
      SourceError: a library that decodes images is missing.
    """

    def __init__(self, dataset: Dataset, as_files: Collection[str], odd: MutableMapping[str, set[int]]) -> None:
        self._dataset, self._as_files, self._odd = dataset, as_files, odd
        self._rows: TableRows | None = None
        if any(one.kind == IMAGE and to not in as_files for to, one in dataset.steps.columns.items()):
            check_libraries()

    def close(self) -> None:
        """Closes the file."""
        if self._rows is not None:
            self._rows.close()
        self._rows = None

    def one(self, number: int) -> Recording:
        """One episode.

        Raises:
          BrokenEpisode: its rows or its videos cannot be read, or contradict meta/.
          WrittenAnew: a file has changed since it was first opened.
        """
        try:
            path, first, count = self._dataset.episodes.rows(number)
            read = self._opened(path, count).read(first, first + count)
            return self._recording(number, path, read)
        except WrittenAnew:
            raise
        except SourceError as error:
            raise BrokenEpisode("", str(error)) from error

    def _opened(self, path: Path, count: int) -> TableRows:
        """The open file. In version 2.x it holds the rows of this episode only."""
        if self._rows is None or (self._rows.path is not path and self._rows.path != path):
            self.close()
            self._dataset.check(path)
            self._rows = TableRows(path, self._names(), self._row_bytes())
        if self._dataset.info.version[0] == 2 and self._rows.count != count:
            raise BrokenEpisode(
                "", f"{path}: has {self._rows.count:,} rows; expected {count:,}, as meta/episodes.jsonl says"
            )
        return self._rows

    def _names(self) -> list[str]:
        dataset = self._dataset
        features = dataset.info.features
        names = [name for name, one in dataset.steps.features.items() if one.kind != VIDEO]
        needed = [EPISODE_INDEX, *(name for name in _COUNTED if name in features)]
        needed += [TASK_INDEX] if dataset.task != SKIP else []
        needed += [TIMESTAMP] if len(names) < len(dataset.steps.features) else []
        return list(dict.fromkeys((*names, *needed)))

    def _row_bytes(self) -> int:
        """Bytes of the numbers in a row, according to info.json."""
        features = self._dataset.info.features
        numbers = [features[name] for name in self._names() if name in features and features[name].kind == NUMBER]
        return sum(one.size * one.dtype.itemsize for one in numbers)

    def _recording(self, number: int, path: Path, read: Taken) -> Recording:
        dataset = self._dataset
        self._check(number, path, read)
        stored = {to: self._stored(one, number, path, read) for to, one in dataset.steps.columns.items()}
        if dataset.task == COLUMN:
            stored[dataset.task_path] = self._texts(path, read)
        elif dataset.task == METADATA:
            self._check_task(dataset.task_of(number), path, read)
        done = dataset.steps.done
        flags = None if done is None else self._plain(done.name, path, read)
        if flags is not None and flags[:-1].any():
            self._found("done_inside", number)

        def decode() -> Mapping[str, Array]:
            try:
                columns = {
                    to: one if isinstance(one, np.ndarray) else self._decoded(one, path) for to, one in stored.items()
                }
                return dataset.steps.made(columns, flags)
            except SourceError as error:
                raise BrokenEpisode("", str(error)) from error

        return Recording(decode, dataset.metadata_of(number), content=self._name(stored, flags))

    def _stored(self, feature: Feature, number: int, path: Path, read: Taken) -> Array | _Files | Clip:
        """[T, ...] as stored: numbers and texts, image files, or a part of a video."""
        if feature.kind == VIDEO:
            return self._clip(feature, number, path, read)
        if feature.kind != IMAGE:
            return _values(feature, path, read)
        return _Files(feature, image_files(feature, read.column(feature.name), path))

    def _decoded(self, stored: _Files | Clip, path: Path) -> Array:
        if isinstance(stored, Clip):
            return stored.frames()
        if stored.feature.path in self._as_files:
            return stored.column
        return decoded(stored.feature, stored.files, f'{path}: column "{stored.feature.name}"')

    def _name(self, stored: Mapping[str, Array | _Files | Clip], flags: Array | None) -> str:
        """The episode's name: a hash of its rows, of the bytes of its images and videos, and of the options that change its steps."""
        rows = {
            to: one.column if isinstance(one, _Files) else one
            for to, one in stored.items()
            if not isinstance(one, Clip)
        }
        digest = content_hash(rows if flags is None else {**rows, DONE: flags})
        digest.update(self._dataset.reading.label.encode())
        for to, one in sorted(stored.items()):
            if isinstance(one, Clip):
                digest.update(f"{to}|".encode())
                one.add_to(digest)
        return content_name(digest.hexdigest())

    def _clip(self, feature: Feature, number: int, path: Path, read: Taken) -> Clip:
        video, begin = self._dataset.episodes.video(number, feature.name)
        self._dataset.check(video)
        seconds = begin + self._plain(TIMESTAMP, path, read).astype(np.float64)
        if not np.isfinite(seconds).all():
            raise BrokenEpisode(feature.path, f"{path}: timestamps that are no finite numbers")
        return Clip(feature, video, seconds, self._dataset.reading.tolerance)

    def _plain(self, name: str, path: Path, read: Taken) -> Array:
        """[T] of a feature with one value per row."""
        feature = self._dataset.info.features.get(name)
        if feature is None or feature.size != 1:
            raise BrokenEpisode(
                "", f'{self._dataset.info.root}: meta/info.json: expected a feature "{name}" of the shape [1]'
            )
        return _values(feature, path, read).reshape(-1)

    def _check(self, number: int, path: Path, read: Taken) -> None:
        """Checks that the rows belong to the episode."""
        index = self._dataset.episodes.index(number)
        found = self._plain(EPISODE_INDEX, path, read)
        if (found != index).any():
            raise BrokenEpisode(
                "",
                f"{path}: rows of episode {int(found[found != index][0])} where meta/episodes has those of episode {index}",
            )
        counted = [self._plain(name, path, read) for name in _COUNTED if name in self._dataset.info.features]
        if not all(map(_counts, counted)):
            self._found("frame_index", number)

    def _texts(self, path: Path, read: Taken) -> Array:
        """[T] the task of each row, as text."""
        numbers, of = np.unique(self._plain(TASK_INDEX, path, read), return_inverse=True)
        texts = np.empty(len(numbers), object)
        texts[:] = [self._text(int(one), path) for one in numbers]
        return np.asarray(texts[of.reshape(-1)])

    def _check_task(self, task: bytes, path: Path, read: Taken) -> None:
        numbers = self._plain(TASK_INDEX, path, read)
        numbers = numbers[:1] if (numbers == numbers[:1]).all() else np.unique(numbers)
        if {self._text(int(one), path) for one in numbers} - {task}:
            raise BrokenEpisode(
                self._dataset.task_path,
                f"{path}: rows with other tasks than the one that meta/episodes tells; read them with task=column",
            )

    def _text(self, number: int, path: Path) -> bytes:
        text = self._dataset.tasks.get(number)
        if text is None:
            raise BrokenEpisode(
                self._dataset.task_path, f"{path}: task_index {number}, of which meta/tasks knows nothing"
            )
        return text

    def _found(self, code: str, number: int) -> None:
        self._odd.setdefault(code, set()).add(number)


@dataclass(frozen=True)
class _Files:
    """An image column stored as one file per row."""

    feature: Feature
    files: list[bytes]

    @property
    def column(self) -> Array:
        """[T] of objects."""
        found = np.empty(len(self.files), object)
        found[:] = self.files
        return found


def _counts(column: Array) -> bool:
    """Whether every number is its predecessor plus one."""
    return column.dtype != bool and bool((column[1:] - column[:-1] == 1).all())


def _values(feature: Feature, path: Path, read: Taken) -> Array:
    """[T, ...] of a feature that is neither images nor a video."""
    if feature.kind == NUMBER:
        return read.made(feature.name, lambda found: column(feature, found, path))
    return column(feature, read.column(feature.name), path)


_FLAG = ArraySpec((), np.dtype(bool))
_NUMBER = ArraySpec((), np.dtype(np.float32))


@dataclass(frozen=True)
class Steps:
    """How a dataset's rows become steps.

    Attributes:
      features: of the columns that are read, by name; `next.done` among them.
      reading: the options.
    """

    features: Mapping[str, Feature]
    reading: Reading

    @cached_property
    def are_recorded(self) -> bool:
        """Whether each row is a step already: the dataset has is_first and is_last."""
        flags_ = {one.path for one in self.features.values() if one.spec == _FLAG}
        return {IS_FIRST, IS_LAST} <= flags_

    @cached_property
    def done(self) -> Feature | None:
        """The feature that marks the end of episodes; None if there is none or it stays a column."""
        if self.are_recorded or self.reading.done_means == NOTHING:
            return None
        return self.features.get(DONE)

    @cached_property
    def columns(self) -> dict[str, Feature]:
        """Features that become columns, by path."""
        done = self.done
        made = () if self.are_recorded else FLAGS if done else (IS_FIRST, IS_LAST)
        return {one.path: one for one in self.features.values() if one is not done and one.path not in made}

    def specs(self) -> dict[str, ArraySpec]:
        """Path -> spec of the steps that `made` returns."""
        specs = {path: feature.spec for path, feature in self.columns.items()}
        if self.are_recorded:
            return specs
        if self.done is not None:
            specs = {DISCOUNT: _NUMBER, **specs, IS_TERMINAL: _FLAG}
        return {**specs, IS_FIRST: _FLAG, IS_LAST: _FLAG}

    def made(self, rows: Mapping[str, Array], done: Array | None) -> dict[str, Array]:
        """The steps of an episode.

        Args:
          rows: path -> [T, ...], the columns.
          done: [T], of the feature `done`.

        Returns:
          [T] or [T + 1, ...].

        Raises:
          BrokenEpisode: it has no rows.
        """
        count = len(next(iter(rows.values()), ()))
        if self.are_recorded:
            return dict(rows)
        if not count:
            raise BrokenEpisode("", "has no rows")
        is_terminal = None if done is None else self.reading.done_means == TERMINAL and bool(np.any(done[-1]))
        if self.reading.last_step != MARK:
            rows = {path: _closed(path, column) for path, column in rows.items()}
            count += 1
        made = {**rows, **flags(count, is_terminal)}
        if is_terminal is not None and DISCOUNT not in rows:
            made[DISCOUNT] = terminal_discount(count, is_terminal)
        return made


def row_behind(path: str, column: Array) -> Array:
    """The row [1, ...] that follows the last action of a column [T, ...]."""
    return zero_row(column) if _is_of_action(path) else column[-1:]


def _closed(path: str, column: Array) -> Array:
    """[T, ...] -> [T + 1, ...], with `row_behind` at the end."""
    closed = np.empty((len(column) + 1, *column.shape[1:]), column.dtype)
    closed[:-1], closed[-1:] = column, row_behind(path, column)
    return closed


def _is_of_action(path: str) -> bool:
    return is_under(path, ACTION) or path == REWARD or path.startswith("next.")


_TASK = "task"
"""Its name where a feature has the other one."""
_TEXT = ArraySpec((), np.dtype(object))
_NOT_STEPS = (FRAME_INDEX, EPISODE_INDEX, INDEX, TASK_INDEX)
"""What follows from a row's place, or stands in the metadata."""


class WrittenAnew(SourceError):
    """A file has changed since it was first opened."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset and how it is read.

    Attributes:
      info: of meta/info.json.
      episodes: of meta/.
      tasks: number -> text; {} where the dataset has none.
      task: where the text goes: COLUMN, METADATA or SKIP.
      reading: the options.
      steps: how rows become steps.
      stamps: size and time of change of each file when it was first opened.
    """

    info: Info
    episodes: Episodes
    tasks: Mapping[int, bytes]
    task: str
    reading: Reading
    steps: Steps
    stamps: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def check(self, path: Path) -> None:
        """Checks a file of rows or frames before it is opened.

        Raises:
          SourceError: it is a link that leads out of the dataset.
          WrittenAnew: it has changed since it was first opened.
        """
        check_link(self.info.root, path)
        try:
            found = path.stat()
        except OSError:
            return  # opening it will raise
        stamp = found.st_size, found.st_mtime_ns
        if self.stamps.setdefault(path, stamp) != stamp:
            raise WrittenAnew(f"{path}: was written anew after it was first looked at; open the source again")

    @property
    def task_path(self) -> str:
        """The column of the task's text."""
        return _TASK if LANGUAGE_INSTRUCTION in self.steps.columns else LANGUAGE_INSTRUCTION

    def specs(self) -> dict[str, ArraySpec]:
        """Path -> spec of a step's value."""
        return {**self.steps.specs(), **({self.task_path: _TEXT} if self.task == COLUMN else {})}

    def metadata_of(self, number: int) -> dict[str, Any]:
        """Metadata of an episode: `episode_index`, the task if the episode has just one, and further columns of meta/episodes."""
        metadata: dict[str, Any] = {name: values[number] for name, values in self.episodes.metadata.items()}
        metadata[EPISODE_INDEX] = self.episodes.columns[EPISODE_INDEX][number]
        if self.task == METADATA:
            metadata.setdefault(
                _TASK if LANGUAGE_INSTRUCTION in metadata else LANGUAGE_INSTRUCTION, self.task_of(number)
            )
        return metadata

    def task_of(self, number: int) -> bytes:
        """The task of an episode according to meta/episodes; "" if it has none."""
        tasks = self.episodes.tasks[number] if self.episodes.tasks else ()
        return tasks[0].encode(errors="backslashreplace") if tasks else b""

    def check_templates(self) -> None:
        """Checks that templates can be filled in and stay inside the dataset.

        Raises:
          SourceError: says which.
        """
        for _ in self._files():
            pass

    def _files(self) -> Iterator[Path]:
        videos = [one.name for one in self.info.features.values() if one.kind == VIDEO]
        for number in self.episodes.with_own_file("data"):
            yield self.episodes.rows(number)[0]
        for key in videos if self.reading.videos != SKIP else ():
            for number in self.episodes.with_own_file(f"videos/{key}"):
                yield self.episodes.video(number, key)[0]


def read_dataset(root: Path, reading: Reading) -> Dataset:
    """Reads meta/.

    Raises:
      SourceError: it is missing, damaged or makes no sense.
    """
    info = read_info(root)
    if EPISODE_INDEX not in info.features:
        raise SourceError(f"{root}: meta/info.json: no feature {EPISODE_INDEX}, which every dataset of LeRobot has")
    episodes = read_episodes(info)
    tasks = read_tasks(info) if TASK_INDEX in info.features and reading.task != SKIP else {}
    read = {name: feature for name, feature in info.features.items() if _is_read(feature, reading)}
    return Dataset(info, episodes, tasks, _place_of_task(tasks, episodes, reading), reading, Steps(read, reading))


def _is_read(feature: Feature, reading: Reading) -> bool:
    if feature.kind == VIDEO and reading.videos == SKIP:
        return False
    return reading.reserved or feature.name not in _NOT_STEPS


def _place_of_task(tasks: Mapping[int, bytes], episodes: Episodes, reading: Reading) -> str:
    if not tasks:
        return SKIP
    if reading.task is not None:
        return reading.task
    is_told = episodes.tasks is not None and not episodes.info.task_is_column
    is_one = is_told and all(len(one) <= 1 for one in episodes.tasks or ())
    return METADATA if is_one else COLUMN
