"""A transform and a step spec -> what each new column is made of; checked here, before an episode is read.

| operation | refused |
| --- | --- |
| action | a part that is no column, is no number, or has another rank (a scalar counts as a vector of one number) |
| select, drop | a pattern that no column matches; flags `is_first` and `is_last` cannot be dropped |
| resize | a column that is no image: not uint8, uint16 or float32 of [height, width, channels] |
| rename | a name that is none of the columns left; two columns of one name; a column with the name of a nest |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Protocol

from rlds2reverb.episodes import ACTION, DISCOUNT, FLAGS, IS_FIRST, IS_LAST, REWARD, Array, is_under
from rlds2reverb.errors import ConfigError
from rlds2reverb.image_spec import IMAGE_DTYPES
from rlds2reverb.specs import ArraySpec, dtype_name
from rlds2reverb.transforms import resize
from rlds2reverb.transforms.concat import joined, joined_spec, too_large
from rlds2reverb.transforms.resize import Size
from rlds2reverb.transforms.transform import Transform

ALWAYS_SELECTED = (REWARD, DISCOUNT, *FLAGS)
"""What `select` keeps unnamed: where these are absent they are filled in, and nobody would see that they were there."""

Specs = Mapping[str, ArraySpec]


class Recipe(Protocol):
    """How a column is made of recorded ones."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Paths of these."""

    def problem(self, columns: Sequence[Array]) -> tuple[str, str] | None:
        """Path and reason why recorded columns, each as its spec says, cannot be used; None when they can."""

    def make(self, columns: Sequence[Array]) -> Array:
        """[T, ...] columns, in the order of `reads`, of equal length -> the new column."""


@dataclass(frozen=True)
class Taken:
    """A column as it is recorded."""

    path: str

    @property
    def reads(self) -> tuple[str, ...]:
        """The column."""
        return (self.path,)

    def problem(self, columns: Sequence[Array]) -> None:
        """None: whatever it is, validation sees it."""

    def make(self, columns: Sequence[Array]) -> Array:
        """The column."""
        return columns[0]


@dataclass(frozen=True)
class Joined:
    """Several columns as one vector, or nested vectors, of floats `spec`."""

    reads: tuple[str, ...]
    spec: ArraySpec

    def problem(self, columns: Sequence[Array]) -> tuple[str, str] | None:
        """An integer that is not exact as a float."""
        for path, column in zip(self.reads, columns):
            if (reason := too_large(column, self.spec.dtype)) is not None:
                return path, reason
        return None

    def make(self, columns: Sequence[Array]) -> Array:
        """See `concat.joined`."""
        return joined(columns, self.spec.dtype)


@dataclass(frozen=True)
class Resized:
    """Images of another size."""

    path: str
    size: Size

    @property
    def reads(self) -> tuple[str, ...]:
        """The column."""
        return (self.path,)

    def problem(self, columns: Sequence[Array]) -> tuple[str, str] | None:
        """Images of no pixels."""
        height, width = columns[0].shape[1:3]
        return None if height and width else (self.path, f"images of {height}x{width} pixels cannot be resized")

    def make(self, columns: Sequence[Array]) -> Array:
        """See `resize.resized`."""
        return resize.resized(columns[0], self.size)


@dataclass(frozen=True)
class Made:
    """A column of the steps as they will be: how it is made, and its spec."""

    recipe: Recipe
    spec: ArraySpec


def made_columns(transform: Transform, recorded: Specs) -> dict[str, Made]:
    """Path -> column, for steps of the recorded spec; in the order of the dataset.

    Raises:
      ConfigError: an operation that these steps do not allow; says what there is.
    """
    columns = {path: Made(Taken(path), spec) for path, spec in recorded.items()}
    columns = _with_action(columns, transform.parts, recorded)
    columns = _selected(columns, transform.select)
    columns = _without(columns, transform.drop)
    columns = _with_sizes(columns, transform.sizes)
    columns = _renamed(columns, transform.rename)
    if missing := [name for name in (IS_FIRST, IS_LAST) if name in recorded and name not in columns]:
        raise ConfigError(f"transform: it leaves the steps without {' and '.join(missing)}, which RLDS needs")
    return columns


