"""Minari's datasets as a source: stored columns of an episode become rows of RLDS (`rows.steps`).

| Minari | rows 0 to T - 1 | row T |
| --- | --- | --- |
| `observations` [T + 1] | observation | the final observation |
| `actions`, `rewards` [T] | action, reward | zeros |
| `terminations`, `truncations` [T] | | is_terminal: whether the last termination is True |
| `infos`, other groups, [T + 1] | as they are | as it is |
| the same, [T] | as they are | zeros |

| the last step is | read as |
| --- | --- |
| terminated, truncated or not | terminal |
| truncated only | not terminal |
| neither | not terminal; `no_end` counts it |
| both | terminal; `both_ends` counts it |
| followed by others | a broken episode |

| option | values | meaning |
| --- | --- | --- |
| `infos` | `keep`, `drop` | whether infos and further groups become columns; "keep" by default |
| `links` | `inside`, `follow` | whether links, of HDF5 and of the file system, to files outside of the dataset's folder are followed; "inside" by default |
| `spaces` | `told`, `stored` | `stored` takes shapes and dtypes from the files of a dataset that has no spaces |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episode import ACTION, METADATA, OBSERVATION, REWARD, STEP_FIELDS, Array, Notice, content_digest
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.features import Features, gathered, left_out_notices
from rlds2reverb.formats.minari.dataset import HDF5, Facts, data_folder, read_facts
from rlds2reverb.formats.minari.spaces import Leaf
from rlds2reverb.formats.minari.storage import (
    ACTIONS,
    OBSERVATIONS,
    REWARDS,
    TERMINATIONS,
    TRUNCATIONS,
    ArrowStorage,
    Episodes,
    HdfStorage,
    Images,
    Stored,
    StoredEpisode,
)
from rlds2reverb.formats.options import Parse, one_of, parted, unescaped
from rlds2reverb.formats.recordings import BrokenEpisode, Recording, Recordings, asked
from rlds2reverb.formats.rows import exactly, steps
from rlds2reverb.formats.source import Source
from rlds2reverb.identity import content_name
from rlds2reverb.images import decode_files
from rlds2reverb.specs import ArraySpec, ImageSpec, Nest, column_spec, same_dtype
from rlds2reverb.text import counted

_BOTH_ENDS, _NO_END, _CAST, _LEFT_OUT, _SPACE = "both_ends", "no_end", "cast", "left_out", "space"

_FIELDS = {OBSERVATION: OBSERVATIONS, ACTION: ACTIONS}
_TEXTS = {
    _BOTH_ENDS: "{episodes} both terminated and truncated; read as terminated",
    _NO_END: "{episodes} neither terminated nor truncated; read as truncated",
    _CAST: "{episodes} with another dtype than the others, or with whole numbers for rewards; cast, no value changed",
    _LEFT_OUT: "{episodes} with this group or info, which not every episode has as rows of numbers or texts; left out",
    _SPACE: "values are stored in another dtype or shape than the space says; read as they are stored",
}
_EPISODE_COUNT = "episode_count"
_MOST_TRIED = 32
"""Episodes that are looked at for the spec, until one can be read."""

_OPTIONS: dict[str, Parse] = {
    "infos": one_of(keep=True, drop=False),
    "links": one_of(inside=False, follow=True),
    "spaces": one_of(told=False, stored=True),
}
"""Beside those of every format with numbered episodes."""


@dataclass(frozen=True)
class Options:
    """How a dataset is read.

    Attributes:
      follow_links: whether links may lead out of its folder.
      others: whether infos and further groups become columns.
      stored_spaces: whether shapes and dtypes are taken from the files where the dataset has no spaces.
    """

    follow_links: bool = False
    others: bool = True
    stored_spaces: bool = False


def folder_of(text: str) -> Path:
    """The folder `data` of the dataset named after "minari:".

    Raises:
      SourceError: there is none.
    """
    return data_folder(unescaped(parted(text)[0]))


def open_minari(text: str) -> Source:
    """Opens the dataset named after "minari:".

    Raises:
      SourceError: no such dataset, it is damaged or none of Minari's, or an option makes no sense.
    """
    wanted = asked("minari", text, _OPTIONS)
    options = wanted.options
    how = Options(options.get("links", False), options.get("infos", True), options.get("spaces", False))
    return wanted.source_of(MinariRecordings(data_folder(wanted.text), wanted.name, how))


class MinariRecordings(Recordings):
    """The episodes of a dataset.

    Args:
      folder: its folder `data`.
      name: what people call it.
      options: how it is read.

    Raises:
      SourceError: it cannot be read.
    """

    def __init__(self, folder: Path, name: str, options: Options = Options()) -> None:
        facts = read_facts(folder, options.follow_links)
        self.name, self._facts, self._options = name, facts, options
        self._stored: Stored
        if facts.format == HDF5:
            self._stored = HdfStorage(facts)
        else:
            self._stored = ArrowStorage(facts)
        told = facts.episodes
        self._numbers = list(self._stored.numbers[:told])
        self._wanted = _Wanted(*_leaves(facts, options, self._stored, self._numbers), others=options.others)
        self._tally = _Tally(told, self._stored.numbers)

    @property
    def count(self) -> int:
        """How many episodes the files have, up to as many as the metadata tell."""
        return len(self._numbers)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What was found so far."""
        return self._tally.notices(self._features.left_out if "_features" in vars(self) else ())

    def length_of(self, number: int) -> int | None:
        """Its steps, and the row of the final observation."""
        steps = self.metadata_of(number).get("total_steps")
        return int(steps) + 1 if isinstance(steps, (int, np.integer)) and not isinstance(steps, bool) else None

    def spec(self) -> Nest:
        """As the first readable episode has it, with the spaces' bounds."""
        return dict(self._specs)

    def metadata_spec(self) -> Nest:
        """Of the features that all episodes have."""
        return dict(self._features.spec)

    def metadata_of(self, number: int) -> Mapping[str, Any]:
        """Every feature of an episode."""
        return self._features.of_each[number]

    def images(self) -> Mapping[str, ImageSpec]:
        """The colour images that are stored as JPEG."""
        return self._first[1] if self._numbers else {}

    def encoded(self, paths: Collection[str]) -> MinariRecordings:
        """The same with these images as their files."""
        other = MinariRecordings(self._facts.folder, self.name, self._options)
        other._wanted = replace(self._wanted, encoded=frozenset(paths))
        return other

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        """The episodes of these numbers."""
        with self._stored.opened() as episodes:
            for place in numbers:
                yield self._one(episodes, place)

    def _one(self, episodes: Episodes, place: int) -> Recording:
        number = self._numbers[place]
        kept = frozenset(path for path in self._first[1] if path.split("/")[0] == OBSERVATION)
        try:
            rows = _rows_of(episodes(number), replace(self._wanted, encoded=self._wanted.encoded | kept))
            if not kept:
                return Recording(self._columns(number, rows), self._features.common(place), str(number))
        except BrokenEpisode as broken:
            return Recording({}, name=str(number), faults=((broken.path, broken.why),))
        stored = {path: column for path, column in rows.columns.items() if path in self._specs}
        return Recording(
            lambda: self._columns(number, _with_pixels(rows, kept, self._wanted)),
            self._features.common(place),
            str(number),
            content=content_name(content_digest(stored)),
        )

    def _columns(self, number: int, rows: _Rows) -> Mapping[str, Array]:
        """The rows as all episodes have them.

        Raises:
          BrokenEpisode: they are not.
        """
        rows = _conforming(rows, self._specs)
        self._tally.note(number, rows.notes)
        return rows.columns

    @cached_property
    def _features(self) -> Features:
        told = dict(zip(self._stored.numbers, self._stored.metadata()))
        return gathered(told[number] or None for number in self._numbers)

    @property
    def _specs(self) -> Mapping[str, ArraySpec]:
        return self._first[0]

    @cached_property
    def _first(self) -> tuple[Mapping[str, ArraySpec], Mapping[str, ImageSpec]]:
        """Specs and images of the first readable episode."""
        why = f"{self.name}: has no episodes, so what they hold is not known"
        with self._stored.opened() as episodes:
            for number in self._numbers[:_MOST_TRIED]:
                try:
                    rows = _rows_of(episodes(number), self._wanted)
                except BrokenEpisode as broken:
                    why = f"{self.name}: none of the first episodes can be read; the last: {broken.why}"
                    continue
                specs, notes = _specs_of(rows, self._wanted)
                self._tally.note(number, notes)
                return specs, rows.jpeg
        raise SourceError(why)


