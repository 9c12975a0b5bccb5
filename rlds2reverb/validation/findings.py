"""Problems of many episodes: counted, and the first few of each kind kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlds2reverb.display import as_html
from rlds2reverb.remarks import Remark, faults
from rlds2reverb.validation.problems import CODES, Problem

EXAMPLES = 3
"""Problems of one code that are kept word for word."""


class Named(Protocol):
    """An episode, or what stands for one."""

    @property
    def id(self) -> str:
        """Names it."""

    @property
    def recorded_id(self) -> str | None:
        """What the dataset itself calls it, None where it does not."""

    @property
    def title(self) -> str:
        """Both, for people."""


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

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        named = {"episode": self.episode, "episode_id": self.episode_id}
        return {**named, "path": self.problem.path, "detail": self.problem.detail}


@dataclass
class Findings:
    """Problems of many episodes: counted by code, the first few kept.

    Attributes:
      episodes: code -> episodes that have it.
      problems: code -> problems of that kind; an episode may have several.
      examples: code -> the first of them, at most `EXAMPLES` each.
      remarks: what is to be said of the dataset as a whole.
    """

    episodes: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Example]] = field(default_factory=dict)
    remarks: tuple[Remark, ...] = ()

    def _repr_html_(self) -> str:
        return as_html(self)

    def add(self, episode: Named, problems: Sequence[Problem]) -> None:
        """Takes in the problems of one episode."""
        self.episodes.update({problem.code for problem in problems})
        self.problems.update(problem.code for problem in problems)
        for problem in problems:
            kept = self.examples.setdefault(problem.code, [])
            if len(kept) < EXAMPLES:
                kept.append(Example(episode.id, episode.recorded_id, episode.title, problem))

    def codes(self, strict: bool = False, allow: Sequence[str] = ()) -> list[str]:
        """Codes found that reject an episode or, strictly, the dataset; in the order of `CODES`."""
        found = {*self.episodes, *(remark.code for remark in faults(self.remarks))}
        return [code for code in CODES if code in found and code not in allow and (strict or not CODES[code].is_advice)]

    def more(self, code: str) -> int:
        """Problems of this kind beyond the examples."""
        return self.problems[code] - len(self.examples.get(code, ()))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: code -> episodes, problems, meaning, advice, examples."""
        return {
            code: {
                "episodes": count,
                "problems": self.problems[code],
                "meaning": CODES[code].meaning,
                "advice": CODES[code].is_advice,
                "examples": [example.as_dict() for example in self.examples[code]],
            }
            for code, count in sorted(self.episodes.items())
        }
