"""The one way from a source to what a view needs: open, filter, transform, validate, decide, normalise, cut.

| step | where | what |
| --- | --- | --- |
| open, filter, transform | `Preparation.open` | the source, its specs, and the signatures of the items; no episode is read |
| read | `Preparation.read` | episodes in order, with problems that only other episodes show |
| examine | `Preparer.prepare` | absent fields are filled, all problems found, and some repaired where the policy repairs |
| decide | `Preparer.prepare` | the policy accepts the episode, leaves it out, or ends the reading |
| normalise | `Preparer.prepare` | the conventions are applied |
| cut | `Preparer.prepare` | rows and items for each output: a view, and the tables that get its items |

>>> from rlds2reverb.prepare.options import EpisodeOptions
>>> ready = Preparation.open("bundled:cartpole", EpisodeOptions(), [Output(("replay",))])
>>> sum(len(prepared.cuts[0].cut.anchors) for prepared in ready) > 0
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.cuts import Cut
from rlds2reverb.episode import Array, Episode, Notice, faults, is_run
from rlds2reverb.errors import ConfigError, InvalidEpisode, SourceError, ViewError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.filtered import filtered, share_findings
from rlds2reverb.formats.identity import Identity, with_identity
from rlds2reverb.formats.mapped import mapped
from rlds2reverb.formats.options import is_mixture_file, split_options
from rlds2reverb.formats.source import Source, check_steps, checked_spec, metadata_spec_of
from rlds2reverb.formats.transformed import transformed
from rlds2reverb.images import LAST, kind
from rlds2reverb.prepare.conventions import DROP, REPEAT, Conventions, absent_fields, filled_spec
from rlds2reverb.prepare.endings import Ending, Endings, ending_of, with_problems_of_ends
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.prepare.policy import Examined, Policy
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.prepare.standard import Standard
from rlds2reverb.specs import ArraySpec, Nest, column_spec, differences, flatten
from rlds2reverb.text import counted
from rlds2reverb.views import ViewLike, view_from
from rlds2reverb.views.base import (
    EpisodeStream,
    StreamView,
    Timed,
    View,
    item_count_of,
    metadata_in_items,
    notices_of,
    signature_of,
    spell_view,
    wants_metadata,
)
from rlds2reverb.views.trajectory import two_step


class Prepared(NamedTuple):
    """An episode after the decision about it."""

    episode: Episode  # as the source gives it, transformed
    filled: Episode  # with absent fields filled, and repaired where the policy repairs
    problems: tuple[Problem, ...] = ()  # what is wrong with it, also after a repair
    mended: tuple[Problem, ...] = ()  # the problems that were repaired
    normalised: Episode | None = None  # what views cut and formats write; None when it is rejected
    cuts: Sequence[OutputCut] = ()  # of the outputs, in their order; a cut may have no items. () when it is rejected.
    # why it was rejected when it was cut: a view refuses it, or no view makes an item of it
    refused: Problem | None = None
    is_end_mended: bool = False  # its last row is not as it was recorded, because of `last_observation`

    @property
    def is_good(self) -> bool:
        return self.normalised is not None

    @property
    def key_name(self) -> str:
        """Its name in item keys. A repaired episode has another name, because the server keeps what it has under a known key."""
        mended = sorted({problem.code for problem in self.mended})
        return f"{self.episode.id}|repaired={','.join(mended)}" if mended else self.episode.id


@dataclass(frozen=True)
class Preparation:
    """A source, ready to be read with the options; made by `open`. Iterating reads the source once and gives a `Prepared` per episode."""

    source: Source  # the episodes, as the transform makes them
    options: EpisodeOptions  # of the episodes
    outputs: tuple[Output, ...]  # views to cut for, and the tables of each; () to cut for none
    recorded_spec: Nest  # of the steps, without what is filled in
    step_spec: Nest  # of the steps, absent fields filled in
    filled: tuple[str, ...]  # step fields that the dataset lacks and that are filled (`conventions`)
    signatures: tuple[Nest, ...]  # of the items, one per output
    # path -> spec of the metadata that every episode must have, because items hold it or it is written
    metadata: Mapping[str, ArraySpec]

    @classmethod
    def open(
        cls, source: Any, options: EpisodeOptions, outputs: Sequence[Output] = (), identity: Identity | None = None
    ) -> Preparation:
        """Opens a source. No episode is read, unless items hold metadata whose specs only an episode shows.

        Args:
          source: anything that `open_source` takes.
          identity: what names its episodes; None for their content.

        Raises:
          SourceError: the source cannot be opened, has no spec, lacks is_first or is_last, cannot keep images encoded, or lacks what names
            its episodes; or, with `strict`, it reports a fault of its own.
          ViewError: a view cannot cut such steps.
          ConfigError: a transform that the steps do not allow.
        """
        # Filters see pixels, whatever stays encoded: what they leave must not depend on it.
        left = filtered(with_identity(open_source(source), identity), options.rules)
        share_findings(left, options.rules)
        read = left.with_encoded(options.encoded_paths, options.decodes_here)
        return cls.of(transformed(mapped(read, options.chosen_map), options.chosen_transform), options, outputs)

    @classmethod
    def of(
        cls,
        source: Source,
        options: EpisodeOptions,
        outputs: Sequence[Output] = (),
        metadata: Mapping[str, ArraySpec] | None = None,
    ) -> Preparation:
        """Does as `open` for a source that is opened and transformed already; every episode must also have `metadata`."""
        spec = checked_spec(source)
        advice = faults(source.notices, options.allow)
        if options.strict and advice:
            code = advice[0].code
            raise SourceError(
                f"{source.name}: {'; '.join(map(str, advice))}; tolerate {code} with allow=({code!r},) (--allow {code}), or leave out strict (--strict)"
            )
        check_steps(source, spec)
        outputs = [replace(output, view=view_at_rate(output.view, source)) for output in outputs]
        step_spec, views = filled_spec(spec), [output.view for output in outputs]
        metadata_spec = metadata_spec_of(source) if wants_metadata(views) else ()
        return cls(
            source,
            options,
            tuple(outputs),
            spec,
            step_spec,
            absent_fields(spec),
            tuple(signature_of(view, step_spec, metadata_spec) for view in views),
            {**(metadata or {}), **metadata_in_items(views, metadata_spec)},
        )

    @property
    def identity(self) -> str:
        """Conventions, transform, and which images stay encoded or are made of files: where they are equal, the same views make the same items."""
        encoded = [path for path, leaf in flatten(self.step_spec).items() if leaf.image is not None]
        label = self.options.data_label
        if not encoded:
            return label
        made_here = self.source.encodes
        kept = [path for path in encoded if made_here.get(path, True)] if made_here else []
        return f"{label}|encoded={','.join(encoded)}" + (f"|of_files={','.join(kept)}" if kept else "")

    @cached_property
    def standard(self) -> Standard:
        return Standard(flatten(self.step_spec), self.options.conventions, self.metadata)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Notices of the source, and of what the views leave out."""
        left_out = (notice for output in self.outputs for notice in notices_of(output.view, self.step_spec))
        return tuple(dict.fromkeys((*self.source.notices, *left_out)))

    def silent(self) -> Preparation:
        """For a further reading: bad episodes are not reported a second time."""
        return replace(self, options=self.options.silent())

    def read(
        self,
        episodes: Iterable[Episode] | None = None,
        start: int = 0,
        stop: int | None = None,
        endings: Endings = Endings(),
        on_clear: Callable[[Endings], object] = lambda _: None,
    ) -> Iterator[tuple[Episode, list[Problem]]]:
        """Episodes in order, each with the problems that only other episodes show; a few wait for later ones.

        Args:
          episodes: of the source; None for those with the numbers [start, stop), or up to the end.
          start, stop: see above.
          endings: of the episodes before these, where a reading continues.
          on_clear: called with the endings so far whenever no episode waits: from here a reading can continue.
        """
        if episodes is None:
            episodes = self.source.episodes(start, stop)
        return with_problems_of_ends(episodes, self.options.conventions, endings, on_clear)

    def ending(self, episode: Episode) -> Ending | None:
        """How an episode ends, for a process that collects the ends of all; None where it has no such end, or it is mended."""
        return ending_of(episode, self.standard.conventions)

    def preparer(self, policy: Policy | None = None) -> Preparer:
        return Preparer(self, self.options.policy() if policy is None else policy)

    def __iter__(self) -> Iterator[Prepared]:
        preparer = self.preparer()
        for episode, problems in self.read():
            yield preparer.prepare(episode, problems)


