"""A dataset at a glance: its spec, what its tables need, counts, ranges, and what is wrong with it. One pass, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from rlds2reverb.conventions import Conventions, absent_fields, filled_spec, last_row_is_added
from rlds2reverb.episodes import ACTION, DISCOUNT, REWARD, Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.push.cutting import Cutter, cut_for_all, take_in
from rlds2reverb.push.outputs import Output
from rlds2reverb.push.tally import Tally
from rlds2reverb.reports.ends import Ends
from rlds2reverb.reports.images import ImageColumn, image_columns
from rlds2reverb.reports.ranges import Range
from rlds2reverb.sources.base import Source, checked_spec, metadata_spec_of, remarks_of
from rlds2reverb.sources.transformed import left_out_of, transformed
from rlds2reverb.specs import ArraySpec, Nest, flatten, spec_texts
from rlds2reverb.transforms.transform import Transform
from rlds2reverb.validation import Problem, Standard
from rlds2reverb.validation.endings import with_problems_of_ends
from rlds2reverb.validation.findings import Findings
from rlds2reverb.validation.holdings import Holdings
from rlds2reverb.validation.items import lack_of_items, view_refused
from rlds2reverb.views.base import View, not_in_items
from rlds2reverb.views.extras import metadata_in_items, signature_of, wants_metadata
from rlds2reverb.views.prioritized import Prioritized
from rlds2reverb.views.trajectory import table_signature

Statistics = dict[str, float | None]
"""What is told of some numbers: min, median, mean, max."""


@dataclass
class InspectedOutput:
    """What an output of one table makes of the dataset, and what the table needs for it.

    Attributes:
      view: what people call it: its name and options.
      signature: what the table must have, a nest; the number of rows of trajectories is free in it.
      items_per_table: what the view makes of the valid episodes.
      without_items: valid episodes of which it makes none.
      left_over: steps at the end of a stream that no item holds; 0 for other views.
      by_priority: whether items have priorities of their own.
      not_in_items: paths of the step columns that no item holds in any form.
    """

    view: str
    signature: Nest
    items_per_table: int = 0
    without_items: int = 0
    left_over: int = 0
    by_priority: bool = False
    not_in_items: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        spec = spec_texts(self.signature)
        return {
            "view": self.view,
            "items": self.items_per_table,
            "without_items": self.without_items,
            "left_over": self.left_over,
            "by_priority": self.by_priority,
            "not_in_items": list(self.not_in_items),
            "trajectory_data_spec": spec,
        }


@dataclass
class Inspection:
    """What `inspect` tells.

    Attributes:
      source: its name.
      step_spec: path -> spec of a step as recorded, or as the transform makes it.
      filled: step fields that the dataset lacks and that a push would fill.
      outputs: table -> what its view makes.
      lengths: [episodes] steps of each episode.
      returns: [episodes] sum of the rewards of each episode, its last (boundary) step included; NaN or infinite where a
        reward is.
      step_bytes: bytes of one step, text not counted; encoded images by their mean.
      images: its image columns, with their sizes.
      ranges: path -> range of the values. A last row that was added for the last observation counts for neither action, reward nor
        discount, which mean nothing there.
      findings: what is wrong.
      transform: what is done to the columns first.
      left_out: paths of the recorded columns that it leaves out.
      ends: how the episodes end.
    """

    source: str
    step_spec: dict[str, ArraySpec]
    filled: tuple[str, ...]
    outputs: dict[str, InspectedOutput]
    lengths: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    step_bytes: int = 0
    images: tuple[ImageColumn, ...] = ()
    ranges: dict[str, Range] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)
    transform: Transform = Transform()
    left_out: tuple[str, ...] = ()
    ends: Ends = field(default_factory=Ends)

    def return_summary(self) -> Statistics | None:
        """min, median, mean and max of the finite returns, and how many are not; None where no episode has one."""
        if not self.returns:
            return None
        finite = [one for one in self.returns if math.isfinite(one)]
        numbers = summary(finite) or dict.fromkeys(("min", "median", "mean", "max"))
        return {**numbers, "not_finite": len(self.returns) - len(finite)}

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON. When there is one table, what it needs stands beside the rest."""
        outputs = {table: one.as_dict() for table, one in self.outputs.items()}
        return {
            "source": self.source,
            "episodes": len(self.lengths),
            "steps": sum(self.lengths),
            "step_bytes": self.step_bytes,
            "transform": self.transform.as_dict(),
            "left_out": list(self.left_out),
            "step_spec": {path: str(spec) for path, spec in self.step_spec.items()},
            "images": {one.path: one.as_dict() for one in self.images},
            "filled": list(self.filled),
            **(next(iter(outputs.values())) if len(outputs) == 1 else {"tables": outputs}),
            "episode_length": summary(self.lengths),
            "return": self.return_summary(),
            "ranges": {path: span.as_dict() for path, span in self.ranges.items()},
            "ends": self.ends.as_dict(),
            "problems": self.findings.as_dict(),
            "remarks": [remark.as_dict() for remark in self.findings.remarks],
        }


