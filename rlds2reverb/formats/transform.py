"""Transforms of step columns: a declaration (`Transform`), checked against a spec, then applied to every episode of a source (`Transformed`)."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Union

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
    is_under,
)
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats.source import ALL, IsKnown, Source, Tally, Wrapper, checked_spec
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
from rlds2reverb.text import did_you_mean

# Operations are applied in one fixed order, however they are written: action, select, drop, resize, encode, rename, reward_last. All names but the new ones
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
      encode: path of an image column or a nest, or "all" -> "jpeg:quality=95" or "png": frames become files, after they are resized. Text without a
        path is for all images that such files can hold. The longest path decides.
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
    encode: Mapping[str, str] | str = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)
    reward_last: str = AS_RECORDED

    def __post_init__(self) -> None:
        for name in ("select", "drop"):
            paths = getattr(self, name)
            paths = (paths,) if isinstance(paths, str) else paths
            if not isinstance(paths, Sequence) or isinstance(paths, bytes):
                raise _error(name, f"{paths!r}: expected a list of paths")
            for path in paths:
                _check_path(name, path)
            _check_distinct(name, paths)
            object.__setattr__(self, name, tuple(paths))
        if isinstance(self.encode, str):
            object.__setattr__(self, "encode", {ALL: self.encode} if self.encode else {})
        for name in ("resize", "encode", "rename"):
            pairs = getattr(self, name)
            if not isinstance(pairs, Mapping):
                raise _error(name, f"{pairs!r}: expected a mapping that begins with paths of columns")
            for path in pairs:
                _check_path(name, path)
            object.__setattr__(self, name, dict(pairs))
        for path in self.rename.values():
            _check_path("rename", path)
        if self.reward_last not in LAST_REWARDS:
            raise _error(
                "reward_last",
                f"{self.reward_last!r}: expected one of {', '.join(LAST_REWARDS)}{did_you_mean(str(self.reward_last), LAST_REWARDS)}",
            )
        object.__setattr__(self, "action", written(self.parts) if self.parts else "")
        object.__setattr__(self, "resize", {path: str(size) for path, size in self.sizes.items()})
        object.__setattr__(self, "encode", {path: str(encoding) for path, encoding in self.encodings.items()})

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
        sizes = {}
        for path, text in self.resize.items():
            try:
                sizes[path] = Size.parse(text)
            except ConfigError as error:
                raise _error("resize", f'"{path}": {error}') from error
        return sizes

    @cached_property
    def encodings(self) -> Mapping[str, Encoding]:
        """Path of an image column or a nest, or "all" -> what files it becomes."""
        encodings = {}
        for path, text in self.encode.items() if isinstance(self.encode, Mapping) else ():
            try:
                encodings[path] = Encoding.of(text)
            except ConfigError as error:
                raise _error("encode", f'"{path}": {error}') from error
        return encodings

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
            "encode": {path: str(encoding) for path, encoding in self.encodings.items()},
            "rename": dict(self.rename),
            "reward_last": "" if self.reward_last == AS_RECORDED else self.reward_last,
        }
        return {name: value for name, value in values.items() if value}

    def lines(self) -> dict[str, str]:
        """Every operation that does something, in its order, as people read it."""
        lines = {}
        for name, value in self.as_dict().items():
            if isinstance(value, Mapping):
                lines[name] = ", ".join(f"{old} -> {new}" for old, new in value.items())
            else:
                lines[name] = value if isinstance(value, str) else ", ".join(value)
        return lines


def _error(operation: str, problem: str) -> ConfigError:
    return ConfigError(f"transform: {operation}: {problem}")


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

OPTIONS = tuple(option.name for option in fields(Transform))
SECTION = "transform"

_PARTS = re.compile(r"(?:[^,()]|\([^()]*\))+")
_OPTION = re.compile(r"\s*(\w+)\s*=(.*)", re.DOTALL)
_PAIRS = {  # option -> how one of its pairs is written, and how people say that
    "resize": (re.compile(r"(.+?)\s*:\s*([0-9]+x[0-9]+(?::\w+)?)"), "PATH:HEIGHTxWIDTH or PATH:HEIGHTxWIDTH:METHOD"),
    "encode": (
        re.compile(r"(?:([^=]+?)\s*:\s*)?((?:jpeg|png)(?::\w+=\w+)*)"),
        "jpeg:quality=95 or png, or PATH:jpeg:quality=95 or PATH:png",
    ),
    "rename": (re.compile(r"\s*([^:]*[^:\s])\s*:\s*([^:]*[^:\s])\s*"), 'OLD:NEW; names with ":" go into a YAML file'),
}


def transform_of(given: TransformLike) -> Transform:
    """The transform that is given; several add up to one, whatever their order.

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
    if isinstance(given, str):  # a file whose name looks like options can be written ./NAME
        match = _OPTION.match(given)
        if match is None:
            return _read(Path(given))
        is_file = False
        if match[1] not in OPTIONS:
            with suppress(OSError, ValueError):  # too long for a name, or with a NUL
                is_file = Path(given).exists()
        return _read(Path(given)) if is_file else _from_text(given)
    if isinstance(given, (list, tuple)):
        return _add_up([transform_of(part) for part in given])
    raise ConfigError(
        f"transform {given!r}: expected text such as resize=observation/image:256x256, a YAML file, or a mapping"
    )


