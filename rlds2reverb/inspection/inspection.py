"""What is in a dataset: its spec, what its tables need, counts, ranges, and what is wrong with it. One pass, in bounded memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from rlds2reverb.episode import REWARD, Array, Episode, Notice, Occurrences, gaps_around, note
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.source import About, LeftOut
from rlds2reverb.formats.transform import Transform, TransformLike
from rlds2reverb.inspection.image_choices import ImageChoice, measure_image_choices
from rlds2reverb.inspection.statistics import Ends, Range, Returns, Statistics, meaningful_columns
from rlds2reverb.inspection.values import EpisodeValues, StatisticsChoice, prepare_collecting
from rlds2reverb.interrupts import noted_interrupts
from rlds2reverb.keywords import options_of, takes_options
from rlds2reverb.numbers.statistics import DatasetStatistics
from rlds2reverb.plain import Count, attributes, members, printed
from rlds2reverb.prepare.checks import loses_by_shift
from rlds2reverb.prepare.conventions import REPEAT
from rlds2reverb.prepare.endings import Ending
from rlds2reverb.prepare.findings import Findings, FoundProblem
from rlds2reverb.prepare.image_files import ImageColumn, image_columns
from rlds2reverb.prepare.options import EpisodeOptions, ReadingKeywords, ReadingOptions
from rlds2reverb.prepare.preparation import (
    ColumnStats,
    ItemCounts,
    OutputCut,
    Preparation,
    Prepared,
    Preparer,
    duplicates_notice,
    view_for,
)
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.prepare.progress import Pace, Progress
from rlds2reverb.specs import ArraySpec, Nest, flatten, spec_texts
from rlds2reverb.text import as_html, counted, did_you_mean
from rlds2reverb.views import ViewLike, is_view_config, view_from
from rlds2reverb.views.base import View, not_in_items
from rlds2reverb.views.prioritized import Prioritized
from rlds2reverb.views.trajectory import name_of, table_signature

if TYPE_CHECKING:
    from typing_extensions import Unpack


@printed(
    "view", "items=items_per_table", "without_items", "left_over", "by_priority", "not_in_items", "trajectory_data_spec"
)
@dataclass
class InspectedOutput:
    """What a view makes of a dataset, and what its table needs.

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
    items_per_table: Count = 0
    without_items: Count = 0
    left_over: Count = 0
    by_priority: bool = False
    not_in_items: tuple[str, ...] = ()

    @property
    def trajectory_data_spec(self) -> dict[str, str]:
        """What the table must have as its signature: path -> dtype and shape."""
        return spec_texts(self.signature)


_BEFORE_TABLES = (
    "source",
    "dataset=about.said",
    "episodes",
    "steps",
    "step_bytes",
    "transform",
    "filtered",
    "left_out",
    "step_spec",
    "images=images_by_path",
    "image_choices",
    "filled",
)
_BEHIND_TABLES = (
    "episode_length",
    "return=return_statistics",
    "ranges",
    "statistics",
    "ends",
    "problems",
    "notices",
)


@printed(*_BEFORE_TABLES, "tables=outputs", *_BEHIND_TABLES)
@dataclass
class Inspection:
    """What is in a dataset.

    Attributes:
      source: its name.
      step_spec: path -> spec of a step as recorded, or as the transform makes it.
      filled: step fields that the dataset lacks and that a push would fill.
      outputs: table -> what its view makes, and what it needs.
      lengths: [episodes] steps of each episode.
      returns: [episodes] sum of the rewards of each episode, its last (boundary) step included; NaN or infinite where a
        reward is.
      step_bytes: bytes of one step, text not counted; encoded images by their mean.
      images: its image columns, with their sizes.
      image_choices: path of an image column -> what it takes as pixels and as files, and how many a core of this machine decodes, measured on a
        few frames of one episode.
      ranges: path -> range of the values. A last row that was added for the last observation counts for neither action, reward nor
        discount, which mean nothing there.
      findings: what is wrong with it.
      transform: what is done to the columns first.
      filtered: rule -> what it takes out before episodes are read.
      left_out: paths of the recorded columns that the transform leaves out.
      ends: how the episodes end.
      watched: the `Watcher` that saw the episodes; None without one.
      statistics: mean, spread, ends and quantiles of the numeric columns of good episodes; None unless they are asked for.
      about: what the dataset says of itself as a whole, whatever was read of it.
    """

    source: str
    step_spec: dict[str, ArraySpec]
    filled: tuple[str, ...]
    outputs: dict[str, InspectedOutput]
    lengths: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    step_bytes: Count = 0
    images: tuple[ImageColumn, ...] = ()
    image_choices: dict[str, list[ImageChoice]] = field(default_factory=dict, compare=False)
    ranges: dict[str, Range] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)
    transform: Transform = Transform()
    filtered: dict[str, LeftOut] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    ends: Ends = field(default_factory=Ends)
    watched: Any = None
    statistics: DatasetStatistics | None = None
    about: About = About()

    _repr_html_ = as_html

    @property
    def episodes(self) -> Count:
        """Number of episodes that were read."""
        return len(self.lengths)

    @property
    def steps(self) -> Count:
        """Number of their steps."""
        return sum(self.lengths)

    @property
    def images_by_path(self) -> dict[str, ImageColumn]:
        """Path -> what a step of an image column takes."""
        return {image.path: image for image in self.images}

    @property
    def episode_length(self) -> Statistics | None:
        """Steps of an episode; None without episodes."""
        return Statistics.of(self.lengths)

    @property
    def return_statistics(self) -> Returns | None:
        """Sums of the rewards of an episode; None where no episode has one."""
        return Returns.of(self.returns)

    @property
    def problems(self) -> dict[str, FoundProblem]:
        """Code -> what was found."""
        return self.findings.as_dict()

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Notices about the dataset as a whole."""
        return self.findings.notices

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON. When there is one table, what it needs stands in place of the tables; see `OneTable`."""
        values = members(self)
        if len(self.outputs) != 1:
            return values
        (output,) = self.outputs.values()
        return {
            name: value
            for before, whole in values.items()
            for name, value in (members(output) if before == "tables" else {before: whole}).items()
        }


