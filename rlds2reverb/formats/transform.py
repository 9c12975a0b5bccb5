"""Transforms of step columns: a declaration (`Transform`), checked against a spec, then applied to every episode of a source (`Transformed`)."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Union

import numpy as np

from rlds2reverb import images
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
    is_under,
)
from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import Lazily
from rlds2reverb.formats.source import IsKnown, Source, Wrapper, checked_spec
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

# The operations go in one fixed order, however they are written: action, select, drop, resize, rename, reward_last. All names but the new ones
# of `rename` are those of the dataset.

AS_RECORDED, SHIFT = LAST_REWARDS = ("as_recorded", "shift")
"""What becomes of rewards: they stay, or each moves one step back."""


@dataclass(frozen=True)
class Transform:
    """What is done to the columns of every step before anything else looks at them. Without arguments: nothing.

    Attributes:
      select: columns to keep, and no other: paths of columns or of nests, "*" for any name between two slashes. Reward, discount and
        flags stay in any case.
      drop: columns to leave out, written in the same way.
      action: "concat(PATH, PATH, ...)": the numbers of these columns, in this order, become one vector, the column `action`, in place of all
        that was below it. Paths are below `action`; one that begins with "/" is any path of the step. "" for none.
      resize: path of an image column -> "HEIGHTxWIDTH", or "HEIGHTxWIDTH:METHOD" (area, the default, or lanczos3).
      rename: old path of a column or nest -> new path.
      reward_last: "shift" for data that records a reward with the observation that it led to. The same as the option last_reward of a push:
        either asks for it, and it is done once.

    Raises:
      ConfigError: a value of another type, a path that is none, one that stands twice, a size or method that makes no sense.
    """

    select: Sequence[str] = ()
    drop: Sequence[str] = ()
    action: str = ""
    resize: Mapping[str, str] = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)
    reward_last: str = AS_RECORDED

    def __post_init__(self) -> None:
        for name in ("select", "drop"):
            object.__setattr__(self, name, _paths(name, getattr(self, name)))
        for name in ("resize", "rename"):
            object.__setattr__(self, name, _pairs(name, getattr(self, name)))
        for path in self.rename.values():
            _check_path("rename", path)
        if self.reward_last not in LAST_REWARDS:
            raise _error("reward_last", f"{self.reward_last!r}: expected one of {', '.join(LAST_REWARDS)}")
        object.__setattr__(self, "action", written(self.parts) if self.parts else "")
        object.__setattr__(self, "resize", {path: str(size) for path, size in self.sizes.items()})

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """Paths of the columns that the action is made of, in their order; () when it stays as it is."""
        if self.action == "":
            return ()
        parts = parts_of(self.action) if isinstance(self.action, str) else None
        if parts is None:
            raise _error("action", f"{self.action!r}: expected concat(PATH, PATH, ...)")
        for part in parts:
            _check_path("action", part.removeprefix("/"))
        paths = tuple(part[1:] if part.startswith("/") else f"action/{part}" for part in parts)
        _check_distinct("action", paths)
        return tuple(parts)

    @cached_property
    def sizes(self) -> Mapping[str, Size]:
        """Path of an image column -> what it becomes."""
        return {path: _parsed_size(path, text) for path, text in self.resize.items()}

    @property
    def changes_columns(self) -> bool:
        """Whether it does more than to ask for a convention."""
        return replace(self, reward_last=AS_RECORDED) != Transform()

    @property
    def label(self) -> str:
        """What is done to columns, in one way of writing; part of the item keys, so equal labels must mean equal items. "" for nothing.

        `reward_last` is no part of it: it is one of the push's conventions, which have a label of their own.
        """
        if not self.changes_columns:
            return ""
        plain = {**self.as_dict(), "select": sorted(self.select), "drop": sorted(self.drop), "reward_last": None}
        return json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":"))

    def as_dict(self) -> dict[str, Any]:
        """Every operation that does something, as plain values, for JSON."""
        values = {
            "action": self.action,
            "select": list(self.select),
            "drop": list(self.drop),
            "resize": dict(self.resize),
            "rename": dict(self.rename),
            "reward_last": "" if self.reward_last == AS_RECORDED else self.reward_last,
        }
        return {name: value for name, value in values.items() if value}

    def lines(self) -> dict[str, str]:
        """Every operation that does something, in its order, as people read it."""
        return {name: _in_words(value) for name, value in self.as_dict().items()}


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{one} -> {other}" for one, other in value.items())
    return value if isinstance(value, str) else ", ".join(value)


def _error(operation: str, problem: str) -> ConfigError:
    return ConfigError(f"transform: {operation}: {problem}")


def _paths(operation: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise _error(operation, f"{value!r}: expected a list of paths")
    for path in value:
        _check_path(operation, path)
    _check_distinct(operation, value)
    return tuple(value)


def _pairs(operation: str, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _error(operation, f"{value!r}: expected a mapping that begins with paths of columns")
    for path in value:
        _check_path(operation, path)
    return dict(value)


def _parsed_size(path: str, text: object) -> Size:
    try:
        return Size.parse(text)
    except ConfigError as error:
        raise _error("resize", f'"{path}": {error}') from error


def _check_path(operation: str, path: object) -> None:
    if not isinstance(path, str) or not path.isprintable() or not all(part.strip() for part in path.split("/")):
        raise _error(operation, f"{path!r}: expected a path of a column, such as observation/image")


def _check_distinct(operation: str, paths: Sequence[str]) -> None:
    if twice := [path for number, path in enumerate(paths) if path in paths[:number]]:
        raise _error(operation, f'"{twice[0]}" stands twice')


# A transform from what people write: text as on a command line, a YAML file, or a mapping as YAML gives it.
#
# Text is "option=value,value,option=value,...": a part without "=" is one more value of the option before it.
#
# >>> transform_of("resize=observation/image:64x64,select=observation/image,action").as_dict()
# {'select': ['observation/image', 'action'], 'resize': {'observation/image': '64x64:area'}}

TransformLike = Union[Transform, str, Path, Mapping[str, Any], Sequence[Any]]
"""A transform, text, a YAML file or its name, a mapping; or several of these, which add up."""

_read_yaml = Lazily("rlds2reverb.strict_yaml:read")  # PyYAML, only where there is a file

OPTIONS = tuple(one.name for one in fields(Transform))
SECTION = "transform"

_PARTS = re.compile(r"(?:[^,()]|\([^()]*\))+")
_OPTION = re.compile(r"\s*(\w+)\s*=(.*)", re.DOTALL)
_RESIZE = re.compile(r"(.+?)\s*:\s*([0-9]+x[0-9]+(?::\w+)?)")


def transform_of(given: TransformLike) -> Transform:
    """The transform that was meant; several add up to one, whatever their order.

    Args:
      given: a `Transform`; text "option=value,..."; a YAML file, by its `Path` or its name; a mapping of `Transform`'s fields, alone or below
        the key "transform"; or a list of these.

    Raises:
      ConfigError: says what was expected and what came; for a file, where.
    """
    if isinstance(given, Transform):
        return given
    if isinstance(given, Mapping):
        return _from_mapping(given, "transform")
    if isinstance(given, Path):
        return _read(given)
    if isinstance(given, str):
        return _from_text(given) if _is_text(given) else _read(Path(given))
    if isinstance(given, (list, tuple)):
        return _sum([transform_of(one) for one in given])
    raise ConfigError(
        f"transform {given!r}: expected text such as resize=observation/image:256x256, a YAML file, or a mapping"
    )


def _is_text(text: str) -> bool:
    """Whether it is options rather than a file's name. A name that looks like options can be written ./NAME."""
    found = _OPTION.match(text)
    return found is not None and (found[1] in OPTIONS or not _is_a_file(text))