def with_encode(transform: Transform, encode: str | Sequence[str] | Mapping[str, str]) -> Transform:
    """The transform with what the option `encode` says beside it; raises ConfigError if both say it of one path, or it makes no sense."""
    if not encode:
        return transform
    if isinstance(encode, Mapping):
        return _add_up([transform, Transform(encode=encode)])
    texts = list(encode) if isinstance(encode, (list, tuple)) else [encode]
    return _add_up([transform, Transform(encode=_mapping("encode", list(_pairs_of("encode", texts))))])


def _read(path: Path) -> Transform:
    from rlds2reverb import strict_yaml  # loads PyYAML, which a text does not need

    hint = f"; expected a YAML file, or text with {', '.join(f'{name}=' for name in OPTIONS)}"
    return _from_mapping(strict_yaml.read(path, hint), str(path))


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
    return f'no option "{name}"; there are {", ".join(OPTIONS)}{did_you_mean(name, OPTIONS)}'


def _from_text(text: str) -> Transform:
    values: dict[str, list[str]] = {}
    for name, value in _options_in(text):
        values.setdefault(name, []).append(value)
    options: dict[str, Any] = {}
    try:
        for name, each in values.items():
            if name in ("select", "drop"):
                options[name] = each
            elif name in _PAIRS:
                options[name] = _mapping(name, list(_pairs_of(name, each)))
            elif len(each) > 1:
                raise _error(name, f"expected one value, got {', '.join(each)}")
            else:
                options[name] = each[0]
        return Transform(**options)
    except ConfigError as error:
        raise ConfigError(f'"{text}": {error}') from error


def _pairs_of(name: str, texts: Sequence[object]) -> Iterator[tuple[str, str]]:
    pattern, expected = _PAIRS[name]
    for text in texts:
        match = pattern.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise _error(name, f'"{text}": expected {expected}')
        yield match[1] or ALL, match[2]


def _options_in(text: str) -> Iterator[tuple[str, str]]:
    name = ""
    if "".join(_PARTS.findall(text)) != re.sub(r",(?![^()]*\))", "", text):
        raise ConfigError(f'transform "{text}": expected brackets in pairs, as in action=concat(a,b)')
    for part in _PARTS.findall(text):
        match = _OPTION.fullmatch(part)
        if match is not None:
            name, part = match[1], match[2]
            if name not in OPTIONS:
                raise ConfigError(f'transform "{text}": {_unknown(name)}')
        yield name, part.strip()


