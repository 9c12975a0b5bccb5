"""LeRobot's datasets as a source: `lerobot:PATH[?OPTIONS]`, `lerobot:ORG/NAME[?OPTIONS]`.

| option | values | meaning |
| --- | --- | --- |
| `last_step` | `repeat`, `mark` | the row after the last action; see `formats.rows` |
| `done_means` | `terminal`, `timeout`, `nothing` | the meaning of `next.done` at an episode's end |
| `task` | `column`, `metadata`, `skip` | the place of the text of a row's task |
| `videos` | `decode`, `skip` | whether videos become columns |
| `tolerance` | seconds | the largest distance of a frame from its row's time |
| `reserved` | `skip`, `columns` | whether LeRobot's counters become columns |
| `cast` | `exact`, `nearest` | whether floats that a feature's dtype lacks make a bad episode, or are rounded to it |

One row is added to those of an episode, with the observation after the last action:

| column | in the added row |
| --- | --- |
| action, `actions`, `next.*` | zeros, or empty text |
| everything else, the discount among it | the last row's value |
"""

from __future__ import annotations

import copy
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episode import (
    DISCOUNT,
    FLAGS,
    IS_FIRST,
    IS_LAST,
    IS_TERMINAL,
    Array,
    Notice,
    content_hash,
    content_name,
    note,
)
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.buckets import path_of
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
from rlds2reverb.formats.lerobot.keys import NO_EPISODE, Keys, Run, find_places, read_keys
from rlds2reverb.formats.lerobot.meta import Episodes, Info, read_episodes, read_info, read_tasks
from rlds2reverb.formats.lerobot.values import RowRange, TableRows, convert_column, image_files, open_table
from rlds2reverb.formats.lerobot.videos import Clip, check_libraries, check_library, decode_pictures
from rlds2reverb.formats.options import Parse, one_of, split_options, unescape_text, words
from rlds2reverb.formats.recordings import BrokenEpisode, Recording, Recordings, parse_source_name, read_each
from rlds2reverb.formats.rows import LAST_STEPS, MARK, REPEAT, flags, terminal_discount, with_row_behind
from rlds2reverb.formats.source import About, Source
from rlds2reverb.specs import ArraySpec, ImageSpec, Nest, nested, value_spec
from rlds2reverb.text import shortened

DECODE, SKIP = "decode", "skip"
COLUMN, METADATA = "column", "metadata"
TERMINAL, TIMEOUT, NOTHING = "terminal", "timeout", "nothing"

TOLERANCE_SECONDS = 1e-4  # lerobot's `tolerance_s`


@dataclass(frozen=True)
class Reading:
    """The parsed options; see the module. Without `task`, the text is metadata unless an episode has several tasks."""

    last_step: str = REPEAT
    done_means: str = TERMINAL
    task: str | None = None
    videos: str = DECODE
    tolerance: float = TOLERANCE_SECONDS
    reserved: bool = False
    rounds: bool = False

    @property
    def label(self) -> str:
        """The options that differ from the defaults and change the content of an episode beyond what its stored rows show."""
        usual = asdict(Reading(tolerance=self.tolerance, rounds=self.rounds))
        return "".join(f"|{key}={value}" for key, value in asdict(self).items() if value != usual[key])


_LAST_STEPS = {
    REPEAT: "no observation stands behind an episode's last action: the last one is repeated there (last_step=mark makes the last row the last step)",
    MARK: "no observation stands behind an episode's last action: the last row is the last step, so learners do not see its action and its reward",
}
_DONE = {
    TERMINAL: "next.done on an episode's last row is read as a terminal end, which LeRobot does not separate from a time limit (done_means=timeout or nothing)",
    TIMEOUT: "next.done on an episode's last row is read as a time limit",
}
ODD = {  # code of a notice -> text
    "frame_index": "episodes whose frame_index or index does not count their rows one by one; the rows were taken in the file's order",
    "stale_pointers": "episodes whose rows are not where meta/episodes says (data/file_index, dataset_from_index); they were found by their own episode_index",
    "video_short": "episodes with rows behind the end of their part of a video (to_timestamp in meta/episodes); their frames may be those of another episode",
    "done_inside": "episodes with next.done before their last row, which RLDS cannot say; done_means=nothing keeps it as a column",
}

