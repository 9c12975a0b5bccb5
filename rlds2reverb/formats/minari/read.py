"""Minari's datasets as a source: stored columns of an episode become rows of RLDS (`rows.steps`); the options are in docs/formats/minari.md.

Minari records the final observation, so [T + 1] observations and infos are rows as they are; [T] actions and rewards get a row of zeros. A last step
that is terminated is terminal, truncated or not; one that is neither is read as truncated. An end before the last step is a broken episode.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episode import (
    ACTION,
    METADATA,
    OBSERVATION,
    REWARD,
    STEP_FIELDS,
    Array,
    Notice,
    content_digest,
    content_name,
    is_under,
)
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.agreement import (
    EVERY,
    SPEC_OPTIONS,
    NoSpecFrom,
    SpecFrom,
    agree,
    look_at,
    most_alike,
    promote,
    spread,
)
from rlds2reverb.formats.buckets import canonical, path_of
from rlds2reverb.formats.features import Features, gathered, left_out_notices
from rlds2reverb.formats.minari.dataset import HDF5, MinariFacts, data_folder, read_facts
from rlds2reverb.formats.minari.remote import version_behind
from rlds2reverb.formats.minari.spaces import Leaf
from rlds2reverb.formats.minari.storage import (
    ACTIONS,
    INFOS,
    OBSERVATIONS,
    REWARDS,
    TERMINATIONS,
    TRUNCATIONS,
    ArrowStorage,
    Episodes,
    HdfStorage,
    JpegFiles,
    Stored,
    StoredEpisode,
)
from rlds2reverb.formats.options import Parse, one_of, some_text
from rlds2reverb.formats.recordings import BrokenEpisode, Recording, Recordings, parse_source_name, read_each
from rlds2reverb.formats.rows import exactly, steps, unread_of
from rlds2reverb.formats.source import About, Source
from rlds2reverb.images import decode_files
from rlds2reverb.specs import JPEG, ArraySpec, ImageSpec, Nest, column_spec, same_dtype
from rlds2reverb.text import counted

_BOTH_ENDS, _NO_END, _CAST, _LEFT_OUT, _SPACE = "both_ends", "no_end", "cast", "left_out", "space"
_JPEG_VALUES, _EPISODE_LENGTH = "jpeg_values", "episode_length"

_FIELDS = {OBSERVATION: OBSERVATIONS, ACTION: ACTIONS}
_COLUMNS = {field: column for column, field in _FIELDS.items()}
_TEXTS = {
    _BOTH_ENDS: "{episodes} both terminated and truncated; read as terminated",
    _NO_END: "{episodes} neither terminated nor truncated; read as truncated",
    _CAST: "{episodes} with another dtype than the others, or with whole numbers for rewards; cast, no value changed",
    _LEFT_OUT: "{episodes} with this group or info, which not every episode has as rows of numbers or texts; left out",
    _JPEG_VALUES: "{episodes} whose values are stored as JPEG images, as Minari 0.5.3 stores small uint8 arrays; decoded, but JPEG has changed them, in small grids by up to 30 of 255 levels; Minari 0.5.4 records them as they are",
    _EPISODE_LENGTH: "{episodes} with more or fewer steps than total_steps says; read as the files have them",
    _SPACE: "values are stored in another dtype or shape than the space says; read as they are stored",
}
_EPISODE_COUNT = "episode_count"

_OPTIONS: dict[str, Parse] = {
    "infos": one_of(keep=True, drop=False),
    "spaces": one_of(declared=False, stored=True),
    "remote": some_text,
    **SPEC_OPTIONS,
}


@dataclass(frozen=True)
class MinariOptions:
    others: bool = True
    stored_spaces: bool = False
    spec_from: SpecFrom = EVERY


def folder_of(text: str) -> Path:
    """The folder `data` of the dataset named after "minari:"; raises `SourceError` if there is none."""
    request = parse_source_name("minari", text, _OPTIONS)
    return data_folder(request.text, request.options.get("remote"), fetches=False)


def open_minari(text: str) -> Source:
    """Opens the dataset named after "minari:".

    Raises:
      SourceError: there is no such dataset, it is damaged or not Minari's, or an option makes no sense.
    """
    request = parse_source_name("minari", text, _OPTIONS)
    chosen = request.rename_options({"infos": "others", "spaces": "stored_spaces"})
    folder = data_folder(request.text, chosen.pop("remote", None))
    options = MinariOptions(**chosen)
    # The newest version of an id without one: the source is named by it, so that a later version is another source.
    name, head = request.name, len("minari:") + len(request.place)
    if version := version_behind(request.text, folder.parent.name):
        name = f"{name[:head]}{version}{name[head:]}"
    # Whoever names a link means where it leads; a link that lies in a dataset's folder may not lead out of it.
    is_named = folder.is_symlink() and str(folder) == str(path_of(request.text))
    files = request.files.pin(folder, boundary=None if is_named else folder.parent)
    return request.make_source(MinariRecordings(files, name, options), canonical(folder) if version else "")


class MinariRecordings(Recordings):
    def __init__(
        self, folder: Path, name: str, options: MinariOptions = MinariOptions(), encoded: Collection[str] = frozenset()
    ) -> None:
        facts = read_facts(folder)
        self.name, self._facts, self._options, self._encoded = name, facts, options, encoded
        if facts.format == HDF5:
            self._stored: Stored = HdfStorage(facts)
        else:
            self._stored = ArrowStorage(facts)
        self._numbers = list(self._stored.numbers[: facts.episodes])
        self._chosen: Sequence[int] | None = None
        self._tally = _Tally(facts.episodes, self._stored.numbers)
        self._lacking: frozenset[str] = frozenset()
        self._unread: frozenset[str] = frozenset()

    @cached_property
    def about(self) -> About:
        declared = zip((OBSERVATION, ACTION), (self._facts.observation, self._facts.action))
        spaces = {_path(name, leaf): leaf.space for name, leaves in declared for leaf in leaves or ()}
        return About.of("minari", self._facts.about, spaces, self._facts.own)

    def choose(self, numbers: Sequence[int] | None) -> None:
        self._chosen = numbers
        _ = self._fields

    @property
    def _places(self) -> Sequence[int]:
        return range(len(self._numbers)) if self._chosen is None else self._chosen

    @cached_property
    def _fields(self) -> tuple[tuple[Leaf, ...], tuple[Leaf, ...]]:
        """The leaves of observations and actions: declared, or those of most of the chosen episodes."""
        return _find_leaves(self._facts, self._options, self._stored, [self._numbers[place] for place in self._places])

    @property
    def count(self) -> int:
        return len(self._numbers)

    @property
    def notices(self) -> tuple[Notice, ...]:
        tallied = tuple(self._tally.notices(self._features.left_out if "_features" in vars(self) else ()))
        reported = {(notice.code, notice.path) for notice in tallied}
        looks = self._common.notices if "_common" in vars(self) else ()
        return (*tallied, *(notice for notice in looks if (notice.code, notice.path) not in reported))

    def length_of(self, number: int) -> int | None:
        """The steps, and the row of the final observation."""
        steps = self.metadata_of(number).get("total_steps")
        return int(steps) + 1 if isinstance(steps, (int, np.integer)) and not isinstance(steps, bool) else None

    def spec(self) -> Nest:
        return dict(self._specs)

    def metadata_spec(self) -> Nest:
        return dict(self._features.spec)

    def metadata_of(self, number: int) -> Mapping[str, Any]:
        return self._features.of_each[number]

    def images(self) -> Mapping[str, ImageSpec]:
        """The colour images of observations that are stored as JPEG."""
        return {path: _image_of(leaf) for path, leaf in self._common.jpeg.items()} if self._numbers else {}

    def encoded(self, paths: Collection[str]) -> MinariRecordings:
        recordings = MinariRecordings(self._facts.folder, self.name, self._options, paths)
        recordings._chosen = self._chosen
        return recordings

    def without(self, paths: Collection[str]) -> MinariRecordings:
        unread = unread_of(paths, self._specs)
        fewer = copy.copy(self)  # with the specs, which are found once
        fewer._lacking, fewer._unread = frozenset(paths), unread
        return fewer

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        unread = [
            (_FIELDS[column], *leaf.fields)
            for column, leaves in zip((OBSERVATION, ACTION), self._fields)
            for leaf in leaves
            if _path(column, leaf) in self._unread
        ]
        unread += [tuple(path.split("/")) for path in self._unread if is_under(path, INFOS)]
        with self._stored.open_episodes(unread) as episodes:
            yield from read_each(partial(self._read_one, episodes), numbers, lambda place: str(self._numbers[place]))

    def _read_one(self, episodes: Episodes, place: int) -> Recording:
        number, name = self._numbers[place], str(self._numbers[place])
        metadata = self._features.common(place)
        rows = self._read_rows(episodes(number), self._unread)
        if self.length_of(place) not in (None, len(rows.columns[REWARD])):
            self._tally.note(number, [(_EPISODE_LENGTH, "")])
        if not rows.jpeg:
            return Recording(self._columns(number, rows), metadata, name)
        # Named by its files: decoders of JPEG differ by a few levels, and the name must not.
        stored = {
            path: column for path, column in rows.columns.items() if path in self._specs and path not in self._lacking
        }
        name_by_files = content_name(content_digest(stored))
        return Recording(lambda: self._columns(number, rows), metadata, name, content=name_by_files)

    def _columns(self, number: int, rows: _EpisodeRows) -> Mapping[str, Array]:
        """The columns that all episodes have; raises `BrokenEpisode` if the rows do not match them."""
        rows = _conform(rows.decode(self._encoded), self._read_specs)
        self._tally.note(number, rows.notes)
        return rows.columns

    @cached_property
    def _features(self) -> Features:
        stored = dict(zip(self._stored.numbers, self._stored.metadata()))
        return gathered(stored[number] or None for number in self._numbers)

    @property
    def _specs(self) -> Mapping[str, ArraySpec]:
        return self._common.specs

    @property
    def _read_specs(self) -> Mapping[str, ArraySpec]:
        return {path: spec for path, spec in self._specs.items() if path not in self._unread}

    @cached_property
    def _common(self) -> _Common:
        """What the chosen episodes have in common (`agreement`)."""
        with self._stored.open_episodes() as episodes:
            looks = self._looks(episodes)
        for place, rows in looks.items():
            self._tally.note(self._numbers[place], rows.notes)
        agreement = agree(
            {place: self._specs_of(rows) for place, rows in looks.items()}, self._options.spec_from, _join
        )
        specs = dict(agreement.specs)
        jpeg = {path: leaf for rows in looks.values() for path, leaf in rows.jpeg.items()}
        for rows in looks.values():  # some episodes may have the pixels
            jpeg = {path: leaf for path, leaf in jpeg.items() if path in rows.jpeg or path not in rows.columns}
        for path, leaf in self._leaves.items():
            if specs.get(path) == leaf.spec:
                specs[path] = leaf.spec  # with its bounds
            elif path in specs and specs[path].image is None:
                self._tally.note(self._numbers[min(looks)], [(_SPACE, path)])
        return _Common(specs, jpeg, agreement.notices)

    def _looks(self, episodes: Episodes) -> Mapping[int, _EpisodeRows]:
        """Some episodes, by place. Where a column is damaged in all, those without what a space declares: it may be left out."""

        def look(place: int) -> _EpisodeRows:
            return self._read_rows(episodes(self._numbers[place]))

        def nbytes(rows: _EpisodeRows) -> int:
            return sum(column.nbytes for column in rows.columns.values())

        try:
            return look_at(self._places, look, self.name, self._options.spec_from, nbytes=nbytes, count=self.count)
        except NoSpecFrom:
            raise
        except SourceError as error:
            for place in spread(self._places):
                if (readable := self._readable(episodes, self._numbers[place])) is not None:
                    return {place: readable}
            raise SourceError(f"{self.name}: none of the episodes looked at can be read: {error}") from error

    @property
    def _leaves(self) -> dict[str, Leaf]:
        """Path of a column -> the leaf of a space that it holds."""
        return {_path(name, leaf): leaf for name, leaves in zip((OBSERVATION, ACTION), self._fields) for leaf in leaves}

    def _readable(self, episodes: Episodes, number: int) -> _EpisodeRows | None:
        """The rows of an episode without those columns that a space declares and that cannot be read. None if others cannot."""
        unread: frozenset[str] = frozenset()
        while True:
            try:
                return self._read_rows(episodes(number), unread)
            except BrokenEpisode as broken:
                field, slash, below = broken.path.partition("/")
                path = f"{_COLUMNS.get(field, field)}{slash}{below}"
                if path in unread or path not in self._leaves:
                    return None
                unread |= {path}

    def _specs_of(self, rows: _EpisodeRows) -> dict[str, ArraySpec]:
        """Path -> spec of this episode's columns, of images after decoding; of columns that cannot be read, as a space declares it."""
        specs = {path: leaf.spec for path, leaf in self._leaves.items() if path not in rows.columns}
        specs |= {path: column_spec(column) for path, column in rows.columns.items()}
        for path, leaf in rows.jpeg.items():
            is_kept = path in self._encoded
            specs[path] = (
                ArraySpec.of_images(_image_of(leaf)) if is_kept else ArraySpec(leaf.spec.shape, leaf.spec.dtype)
            )
        return specs

    def _read_rows(self, stored: StoredEpisode, unread: Collection[str] = ()) -> _EpisodeRows:
        """The rows of an episode. Raises `BrokenEpisode`, or `SourceError` if libraries for its images are missing."""
        notes: set[tuple[str, str]] = set()
        jpeg: dict[str, Leaf] = {}
        reward = stored.plain(REWARDS)
        if reward.ndim != 1 or reward.dtype.kind not in "biuf":
            raise BrokenEpisode(REWARD, f"{REWARDS}: expected a number per step, found {column_spec(reward)}")
        # An environment may return whole numbers in one episode and others in the next; floats hold both.
        if reward.dtype.kind != "f":
            notes.add((_CAST, REWARD))
            whole = reward.astype(np.int8) if reward.dtype == bool else reward
            reward = _cast(REWARD, whole, ArraySpec((), np.dtype(np.float64)))
        actions = len(reward)
        observed, acted = self._fields
        observation = {
            leaf.path: _read_leaf(stored, OBSERVATION, leaf, actions + 1, jpeg, notes)
            for leaf in observed
            if _path(OBSERVATION, leaf) not in unread
        }
        action = {
            leaf.path: _read_leaf(stored, ACTION, leaf, actions, {}, notes)
            for leaf in acted
            if _path(ACTION, leaf) not in unread
        }
        is_terminal = _read_end(stored, actions, notes)
        other_columns: dict[str, Array] = {}
        for path, held in stored.others(unread) if self._options.others else ():
            clashes = path.split("/")[0] in (*STEP_FIELDS, METADATA)
            if isinstance(held, JpegFiles):
                column: Array | None = _decode_values(held.files, path)
                notes.add((_JPEG_VALUES, path))
            else:
                column = held
            if column is None or clashes or len(column) not in (actions, actions + 1):
                notes.add((_LEFT_OUT, path))
            else:
                other_columns[path] = _check_column(column, path)
        return _EpisodeRows(steps(observation, action, reward, is_terminal, other_columns), jpeg, frozenset(notes))