@printed(*_BEFORE_TABLES, *map("=".join, attributes(InspectedOutput).items()), *_BEHIND_TABLES)
class OneTable(InspectedOutput, Inspection):
    """An inspection with one table: what the table needs stands beside the rest."""


class Watcher(Protocol):
    """Sees every episode of an inspection once; pickled for workers."""

    def add(
        self, episode: Episode, columns: Mapping[str, Array], problems: Sequence[Problem], cuts: Sequence[OutputCut]
    ) -> None:
        """Adds an episode, transformed.

        `columns` are its meaningful values, see `meaningful_columns`. Where workers read, `problems` lack those that only other episodes show.
        `cuts` are what the views make of it, one per table; () for a bad episode.
        """

    def add_part(self, other: Any) -> None:
        """Adds what another watcher saw in the episodes that follow."""


Watch = Callable[[Inspection], Watcher]  # makes a watcher for an inspection that has read nothing yet

OnProgress = Callable[[Progress], object]


@noted_interrupts()
def inspect_source(
    source: Any,
    views: Mapping[str, View],
    limit: int | None = None,
    options: EpisodeOptions = EpisodeOptions(),
    on_progress: OnProgress = lambda _: None,
    watch: Watch | None = None,
    statistics: StatisticsChoice | None = None,
) -> Inspection:
    """Reads a dataset once, and returns what is in it; the options' policy of bad episodes is ignored, because all problems are reported.

    Without `views` it only judges the episodes, and looks at the image files of the first: ranges and ends are not looked at.

    Raises:
      SourceError: it cannot be read.
      ConfigError: the steps do not allow the transform.
      ViewError: the view cannot cut such steps.
    """
    ready = prepare_collecting(source, views, options, limit)
    if options.rules:  # of the first `limit` episodes there may be more runs
        limit = None
    preparer, whole = ready.preparer(), InspectionBuilder(ready, watch, statistics)
    count, pace, began = ready.source.episode_count, Pace(), time.monotonic()
    if limit is not None and count is not None:
        count = min(count, limit)
    for episode, problems in ready.read(stop=limit):
        prepared = preparer.prepare(episode, problems)
        if views:
            whole.part.add(prepared)
        whole.add(EpisodeRecord.of(prepared))
        if pace.is_due():
            seconds = time.monotonic() - began
            on_progress(Progress(preparer.episodes, preparer.steps, count, 0, 0, seconds))
    whole.part.complete(ready, preparer)
    return whole.complete([cutter.left_over for cutter in preparer.cutters])


class EpisodeRecord(NamedTuple):
    id: str
    recorded_id: str | None
    title: str
    steps: int
    returns: list[float]  # [] where it has none
    problems: tuple[Problem, ...]  # without those that only other episodes show
    items: list[int]  # of each table; [] when it is bad
    refused: tuple[Problem, ...]  # why a push would reject it all the same
    is_lost_by_shift: bool  # see `Findings`
    ending: Ending | None = None  # to compare with other episodes; None where it shows nothing

    @staticmethod
    def of(prepared: Prepared) -> EpisodeRecord:
        episode = prepared.episode
        return EpisodeRecord(
            episode.id,
            episode.recorded_id,
            episode.title,
            len(episode),
            return_of(episode),
            prepared.problems,
            [cut.items_per_table for cut in prepared.cuts],
            () if prepared.refused is None else (prepared.refused,),
            loses_by_shift(prepared.filled),
        )


