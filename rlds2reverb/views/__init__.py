"""Views: how an episode is cut into rows and items. One file a view; `base` says what a view is, `cuts` what it makes.

The command line and configs write a view as `sequence:length=8,stride=4`, or as a YAML file.

>>> from rlds2reverb.views import NStep, view_of
>>> view_of("n_step:n=5") == NStep(n=5)
True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from rlds2reverb.cuts import Cut, Field, Window
from rlds2reverb.errors import ViewError
from rlds2reverb.text import did_you_mean
from rlds2reverb.views.base import EpisodeStream, Extras, StreamView, View, spell_options
from rlds2reverb.views.chunk import Chunk
from rlds2reverb.views.fragments import Fragments
from rlds2reverb.views.frame_stack import FrameStack
from rlds2reverb.views.goal import Goal
from rlds2reverb.views.jigsaw import Jigsaw
from rlds2reverb.views.n_step import NStep
from rlds2reverb.views.prioritized import Prioritized, by_return, return_of
from rlds2reverb.views.requirements import Requirements, ViewRequirement
from rlds2reverb.views.slices import Slices
from rlds2reverb.views.target_pair import TargetPair
from rlds2reverb.views.trajectory import AcrossEpisodes, SequenceView, WholeEpisode, table_signature, two_step
from rlds2reverb.views.transition import Transition

__all__ = [
    "VIEWS",
    "AcrossEpisodes",
    "Chunk",
    "Cut",
    "EpisodeStream",
    "Extras",
    "Field",
    "Fragments",
    "FrameStack",
    "Goal",
    "Jigsaw",
    "NStep",
    "Prioritized",
    "Requirements",
    "SequenceView",
    "Slices",
    "StreamView",
    "TargetPair",
    "Transition",
    "View",
    "ViewLike",
    "ViewRequirement",
    "WholeEpisode",
    "Window",
    "by_return",
    "return_of",
    "table_signature",
    "two_step",
    "view_from",
    "view_of",
]

ViewLike = View | str | Mapping[str, Any]
"""What people give for a view: a view, its name with options ("sequence:length=8"), or a mapping with `view` (the name) and the options."""

VIEWS: dict[str, Callable[..., View]] = {
    "two_step": two_step,
    "sequence": SequenceView,
    "episode": WholeEpisode,
    "across_episodes": AcrossEpisodes,
    "transition": Transition,
    "n_step": NStep,
    "frame_stack": FrameStack,
    "chunk": Chunk,
    "slices": Slices,
    "requirements": Requirements,
    "target_pair": TargetPair,
    "jigsaw": Jigsaw,
    "goal": Goal,
    "fragments": Fragments,
}
"""Name -> constructor."""

PURPOSES = {
    "two_step": "TF-Agents trajectories of two rows",
    "sequence": "TF-Agents trajectories of a fixed length",
    "episode": "whole episodes",
    "across_episodes": "trajectories that cross the borders of episodes",
    "transition": "single transitions, as TorchRL has them",
    "n_step": "n-step returns, as Acme or TorchRL make them",
    "frame_stack": "stacked frames (DQN, Atari)",
    "chunk": "action chunks with padding masks (ACT, diffusion policy, VLA; LeRobot's delta_timestamps)",
    "slices": "random slices, as TorchRL samples them",
    "requirements": "RLlib's view requirements",
    "target_pair": "pairs of context and target (il-representations)",
    "jigsaw": "jigsaw puzzles of images (il-representations)",
    "goal": "goals that the episode reached (hindsight, dlimp, Octo)",
    "fragments": "RLlib's rollout fragments",
}
"""Name -> what a learner gets by it; for help, and in docs/views.md."""

FROM_CONFIG_ONLY = ("requirements",)
"""Views whose options do not fit on a command line."""


def view_of(text: str) -> View:
    """A view from "NAME" or "NAME:option=value,option=value".

    `priority` is a number, or the path of a column that has one per step (see `Prioritized`).

    >>> view_of("sequence:length=8,stride=4")
    SequenceView(length=8, stride=4, pad_end=False, tile_end=False, priority=1.0, extras=Extras(()))

    Raises:
      ViewError: an unknown name or option, an option that stands twice, or a value that makes no sense.
    """
    name, _, options = text.partition(":")
    arguments: dict[str, Any] = {}
    for part in filter(None, options.split(",")):
        key, separator, value = part.partition("=")
        if not separator:
            raise ViewError(f'view "{text}": expected option=value, got "{part}"')
        if key in arguments:
            raise ViewError(f'view "{text}": option "{key}" stands twice')
        arguments[key] = _value(name, key, value)
    if name in FROM_CONFIG_ONLY and not arguments:
        raise ViewError(f'view "{name}": its options do not fit here; write them to a YAML file (--view-config FILE)')
    return _make(name, arguments, f'view "{text}"')


def shorten_view(text: str) -> str:
    """A view's stored name, or several with ", " between them, without the options that have their defaults; other text as it is.

    Signatures and reports name views by all their options, because that is compared. This is for showing such a name. It opens no file, as
    `view_of` would for some names: the text may come from a server.

    >>> shorten_view("n_step:n=5,gamma=0.99,style=acme")
    'n_step:n=5'
    >>> shorten_view("sequence:length=2,stride=1,pad_end=False,tile_end=False,extras=language")
    'two_step:extras=language'
    """
    shortened = []
    for view in text.split(", "):
        name, _, options = view.partition(":")
        parts = dict(part.partition("=")[::2] for part in options.split(",") if part)
        if name not in VIEWS or not parts.keys() <= signature(VIEWS[name]).parameters.keys():
            return text
        defaults = {option: parameter.default for option, parameter in signature(VIEWS[name]).parameters.items()}
        parts = {option: value for option, value in parts.items() if _value(name, option, value) != defaults[option]}
        if name == "sequence" and parts.keys() <= {"priority", "extras"}:
            name = "two_step"
        words = {
            option: value.lower() if value in ("True", "False", "None") else value for option, value in parts.items()
        }
        shortened.append(spell_options(name, words))
    return ", ".join(shortened)


def view_from(config: Any, where: str = "view") -> View:
    """A view from what YAML gives: text as for `view_of`, or a mapping with `view` (its name) and its options.

    Raises:
      ViewError: says `where`, what was expected and what came.
    """
    if isinstance(config, str):
        return view_of(config)
    if not isinstance(config, Mapping) or not isinstance(config.get("view"), str):
        came = f"the keys {', '.join(map(str, config))}" if isinstance(config, Mapping) else repr(config)
        raise ViewError(f'{where}: expected a view\'s name, or a mapping with "view" and its options, got {came}')
    return _make(config["view"], {key: value for key, value in config.items() if key != "view"}, where)


def is_view_config(config: Mapping[str, Any]) -> bool:
    """Whether a mapping describes one view, as for `view_from`; else it may be one from tables to views."""
    name = config.get("view")
    return name in VIEWS and config.keys() - {"view"} <= signature(VIEWS[name]).parameters.keys()


def _make(name: str, arguments: Mapping[str, Any], where: str) -> View:
    if name not in VIEWS:
        raise ViewError(f'{where}: "{name}", expected one of {", ".join(VIEWS)}{did_you_mean(name, VIEWS)}')
    options = signature(VIEWS[name]).parameters
    if unknown := sorted(set(map(str, arguments)) - set(options)):
        meant = did_you_mean(unknown[0], options)
        raise ViewError(f"{where}: {name} has no option {', '.join(unknown)}; it has {', '.join(options)}{meant}")
    needed = [option for option, parameter in options.items() if parameter.default is Parameter.empty]
    if missing := [option for option in needed if option not in arguments]:
        raise ViewError(f"{where}: {name} needs {', '.join(missing)}; it has {', '.join(options)}")
    by = arguments.get("priority")
    if not isinstance(by, str):
        return VIEWS[name](**arguments)
    options_of_view = {option: value for option, value in arguments.items() if option != "priority"}
    return Prioritized(VIEWS[name](**options_of_view), by)


def _value(view: str, option: str, text: str) -> Any:
    """A number, true, false, none, or else a word; always a word for an option that is one, as the mode "none" of target_pair."""
    parameters = signature(VIEWS[view]).parameters if view in VIEWS else {}
    is_word = option in parameters and parameters[option].annotation in (str, "str")
    if is_word or (option == "extras" and text.lower() != "none"):
        return text
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def read_view(path: Path) -> View:
    """A view from a YAML file; see `view_from`.

    Raises:
      ConfigError: the file cannot be read, or is not YAML.
      ViewError: it names no view, or its options make no sense.
    """
    from rlds2reverb import strict_yaml  # only who names a file loads PyYAML

    return view_from(strict_yaml.read(path), str(path))
