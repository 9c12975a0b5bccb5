"""Transforms of step columns: a declaration (`Transform`), and how people write it. `transformed` applies it to the episodes of a source."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Union

from rlds2reverb.encoding import Encoding
from rlds2reverb.episode import ACTION, is_under
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.expressions import Call, Column, Expression, expression_of
from rlds2reverb.formats.operations import KEYWORD
from rlds2reverb.formats.source import ALL
from rlds2reverb.images import Size
from rlds2reverb.text import did_you_mean

# Operations are applied in one fixed order, however they are written: make, action, select, drop, resize, encode, rename, reward_last, and rows that are
# dropped. All names but the new ones of `make` and `rename` are those of the dataset.

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
      make: path of a column -> the expression that makes it, such as "gripper_invert(action[6])" (`expressions`); in place of all that was there
        and below it. Expressions see the recorded columns, and none that another expression makes.
      drop_first_rows, drop_last_rows: number of rows that an episode loses at its ends, after all columns are made of them.

    Raises:
      ConfigError: a value of another type, a path that is none, one that stands twice, an expression, a size or method that makes no sense.
    """

    select: Sequence[str] = ()
    drop: Sequence[str] = ()
    action: str = ""
    resize: Mapping[str, str] = field(default_factory=dict)
    encode: Mapping[str, str] | str = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)
    reward_last: str = AS_RECORDED
    make: Mapping[str, str] = field(default_factory=dict)
    drop_first_rows: int = 0
    drop_last_rows: int = 0

    def __post_init__(self) -> None:
        for name in ("select", "drop"):
            paths = getattr(self, name)
            paths = (paths,) if isinstance(paths, str) else paths
            if not isinstance(paths, Sequence) or isinstance(paths, bytes):
                raise transform_error(name, f"{paths!r}: expected a list of paths")
            for path in paths:
                _check_path(name, path)
            _check_distinct(name, paths)
            object.__setattr__(self, name, tuple(paths))
        if isinstance(self.encode, str):
            object.__setattr__(self, "encode", {ALL: self.encode} if self.encode else {})
        for name in ("resize", "encode", "rename", "make"):
            pairs = getattr(self, name)
            if not isinstance(pairs, Mapping):
                raise transform_error(name, f"{pairs!r}: expected a mapping that begins with paths of columns")
            for path in pairs:
                _check_path(name, path)
            object.__setattr__(self, name, dict(pairs))
        for path in self.rename.values():
            _check_path("rename", path)
        if self.reward_last not in LAST_REWARDS:
            raise transform_error(
                "reward_last",
                f"{self.reward_last!r}: expected one of {', '.join(LAST_REWARDS)}{did_you_mean(str(self.reward_last), LAST_REWARDS)}",
            )
        for name in ("drop_first_rows", "drop_last_rows"):
            rows = getattr(self, name)
            if isinstance(rows, bool) or not isinstance(rows, int) or rows < 0:
                raise transform_error(name, f"{rows!r}: expected a number of rows")
        for path in self.make:
            if above := [other for other in self.make if other != path and is_under(path, other)]:
                raise transform_error("make", f'"{path}" is part of "{above[0]}"; make one of them')
        if self.parts and ACTION in self.make:
            raise transform_error("make", f'"{ACTION}" is made by the operation action as well; write one of them')
        # In one way of writing, so that transforms that do the same are equal and have one label.
        object.__setattr__(self, "action", written(self.parts) if self.parts else "")
        object.__setattr__(self, "make", {path: self.expressions[path].text for path in self.make})
        object.__setattr__(self, "resize", {path: str(size) for path, size in self.sizes.items()})
        object.__setattr__(self, "encode", {path: str(encoding) for path, encoding in self.encodings.items()})

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """Paths of the columns that the action is made of, in their order; () when it stays as it is."""
        if self.action == "":
            return ()
        parts = parts_of(self.action) if isinstance(self.action, str) else None
        if parts is None:
            raise transform_error("action", f"{self.action!r}: expected concat(PATH, PATH, ...)")
        for part in parts:
            _check_path("action", part.removeprefix("/"))
        _check_distinct("action", [_path_of_part(part) for part in parts])
        return parts

    @cached_property
    def sizes(self) -> Mapping[str, Size]:
        """Path of an image column -> what it becomes."""
        sizes = {}
        for path, text in self.resize.items():
            try:
                sizes[path] = Size.parse(text)
            except ConfigError as error:
                raise transform_error("resize", f'"{path}": {error}') from error
        return sizes

    @cached_property
    def encodings(self) -> Mapping[str, Encoding]:
        """Path of an image column or a nest, or "all" -> what files it becomes."""
        encodings = {}
        for path, text in self.encode.items() if isinstance(self.encode, Mapping) else ():
            try:
                encodings[path] = Encoding.of(text)
            except ConfigError as error:
                raise transform_error("encode", f'"{path}": {error}') from error
        return encodings

    @cached_property
    def expressions(self) -> Mapping[str, Expression]:
        """Path of a column -> what makes it; that of `action` among them."""
        expressions = {path: expression_of(text, f'transform: make: "{path}"') for path, text in self.make.items()}
        if self.parts:
            expressions[ACTION] = Call("concat", tuple(Column(_path_of_part(part)) for part in self.parts))
        return expressions

    @property
    def dropped_rows(self) -> tuple[int, int]:
        """Rows that an episode loses at its beginning and at its end, for which `delta` has no next one."""
        lookahead = max((expression.lookahead for expression in self.expressions.values()), default=0)
        return self.drop_first_rows, max(self.drop_last_rows, lookahead)

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
            "make": dict(self.make),
            "action": self.action,
            "select": list(self.select),
            "drop": list(self.drop),
            "resize": dict(self.resize),
            "encode": {path: str(encoding) for path, encoding in self.encodings.items()},
            "rename": dict(self.rename),
            "reward_last": "" if self.reward_last == AS_RECORDED else self.reward_last,
            "drop_first_rows": self.drop_first_rows,
            "drop_last_rows": self.drop_last_rows,
        }
        return {name: value for name, value in values.items() if value}

    def lines(self) -> dict[str, str]:
        """Every operation that does something, in its order, as people read it."""
        lines = {}
        for name, value in self.as_dict().items():
            if isinstance(value, Mapping):
                sign = "=" if name == "make" else "->"
                lines[name] = ", ".join(f"{old} {sign} {new}" for old, new in value.items())
            else:
                lines[name] = ", ".join(value) if isinstance(value, list) else str(value)
        return lines


