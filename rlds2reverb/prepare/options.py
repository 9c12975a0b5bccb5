"""The options of episodes (`EpisodeOptions`), what makes an episode good (`Standard`), and what happens to a bad one (`Policy`).

A push, a conversion, a local pass and an inspection have the options in common, each with its name, its default and its help; each has
more of its own.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from rlds2reverb.episode import IS_FIRST, IS_LAST, Episode, metadata_path, with_metadata
from rlds2reverb.errors import ConfigError, InvalidEpisode, ViewError
from rlds2reverb.files import append_whole, can_be_written
from rlds2reverb.formats.transform import AS_RECORDED, LAST_REWARDS, SHIFT, Transform, TransformLike, transform_of
from rlds2reverb.prepare.conventions import (
    LAST_OBSERVATIONS,
    TERMINAL_DISCOUNTS,
    Conventions,
    fill_absent,
    filled_spec,
    with_zero_transition_discount,
)
from rlds2reverb.prepare.problems import CODES, INTOLERABLE, Named, Problem, find_problems, find_problems_of_all
from rlds2reverb.specs import ArraySpec, Nest, flatten
from rlds2reverb.text import did_you_mean


@dataclass(frozen=True)
class Standard:
    """What makes an episode good: it fits the dataset's spec, and the conventions lose nothing of it."""

    # path -> spec that every episode must have, absent fields filled in; {} to judge an episode by itself
    columns: Mapping[str, ArraySpec] = field(default_factory=dict)
    conventions: Conventions = Conventions()  # what is mended in good episodes before they are cut
    # path -> spec of the metadata that every episode must have, because items hold it
    metadata: Mapping[str, ArraySpec] = field(default_factory=dict)

    @staticmethod
    def of(
        step_spec: Nest, conventions: Conventions, metadata: Mapping[str, ArraySpec] = MappingProxyType({})
    ) -> Standard:
        """The standard of a dataset; `step_spec` is that of its steps as recorded."""
        return Standard(flatten(filled_spec(step_spec)), conventions, metadata)

    def problems(self, filled: Episode) -> list[Problem]:
        """Problems of an episode that has been filled; metadata in items is judged as the columns that it becomes."""
        if not self.metadata or not filled.columns:
            return find_problems(filled, self.columns, self.conventions)
        columns = {metadata_path(name): spec for name, spec in self.metadata.items()}
        return find_problems(with_metadata(filled, self.metadata), {**self.columns, **columns}, self.conventions)

    def problems_of_all(self, filled: Sequence[Episode]) -> list[list[Problem]]:
        """`problems` of every episode, faster for many short ones."""
        if self.metadata:
            return [self.problems(episode) for episode in filled]
        return find_problems_of_all(filled, self.columns, self.conventions)

    def normalise(self, good: Episode) -> Episode:
        """What views cut and formats write of a good episode that is filled already."""
        return self.conventions.apply(good)


def repair(episode: Episode, problems: Sequence[Problem]) -> Episode:
    """The episode with every repairable problem mended. Validate the result again.

    An episode is one element of the dataset, so its first row is first and its last row is last; a flag of zeros and
    ones is boolean; the transition into a terminal step has discount 0.
    """
    for problem in problems:
        if problem.code in _REPAIRS and len(episode):
            episode = _REPAIRS[problem.code](episode, problem)
    return episode


def _mend_end(path: str, row: int, episode: Episode, _: Problem) -> Episode:
    flag = episode.columns[path].copy()
    flag[row] = True
    return replace(episode, columns={**episode.columns, path: flag})


def _mend_flag_dtype(episode: Episode, problem: Problem) -> Episode:
    flag = episode.columns[problem.path]
    is_binary = flag.dtype.kind in "biuf" and flag.size == len(flag) and bool(np.isin(flag, (0, 1)).all())
    if not is_binary:
        return episode
    return replace(episode, columns={**episode.columns, problem.path: flag.reshape(-1).astype(bool)})


_REPAIRS: dict[str, Callable[[Episode, Problem], Episode]] = {
    "first_missing": partial(_mend_end, IS_FIRST, 0),
    "last_missing": partial(_mend_end, IS_LAST, -1),
    "flag_dtype": _mend_flag_dtype,
    "terminal_discount": lambda episode, _: with_zero_transition_discount(episode),
}
"""Code -> repair; the codes marked `is_repairable`."""


