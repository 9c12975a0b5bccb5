"""Problems of many episodes, counted and with examples (`Findings`): what an inspection reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from rlds2reverb.episode import Notice, faults
from rlds2reverb.formats.transform import AS_RECORDED, SHIFT
from rlds2reverb.plain import Count, plain, printed
from rlds2reverb.prepare.conventions import REPEAT, TRANSITION, Conventions
from rlds2reverb.prepare.policy import REPAIR, SKIP
from rlds2reverb.prepare.problems import CODES, ENDS_ALIKE, SHIFT_REWARDS, Named, Problem
from rlds2reverb.text import Remedy, as_html, counted

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

    _repr_html_ = as_html

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
        present = {*self.episodes, *(notice.code for notice in faults(self.notices))}
        return [
            code for code in CODES if code in present and code not in allow and (strict or not CODES[code].is_advice)
        ]

    def bad_episodes(self, codes: Sequence[str]) -> int:
        """Number of episodes that have one of these codes."""
        return sum(count for together, count in self.together.items() if not together.isdisjoint(codes))

    def more(self, code: str) -> int:
        """Problems of this kind beyond the examples."""
        return self.problems[code] - len(self.examples.get(code, ()))

    def as_dict(self) -> dict[str, Any]:
        """Code -> `FoundProblem`, as plain values, for JSON."""
        problems: dict[str, FoundProblem] = {
            code: {
                "episodes": count,
                "problems": self.problems[code],
                "meaning": CODES[code].meaning,
                "advice": CODES[code].is_advice,
                "examples": self.examples[code],
            }
            for code, count in sorted(self.episodes.items())
        }
        return dict(plain(problems))

    def remedy(self, code: str) -> Remedy | None:
        """What to do about a code; None where only the data's producer can do something."""
        if code == "last_reward":
            return self._remedy_of_last_reward()
        if code not in CODES:
            return None
        return CODES[code].remedy or (_REPAIR if CODES[code].is_repairable else None)

    def _remedy_of_last_reward(self) -> Remedy:
        """A shift is right only where first rewards are 0: it drops them."""
        mended, lost = self.mended_by_shift, counted(self.lost_by_shift, "episode")
        shift, skip = ("last_reward", SHIFT), ("on_invalid", SKIP)
        if not self.lost_by_shift:
            return SHIFT_REWARDS
        if not mended:
            return Remedy(f"none; {{}} would drop the first reward of {lost}, which is not 0", (shift,))
        return Remedy(
            f"{{}} {{}} moves the rewards of {counted(mended, 'episode')} one step back, and leaves out {lost} whose first reward is not 0",
            (shift, skip),
        )

    def mending(
        self, episodes: int, conventions: Conventions, strict: bool = False, allow: Sequence[str] = ()
    ) -> dict[str, Any] | None:
        """The options with which one push mends what can be mended and skips the rest, {} for none; None where it would store nothing.

        `on_invalid` is one choice: "repair" stops at what it cannot mend, and "skip" mends nothing. Conventions go with both.

        Args:
          episodes: number of episodes that were read.
          conventions: those in use already.
        """
        mended, lost = set(), 0
        options: dict[str, Any] = {}
        codes = self.codes(strict=True, allow=allow)
        if "last_reward" in codes and self.mended_by_shift > self.lost_by_shift:
            options["last_reward"], lost = SHIFT, self.lost_by_shift
            mended.add("last_reward")
        if "terminal_discount" in codes:
            options["terminal_discount"] = TRANSITION
            mended.add("terminal_discount")
        ends = {ENDS_ALIKE, "zero_last_observation"}.intersection(codes)
        if ends and conventions.last_observation == AS_RECORDED:
            options["last_observation"] = REPEAT
            mended |= ends
        left = [code for code in self.codes(strict, allow) if code not in mended]
        of_episodes = [code for code in left if code in self.episodes]
        if lost or of_episodes:
            repairs = not lost and all(CODES[code].is_repairable for code in of_episodes)
            options["on_invalid"] = REPAIR if repairs else SKIP
            if not repairs and self.bad_episodes(of_episodes) >= episodes:
                return None
        if of_dataset := [code for code in left if code not in self.episodes]:
            options["allow"] = (*allow, *of_dataset)
        return options


_REPAIR = Remedy("{} mends it", (("on_invalid", REPAIR),))