def transform_error(operation: str, problem: str) -> ConfigError:
    """What a transform says that is wrong with one of its operations."""
    return ConfigError(f"transform: {operation}: {problem}")


def _check_path(operation: str, path: object) -> None:
    if not isinstance(path, str) or not path.isprintable() or not all(part.strip() for part in path.split("/")):
        raise transform_error(operation, f"{path!r}: expected a path of a column, such as observation/image")


def _check_distinct(operation: str, paths: Sequence[str]) -> None:
    if twice := [path for number, path in enumerate(paths) if path in paths[:number]]:
        raise transform_error(operation, f'"{twice[0]}" stands twice')


# A transform from what people write: text as on a command line, a YAML file, or a mapping as YAML gives it.
#
# Text is "option=value,value,option=value,...": a part without "=" is one more value of the option before it.
#
# >>> transform_of("resize=observation/image:64x64,select=observation/image,action").as_dict()
# {'select': ['observation/image', 'action'], 'resize': {'observation/image': '64x64:area'}}

TransformLike = Union[Transform, str, Path, Mapping[str, Any], Sequence[Any]]
"""A transform, text, a YAML file or its name, the name of a shipped one, a mapping; or several of these, which add up."""

_ROWS = ("drop_first_rows", "drop_last_rows")
OPTIONS = tuple(option.name for option in fields(Transform))
SECTION = "transform"

_PAIRS = {  # option -> how one of its pairs is written, and how people say that
    "resize": (re.compile(r"(.+?)\s*:\s*([0-9]+x[0-9]+(?::\w+)?)"), "PATH:HEIGHTxWIDTH or PATH:HEIGHTxWIDTH:METHOD"),
    "encode": (
        re.compile(r"(?:([^=]+?)\s*:\s*)?((?:jpeg|png)(?::\w+=\w+)*)"),
        "jpeg:quality=95 or png, or PATH:jpeg:quality=95 or PATH:png",
    ),
    "make": (
        re.compile(r"\s*([^:(]*[^:(\s])\s*:\s*(.+)", re.DOTALL),
        "PATH:EXPRESSION, such as action:concat(PATH, PATH[:3])",
    ),
    "rename": (re.compile(r"\s*([^:]*[^:\s])\s*:\s*([^:]*[^:\s])\s*"), 'OLD:NEW; names with ":" go into a YAML file'),
}


def transform_of(like: TransformLike) -> Transform:
    """The transform that is meant; several add up to one, whatever their order.

    Args:
      like: a `Transform`; text "option=value,..."; a YAML file, by its `Path` or its name; the name of a shipped one, such as
        "open_x/bridge_orig"; a mapping of `Transform`'s fields, alone or below the key "transform"; or a list of these.

    Raises:
      ConfigError: says what was expected and what came; for a file, where.
    """
    if isinstance(like, Transform):
        return like
    if isinstance(like, Mapping):
        return _from_mapping(like, "transform")
    if isinstance(like, Path):
        return _read(like)
    if isinstance(like, str):  # a file whose name looks like options can be written ./NAME
        match = KEYWORD.match(like)
        if match is None:
            return _read(_file_named(like))
        is_file = False
        if match[1] not in OPTIONS:
            with suppress(OSError, ValueError):  # too long for a name, or with a NUL
                is_file = Path(like).exists()
        return _read(Path(like)) if is_file else _from_text(like)
    if isinstance(like, (list, tuple)):
        return _add_up([transform_of(part) for part in like])
    raise ConfigError(
        f"transform {like!r}: expected text such as resize=observation/image:256x256, a YAML file, or a mapping"
    )


