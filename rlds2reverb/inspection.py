"""A dataset at a glance: its spec, what its tables need, counts, ranges, and what is wrong with it. One pass, in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from rlds2reverb.conventions import Conventions, absent_fields, fill_absent, filled_spec
from rlds2reverb.episodes import REWARD, Array, Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.judging import cut_all, lack_of_items, refusal
from rlds2reverb.outputs import OpenOutput, Output
from rlds2reverb.sources.base import Source
from rlds2reverb.specs import ArraySpec, Nest, flatten
from rlds2reverb.validation import CODES, Problem, find_problems
from rlds2reverb.views.base import View
from rlds2reverb.views.prioritized import Prioritized

EXAMPLES = 3
"""Problems of one code that are kept word for word."""


@dataclass
class Range:
    """What the values of one column span, over all steps.

    Attributes:
      minimum, maximum, mean: over finite values; None for text and for a column without any.
      not_finite: values that are NaN or infinite.
    """

    minimum: float | None = None
    maximum: float | None = None
    total: float = 0.0
    finite: int = 0
    not_finite: int = 0

    @property
    def mean(self) -> float | None:
        """Mean of the finite values."""
        return self.total / self.finite if self.finite else None

    def add(self, column: Array) -> None:
        """Takes in [T, ...] values; text, complex and empty columns are passed over."""
        if column.dtype.kind in "OSUc" or not column.size:
            return
        values = column.astype(np.float64)
        finite = values[np.isfinite(values)]
        self.not_finite += values.size - finite.size
        if finite.size:
            low, high = float(finite.min()), float(finite.max())
            self.minimum = low if self.minimum is None else min(self.minimum, low)
            self.maximum = high if self.maximum is None else max(self.maximum, high)
            self.total += float(finite.sum())
            self.finite += finite.size

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"min": self.minimum, "max": self.maximum, "mean": self.mean, "not_finite": self.not_finite}


@dataclass
class Findings:
    """Problems of many episodes: counted by code, the first few kept.

    Attributes:
      episodes: code -> episodes that have it.
      examples: code -> (episode id, problem), at most `EXAMPLES` each.
    """

    episodes: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[tuple[str, Problem]]] = field(default_factory=dict)

    def add(self, episode: Episode, problems: Sequence[Problem]) -> None:
        """Takes in the problems of one episode."""
        self.episodes.update({problem.code for problem in problems})
        for problem in problems:
            kept = self.examples.setdefault(problem.code, [])
            if len(kept) < EXAMPLES:
                kept.append((episode.id, problem))

    def codes(self, strict: bool = False, allow: Sequence[str] = ()) -> list[str]:
        """Codes found that reject an episode, in the order of `CODES`."""
        return [
            code
            for code in CODES
            if code in self.episodes and code not in allow and (strict or not CODES[code].is_advice)
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: code -> episodes, meaning, advice, examples."""
        return {
            code: {
                "episodes": count,
                "meaning": CODES[code].meaning,
                "advice": CODES[code].is_advice,
                "examples": [
                    {"episode": episode, "path": problem.path, "detail": problem.detail}
                    for episode, problem in self.examples[code]
                ],
            }
            for code, count in sorted(self.episodes.items())
        }


@dataclass
class TableNeed:
    """What one table needs for the items of a view.

    Attributes:
      view: its name and options.
      signature: the items' spec, a nest.
      items: what the view makes of the valid episodes.
      without_items: valid episodes of which it makes none.
      left_over: steps at the end that no item holds, of a view over the stream.
      by_priority: whether items have priorities of their own.
    """

    view: str
    signature: Nest
    items: int = 0
    without_items: int = 0
    left_over: int = 0
    by_priority: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        spec = {path: str(leaf) for path, leaf in flatten(self.signature).items()}
        return {
            "view": self.view,
            "items": self.items,
            "without_items": self.without_items,
            "left_over": self.left_over,
            "by_priority": self.by_priority,
            "trajectory_data_spec": spec,
        }