def _leaves(
    facts: Facts, options: Options, stored: Stored, numbers: Sequence[int]
) -> tuple[tuple[Leaf, ...], tuple[Leaf, ...]]:
    if facts.observation is not None and facts.action is not None:
        return facts.observation, facts.action
    if not options.stored_spaces or not isinstance(stored, HdfStorage):
        raise SourceError(
            f"{facts.folder}: has no spaces, as before Minari 0.4 and in its combinations: they are those of the environment; "
            "add spaces=stored behind the name to take shapes and dtypes as the HDF5 files have them"
        )
    if not numbers:
        raise SourceError(f"{facts.folder}: has neither spaces nor episodes")
    try:
        return (
            facts.observation or stored.leaves(numbers[0], OBSERVATIONS),
            facts.action or stored.leaves(numbers[0], ACTIONS),
        )
    except BrokenEpisode as broken:
        raise SourceError(f"{facts.folder}: spaces=stored: {broken.why}") from broken


@dataclass(frozen=True)
class _Wanted:
    """What is read of each episode.

    Attributes:
      observation, action: the leaves.
      others: whether infos and further groups become columns.
      encoded: paths of images that stay JPEG files.
    """

    observation: tuple[Leaf, ...]
    action: tuple[Leaf, ...]
    others: bool = True
    encoded: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class _Rows:
    """An episode in RLDS' alignment.

    Attributes:
      columns: path -> [T + 1, ...].
      jpeg: path -> what its files decode to, of the image columns that are stored as JPEG.
      notes: what notices tell: (code, path).
    """

    columns: Mapping[str, Array]
    jpeg: Mapping[str, ImageSpec] = field(default_factory=dict)
    notes: frozenset[tuple[str, str]] = frozenset()


