"""What to do with a bad episode: raise, skip, quarantine or repair. Counts everything."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlds2reverb.episodes import Episode
from rlds2reverb.errors import ConfigError, InvalidEpisode
from rlds2reverb.validation.checks import Columns, find_problems
from rlds2reverb.validation.problems import CODES, Problem
from rlds2reverb.validation.repair import repair

RAISE, SKIP, QUARANTINE, REPAIR = "raise", "skip", "quarantine", "repair"
ACTIONS = (RAISE, SKIP, QUARANTINE, REPAIR)

_REPAIR_ROUNDS = 3
"""A flag's dtype first, then what it says, then the discount that leads into a terminal last step."""

_INTOLERABLE = ("no_steps", "unequal_lengths", "flag_dtype", "view_refused")
"""Codes of episodes that no view can cut."""


@dataclass(frozen=True)
class Verdict:
    """The judgement of one episode.

    Attributes:
      episode: the episode to go on with (repaired, perhaps), or None when it is rejected.
      rejected: the problems it was rejected for.
      advice: problems that did not reject it.
      repaired: problems that were mended.
    """

    episode: Episode | None
    rejected: tuple[Problem, ...] = ()
    advice: tuple[Problem, ...] = ()
    repaired: tuple[Problem, ...] = ()


class Policy:
    """Judges episodes.

    Args:
      action: "raise" (default), "skip", "quarantine" (skip, with a JSON line a problem in `quarantine`), or "repair"
        (mend what has one right answer; raise for the rest).
      quarantine: the report's path; needed for, and only for, "quarantine". Lines are appended:
        {"episode", "code", "path", "detail"}.
      allow: codes to tolerate; not those of episodes that cannot be cut at all.
      strict: reject advice as well.

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
        if action not in ACTIONS:
            raise ConfigError(f'on_invalid "{action}": expected one of {", ".join(ACTIONS)}')
        if (action == QUARANTINE) != (quarantine is not None):
            raise ConfigError('on_invalid="quarantine" and a quarantine file go together: give both or neither')
        unknown = sorted(set(allow) - set(CODES))
        if unknown:
            raise ConfigError(f"allow: unknown code {', '.join(unknown)}; known: {', '.join(CODES)}")
        if refused := sorted(set(allow) & set(_INTOLERABLE)):
            raise ConfigError(f"allow: {', '.join(refused)} cannot be tolerated: no view can cut such an episode")
        self._action = action
        self._report = None if quarantine is None else _writable(Path(quarantine))
        self._allow = frozenset(allow)
        self._strict = strict
        self.rejected: Counter[str] = Counter()
        self.advice: Counter[str] = Counter()
        self.repaired: Counter[str] = Counter()

    @property
    def stops(self) -> bool:
        """Whether a bad episode ends the push."""
        return self._action in (RAISE, REPAIR)

    def tolerates(self, code: str) -> bool:
        """Whether a problem of this code is let through."""
        return code in self._allow

    def judge(self, episode: Episode, columns: Columns | None = None) -> Verdict:
        """Finds the episode's problems and decides.

        Raises:
          InvalidEpisode: it is bad and the action is "raise", or "repair" could not mend it.
        """
        problems = find_problems(episode, columns)
        if not problems:
            return Verdict(episode)
        mended: tuple[Problem, ...] = ()
        for _ in range(_REPAIR_ROUNDS if self._action == REPAIR else 0):
            episode = repair(episode, [problem for problem in problems if problem.code not in self._allow])
            left = find_problems(episode, columns)
            mended += tuple(problem for problem in problems if problem not in left)
            problems = left
        return self._decide(episode, problems, mended)

    def reject(self, episode: Episode, problems: Sequence[Problem]) -> Verdict:
        """Rejects an episode for problems found elsewhere (a view that makes no item of it).

        Raises:
          InvalidEpisode: the action is "raise" or "repair", and some code is not tolerated.
        """
        codes = list(dict.fromkeys(problem.code for problem in problems))
        if self.stops and not self._allow.issuperset(codes):
            raise InvalidEpisode(episode.id, problems)
        if self._report is not None:
            self._write_report(episode, problems)
        self.rejected.update(codes[:1])
        return Verdict(None, tuple(problems))

    def _decide(self, episode: Episode, problems: list[Problem], mended: tuple[Problem, ...]) -> Verdict:
        counted = [problem for problem in problems if problem.code not in self._allow]
        bad = [problem for problem in counted if self._strict or not problem.is_advice]
        advice = tuple(problem for problem in counted if problem not in bad)
        if bad:
            return self.reject(episode, bad)
        self.advice.update({problem.code for problem in advice})
        self.repaired.update({problem.code for problem in mended})
        return Verdict(episode, (), advice, mended)

    def _write_report(self, episode: Episode, problems: Sequence[Problem]) -> None:
        assert self._report is not None  # the constructor saw to it
        with self._report.open("a", encoding="utf-8") as report:
            for problem in problems:
                line = {"episode": episode.id, "code": problem.code, "path": problem.path, "detail": problem.detail}
                report.write(json.dumps(line, ensure_ascii=False) + "\n")


def _writable(report: Path) -> Path:
    """The path, once it is sure that lines can be appended; before anything is pushed."""
    place = report if report.exists() else report.parent
    if report.is_dir() or not place.exists() or not os.access(place, os.W_OK):
        raise ConfigError(f"quarantine file {report}: cannot be written; expected a file in a folder that is there")
    return report