@dataclass
class Inspection:
    """What `inspect` tells.

    Attributes:
      source: its name.
      step_spec: path -> spec of a step as recorded.
      filled: step fields that the dataset lacks and that a push would fill.
      tables: table -> what it needs.
      lengths: [episodes] steps of each episode.
      returns: [episodes] sum of the rewards of each episode, its last (boundary) step included.
      step_bytes: bytes of one step, text not counted.
      ranges: path -> range of the values.
      findings: what is wrong.
    """

    source: str
    step_spec: dict[str, ArraySpec]
    filled: tuple[str, ...]
    tables: dict[str, TableNeed]
    lengths: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    step_bytes: int = 0
    ranges: dict[str, Range] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; of one table, what it needs stands beside the rest."""
        needs = {name: need.as_dict() for name, need in self.tables.items()}
        return {
            "source": self.source,
            "episodes": len(self.lengths),
            "steps": sum(self.lengths),
            "step_bytes": self.step_bytes,
            "step_spec": {path: str(spec) for path, spec in self.step_spec.items()},
            "filled": list(self.filled),
            **(next(iter(needs.values())) if len(needs) == 1 else {"tables": needs}),
            "episode_length": summary(self.lengths),
            "return": summary(self.returns),
            "ranges": {path: span.as_dict() for path, span in self.ranges.items()},
            "problems": self.findings.as_dict(),
        }


def summary(values: Sequence[float]) -> dict[str, float] | None:
    """min, median, mean and max, or None of nothing."""
    if not len(values):
        return None
    array = np.asarray(values, np.float64)
    return {
        "min": float(array.min()),
        "median": float(np.median(array)),
        "mean": float(array.mean()),
        "max": float(array.max()),
    }


def inspect_source(source: Source, views: Mapping[str, View], limit: int | None = None) -> Inspection:
    """Reads a dataset once and tells what is in it.

    Args:
      source: what to read.
      views: table -> view whose items and signature to tell.
      limit: episodes to read at most, or None for all.

    Raises:
      SourceError: it cannot be read.
      ViewError: the view cannot cut such steps.
    """
    spec = source.spec()
    outputs = {
        name: OpenOutput(Output((name,), view), filled_spec(spec), Conventions().label) for name, view in views.items()
    }
    inspection = Inspection(
        source=source.name,
        step_spec=flatten(spec),
        filled=absent_fields(spec),
        tables={},
    )
    inspection.step_bytes = sum(_row_bytes(column) for column in inspection.step_spec.values())
    inspection.ranges = {path: Range() for path in inspection.step_spec}
    for episode, problems in _judged(source, limit):
        _take_in(inspection, episode, problems)
        if all(problem.is_advice for problem in problems):
            inspection.findings.add(episode, _cut(list(outputs.values()), episode))
    inspection.tables = {name: _need(output, views[name]) for name, output in outputs.items()}
    return inspection


def validate_source(source: Source, limit: int | None = None) -> tuple[int, Findings]:
    """Reads a dataset once and judges every episode: how many there were, and what is wrong with them.

    Raises:
      SourceError: it cannot be read.
    """
    findings, count = Findings(), 0
    for episode, problems in _judged(source, limit):
        count += 1
        findings.add(episode, problems)
    return count, findings


def _judged(source: Source, limit: int | None) -> Iterator[tuple[Episode, list[Problem]]]:
    """Every episode as recorded, and its problems once the absent fields are filled, as a push would judge it."""
    columns = flatten(filled_spec(source.spec()))
    for episode in islice(source, limit):
        yield episode, find_problems(fill_absent(episode), columns)


def _take_in(inspection: Inspection, episode: Episode, problems: list[Problem]) -> None:
    inspection.findings.add(episode, problems)
    inspection.lengths.append(len(episode))
    reward = episode.steps.get(REWARD)
    if reward is not None and reward.dtype.kind in "fiu":
        inspection.returns.append(float(reward.sum(dtype=np.float64)))
    for path, column in episode.steps.items():
        inspection.ranges.setdefault(path, Range()).add(column)


def _cut(outputs: Sequence[OpenOutput], episode: Episode) -> list[Problem]:
    """Counts the items of a good episode; why a push would reject it all the same."""
    try:
        cuts = cut_all(outputs, fill_absent(episode), episode.id)
    except ViewError as error:
        return [refusal(error)]
    if (problem := lack_of_items(episode, cuts)) is not None:
        return [problem]
    for output, cut in cuts:
        output.count(cut)
    return []


def _need(output: OpenOutput, view: View) -> TableNeed:
    return TableNeed(
        output.label,
        output.signature,
        output.items,
        output.empty_episodes,
        output.left_over,
        isinstance(view, Prioritized),
    )


def _row_bytes(spec: ArraySpec) -> int:
    if spec.dtype == object:
        return 0
    return int(np.prod([size or 0 for size in spec.shape])) * spec.dtype.itemsize
