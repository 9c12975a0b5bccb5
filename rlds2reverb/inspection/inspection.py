"""A dataset at a glance: its spec, what its tables need, counts, ranges, and what is wrong with it. One pass, in bounded memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from rlds2reverb.display import as_html
from rlds2reverb.episode import ACTION, DISCOUNT, REWARD, Array, Episode, Notice
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.transform import Transform, TransformLike
from rlds2reverb.identity import Occurrences
from rlds2reverb.inspection.statistics import Ends, ImageColumn, Range, image_columns
from rlds2reverb.prepare.column_stats import ColumnStats, duplicates_notice
from rlds2reverb.prepare.conventions import Conventions, last_row_is_added
from rlds2reverb.prepare.cutting import Output, OutputCut, Tally
from rlds2reverb.prepare.endings import Ending
from rlds2reverb.prepare.options import EpisodeOptions, Progress
from rlds2reverb.prepare.policy import SKIP
from rlds2reverb.prepare.preparation import Preparation, Prepared, Preparer
from rlds2reverb.prepare.problems import Findings, Problem
from rlds2reverb.specs import ArraySpec, Nest, flatten, spec_texts
from rlds2reverb.views.base import View, not_in_items
from rlds2reverb.views.prioritized import Prioritized
from rlds2reverb.views.registry import ViewLike, is_view_config, view_from
from rlds2reverb.views.trajectory import table_signature

Statistics = dict[str, float | None]
"""What is told of some numbers: min, median, mean, max."""


@dataclass
class InspectedOutput:
    """What one table gets of the dataset, and which signature it needs.

    Attributes:
      view: its name and options.
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
    """What is in a dataset.

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
      findings: what is wrong with it.
      transform: what is done to the columns first.
      left_out: paths of the recorded columns that it leaves out.
      ends: how the episodes end.
      watched: the `Watcher` that saw the episodes; None without one.
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
            "notices": [notice.as_dict() for notice in self.findings.notices],
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


class Watcher(Protocol):
    """Sees every episode of an inspection once."""

    def add(
        self, episode: Episode, columns: Mapping[str, Array], problems: Sequence[Problem], cuts: Sequence[OutputCut]
    ) -> None:
        """Takes in an episode.

        Args:
          episode: as recorded, or as the transform makes it.
          columns: its meaningful values, see `meant`.
          problems: what is wrong with it; without problems that only other episodes show, where several workers read.
          cuts: what the views make of it, one per table; () for a bad episode.
        """

    def add_part(self, other: Any) -> None:
        """Adds what another watcher saw of the episodes that follow."""


Watch = Callable[[Inspection], Watcher]
"""Makes a watcher for an inspection that has read nothing yet. It is pickled for workers."""


TELL_SECONDS = 0.25
"""Between two reports of progress."""

OnProgress = Callable[[Progress], object]


def inspect_source(
    source: Any,
    views: Mapping[str, View],
    limit: int | None = None,
    options: EpisodeOptions = EpisodeOptions(),
    on_progress: OnProgress = lambda _: None,
    watch: Watch | None = None,
) -> Inspection:
    """Reads a dataset once, and returns what is in it.

    Args:
      source: what to read; anything that `open_source` takes.
      views: table -> view whose items to count.
      limit: episodes to read at most, or None for all.
      options: as for a push; the policy of bad episodes is ignored, because all problems are reported.
      on_progress: called a few times per second with the episodes and steps read.
      watch: makes a watcher, which is `Inspection.watched` then.

    Raises:
      SourceError: it cannot be read.
      ConfigError: the steps do not allow the transform.
      ViewError: the view cannot cut such steps.
    """
    ready = prepared_for(source, views, options)
    preparer, whole = ready.preparer(), InspectionBuilder(ready, watch)
    pace = Paced(on_progress, ready.source.episode_count, limit)
    for episode, found in ready.read(stop=limit):
        pace.count(episode)
        prepared = preparer.prepare(episode, found)
        whole.part.add(prepared)
        whole.add(EpisodeRecord.of(prepared))
    whole.part.complete(ready, preparer)
    return whole.completed([cutter.left_over for cutter in preparer.cutters])


def validate_source(
    source: Any,
    limit: int | None = None,
    options: EpisodeOptions = EpisodeOptions(),
    on_progress: OnProgress = lambda _: None,
) -> tuple[int, Findings]:
    """Reads a dataset once and judges every episode; returns how many there were, and what is wrong with them.

    Arguments and errors as `inspect_source`; no view is asked.
    """
    ready = prepared_for(source, {}, options)
    preparer, findings, names = ready.preparer(), Findings(), Occurrences()
    pace = Paced(on_progress, ready.source.episode_count, limit)
    for episode, found in ready.read(stop=limit):
        pace.count(episode)
        names.count(episode.id)
        findings.add(episode, preparer.prepare(episode, found).problems)
    findings.notices = (*ready.notices, *preparer.columns.notices, *duplicates_notice(names.copies))
    return preparer.episodes, findings


def prepared_for(source: Any, views: Mapping[str, View], options: EpisodeOptions) -> Preparation:
    """A source to be inspected: no bad episode ends the reading, and all problems count. Errors as `inspect_source`."""
    telling = replace(options, on_invalid=SKIP, quarantine=None, allow=(), strict=False)
    return Preparation.open(source, telling, [Output((table,), view) for table, view in views.items()])


class Paced:
    """Counts episodes and steps, and reports progress.

    Args:
      on_progress: called at most every quarter of a second, without bytes, because nothing is sent.
      episode_count: of the source; None where it is not known.
      limit: most episodes that are read.
    """

    def __init__(self, on_progress: OnProgress, episode_count: int | None, limit: int | None) -> None:
        self._on_progress, self._episodes, self._steps = on_progress, 0, 0
        self._count = episode_count if limit is None or episode_count is None else min(episode_count, limit)
        self._began = self._told_at = time.monotonic()

    def count(self, episode: Episode) -> None:
        """An episode was read."""
        self._episodes += 1
        self._steps += len(episode)
        now = time.monotonic()
        if now - self._told_at >= TELL_SECONDS:
            self._told_at = now
            self._on_progress(Progress(self._episodes, self._steps, self._count, 0, 0, now - self._began))


class EpisodeRecord(NamedTuple):
    """What was found in one episode.

    Attributes:
      id, recorded_id, title: of the episode, as those of `Episode`.
      steps: of it.
      returns: its return; [] where it has none.
      problems: what is wrong with it, as far as that is known where it was read.
      items: of each table; [] when it is bad.
      refused: why a push would reject it all the same.
      ending: how it ends, for whoever hears of all; None where that cannot tell.
    """

    id: str
    recorded_id: str | None
    title: str
    steps: int
    returns: list[float]
    problems: tuple[Problem, ...]
    items: list[int]
    refused: tuple[Problem, ...]
    ending: Ending | None = None

    @staticmethod
    def of(prepared: Prepared) -> EpisodeRecord:
        """Of an episode that was decided about."""
        episode = prepared.episode
        return EpisodeRecord(
            episode.id,
            episode.recorded_id,
            episode.title,
            len(episode),
            return_of(episode),
            prepared.problems,
            [one.items_per_table for one in prepared.cuts],
            () if prepared.refused is None else (prepared.refused,),
        )


@dataclass
class PartStatistics:
    """What was found in a part of a source, or in all of it, whatever the order of the episodes is.

    Attributes:
      ranges: path -> range of the values.
      ends: how the episodes end.
      columns: what columns held.
      watcher: what else looks at them; None for nothing.
      notices: of the source.
      episodes: one after the other, for whoever takes them in; see `InspectionBuilder.add`.
    """

    ranges: dict[str, Range]
    ends: Ends
    columns: ColumnStats
    watcher: Watcher | None
    notices: dict[Notice, None] = field(default_factory=dict)
    episodes: list[EpisodeRecord] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Of all its episodes."""
        return sum(one.steps for one in self.episodes)

    def add(self, prepared: Prepared) -> None:
        """Takes in an episode."""
        columns = meant(prepared.episode)
        for path, column in columns.items():
            self.ranges.setdefault(path, Range()).add(column)
        self.ends.add(prepared.filled)
        if self.watcher is not None:
            refused = [] if prepared.refused is None else [prepared.refused]
            self.watcher.add(prepared.episode, columns, [*prepared.problems, *refused], prepared.cuts)

    def complete(self, ready: Preparation, preparer: Preparer) -> None:
        """Takes in what is known once all its episodes are read."""
        self.columns = preparer.columns
        self.notices.update(dict.fromkeys(ready.notices))

    def add_part(self, other: PartStatistics) -> None:
        """Takes in what was found in the part that follows, but its episodes."""
        for path, span in other.ranges.items():
            self.ranges.setdefault(path, Range()).add_range(span)
        self.ends.add_ends(other.ends)
        self.columns = self.columns.with_others(other.columns)
        self.notices.update(other.notices)
        if self.watcher is not None and other.watcher is not None:
            self.watcher.add_part(other.watcher)