@dataclass
class PartStatistics:
    """What was found in a part of a source, or in all of it: what does not depend on the order of the episodes, and their records."""

    ranges: dict[str, Range]
    ends: Ends
    columns: ColumnStats
    watcher: Watcher | None
    notices: dict[Notice, None] = field(default_factory=dict)
    episodes: list[EpisodeRecord] = field(default_factory=list)
    values: EpisodeValues | None = None

    @property
    def steps(self) -> int:
        return sum(episode.steps for episode in self.episodes)

    def add(self, prepared: Prepared) -> None:
        columns = meaningful_columns(prepared.episode, gaps_around(prepared.episode.id)[1])
        in_values = {} if self.values is None else self.values.add(prepared, columns)
        for path, column in columns.items():
            rows_added = in_values.get(path, 0)
            if rows_added < len(column) or not rows_added:
                self.ranges.setdefault(path, Range()).add(column[rows_added:])
        self.ends.add(prepared.filled)
        if self.watcher is not None:
            refused = [] if prepared.refused is None else [prepared.refused]
            self.watcher.add(prepared.episode, columns, [*prepared.problems, *refused], prepared.cuts)

    def complete(self, ready: Preparation, preparer: Preparer) -> None:
        """Adds what is known once all its episodes are read."""
        self.columns = preparer.columns
        self.notices.update(dict.fromkeys(ready.notices))

    def add_part(self, other: PartStatistics) -> None:
        """Adds the part that follows, without its episodes."""
        for path, span in other.ranges.items():
            self.ranges.setdefault(path, Range()).add_range(span)
        self.ends.add_ends(other.ends)
        self.columns = self.columns.with_others(other.columns)
        self.notices.update(other.notices)
        if self.values is not None and other.values is not None:
            self.values.add_part(other.values)
        if self.watcher is not None and other.watcher is not None:
            self.watcher.add_part(other.watcher)


class InspectionBuilder:
    """An inspection to which episodes are added, in the order of the source; `part` has what does not depend on that order."""

    def __init__(
        self, ready: Preparation, watch: Watch | None = None, statistics: StatisticsChoice | None = None
    ) -> None:
        self._ready, self._watch, self._statistics = ready, watch, statistics
        self._tallies, self._names = [ItemCounts() for _ in ready.outputs], Occurrences()
        columns = flatten(ready.recorded_spec)
        images = image_columns(ready.source)
        self._inspection = Inspection(
            source=ready.source.name,
            step_spec=columns,
            filled=ready.filled,
            outputs={},
            step_bytes=sum(image.encoded_bytes for image in images if image.is_encoded)
            + sum(map(_row_bytes, columns.values())),
            images=images,
            transform=ready.options.chosen_transform,
            left_out=ready.source.left_out,
            about=ready.source.about,
        )
        self.part = self.new_part()
        self._inspection.ranges, self._inspection.ends = self.part.ranges, self.part.ends
        self._inspection.watched = self.part.watcher

    def new_part(self) -> PartStatistics:
        columns, watch = self._inspection.step_spec, self._watch
        watcher = None if watch is None else watch(self._inspection)
        values = None if self._statistics is None else EpisodeValues(self._ready, self._statistics)
        return PartStatistics(
            {path: Range() for path in columns}, Ends(), ColumnStats.of(columns), watcher, values=values
        )

    def add(self, read: EpisodeRecord, shown: Sequence[Problem] = ()) -> None:
        """Adds an episode; `shown` are problems that were not known where it was read."""
        inspection = self._inspection
        self._names.count(read.id)
        is_cut = all(problem.is_advice for problem in shown)
        problems = [*read.problems, *shown, *(read.refused if is_cut else ())]
        inspection.findings.add(read, problems, read.is_lost_by_shift)
        inspection.lengths.append(read.steps)
        inspection.returns += read.returns
        if is_cut:
            for tally, output, items in zip(self._tallies, self._ready.outputs, read.items):
                tally.add(items, output.is_of_stream)

    def complete(self, left_over: Sequence[int]) -> Inspection:
        """The inspection; `left_over` has, per output, the steps at the end of its stream that no item holds."""
        inspection, ready = self._inspection, self._ready
        inspection.filtered = dict(ready.source.filtered)
        inspection.image_choices = measure_image_choices(ready.source)
        duplicates = duplicates_notice(self._names.copies)
        files = (notice for image in inspection.images for notice in image.notices)
        if self.part.values is not None:
            inspection.statistics = self.part.values.build(ready.source.name)
            for path, span in self.part.values.ranges(inspection.statistics):
                inspection.ranges[path].add_range(span)
        advice = () if inspection.statistics is None else inspection.statistics.notices
        last_actions = _last_actions_notice(inspection.ends.real, ready.options.last_step)
        own = (*self.part.notices, *self.part.columns.notices)
        inspection.findings.notices = (*own, *files, *duplicates, *advice, *last_actions)
        inspection.outputs = {
            output.tables[0]: InspectedOutput(
                view=name_of(output.view),
                signature=table_signature(signature, name_of(output.view)),
                items_per_table=tally.items_per_table,
                without_items=tally.without_items,
                left_over=left,
                by_priority=isinstance(output.view, Prioritized),
                not_in_items=not_in_items(output.view, ready.recorded_spec),
            )
            for output, signature, tally, left in zip(ready.outputs, ready.signatures, self._tallies, left_over)
        }
        return inspection


