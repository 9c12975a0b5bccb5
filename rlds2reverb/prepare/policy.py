"""Decides about an episode: what makes it good (`Standard`), what can be mended, and what to do with a bad one (`Policy`)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from rlds2reverb.episode import IS_FIRST, IS_LAST, Episode, metadata_path, with_metadata
from rlds2reverb.errors import ConfigError, InvalidEpisode, ViewError
from rlds2reverb.files import append_whole, can_be_written
from rlds2reverb.prepare.checks import find_problems
from rlds2reverb.prepare.conventions import Conventions, fill_absent, filled_spec, with_zero_transition_discount
from rlds2reverb.prepare.problems import CODES, Named, Problem
from rlds2reverb.specs import ArraySpec, Nest, flatten


@dataclass(frozen=True)
class Standard:
    """What makes an episode good: it fits the dataset's spec, and the conventions lose nothing of it.

    Attributes:
      columns: path -> spec that every episode must have, absent fields filled in; {} to judge an episode by itself.
      conventions: what is mended in good episodes before they are cut.
      metadata: path -> spec of the metadata that every episode must have, because items hold it.
    """

    columns: Mapping[str, ArraySpec] = field(default_factory=dict)
    conventions: Conventions = Conventions()
    metadata: Mapping[str, ArraySpec] = field(default_factory=dict)

    @staticmethod
    def of(
        step_spec: Nest, conventions: Conventions, metadata: Mapping[str, ArraySpec] = MappingProxyType({})
    ) -> Standard:
        """The standard of a dataset; `step_spec` is that of its steps as recorded."""
        return Standard(flatten(filled_spec(step_spec)), conventions, metadata)

    def examine(self, episode: Episode) -> tuple[Episode, list[Problem]]:
        """An episode as recorded -> the same with absent fields filled in, and all that is wrong with it."""
        filled = fill_absent(episode)
        return filled, self.problems(filled)

    def problems(self, filled: Episode) -> list[Problem]:
        """All that is wrong with an episode that has been filled; metadata in items is judged as the columns that it becomes."""
        if not self.metadata or not filled.columns:
            return find_problems(filled, self.columns, self.conventions)
        columns = {metadata_path(name): spec for name, spec in self.metadata.items()}
        return find_problems(with_metadata(filled, self.metadata), {**self.columns, **columns}, self.conventions)

    def normalise(self, good: Episode) -> Episode:
        """What views cut and formats write of a good episode, already filled: the conventions are applied."""
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


def _mend_first(episode: Episode, _: Problem) -> Episode:
    flag = episode.columns[IS_FIRST].copy()
    flag[0] = True
    return replace(episode, columns={**episode.columns, "is_first": flag})


def _mend_last(episode: Episode, _: Problem) -> Episode:
    flag = episode.columns[IS_LAST].copy()
    flag[-1] = True
    return replace(episode, columns={**episode.columns, "is_last": flag})


def _mend_flag_dtype(episode: Episode, problem: Problem) -> Episode:
    flag = episode.columns[problem.path]
    is_binary = flag.dtype.kind in "biuf" and flag.size == len(flag) and bool(np.isin(flag, (0, 1)).all())
    return (
        replace(episode, columns={**episode.columns, problem.path: flag.reshape(-1).astype(bool)})
        if is_binary
        else episode
    )


def _mend_terminal_discount(episode: Episode, _: Problem) -> Episode:
    return with_zero_transition_discount(episode)


_REPAIRS: dict[str, Callable[[Episode, Problem], Episode]] = {
    "first_missing": _mend_first,
    "last_missing": _mend_last,
    "flag_dtype": _mend_flag_dtype,
    "terminal_discount": _mend_terminal_discount,
}
"""Code -> repair; the codes marked `is_repairable`."""


RAISE, SKIP, QUARANTINE, REPAIR = "raise", "skip", "quarantine", "repair"
ACTIONS = (RAISE, SKIP, QUARANTINE, REPAIR)
STOPPING = (RAISE, REPAIR)
"""Actions by which a bad episode ends the reading."""

_REPAIR_ROUNDS = 3
"""A flag's dtype first, then what it says, then the discount that leads into a terminal last step."""

_INTOLERABLE = ("no_steps", "unequal_lengths", "flag_dtype", "unreadable", "untransformed", "view_refused")
"""Codes of episodes that no view can cut."""


