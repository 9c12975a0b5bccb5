"""What is played, as options of `episodes_of` and of `rlds2reverb record`. Needs no Gymnasium."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from rlds2reverb.errors import ConfigError
from rlds2reverb.keywords import command_option

RANDOM = "random"
SYNC, ASYNC, OWN = "sync", "async", "own"
"""How several environments step together: in this process, each in a process of its own, or by the environment's own vectorised code."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentOptions:
    """What is played. Each field is a keyword of `episodes_of`, and an option of `rlds2reverb record`.

    Raises:
      ConfigError: a number out of its range, or options that exclude each other.
    """

    episodes: int | None = field(
        default=None, metadata=command_option("Number of episodes to play.", least=1, section="Environment")
    )
    steps: int | None = field(
        default=None,
        metadata=command_option(
            "Number of steps to play, in place of --episodes; the last episode is truncated there.",
            least=1,
            section="Environment",
        ),
    )
    policy: str | Callable[..., Any] = field(
        default=RANDOM,
        metadata=command_option(
            '"random", or module:function from an observation to an action. A parameter `rng` gets the random numbers of the episode, `step` the number '
            "of the action; one named `observations` gets those of all environments at once.",
            metavar="random|MODULE:FUNCTION",
            section="Environment",
        ),
    )
    seed: int = field(
        default=0,
        metadata=command_option("Episode i is reset by SEED + i.", metavar="SEED", least=0, section="Environment"),
    )
    envs: int = field(
        default=1, metadata=command_option("Number of environments that step together.", least=1, section="Environment")
    )
    vectorization: str = field(
        default=SYNC,
        metadata=command_option(
            'How --envs step together: in this process, each in its own process ("async"), or by the environment\'s own vectorised code.',
            (SYNC, ASYNC, OWN),
            section="Environment",
        ),
    )
    env_kwargs: Sequence[str] | Mapping[str, Any] = field(
        default=(),
        metadata=command_option(
            "An argument of the environment; VALUE is JSON, else text.", metavar="NAME=VALUE", section="Environment"
        ),
    )
    infos: bool = field(default=False, metadata=command_option("Keep the infos of every step.", section="Environment"))
    live: bool = field(
        default=False,
        metadata=command_option(
            "The environment is no function of its seed: a run that was stopped goes on with episodes that are new.",
            section="Environment",
        ),
    )

    def __post_init__(self) -> None:
        if (self.episodes is None) == (self.steps is None):
            raise ConfigError("say how much to play: episodes (--episodes) or steps (--steps), and not both")
        for name, least in (("episodes", 1), ("steps", 1), ("seed", 0), ("envs", 1)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise ConfigError(f"{name} (--{name}) {value!r}: expected a whole number of at least {least}")
        if self.seed >= 1 << 63:
            raise ConfigError(f"seed (--seed) {self.seed}: expected less than 2^63")
        if self.vectorization not in (SYNC, ASYNC, OWN):
            raise ConfigError(
                f"vectorization (--vectorization) {self.vectorization!r}: expected {SYNC}, {ASYNC} or {OWN}"
            )
        _read_kwargs(self.env_kwargs)

    @property
    def arguments(self) -> dict[str, Any]:
        """`env_kwargs`, read."""
        return _read_kwargs(self.env_kwargs)

    @property
    def is_own(self) -> bool:
        return self.vectorization == OWN


class EnvironmentKeywords(TypedDict, total=False):
    """`EnvironmentOptions` as keywords."""

    episodes: int | None
    steps: int | None
    policy: str | Callable[..., Any]
    seed: int
    envs: int
    vectorization: str
    env_kwargs: Sequence[str] | Mapping[str, Any]
    infos: bool
    live: bool


def _read_kwargs(written: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(written, Mapping):
        return dict(written)
    if isinstance(written, str):
        raise ConfigError(f'env_kwargs "{written}": expected a mapping, or a list of NAME=VALUE')
    values: dict[str, Any] = {}
    for text in written:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f'env_kwargs (--env-kwargs) "{text}": expected NAME=VALUE')
        if name in values:
            raise ConfigError(f'env_kwargs (--env-kwargs): "{name}" stands twice')
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value
    return values
