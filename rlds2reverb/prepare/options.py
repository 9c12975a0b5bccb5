"""The options of episodes (`EpisodeOptions`), which a push, a conversion, a local pass and an inspection have in common.

Each option has its name, its default and its help here, once; what a verb has of its own stands in that verb's options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.filtered import Rule, Rules
from rlds2reverb.formats.filters import Condition, Exclude, Function, Idle, KeepRanges, Where, WhereStep
from rlds2reverb.formats.mapped import MapFunction
from rlds2reverb.formats.splits import PARTS, VAL_SHARE, Split
from rlds2reverb.formats.transform import (
    AS_RECORDED,
    LAST_REWARDS,
    SHIFT,
    Transform,
    TransformLike,
    transform_of,
    with_encode,
)
from rlds2reverb.keywords import command_option
from rlds2reverb.prepare.conventions import (
    LAST_OBSERVATIONS,
    LAST_STEPS,
    TERMINAL_DISCOUNTS,
    ConventionKeywords,
    Conventions,
)
from rlds2reverb.prepare.policy import ACTIONS, QUARANTINE, RAISE, SKIP, STOPPING, Policy, check_choices, check_report

_Reading = TypeVar("_Reading", bound="ReadingOptions")
_Options = TypeVar("_Options", bound="EpisodeOptions")

# Metadata of the options of every command whose work workers can share.
WORKERS = command_option(
    "Number of worker processes, each for a part of the source; with ray, tasks at a time.", section="Speed", least=1
)
RAY = command_option(
    'Address of a Ray cluster that runs the workers, or "auto" for the cluster of this machine.',
    section="Speed",
    metavar="ADDRESS",
)


def _texts_of(written: str | Sequence[str]) -> Sequence[str]:
    return (written,) if isinstance(written, str) else written


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """Which episodes are read, and the conventions that are mended in them."""

    terminal_discount: str = field(
        default=AS_RECORDED,
        metadata=command_option(
            '"transition": discount 0 on the step that leads into a terminal one.',
            TERMINAL_DISCOUNTS,
            section="Bad data",
        ),
    )
    last_reward: str = field(
        default=AS_RECORDED,
        metadata=command_option('"shift": every reward moves one step back.', LAST_REWARDS, section="Bad data"),
    )
    last_observation: str = field(
        default=AS_RECORDED,
        metadata=command_option(
            'Of a last row that was added (action and reward 0): "repeat" puts the observation before it in its place, "drop" leaves the '
            "row out.",
            LAST_OBSERVATIONS,
            section="Bad data",
        ),
    )
    last_step: str = field(
        default=AS_RECORDED,
        metadata=command_option(
            'Of a last row with an action (Open X): "repeat" puts its observation once more behind it, so that no action is lost.',
            LAST_STEPS,
            section="Bad data",
        ),
    )
    split: str | None = field(
        default=None,
        metadata=command_option(
            'Only the episodes for training ("train") or for validation ("val"), by a hash of their actions, the same in every format.',
            metavar="train|val",
            section="Filters",
        ),
    )
    val_share: float = field(
        default=VAL_SHARE,
        metadata=command_option("Share of the episodes that are for validation.", section="Filters", unit=""),
    )
    split_by: str | None = field(
        default=None,
        metadata=command_option(
            "Metadata or a column, such as task: episodes of one value are on one side of the split.",
            metavar="PATH",
            section="Filters",
        ),
    )

    where: str | Sequence[str] = field(
        default=(),
        metadata=command_option(
            'Only episodes of which this holds: "success", "task=pick*", "length>=10", "|action|<=1"; of metadata, or of every row.',
            metavar="CONDITION",
            section="Filters",
        ),
    )
    exclude: str | Sequence[str] = field(
        default=(),
        metadata=command_option(
            "Name of an episode to leave out, or @FILE with a name a line.", metavar="NAME|@FILE", section="Filters"
        ),
    )
    filter: str | Callable[[Any], Any] | None = field(
        default=None,
        metadata=command_option(
            "A function, episode -> whether to keep it or which rows, which workers can import.",
            metavar="MODULE:FUNCTION",
            section="Filters",
        ),
    )
    keep_ranges: str | Path | Mapping[str, Any] | None = field(
        default=None,
        metadata=command_option(
            "JSON file, {episode: [[start, stop], ...]}: only these rows, and no episode that it does not name.",
            section="Filters",
        ),
    )
    keep_by: str = field(
        default="",
        metadata=command_option(
            "Metadata that the file names episodes by, with -- between several.",
            metavar="PATH--PATH",
            section="Filters",
        ),
    )
    where_step: str | Sequence[str] = field(
        default=(),
        metadata=command_option(
            "Only rows of which this holds, such as |action|<=1; a gap ends an episode.",
            metavar="CONDITION",
            section="Filters",
        ),
    )
    idle: str | None = field(
        default=None,
        metadata=command_option(
            'Leave out stretches without motion: "column=action,steps=7,eps=0.001,by=change", or parts of it.',
            metavar="TEXT",
            section="Filters",
        ),
    )

    map: str | Callable[[Any], Any] | None = field(
        default=None,
        metadata=command_option(
            "A function, episode -> episode, which workers can import; for what a transform cannot say.",
            metavar="MODULE:FUNCTION",
            section="Data",
        ),
    )

    @cached_property
    def chosen_map(self) -> MapFunction | None:
        """What makes other episodes of those that filters leave, before the transform."""
        return None if self.map is None else MapFunction.of(self.map)

    @cached_property
    def rules(self) -> Rules:
        """What takes out episodes and rows, before all else; cheap rules come first, and rules of rows last."""
        is_last_real = self.last_step != AS_RECORDED
        rules: list[Rule] = [Exclude.of(self.exclude)] if self.exclude else []
        rules += [Where(Condition.of(written, "where (--where)")) for written in _texts_of(self.where)]
        if self.split is not None:
            rules.append(Split(self.split, self.val_share, self.split_by or "", is_last_real))
        elif self.split_by is not None or self.val_share != VAL_SHARE:
            option = "split_by (--split-by)" if self.split_by is not None else "val_share (--val-share)"
            raise ConfigError(f"{option} goes with split (--split), {' or '.join(PARTS)}")
        if self.filter is not None:
            rules.append(Function.of(self.filter))
        if self.keep_ranges is not None:
            rules.append(KeepRanges.of(self.keep_ranges, self.keep_by))
        elif self.keep_by:
            raise ConfigError("keep_by (--keep-by) goes with keep_ranges (--keep-ranges)")
        conditions = [Condition.of(written, "where_step (--where-step)") for written in _texts_of(self.where_step)]
        rules += [WhereStep(condition, is_last_real) for condition in conditions]
        if self.idle is not None:
            rules.append(Idle.of(self.idle))
        return Rules(rules)

    def with_rules_of(self: _Reading, other: ReadingOptions) -> _Reading:
        """The same options with the rules of others that filter alike, and what these have found out."""
        vars(self)["rules"], vars(self)["chosen_map"] = other.rules, other.chosen_map
        return self

    @property
    def filter_label(self) -> str:
        """Which episodes are left, for what a reading continues by; "" for all. No part of the item keys, which the episodes' names decide."""
        return ";".join(rule.label.replace(";", ";;") for rule in self.rules)