def _rows_of(stored: StoredEpisode, wanted: _Wanted) -> _Rows:
    """The rows of an episode.

    Raises:
      BrokenEpisode: it cannot be read, or makes no sense.
      SourceError: libraries for its images are missing.
    """
    notes: set[tuple[str, str]] = set()
    jpeg: dict[str, ImageSpec] = {}
    reward = _reward(stored.plain(REWARDS), notes)
    actions = len(reward)
    read = partial(_leaf, stored, wanted, jpeg)
    observation = {leaf.path: read(OBSERVATION, leaf, actions + 1) for leaf in wanted.observation}
    action = {leaf.path: read(ACTION, leaf, actions) for leaf in wanted.action}
    is_terminal = _end(stored, actions, notes)
    others = _others(stored, actions, notes) if wanted.others else {}
    return _Rows(steps(observation, action, reward, is_terminal, others), jpeg, frozenset(notes))


def _specs_of(rows: _Rows, wanted: _Wanted) -> tuple[dict[str, ArraySpec], frozenset[tuple[str, str]]]:
    """Path -> spec as this episode has it, with the spaces' bounds; and where it is not as the spaces say."""
    specs = {path: column_spec(column) for path, column in rows.columns.items()}
    notes = set()
    for name, leaves in ((OBSERVATION, wanted.observation), (ACTION, wanted.action)):
        for leaf in leaves:
            path = _path(name, leaf)
            if path in wanted.encoded and path in rows.jpeg:
                specs[path] = ArraySpec.of_images(rows.jpeg[path])
            elif specs[path] == leaf.spec:
                specs[path] = leaf.spec
            else:
                notes.add((_SPACE, path))
    return specs, frozenset(notes)