RAISE, SKIP, QUARANTINE, REPAIR = "raise", "skip", "quarantine", "repair"
ACTIONS = (RAISE, SKIP, QUARANTINE, REPAIR)
STOPPING = (RAISE, REPAIR)
"""Actions by which a bad episode ends the reading."""

_REPAIR_ROUNDS = 3
"""A flag's dtype first, then what it says, then the discount that leads into a terminal last step."""


class Examined(NamedTuple):
    episode: Episode  # absent fields are filled; repaired, where the policy repairs
    problems: tuple[Problem, ...]  # those that it still has
    mended: tuple[Problem, ...]  # those that it had


class Policy:
    """What happens to bad episodes.

    Args:
      action: "raise" (default), "skip", "quarantine" (skip, with one JSON line per problem in `quarantine`), or "repair"
        (mend what has one right answer; raise for the rest).
      quarantine: the report's path; needed for, and only for, "quarantine". Lines are appended:
        {"episode", "episode_id", "code", "path", "detail"}; "episode_id" is the dataset's own, null where it has none.
      allow: codes to tolerate; not those of episodes that cannot be cut at all.
      strict: reject advice as well.

    Attributes:
      rejected: code -> episodes rejected; each counts once, under its first problem. One that ends the push is among them.
      advice: code -> episodes let through that have such advice.
      repaired: code -> episodes mended.

    Raises:
      ConfigError: an unknown action or code, or a report path that does not go with the action or cannot be written.
    """

    def __init__(
        self,
        action: str = RAISE,
        quarantine: str | Path | None = None,
        allow: Sequence[str] = (),
        strict: bool = False,
    ) -> None:
        check_choices(action, quarantine, allow)
        self._action = action
        self._report = None if quarantine is None else check_report(Path(quarantine))
        self._allow = frozenset(allow)
        self._strict = strict
        self.rejected: Counter[str] = Counter()
        self.advice: Counter[str] = Counter()
        self.repaired: Counter[str] = Counter()

    @property
    def stops(self) -> bool:
        """Whether a bad episode ends the reading."""
        return self._action in STOPPING

    def examined(self, episode: Episode, standard: Standard) -> Examined:
        """Finds the problems of an episode as recorded, and mends them where the action is "repair". Counts nothing."""
        return self.examined_together([episode], standard)[0]

    def examined_together(self, episodes: Sequence[Episode], standard: Standard) -> list[Examined]:
        """As `examined`, of every episode; faster for many short ones."""
        filled = [fill_absent(episode) for episode in episodes]
        return [self._repaired(*one, standard) for one in zip(filled, standard.problems_of_all(filled))]

    def _repaired(self, episode: Episode, problems: list[Problem], standard: Standard) -> Examined:
        mended: tuple[Problem, ...] = ()
        for _ in range(_REPAIR_ROUNDS if problems and self._action == REPAIR else 0):
            episode = repair(episode, [problem for problem in problems if problem.code not in self._allow])
            left = standard.problems(episode)
            mended += tuple(problem for problem in problems if problem not in left)
            problems = left
        return Examined(episode, tuple(problems), mended)

    def bad(self, problems: Sequence[Problem]) -> list[Problem]:
        """The problems for which an episode is rejected."""
        return [one for one in problems if one.code not in self._allow and (self._strict or not one.is_advice)]

    def accepts(self, episode: Named, problems: Sequence[Problem], mended: Sequence[Problem] = ()) -> bool:
        """Decides about an episode, and counts it.

        Args:
          episode: as recorded, or what stands for it.
          problems: its own, and those that only other episodes show.
          mended: those that it had.

        Raises:
          InvalidEpisode: it is bad, and the action is "raise" or "repair".
        """
        if bad := self.bad(problems):
            self.reject(episode, bad)
            return False
        self.advice.update({problem.code for problem in problems} - self._allow)
        self.repaired.update({problem.code for problem in mended})
        return True

    def reject(self, episode: Named, problems: Sequence[Problem], is_tolerable: bool = True) -> None:
        """Rejects an episode, and counts it under its first problem.

        Args:
          is_tolerable: whether the policy to stop lets it pass, if all of its codes are allowed; else it stops in any case.

        Raises:
          InvalidEpisode: the action is "raise" or "repair".
        """
        self.rejected[problems[0].code] += 1
        if self.stops and not (is_tolerable and self._allow.issuperset(problem.code for problem in problems)):
            raise InvalidEpisode(episode.id, problems, episode.title, is_tolerable)
        if self._report is not None:
            named = {"episode": episode.id, "episode_id": episode.recorded_id}
            rows = [{**named, "code": one.code, "path": one.path, "detail": one.detail} for one in problems]
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            append_report(self._report, lines, f"episode {episode.title}")

    def reject_refused(self, episode: Named, error: ViewError, must_stop: bool = False) -> Problem:
        """Rejects an episode that a view refuses; returns that problem."""
        problem = Problem("view_refused", "", str(error))
        if self.stops or must_stop:
            self.rejected[problem.code] += 1
            raise ViewError(f"episode {episode.title}: {error}") from error
        self.reject(episode, [problem])
        return problem


