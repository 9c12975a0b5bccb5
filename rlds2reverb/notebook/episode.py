"""An episode: how long, what it earned, how it ends, and its columns with their first values and pictures."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from rlds2reverb.episodes import IS_LAST, IS_TERMINAL, REWARD, Array
from rlds2reverb.notebook.films import is_images, strips
from rlds2reverb.notebook.markup import Html, card, fields, guarded, joined, quiet, rows, text
from rlds2reverb.notebook.values import MOST_NUMBERS, kind_of, mapping_of, values_of
from rlds2reverb.wording import counted, number

if TYPE_CHECKING:
    from rlds2reverb.episodes import Episode

_MOST_FAULTS = 5


def episode_html(episode: Episode) -> Html:
    """The episode as a card."""
    columns = episode.columns
    parts = (
        lambda: fields(
            {
                "steps": text(f"{len(episode):,}"),
                "return": lambda: _return(columns.get(REWARD)),
                "ends": lambda: _end(columns.get(IS_LAST), columns.get(IS_TERMINAL)),
                "bytes": lambda: _size(episode),
                "metadata": lambda: mapping_of(episode.metadata),
                "faults": lambda: _faults(episode.faults),
            }
        ),
        lambda: rows(("column", "dtype and shape", "values"), len(columns), _columns(episode), "column"),
    )
    return card("Episode", episode.title, parts, guarded(lambda: strips(columns, "step")))


def _columns(episode: Episode) -> Iterator[list[Html]]:
    for path, column in episode.columns.items():
        kind = kind_of(column)
        if len(column) != len(episode):
            kind = joined([kind, quiet(f"{counted(len(column), 'row')}, not {len(episode):,}")])
        yield [text(path), kind, guarded(partial(_told, column))]


def _told(column: Array) -> Html:
    """Values and range; of pictures, which stand below, the first one's size where they are files."""
    if not is_images(column):
        return values_of(column)
    if column.dtype.kind != "O":
        return quiet("pictures")
    return joined([quiet("pictures, the first:"), values_of(column.flat[0])])


def _return(reward: Array | None) -> Html:
    if reward is None or reward.ndim != 1 or reward.dtype.kind not in "fiu":
        return Html("")
    if len(reward) > 10 * MOST_NUMBERS:
        return quiet("too many rewards to add up here")
    return text(number(float(reward.sum(dtype=float))))


def _end(is_last: Array | None, is_terminal: Array | None) -> Html:
    """Terminal or truncated, as its last row says."""
    if is_last is None or not len(is_last):
        return Html("")
    if not is_last[-1]:
        return text("open: its last row is not marked is_last")
    is_over = is_terminal is not None and len(is_terminal) and is_terminal[-1]
    return text("terminal" if is_over else "truncated")


def _size(episode: Episode) -> Html:
    columns = episode.columns.values()
    numbers = sum(column.nbytes for column in columns if column.dtype.kind != "O")
    texts = any(column.dtype.kind == "O" for column in columns)
    return text(f"{numbers:,}{', and its texts' if texts else ''}")


def _faults(faults: tuple[tuple[str, str], ...]) -> Html:
    told = [joined([text(path), text(why)], ": ") for path, why in faults[:_MOST_FAULTS]]
    more = [quiet(f"and {len(faults) - _MOST_FAULTS:,} more")] if len(faults) > _MOST_FAULTS else []
    return joined([*told, *more], "; ")
