"""The slow, obvious way from an episode to the items of a view, and from a cut to its items."""

from __future__ import annotations

from typing import Any

from rlds2reverb.cuts import Cut, Field
from rlds2reverb.episode import Array, Episode
from rlds2reverb.formats.source import spec_of
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.specs import flatten
from rlds2reverb.views.base import EpisodeStream, View
from tests.support import reference


def columns_of(view: View, episode: Episode) -> list[str]:
    """The columns of the table's signature, in its order."""
    return list(flatten(view.signature(filled_spec(spec_of(episode)))))


def items_of(cut: Cut) -> list[list[Array]]:
    """What a sampler gets: for every anchor one array per column."""
    return [[field_value(cut, field, number) for field in cut.fields.values()] for number in range(len(cut.anchors))]


def field_value(cut: Cut, field: Field, number: int) -> Array:
    """What one field of item `number` holds, row by row."""
    anchor = int((cut.anchors if field.anchors is None else field.anchors)[number])
    rows = [anchor + offset for window in field.windows for offset in range(window.start, window.stop)]
    assert all(0 <= row < cut.row_count for row in rows)
    column = cut.rows[field.column]
    return column[rows[0] : rows[0] + 1].reshape(column.shape[1:]) if field.squeeze else column[rows]


class Streamed:
    """Cuts episode after episode of one stream, and holds how far it is."""

    def __init__(self, stream: EpisodeStream) -> None:
        self.stream = stream

    def __call__(self, episode: Episode) -> Cut:
        cut, self.stream = self.stream.cut(episode)
        return cut


def ordered_items(view: View, episode: Episode) -> list[list[Array]]:
    """The items of a view, columns in the order of its signature."""
    return items_of(view.cut(episode).in_order(columns_of(view, episode)))


def observed_rows(episode: Episode) -> tuple[list[reference.Row], int]:
    """What TF-Agents calls its observers with, one row per step, and which leaf of a row is next_step_type."""
    steps = reference.steps_of(reference.nested(episode.columns))
    return reference.trajectories(steps), reference.next_step_type_index(steps)


def slow_sequence_items(episode: Episode, **options: Any) -> list[list[Array]]:
    """The items of `ReverbAddTrajectoryObserver`."""
    rows, next_index = observed_rows(episode)
    return reference.sequence_items(rows, next_index, **options)


def slow_episode_items(episode: Episode, max_length: int | None = None) -> list[list[Array]]:
    """The items of `ReverbAddEpisodeObserver`, longer episodes bypassed."""
    return reference.episode_items(observed_rows(episode)[0], max_length)