def _conforming(rows: _Rows, specs: Mapping[str, ArraySpec]) -> _Rows:
    """The rows with the columns of the dataset; numbers of another dtype are cast where no value changes.

    Raises:
      BrokenEpisode: a column is missing, or has another shape or dtype.
    """
    notes = set(rows.notes)
    columns = {}
    for path, spec in specs.items():
        column = rows.columns.get(path)
        if column is None:
            raise BrokenEpisode(path, f"{path}: other episodes have this column, this one has not{_way_out(path)}")
        found = column_spec(column)
        if found.shape != spec.shape:
            raise BrokenEpisode(path, f"{path}: expected {spec}, as in other episodes; found {found}{_way_out(path)}")
        if not same_dtype(found.dtype, spec.dtype):
            column = _cast(path, column, spec)
            notes.add((_CAST, path))
        columns[path] = column
    notes |= {(_LEFT_OUT, path) for path in rows.columns.keys() - specs.keys()}
    return replace(rows, columns=columns, notes=frozenset(notes))


def _leaf(
    stored: StoredEpisode, wanted: _Wanted, jpeg: dict[str, ImageSpec], column: str, leaf: Leaf, rows: int
) -> Array:
    found, path = stored.leaf(_FIELDS[column], leaf, rows), _path(column, leaf)
    if not isinstance(found, Images):
        return _checked(found, path)
    height, width, *channels = leaf.spec.shape
    shape = (height, width, channels[0] if channels else 1)
    if channels:
        jpeg[path] = ImageSpec(shape, leaf.spec.dtype, "jpeg", is_accurate=True)
    if path in wanted.encoded:
        return _as_objects(found.files)
    return _decoded(found.files, leaf, path)


def _decoded(files: Sequence[bytes], leaf: Leaf, path: str) -> Array:
    """[T, ...] pixels."""
    height, width, *channels = leaf.spec.shape
    try:
        feature = ImageSpec((height, width, channels[0] if channels else 1), leaf.spec.dtype)
        return decode_files(feature, files, path, exact=True).reshape(len(files), *leaf.spec.shape)
    except SourceError as error:
        if isinstance(error.__cause__, ModuleNotFoundError):
            raise
        raise BrokenEpisode(path, str(error)) from error


def _with_pixels(rows: _Rows, kept: Collection[str], wanted: _Wanted) -> _Rows:
    """The rows that were read with images as files, as `wanted` has them.

    Args:
      rows: of an episode.
      kept: paths of observations whose images were left as files.
      wanted: what is read.

    Raises:
      BrokenEpisode: a file is no such image.
    """
    columns = dict(rows.columns)
    for leaf in wanted.observation:
        path = _path(OBSERVATION, leaf)
        if path in kept and path in rows.jpeg and path not in wanted.encoded:
            columns[path] = _decoded(list(columns[path]), leaf, path)
    return replace(rows, columns=columns)


def _path(column: str, leaf: Leaf) -> str:
    return f"{column}/{leaf.path}" if leaf.keys else column


def _as_objects(values: list[bytes]) -> Array:
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _checked(column: Array, path: str) -> Array:
    """The column; refuses objects other than texts, and dtypes that Reverb's protocol lacks."""
    if column.dtype.kind == "O" and not set(map(type, column.ravel())) <= {bytes}:
        raise BrokenEpisode(
            path, f"{path}: expected numbers or texts, found {sorted({type(one).__name__ for one in column.ravel()})}"
        )
    return column


def _reward(rewards: Array, notes: set[tuple[str, str]]) -> Array:
    """[T]; whole numbers become float64, because an environment may return them by chance."""
    if rewards.ndim != 1 or rewards.dtype.kind not in "biuf":
        raise BrokenEpisode(REWARD, f"{REWARDS}: expected a number per step, found {column_spec(rewards)}")
    if rewards.dtype.kind == "f":
        return rewards
    notes.add((_CAST, REWARD))
    return _cast(
        REWARD, rewards.astype(np.int8) if rewards.dtype == bool else rewards, ArraySpec((), np.dtype(np.float64))
    )


