"""What `inspect` tells, as data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlds2reverb.display import as_html
from rlds2reverb.reports.ends import Ends
from rlds2reverb.reports.images import ImageColumn
from rlds2reverb.reports.ranges import Range
from rlds2reverb.specs import ArraySpec, Nest, spec_texts
from rlds2reverb.transforms.transform import Transform
from rlds2reverb.validation.findings import Findings

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
      watched: what else looked at the episodes, see `watching.Watcher`; None when nothing did.
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
    watched: Any = None

    def _repr_html_(self) -> str:
        return as_html(self)

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
        "median": float(array[(len(array) - 1) // 2] / 2 + array[len(array) // 2] / 2),
        "mean": float(array.mean()),
        "max": float(array.max()),
    }