class Preparer:
    """Prepares episodes, one after the other, and counts them.

    Args:
      whole: the preparer that this one is a `part` of.

    Attributes:
      cutters: of the outputs; those of streams depend on the episodes before.
      columns: statistics of the columns.
      episodes, steps: all so far.
      steps_rejected: of rejected episodes.
      ends_mended: good episodes whose last row is not as it was recorded.
    """

    def __init__(self, preparation: Preparation, policy: Policy, whole: Preparer | None = None) -> None:
        self.policy, self._preparation, self._whole = policy, preparation, whole
        self._standard: Standard = preparation.standard if whole is None else whole._standard
        outputs = zip(preparation.outputs, preparation.signatures)
        self.cutters: list[Cutter] = [Cutter(*output) for output in outputs] if whole is None else whole.cutters
        self.columns = ColumnStats.of(flatten(preparation.recorded_spec))
        self.episodes = self.steps = self.steps_rejected = self.ends_mended = 0

    def part(self) -> Preparer:
        """A preparer of some of the episodes, which it counts by itself; they are cut, and their columns looked at, as by this one."""
        return Preparer(self._preparation, self._preparation.options.policy(), self)

    def prepare(
        self,
        episode: Episode,
        dataset_problems: Sequence[Problem] = (),
        output_numbers: Sequence[int] | None = None,
        is_dropped: bool = False,
        examined: Examined | None = None,
    ) -> Prepared:
        """Decides about an episode, and cuts it when it is good.

        Args:
          dataset_problems: its problems that only other episodes show.
          output_numbers: the outputs to cut it for, where the others have it already; None for all, one of which must make an item.
          is_dropped: it is not stored even if it is good, so no stream takes it in.
          examined: what `examine` or `examine_together` found; None to examine it now.

        Raises:
          InvalidEpisode, ViewError: it is bad, or cannot be cut, and the policy is to stop; it is counted as rejected.
        """
        self.episodes += 1
        self.steps += len(episode)
        whole = self._whole or self
        whole.columns = whole.columns.after(episode)
        try:
            prepared = self._prepared(
                episode, examined or self.examine(episode), dataset_problems, output_numbers, is_dropped
            )
        except (InvalidEpisode, ViewError):
            self.steps_rejected += len(episode)
            raise
        if not prepared.is_good:
            self.steps_rejected += len(episode)
        elif not is_dropped:
            self.ends_mended += prepared.is_end_mended
        return prepared

    def reject(self, prepared: Prepared, problem: Problem) -> None:
        """Rejects a good episode for a later reason: a format cannot hold it."""
        self.steps_rejected += len(prepared.episode)
        self.ends_mended -= prepared.is_end_mended
        self.policy.reject(prepared.episode, [problem], is_tolerable=False)

    def examine(self, episode: Episode) -> Examined:
        """Finds the problems of an episode; counts nothing."""
        return self.policy.examine(episode, self._standard)

    def examine_together(self, episodes: Sequence[Episode]) -> list[Examined]:
        """Does as `examine` for every episode; faster for many short ones."""
        return self.policy.examine_together(episodes, self._standard)

    def normalise(self, filled: Episode) -> Episode:
        """What views cut and formats write of a good episode that was examined."""
        return self._standard.normalise(filled)

    def _prepared(
        self,
        episode: Episode,
        examined: Examined,
        dataset_problems: Sequence[Problem],
        output_numbers: Sequence[int] | None,
        is_dropped: bool,
    ) -> Prepared:
        filled, problems, mended = examined
        prepared = Prepared(episode, filled, (*problems, *dataset_problems), mended)
        may_stop = not is_run(episode.id)  # what filters leave may be short, which is no fault of the data
        if not may_stop and not len(episode) and not episode.faults:
            lacking = Problem("no_steps", "", "the transform takes away all rows that filters leave here")
            self.policy.reject(episode, [lacking], may_stop=False)
            return prepared._replace(refused=lacking)
        if not self.policy.accepts(episode, prepared.problems, mended):
            return prepared
        cutters = self.cutters if output_numbers is None else [self.cutters[number] for number in output_numbers]
        try:
            normalised = self.normalise(filled)
            cuts = [cutter.cut(normalised) for cutter in cutters]
        except ViewError as error:
            return prepared._replace(refused=self.policy.reject_refused(episode, error, may_stop=may_stop))
        try:
            for cutter, output_cut in zip(cutters, cuts):
                cutter.check_rows(output_cut.cut)
        except ViewError as error:  # a tolerated problem reached the items
            self.policy.reject_refused(episode, error, must_stop=True)
        is_for_all = len(cutters) == len(self.cutters)
        # A stream may make its items of an episode when the next one comes, so none are missed here.
        if cuts and is_for_all and not any(own.items_per_table or own.is_of_stream for own in cuts):
            views = ", ".join(own.view_name for own in cuts)
            lacking = Problem("no_items", "", f"{views} makes no item of {counted(len(normalised), 'step')}")
            self.policy.reject(episode, [lacking], may_stop=may_stop)
            return prepared._replace(refused=lacking)
        # Streams advance last: an episode that is rejected must leave none of its steps in them.
        if not is_dropped:
            for cutter, output_cut in zip(cutters, cuts):
                cutter.take_in(output_cut)
        is_end_mended = self._standard.conventions.mends_end(filled)
        return prepared._replace(normalised=normalised, cuts=cuts, is_end_mended=is_end_mended)