def _last_actions_notice(episodes: int, last_step: str) -> tuple[Notice, ...]:
    """What becomes of the actions in the last rows of so many episodes; () for 0."""
    if not episodes:
        return ()
    what = f"the last row of {counted(episodes, 'episode')} has an action or a reward"
    text = (
        f"{what}: its observation stands once more behind it (last_step=repeat), so learners see it"
        if last_step == REPEAT
        else f'{what}, which learners do not see, because no observation follows it; last_step="repeat" (--last-step repeat) keeps it'
    )
    return (note("last_actions", text, episodes),)


def _row_bytes(spec: ArraySpec) -> int:
    return 0 if spec.dtype == object else int(np.prod([size or 0 for size in spec.shape])) * spec.dtype.itemsize


def return_of(episode: Episode) -> list[float]:
    """[sum of the rewards]; [] where they are no numbers."""
    reward = episode.columns.get(REWARD)
    if reward is None or reward.dtype.kind not in "fiu":
        return []
    with np.errstate(invalid="ignore", over="ignore"):  # of rewards that are not finite
        return [float(reward.sum(dtype=np.float64))]


_TABLE = "replay"  # the name of the table where only a view is given


@takes_options(ReadingOptions)
def inspect(
    source: Any,
    view: ViewLike | Mapping[str, ViewLike] | None = None,
    limit: int | None = None,
    transform: TransformLike = (),
    encoded: str | Sequence[str] = (),
    encode: str | Sequence[str] | Mapping[str, str] = (),
    **options: Unpack[ReadingKeywords],
) -> Inspection:
    """Reads a dataset once and returns what is in it, what is wrong with it, and which tables it needs. Stores nothing.

    Args:
      source: as for `Client.push`.
      view: of a table "replay", by default that of a mixture file, else "two_step"; or table -> view, for several. A view is one, its name with options, or a mapping as for `Client.push`.
      limit: episodes to read at most, or None for all.
      transform, encoded, encode: as for `Client.push`.
      options: filters, `terminal_discount`, `last_reward`, `last_observation` and `last_step`, as for `Client.push`. Filters see the first `limit` episodes.

    Returns:
      What was found. `outputs[table].signature` is what a table must have.

    Raises:
      SourceError: it cannot be opened or read, or filters leave nothing of it.
      ConfigError: an option that there is not, no view, a limit below 1, or a transform that the steps do not allow.
      ViewError: a view that makes no sense, or cannot cut such steps.
    """
    view = view_for(source, view) if view is None else view
    of_tables = view if isinstance(view, Mapping) and not is_view_config(view) else {_TABLE: view}
    if not of_tables:
        raise ConfigError("inspect: view is empty; expected a view, or table -> view")
    if limit is not None and limit < 1:
        raise ConfigError(f"inspect: limit {limit}: expected at least 1, or None for all episodes")
    views = {
        table: view_from(like, f'inspect: view of "{table}"') if isinstance(like, (str, Mapping)) else like
        for table, like in of_tables.items()
    }
    if unknown := sorted(options.keys() - options_of(ReadingOptions).keys()):
        option_names = ("view", "limit", "transform", "encoded", "encode", *options_of(ReadingOptions))
        raise ConfigError(
            f"inspect has no option {', '.join(unknown)}; there are {', '.join(option_names)}{did_you_mean(unknown[0], option_names)}"
        )
    return inspect_source(
        source, views, limit, EpisodeOptions(transform=transform, encoded=encoded, encode=encode, **options)
    )
