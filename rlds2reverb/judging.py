"""What a push makes of one episode: judged, put as the conventions say, and cut for every output, or rejected."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlds2reverb.conventions import Conventions, fill_absent
from rlds2reverb.episodes import REWARD, Episode, columns_under
from rlds2reverb.errors import ViewError
from rlds2reverb.outputs import OpenOutput
from rlds2reverb.specs import ArraySpec
from rlds2reverb.validation import Policy, Problem, Verdict
from rlds2reverb.views.base import Cut

Cuts = list[tuple[OpenOutput, Cut]]
"""What every output made of an episode; a cut may have no items."""


class Judge:
    """Decides about episodes, one after the other.

    Args:
      policy: what to do with bad ones; counts them.
      columns: path -> spec of a step's column.
      conventions: how good ones are put.
    """

    def __init__(self, policy: Policy, columns: dict[str, ArraySpec], conventions: Conventions) -> None:
        self._policy, self._columns, self._conventions = policy, columns, conventions

    def cut(self, episode: Episode, outputs: Sequence[OpenOutput], is_stored: bool) -> Cuts | None:
        """The cuts of a good episode, or None of a rejected one, which no stream has taken in.

        Args:
          episode: as recorded.
          outputs: what to cut it for.
          is_stored: other outputs of the push have it already, so that it need not give items here.

        Raises:
          InvalidEpisode, ViewError: it is bad, or cannot be cut, and the policy is to stop.
        """
        verdict = self._judged(episode)
        if verdict.episode is None:
            return None
        try:
            cuts = cut_all(outputs, self._conventions.apply(verdict.episode), _tag(verdict))
        except ViewError as error:
            if self._policy.stops:
                raise ViewError(f"episode {episode.id}: {error}") from error
            self._policy.reject(episode, [refusal(error)])
            return None
        _check_rows(episode, cuts)
        if not is_stored and (problem := lack_of_items(episode, cuts)) is not None:
            self._policy.reject(episode, [problem])
            return None
        return cuts

    def _judged(self, episode: Episode) -> Verdict:
        verdict = self._policy.judge(fill_absent(episode), self._columns)
        if verdict.episode is None or self._conventions.last_reward != "shift":
            return verdict
        lost = [one for one in _spoilt_by_shift(verdict.episode) if not self._policy.tolerates(one.code)]
        return self._policy.reject(episode, lost) if lost else verdict


def cut_all(outputs: Sequence[OpenOutput], episode: Episode, tag: str) -> Cuts:
    """A cut an output.

    Args:
      outputs: what to cut it for.
      episode: a good one.
      tag: names it in item keys.

    Raises:
      ViewError: one of them refuses the episode; then no stream has taken it in.
    """
    cuts: Cuts = []
    for number, output in enumerate(outputs):
        try:
            cuts.append((output, output.cut(episode, tag)))
        except ViewError:
            for tried in outputs[: number + 1]:
                tried.undo()
            raise
    return cuts


def refusal(error: ViewError) -> Problem:
    """What is wrong with an episode that a view refuses."""
    return Problem("view_refused", "", str(error))


def lack_of_items(episode: Episode, cuts: Cuts) -> Problem | None:
    """What is wrong with an episode of which no view makes an item; of streams, later ones may."""
    if any(len(cut.anchors) or output.is_stream for output, cut in cuts):
        return None
    labels = ", ".join(output.label for output, _ in cuts)
    return Problem("no_items", "", f"{labels} makes no item of {len(episode)} steps")


def _check_rows(episode: Episode, cuts: Cuts) -> None:
    for output, cut in cuts:
        try:
            output.check_rows(cut)
        except ViewError as error:
            raise ViewError(f"episode {episode.id}: {error}") from error


def _tag(verdict: Verdict) -> str:
    """What names a good episode in item keys. A mended one has a name of its own: the server keeps what it has under a known key."""
    assert verdict.episode is not None  # only good episodes are cut
    mended = sorted({problem.code for problem in verdict.repaired})
    return f"{verdict.episode.id}|repaired={','.join(mended)}" if mended else verdict.episode.id


def _spoilt_by_shift(episode: Episode) -> list[Problem]:
    """What a shift would lose at the start, or bring from the last step, where validation does not look."""
    found: list[Problem] = []
    for path, reward in columns_under(episode.steps, REWARD).items():
        if np.any(reward[0]):
            detail = (
                f"step 0 has reward {reward[0]}; the data seems to record rewards with the action that earned them, "
                "so it needs no shift"
            )
            found.append(Problem("first_reward_lost", path, detail))
        if reward.dtype.kind == "f" and not np.all(np.isfinite(reward[-1])):
            code = "nan" if np.any(np.isnan(reward[-1])) else "infinite"
            detail = f"step {len(reward) - 1} (the last) has reward {reward[-1]}, which a shift would use"
            found.append(Problem(code, path, detail))
    return found