@dataclass(frozen=True)
class Output:
    """A view, and one or more tables that get its items."""

    tables: tuple[str, ...]
    view: View = field(default_factory=two_step)

    def __post_init__(self) -> None:
        if not self.tables:
            raise ConfigError("push: at least one table is needed")
        if len(set(self.tables)) < len(self.tables):
            raise ConfigError(f"push: a table is named twice in {', '.join(self.tables)}; its items would have one key")
        if isinstance(self.view, type) or not isinstance(self.view, View):
            raise ConfigError(f"push: view {self.view!r}: expected a view (label, signature, reads, cut), or its name")

    @property
    def is_of_stream(self) -> bool:
        """Whether its items depend on the episodes before."""
        return isinstance(self.view, StreamView)

    @property
    def view_name(self) -> str:
        """What messages call the view."""
        return spell_view(self.view)


def view_at_rate(view: View, source: Source) -> View:
    """The view with steps in place of seconds, by the rate that the dataset says (`fps`), where it has any.

    Raises:
      ViewError: the dataset has no rate, or seconds are no multiple of a step.
    """
    if not (isinstance(view, Timed) and view.is_in_seconds):
        return view
    fps = source.about.facts.get("fps")
    if isinstance(fps, bool) or not isinstance(fps, (int, float)) or fps <= 0:
        raise ViewError(
            f"{spell_view(view)}: offsets or strides in seconds need a rate, and {source.name} says none that holds for all of it; "
            "add fps=N to the view, or give steps"
        )
    return view.at_rate(fps)


