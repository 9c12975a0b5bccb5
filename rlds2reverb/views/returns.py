"""Priorities by an episode's return, for tables that keep the best: `Prioritized(WholeEpisode(), by_return)`.

Views give priorities from 0 up, for prioritized tables take no others, and returns may be negative. So the priority is not the return, but grows with it:

| return | priority |
| --- | --- |
| 0 and more | 1 + return |
| below 0 | 1 / (1 - return) |

The order stays, and so does what a heap keeps. Returns that differ by less than a float64 tells apart there (a relative 1e-16)
may have one priority. The return is the sum of the rewards of all steps but the last, which earns none, without discount.

>>> import numpy as np
>>> from rlds2reverb.episodes import Episode
>>> episode = Episode({"reward": np.array([1.0, 2.5, 99.0])}, {}, "e")
>>> by_return(episode, np.array([0])), return_of(by_return(episode, np.array([0])))
(array([4.5]), array([3.5]))
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rlds2reverb.episodes import REWARD, Array, Episode, columns_under


def by_return(episode: Episode, steps: Array) -> Array:
    """A `PriorityFunction`: every item of an episode gets what the episode's return comes to.

    Args:
      episode: with a column reward of one number per step.
      steps: [n], of its items.

    Returns:
      [n] float64, above 0; see above.

    Raises:
      LookupError: the steps have no reward.
      ValueError: a reward is not one number.
    """
    rewards = columns_under(episode.columns, REWARD)
    if not rewards:
        raise LookupError(f"the steps have no reward; found {sorted(episode.columns)}")
    if list(rewards) != [REWARD] or rewards[REWARD].ndim != 1:
        raise ValueError("reward is not one number per step; give a function of your own")
    total = float(rewards[REWARD][:-1].astype(np.float64).sum())
    return np.full(len(steps), 1 + total if total >= 0 else 1 / (1 - total))


def return_of(priority: npt.ArrayLike) -> Array:
    """The returns that such priorities stand for, as of `info.priority`; up to rounding."""
    given = np.asarray(priority, np.float64)
    with np.errstate(divide="ignore"):
        found: Array = np.where(given >= 1, given - 1, 1 - 1 / given)
    return found