def _with_action(columns: dict[str, Made], parts: Sequence[str], recorded: Specs) -> dict[str, Made]:
    if not parts:
        return columns
    reads = tuple(part[1:] if part.startswith("/") else f"{ACTION}/{part}" for part in parts)
    for path in reads:
        if path not in recorded:
            below = [other for other in recorded if is_under(other, path)]
            raise _no_column("action", path, below or list(recorded), "a nest" if below else "no column")
    spec = joined_spec([recorded[path] for path in reads])
    if spec is None:
        listed = ", ".join(f"{path} {recorded[path]}" for path in reads)
        raise ConfigError(
            f"transform: action: expected numbers, all of one rank (a scalar is a vector of one), got {listed}"
        )
    others = {path: column for path, column in columns.items() if not is_under(path, ACTION)}
    return {**others, ACTION: Made(Joined(reads, spec), spec)}


def _selected(columns: dict[str, Made], patterns: Sequence[str]) -> dict[str, Made]:
    if not patterns:
        return columns
    _check_patterns("select", columns, patterns)
    kept = [path for path in columns if any(_matches(path, one) for one in (*patterns, *ALWAYS_SELECTED))]
    return {path: columns[path] for path in kept}


def _without(columns: dict[str, Made], patterns: Sequence[str]) -> dict[str, Made]:
    _check_patterns("drop", columns, patterns)
    return {path: made for path, made in columns.items() if not any(_matches(path, one) for one in patterns)}


def _check_patterns(operation: str, columns: Mapping[str, Made], patterns: Sequence[str]) -> None:
    for pattern in patterns:
        if not any(_matches(path, pattern) for path in columns):
            raise _no_column(operation, pattern, list(columns))


def _matches(path: str, pattern: str) -> bool:
    """Whether a pattern names the column, or a nest that it is in; "*" stays between two slashes."""
    if is_under(path, pattern):
        return True
    names, wanted = path.split("/"), pattern.split("/")
    return len(wanted) <= len(names) and all(fnmatchcase(name, one) for name, one in zip(names, wanted))


def _with_sizes(columns: dict[str, Made], sizes: Mapping[str, Size]) -> dict[str, Made]:
    made = dict(columns)
    for path, size in sizes.items():
        if path not in columns:
            raise _no_column("resize", path, list(columns))
        spec = columns[path].spec
        _check_image(path, columns[path])
        shape = (size.height, size.width, spec.shape[2])
        made[path] = Made(Resized(path, size), replace(spec, shape=shape))
    return made


def _check_image(path: str, column: Made) -> None:
    spec = column.spec
    if spec.dtype.newbyteorder("=") not in IMAGE_DTYPES or len(spec.shape) != 3 or 0 in spec.shape[:2]:
        kinds = ", ".join(dtype_name(dtype) for dtype in IMAGE_DTYPES)
        hint = "; images that stay encoded (JPEG, PNG) cannot be resized" if spec.dtype.kind in "OSU" else ""
        raise ConfigError(
            f'transform: resize: "{path}" is {spec}: expected an image [height, width, channels] of {kinds}{hint}'
        )


def _renamed(columns: dict[str, Made], names: Mapping[str, str]) -> dict[str, Made]:
    if not names:
        return columns
    for old in names:
        if not any(is_under(path, old) for path in columns):
            raise _no_column("rename", old, list(columns))
        if above := [other for other in names if other != old and is_under(old, other)]:
            raise ConfigError(f'transform: rename: "{old}" is part of "{above[0]}"; rename one of them')
    made: dict[str, Made] = {}
    sources: dict[str, str] = {}
    for path, column in columns.items():
        new = _new_name(path, names)
        if new in made:
            raise ConfigError(f'transform: rename: "{sources[new]}" and "{path}" would both be named "{new}"')
        made[new], sources[new] = column, path
    nests = {nest: path for path in made for nest in _nests_of(path)}
    if both := [path for path in made if path in nests]:
        raise ConfigError(
            f'transform: rename: column "{both[0]}" would have the name of the nest of "{nests[both[0]]}"'
        )
    return made


def _nests_of(path: str) -> Iterator[str]:
    names = path.split("/")
    return ("/".join(names[:depth]) for depth in range(1, len(names)))


def _new_name(path: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        if is_under(path, old):
            return new + path[len(old) :]
    return path


def _no_column(operation: str, path: str, there: Sequence[str], what: str = "no column") -> ConfigError:
    near = get_close_matches(path, there, 1)
    meant = f'; did you mean "{near[0]}"?' if near else ""
    return ConfigError(f'transform: {operation}: "{path}" is {what} of the steps; there are {", ".join(there)}{meant}')


def left_out(columns: Mapping[str, Made], recorded: Specs) -> tuple[str, ...]:
    """Recorded columns that none of the new ones is made of."""
    read = {path for made in columns.values() for path in made.recipe.reads}
    return tuple(path for path in recorded if path not in read)