def _mapping(name: str, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    merged: dict[str, str] = {}
    for path, value in pairs:
        if path in merged:
            raise _error(name, f'"{path}" stands twice')
        merged[path] = value
    return merged


def _add_up(parts: Sequence[Transform]) -> Transform:
    actions = [part.action for part in parts if part.action]
    if len(actions) > 1:
        raise ConfigError(f"transform: action: expected one, got {' and '.join(actions)}")
    shifts = [part.reward_last for part in parts if part.reward_last != Transform.reward_last]
    return Transform(
        select=[path for part in parts for path in part.select],
        drop=[path for part in parts for path in part.drop],
        action="".join(actions),
        resize=_mapping("resize", [pair for part in parts for pair in part.resize.items()]),
        encode=_mapping("encode", [pair for part in parts for pair in part.as_dict().get("encode", {}).items()]),
        rename=_mapping("rename", [pair for part in parts for pair in part.rename.items()]),
        reward_last=shifts[0] if shifts else Transform.reward_last,
    )


# A transform and a step spec -> the recipe of each new column; checked here, before an episode is read.
#
# | operation | refused |
# | --- | --- |
# | action | a part that is no column, is no number, or has another rank (a scalar counts as a vector of one number) |
# | select, drop | a pattern that no column matches; flags `is_first` and `is_last` cannot be dropped |
# | resize | a column that is no image: not uint8, uint16 or float32 of [height, width, channels], and no image files that `encode` makes anew |
# | encode | a path at which no image is that such files can hold |
# | rename | a name that is none of the columns left; two columns of one name; a column with the name of a nest |

ALWAYS_SELECTED = (REWARD, DISCOUNT, *FLAGS)
"""Kept by `select` even if they are not named: where these are absent they are filled in, which would hide that they were recorded."""

Specs = Mapping[str, ArraySpec]


@dataclass(frozen=True)
class Made:
    """A column after the transform: one recorded column as it is, resized or encoded, or several joined as one vector of floats.

    Attributes:
      reads: paths of the recorded columns.
      spec: of the new one.
      size: of resized images.
      encoding: of the files that are made.
      files: of image files that are decoded first: what they decode to.
      is_joined: whether it is the vector.
    """

    reads: tuple[str, ...]
    spec: ArraySpec
    size: Size | None = None
    encoding: Encoding | None = None
    files: ImageSpec | None = None
    is_joined: bool = False

    @property
    def is_taken(self) -> bool:
        return self.size is None and self.encoding is None and not self.is_joined

    def problem(self, columns: Sequence[Array]) -> tuple[str, str] | None:
        """Path and reason why recorded columns, each as its spec says, cannot be used; None when they can."""
        if not self.is_taken and not self.is_joined and self.files is None and 0 in columns[0].shape[1:3]:
            height, width = columns[0].shape[1:3]
            return self.reads[
                0
            ], f"images of {height}x{width} pixels cannot be {'encoded' if self.size is None else 'resized'}"
        if self.is_joined:
            for path, column in zip(self.reads, columns):
                if (reason := too_large(column, self.spec.dtype)) is not None:
                    return path, reason
        return None

    def make(self, columns: Sequence[Array]) -> Array:
        """[T, ...] columns, in the order of `reads`, of equal length -> the new column.

        Raises:
          SourceError: an image file is damaged, or of another size than its spec says.
        """
        if self.is_joined:
            return concat_columns(columns, self.spec.dtype)
        if self.files is not None and self.size is not None and self.encoding is not None:
            return encode_again(columns[0], self.files, self.size, self.encoding, self.reads[0])
        pixels = columns[0] if self.size is None else images.resize_images(columns[0], self.size)
        return pixels if self.encoding is None else encode_images(pixels, self.encoding)


def made_columns(transform: Transform, recorded: Specs) -> dict[str, Made]:
    """Path -> column, for steps of the recorded spec; in the order of the dataset.

    Raises:
      ConfigError: an operation that these steps do not allow; the message says what there is.
    """
    columns = {path: Made((path,), spec) for path, spec in recorded.items()}
    columns = _with_action(columns, transform.parts, recorded)
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
    without_action = {path: column for path, column in columns.items() if not is_under(path, ACTION)}
    return {**without_action, ACTION: Made(reads, spec, is_joined=True)}


def _check_matched(operation: str, columns: Mapping[str, Made], patterns: Sequence[str]) -> None:
    for pattern in patterns:
        if not any(_matches(path, pattern) for path in columns):
            raise _no_column(operation, pattern, list(columns))


def _matches(path: str, pattern: str) -> bool:
    """Whether a pattern names the column, or a nest that it is in; "*" stays between two slashes."""
    if is_under(path, pattern):
        return True
    names, patterns = path.split("/"), pattern.split("/")
    return len(patterns) <= len(names) and all(map(fnmatchcase, names, patterns))


def _with_sizes(columns: dict[str, Made], sizes: Mapping[str, Size]) -> dict[str, Made]:
    resized = dict(columns)
    for path, size in sizes.items():
        if path not in columns:
            raise _no_column("resize", path, list(columns))
        spec, files = columns[path].spec, None
        if spec.image is not None and not spec.shape:
            files, spec = spec.image, ArraySpec(spec.image.shape, spec.image.dtype)
        if spec.dtype.newbyteorder("=") not in IMAGE_DTYPES or len(spec.shape) != 3 or 0 in spec.shape[:2]:
            kinds = ", ".join(dtype_name(dtype) for dtype in IMAGE_DTYPES)
            raise _error("resize", f'"{path}" is {spec}: expected an image [height, width, channels] of {kinds}')
        shape = (size.height, size.width, spec.shape[2])
        resized[path] = Made((path,), replace(spec, shape=shape), size, files=files)
    return resized


def _with_encodings(columns: dict[str, Made], encodings: Mapping[str, Encoding]) -> dict[str, Made]:
    encoded, used = dict(columns), set()
    for path, column in columns.items():
        chosen = max((prefix for prefix in encodings if prefix != ALL and is_under(path, prefix)), key=len, default=ALL)
        encoding = encodings.get(chosen)
        problem = "" if encoding is None else encoding.problem(column.spec)
        if problem and chosen == path:
            raise _error("encode", f'"{path}" is {column.spec}: {problem}')
        if encoding is not None and not problem and (chosen == path or images.kind(column.spec) == images.LAST):
            encoded[path] = replace(column, spec=encoding.spec(column.spec), encoding=encoding)
            used.add(chosen)
        elif column.files is not None:
            raise _error(
                "resize",
                f'"{path}" is {column.files}: images that stay encoded cannot be resized; with encode (--encode jpeg:quality=95) they are '
                "decoded, resized and encoded again",
            )
    for prefix in encodings:
        if prefix not in used and not any(is_under(path, prefix) for path in columns) and prefix != ALL:
            raise _no_column("encode", prefix, list(columns))
        if prefix not in used:
            listed = ", ".join(f"{path} {column.spec}" for path, column in columns.items())
            raise _error("encode", f'"{prefix}": no image that {encodings[prefix]} could hold; there are {listed}')
    if used:
        check_encoding_library()
    return encoded


def _rename_columns(columns: dict[str, Made], names: Mapping[str, str]) -> dict[str, Made]:
    if not names:
        return columns
    for old in names:
        if not any(is_under(path, old) for path in columns):
            raise _no_column("rename", old, list(columns))
        if above := [other for other in names if other != old and is_under(old, other)]:
            raise _error("rename", f'"{old}" is part of "{above[0]}"; rename one of them')
    made: dict[str, Made] = {}
    sources: dict[str, str] = {}
    for path, column in columns.items():
        renamed = next((old for old in names if is_under(path, old)), "")
        new = names[renamed] + path[len(renamed) :] if renamed else path
        if new in made:
            raise _error("rename", f'"{sources[new]}" and "{path}" would both be named "{new}"')
        made[new], sources[new] = column, path
    nests: dict[str, str] = {}  # of all columns: their path -> one of the columns
    for path in made:
        keys = path.split("/")
        nests |= {"/".join(keys[:depth]): path for depth in range(1, len(keys))}
    if both := [path for path in made if path in nests]:
        raise ConfigError(
            f'transform: rename: column "{both[0]}" would have the name of the nest of "{nests[both[0]]}"'
        )
    return made


def _no_column(operation: str, path: str, there: Sequence[str], what: str = "no column") -> ConfigError:
    listed = ", ".join(there)
    return ConfigError(
        f'transform: {operation}: "{path}" is {what} of the steps; there are {listed}{did_you_mean(path, there)}'
    )


def left_out(columns: Mapping[str, Made], recorded: Specs) -> tuple[str, ...]:
    """Recorded columns that none of the new ones is made of."""
    read = {path for column in columns.values() for path in column.reads}
    return tuple(path for path in recorded if path not in read)


# Numbers of several columns joined into one vector per step: `concat(world_vector, rotation_delta, gripper)`.

_WRITTEN, _END = "concat(", ")"


def parts_of(text: str) -> tuple[str, ...] | None:
    """The paths in "concat(PATH, PATH, ...)"; None when it is not of that form."""
    text = text.strip()
    if not text.startswith(_WRITTEN) or not text.endswith(_END):
        return None
    return tuple(part.strip() for part in text[len(_WRITTEN) : -len(_END)].split(","))


def written(parts: Sequence[str]) -> str:
    return f"{_WRITTEN}{', '.join(parts)}{_END}"


def joined_spec(parts: Sequence[ArraySpec]) -> ArraySpec | None:
    """The spec of columns joined along the last axis, or None when they cannot be: no numbers, or shapes that do not go together.

    A scalar counts as a vector of one number. Truth values and integers become the floats of the rest; floats become the widest
    among them, at least float32. So nothing is rounded, unless integers are `too_large`.
    """
    dtypes = [part.dtype for part in parts]
    if not all(dtype.kind in "biuf" or dtype.name == "bfloat16" for dtype in dtypes):
        return None
    shapes = [part.shape or (1,) for part in parts]
    if len({shape[:-1] for shape in shapes}) > 1:
        return None
    last = [shape[-1] for shape in shapes]
    total = None if None in last else sum(size or 0 for size in last)
    dtype = np.result_type(np.float32, *(dtype for dtype in dtypes if dtype.kind == "f"))
    return ArraySpec((*shapes[0][:-1], total), dtype)


def concat_columns(columns: Sequence[Array], dtype: np.dtype[Any]) -> Array:
    """[T] and [T, ..., n] columns -> [T, ..., sum of n], in their order."""
    vectors = [column[:, None] if column.ndim == 1 else column for column in columns]
    return np.concatenate([vector.astype(dtype) for vector in vectors], axis=-1)


def too_large(column: Array, dtype: np.dtype[Any]) -> str | None:
    """Why a column of integers is not exact in floats of this dtype, with the first such step; None when it is exact."""
    most = 2 ** (np.finfo(dtype).nmant + 1)
    if column.dtype.kind not in "iu" or not column.size or (int(column.max()) <= most and int(column.min()) >= -most):
        return None
    rows = column.reshape(len(column), -1)
    step = next(number for number, row in enumerate(rows) if int(row.max()) > most or int(row.min()) < -most)
    worst = max(map(int, rows[step]), key=abs)
    return f"step {step} has {worst}: expected integers of at most {most:,}, which {dtype.name} holds exactly"


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
        return _with_containers(nested({path: column.spec for path, column in self._made.items()}), self._recorded)

    def images(self) -> Mapping[str, ImageSpec]:
        """The source's, under their new names; without those that are resized or left out."""
        offered = self._source.images()
        return {path: offered[recorded] for path, recorded in self._taken.items() if recorded in offered}

    def encoded(self, paths: Collection[str]) -> Transformed:
        return Transformed(self._source.encoded([self._taken[path] for path in paths]), self._transform, self._lacking)

    def without(self, paths: Collection[str]) -> Transformed:
        return Transformed(self._source, self._transform, self._lacking.union(paths))

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        made, recorded = self._made, flatten(self._recorded)
        episodes = self._read.read(start, stop, is_known)
        return (
            episode if isinstance(episode, KnownEpisode) else made_of(episode, made, recorded) for episode in episodes
        )

    def at(self, numbers: Sequence[int]) -> Iterator[tuple[int, Episode]]:
        made, recorded = self._made, flatten(self._recorded)
        return ((number, made_of(episode, made, recorded)) for number, episode in self._read.at(numbers))

    def episode_lengths(self) -> Sequence[int] | None:
        return self._read.episode_lengths()

    def count_lengths(self) -> Sequence[int]:
        return self._read.count_lengths()

    @property
    def notices(self) -> tuple[Notice, ...]:
        return self._read.notices

    @property
    def tallies(self) -> tuple[Tally, ...]:
        return self._read.tallies

    @property
    def left_out(self) -> tuple[str, ...]:
        return left_out(self._made, flatten(self._recorded))

    @property
    def encodes(self) -> Mapping[str, bool]:
        inner = self._source.encodes
        taken = {path: inner[recorded] for path, recorded in self._taken.items() if recorded in inner}
        made_here = {
            path: column.files is not None for path, column in self._made.items() if column.encoding is not None
        }
        return {**taken, **made_here}

    def recorded_path(self, path: str) -> str:
        column = self._made.get(path)
        return self._source.recorded_path(path if column is None or column.is_joined else column.reads[0])

    @property
    def _taken(self) -> dict[str, str]:
        """New path -> recorded path, for the columns that stay unchanged."""
        return {path: column.reads[0] for path, column in self._made.items() if column.is_taken}

    @cached_property
    def _recorded(self) -> Nest:
        return checked_spec(self._source)

    @cached_property
    def _read(self) -> Source:
        """The source without the columns that nothing is made of."""
        return self._source.without(self.left_out)

    @cached_property
    def _made(self) -> dict[str, Made]:
        made = made_columns(self._transform, flatten(self._recorded))
        return {path: column for path, column in made.items() if path not in self._lacking}


def transformed(source: Source, transform: Transform) -> Source:
    """The source with its columns transformed; the source itself when nothing is done to them."""
    return Transformed(source, transform) if transform.changes_columns else source


def made_of(episode: Episode, new_columns: Mapping[str, Made], recorded: Specs) -> Episode:
    """An episode as recorded -> with the columns that are made of it, and the faults that prevent further ones.

    A column that the recorded spec does not have stays as it is, so that validation refuses it by name.
    """
    columns: dict[str, Array] = {}
    if episode.faults and not episode.columns:
        return episode
    faults: list[tuple[str, str]] = []
    for path, column in new_columns.items():
        if column.is_taken:  # whatever it is, validation sees it
            if column.reads[0] in episode.columns:
                columns[path] = episode.columns[column.reads[0]]
            continue
        new_faults = _faults(episode, column, recorded)
        faults += new_faults
        if not new_faults:
            try:
                columns[path] = column.make([episode.columns[read] for read in column.reads])
            except SourceError as error:
                faults.append((column.reads[0], str(error)))
    for path, unknown_column in episode.columns.items():
        if path not in recorded and path in columns:
            faults.append((path, "the dataset's spec has no such column, and the transform makes one of this name"))
        elif path not in recorded:
            columns[path] = unknown_column
    return replace(episode, columns=columns, faults=(*episode.faults, *faults))


def _faults(episode: Episode, column: Made, recorded: Specs) -> list[tuple[str, str]]:
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
    columns = [episode.columns[path] for path in column.reads]
    rows = [len(rows_of_column) for rows_of_column in columns]
    if len(set(rows)) > 1:
        listed = ", ".join(f"{path} {count:,}" for path, count in zip(column.reads, rows))
        return [(column.reads[0], f"expected columns of equal length, got {listed}")]
    fault = column.problem(columns)
    return [] if fault is None else [fault]


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
