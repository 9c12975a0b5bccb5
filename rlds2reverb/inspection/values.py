"""Statistics of what learners see: of the real steps of good episodes, or of the items of a view.

An action, a reward and a discount in a last row that was added for the last observation mean nothing, so they do not count; neither does a last
observation that a reader repeated because there was none, neither do rows that a view puts around an episode, nor what its masks call padded: `PATH_is_pad` (True = padded), `pad_mask` (True = real).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb.cuts import Cut, Field
from rlds2reverb.episode import (
    ACTION,
    DISCOUNT,
    IS_FIRST,
    IS_LAST,
    IS_TERMINAL,
    OBSERVATION,
    REWARD,
    Array,
    Episode,
    columns_under,
    gaps_around,
)
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.last_step import last_row_is_added
from rlds2reverb.formats.transform import AS_RECORDED, TransformLike
from rlds2reverb.images import kind
from rlds2reverb.inspection.statistics import Range, last_row_is_repeated, meaningful_columns
from rlds2reverb.keywords import options_of, takes_options
from rlds2reverb.numbers.forms import check_columns
from rlds2reverb.numbers.statistics import DatasetStatistics, StatisticsBuilder
from rlds2reverb.prepare.conventions import Conventions
from rlds2reverb.prepare.options import EpisodeOptions, ReadingKeywords, ReadingOptions
from rlds2reverb.prepare.policy import SKIP
from rlds2reverb.prepare.preparation import Output, OutputCut, Preparation, Prepared
from rlds2reverb.specs import column_spec, flatten
from rlds2reverb.text import did_you_mean
from rlds2reverb.views import ViewLike, view_from
from rlds2reverb.views.base import View

if TYPE_CHECKING:
    from typing_extensions import Unpack

_FLAGS = (IS_FIRST, IS_LAST, IS_TERMINAL)
_OF_TRANSITIONS = (ACTION, REWARD, DISCOUNT)
_OCTO = "pad_mask"  # of all observations


@dataclass(frozen=True)
class StatisticsChoice:
    """Of what statistics are made.

    Attributes:
      images: of the pixels of images, too, by channel.
      of_items: of the items of the one view, not of the steps.
      form: of the file that they are written to, whose columns must be there; "" for none.
      names: the form's key -> column, where it is not the usual one.
    """

    images: bool = False
    of_items: bool = False
    form: str = ""
    names: Mapping[str, str] = field(default_factory=dict)


def prepare_collecting(
    source: Any, views: Mapping[str, View], options: EpisodeOptions, limit: int | None = None
) -> Preparation:
    """A source of which no bad episode ends the reading, and all problems count; filters see only the first `limit` episodes."""
    if options.rules:
        source = open_source(source).first(limit)
    collecting = replace(options, on_invalid=SKIP, quarantine=None, allow=(), strict=False).with_rules_of(options)
    return Preparation.open(source, collecting, [Output((table,), view) for table, view in views.items()])


class EpisodeValues:
    """The values of the episodes of a preparation. Its parts are pickled for workers.

    Raises:
      ConfigError: items of several views, or of none; or the form lacks a column.
    """

    def __init__(self, ready: Preparation, choice: StatisticsChoice) -> None:
        if choice.of_items and len(ready.outputs) != 1:
            raise ConfigError(f"statistics of items: expected one view, found {len(ready.outputs)}")
        self._choice = choice
        self._standard = ready.standard
        self._view = ready.outputs[0].view_name if choice.of_items else ""
        steps = {path: spec for path, spec in flatten(ready.recorded_spec).items() if path not in _FLAGS}
        check_columns(choice.form, flatten(ready.signatures[0]) if choice.of_items else steps, choice.names)
        # What is added is what was recorded: `inspect` repairs nothing.
        self._is_recorded = not choice.of_items and self._standard.conventions == Conventions()
        # Which axes of an item are steps only a cut shows.
        self._builder = None if choice.of_items else StatisticsBuilder(steps, choice.images)

    def add(self, prepared: Prepared, recorded: Mapping[str, Array] | None = None) -> Mapping[str, int]:
        """Adds an episode, unless it is bad. One of which a view makes no item has real steps all the same.

        Args:
          recorded: the meaningful columns of what was recorded, where the caller has them.

        Returns:
          The recorded columns whose values were added as they are, so that `ranges` knows of them -> their rows that were added.
        """
        episode = prepared.normalised
        if episode is None and prepared.refused is not None and prepared.refused.code == "no_items":
            episode = self._standard.normalise(prepared.filled)
        if episode is None:
            return {}
        if self._choice.of_items:
            if prepared.cuts:
                self._add_items(episode, prepared.cuts[0])
            return {}
        assert self._builder is not None
        is_recorded = self._is_recorded and recorded is not None
        is_before_gap = self._ends_before_gap(episode)
        columns = recorded if recorded is not None and is_recorded else meaningful_columns(episode, is_before_gap)
        if last_row_is_repeated(episode, is_before_gap):
            columns = {path: column[: len(episode) - 1] for path, column in columns.items()}
        actions = columns_under(columns, ACTION)
        self._builder.add(columns, max(map(len, actions.values()), default=len(episode)))
        return {path: len(columns[path]) for path in self._builder.numbers if path in columns} if is_recorded else {}

    def add_part(self, other: EpisodeValues) -> None:
        """Adds the values of the episodes that follow."""
        if self._builder is None:
            self._builder = other._builder
        elif other._builder is not None:
            self._builder.add_part(other._builder)

    def ranges(self, statistics: DatasetStatistics) -> Iterator[tuple[str, Range]]:
        """Path -> range of the values of which `add` said that they were added as recorded."""
        if self._is_recorded:
            yield from ((path, Range.of(column)) for path, column in statistics.items())

    def build(self, source: str) -> DatasetStatistics:
        """The statistics; nothing can be added any more."""
        builder = self._builder or StatisticsBuilder({})
        return builder.build(source, self._view)

    def _ends_before_gap(self, episode: Episode) -> bool:
        """Whether the last row is the one before a gap, behind which `last_step` would have put another one."""
        return gaps_around(episode.id)[1] and self._standard.conventions.last_step == AS_RECORDED

    def _add_items(self, episode: Episode, output: OutputCut) -> None:
        cut = output.cut
        if not len(cut.anchors):
            return
        is_before_gap = self._ends_before_gap(episode)
        last = len(episode) - (len(episode) > 1 and not is_before_gap and last_row_is_added(episode))
        steps = len(episode) - last_row_is_repeated(episode, is_before_gap)
        real = None if output.output.is_of_stream else (last, steps)
        values = dict(_values_of_items(cut, real, self._choice.images))
        if self._builder is None:
            specs = {
                path: column_spec(column) for path, column in values.items() if path.rpartition("/")[2] not in _FLAGS
            }
            self._builder = StatisticsBuilder(specs, self._choice.images)
        self._builder.add(values, len(cut.anchors))


def _values_of_items(cut: Cut, real: tuple[int, int] | None, with_images: bool) -> Iterator[tuple[str, Array]]:
    """Field -> [n, ...] its real rows in all items; of frames in windows only with `with_images`, for they would be copied window by window.

    `real` are the numbers of rows with an action and with an observation of their own; None for a stream, whose items hold rows of earlier episodes.
    """
    masks: dict[str, Array] = {
        path: _rows_of(cut, item_field)[0]
        for path, item_field in cut.fields.items()
        if cut.rows[item_field.column].dtype == bool
    }
    for path, item_field in cut.fields.items():
        # A squeezed field may be a gathered window of numbers, [offsets, dimensions], which is no image.
        is_frames = not item_field.squeeze and bool(kind(column_spec(cut.rows[item_field.column])))
        if _is_mask(path) or (is_frames and not with_images):
            continue
        values, steps_read = _rows_of(cut, item_field)
        is_real = np.ones(values.shape[: steps_read.ndim], bool)
        if real is not None:
            stop = real[path.partition("/")[0] not in _OF_TRANSITIONS]
            is_real &= (steps_read >= 0) & (steps_read < stop)
        mask = _mask_of(path, values, masks)
        if mask is not None:
            if mask.ndim > is_real.ndim:
                is_real = is_real.reshape(*is_real.shape, *[1] * (mask.ndim - is_real.ndim)) & mask
            else:
                is_real &= mask.reshape(*mask.shape, *[1] * (is_real.ndim - mask.ndim))
        yield path, values[is_real]


def _rows_of(cut: Cut, field: Field) -> tuple[Array, Array]:
    """[items, window, ...] the rows of a field, and [items, window] the steps that they are of; both [items, ...] where it is squeezed."""
    anchors = cut.anchors if field.anchors is None else field.anchors
    offsets = np.concatenate([np.arange(window.start, window.stop) for window in field.windows])
    places = anchors[:, None] + offsets
    if field.squeeze:
        places = places[:, 0]
    return cut.rows[field.column][places], places - cut.origin


def _is_mask(path: str) -> bool:
    return path.endswith(("_is_pad", "pad_mask"))


def _mask_of(path: str, values: Array, masks: Mapping[str, Array]) -> Array | None:
    """[items, ...] which rows of a field are real; None where no mask speaks of it."""
    names = path.split("/")
    above = ["/".join(names[:size]) for size in range(len(names), 0, -1)]
    places = [place for name in above for place in (f"{name}_is_pad", f"{name}_pad_mask")]
    if names[0] == OBSERVATION:
        places += [f"{OBSERVATION}/{_OCTO}", _OCTO]
    for place in places:
        mask = masks.get(place)
        if mask is None or mask.shape != values.shape[: mask.ndim]:
            continue
        is_real = ~mask if place.endswith("_is_pad") else mask
        # A mask of each dimension says of a row that is not padded in all of them that it is real.
        return is_real.any(axis=-1) if mask.ndim == values.ndim and mask.ndim > 2 else is_real
    return None


@takes_options(ReadingOptions)
def statistics(
    source: Any,
    view: ViewLike | None = None,
    images: bool = False,
    limit: int | None = None,
    transform: TransformLike = (),
    encoded: str | tuple[str, ...] = (),
    encode: str | Sequence[str] | Mapping[str, str] = (),
    **options: Unpack[ReadingKeywords],
) -> DatasetStatistics:
    """Reads a dataset once and returns the mean, spread, ends and quantiles of each dimension of its numeric columns: what normalises by.

    They are those of the real steps of good episodes: of an added last row, which holds the last observation, neither action, reward nor
    discount count.

    >>> import rlds2reverb
    >>> state = rlds2reverb.statistics("bundled:half_cheetah")["observation"]
    >>> state.mean.shape, state.quantiles[0.01].shape, int(state.count.max())
    ((17,), (17,), 1010)

    Args:
      source: as for `Client.push`.
      view: as for `inspect`, of whose items they are, without what is padded: "chunk:horizon=16" for actions relative to the first one, say. None for steps.
      images: whether to look at images, too: all pixels, by channel, in the values of the column.
      limit: episodes to read at most, or None for all.
      transform, encoded, encode: as for `Client.push`.
      options: filters, `terminal_discount`, `last_reward`, `last_observation` and `last_step`, as for `Client.push`. Filters see the first `limit` episodes.

    Raises:
      SourceError: it cannot be opened or read, or filters leave nothing of it.
      ConfigError: an option that there is not, a limit below 1, or a transform that the steps do not allow.
      ViewError: a view that makes no sense, or cannot cut such steps.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"statistics: limit {limit}: expected at least 1, or None for all episodes")
    if unknown := sorted(options.keys() - options_of(ReadingOptions).keys()):
        names = ("view", "images", "limit", "transform", "encoded", "encode", *options_of(ReadingOptions))
        raise ConfigError(
            f"statistics has no option {', '.join(unknown)}; there are {', '.join(names)}{did_you_mean(unknown[0], names)}"
        )
    if isinstance(view, (str, Mapping)):
        view = view_from(view, "statistics: view")
    views = {} if view is None else {"statistics": view}
    ready = prepare_collecting(
        source, views, EpisodeOptions(transform=transform, encoded=encoded, encode=encode, **options), limit
    )
    values, preparer = EpisodeValues(ready, StatisticsChoice(images, view is not None)), ready.preparer()
    for episode, problems in ready.read(stop=None if ready.options.rules else limit):
        values.add(preparer.prepare(episode, problems))
    return values.build(ready.source.name)