@dataclass(frozen=True, kw_only=True)
class EpisodeOptions(ReadingOptions):
    """Which episodes are read, which columns episodes have, what is mended in them, and what happens to bad ones.

    `encoded` takes one path, a list of paths, or "all". `encode` is the transform's operation of that name, and becomes a part of `transform`.

    Raises:
      ConfigError: an unknown action, code or convention, a quarantine file that does not go with the action, an empty path, or
        a transform that makes no sense or cannot be read.
    """

    on_invalid: str = field(
        default=RAISE, metadata=command_option("What to do with a bad episode.", ACTIONS, section="Bad data")
    )
    quarantine: str | Path | None = field(
        default=None,
        metadata=command_option(
            'JSON-lines report of bad episodes; "quarantine" needs it, and nothing else takes it.', section="Bad data"
        ),
    )
    allow: Sequence[str] = field(
        default=(),
        metadata=command_option("Problem codes to tolerate.", metavar="CODE", completion="codes", section="Bad data"),
    )
    strict: bool = field(
        default=False,
        metadata=command_option("Treat advice (terminal_discount, last_reward, ...) as a problem.", section="Bad data"),
    )
    encoded: str | Sequence[str] = field(
        default=(),
        metadata=command_option(
            'Path of an image column, or "all": store the files\' own JPEG or PNG bytes as text, and decode when sampling.',
            metavar="PATH",
            section="Data",
        ),
    )
    encode: str | Sequence[str] | Mapping[str, str] = field(
        default=(),
        metadata=command_option(
            'Store frames as files, after a resize: "jpeg:quality=95" or "png" for all images, "PATH:png" for one; decode when sampling.',
            metavar="[PATH:]FORMAT",
            section="Data",
        ),
    )
    transform: TransformLike = field(
        default=(),
        metadata=command_option(
            'Columns to make, select, drop, rename, resize: "OPTION=VALUE,...", a YAML file, or a shipped one such as open_x/bridge_orig.',
            metavar="TEXT|FILE|NAME",
            completion="transforms",
            section="Data",
        ),
    )

    def __post_init__(self) -> None:
        check_choices(self.on_invalid, self.quarantine, self.allow)
        _ = self.conventions  # refuses unknown ones
        for path in self.encoded_paths:
            if not isinstance(path, str) or not path:
                raise ConfigError(f'encoded (--encoded) {path!r}: expected a path such as observation/image, or "all"')
        object.__setattr__(self, "transform", with_encode(self.chosen_transform, self.encode))  # a file is read once
        object.__setattr__(self, "encode", ())
        _ = self.rules, self.chosen_map  # refuses what makes no sense

    @property
    def conventions(self) -> Conventions:
        """terminal_discount, last_reward, last_observation and last_step; rewards are shifted, too, when the transform says so."""
        shifts = SHIFT in (self.last_reward, self.chosen_transform.reward_last)
        rewards = SHIFT if shifts else self.last_reward
        return Conventions(self.terminal_discount, rewards, self.last_observation, self.last_step)

    @property
    def chosen_transform(self) -> Transform:
        """The transform of the columns, before all else."""
        return transform_of(self.transform)

    @property
    def data_label(self) -> str:
        """Function, transform and conventions, as a part of the item keys."""
        label = self.chosen_transform.label
        made_by = "" if self.chosen_map is None else f"|map={self.chosen_map.label}"
        return f"{self.conventions.label}{made_by}{label and f'|transform={label}'}"

    @property
    def encoded_paths(self) -> tuple[str, ...]:
        """Paths of image columns to keep encoded, or "all" among them."""
        return (self.encoded,) if isinstance(self.encoded, str) else tuple(self.encoded)

    @property
    def decodes_here(self) -> bool:
        """Whether images that stay encoded are decoded in this process, so that frames of videos can stay so, too."""
        return False

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


class ReadingKeywords(ConventionKeywords, total=False):
    """`ReadingOptions` as keywords."""

    split: str | None
    val_share: float
    split_by: str | None
    where: str | Sequence[str]
    exclude: str | Sequence[str]
    filter: str | Callable[[Any], Any] | None
    keep_ranges: str | Path | Mapping[str, Any] | None
    keep_by: str
    where_step: str | Sequence[str]
    idle: str | None
    map: str | Callable[[Any], Any] | None


class EpisodeKeywords(ReadingKeywords, total=False):
    """`EpisodeOptions` as keywords."""

    on_invalid: str
    quarantine: str | Path | None
    allow: Sequence[str]
    strict: bool
    encoded: str | Sequence[str]
    encode: str | Sequence[str] | Mapping[str, str]
    transform: TransformLike