def summary(values: Sequence[float]) -> Statistics | None:
    """min, median, mean and max of finite numbers; None when there are none."""
    if not len(values):
        return None
    array = np.sort(np.asarray(values, np.float64))  # np.median would load masked arrays (numpy 2)
    return {
        "min": float(array.min()),
        "median": float(array[(len(array) - 1) // 2] + array[len(array) // 2]) / 2,
        "mean": float(array.mean()),
        "max": float(array.max()),
    }


def inspect_source(
    source: Source,
    views: Mapping[str, View],
    limit: int | None = None,
    conventions: Conventions = Conventions(),
    transform: Transform = Transform(),
) -> Inspection:
    """Reads a dataset once and tells what is in it.

    Args:
      source: what to read.
      views: table -> view whose items and signature to tell.
      limit: episodes to read at most, or None for all.
      conventions: what a push would mend in the episodes.
      transform: what a push would do to the columns first.

    Raises:
      SourceError: it cannot be read.
      ConfigError: the steps do not allow the transform.
      ViewError: the view cannot cut such steps.
    """
    source = transformed(source, transform)
    spec = checked_spec(source)
    step_spec = filled_spec(spec)
    metadata_spec = metadata_spec_of(source) if wants_metadata(views.values()) else ()
    cutters = [
        Cutter(Output((table,), view), signature_of(view, step_spec, metadata_spec)) for table, view in views.items()
    ]
    tallies = [Tally() for _ in cutters]
    columns = flatten(spec)
    inspection = Inspection(source=source.name, step_spec=columns, filled=absent_fields(spec), outputs={})
    inspection.images = image_columns(source)
    kept = sum(one.encoded_bytes for one in inspection.images if one.is_encoded)
    inspection.step_bytes = kept + sum(map(_row_bytes, columns.values()))
    inspection.ranges = {path: Range() for path in columns}
    inspection.transform, inspection.left_out = transform, left_out_of(source)
    conventions = transform.with_conventions(conventions)
    standard = Standard.of(spec, conventions, metadata_in_items(views.values(), metadata_spec))
    holdings = Holdings.of(columns)
    for episode, found in with_problems_of_ends(islice(source, limit), conventions):
        filled, problems = standard.examine(episode)
        problems += found
        _take_in(inspection, episode, problems)
        inspection.ends.add(filled)
        holdings = holdings.after(episode)
        if all(problem.is_advice for problem in problems):
            inspection.findings.add(episode, _cut(cutters, tallies, standard.put(filled)))
    inspection.findings.remarks = (*remarks_of(source), *holdings.remarks)
    inspection.outputs = {table: _inspected(*one, spec) for table, one in zip(views, zip(cutters, tallies))}
    return inspection


def validate_source(
    source: Source,
    limit: int | None = None,
    conventions: Conventions = Conventions(),
    transform: Transform = Transform(),
) -> tuple[int, Findings]:
    """Reads a dataset once and judges every episode; returns how many there were, and what is wrong with them.

    Args:
      source: what to read.
      limit: episodes to read at most, or None for all.
      conventions: what a push would mend in the episodes.
      transform: what a push would do to the columns first.

    Raises:
      SourceError: it cannot be read.
      ConfigError: the steps do not allow the transform.
    """
    findings, count = Findings(), 0
    source, conventions = transformed(source, transform), transform.with_conventions(conventions)
    spec = checked_spec(source)
    standard, holdings = Standard.of(spec, conventions), Holdings.of(flatten(spec))
    for episode, found in with_problems_of_ends(islice(source, limit), conventions):
        count += 1
        findings.add(episode, [*standard.examine(episode)[1], *found])
        holdings = holdings.after(episode)
    findings.remarks = (*remarks_of(source), *holdings.remarks)
    return count, findings


def _take_in(inspection: Inspection, episode: Episode, problems: list[Problem]) -> None:
    inspection.findings.add(episode, problems)
    inspection.lengths.append(len(episode))
    reward = episode.columns.get(REWARD)
    if reward is not None and reward.dtype.kind in "fiu":
        with np.errstate(invalid="ignore", over="ignore"):  # of rewards that are not finite
            inspection.returns.append(float(reward.sum(dtype=np.float64)))
    is_added = len(episode) > 1 and last_row_is_added(episode)
    for path, column in episode.columns.items():
        has_none = is_added and path.partition("/")[0] in (ACTION, REWARD, DISCOUNT)
        inspection.ranges.setdefault(path, Range()).add(column[:-1] if has_none else column)


def _cut(cutters: Sequence[Cutter], tallies: Sequence[Tally], episode: Episode) -> list[Problem]:
    """Counts the items of a good episode; returns why a push would reject it all the same."""
    try:
        cuts = cut_for_all(cutters, episode)
    except ViewError as error:
        return [view_refused(error)]
    if (problem := lack_of_items(episode, cuts)) is not None:
        return [problem]
    take_in(cutters, cuts)
    for tally, made in zip(tallies, cuts):
        tally.add(made)
    return []


def _inspected(cutter: Cutter, tally: Tally, spec: Nest) -> InspectedOutput:
    view = cutter.output.view
    return InspectedOutput(
        view=cutter.output.view_name,
        signature=table_signature(cutter.signature),
        items_per_table=tally.items_per_table,
        without_items=tally.without_items,
        left_over=cutter.left_over,
        by_priority=isinstance(view, Prioritized),
        not_in_items=not_in_items(view, spec),
    )


def _row_bytes(spec: ArraySpec) -> int:
    if spec.dtype == object:
        return 0
    return int(np.prod([size or 0 for size in spec.shape])) * spec.dtype.itemsize
