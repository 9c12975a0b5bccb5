"""A transform from what people write: text as on a command line, a YAML file, or a mapping as YAML gives it.

Text is "option=value,value,option=value,...": a part without "=" is one more value of the option before it.

>>> transform_of("resize=observation/image:64x64,select=observation/image,action").as_dict()
{'select': ['observation/image', 'action'], 'resize': {'observation/image': '64x64:area'}}
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Union

from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import Lazily
from rlds2reverb.transforms.transform import Transform

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
    """One transform that does what several say."""
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