PARTS = ("meta", "data", "videos", "images")
"""The folders of a dataset that hold files of it."""

_REPO = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?", re.ASCII)
_REVISIONS = ("v3.0", "v2.1", "v2.0", "main")


def _parse_seconds(text: str) -> float:
    seconds = float(text) if re.fullmatch(r"(\d{1,9}(\.\d{0,12})?|\.\d{1,12})(e-?\d)?", text, re.ASCII) else math.nan
    if not seconds > 0:
        raise ValueError("expected a number of seconds above 0")
    return seconds


OPTIONS: dict[str, Parse] = {
    "last_step": words(*LAST_STEPS),
    "done_means": words(TERMINAL, TIMEOUT, NOTHING),
    "task": words(COLUMN, METADATA, SKIP),
    "videos": words(DECODE, SKIP),
    "tolerance": _parse_seconds,
    "reserved": one_of(skip=False, columns=True),
    "cast": one_of(exact=False, nearest=True),
}


def open_lerobot(text: str) -> Source:
    """Opens a LeRobot dataset by the text after "lerobot:".

    Raises:
      SourceError: there is no such dataset, it is damaged or of another version, or an option makes no sense.
    """
    request = parse_source_name("lerobot", text, OPTIONS)
    root = request.files.pin(_find_folder(request.name, request.text), within=PARTS)
    dataset = read_dataset(root, Reading(**request.rename_options({"cast": "rounds"})))
    return request.make_source(LeRobotRecordings(dataset, request.name))


def folder_of(text: str) -> Path:
    """The folder of a dataset by the text after "lerobot:"; raises `SourceError` if there is none."""
    return _find_folder(f"lerobot:{text}", unescape_text(split_options(text)[0]))


def _find_folder(name: str, where: str) -> Path:
    if "\0" in where or not where:
        raise SourceError(f'"{name}": expected a folder, or ORG/NAME')
    path = path_of(where)
    if path.is_dir() or path.is_absolute() or where.startswith((".", "~")) or not _REPO.fullmatch(where):
        return path
    places = list(_places(where))
    for place in places:
        if (place / "meta/info.json").is_file():
            return place
    raise SourceError(
        f'"{name}": no folder {path}, and no dataset of that name in {places[0].parent.parent} (HF_LEROBOT_HOME); '
        "download it with lerobot or huggingface-cli, or give its folder"
    )