def item_bounds(view: View, conventions: Conventions, rows: int) -> tuple[int, int]:
    """Least and most items of a good episode of so many recorded rows, for a view that counts them (`item_count_of`)."""
    # Last rows that were added go, and rows are put behind those that were recorded; which of them an episode has is not known here.
    changes = {0}
    changes |= {-1} if conventions.last_observation == DROP else set()
    changes |= {1} if conventions.last_step == REPEAT and rows else set()
    counts = [item_count_of(view, max(0, rows + change)) or 0 for change in changes]
    return min(counts), max(counts)


def view_for(source: Any, view: ViewLike | None) -> ViewLike:
    """A view that is given; else that of a mixture file, or two_step."""
    if view is not None:
        return view
    if isinstance(source, str) and is_mixture_file(source):
        from rlds2reverb.prepare.mixture import Mixture  # loads what only mixtures need

        source = Mixture.read(split_options(source)[0])
    own = getattr(getattr(source, "mixture", source), "view", None)
    return own if isinstance(own, View) else "two_step"


def outputs_of(table: str | Sequence[str] | Mapping[str, ViewLike], view: ViewLike | None = None) -> tuple[Output, ...]:
    """Outputs of the arguments of `Client.push`: one view for all tables, or one view per table.

    Raises:
      ConfigError: no table is named; a view is given although every table has its own; or what `Output` refuses.
      ViewError: a view's name that makes no sense.
    """

    def make_view(view: ViewLike) -> View:
        return view_from(view, "push: view") if isinstance(view, (str, Mapping)) else view

    names = (table,) if isinstance(table, str) or not isinstance(table, Iterable) else tuple(table)
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(
                f"push: table {name!r}: expected a table's name, a list of names, or a mapping from names to views"
            )
    if not isinstance(table, Mapping):
        return (Output(names, make_view("two_step" if view is None else view)),)
    if view is not None:
        raise ConfigError("push: every table has a view of its own here, so no other view can be given")
    if not table:
        raise ConfigError("push: at least one table is needed")
    return tuple(Output((name,), make_view(own)) for name, own in table.items())