_REPOSITORY = Path(__file__).parents[2]
SHIPPED = next(
    (folder for folder in (Path(__file__).parents[1] / "configs", _REPOSITORY / "configs") if folder.is_dir()),
    _REPOSITORY,
)  # installed, the package holds the folder (pyproject.toml)


def shipped_transforms() -> tuple[str, ...]:
    """Names of the transforms that come with the package: those of sets of Open X-Embodiment, such as "open_x/bridge_orig"."""
    return tuple(sorted(f"open_x/{path.stem}" for path in (SHIPPED / "open_x").glob("*.yaml")))


_OTHER_NAMES = {"bridge": "bridge_oxe", "bridge_dataset": "bridge_orig"}
_SUFFIX = re.compile(r"(_dataset)?(_converted_externally_to_rlds)?\Z")


def _file_named(name: str) -> Path:
    """A file of this name, else the shipped transform; raises ConfigError for one that is neither, but looks like the latter.

    A set may also be called as TFDS or OpenVLA call it: stanford_hydra_dataset_converted_externally_to_rlds, libero_10_no_noops.
    """
    folder, _, dataset = name.partition("/")
    if folder != "open_x" or Path(name).exists():
        return Path(name)
    short = _OTHER_NAMES.get(dataset) or _SUFFIX.sub("", dataset, count=1)
    short = "libero" if short.startswith("libero_") else short
    names = shipped_transforms()
    if f"{folder}/{short}" not in names:
        raise ConfigError(
            f'transform "{name}": no file, and no shipped transform; there are {", ".join(names)}{did_you_mean(name, names)}'
        )
    return SHIPPED / folder / f"{short}.yaml"


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
        for name, texts in values.items():
            if name in ("select", "drop"):
                options[name] = texts
            elif name in _ROWS and len(texts) == 1 and re.fullmatch(r"\d{1,9}", texts[0], re.ASCII):
                options[name] = int(texts[0])
            elif name in _PAIRS:
                options[name] = _mapping(name, list(_pairs_of(name, texts)))
            elif len(texts) > 1:
                raise transform_error(name, f"expected one value, got {', '.join(texts)}")
            else:
                options[name] = texts[0]
        return Transform(**options)
    except ConfigError as error:
        raise ConfigError(f'"{text}": {error}') from error


def _pairs_of(name: str, texts: Sequence[object]) -> Iterator[tuple[str, str]]:
    pattern, expected = _PAIRS[name]
    for text in texts:
        match = pattern.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise transform_error(name, f'"{text}": expected {expected}')
        yield match[1] or ALL, match[2]


def _options_in(text: str) -> Iterator[tuple[str, str]]:
    name = ""
    for part in _split_outside_brackets(text):
        match = KEYWORD.fullmatch(part)
        if match is not None:
            name, part = match[1], match[2]
            if name not in OPTIONS:
                raise ConfigError(f'transform "{text}": {_unknown(name)}')
        yield name, part.strip()


def _split_outside_brackets(text: str) -> Iterator[str]:
    depth = start = 0
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth < 0:
            break
        if sign == "," and not depth:
            yield text[start:place]
            start = place + 1
    if depth:
        raise ConfigError(f'transform "{text}": expected brackets in pairs, as in action=concat(a,b)')
    yield text[start:]


def _mapping(name: str, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    merged: dict[str, str] = {}
    for path, value in pairs:
        if path in merged:
            raise transform_error(name, f'"{path}" stands twice')
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
        make=_mapping("make", [pair for part in parts for pair in part.make.items()]),
        drop_first_rows=max((part.drop_first_rows for part in parts), default=0),
        drop_last_rows=max((part.drop_last_rows for part in parts), default=0),
    )


# An action in the short form of the operation `action`, "concat(PATH, PATH, ...)": paths are below `action`, those that begin with "/" are any.

_WRITTEN, _END = "concat(", ")"


def parts_of(text: str) -> tuple[str, ...] | None:
    """The paths in "concat(PATH, PATH, ...)"; None when it is not of that form."""
    text = text.strip()
    if not text.startswith(_WRITTEN) or not text.endswith(_END):
        return None
    return tuple(part.strip() for part in text[len(_WRITTEN) : -len(_END)].split(","))


def _path_of_part(part: str) -> str:
    return part[1:] if part.startswith("/") else f"{ACTION}/{part}"


def written(parts: Sequence[str]) -> str:
    return f"{_WRITTEN}{', '.join(parts)}{_END}"
