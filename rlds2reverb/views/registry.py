"""Views by name, as the command line and configs write them: `sequence:length=8,stride=4`, or a YAML file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import yaml

from rlds2reverb.errors import ViewError
from rlds2reverb.views.across import AcrossEpisodes
from rlds2reverb.views.base import View
from rlds2reverb.views.episode import WholeEpisode
from rlds2reverb.views.fragments import Fragments
from rlds2reverb.views.frame_stack import FrameStack
from rlds2reverb.views.goal import Goal
from rlds2reverb.views.jigsaw import Jigsaw
from rlds2reverb.views.n_step import NStep
from rlds2reverb.views.prioritized import Prioritized
from rlds2reverb.views.requirements import Requirements
from rlds2reverb.views.sequence import Sequence, two_step
from rlds2reverb.views.slices import Slices
from rlds2reverb.views.target_pair import TargetPair
from rlds2reverb.views.transition import Transition

_PLAIN_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0b[01_]+|0o?[0-7_]+)$")


class _Loader(yaml.SafeLoader):
    """YAML 1.1 without its numbers to base 60, which would make -180 of the shift -3:0, and without keys that stand twice."""

    yaml_implicit_resolvers = {  # noqa: RUF012, as PyYAML declares it
        first: [
            (tag, _PLAIN_INT if tag == "tag:yaml.org,2002:int" else pattern)
            for tag, pattern in resolvers
            if first != ":"
        ]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping; a key that stands twice is an error."""
        keys = [key.value for key, _ in node.value]
        if again := [key for number, key in enumerate(keys) if key in keys[:number]]:
            raise yaml.constructor.ConstructorError(
                None, None, f'"{again[0]}" stands twice, expected once', node.start_mark
            )
        return super().construct_mapping(node, deep)


VIEWS: dict[str, Callable[..., View]] = {
    "two_step": two_step,
    "sequence": Sequence,
    "episode": WholeEpisode,
    "across_episodes": AcrossEpisodes,
    "transition": Transition,
    "n_step": NStep,
    "frame_stack": FrameStack,
    "slices": Slices,
    "requirements": Requirements,
    "target_pair": TargetPair,
    "jigsaw": Jigsaw,
    "goal": Goal,
    "fragments": Fragments,
}
"""Name -> constructor."""

FROM_CONFIG_ONLY = ("requirements",)
"""Views whose options do not fit on a command line."""


def view_of(text: str) -> View:
    """A view from "NAME" or "NAME:option=value,option=value".

    `priority` is a number, or the path of a column that has one a step (see `Prioritized`).

    >>> view_of("sequence:length=8,stride=4")
    Sequence(length=8, stride=4, pad_end=False, tile_end=False, priority=1.0)

    Raises:
      ViewError: an unknown name or option, one that stands twice, or a value that makes no sense.
    """
    name, _, options = text.partition(":")
    arguments: dict[str, Any] = {}
    for part in filter(None, options.split(",")):
        key, separator, value = part.partition("=")
        if not separator:
            raise ViewError(f'view "{text}": expected option=value, got "{part}"')
        if key in arguments:
            raise ViewError(f'view "{text}": option "{key}" stands twice')
        arguments[key] = _value(value)
    if name in FROM_CONFIG_ONLY and not arguments:
        raise ViewError(f'view "{name}": its options do not fit here; write them to a YAML file (--view-config FILE)')
    return _make(name, arguments, f'view "{text}"')


def view_from(config: Any, where: str = "view") -> View:
    """A view from what YAML gives: text as for `view_of`, or a mapping with `view` (its name) and its options.

    Raises:
      ViewError: says `where`, what was expected and what came.
    """
    if isinstance(config, str):
        return view_of(config)
    if not isinstance(config, Mapping) or not isinstance(config.get("view"), str):
        raise ViewError(f'{where}: expected a view\'s name, or a mapping with "view" and its options, got {config!r}')
    return _make(config["view"], {key: value for key, value in config.items() if key != "view"}, where)


def read_view(path: Path) -> View:
    """A view from a YAML file; see `view_from`.

    Raises:
      ViewError: the file cannot be read, is not YAML, or names no view.
    """
    try:
        config = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506, a safe one
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ViewError(f"{path}: cannot be read as YAML: {' '.join(str(error).split())}") from error
    return view_from(config, str(path))


def _make(name: str, arguments: Mapping[str, Any], where: str) -> View:
    if name not in VIEWS:
        raise ViewError(f'{where}: "{name}", expected one of {", ".join(VIEWS)}')
    known = list(signature(VIEWS[name]).parameters)
    if unknown := sorted(set(map(str, arguments)) - set(known)):
        raise ViewError(f"{where}: {name} has no option {', '.join(unknown)}; it has {', '.join(known)}")
    by = arguments.get("priority")
    given = {key: value for key, value in arguments.items() if key != "priority" or not isinstance(by, str)}
    try:
        view = VIEWS[name](**given)
        return Prioritized(view, by) if isinstance(by, str) else view
    except TypeError as error:
        raise ViewError(f"{where}: {error}") from error


def _value(text: str) -> Any:
    """A number, true, false, none, or else a word."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
