"""The options of episodes (`EpisodeOptions`), which a push, a conversion, a local pass and an inspection have in common.

Each option has its name, its default and its help here, once; what a verb has of its own stands in that verb's options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.transform import AS_RECORDED, LAST_REWARDS, SHIFT, Transform, TransformLike, transform_of
from rlds2reverb.prepare.conventions import LAST_OBSERVATIONS, TERMINAL_DISCOUNTS, Conventions
from rlds2reverb.prepare.policy import ACTIONS, QUARANTINE, RAISE, SKIP, STOPPING, Policy, check_choices, check_report
from rlds2reverb.text import did_you_mean

HELP, CHOICES = "help", "choices"
"""Keys of an option's metadata: one sentence, and the values it may have (if they are few)."""

_Kind = TypeVar("_Kind")
_Options = TypeVar("_Options", bound="EpisodeOptions")


def option_help(text: str, choices: tuple[str, ...] = ()) -> dict[str, Any]:
    return {HELP: text, CHOICES: choices}


@dataclass(frozen=True, kw_only=True)
class EpisodeOptions:
    """Which columns episodes have, what is mended in them, and what happens to bad ones.

    `encoded` takes one path, a list of paths, or "all".

    Raises:
      ConfigError: an unknown action, code or convention, a quarantine file that does not go with the action, an empty path, or
        a transform that makes no sense or cannot be read.
    """

    on_invalid: str = field(default=RAISE, metadata=option_help("What to do with a bad episode.", ACTIONS))
    quarantine: str | Path | None = field(
        default=None,
        metadata=option_help('JSON-lines report of bad episodes; "quarantine" needs it, and nothing else takes it.'),
    )
    allow: Sequence[str] = field(default=(), metadata=option_help("Problem codes to tolerate."))
    strict: bool = field(
        default=False, metadata=option_help("Treat advice (terminal_discount, last_reward, ...) as a problem.")
    )
    terminal_discount: str = field(
        default=AS_RECORDED,
        metadata=option_help(
            '"transition": discount 0 on the step that leads into a terminal one.', TERMINAL_DISCOUNTS
        ),
    )
    last_reward: str = field(
        default=AS_RECORDED, metadata=option_help('"shift": every reward moves one step back.', LAST_REWARDS)
    )
    last_observation: str = field(
        default=AS_RECORDED,
        metadata=option_help(
            'Of a last row that was added (action and reward 0): "repeat" puts the observation before it in its place, "drop" leaves the '
            "row out.",
            LAST_OBSERVATIONS,
        ),
    )
    encoded: str | Sequence[str] = field(
        default=(),
        metadata=option_help(
            'Path of an image column, or "all": store the files\' own JPEG or PNG bytes as text, and decode when sampling.'
        ),
    )
    transform: TransformLike = field(
        default=(),
        metadata=option_help(
            'Columns to select, drop, rename, resize, and to join to the action: "OPTION=VALUE,...", or a YAML file.'
        ),
    )

    def __post_init__(self) -> None:
        check_choices(self.on_invalid, self.quarantine, self.allow)
        _ = self.conventions  # refuses unknown ones
        for path in self.encoded_paths:
            if not isinstance(path, str) or not path:
                raise ConfigError(f'encoded (--encoded) {path!r}: expected a path such as observation/image, or "all"')
        object.__setattr__(self, "transform", self.chosen_transform)  # a file is read once

    @property
    def conventions(self) -> Conventions:
        """terminal_discount, last_reward and last_observation; rewards are shifted, too, when the transform says so."""
        shifts = SHIFT in (self.last_reward, self.chosen_transform.reward_last)
        return Conventions(self.terminal_discount, SHIFT if shifts else self.last_reward, self.last_observation)

    @property
    def chosen_transform(self) -> Transform:
        """The transform of the columns, before all else."""
        return transform_of(self.transform)

    @property
    def data_label(self) -> str:
        """Transform and conventions, as a part of the item keys."""
        label = self.chosen_transform.label
        return f"{self.conventions.label}|transform={label}" if label else self.conventions.label

    @property
    def encoded_paths(self) -> tuple[str, ...]:
        """Paths of image columns to keep encoded, or "all" among them."""
        return (self.encoded,) if isinstance(self.encoded, str) else tuple(self.encoded)

    @property
    def stops(self) -> bool:
        return self.on_invalid in STOPPING

    def policy(self) -> Policy:
        return Policy(self.on_invalid, self.quarantine, self.allow, self.strict)

    def silent(self: _Options) -> _Options:
        """For a further reading: a bad episode is written into a quarantine file once."""
        return replace(self, on_invalid=SKIP, quarantine=None) if self.on_invalid == QUARANTINE else self

    def check_files(self) -> None:
        """Checks the files that the options name, before data are read or a server is called; creates none.

        Raises:
          ConfigError: lines cannot be appended to the quarantine file.
        """
        if self.quarantine is not None:
            check_report(Path(self.quarantine))


EPISODE_OPTIONS = tuple(one.name for one in fields(EpisodeOptions))


def split_options(kind: type[_Kind], where: str, options: Mapping[str, Any]) -> tuple[_Kind, EpisodeOptions]:
    """Splits options by name into those of a dataclass and those of episodes."""
    own = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(options.keys() - own - set(EPISODE_OPTIONS)):
        known = ", ".join([*sorted(own), *EPISODE_OPTIONS])
        raise ConfigError(
            f"{where}: {', '.join(unknown)}: no such option; there are {known}{did_you_mean(unknown[0], [*own, *EPISODE_OPTIONS])}"
        )
    chosen = kind(**{name: value for name, value in options.items() if name in own})
    return chosen, EpisodeOptions(**{name: value for name, value in options.items() if name not in own})
