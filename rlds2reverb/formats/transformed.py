"""Episodes with the columns that a transform makes (`Transformed`): a recipe for each column, made of the spec before an episode is read, then applied to
every episode of a source.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import numpy as np

from rlds2reverb import images
from rlds2reverb.encoding import Encoding, check_encoding_library, encode_again, encode_images
from rlds2reverb.episode import (
    ACTION,
    DISCOUNT,
    FLAGS,
    IS_FIRST,
    IS_LAST,
    REWARD,
    Array,
    Episode,
    KnownEpisode,
    Notice,
    is_run,
    is_under,
    repeats_row_before,
)
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats.expressions import Call, Column, Expression, Part, Specs, Unusable, no_column
from rlds2reverb.formats.last_step import decides_last_row, has_added_row
from rlds2reverb.formats.operations import EpisodeRows
from rlds2reverb.formats.rows import zero_row
from rlds2reverb.formats.source import ALL, About, IsKnown, Source, Tally, Wrapper, checked_spec
from rlds2reverb.formats.transform import SHIFT, Transform, transform_error
from rlds2reverb.images import Size
from rlds2reverb.specs import (
    IMAGE_DTYPES,
    ArraySpec,
    ImageSpec,
    Nest,
    column_spec,
    dtype_name,
    flatten,
    nested,
    same_dtype,
    shape_fits,
)
from rlds2reverb.text import counted

# A transform and a step spec -> the recipe of each new column; checked here, before an episode is read.
#
# | operation | refused |
# | --- | --- |
# | make, action | a column that is not there, or is none that an operation takes (`expressions`) |
# | select, drop | a pattern that no column matches; flags `is_first` and `is_last` cannot be dropped |
# | resize | a column that is no image: not uint8, uint16 or float32 of [height, width, channels], and no image files that `encode` makes anew |
# | encode | a path at which no image is that such files can hold |
# | rename | a name that is none of the columns left; two columns of one name; a column with the name of a nest |

ALWAYS_SELECTED = (REWARD, DISCOUNT, *FLAGS)
"""Kept by `select` even if they are not named: where these are absent they are filled in, which would hide that they were recorded."""


@dataclass(frozen=True)
class ColumnRecipe:
    """A column after the transform: what an expression makes of recorded columns, which is then resized and encoded where that is asked for.

    Attributes:
      expression: a recorded column, or what makes one of several.
      spec: of the new one.
      size: of resized images.
      encoding: of the files that are made.
      files: of image files that are decoded first: what they decode to.
    """

    expression: Expression
    spec: ArraySpec
    size: Size | None = None
    encoding: Encoding | None = None
    files: ImageSpec | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """Paths of the recorded columns."""
        return self.expression.reads

    @property
    def is_taken(self) -> bool:
        """Whether it is a recorded column as it is."""
        return isinstance(self.expression, Column) and self.size is None and self.encoding is None

    @property
    def picks(self) -> tuple[str, ...]:
        """The recorded columns of which it has rows as they are; () when they are changed."""
        return self.expression.picks if self.size is None and self.encoding is None else ()

    def make(self, rows: EpisodeRows) -> Array:
        """The new column [T, ...], of recorded ones that are each as their specs say, and of equal length.

        Raises:
          SourceError: an image file is damaged, or of another size than its spec says; or `Unusable`.
        """
        with np.errstate(all="ignore"):  # what is no number, or infinite, is found by validation
            column = self.expression.make(rows)
        if self.size is None and self.encoding is None:
            return column
        if self.files is not None and self.size is not None and self.encoding is not None:
            return encode_again(column, self.files, self.size, self.encoding, self.reads[0])
        if self.files is None and 0 in column.shape[1:3]:
            height, width = column.shape[1:3]
            done = "encoded" if self.size is None else "resized"
            raise Unusable(self.reads[0], f"images of {height}x{width} pixels cannot be {done}")
        pixels = column if self.size is None else images.resize_images(column, self.size)
        return pixels if self.encoding is None else encode_images(pixels, self.encoding)


def recipes_of(transform: Transform, recorded: Specs) -> dict[str, ColumnRecipe]:
    """Path -> column, for steps of the recorded spec; in the order of the dataset.

    Raises:
      ConfigError: an operation that these steps do not allow; the message says what there is.
    """
    columns = {path: ColumnRecipe(Column(path), spec) for path, spec in recorded.items()}
    for path, expression in transform.expressions.items():
        where = f'transform: make: "{path}"' if path in transform.make else f"transform: {ACTION}"
        columns = {other: column for other, column in columns.items() if not is_under(other, path)}
        columns[path] = ColumnRecipe(expression, expression.spec(recorded, where))
    _check_nests("make", columns)
    if transform.select:
        _check_matched("select", columns, transform.select)
        kept = (*transform.select, *ALWAYS_SELECTED)
        columns = {path: column for path, column in columns.items() if any(_matches(path, pattern) for pattern in kept)}
    _check_matched("drop", columns, transform.drop)
    columns = {
        path: column
        for path, column in columns.items()
        if not any(_matches(path, pattern) for pattern in transform.drop)
    }
    columns = _with_sizes(columns, transform.sizes)
    columns = _with_encodings(columns, transform.encodings)
    columns = _rename_columns(columns, transform.rename)
    if missing := [name for name in (IS_FIRST, IS_LAST) if name in recorded and name not in columns]:
        raise ConfigError(f"transform: it leaves the steps without {' and '.join(missing)}, which RLDS needs")
    return columns


def _check_matched(operation: str, columns: Mapping[str, ColumnRecipe], patterns: Sequence[str]) -> None:
    for pattern in patterns:
        if not any(_matches(path, pattern) for path in columns):
            raise no_column(f"transform: {operation}", pattern, list(columns))


def _matches(path: str, pattern: str) -> bool:
    """Whether a pattern names the column, or a nest that it is in; "*" stays between two slashes."""
    if is_under(path, pattern):
        return True
    names, patterns = path.split("/"), pattern.split("/")
    return len(patterns) <= len(names) and all(map(fnmatchcase, names, patterns))


def _with_sizes(columns: dict[str, ColumnRecipe], sizes: Mapping[str, Size]) -> dict[str, ColumnRecipe]:
    resized = dict(columns)
    for path, size in sizes.items():
        if path not in columns:
            raise no_column("transform: resize", path, list(columns))
        spec, files = columns[path].spec, None
        if spec.image is not None and not spec.shape:
            files, spec = spec.image, ArraySpec(spec.image.shape, spec.image.dtype)
        if spec.dtype.newbyteorder("=") not in IMAGE_DTYPES or len(spec.shape) != 3 or 0 in spec.shape[:2]:
            kinds = ", ".join(dtype_name(dtype) for dtype in IMAGE_DTYPES)
            raise transform_error(
                "resize", f'"{path}" is {spec}: expected an image [height, width, channels] of {kinds}'
            )
        shape = (size.height, size.width, spec.shape[2])
        resized[path] = replace(columns[path], spec=replace(spec, shape=shape), size=size, files=files)
    return resized


def _with_encodings(columns: dict[str, ColumnRecipe], encodings: Mapping[str, Encoding]) -> dict[str, ColumnRecipe]:
    encoded, used = dict(columns), set()
    for path, column in columns.items():
        chosen = max((prefix for prefix in encodings if prefix != ALL and is_under(path, prefix)), key=len, default=ALL)
        encoding = encodings.get(chosen)
        problem = "" if encoding is None else encoding.problem(column.spec)
        if problem and chosen == path:
            raise transform_error("encode", f'"{path}" is {column.spec}: {problem}')
        if encoding is not None and not problem and (chosen == path or images.kind(column.spec) == images.LAST):
            encoded[path] = replace(column, spec=encoding.spec(column.spec), encoding=encoding)
            used.add(chosen)
        elif column.files is not None:
            raise transform_error(
                "resize",
                f'"{path}" is {column.files}: images that stay encoded cannot be resized; with encode (--encode jpeg:quality=95) they are '
                "decoded, resized and encoded again",
            )
    for prefix in encodings:
        if prefix not in used and not any(is_under(path, prefix) for path in columns) and prefix != ALL:
            raise no_column("transform: encode", prefix, list(columns))
        if prefix not in used:
            listed = ", ".join(f"{path} {column.spec}" for path, column in columns.items())
            raise transform_error(
                "encode", f'"{prefix}": no image that {encodings[prefix]} could hold; there are {listed}'
            )
    if used:
        check_encoding_library()
    return encoded


def _rename_columns(columns: dict[str, ColumnRecipe], names: Mapping[str, str]) -> dict[str, ColumnRecipe]:
    if not names:
        return columns
    for old in names:
        if not any(is_under(path, old) for path in columns):
            raise no_column("transform: rename", old, list(columns))
        if above := [other for other in names if other != old and is_under(old, other)]:
            raise transform_error("rename", f'"{old}" is part of "{above[0]}"; rename one of them')
    renamed_columns: dict[str, ColumnRecipe] = {}
    sources: dict[str, str] = {}
    for path, column in columns.items():
        renamed = next((old for old in names if is_under(path, old)), "")
        new = names[renamed] + path[len(renamed) :] if renamed else path
        if new in renamed_columns:
            raise transform_error("rename", f'"{sources[new]}" and "{path}" would both be named "{new}"')
        renamed_columns[new], sources[new] = column, path
    _check_nests("rename", renamed_columns)
    return renamed_columns


def _check_nests(operation: str, columns: Mapping[str, ColumnRecipe]) -> None:
    """Raises ConfigError for a column that has the name of a nest of others."""
    nests: dict[str, str] = {}  # of all columns: their path -> one of the columns
    for path in columns:
        keys = path.split("/")
        nests |= {"/".join(keys[:depth]): path for depth in range(1, len(keys))}
    if both := [path for path in columns if path in nests]:
        raise ConfigError(
            f'transform: {operation}: column "{both[0]}" would have the name of the nest of "{nests[both[0]]}"'
        )


def left_out(columns: Mapping[str, ColumnRecipe], recorded: Specs) -> tuple[str, ...]:
    """Recorded columns that none of the new ones is made of."""
    read = {path for column in columns.values() for path in column.reads}
    return tuple(path for path in recorded if path not in read)


@dataclass(frozen=True)
class LastRow:
    """Whether the last row that is left has an action, which a transform decides by what was recorded (`last_row_is_added`).

    An added row stays one without an action and a reward: else `gripper_invert`, say, would make an action of it, which `last_step=repeat` would
    take for a recorded one. A recorded row stays one even if zeros are made of its action (`Episode.is_last_recorded`).

    Attributes:
      paths: new columns that hold zeros in an added row.
      deciding: recorded columns, all actions and rewards.
      states: recorded columns of which `delta` makes the last row that is left. Where the added row only repeats them, no next state was recorded
        for that row, and it is the one without an action; () where it is the added row itself.
    """

    paths: tuple[str, ...]
    deciding: tuple[str, ...]
    states: tuple[str, ...]

    @staticmethod
    def of(transform: Transform, recipes: Mapping[str, ColumnRecipe], recorded: Specs) -> LastRow | None:
        """None where nothing is to be done, or the dataset has no actions, which would say what was added."""
        deciding = tuple(filter(decides_last_row, recorded))
        lookahead = max((expression.lookahead for expression in transform.expressions.values()), default=0)
        dropped = transform.dropped_rows[1]
        if dropped > lookahead or not any(is_under(path, ACTION) for path in deciding):
            return None
        # Rewards that will move a step back belong to the row before.
        names = (ACTION,) if transform.reward_last == SHIFT else (ACTION, REWARD)
        paths = tuple(
            path
            for path, recipe in recipes.items()
            if any(is_under(path, name) for name in names) and (lookahead or not _keeps_zeros(recipe.expression))
        )
        states = {
            path
            for expression in transform.expressions.values()
            if lookahead and expression.lookahead == lookahead
            for path in _columns_read_ahead(expression)
            if path not in deciding
        }
        return LastRow(paths, deciding, tuple(sorted(states))) if paths else None

    def is_added(self, recorded: Episode) -> bool | None:
        """Whether the last row that is left of an episode has no action; None where that cannot be told."""
        columns = recorded.columns
        if (
            not len(recorded)
            or not columns.keys() >= {*self.deciding, *self.states}
            or len({len(column) for column in columns.values()}) != 1
        ):
            return None
        return has_added_row(recorded) and repeats_row_before(
            [columns[path] for path in self.states], len(recorded) - 1
        )

    def empty(self, columns: Mapping[str, Array]) -> dict[str, Array]:
        """The columns, of which `paths` end with zeros."""
        emptied = dict(columns)
        for path in self.paths:
            if path in columns and len(columns[path]):
                emptied[path] = columns[path].copy()
                emptied[path][-1:] = zero_row(columns[path])
        return emptied


def _columns_read_ahead(expression: Expression) -> tuple[str, ...]:
    """Recorded columns of which further rows are looked at."""
    if isinstance(expression, Part):
        return _columns_read_ahead(expression.inner)
    if not isinstance(expression, Call):
        return ()
    if expression.operation.lookahead:
        return expression.reads
    return tuple(path for inner in expression.inputs for path in _columns_read_ahead(inner))


def _keeps_zeros(expression: Expression) -> bool:
    """Whether it is known to make zeros of rows without an action and a reward."""
    if isinstance(expression, Column):
        return decides_last_row(expression.path)
    if isinstance(expression, Part):
        return _keeps_zeros(expression.inner)
    return isinstance(expression, Call) and expression.name == "concat" and all(map(_keeps_zeros, expression.inputs))


class Transformed(Wrapper):
    """The episodes of a source, with the columns that a transform makes; metadata stay. Columns that it makes nothing of are not read (`Source.without`).

    So where the format names an episode by its columns, its id depends on which of them are read, and on nothing else of the transform. Whoever
    stores the result puts `Transform.label` into the item keys, as a push with the transform does (`PushOptions.data_label`).

    An episode that the transform cannot be applied to lacks the columns that cannot be made, and has the reason among its `faults`; the
    columns that are only taken, renamed or not, are as they are. Validation then treats it as any other bad one.
    """

    def __init__(self, source: Source, transform: Transform, lacking: Collection[str] = frozenset()) -> None:
        super().__init__(source)
        self._transform, self._lacking = transform, frozenset(lacking)

    def spec(self) -> Nest:
        """The spec of the steps that are made.

        Raises:
          SourceError: the source has no spec.
          ConfigError: its steps do not allow the transform.
        """
        return _with_containers(nested({path: column.spec for path, column in self._recipes.items()}), self._recorded)

    @property
    def about(self) -> About:
        """The source's, with spaces under their new names; without those of columns that are changed."""
        about = self._source.about
        if not about.spaces:
            return about
        picks = {path: column.picks for path, column in self._recipes.items()}
        spaces = {path: [about.spaces.get(picked) for picked in picked_from] for path, picked_from in picks.items()}
        kept = {
            path: each[0]
            for path, each in spaces.items()
            if each and each[0] is not None and all(space == each[0] for space in each)
        }
        return replace(about, spaces=kept)

    def images(self) -> Mapping[str, ImageSpec]:
        """The source's, under their new names; without those that are changed or left out."""
        recorded = self._source.images()
        offered = {}
        for path, column in self._recipes.items():
            specs = [recorded.get(picked) for picked in column.picks]
            if specs and specs[0] is not None and all(spec == specs[0] for spec in specs):
                offered[path] = specs[0]
        # Nothing else may be made of these files, which would then be no pixels.
        while lost := {path for path in offered if self._is_read_elsewhere(path, offered)}:
            offered = {path: spec for path, spec in offered.items() if path not in lost}
        return offered

    def _is_read_elsewhere(self, path: str, offered: Collection[str]) -> bool:
        picks = set(self._recipes[path].picks)
        return any(picks.intersection(column.reads) for other, column in self._recipes.items() if other not in offered)

    def encoded(self, paths: Collection[str]) -> Transformed:
        """As `Source.encoded`; raises SourceError where files stay as they are for one column and are decoded for another."""
        picked = list(dict.fromkeys(recorded for path in paths for recorded in self._recipes[path].picks))
        for path, column in self._recipes.items():
            if path not in paths and (both := [recorded for recorded in column.reads if recorded in picked]):
                raise SourceError(
                    f'{self.name}: encoded: "{path}" is made of the images of "{both[0]}", which would stay encoded: keep '
                    "both encoded, or neither; or leave one out"
                )
        return Transformed(self._source.encoded(picked), self._transform, self._lacking)

    def without(self, paths: Collection[str]) -> Transformed:
        return Transformed(self._source, self._transform, self._lacking.union(paths))

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        episodes = self._read.read(start, stop, is_known)
        recorded = flatten(self._recorded)
        return (
            episode if isinstance(episode, KnownEpisode) else self._apply(episode, recorded) for episode in episodes
        )

    def at(self, numbers: Sequence[int]) -> Iterator[tuple[int, Episode]]:
        recorded = flatten(self._recorded)
        return ((number, self._apply(episode, recorded)) for number, episode in self._read.at(numbers))

    def _apply(self, episode: Episode, recorded: Specs) -> Episode:
        return made_of(episode, self._recipes, recorded, self._dropped, self._last_row)

    def episode_lengths(self) -> Sequence[int] | None:
        lengths = self._read.episode_lengths()
        return None if lengths is None else self._shortened(lengths)

    def count_lengths(self) -> Sequence[int]:
        return self._shortened(self._read.count_lengths())

    def _shortened(self, lengths: Sequence[int]) -> Sequence[int]:
        dropped = sum(self._dropped)
        return [max(length - dropped, 0) for length in lengths] if dropped else lengths

    @property
    def notices(self) -> tuple[Notice, ...]:
        return self._read.notices

    @property
    def tallies(self) -> tuple[Tally, ...]:
        return self._read.tallies

    @property
    def left_out(self) -> tuple[str, ...]:
        return left_out(self._recipes, flatten(self._recorded))

    @property
    def encodes(self) -> Mapping[str, bool]:
        inner = self._source.encodes
        taken = {
            path: inner[column.picks[0]]
            for path, column in self._recipes.items()
            if inner.keys() & set(column.picks[:1])
        }
        made_here = {
            path: column.files is not None for path, column in self._recipes.items() if column.encoding is not None
        }
        return {**taken, **made_here}

    def recorded_paths(self, path: str) -> tuple[str, ...]:
        picks = self._recipes[path].expression.picks if path in self._recipes else ()
        return tuple(recorded for picked in picks or (path,) for recorded in self._source.recorded_paths(picked))

    def path_to_encode(self, path: str) -> str:
        names = self._transform.rename.items()
        return next((old + path[len(new) :] for old, new in names if is_under(path, new)), path)

    @cached_property
    def _dropped(self) -> tuple[int, int]:
        return self._transform.dropped_rows

    @cached_property
    def _recorded(self) -> Nest:
        return checked_spec(self._source)

    @cached_property
    def _read(self) -> Source:
        """The source without the columns that nothing is made of, and that do not decide about the last row."""
        # Transforms without `make` are older than this decision, and which columns are read may be part of episodes' names.
        decides = self._last_row is not None and bool(self._transform.make)
        deciding = {*self._last_row.deciding, *self._last_row.states} if decides and self._last_row else ()
        return self._source.without([path for path in self.left_out if path not in deciding])

    @cached_property
    def _last_row(self) -> LastRow | None:
        return LastRow.of(self._transform, self._recipes, flatten(self._recorded))

    @cached_property
    def _recipes(self) -> dict[str, ColumnRecipe]:
        recipes = recipes_of(self._transform, flatten(self._recorded))
        return {path: recipe for path, recipe in recipes.items() if path not in self._lacking}