def _places(repo: str) -> Iterator[Path]:
    """The places where lerobot looks for a dataset of that name: its own folder, then downloaded snapshots, by version.

    Source: utils/constants.py and dataset_metadata.py of lerobot 0.6.1; huggingface_hub's constants and cache.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    hugging_face = os.environ.get("HF_HOME") or str(Path(cache) / "huggingface")
    home = Path(os.environ.get("HF_LEROBOT_HOME") or str(Path(hugging_face) / "lerobot")).expanduser()
    yield home / repo
    downloaded = home / "hub" / f"datasets--{repo.replace('/', '--')}"
    for revision in _REVISIONS:
        commit = downloaded / "refs" / revision
        if commit.is_file():
            name = commit.read_text(errors="replace")[:80].strip()
            if re.fullmatch(r"[0-9a-f]{1,64}", name):
                yield downloaded / "snapshots" / name
    yield from sorted(downloaded.glob("snapshots/*"))


class LeRobotRecordings(Recordings):
    """The episodes of a dataset; images of the paths `as_files` are given as their files' bytes.

    Raises:
      SourceError: two columns exclude each other.
    """

    def __init__(self, dataset: Dataset, name: str, as_files: Collection[str] = ()) -> None:
        self.name, self._dataset, self._as_files = name, dataset, frozenset(as_files)
        self._odd: dict[str, set[int]] = {}
        offered = {**self.images(), **self.frames()}
        files = {path: ArraySpec.of_images(offered[path]) for path in self._as_files}
        self._spec = nested({path: files.get(path, spec) for path, spec in dataset.specs().items()}, name)

    @property
    def count(self) -> int:
        return len(self._dataset.episodes)

    @property
    def about(self) -> About:
        return About.of("lerobot", self._dataset.info.about, own=self._dataset.info.own)

    @property
    def notices(self) -> tuple[Notice, ...]:
        return tuple(self._notices())

    def _notices(self) -> Iterator[Notice]:
        dataset, reading = self._dataset, self._dataset.reading
        features, episodes = dataset.info.features, self.count
        if dataset.are_recorded:
            yield note("last_step", "the dataset has is_first and is_last: its rows are steps as they are", episodes)
        else:
            yield note("last_step", _LAST_STEPS[reading.last_step], episodes)
        if DONE in features and reading.done_means in _DONE:
            yield note("done_means", _DONE[reading.done_means], episodes)
        if reading.rounds:
            yield note("rounded", "floats that their feature's dtype lacks are rounded to it (cast=nearest)", episodes)
        for feature in features.values():
            if feature.kind != VIDEO:
                continue
            if reading.videos == SKIP:
                yield note("videos_skipped", "its video is left out (videos=skip)", episodes, feature.path)
                continue
            if feature.path in dataset.lacking:
                continue
            if feature.is_depth:
                text = "a depth map's codes, 0 to 4095, as the video has them; meta/info.json has what is needed to convert them to metres"
                yield note("depth_codes", text, episodes, feature.path)
            if count := dataset.episodes.overlapping(feature.name):
                text = "episodes whose parts of a video overlap (from_timestamp and to_timestamp in meta/episodes), so frames of one stand beside rows of another"
                yield Notice("video_overlap", text, count, feature.path)
        for code, numbers in self._odd.items():
            yield Notice(code, ODD[code], len(numbers))
        if dataset.unlisted:
            text = (
                "episodes whose rows stand in the files that were read, but which meta/episodes does not list; left out"
            )
            yield Notice("unlisted_episodes", text, len(dataset.unlisted))
        if names := dataset.episodes.left_out:
            text = f"metadata that is not one number or text for every episode, of one kind: {shortened(', '.join(names))}; left out"
            yield Notice("left_out", text, len(names))

    def length_of(self, number: int) -> int:
        """Rows according to meta/, plus the row that is added."""
        dataset = self._dataset
        rows = dataset.episodes.length(number)
        return rows + (rows > 0 and not dataset.are_recorded and dataset.reading.last_step != MARK)

    def spec(self) -> Nest:
        return self._spec

    def metadata_spec(self) -> Nest:
        example = self.metadata_of(0) if self.count else {EPISODE_INDEX: np.int64(0)}
        return nested({path: value_spec(value) for path, value in example.items()}, self.name)

    def metadata_of(self, number: int) -> Mapping[str, Any]:
        return self._dataset.metadata_of(number)

    def images(self) -> Mapping[str, ImageSpec]:
        return {
            path: ImageSpec(
                (image.shape[0], image.shape[1], image.shape[2]), image.dtype, is_accurate=True, is_upright=True
            )
            for path, image in self._dataset.columns.items()
            if image.kind == IMAGE and not image.is_depth
        }

    def frames(self) -> Mapping[str, ImageSpec]:
        return {
            path: ImageSpec((video.shape[0], video.shape[1], video.shape[2]), video.dtype)
            for path, video in self._dataset.columns.items()
            if video.kind == VIDEO and not video.is_depth
        }

    def encoded(self, paths: Collection[str]) -> LeRobotRecordings:
        return LeRobotRecordings(self._dataset, self.name, paths)

    def without(self, paths: Collection[str]) -> LeRobotRecordings:
        fewer = copy.copy(self)
        fewer._dataset = replace(self._dataset, lacking=frozenset(paths))
        return fewer

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        self._dataset.check_templates()
        reader = Reader(self._dataset, self._as_files, self._odd)
        try:
            yield from read_each(reader.one, numbers)
        finally:
            reader.close()


_COUNTED = (FRAME_INDEX, INDEX)


class Reader:
    """Reads episodes. Keeps one file of rows open. Collects the numbers of unusual episodes by the codes of `ODD`."""

    def __init__(self, dataset: Dataset, as_files: Collection[str], odd: MutableMapping[str, set[int]]) -> None:
        self._dataset, self._odd = dataset, odd
        self._rows: TableRows | None = None
        self._decoded = [
            path for path, feature in dataset.columns.items() if feature.kind == IMAGE and path not in as_files
        ]
        self._lazy = {path for path in as_files if dataset.columns[path].kind == VIDEO}
        if self._decoded:
            check_libraries()
        if dataset.videos:
            check_library()

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()
        self._rows = None

    def one(self, number: int) -> Recording:
        """One episode; raises `BrokenEpisode`."""
        try:
            return self._recording(number, self._read_rows(number))
        except SourceError as error:
            raise BrokenEpisode("", str(error)) from error

    def _frames(self, path: str, column: Array | Clip) -> Array:
        """A column's rows; those of a video are decoded, or stay in their file where frames are to be kept encoded."""
        if not isinstance(column, Clip):
            return column
        return column.lazy_frames() if path in self._lazy else column.frames()

    def _read_rows(self, number: int) -> RowRange:
        """The rows of an episode. In version 2.x a file holds those of one episode only."""
        episodes = self._dataset.episodes
        path, count = episodes.data_file(number), episodes.length(number)
        if path is not None and (self._dataset.info.version[0] == 2 or not count):
            rows = self._open(path)
            if rows.count != count and count:
                raise BrokenEpisode(
                    "", f"{path}: has {rows.count:,} rows; expected {count:,}, as meta/episodes.jsonl says"
                )
            return rows.read(0, count)
        runs = self._runs(number, path, count)
        return RowRange.join([self._open(run.path).read(run.start, run.stop) for run in runs])

    def _runs(self, number: int, path: Path | None, count: int) -> list[Run]:
        """The places of an episode's rows: in the file that meta names if that has them in one piece, else in any."""
        dataset, episode, why = self._dataset, self._dataset.episodes.index(number), ""
        if path is not None:
            try:
                keys = dataset.all_keys if dataset.has_all_keys else dataset.keys_of(path, self._open(path))
                if runs := keys.whole(episode, path, count):
                    return runs
            except SourceError as error:
                why = f"{error}; "
        try:
            return find_places(dataset.all_keys, episode, count)
        except BrokenEpisode as broken:
            raise BrokenEpisode("", f"{why}{broken.why}") from broken

    def _open(self, path: Path) -> TableRows:
        """Opens a file, or takes the open one: episodes stand in a file one behind the other."""
        dataset, rows = self._dataset, self._rows
        if rows is None or (rows.path is not path and rows.path != path):
            self.close()
            features = dataset.info.features
            names = [feature.name for feature in dataset.columns.values() if feature.kind != VIDEO]
            needed = [EPISODE_INDEX, *(name for name in _COUNTED if name in features)]
            needed += [] if dataset.done is None else [dataset.done.name]
            needed += [TASK_INDEX] if dataset.reads_tasks else []
            needed += [TIMESTAMP] if dataset.videos else []
            names = list(dict.fromkeys((*names, *needed)))
            numbers = [features[name] for name in names if name in features and features[name].kind == NUMBER]
            self._rows = rows = TableRows(path, names, sum(number.size * number.dtype.itemsize for number in numbers))
        return rows

    def _recording(self, number: int, read: RowRange) -> Recording:
        dataset = self._dataset
        self._check(number, read)
        stored = {path: self._stored(feature, number, read) for path, feature in dataset.columns.items()}
        if dataset.reads_tasks:
            tasks = self._plain(TASK_INDEX, read)
            numbers, of = tasks[:1], np.zeros(len(tasks), int)
            if (tasks != numbers).any():  # nearly every episode has one task, and a sort of all rows costs more
                numbers, of = np.unique(tasks, return_inverse=True)
            texts = np.array([self._text(int(task), read.path) for task in numbers], object)
            if dataset.task == COLUMN:
                stored[dataset.task_path] = texts[of]
            elif set(texts) - {dataset.task_of(number)}:
                raise BrokenEpisode(
                    dataset.task_path,
                    f"{read.path}: rows with other tasks than the one in meta/episodes; read them with task=column",
                )
        flags = None if dataset.done is None else self._plain(dataset.done.name, read)
        if flags is not None and flags[:-1].any():
            self._odd.setdefault("done_inside", set()).add(number)

        def decode() -> Mapping[str, Array]:
            try:
                columns = {path: self._frames(path, column) for path, column in stored.items()}
                for path in self._decoded:
                    feature, where = dataset.columns[path], f'{read.path}: column "{dataset.columns[path].name}"'
                    columns[path] = decode_pictures(feature, columns[path].tolist(), where)
                return dataset.steps(columns, flags, read.count)
            except SourceError as error:
                raise BrokenEpisode("", str(error)) from error

        return Recording(decode, dataset.metadata_of(number), content=self._name(stored, flags))

    def _stored(self, feature: Feature, number: int, read: RowRange) -> Array | Clip:
        """[T, ...] as stored: numbers and texts, the bytes of image files, or a part of a video."""
        if feature.kind == VIDEO:
            return self._clip(feature, number, read)
        if feature.kind == IMAGE:
            return np.array(image_files(feature, read.column(feature.name), read.path), object)
        return self._convert(feature, read)

    def _convert(self, feature: Feature, read: RowRange) -> Array:
        rounds = self._dataset.reading.rounds
        if feature.kind == NUMBER:
            return read.convert(feature.name, lambda stored: convert_column(feature, stored, read.path, rounds))
        return convert_column(feature, read.column(feature.name), read.path, rounds)

    def _name(self, stored: Mapping[str, Array | Clip], flags: Array | None) -> str:
        """The episode's name: a hash of its rows, of the bytes of its images and videos, and of the options that change it."""
        rows = {path: column for path, column in stored.items() if not isinstance(column, Clip)}
        digest = content_hash(rows if flags is None else {**rows, DONE: flags})
        digest.update(self._dataset.reading.label.encode())
        for path, column in sorted(stored.items()):
            if isinstance(column, Clip):
                digest.update(f"{path}|".encode())
                column.add_to(digest)
        return content_name(digest.hexdigest())

    def _clip(self, feature: Feature, number: int, read: RowRange) -> Clip:
        episodes = self._dataset.episodes
        place = episodes.video(number, feature.name)
        if place is None:
            where = f"videos/{feature.name}/: file_index or from_timestamp"
            raise BrokenEpisode(feature.path, f"{episodes.info.root}: meta/episodes: {where} is missing")
        video, begin = place
        seconds = begin + self._plain(TIMESTAMP, read).astype(np.float64)
        if not np.isfinite(seconds).all():
            raise BrokenEpisode(feature.path, f"{read.path}: timestamps that are no finite numbers")
        if len(seconds) and seconds.max() > episodes.video_end(number, feature.name) + episodes.info.half_frame:
            self._odd.setdefault("video_short", set()).add(number)
        return Clip(feature, video, seconds, self._dataset.reading.tolerance)

    def _plain(self, name: str, read: RowRange) -> Array:
        """[T] of a feature with one value per row."""
        feature = self._dataset.info.features.get(name)
        if feature is None or feature.size != 1:
            raise BrokenEpisode(
                "", f'{self._dataset.info.root}: meta/info.json: expected a feature "{name}" of the shape [1]'
            )
        return self._convert(feature, read).reshape(-1)

    def _check(self, number: int, read: RowRange) -> None:
        index = self._dataset.episodes.index(number)
        episodes = self._plain(EPISODE_INDEX, read)
        if (episodes != index).any():
            raise BrokenEpisode(
                "",
                f"{read.path}: rows of episode {int(episodes[episodes != index][0])} where meta/episodes has those of episode {index}",
            )
        counted = [self._plain(name, read) for name in _COUNTED if name in self._dataset.info.features]
        if not all(column.dtype != bool and bool((column[1:] - column[:-1] == 1).all()) for column in counted):
            self._odd.setdefault("frame_index", set()).add(number)
        first = self._dataset.episodes.first_index(number)
        is_moved = read.path != self._dataset.episodes.data_file(number)
        if is_moved or (INDEX in self._dataset.info.features and first not in (None, *counted[-1][:1].tolist())):
            self._odd.setdefault("stale_pointers", set()).add(number)

    def _text(self, number: int, path: Path) -> bytes:
        text = self._dataset.tasks.get(number)
        if text is None:
            raise BrokenEpisode(self._dataset.task_path, f"{path}: task_index {number}, which meta/tasks does not have")
        return text