def check_choices(action: str, quarantine: str | Path | None, allow: Sequence[str]) -> None:
    """Refuses arguments of `Policy` that make no sense, without a look at files; raises as that does."""
    if action not in ACTIONS:
        raise ConfigError(
            f'on_invalid (--on-invalid) "{action}": expected one of {", ".join(ACTIONS)}{did_you_mean(str(action), ACTIONS)}'
        )
    if (action == QUARANTINE) != (quarantine is not None):
        raise ConfigError(
            'on_invalid="quarantine" (--on-invalid) and a quarantine file (--quarantine) go together: give both or neither'
        )
    if isinstance(allow, str):
        raise ConfigError(f'allow "{allow}": expected a list of codes, such as allow=["{allow}"]')
    if unknown := sorted(set(allow) - set(CODES)):
        others = did_you_mean(unknown[0], CODES) or f"; known: {', '.join(CODES)}"
        raise ConfigError(f"allow (--allow): unknown code {', '.join(unknown)}{others}")
    if refused := sorted(set(allow) & set(INTOLERABLE)):
        raise ConfigError(f"allow (--allow): {', '.join(refused)} cannot be tolerated: no view can cut such an episode")


def check_workers(workers: object, ray: object) -> None:
    """Raises ConfigError for fewer than one worker, or a Ray address that is empty or no text."""
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ConfigError(f"workers (--workers) {workers}: expected at least 1, a whole number")
    if ray is not None and (not isinstance(ray, str) or not ray):
        raise ConfigError(f'ray (--ray) {ray!r}: expected HOST:PORT, ray://HOST:PORT or "auto"')


def append_report(report: Path, lines: str, whose: str) -> None:
    """Appends the lines of rejected episodes to a quarantine file, all of them or none.

    Raises:
      WriteError: the disk is full, say; `whose` names the episodes whose lines are missing.
    """
    way_out = f"the problems of {whose} are not in it. Make room or name another file, and run the same again"
    append_whole(report, lines, f"quarantine file {report}", way_out)


def check_report(report: Path) -> Path:
    """Returns the path of a quarantine file, if lines can be appended to it."""
    if not can_be_written(report):
        raise ConfigError(f"quarantine file {report}: cannot be written; expected a file in a folder that is there")
    return report


HELP, CHOICES = "help", "choices"
"""Keys of an option's metadata: one sentence, and the values it may have (if they are few)."""

_Kind = TypeVar("_Kind")
_Options = TypeVar("_Options", bound="EpisodeOptions")


def option_help(text: str, choices: tuple[str, ...] = ()) -> dict[str, Any]:
    return {HELP: text, CHOICES: choices}


@dataclass(frozen=True)
class Progress:
    """The state of a running push, conversion or inspection.

    Attributes:
      episodes: read so far, and resumed ones.
      steps: read so far.
      episode_count: in the source, or None when unknown.
      items_confirmed, bytes: so far.
      seconds: since it began.
      waiting: why nothing moves, "" when something does.
      held_by: names of the tables whose rate limiters are the reason.
      doing: "verifying" while written files are read again, and the counts are those of that; "uploading" while they are sent to a
        bucket, when `episodes` counts files; "" otherwise.
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
        """The larger count of this and of what was shown before: a lost worker's part begins again, and is counted once."""
        if shown is None:
            return self
        names = ("episodes", "steps", "items_confirmed", "bytes")
        return replace(self, **{name: max(getattr(self, name), getattr(shown, name)) for name in names})


def ignored(_: Progress) -> None:
    """The default `on_progress`."""


PACE_SECONDS = 0.25


class Pace:
    """For what is done every `PACE_SECONDS`, however often it is asked for."""

    def __init__(self) -> None:
        self._done_at = time.monotonic()

    def is_due(self) -> bool:
        """Whether the time is over; if so, it begins again."""
        now = time.monotonic()
        if now - self._done_at <= PACE_SECONDS:
            return False
        self._done_at = now
        return True


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