def _end(stored: StoredEpisode, actions: int, notes: set[tuple[str, str]]) -> bool:
    terminations, truncations = (_flags(stored, name, actions) for name in (TERMINATIONS, TRUNCATIONS))
    for name, ends in ((TERMINATIONS, terminations), (TRUNCATIONS, truncations)):
        if ends[:-1].any():
            raise BrokenEpisode(
                "", f"{name}: True at step {int(np.argmax(ends))} of {actions:,}; expected it at the last only"
            )
    if not actions:
        return False
    terminated, truncated = bool(terminations[-1]), bool(truncations[-1])
    if terminated == truncated:
        notes.add((_BOTH_ENDS if terminated else _NO_END, ""))
    return terminated


def _flags(stored: StoredEpisode, name: str, actions: int) -> Array:
    flags = stored.plain(name)
    if flags.shape != (actions,) or flags.dtype.kind not in "biu":
        raise BrokenEpisode(
            "",
            f"{name}: expected {actions:,} flags, as there are rewards; found {column_spec(flags)} times {len(flags):,}",
        )
    return np.asarray(flags != 0)


def _others(stored: StoredEpisode, actions: int, notes: set[tuple[str, str]]) -> dict[str, Array]:
    """Infos and further groups that are as long as the episode."""
    found = {}
    for path, column in stored.others():
        clashes = path.split("/")[0] in (*STEP_FIELDS, METADATA)
        if column is None or clashes or len(column) not in (actions, actions + 1):
            notes.add((_LEFT_OUT, path))
        else:
            found[path] = _checked(column, path)
    return found


def _cast(path: str, column: Array, spec: ArraySpec) -> Array:
    """The column in another dtype.

    Raises:
      BrokenEpisode: a value would change.
    """
    made = exactly(column, spec.dtype)
    if made is not None:
        return made
    raise BrokenEpisode(
        path,
        f"{path}: expected {spec}, as in other episodes; found {column_spec(column)}, whose values {spec.dtype} does not hold exactly",
    )


def _way_out(path: str) -> str:
    return (
        "" if path.split("/")[0] in STEP_FIELDS else "; infos=drop leaves out all but observations, actions and rewards"
    )


class _Tally:
    """Which episodes each notice is about.

    Args:
      told: how many episodes the metadata tell; None when they do not.
      numbers: those of the files' episodes, ascending.
    """

    def __init__(self, told: int | None, numbers: Sequence[int]) -> None:
        self._told, self._found = told, len(numbers)
        self._gap = next((at for at, number in enumerate(numbers) if at != number), None)
        self._episodes: dict[tuple[str, str], set[int]] = {}

    def note(self, number: int, notes: Iterable[tuple[str, str]]) -> None:
        """Records what was found in an episode, as (code, path) pairs."""
        for key in notes:
            self._episodes.setdefault(key, set()).add(number)

    def notices(self, features: Collection[str]) -> tuple[Notice, ...]:
        """The notices so far; `features` are the metadata features that some episodes lack."""
        return (*self._of_count(), *left_out_notices(features), *self._of_episodes())

    def _of_count(self) -> Iterable[Notice]:
        if self._gap is not None:
            text = f"there is no episode {self._gap:,}, and there are some behind it, which Minari itself does not find; they are read"
            yield Notice(_EPISODE_COUNT, text)
        if self._told is not None and self._told != self._found:
            read = min(self._told, self._found)
            text = (
                f"the metadata tell {counted(self._told, 'episode')}, the files have {self._found:,}; {read:,} are read"
            )
            yield Notice(_EPISODE_COUNT, text, abs(self._told - self._found))

    def _of_episodes(self) -> Iterable[Notice]:
        for (code, path), numbers in sorted(dict(self._episodes).items()):
            text = _TEXTS[code].format(episodes=counted(len(numbers), "episode"))
            yield Notice(code, text, len(numbers), path)