_FLAG = ArraySpec((), np.dtype(bool))
_NUMBER = ArraySpec((), np.dtype(np.float32))
_TEXT = ArraySpec((), np.dtype(object))
_TASK = "task"  # the column of the task's text if a feature is called `language_instruction`
_NOT_STEPS = (FRAME_INDEX, EPISODE_INDEX, INDEX, TASK_INDEX)  # they follow from a row's place, or are in the metadata


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset, and how its rows become steps: features that are read by name, `next.done` among them, and the stamps of files when they were
    first opened. `task` is the place of a task's text: COLUMN, METADATA or SKIP. `lacking` are paths of columns that are left out. `unlisted` are
    episodes of the rows that meta does not list.
    """

    info: Info
    episodes: Episodes
    tasks: Mapping[int, bytes]
    task: str
    reading: Reading
    features: Mapping[str, Feature]
    lacking: frozenset[str] = frozenset()
    unlisted: set[int] = field(default_factory=set, init=False)
    _keys: dict[Path, Keys] = field(default_factory=dict, init=False)

    def keys_of(self, path: Path, rows: TableRows) -> Keys:
        """Which rows of an open file are which episode's."""
        if path not in self._keys:
            self._keys[path] = keys = read_keys(path, rows.file)
            self.unlisted.update(keys.runs.keys() - set(self.episodes.columns[EPISODE_INDEX].tolist()) - {NO_EPISODE})
        return self._keys[path]

    @property
    def has_all_keys(self) -> bool:
        return "all_keys" in vars(self)

    @cached_property
    def all_keys(self) -> Keys:
        """Which rows of all files are which episode's; takes a look into every file."""
        of_files = []
        for path in self.info.data_files():
            try:
                with open_table(path) as file:
                    of_files.append(read_keys(path, file, with_index=True))
            except SourceError as error:
                of_files.append(Keys({}, str(error)))
        return Keys.join(of_files)

    def check_templates(self) -> None:
        """Raises `SourceError` if a template of paths cannot be filled in or leads out of the dataset."""
        for number in self.episodes.with_own_file("data"):
            self.episodes.data_file(number)
        for feature in self.videos:
            for number in self.episodes.with_own_file(f"videos/{feature.name}"):
                self.episodes.video(number, feature.name)

    @cached_property
    def are_recorded(self) -> bool:
        """Whether each row is a step already: the dataset has is_first and is_last."""
        return {IS_FIRST, IS_LAST} <= {feature.path for feature in self.features.values() if feature.spec == _FLAG}

    @cached_property
    def done(self) -> Feature | None:
        """The feature that marks the end of episodes; None if there is none or it stays a column."""
        if self.are_recorded or self.reading.done_means == NOTHING:
            return None
        return self.features.get(DONE)

    @cached_property
    def _recorded(self) -> dict[str, Feature]:
        """Path -> feature of every column, those that are left out included."""
        done = self.done
        ours = () if self.are_recorded else FLAGS if done else (IS_FIRST, IS_LAST)
        return {
            feature.path: feature
            for feature in self.features.values()
            if feature is not done and feature.path not in ours
        }

    @cached_property
    def columns(self) -> dict[str, Feature]:
        return {path: feature for path, feature in self._recorded.items() if path not in self.lacking}

    @cached_property
    def videos(self) -> tuple[Feature, ...]:
        """The columns that are videos."""
        return tuple(feature for feature in self.columns.values() if feature.kind == VIDEO)

    @property
    def task_path(self) -> str:
        return _TASK if LANGUAGE_INSTRUCTION in self._recorded else LANGUAGE_INSTRUCTION

    @property
    def reads_tasks(self) -> bool:
        """Whether the rows' tasks are needed: as a column, or to compare them with the one in the metadata."""
        return self.task == METADATA or (self.task == COLUMN and self.task_path not in self.lacking)

    def specs(self) -> dict[str, ArraySpec]:
        specs = {path: feature.spec for path, feature in self.columns.items()}
        if self.done is not None:
            specs = {DISCOUNT: _NUMBER, **specs, IS_TERMINAL: _FLAG}
        if not self.are_recorded:
            specs |= {IS_FIRST: _FLAG, IS_LAST: _FLAG}
        return {**specs, self.task_path: _TEXT} if self.task == COLUMN else specs

    def steps(self, rows: Mapping[str, Array], done: Array | None, count: int) -> dict[str, Array]:
        """The steps [T, ...] or [T + 1, ...] of an episode, from its columns, path -> [T, ...], and `done` [T]; `count` is T."""
        if self.are_recorded:
            return dict(rows)
        if not count:
            raise BrokenEpisode("", "has no rows")
        is_terminal = None if done is None else self.reading.done_means == TERMINAL and bool(np.any(done[-1]))
        columns = dict(rows)
        if self.reading.last_step != MARK:
            count += 1
            columns |= with_row_behind(rows)
        columns |= flags(count, is_terminal)
        if is_terminal is not None and DISCOUNT not in rows:
            columns[DISCOUNT] = terminal_discount(count, is_terminal)
        return columns

    def metadata_of(self, number: int) -> dict[str, Any]:
        """Metadata of an episode: `episode_index`, the task if the episode has just one, and further columns of meta/episodes."""
        metadata: dict[str, Any] = {name: values[number] for name, values in self.episodes.metadata.items()}
        metadata[EPISODE_INDEX] = self.episodes.columns[EPISODE_INDEX][number]
        if self.task == METADATA:
            path = _TASK if LANGUAGE_INSTRUCTION in metadata else LANGUAGE_INSTRUCTION
            metadata.setdefault(path, self.task_of(number))
        return metadata

    def task_of(self, number: int) -> bytes:
        """The task of an episode according to meta/episodes; "" if it has none."""
        tasks = self.episodes.tasks[number] if self.episodes.tasks else ()
        return tasks[0].encode(errors="backslashreplace") if tasks else b""


def read_dataset(root: Path, reading: Reading) -> Dataset:
    """Reads meta/; raises `SourceError` if it is missing, damaged or makes no sense."""
    info = read_info(root)
    if EPISODE_INDEX not in info.features:
        raise SourceError(f"{root}: meta/info.json: no feature {EPISODE_INDEX}, which every dataset of LeRobot has")
    episodes = read_episodes(info)
    tasks = read_tasks(info) if TASK_INDEX in info.features and reading.task != SKIP else {}
    features = {
        name: feature
        for name, feature in info.features.items()
        if (feature.kind != VIDEO or reading.videos != SKIP) and (reading.reserved or name not in _NOT_STEPS)
    }
    if not tasks:
        task = SKIP
    elif reading.task is not None:
        task = reading.task
    else:
        are_known = episodes.tasks is not None and not info.task_is_column
        task = METADATA if are_known and all(len(tasks) <= 1 for tasks in episodes.tasks or ()) else COLUMN
    return Dataset(info, episodes, tasks, task, reading, features)
