"""Mends what has one right answer; leaves everything else alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from rlds2reverb.conventions import with_zero_transition_discount
from rlds2reverb.episodes import IS_FIRST, IS_LAST, Episode
from rlds2reverb.validation.problems import Problem


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