def _is_a_file(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # too long for a name, or with a NUL
        return False


def _read(path: Path) -> Transform:
    hint = f"; expected a YAML file, or text with {', '.join(f'{name}=' for name in OPTIONS)}"
    return _from_mapping(_read_yaml(path, hint), str(path))


def _from_mapping(config: Any, where: str) -> Transform:
    if isinstance(config, Mapping) and list(config) == [SECTION]:
        config = config[SECTION]
    if not isinstance(config, Mapping):
        raise ConfigError(f"{where}: expected a mapping with {', '.join(OPTIONS)}, got {config!r}")
    if unknown := [key for key in config if key not in OPTIONS]:
        raise ConfigError(f"{where}: {_unknown(str(unknown[0]))}")
    if empty := [key for key, value in config.items() if value is None]:
        raise ConfigError(f"{where}: {empty[0]} has no value; leave it out")
    try:
        return Transform(**config)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}" if where != "transform" else str(error)) from error


def _unknown(name: str) -> str:
    near = get_close_matches(name, OPTIONS, 1)
    return f'no option "{name}"; there are {", ".join(OPTIONS)}' + (f'; did you mean "{near[0]}"?' if near else "")


def _from_text(text: str) -> Transform:
    values: dict[str, list[str]] = {}
    for name, value in _options_in(text):
        values.setdefault(name, []).append(value)
    try:
        return _sum([_of_option(name, each) for name, each in values.items()])
    except ConfigError as error:
        raise ConfigError(f'"{text}": {error}') from error