class InspectionBuilder:
    """An inspection while its episodes are taken in.

    Args:
      ready: what is read, see `prepared_for`.
      watch: makes what looks at the episodes, too.

    Attributes:
      part: what does not depend on the order of the episodes.
    """

    def __init__(self, ready: Preparation, watch: Watch | None = None) -> None:
        self._ready, self._watch = ready, watch
        self._tallies, self._names = [Tally() for _ in ready.outputs], Occurrences()
        self._inspection = _begun(ready)
        self.part = self.new_part()
        self._inspection.ranges, self._inspection.ends = self.part.ranges, self.part.ends
        self._inspection.watched = self.part.watcher

    def new_part(self) -> PartStatistics:
        """A part of which nothing has been read."""
        columns, watch = self._inspection.step_spec, self._watch
        watcher = None if watch is None else watch(self._inspection)
        return PartStatistics({path: Range() for path in columns}, Ends(), ColumnStats.of(columns), watcher)

    def add(self, read: EpisodeRecord, found: Sequence[Problem] = ()) -> None:
        """Takes in an episode, in the order of the source; `found` are problems that were not known where it was read."""
        inspection = self._inspection
        self._names.count(read.id)
        inspection.findings.add(read, [*read.problems, *found])
        inspection.lengths.append(read.steps)
        inspection.returns += read.returns
        if all(problem.is_advice for problem in found):
            inspection.findings.add(read, read.refused)
            for tally, output, items in zip(self._tallies, self._ready.outputs, read.items):
                tally.add(items, output.is_of_stream)

    def completed(self, left_over: Sequence[int]) -> Inspection:
        """The inspection, once all is read; `left_over` are the steps at the end of each output's stream that no item holds."""
        inspection, ready = self._inspection, self._ready
        duplicates = duplicates_notice(self._names.copies)
        inspection.findings.notices = (*self.part.notices, *self.part.columns.notices, *duplicates)
        inspection.outputs = {
            output.tables[0]: InspectedOutput(
                view=output.view_name,
                signature=table_signature(signature, output.view_name),
                items_per_table=tally.items_per_table,
                without_items=tally.without_items,
                left_over=left,
                by_priority=isinstance(output.view, Prioritized),
                not_in_items=not_in_items(output.view, ready.recorded_spec),
            )
            for output, signature, tally, left in zip(ready.outputs, ready.signatures, self._tallies, left_over)
        }
        return inspection


