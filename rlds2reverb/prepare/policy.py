"""What happens to a bad episode (`Policy`): the reading stops, or it is skipped, reported in a quarantine file, or mended."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rlds2reverb.episode import Episode
from rlds2reverb.errors import ConfigError, InvalidEpisode, ViewError
from rlds2reverb.files import append_whole, can_be_written
from rlds2reverb.prepare.conventions import fill_absent
from rlds2reverb.prepare.problems import CODES, INTOLERABLE, Named, Problem
from rlds2reverb.prepare.standard import Standard, repair
from rlds2reverb.text import did_you_mean

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
        self, action: str = RAISE, quarantine: str | Path | None = None, allow: Sequence[str] = (), strict: bool = False
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

    def examine(self, episode: Episode, standard: Standard) -> Examined:
        """Finds the problems of an episode as recorded, and mends them where the action is "repair". Counts nothing."""
        return self.examine_together([episode], standard)[0]

    def examine_together(self, episodes: Sequence[Episode], standard: Standard) -> list[Examined]:
        """Does as `examine` for every episode; faster for many short ones."""
        filled = [fill_absent(episode, standard.conventions.adds_row(episode)) for episode in episodes]
        return [self._repair(*judged, standard) for judged in zip(filled, standard.problems_of_all(filled))]

    def _repair(self, episode: Episode, problems: list[Problem], standard: Standard) -> Examined:
        mended: tuple[Problem, ...] = ()
        for _ in range(_REPAIR_ROUNDS if problems and self._action == REPAIR else 0):
            # A tolerated problem is left as it is: who allows a code wants the data as recorded.
            episode = repair(episode, [problem for problem in problems if problem.code not in self._allow])
            left = standard.problems(episode)
            mended += tuple(problem for problem in problems if problem not in left)
            problems = left
        return Examined(episode, tuple(problems), mended)

    def bad(self, problems: Sequence[Problem]) -> list[Problem]:
        """The problems for which an episode is rejected."""
        return [
            problem
            for problem in problems
            if problem.code not in self._allow and (self._strict or not problem.is_advice)
        ]

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

    def reject(
        self, episode: Named, problems: Sequence[Problem], is_tolerable: bool = True, may_stop: bool = True
    ) -> None:
        """Rejects an episode, and counts it under its first problem.

        Args:
          is_tolerable: whether the policy to stop lets it pass, if all of its codes are allowed; else it stops in any case.
          may_stop: whether the policy to stop applies at all.

        Raises:
          InvalidEpisode: the action is "raise" or "repair".
        """
        self.rejected[problems[0].code] += 1
        if (
            may_stop
            and self.stops
            and not (is_tolerable and self._allow.issuperset(problem.code for problem in problems))
        ):
            raise InvalidEpisode(episode.id, problems, episode.title, is_tolerable)
        if self._report is not None:
            named = {"episode": episode.id, "episode_id": episode.recorded_id}
            rows = [
                {**named, "code": problem.code, "path": problem.path, "detail": problem.detail} for problem in problems
            ]
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            append_report(self._report, lines, f"episode {episode.title}")

    def reject_refused(
        self, episode: Named, error: ViewError, must_stop: bool = False, may_stop: bool = True
    ) -> Problem:
        """Rejects an episode that a view refuses; returns that problem."""
        # Stopping, it is an error of the view, not of validation: no `allow` tolerates it.
        problem = Problem("view_refused", "", str(error))
        if (self.stops and may_stop) or must_stop:
            self.rejected[problem.code] += 1
            raise ViewError(f"episode {episode.title}: {error}") from error
        self.reject(episode, [problem], may_stop=may_stop)
        return problem


def check_choices(action: str, quarantine: str | Path | None, allow: Sequence[str]) -> None:
    """Refuses arguments of `Policy` that make no sense, without a look at files; raises as `Policy` does."""
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
        hint = did_you_mean(unknown[0], CODES) or f"; known: {', '.join(CODES)}"
        raise ConfigError(f"allow (--allow): unknown code {', '.join(unknown)}{hint}")
    if refused := sorted(set(allow) & set(INTOLERABLE)):
        raise ConfigError(f"allow (--allow): {', '.join(refused)} cannot be tolerated: no view can cut such an episode")


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