class OutputCut(NamedTuple):
    output: Output
    cut: Cut  # fields in the tables' order; it may have no items
    # the output's stream after this episode; None for a view that cuts each episode by itself
    stream: EpisodeStream | None

    @property
    def items_per_table(self) -> int:
        return len(self.cut.anchors)

    @property
    def is_of_stream(self) -> bool:
        return self.stream is not None

    @property
    def view_name(self) -> str:
        return self.output.view_name


class Cutter:
    """Cuts episodes for one output.

    Args:
      signature: of its items, as its view gives it for the steps with absent fields filled in.

    Attributes:
      columns: path -> spec of an item's leaf.
      stream: the stream so far; None for a view that cuts each episode by itself.
    """

    def __init__(self, output: Output, signature: Nest) -> None:
        self.output, self.signature = output, signature
        self.columns: dict[str, ArraySpec] = flatten(signature)
        self._fitting: list[Any] | None = None  # dtypes and shapes of the last rows that fit
        self.stream: EpisodeStream | None = output.view.stream() if isinstance(output.view, StreamView) else None

    @property
    def left_over(self) -> int:
        """Steps at the end of the stream that no item holds; 0 without a stream."""
        return 0 if self.stream is None else self.stream.left_over

    def cut(self, episode: Episode) -> OutputCut:
        """Cuts an episode; only `take_in` advances the stream."""
        view, stream = self.output.view, self.stream
        cut, after = (view.cut(episode), None) if stream is None else stream.cut(episode)
        return OutputCut(self.output, cut.in_order(list(self.columns)), after)

    def take_in(self, cut: OutputCut) -> None:
        self.stream = cut.stream

    def check_rows(self, cut: Cut) -> None:
        """Refuses rows that do not fit the signature, which a tolerated problem can cause."""
        # Nearly every episode has the dtypes and shapes of the one before: one comparison, and no specs are made.
        kinds = [(rows.dtype, rows.shape[1:]) for rows in map(cut.field_rows, self.columns)]
        if kinds == self._fitting:
            return
        for path, leaf in self.columns.items():
            rows = column_spec(cut.field_rows(path)).with_leading(None)
            needed = ArraySpec((None, *(leaf.shape if cut.fields[path].squeeze else leaf.shape[1:])), leaf.dtype)
            if differences(rows, needed):
                raise ViewError(
                    f'column "{path}" has {rows}, the items need {needed}; do not tolerate dtype or shape for it'
                )
        self._fitting = kinds


@dataclass
class ItemCounts:
    items_per_table: int = 0  # items that each of its tables gets, the resumed ones included
    without_items: int = 0  # episodes of which the view made no item; 0 for a stream, where later episodes may give it

    def add(self, items_per_table: int, is_of_stream: bool) -> None:
        self.items_per_table += items_per_table
        if not (items_per_table or is_of_stream):
            self.without_items += 1


_ROWS = 16
"""Rows examined per episode; values that are not of float32 fill a column, or none of it."""

_ENOUGH_VALUES = 32
"""Values that need nearly all of float32's digits; fewer may be there by chance, such as multiples of 1/8."""

