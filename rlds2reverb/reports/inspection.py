"""A dataset at a glance: its spec, what its tables need, counts, ranges, and what is wrong with it. One pass, in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np

from rlds2reverb.conventions import Conventions, last_row_is_added
from rlds2reverb.episodes import ACTION, DISCOUNT, REWARD, Array, Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.identity import Occurrences
from rlds2reverb.push.cutting import Cutter, OutputCut, cut_for_all, take_in
from rlds2reverb.reports.begun import begin
from rlds2reverb.reports.inspected import Inspection
from rlds2reverb.reports.paced import OnProgress, Paced, unheard
from rlds2reverb.reports.ranges import Range
from rlds2reverb.reports.watching import Watch
from rlds2reverb.sources.base import Source, checked_spec, remarks_of
from rlds2reverb.sources.transformed import transformed
from rlds2reverb.specs import flatten
from rlds2reverb.transforms.transform import Transform
from rlds2reverb.validation import Problem, Standard
from rlds2reverb.validation.endings import with_problems_of_ends
from rlds2reverb.validation.findings import Findings
from rlds2reverb.validation.holdings import Holdings, duplicates_remark
from rlds2reverb.validation.items import lack_of_items, view_refused
from rlds2reverb.views.base import View


def inspect_source(
    source: Source,
    views: Mapping[str, View],
    limit: int | None = None,
    conventions: Conventions = Conventions(),
    transform: Transform = Transform(),
    on_progress: OnProgress = unheard,
    watch: Watch | None = None,
) -> Inspection:
    """Reads a dataset once and tells what is in it.

    Args:
      source: what to read.
      views: table -> view whose items and signature to tell.
      limit: episodes to read at most, or None for all.
      conventions: what a push would mend in the episodes.
      transform: what a push would do to the columns first.
      on_progress: told a few times per second how many episodes and steps are read.
      watch: makes what looks at the episodes, too; it is `Inspection.watched` then.

    Raises:
      SourceError: it cannot be read.
      ConfigError: the steps do not allow the transform.
      ViewError: the view cannot cut such steps.
    """
    begun = begin(source, views, conventions, transform)
    watcher = begun.watched_by(watch)
    inspection, standard = begun.inspection, begun.standard
    holdings = Holdings.of(inspection.step_spec)
    pace, names = Paced(on_progress, begun.source.episode_count, limit), Occurrences()
    for episode, found in with_problems_of_ends(islice(begun.source, limit), standard.conventions):
        pace.count(episode)
        names.count(episode.id)
        filled, problems = standard.examine(episode)
        problems += found
        inspection.findings.add(episode, problems)
        inspection.lengths.append(len(episode))
        inspection.returns += return_of(episode)
        columns = meant(episode)
        add_ranges(inspection.ranges, columns)
        inspection.ends.add(filled)
        holdings = holdings.after(episode)
        if all(problem.is_advice for problem in problems):
            made, refused = cut(begun.cutters, standard.put(filled))
            inspection.findings.add(episode, refused)
            for tally, one in zip(begun.tallies, made):
                tally.add(one)
        else:
            made, refused = [], []
        if watcher is not None:
            watcher.add(episode, columns, [*problems, *refused], made)
    return begun.completed((*remarks_of(begun.source), *holdings.remarks, *duplicates_remark(names.copies)))


def validate_source(
    source: Source,
    limit: int | None = None,
    conventions: Conventions = Conventions(),
    transform: Transform = Transform(),
    on_progress: OnProgress = unheard,
) -> tuple[int, Findings]:
    """Reads a dataset once and judges every episode; returns how many there were, and what is wrong with them.

    Args:
      source: what to read.
      limit: episodes to read at most, or None for all.
      conventions: what a push would mend in the episodes.
      transform: what a push would do to the columns first.
      on_progress: told a few times per second how many episodes and steps are read.

    Raises:
      SourceError: it cannot be read.
      ConfigError: the steps do not allow the transform.
    """
    findings, count = Findings(), 0
    source, conventions = transformed(source, transform), transform.with_conventions(conventions)
    spec = checked_spec(source)
    standard, holdings = Standard.of(spec, conventions), Holdings.of(flatten(spec))
    pace, names = Paced(on_progress, source.episode_count, limit), Occurrences()
    for episode, found in with_problems_of_ends(islice(source, limit), conventions):
        pace.count(episode)
        names.count(episode.id)
        count += 1
        findings.add(episode, [*standard.examine(episode)[1], *found])
        holdings = holdings.after(episode)
    findings.remarks = (*remarks_of(source), *holdings.remarks, *duplicates_remark(names.copies))
    return count, findings


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


def add_ranges(ranges: dict[str, Range], columns: Mapping[str, Array]) -> None:
    """Takes in what an episode's columns span, those that `meant` gives; see `Inspection.ranges`."""
    for path, column in columns.items():
        ranges.setdefault(path, Range()).add(column)


def cut(cutters: Sequence[Cutter], episode: Episode) -> tuple[list[OutputCut], list[Problem]]:
    """What is made of a good episode, or else why a push would reject it all the same."""
    try:
        cuts = cut_for_all(cutters, episode)
    except ViewError as error:
        return [], [view_refused(error)]
    if (problem := lack_of_items(episode, cuts)) is not None:
        return [], [problem]
    take_in(cutters, cuts)
    return cuts, []