def _find_leaves(
    facts: MinariFacts, options: MinariOptions, stored: Stored, numbers: Sequence[int]
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
    return (
        facts.observation or _find_stored_leaves(stored, numbers, OBSERVATIONS),
        facts.action or _find_stored_leaves(stored, numbers, ACTIONS),
    )


def _find_stored_leaves(stored: HdfStorage, numbers: Sequence[int], field: str) -> tuple[Leaf, ...]:
    """The leaves that most episodes have."""
    looks = look_at(numbers, lambda number: stored.leaves(number, field), "spaces=stored")
    return looks[most_alike({number: {leaf.path: leaf.spec for leaf in leaves} for number, leaves in looks.items()})]


def _join(path: str, specs: Sequence[ArraySpec]) -> ArraySpec | None:
    """Numbers of another dtype are cast where no value changes: to that of most, or to floats, where infos are whole numbers by chance."""
    if any(spec.shape != specs[0].shape or spec.dtype.kind not in "iuf" for spec in specs):
        return None
    return (None if path.split("/")[0] in STEP_FIELDS else promote(path, specs)) or specs[0]


@dataclass(frozen=True, eq=False)
class _Common:
    """What episodes have in common: path -> spec; the leaves of images that are JPEG files; and notices of what only some have."""

    specs: Mapping[str, ArraySpec]
    jpeg: Mapping[str, Leaf]
    notices: tuple[Notice, ...]


@dataclass(frozen=True, eq=False)
class _EpisodeRows:
    """An episode in RLDS' alignment: columns of T + 1 rows, the leaves of columns that are JPEG files, and notes, (code, path)."""

    columns: Mapping[str, Array]
    jpeg: Mapping[str, Leaf]
    notes: frozenset[tuple[str, str]]

    def decode(self, encoded: Collection[str]) -> _EpisodeRows:
        """The same rows with the pixels of all images but the `encoded` ones."""
        pixels = {
            path: _decode_leaf(self.columns[path].tolist(), leaf, path)
            for path, leaf in self.jpeg.items()
            if path not in encoded
        }
        return replace(self, columns={**self.columns, **pixels})


def _conform(rows: _EpisodeRows, specs: Mapping[str, ArraySpec]) -> _EpisodeRows:
    """The rows with the columns of the dataset; numbers of another dtype are cast if no value changes. Raises `BrokenEpisode`."""
    notes = set(rows.notes)
    columns = {}
    for path, spec in specs.items():
        column = rows.columns.get(path)
        if column is None:
            raise BrokenEpisode(path, f"{path}: other episodes have this column, this one has not{_way_out(path)}")
        recorded = column_spec(column)
        if recorded.shape != spec.shape:
            raise BrokenEpisode(
                path, f"{path}: expected {spec}, as in other episodes; found {recorded}{_way_out(path)}"
            )
        if not same_dtype(recorded.dtype, spec.dtype):
            column = _cast(path, column, spec)
            notes.add((_CAST, path))
        columns[path] = column
    notes |= {(_LEFT_OUT, path) for path in rows.columns.keys() - specs.keys()}
    return replace(rows, columns=columns, notes=frozenset(notes))


def _read_leaf(
    stored: StoredEpisode, column: str, leaf: Leaf, rows: int, jpeg: dict[str, Leaf], notes: set[tuple[str, str]]
) -> Array:
    """The column of a leaf. Colour images of observations stay files, and are added to `jpeg`."""
    values, path = stored.leaf(_FIELDS[column], leaf, rows), _path(column, leaf)
    if not isinstance(values, JpegFiles):
        return _check_column(values, path)
    if not leaf.is_image:
        notes.add((_JPEG_VALUES, path))
    elif column == OBSERVATION and len(leaf.spec.shape) == 3:
        jpeg[path] = leaf
        return np.array(values.files, object)
    return _decode_leaf(values.files, leaf, path)


def _image_of(leaf: Leaf) -> ImageSpec:
    height, width, *channels = (*leaf.spec.shape, 1) if len(leaf.spec.shape) == 1 else leaf.spec.shape
    return ImageSpec((height, width, channels[0] if channels else 1), leaf.spec.dtype, JPEG, is_accurate=True)


def _decode(image: ImageSpec, files: Sequence[bytes], path: str) -> Array:
    """Raises `BrokenEpisode` for damaged files, and `SourceError` without a library that decodes."""
    try:
        return decode_files(image, files, path, exact=True)
    except SourceError as error:
        if isinstance(error.__cause__, ModuleNotFoundError):
            raise
        raise BrokenEpisode(path, str(error)) from error


def _decode_values(files: Sequence[bytes], path: str) -> Array:
    """[n, height], [n, height, width] or [n, height, width, 3] of files whose shape nothing declares; a row of numbers is an image of width 1."""
    pixels = _decode(ImageSpec((None, None, None), np.dtype(np.uint8), JPEG), files, path)
    if pixels.shape[-1] == 1:
        pixels = pixels[..., 0]
        return pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    return pixels


def _decode_leaf(files: Sequence[bytes], leaf: Leaf, path: str) -> Array:
    return _decode(_image_of(leaf), files, path).reshape(len(files), *leaf.spec.shape)


def _path(column: str, leaf: Leaf) -> str:
    return f"{column}/{leaf.path}" if leaf.keys else column


def _check_column(column: Array, path: str) -> Array:
    """The column; refuses objects other than texts, and dtypes that Reverb's protocol lacks."""
    kinds = set(map(type, column.ravel())) if column.dtype.kind == "O" else set()
    if not kinds <= {bytes}:
        raise BrokenEpisode(path, f"{path}: expected numbers or texts, found {sorted(kind.__name__ for kind in kinds)}")
    return column


def _read_end(stored: StoredEpisode, actions: int, notes: set[tuple[str, str]]) -> bool:
    flags: dict[str, Array] = {}
    for name in (TERMINATIONS, TRUNCATIONS):
        column = stored.plain(name)
        if column.shape != (actions,) or column.dtype.kind not in "biu":
            raise BrokenEpisode(
                "",
                f"{name}: expected {actions:,} flags, as there are rewards; found {column_spec(column)} times {len(column):,}",
            )
        flags[name] = column != 0
    for name, ends in flags.items():
        if ends[:-1].any():
            raise BrokenEpisode(
                "", f"{name}: True at step {int(np.argmax(ends))} of {actions:,}; expected it at the last only"
            )
    if not actions:
        return False
    terminated, truncated = (bool(ends[-1]) for ends in flags.values())
    if terminated == truncated:
        notes.add((_BOTH_ENDS if terminated else _NO_END, ""))
    return terminated


def _cast(path: str, column: Array, spec: ArraySpec) -> Array:
    """The column in another dtype; raises `BrokenEpisode` if a value would change."""
    cast = exactly(column, spec.dtype)
    if cast is not None:
        return cast
    raise BrokenEpisode(
        path,
        f"{path}: expected {spec}, as in other episodes; found {column_spec(column)}, whose values {spec.dtype} does not hold exactly",
    )


def _way_out(path: str) -> str:
    return (
        "" if path.split("/")[0] in STEP_FIELDS else "; infos=drop leaves out all but observations, actions and rewards"
    )


class _Tally:
    """The episodes that each notice is about; `numbers` are those of the files' episodes, ascending."""

    def __init__(self, recorded: int | None, numbers: Sequence[int]) -> None:
        self._recorded, self._in_files = recorded, len(numbers)
        self._gap = next((at for at, number in enumerate(numbers) if at != number), None)
        self._episodes: dict[tuple[str, str], set[int]] = {}

    def note(self, number: int, notes: Iterable[tuple[str, str]]) -> None:
        for key in notes:
            self._episodes.setdefault(key, set()).add(number)

    def notices(self, features: Collection[str]) -> Iterator[Notice]:
        """The notices so far; `features` are the metadata features that some episodes lack."""
        recorded, in_files = self._recorded, self._in_files
        if self._gap is not None:
            text = f"there is no episode {self._gap:,}, and there are some behind it, which Minari itself does not find; they are read"
            yield Notice(_EPISODE_COUNT, text)
        if recorded is not None and recorded != in_files:
            read = min(recorded, in_files)
            text = f"the metadata have {counted(recorded, 'episode')}, the files {in_files:,}; {read:,} are read"
            yield Notice(_EPISODE_COUNT, text, abs(recorded - in_files))
        yield from left_out_notices(features)
        for (code, path), numbers in sorted(dict(self._episodes).items()):  # a copy: another thread may read ahead
            text = _TEXTS[code].format(episodes=counted(len(numbers), "episode"))
            yield Notice(code, text, len(numbers), path)