_LOW_DIGITS = 0xFF
"""The lowest of float32's 23 digits: 255 of 256 measured values need them, and round numbers do not."""


@dataclass(frozen=True)
class ColumnStats:
    """Finds columns whose dtype is larger than their values need, by the first rows of each episode. A value: adding an episode gives another.

    A float64 column of which every value is one of float32: TFDS 4.9.10 writes float64 through float32 where a feature's encoding is none,
    and 1e300 becomes infinite. And an image of floats that are whole numbers from 0 to 255. One other value ends the suspicion, so that a
    column that is as it should be costs nothing more.
    """

    # path -> values seen that need float32's digits and no more, for float64 columns without any other
    rounded: Mapping[str, int] = field(default_factory=dict)
    # path -> values seen beyond 0 and 1, for images of floats that held only whole numbers from 0 to 255
    images: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(columns: Mapping[str, ArraySpec]) -> ColumnStats:
        return ColumnStats(
            {path: 0 for path, spec in columns.items() if _is_float64(spec.dtype)},
            {path: 0 for path, spec in columns.items() if spec.dtype.kind == "f" and kind(spec) == LAST},
        )

    def after(self, episode: Episode) -> ColumnStats:
        if not self.rounded and not self.images:
            return self
        return ColumnStats(
            _add_counts(self.rounded, episode, _ROWS, _rounded_values),
            _add_counts(self.images, episode, 1, _whole_values),
        )

    def with_others(self, other: ColumnStats) -> ColumnStats:
        """Statistics of these and of other episodes with the same columns."""
        pairs = (self.rounded, other.rounded), (self.images, other.images)
        return ColumnStats(
            *({path: count + theirs[path] for path, count in own.items() if path in theirs} for own, theirs in pairs)
        )

    @property
    def notices(self) -> tuple[Notice, ...]:
        suspicions = ("rounded_float64", _ROUNDED, self.rounded), ("float_image", _IMAGE, self.images)
        return tuple(
            Notice(code, text.format(count), count, path)
            for code, text, counts in suspicions
            for path, count in counts.items()
            if count >= _ENOUGH_VALUES
        )


_ROUNDED = (
    "every value of {:,} looked at is one of float32; if they had more digits once, what wrote them has rounded them, as TFDS does "
    "unless the dataset is prepared with an encoding (bytes, zlib)"
)
_IMAGE = "every value of {:,} looked at is a whole number from 0 to 255; as uint8 the column would need a quarter of the room, or less"


def duplicates_notice(copies: int) -> tuple[Notice, ...]:
    """What to say of `copies` episodes that are equal to earlier ones; () for 0."""
    if not copies:
        return ()
    text = (
        f"{counted(copies, 'episode')}, equal to earlier ones step by step: a file that is there twice, perhaps, or parts of a "
        'mix that overlap. A push stores each; duplicates="once" (--duplicates once) stores one of each'
    )
    return (Notice("duplicate_episode", text, copies),)


def _add_counts(
    counts: Mapping[str, int], episode: Episode, rows: int, count_in: Callable[[Array], int | None]
) -> Mapping[str, int]:
    """The counts with this episode's; without the columns for which `count_in` returns None."""
    added = {path: count_in(episode.columns[path][:rows]) if path in episode.columns else 0 for path in counts}
    return {path: counts[path] + more for path, more in added.items() if more is not None}


def _rounded_values(column: Array) -> int | None:
    """Number of values that need float32's digits; None where one needs more."""
    if not _is_float64(column.dtype):
        return None
    values = column[np.isfinite(column)]
    with np.errstate(over="ignore", under="ignore"):
        small = values.astype(np.float32)
    if np.any(small != values):
        return None
    return int(np.count_nonzero(small.view(np.uint32) & _LOW_DIGITS))


def _whole_values(column: Array) -> int | None:
    """Number of values that are whole numbers from 2 to 255; None where one is no whole number from 0 to 255."""
    if column.dtype.kind != "f" or np.any((column != np.rint(column)) | (column < 0) | (column > 255)):
        return None
    return int(np.count_nonzero(column > 1))


def _is_float64(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" and dtype.itemsize == 8