class Examined(NamedTuple):
    """An episode that was examined by itself.

    Attributes:
      episode: absent fields are filled; repaired, where the policy repairs.
      problems: those that it still has.
      mended: those that it had.
    """

    episode: Episode
    problems: tuple[Problem, ...]
    mended: tuple[Problem, ...]


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
        episode, problems = standard.examine(episode)
        mended: tuple[Problem, ...] = ()
        for _ in range(_REPAIR_ROUNDS if problems and self._action == REPAIR else 0):
            episode = repair(episode, [problem for problem in problems if problem.code not in self._allow])
            left = standard.problems(episode)
            mended += tuple(problem for problem in problems if problem not in left)
            problems = left
        return Examined(episode, tuple(problems), mended)

    def bad(self, problems: Sequence[Problem]) -> list[Problem]:
        """Those for which an episode is rejected."""
        return [problem for problem in self._counted(problems) if self._strict or not problem.is_advice]

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
        self.advice.update({problem.code for problem in self._counted(problems)})
        self.repaired.update({problem.code for problem in mended})
        return True

    def reject(self, episode: Named, problems: Sequence[Problem]) -> None:
        """Rejects an episode, and counts it under its first problem.

        Raises:
          InvalidEpisode: the action is "raise" or "repair", and some code is not tolerated.
        """
        self.rejected[problems[0].code] += 1
        if self.stops and not self._allow.issuperset(problem.code for problem in problems):
            raise InvalidEpisode(episode.id, problems, episode.title)
        if self._report is not None:
            named = {"episode": episode.id, "episode_id": episode.recorded_id}
            rows = [{**named, "code": one.code, "path": one.path, "detail": one.detail} for one in problems]
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            append_report(self._report, lines, f"episode {episode.title}")

    def reject_refused(self, episode: Named, error: ViewError, must_stop: bool = False) -> Problem:
        """Rejects an episode that a view refuses; the problem that this is.

        Raises:
          ViewError: the action is "raise" or "repair", or it `must_stop`; the message names the episode.
        """
        problem = Problem("view_refused", "", str(error))
        if self.stops or must_stop:
            self.rejected[problem.code] += 1
            raise ViewError(f"episode {episode.title}: {error}") from error
        self.reject(episode, [problem])
        return problem

    def _counted(self, problems: Sequence[Problem]) -> list[Problem]:
        return [problem for problem in problems if problem.code not in self._allow]


def check_choices(action: str, quarantine: str | Path | None, allow: Sequence[str]) -> None:
    """Refuses what no policy can be made of; looks at no file.

    Raises:
      ConfigError: as `Policy` does.
    """
    if action not in ACTIONS:
        raise ConfigError(f'on_invalid (--on-invalid) "{action}": expected one of {", ".join(ACTIONS)}')
    if (action == QUARANTINE) != (quarantine is not None):
        raise ConfigError(
            'on_invalid="quarantine" (--on-invalid) and a quarantine file (--quarantine) go together: give both or neither'
        )
    if isinstance(allow, str):
        raise ConfigError(f'allow "{allow}": expected several codes, such as allow=["{allow}"]')
    if unknown := sorted(set(allow) - set(CODES)):
        raise ConfigError(f"allow (--allow): unknown code {', '.join(unknown)}; known: {', '.join(CODES)}")
    if refused := sorted(set(allow) & set(_INTOLERABLE)):
        raise ConfigError(f"allow (--allow): {', '.join(refused)} cannot be tolerated: no view can cut such an episode")


def append_report(report: Path, lines: str, whose: str) -> None:
    """Appends the lines of rejected episodes to a quarantine file, all of them or none.

    Raises:
      WriteError: the disk is full, say; names `whose` lines are missing.
    """
    way_out = f"the problems of {whose} are not in it. Make room or name another file, and run the same again"
    append_whole(report, lines, f"quarantine file {report}", way_out)


def check_report(report: Path) -> Path:
    """The path of a quarantine file, once it is sure that lines can be appended; before anything is pushed.

    Raises:
      ConfigError: they cannot.
    """
    if not can_be_written(report):
        raise ConfigError(f"quarantine file {report}: cannot be written; expected a file in a folder that is there")
    return report