def _options_in(text: str) -> Iterator[tuple[str, str]]:
    """Option and value, part by part."""
    name = ""
    if "".join(_PARTS.findall(text)) != re.sub(r",(?![^()]*\))", "", text):
        raise ConfigError(f'transform "{text}": expected brackets in pairs, as in action=concat(a,b)')
    for part in _PARTS.findall(text):
        found = _OPTION.fullmatch(part)
        if found is not None:
            name, part = found[1], found[2]
            if name not in OPTIONS:
                raise ConfigError(f'transform "{text}": {_unknown(name)}')
        yield name, part.strip()


def _of_option(name: str, values: list[str]) -> Transform:
    if name in ("select", "drop"):
        return Transform(**{name: values})  # type: ignore[arg-type] # one of two fields of the same type
    if name == "resize":
        return Transform(resize=_mapping(name, [_size(value) for value in values]))
    if name == "rename":
        return Transform(rename=_mapping(name, [_names(value) for value in values]))
    if len(values) > 1:
        raise ConfigError(f"transform: {name}: expected one value, got {', '.join(values)}")
    return Transform(action=values[0]) if name == "action" else Transform(reward_last=values[0])


def _size(text: str) -> tuple[str, str]:
    found = _RESIZE.fullmatch(text)
    if found is None:
        raise ConfigError(f'transform: resize: "{text}": expected PATH:HEIGHTxWIDTH or PATH:HEIGHTxWIDTH:METHOD')
    return found[1], found[2]


def _names(text: str) -> tuple[str, str]:
    old, _, new = (word.strip() for word in text.partition(":"))
    if not old or not new or ":" in new:
        raise ConfigError(f'transform: rename: "{text}": expected OLD:NEW; names with ":" go into a YAML file')
    return old, new