def _begun(ready: Preparation) -> Inspection:
    """What the source tells by itself."""
    columns = flatten(ready.recorded_spec)
    images = image_columns(ready.source) if ready.outputs else ()
    step_bytes = sum(one.encoded_bytes for one in images if one.is_encoded) + sum(map(_row_bytes, columns.values()))
    return Inspection(
        source=ready.source.name,
        step_spec=columns,
        filled=ready.filled,
        outputs={},
        step_bytes=step_bytes,
        images=images,
        transform=ready.options.chosen_transform,
        left_out=ready.source.left_out,
    )


def _row_bytes(spec: ArraySpec) -> int:
    return 0 if spec.dtype == object else int(np.prod([size or 0 for size in spec.shape])) * spec.dtype.itemsize


def return_of(episode: Episode) -> list[float]:
    """The sum of an episode's rewards; [] where it has none that are numbers."""
    reward = episode.columns.get(REWARD)
    if reward is None or reward.dtype.kind not in "fiu":
        return []
    with np.errstate(invalid="ignore", over="ignore"):  # of rewards that are not finite
        return [float(reward.sum(dtype=np.float64))]


def meant(episode: Episode) -> dict[str, Array]:
    """An episode's columns; action, reward and discount without a last row that was added for the last observation."""
    if len(episode) < 2 or not last_row_is_added(episode):
        return dict(episode.columns)
    return {
        path: column[:-1] if path.partition("/")[0] in (ACTION, REWARD, DISCOUNT) else column
        for path, column in episode.columns.items()
    }


_CONVENTIONS = tuple(vars(Conventions()))

_TABLE = "replay"
"""What the table is called where only a view is given."""


def inspect(
    source: Any,
    view: ViewLike | Mapping[str, ViewLike] = "two_step",
    limit: int | None = None,
    transform: TransformLike = (),
    encoded: str | Sequence[str] = (),
    **conventions: str,
) -> Inspection:
    """Reads a dataset once and tells what is in it, what is wrong with it, and which tables it needs. Stores nothing.

    Args:
      source: as for `Client.push`.
      view: of a table "replay"; or table -> view, for several. A view is one, its name with options, or a mapping as for `Client.push`.
      limit: episodes to read at most, or None for all.
      transform, encoded: as for `Client.push`.
      conventions: `terminal_discount`, `last_reward` and `last_observation`, as for `Client.push`.

    Returns:
      What was found. `outputs[table].signature` is what a table must have.

    Raises:
      SourceError: it cannot be opened or read.
      ConfigError: a convention that there is not, no view, a limit below 1, or a transform that the steps do not allow.
      ViewError: a view that makes no sense, or cannot cut such steps.
    """
    given = view if isinstance(view, Mapping) and not is_view_config(view) else {_TABLE: view}
    if not given:
        raise ConfigError("inspect: view is empty; expected a view, or table -> view")
    if limit is not None and limit < 1:
        raise ConfigError(f"inspect: limit {limit}: expected at least 1, or None for all episodes")
    views = {
        table: view_from(one, f'inspect: view of "{table}"') if isinstance(one, (str, Mapping)) else one
        for table, one in given.items()
    }
    if unknown := sorted(set(conventions) - set(_CONVENTIONS)):
        raise ConfigError(f"inspect has no option {', '.join(unknown)}; its conventions are {', '.join(_CONVENTIONS)}")
    return inspect_source(
        source, views, limit, EpisodeOptions(transform=transform, encoded=encoded, **cast("Any", conventions))
    )
