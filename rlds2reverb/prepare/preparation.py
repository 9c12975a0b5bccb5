"""The one way from a source to what a view needs: open, transform, validate, decide, normalise, cut.

| step | where | what |
| --- | --- | --- |
| open, transform | `Preparation.open` | the source, its specs, and the signatures of the items; no episode is read |
| read | `Preparation.read` | episodes in order, with problems that only other episodes show |
| examine | `Preparer.prepare` | absent fields are filled, all problems found, and some repaired where the policy repairs |
| decide | `Preparer.prepare` | the policy accepts the episode, leaves it out, or ends the reading |
| normalise | `Preparer.prepare` | the conventions are applied |
| cut | `Preparer.prepare` | rows and items for each output |

>>> from rlds2reverb.prepare.options import EpisodeOptions
>>> from rlds2reverb.prepare.cutting import Output
>>> ready = Preparation.open("bundled:cartpole", EpisodeOptions(), [Output(("replay",))])
>>> sum(len(one.cuts[0].cut.anchors) for one in ready) > 0
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rlds2reverb.episode import Episode, Notice, faults
from rlds2reverb.errors import InvalidEpisode, SourceError, ViewError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.source import (
    Source,
    check_steps,
    checked_spec,
    metadata_spec_of,
)
from rlds2reverb.formats.transform import transformed
from rlds2reverb.prepare.column_stats import ColumnStats
from rlds2reverb.prepare.conventions import absent_fields, filled_spec
from rlds2reverb.prepare.cutting import Cutter, Output, OutputCut
from rlds2reverb.prepare.endings import Ending, Endings, ending_that_counts, with_problems_of_ends
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.prepare.policy import Examined, Policy, Standard
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.specs import ArraySpec, Nest, flatten
from rlds2reverb.text import counted
from rlds2reverb.views.extras import metadata_in_items, signature_of, wants_metadata


class Prepared(NamedTuple):
    """An episode that was decided about.

    Attributes:
      episode: as the source gives it, transformed.
      filled: with absent fields filled, and repaired where the policy repairs.
      problems: what is wrong with it, also after a repair.
      mended: the problems that were repaired.
      normalised: what views cut and formats write; None when it is rejected.
      cuts: what the outputs make of it, in their order; a cut may have no items. () when it is rejected.
      refused: why it was rejected when it was cut: a view refuses it, or no view makes an item of it.
      is_end_mended: its last row is not as it was recorded, because of `last_observation`.
    """

    episode: Episode
    filled: Episode
    problems: tuple[Problem, ...] = ()
    mended: tuple[Problem, ...] = ()
    normalised: Episode | None = None
    cuts: Sequence[OutputCut] = ()
    refused: Problem | None = None
    is_end_mended: bool = False

    @property
    def is_good(self) -> bool:
        """Whether it is not rejected."""
        return self.normalised is not None

    @property
    def key_name(self) -> str:
        """Names it in item keys. A repaired episode has another name, because the server keeps what it has under a known key."""
        mended = sorted({problem.code for problem in self.mended})
        return f"{self.episode.id}|repaired={','.join(mended)}" if mended else self.episode.id


@dataclass(frozen=True)
class Preparation:
    """A source, ready to be read as the options say; made by `open`. Iterating it reads the source once and gives a `Prepared` per episode.

    Attributes:
      source: the episodes, as the transform makes them.
      options: how.
      outputs: views to cut for, and the tables of each; () to cut for none.
      recorded_spec: of the steps, without what is filled in.
      step_spec: of the steps, absent fields filled in.
      filled: step fields that the dataset lacks and that are filled (`conventions`).
      signatures: of the items, one per output.
      metadata: path -> spec of the episodes' metadata that every episode must have, because items hold it or it is written.
    """

    source: Source
    options: EpisodeOptions
    outputs: tuple[Output, ...]
    recorded_spec: Nest
    step_spec: Nest
    filled: tuple[str, ...]
    signatures: tuple[Nest, ...]
    metadata: Mapping[str, ArraySpec]

    @classmethod
    def open(cls, source: Any, options: EpisodeOptions, outputs: Sequence[Output] = ()) -> Preparation:
        """Opens a source as the options say. No episode is read, unless items hold metadata that only an episode can tell.

        Args:
          source: anything that `open_source` takes.
          options: how.
          outputs: views to cut for.

        Raises:
          SourceError: the source cannot be opened, has no spec, lacks is_first or is_last, or cannot keep images encoded; or, strictly, it tells of a
            fault in itself.
          ViewError: a view cannot cut such steps.
          ConfigError: a transform that the steps do not allow.
        """
        opened = open_source(source).with_encoded(options.encoded_paths)
        return cls.of(transformed(opened, options.chosen_transform), options, outputs)

    @classmethod
    def of(
        cls,
        source: Source,
        options: EpisodeOptions,
        outputs: Sequence[Output] = (),
        metadata: Mapping[str, ArraySpec] | None = None,
    ) -> Preparation:
        """As `open`, of a source that is opened and transformed already; `metadata` is needed beside that which items hold."""
        spec = checked_spec(source)
        _check_notices(source, options)
        check_steps(source, spec)
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
        """Conventions, transform, and which images stay encoded: where they are equal, the same views make the same items."""
        encoded = [path for path, leaf in flatten(self.step_spec).items() if leaf.image is not None]
        label = self.options.data_label
        return f"{label}|encoded={','.join(encoded)}" if encoded else label

    @property
    def standard(self) -> Standard:
        """What makes an episode good."""
        return Standard(flatten(self.step_spec), self.options.conventions, self.metadata)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What the source reports of its data as a whole, so far."""
        return self.source.notices

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
          episodes: of the source; None for those from number `start` to number `stop`, which is left out, or to the end.
          start, stop: see above.
          endings: of the episodes before these, where a reading continues.
          on_clear: called with the endings so far whenever no episode waits: from here a reading can continue.

        Raises:
          SourceError: the data cannot be read.
        """
        if episodes is None:
            episodes = self.source.episodes(start, stop)
        return with_problems_of_ends(episodes, self.options.conventions, endings, on_clear)

    def ending(self, episode: Episode) -> Ending | None:
        """How an episode ends, for a process that collects the ends of all; None where this says nothing, or is mended."""
        return ending_that_counts(episode, self.options.conventions)

    def preparer(self, policy: Policy | None = None) -> Preparer:
        """Prepares episodes one after the other; with a new policy, unless one is given."""
        return Preparer(self, self.options.policy() if policy is None else policy)

    def __iter__(self) -> Iterator[Prepared]:
        preparer = self.preparer()
        for episode, found in self.read():
            yield preparer.prepare(episode, found)


class Preparer:
    """Prepares episodes, one after the other, and counts them.

    Args:
      preparation: of the source.
      policy: decides about bad ones; counts them by code.

    Attributes:
      policy: as given.
      cutters: of the outputs; those of streams depend on the episodes before.
      columns: statistics of the columns.
      episodes, steps: that came.
      steps_rejected: of rejected episodes.
      ends_mended: good episodes whose last row is not as it was recorded.
    """

    def __init__(self, preparation: Preparation, policy: Policy) -> None:
        self.policy, self._standard = policy, preparation.standard
        self.cutters = [Cutter(*one) for one in zip(preparation.outputs, preparation.signatures)]
        self.columns = ColumnStats.of(flatten(preparation.recorded_spec))
        self.episodes = self.steps = self.steps_rejected = self.ends_mended = 0

    def prepare(
        self,
        episode: Episode,
        found: Sequence[Problem] = (),
        wanted: Sequence[int] | None = None,
        is_dropped: bool = False,
    ) -> Prepared:
        """Decides about an episode, and cuts it when it is good.

        Args:
          episode: as the source gives it.
          found: its problems that only other episodes show.
          wanted: numbers of the outputs to cut it for, where the others have it already; None for all, one of which must make an item.
          is_dropped: it is not stored even if it is good, so no stream takes it in.

        Raises:
          InvalidEpisode, ViewError: it is bad, or cannot be cut, and the policy is to stop; it is counted as rejected.
        """
        self.episodes += 1
        self.steps += len(episode)
        self.columns = self.columns.after(episode)
        try:
            prepared = self._prepared(episode, found, wanted, is_dropped)
        except (InvalidEpisode, ViewError):
            self.steps_rejected += len(episode)
            raise
        if not prepared.is_good:
            self.steps_rejected += len(episode)
        elif not is_dropped:
            self.ends_mended += prepared.is_end_mended
        return prepared

    def reject(self, prepared: Prepared, problem: Problem) -> None:
        """Rejects a good episode for a later reason: a format cannot hold it.

        Raises:
          InvalidEpisode: the policy is to stop.
        """
        self.steps_rejected += len(prepared.episode)
        self.ends_mended -= prepared.is_end_mended
        self.policy.reject(prepared.episode, [problem])

    def examine(self, episode: Episode) -> Examined:
        """Finds the problems of an episode where another process decides; counts nothing."""
        return self.policy.examined(episode, self._standard)

    def normalise(self, filled: Episode) -> Episode:
        """What views cut and formats write of a good episode that was examined."""
        return self._standard.normalise(filled)

    def _prepared(
        self, episode: Episode, found: Sequence[Problem], wanted: Sequence[int] | None, is_dropped: bool
    ) -> Prepared:
        filled, problems, mended = self.examine(episode)
        prepared = Prepared(episode, filled, (*problems, *found), mended)
        if not self.policy.accepts(episode, prepared.problems, mended):
            return prepared
        cutters = self.cutters if wanted is None else [self.cutters[number] for number in wanted]
        try:
            normalised = self.normalise(filled)
            cuts = [cutter.cut(normalised) for cutter in cutters]
        except ViewError as error:
            return prepared._replace(refused=self.policy.reject_refused(episode, error))
        try:
            for cutter, made in zip(cutters, cuts):
                cutter.check_rows(made.cut)
        except ViewError as error:  # what was tolerated reached the items
            self.policy.reject_refused(episode, error, must_stop=True)
        is_for_all = len(cutters) == len(self.cutters)
        if cuts and is_for_all and not any(one.items_per_table or one.is_of_stream for one in cuts):
            views = ", ".join(one.view_name for one in cuts)
            lacking = Problem("no_items", "", f"{views} makes no item of {counted(len(normalised), 'step')}")
            self.policy.reject(episode, [lacking])
            return prepared._replace(refused=lacking)
        if not is_dropped:
            for cutter, made in zip(cutters, cuts):
                cutter.take_in(made)
        is_end_mended = self._standard.conventions.mends_end(filled)
        return prepared._replace(normalised=normalised, cuts=cuts, is_end_mended=is_end_mended)


def _check_notices(source: Source, options: EpisodeOptions) -> None:
    """With `strict`, refuses a source that reports a fault of its own, unless the code is allowed.

    Raises:
      SourceError: it does.
    """
    told = faults(source.notices, options.allow)
    if options.strict and told:
        code = told[0].code
        raise SourceError(
            f"{source.name}: {'; '.join(map(str, told))}; tolerate {code} with allow=({code!r},) (--allow {code}), or leave out strict (--strict)"
        )
