"""Problems of many episodes, counted and with examples (`Findings`): what an inspection reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from rlds2reverb.episode import Notice, faults
from rlds2reverb.plain import Count, plain, printed
from rlds2reverb.prepare.problems import CODES, Named, Problem
from rlds2reverb.text import as_html

EXAMPLES = 3
"""Problems of one code that are kept."""


@printed("episode", "episode_id", "path=problem.path", "detail=problem.detail")
@dataclass(frozen=True)
class Example:
    """One problem of one episode.

    Attributes:
      episode: its id.
      episode_id: what the dataset itself calls it, None where it does not.
      title: both, for people.
      problem: what is wrong.
    """

    episode: str
    episode_id: str | None
    title: str
    problem: Problem


class FoundProblem(TypedDict):
    """All problems of one code.

    Attributes:
      episodes: number of episodes that have it.
      problems: number of problems of this code; an episode may have several.
      meaning: what the code means.
      advice: the data can be used, and a learner may misread them.
      examples: the first ones.
    """

    episodes: Count
    problems: Count
    meaning: str
    advice: bool
    examples: list[Example]


@dataclass
class Findings:
    """Problems of many episodes: counted by code, the first few kept.

    Attributes:
      episodes: code -> episodes that have it.
      problems: code -> problems of that kind; an episode may have several.
      examples: code -> the first of them, at most `EXAMPLES` each.
      notices: what is to be said of the dataset as a whole.
      together: codes of one episode -> episodes that have just these.
      lost_by_shift: episodes that last_reward="shift" would reject, because their first reward is not 0.
      mended_by_shift: episodes with the advice `last_reward` that it mends.
    """

    episodes: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Example]] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()
    together: Counter[frozenset[str]] = field(default_factory=Counter)
    lost_by_shift: int = 0
    mended_by_shift: int = 0

    def _repr_html_(self) -> str:
        return as_html(self)

    def add(self, episode: Named, problems: Sequence[Problem], is_lost_by_shift: bool = False) -> None:
        codes = frozenset(problem.code for problem in problems)
        self.lost_by_shift += is_lost_by_shift
        self.mended_by_shift += "last_reward" in codes and not is_lost_by_shift
        if codes:
            self.together[codes] += 1
        self.episodes.update(codes)
        self.problems.update(problem.code for problem in problems)
        for problem in problems:
            kept = self.examples.setdefault(problem.code, [])
            if len(kept) < EXAMPLES:
                kept.append(Example(episode.id, episode.recorded_id, episode.title, problem))

    def codes(self, strict: bool = False, allow: Sequence[str] = ()) -> list[str]:
        """Codes found that reject an episode or, with `strict`, the dataset; in the order of `CODES`."""
        found = {*self.episodes, *(notice.code for notice in faults(self.notices))}
        return [code for code in CODES if code in found and code not in allow and (strict or not CODES[code].is_advice)]

    def bad_episodes(self, codes: Sequence[str]) -> int:
        """Number of episodes that have one of these codes."""
        return sum(count for found, count in self.together.items() if not found.isdisjoint(codes))

    def more(self, code: str) -> int:
        """Problems of this kind beyond the examples."""
        return self.problems[code] - len(self.examples.get(code, ()))

    def as_dict(self) -> dict[str, Any]:
        """Code -> `FoundProblem`, as plain values, for JSON."""
        found: dict[str, FoundProblem] = {
            code: {
                "episodes": count,
                "problems": self.problems[code],
                "meaning": CODES[code].meaning,
                "advice": CODES[code].is_advice,
                "examples": self.examples[code],
            }
            for code, count in sorted(self.episodes.items())
        }
        return dict(plain(found))
