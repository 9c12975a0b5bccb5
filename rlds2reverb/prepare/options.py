"""The options of episodes, each once: its name, its default and its help.

A push, a conversion, a local pass and an inspection have these options in common; each has more of its own.
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

HELP, CHOICES = "help", "choices"
"""Keys of an option's metadata: one sentence, and the values it may have (if they are few)."""

_Kind = TypeVar("_Kind")
_Options = TypeVar("_Options", bound="EpisodeOptions")


def option_help(text: str, choices: tuple[str, ...] = ()) -> dict[str, Any]:
    """The metadata of a field that users know by name."""
    return {HELP: text, CHOICES: choices}


@dataclass(frozen=True)
class Progress:
    """How far a push, a conversion or an inspection is.

    Attributes:
      episodes: read so far, and resumed ones.
      steps: read so far.
      episode_count: in the source, or None when unknown.
      items_confirmed, bytes: so far.
      seconds: since it began.
      waiting: why nothing moves, "" when something does.
      held_by: names of the tables whose rate limiters are the reason.
      doing: "verifying" while written files are read again, and the counts are those of that; "" otherwise.
    """

    episodes: int
    steps: int
    episode_count: int | None
    items_confirmed: int
    bytes: int
    seconds: float
    waiting: str = ""
    held_by: tuple[str, ...] = ()
    doing: str = ""

    def no_less_than(self, shown: Progress | None) -> Progress:
        """The same, where it is not behind what was shown before: a lost worker's part begins again, and is counted once."""
        if shown is None:
            return self
        names = ("episodes", "steps", "items_confirmed", "bytes")
        return replace(self, **{name: max(getattr(self, name), getattr(shown, name)) for name in names})


def ignored(_: Progress) -> None:
    """The `on_progress` of those who do not watch."""


@dataclass(frozen=True, kw_only=True)
class EpisodeOptions:
    """Which columns episodes have, what is mended in them, and what happens to bad ones.

    `encoded` takes one path, several, or "all".

    Raises:
      ConfigError: an unknown action, code or convention, a quarantine file that does not go with the action, a path that is none, or
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
        """What is done to the columns first."""
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
        """Whether a bad episode ends the reading."""
        return self.on_invalid in STOPPING

    def policy(self) -> Policy:
        """A new policy, which has counted nothing."""
        return Policy(self.on_invalid, self.quarantine, self.allow, self.strict)

    def silent(self: _Options) -> _Options:
        """For a further reading: a bad episode is written into a quarantine file once."""
        return replace(self, on_invalid=SKIP, quarantine=None) if self.on_invalid == QUARANTINE else self

    def check_files(self) -> None:
        """Looks at the files that the options name, and makes none: what cannot be used is refused before data or a server are asked.

        Raises:
          ConfigError: lines cannot be appended to the quarantine file.
        """
        if self.quarantine is not None:
            check_report(Path(self.quarantine))


EPISODE_OPTIONS = tuple(one.name for one in fields(EpisodeOptions))
"""Their names."""


def split_options(kind: type[_Kind], where: str, options: Mapping[str, Any]) -> tuple[_Kind, EpisodeOptions]:
    """Parts options by name into those of a dataclass and those of episodes.

    Args:
      kind: a dataclass.
      where: the function that takes both.
      options: by name.

    Raises:
      ConfigError: an option that is neither, or makes no sense.
    """
    own = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(options.keys() - own - set(EPISODE_OPTIONS)):
        known = ", ".join([*sorted(own), *EPISODE_OPTIONS])
        raise ConfigError(f"{where}: {', '.join(unknown)}: no such option; there are {known}")
    chosen = kind(**{name: value for name, value in options.items() if name in own})
    return chosen, EpisodeOptions(**{name: value for name, value in options.items() if name not in own})
