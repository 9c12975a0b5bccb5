"""A dataset at a glance: its spec, what its tables need, counts, ranges, and what is wrong with it. One pass, in bounded memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.conventions import last_row_is_added
from rlds2reverb.episodes import ACTION, DISCOUNT, REWARD, Array, Episode
from rlds2reverb.identity import Occurrences
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.prepare.preparation import Preparation, Prepared, Preparer
from rlds2reverb.push.outputs import Output
from rlds2reverb.push.report import Progress
from rlds2reverb.push.tally import Tally
from rlds2reverb.remarks import Remark
from rlds2reverb.reports.ends import Ends
from rlds2reverb.reports.images import image_columns
from rlds2reverb.reports.inspected import InspectedOutput, Inspection
from rlds2reverb.reports.ranges import Range
from rlds2reverb.reports.watching import Watch, Watcher
from rlds2reverb.sources.transformed import left_out_of
from rlds2reverb.specs import ArraySpec, flatten
from rlds2reverb.validation import Problem
from rlds2reverb.validation.endings import Ending
from rlds2reverb.validation.findings import Findings
from rlds2reverb.validation.holdings import Holdings, duplicates_remark
from rlds2reverb.validation.policy import SKIP
from rlds2reverb.views.base import View, not_in_items
from rlds2reverb.views.prioritized import Prioritized
from rlds2reverb.views.trajectory import table_signature

TELL_SECONDS = 0.25
"""How often progress is told."""

OnProgress = Callable[[Progress], object]


def inspect_source(
    source: Any,
    views: Mapping[str, View],
    limit: int | None = None,
    options: EpisodeOptions = EpisodeOptions(),
    on_progress: OnProgress = lambda _: None,
    watch: Watch | None = None,
) -> Inspection:
    """Reads a dataset once and tells what is in it.

    Args:
      source: what to read; anything that `open_source` takes.
      views: table -> view whose items and signature to tell.
      limit: episodes to read at most, or None for all.
      options: what a push would be told of the episodes; those of bad ones do not count, for all problems are told.
      on_progress: told a few times per second how many episodes and steps are read.
      watch: makes what looks at the episodes, too; it is `Inspection.watched` then.

    Raises:
      SourceError: it cannot be read.
      ConfigError: the steps do not allow the transform.
      ViewError: the view cannot cut such steps.
    """
    ready = prepared_for(source, views, options)
    preparer, whole = ready.preparer(), Inspecting(ready, watch)
    pace = Paced(on_progress, ready.source.episode_count, limit)
    for episode, found in ready.read(stop=limit):
        pace.count(episode)
        prepared = preparer.prepare(episode, found)
        whole.part.add(prepared)
        whole.add(Read.of(prepared))
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
    findings.remarks = (*ready.notices, *preparer.columns.remarks, *duplicates_remark(names.copies))
    return preparer.episodes, findings


def prepared_for(source: Any, views: Mapping[str, View], options: EpisodeOptions) -> Preparation:
    """A source to be inspected: no bad episode ends the reading, and all problems count. Errors as `inspect_source`."""
    telling = replace(options, on_invalid=SKIP, quarantine=None, allow=(), strict=False)
    return Preparation.open(source, telling, [Output((table,), view) for table, view in views.items()])


class Paced:
    """Counts episodes and steps, and tells.

    Args:
      on_progress: told at most every quarter of a second; nothing is sent, so it has no bytes.
      episode_count: that will be read, None where nobody knows.
      limit: episodes that are read at most.
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


class Read(NamedTuple):
    """What was found in one episode.

    Attributes:
      id, recorded_id, title: of the episode, see `episodes.Episode`.
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
    def of(prepared: Prepared) -> Read:
        """Of an episode that was decided about."""
        episode = prepared.episode
        return Read(
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
class PartRead:
    """What was found in a part of a source, or in all of it, whatever the order of the episodes is.

    Attributes:
      ranges: path -> range of the values.
      ends: how the episodes end.
      columns: what columns held.
      watcher: what else looks at them; None for nothing.
      remarks: of the source.
      episodes: one after the other, for whoever takes them in; see `Inspecting.add`.
    """

    ranges: dict[str, Range]
    ends: Ends
    columns: Holdings
    watcher: Watcher | None
    remarks: dict[Remark, None] = field(default_factory=dict)
    episodes: list[Read] = field(default_factory=list)

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
        self.remarks.update(dict.fromkeys(ready.notices))

    def add_part(self, other: PartRead) -> None:
        """Takes in what was found in the part that follows, but its episodes."""
        for path, span in other.ranges.items():
            self.ranges.setdefault(path, Range()).add_range(span)
        self.ends.add_ends(other.ends)
        self.columns = self.columns.with_others(other.columns)
        self.remarks.update(other.remarks)
        if self.watcher is not None and other.watcher is not None:
            self.watcher.add_part(other.watcher)


class Inspecting:
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

    def new_part(self) -> PartRead:
        """A part of which nothing has been read."""
        columns, watch = self._inspection.step_spec, self._watch
        watcher = None if watch is None else watch(self._inspection)
        return PartRead({path: Range() for path in columns}, Ends(), Holdings.of(columns), watcher)

    def add(self, read: Read, found: Sequence[Problem] = ()) -> None:
        """Takes in an episode, in the order of the source; `found` are problems that were not known where it was read."""
        inspection = self._inspection
        self._names.count(read.id)
        inspection.findings.add(read, [*read.problems, *found])
        inspection.lengths.append(read.steps)
        inspection.returns += read.returns
        if all(problem.is_advice for problem in found):
            inspection.findings.add(read, read.refused)
            for tally, output, items in zip(self._tallies, self._ready.outputs, read.items):
                tally.add_items(items, output.is_of_stream)

    def completed(self, left_over: Sequence[int]) -> Inspection:
        """The inspection, once all is read; `left_over` are the steps at the end of each output's stream that no item holds."""
        inspection, ready = self._inspection, self._ready
        duplicates = duplicates_remark(self._names.copies)
        inspection.findings.remarks = (*self.part.remarks, *self.part.columns.remarks, *duplicates)
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
        left_out=left_out_of(ready.source),
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