def transformed(source: Source, transform: Transform) -> Source:
    """The source with its columns transformed; the source itself when nothing is done to them."""
    return Transformed(source, transform) if transform.changes_columns else source


def made_of(
    episode: Episode,
    new_columns: Mapping[str, ColumnRecipe],
    recorded: Specs,
    dropped: tuple[int, int] = (0, 0),
    last_row: LastRow | None = None,
) -> Episode:
    """An episode as recorded -> with the columns that are made of it, and the faults that prevent further ones.

    A column that the recorded spec does not have stays as it is, so that validation refuses it by name. So many of the first and of the last
    rows are `dropped`; an episode that nothing is left of has a fault that says so. A run of an episode (`is_run`), which filters made that short,
    is left without rows instead.
    """
    columns: dict[str, Array] = {}
    if episode.faults and not episode.columns:
        return episode
    faults: list[tuple[str, str]] = []
    rows = EpisodeRows(episode.columns, len(episode), episode.id, is_run(episode.id), episode.cut)
    for path, column in new_columns.items():
        if column.is_taken:  # whatever it is, validation sees it
            if column.reads[0] in episode.columns:
                columns[path] = episode.columns[column.reads[0]]
            continue
        new_faults = _faults(episode, column, recorded)
        faults += new_faults
        if not new_faults:
            try:
                columns[path] = column.make(rows)
            except Unusable as error:
                faults.append((error.path, str(error)))
            except SourceError as error:
                faults.append((column.reads[0], str(error)))
    for path, unknown_column in episode.columns.items():
        if path not in recorded and path in columns:
            faults.append((path, "the dataset's spec has no such column, and the transform makes one of this name"))
        elif path not in recorded:
            columns[path] = unknown_column
    if any(dropped):
        columns = _without_rows(columns, *dropped)
        if not faults and not episode.faults and len(episode) <= sum(dropped) and not is_run(episode.id):
            counts = f"the first {dropped[0]} and the last {dropped[1]}"
            why = (
                f"has {counted(len(episode), 'row')}: the transform takes {counts} away, and expected one more at least"
            )
            faults.append(("", why))
    is_last_recorded = episode.is_last_recorded
    if last_row is not None and not faults and (is_added := last_row.is_added(episode)) is not None:
        columns = last_row.empty(columns) if is_added else columns
        is_last_recorded = not is_added
    return replace(episode, columns=columns, faults=(*episode.faults, *faults), is_last_recorded=is_last_recorded)


