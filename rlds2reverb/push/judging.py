"""What a push makes of one episode: it is judged, put as the conventions say, and cut for every output; or it is rejected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlds2reverb.episodes import Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.push.cutting import Cutter, OutputCut, cut_for_all, take_in
from rlds2reverb.validation import Policy, Problem, Standard, Verdict
from rlds2reverb.validation.items import lack_of_items


class Accepted(NamedTuple):
    """A good episode.

    Attributes:
      key_name: names it in item keys.
      cuts: what every output makes of it, in their order; a cut may have no items.
      is_end_mended: its last row is not as it was recorded, because of `last_observation`.
    """

    key_name: str
    cuts: list[OutputCut]
    is_end_mended: bool = False


class Judge:
    """Decides about episodes, one after the other.

    Args:
      policy: what to do with bad ones; counts them.
      standard: what makes them good.
    """

    def __init__(self, policy: Policy, standard: Standard) -> None:
        self._policy, self._standard = policy, standard

    def cut(
        self,
        episode: Episode,
        cutters: Sequence[Cutter],
        is_stored: bool,
        found: Sequence[Problem] = (),
        is_dropped: bool = False,
    ) -> Accepted | None:
        """The cuts of a good episode, which no stream has taken in yet; None when it is rejected.

        Args:
          episode: as recorded.
          cutters: of the outputs to cut it for.
          is_stored: other outputs of the push have it already, so that it need not give items here.
          found: its problems that other episodes show.
          is_dropped: nothing of it is stored even if it is good, so no stream takes it in.

        Raises:
          InvalidEpisode, ViewError: it is bad, or cannot be cut, and the policy is to stop.
        """
        verdict = self._policy.judge(episode, self._standard, found)
        if verdict.episode is None:
            return None
        try:
            put = self._standard.put(verdict.episode)
            cuts = cut_for_all(cutters, put)
        except ViewError as error:
            self._policy.reject_refused(episode, error)
            return None
        self._check_rows(episode, cutters, cuts)
        if not is_stored and (problem := lack_of_items(put, cuts)) is not None:
            self._policy.reject(episode, [problem])
            return None
        if not is_dropped:
            take_in(cutters, cuts)
        return Accepted(_key_name(verdict, episode), cuts, self._standard.conventions.mends_end(verdict.episode))

    def _check_rows(self, episode: Episode, cutters: Sequence[Cutter], cuts: Sequence[OutputCut]) -> None:
        try:
            for cutter, made in zip(cutters, cuts):
                cutter.check_rows(made.cut)
        except ViewError as error:
            self._policy.stop_at_refused(episode, error)


def _key_name(verdict: Verdict, episode: Episode) -> str:
    """What names a good episode. A mended one has a name of its own: the server keeps what it has under a known key."""
    mended = sorted({problem.code for problem in verdict.repaired})
    return f"{episode.id}|repaired={','.join(mended)}" if mended else episode.id