def _mapping(name: str, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    merged: dict[str, str] = {}
    for path, value in pairs:
        if path in merged:
            raise ConfigError(f'transform: {name}: "{path}" stands twice')
        merged[path] = value
    return merged


def _sum(several: Sequence[Transform]) -> Transform:
    """One transform that combines several."""
    actions = [one.action for one in several if one.action]
    if len(actions) > 1:
        raise ConfigError(f"transform: action: expected one, got {' and '.join(actions)}")
    shifts = [one.reward_last for one in several if one.reward_last != Transform.reward_last]
    return Transform(
        select=[path for one in several for path in one.select],
        drop=[path for one in several for path in one.drop],
        action="".join(actions),
        resize=_mapping("resize", [pair for one in several for pair in one.resize.items()]),
        rename=_mapping("rename", [pair for one in several for pair in one.rename.items()]),
        reward_last=shifts[0] if shifts else Transform.reward_last,
    )


# A transform and a step spec -> what each new column is made of; checked here, before an episode is read.
#
# | operation | refused |
# | --- | --- |
# | action | a part that is no column, is no number, or has another rank (a scalar counts as a vector of one number) |
# | select, drop | a pattern that no column matches; flags `is_first` and `is_last` cannot be dropped |
# | resize | a column that is no image: not uint8, uint16 or float32 of [height, width, channels] |
# | rename | a name that is none of the columns left; two columns of one name; a column with the name of a nest |

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
        return images.resized(columns[0], self.size)


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


# Joins numbers of several columns into one vector per step: `concat(world_vector, rotation_delta, gripper)`.

_WRITTEN, _END = "concat(", ")"


def parts_of(text: str) -> tuple[str, ...] | None:
    """The paths in "concat(PATH, PATH, ...)"; None when it is not of that form."""
    text = text.strip()
    if not text.startswith(_WRITTEN) or not text.endswith(_END):
        return None
    return tuple(part.strip() for part in text[len(_WRITTEN) : -len(_END)].split(","))


def written(parts: Sequence[str]) -> str:
    """The way back."""
    return f"{_WRITTEN}{', '.join(parts)}{_END}"


def joined_spec(parts: Sequence[ArraySpec]) -> ArraySpec | None:
    """The spec of what is joined along the last axis, or None when it cannot be: not numbers, or shapes that do not go together.

    A scalar counts as a vector of one number. Truth values and integers become the floats of the others; floats become the widest
    among them, at least float32. So nothing is rounded, as long as integers are small enough; `too_large` tells.
    """
    if not all(_is_number(part.dtype) for part in parts):
        return None
    shapes = [part.shape or (1,) for part in parts]
    if len({shape[:-1] for shape in shapes}) > 1:
        return None
    last = [shape[-1] for shape in shapes]
    total = None if None in last else sum(size or 0 for size in last)
    return ArraySpec((*shapes[0][:-1], total), _float_of([part.dtype for part in parts]))


def joined(columns: Sequence[Array], dtype: np.dtype[Any]) -> Array:
    """[T] and [T, ..., n] columns -> [T, ..., sum of n], in their order."""
    vectors = [column[:, None] if column.ndim == 1 else column for column in columns]
    return np.concatenate([vector.astype(dtype) for vector in vectors], axis=-1)


def too_large(column: Array, dtype: np.dtype[Any]) -> str | None:
    """Why a column of integers is not exact in floats of this dtype: says the first step; None when every integer up to its largest is."""
    most = 2 ** (np.finfo(dtype).nmant + 1)
    if column.dtype.kind not in "iu" or not column.size or (int(column.max()) <= most and int(column.min()) >= -most):
        return None
    rows = column.reshape(len(column), -1)
    step = next(number for number, row in enumerate(rows) if int(row.max()) > most or int(row.min()) < -most)
    worst = max(map(int, rows[step]), key=abs)
    return f"step {step} has {worst}: expected integers of at most {most:,}, which {dtype.name} holds exactly"


def _is_number(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biuf" or dtype.name == "bfloat16"


def _float_of(dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    return np.result_type(np.float32, *(dtype for dtype in dtypes if dtype.kind == "f"))


# A source whose steps have other columns: what a `Transform` makes of another source's.


class Transformed(Wrapper):
    """The episodes of a source, with the columns that a transform makes; ids and metadata stay.

    Nothing in an episode's id tells of the transform. Who stores what is made puts `Transform.label` into the item keys, as a push does
    that is given the transform (`PushOptions.data_label`).

    An episode that the transform cannot be applied to lacks the columns that cannot be made, and has the reason among its `faults`; the
    columns that are only taken, renamed or not, are as they are. Validation then treats it as any other bad one.

    Args:
      source: what is read.
      transform: what is made of it.
    """

    def __init__(self, source: Source, transform: Transform) -> None:
        super().__init__(source)
        self._transform = transform

    def spec(self) -> Nest:
        """The spec of the steps that are made.

        Raises:
          SourceError: the source has no spec.
          ConfigError: its steps do not allow the transform.
        """
        return _with_containers(nested({path: made.spec for path, made in self._made.items()}), self._recorded)

    def images(self) -> Mapping[str, ImageSpec]:
        """The source's, under the names that they have here; without those that are resized or left out."""
        offered = self._source.images()
        return {path: offered[recorded] for path, recorded in self._taken.items() if recorded in offered}

    def encoded(self, paths: Collection[str]) -> Transformed:
        return Transformed(self._source.encoded([self._taken[path] for path in paths]), self._transform)

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        """See `Source.read`; what is read is transformed."""
        made, recorded = self._made, flatten(self._recorded)
        episodes = self._source.read(start, stop, is_known)
        return (one if isinstance(one, KnownEpisode) else made_of(one, made, recorded) for one in episodes)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Paths of the source's step columns that nothing is made of."""
        return left_out(self._made, flatten(self._recorded))

    def recorded_path(self, path: str) -> str:
        """What the source calls a column that is taken as it is; the path itself for any other."""
        return self._source.recorded_path(self._taken.get(path, path))

    @property
    def _taken(self) -> dict[str, str]:
        """New path -> recorded path, for the columns that stay unchanged."""
        return {path: one.recipe.path for path, one in self._made.items() if isinstance(one.recipe, Taken)}

    @cached_property
    def _recorded(self) -> Nest:
        return checked_spec(self._source)

    @cached_property
    def _made(self) -> dict[str, Made]:
        return made_columns(self._transform, flatten(self._recorded))


def transformed(source: Source, transform: Transform) -> Source:
    """The source with its columns transformed; the source itself when nothing is done to them."""
    return Transformed(source, transform) if transform.changes_columns else source


def made_of(episode: Episode, made: Mapping[str, Made], recorded: Specs) -> Episode:
    """An episode as recorded -> with the columns that are made of it, and the faults that keep others from being made.

    A column that the recorded spec does not have stays as it is, so that validation refuses it by name.
    """
    columns: dict[str, Array] = {}
    if episode.faults and not episode.columns:
        return episode
    faults: list[tuple[str, str]] = []
    for path, one in made.items():
        found = [fault for read in one.recipe.reads if (fault := _fault(episode, read, recorded, one))]
        if not found:
            found = _faults_together(episode, one)
        faults += found
        if not found and all(read in episode.columns for read in one.recipe.reads):
            columns[path] = one.recipe.make([episode.columns[read] for read in one.recipe.reads])
    for path, column in episode.columns.items():
        if path not in recorded and path in columns:
            faults.append((path, "the dataset's spec has no such column, and the transform makes one of this name"))
        elif path not in recorded:
            columns[path] = column
    return replace(episode, columns=columns, faults=(*episode.faults, *faults))


def _fault(episode: Episode, path: str, recorded: Specs, made: Made) -> tuple[str, str] | None:
    """Why a column cannot be read by the recipe of another one. Columns that are only taken are left to validation."""
    if isinstance(made.recipe, Taken):
        return None
    if path not in episode.columns:
        return path, f"expected it in every episode; found {sorted(episode.columns)}"
    found, wanted = column_spec(episode.columns[path]), recorded[path]
    if not same_dtype(found.dtype, wanted.dtype) or not shape_fits(found.shape, wanted.shape):
        return path, f"expected rows of {wanted}, got {found}"
    return None


def _faults_together(episode: Episode, made: Made) -> list[tuple[str, str]]:
    """Why columns that are each as they should be do not make another one."""
    recipe = made.recipe
    if isinstance(recipe, Taken):
        return []
    columns = [episode.columns[path] for path in recipe.reads]
    rows = [len(column) for column in columns]
    if len(set(rows)) > 1:
        listed = ", ".join(f"{path} {count:,}" for path, count in zip(recipe.reads, rows))
        return [(recipe.reads[0], f"expected columns of equal length, got {listed}")]
    fault = recipe.problem(columns)
    return [] if fault is None else [fault]


def _with_containers(nest: Nest, recorded: Nest) -> Nest:
    """The nest with the lists, tuples and namedtuples that the recorded one has, wherever all their children are still there."""
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