def _faults(episode: Episode, column: ColumnRecipe, recorded: Specs) -> list[tuple[str, str]]:
    """Why the columns that one is made of cannot be used, each alone or all together."""
    alone = []
    for path in column.reads:
        if path not in episode.columns:
            alone.append((path, f"expected it in every episode; found {sorted(episode.columns)}"))
            continue
        spec, recorded_spec = column_spec(episode.columns[path]), recorded[path]
        if not same_dtype(spec.dtype, recorded_spec.dtype) or not shape_fits(spec.shape, recorded_spec.shape):
            alone.append((path, f"expected rows of {recorded_spec}, got {spec}"))
    if alone:
        return alone
    counts = [len(episode.columns[path]) for path in column.reads]
    if len(set(counts)) > 1:
        listed = ", ".join(f"{path} {count:,}" for path, count in zip(column.reads, counts))
        return [(column.reads[0], f"expected columns of equal length, got {listed}")]
    return []


def _without_rows(columns: Mapping[str, Array], first: int, last: int) -> dict[str, Array]:
    """Columns without so many of their first and last rows: what is left begins with `is_first` and ends with `is_last`."""
    fewer = {path: column[first : max(len(column) - last, first)] for path, column in columns.items()}
    for flag, row in ((IS_FIRST, 0), (IS_LAST, -1)):
        if flag in fewer and len(fewer[flag]):
            fewer[flag] = fewer[flag].copy()
            fewer[flag][row] = True
    return fewer


def _with_containers(nest: Nest, recorded: Nest) -> Nest:
    """The nest with the lists, tuples and namedtuples of the recorded one, where all their children are still there."""
    if not isinstance(nest, dict):
        return nest
    inside = {key: _with_containers(child, _child(recorded, key)) for key, child in nest.items()}
    if isinstance(recorded, (list, tuple)) and set(inside) == set(_keys(recorded)):
        children = [inside[key] for key in _keys(recorded)]
        return type(recorded)(*children) if hasattr(recorded, "_fields") else type(recorded)(children)
    return inside


def _keys(container: list[Any] | tuple[Any, ...]) -> list[str]:
    return list(getattr(container, "_fields", map(str, range(len(container)))))


def _child(recorded: Nest, key: str) -> Nest:
    if isinstance(recorded, Mapping):
        return recorded.get(key)
    if isinstance(recorded, (list, tuple)) and key in _keys(recorded):
        return recorded[_keys(recorded).index(key)]
    return None
