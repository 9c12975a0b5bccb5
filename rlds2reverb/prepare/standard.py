"""What makes an episode good (`Standard`), and how one with repairable problems is mended (`repair`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

import numpy as np

from rlds2reverb.episode import IS_FIRST, IS_LAST, Episode, metadata_path, with_metadata
from rlds2reverb.prepare.checks import find_problems, find_problems_of_all
from rlds2reverb.prepare.conventions import Conventions, filled_spec, with_zero_transition_discount
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.specs import ArraySpec, Nest, flatten


@dataclass(frozen=True)
class Standard:
    """What makes an episode good: it fits the dataset's spec, and the conventions lose nothing of it."""

    # path -> spec that every episode must have, absent fields filled in; {} to judge an episode by itself
    columns: Mapping[str, ArraySpec] = field(default_factory=dict)
    conventions: Conventions = Conventions()  # what is mended in good episodes before they are cut
    # path -> spec of the metadata that every episode must have, because items hold it
    metadata: Mapping[str, ArraySpec] = field(default_factory=dict)

    @staticmethod
    def of(
        step_spec: Nest, conventions: Conventions, metadata: Mapping[str, ArraySpec] = MappingProxyType({})
    ) -> Standard:
        """The standard of a dataset; `step_spec` is that of its steps as recorded."""
        return Standard(flatten(filled_spec(step_spec)), conventions, metadata)

    def problems(self, filled: Episode) -> list[Problem]:
        """Problems of an episode that has been filled; metadata in items is judged as the columns that it becomes."""
        if not filled.columns or self._has_good_metadata(filled):
            return find_problems(filled, self.columns, self.conventions)
        columns = {metadata_path(name): spec for name, spec in self.metadata.items()}
        return find_problems(with_metadata(filled, self.metadata), {**self.columns, **columns}, self.conventions)

    def problems_of_all(self, filled: Sequence[Episode]) -> list[list[Problem]]:
        """`problems` of every episode, faster for many short ones."""
        if not all(map(self._has_good_metadata, filled)):
            return [self.problems(episode) for episode in filled]
        return find_problems_of_all(filled, self.columns, self.conventions)

    def _has_good_metadata(self, episode: Episode) -> bool:
        """Whether the metadata in items has no problem, by a quick look; False where it takes a closer one, as columns."""
        for name, spec in self.metadata.items():
            value = episode.metadata.get(name)
            if isinstance(value, (bytes, str)):
                is_good = spec.dtype == object and spec.shape == () and spec.image is None
            elif isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
                is_good = value.dtype == spec.dtype and value.shape == spec.shape
                is_good = is_good and (value.dtype.kind != "f" or bool(np.isfinite(value).all()))
            else:
                is_good = False
            if not is_good:
                return False
        return True

    def normalise(self, good: Episode) -> Episode:
        """What views cut and formats write of a good episode that is filled already."""
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


def _mend_end(path: str, row: int, episode: Episode, _: Problem) -> Episode:
    flag = episode.columns[path].copy()
    flag[row] = True
    return replace(episode, columns={**episode.columns, path: flag})


def _mend_flag_dtype(episode: Episode, problem: Problem) -> Episode:
    flag = episode.columns[problem.path]
    is_binary = flag.dtype.kind in "biuf" and flag.size == len(flag) and bool(np.isin(flag, (0, 1)).all())
    if not is_binary:
        return episode
    return replace(episode, columns={**episode.columns, problem.path: flag.reshape(-1).astype(bool)})


_REPAIRS: dict[str, Callable[[Episode, Problem], Episode]] = {
    "first_missing": partial(_mend_end, IS_FIRST, 0),
    "last_missing": partial(_mend_end, IS_LAST, -1),
    "flag_dtype": _mend_flag_dtype,
    "terminal_discount": lambda episode, _: with_zero_transition_discount(episode),
}
"""Code -> repair; the codes marked `is_repairable`."""
