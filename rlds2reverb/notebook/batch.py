"""A batch: its leaves with their first values and pictures, and what the server told of its samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.learner.leaves import columns_of, paths_of
from rlds2reverb.notebook.films import strips
from rlds2reverb.notebook.markup import MOST_ROWS, Html, card, folded, guarded, quiet, rows, text
from rlds2reverb.notebook.values import kind_of, values_of
from rlds2reverb.specs import flatten
from rlds2reverb.wording import counted

if TYPE_CHECKING:
    from rlds2reverb.learner.batch import Batch, BatchInfo


def batch_html(batch: Batch) -> Html:
    """The batch as a card."""
    leaves = _leaves(batch.data)
    parts = (
        lambda: (
            rows(("column", "dtype and shape", "values"), len(leaves), map(_row, *zip(*leaves.items())), "column")
            if leaves
            else quiet("no columns")
        ),
        lambda: folded(text("what the server told of the samples"), _told(batch.info)),
    )
    arrays = {path: leaf for path, leaf in leaves.items() if isinstance(leaf, np.ndarray) and leaf.ndim}
    return card("Batch", counted(batch.size, "sample"), parts, guarded(lambda: strips(arrays, "sample")))


def info_html(info: BatchInfo) -> Html:
    """What the server told of the samples of a batch, as a card."""
    return card("BatchInfo", counted(int(info.key.size), "sample"), (lambda: _told(info),))


def _leaves(data: Any) -> dict[str, Any]:
    """Path -> array, or list of arrays where samples differ in shape."""
    paths = paths_of(data, None)
    return dict(zip(flatten(paths), columns_of(data, paths)))


def _told(info: BatchInfo) -> Html:
    fields = {name: value for name, value in info._asdict().items() if value is not None}
    flat = dict(_flat(fields))
    return rows(("field", "dtype and shape", "values"), len(flat), map(_row, *zip(*flat.items())), "field")


def _flat(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, Mapping):  # masks by column
            yield from ((f"{name} {path}", mask) for path, mask in value.items())
        else:
            yield name, value


def _row(path: str, leaf: Any) -> list[Html]:
    if not isinstance(leaf, list):
        array = np.asarray(leaf)
        return [text(path), guarded(lambda: kind_of(array)), values_of(array)]
    arrays: list[Array] = [np.asarray(one) for one in leaf[:MOST_ROWS]]
    kinds = ", ".join(dict.fromkeys(f"{one.dtype}{list(one.shape)}" for one in arrays))
    return [
        text(path),
        text(f"{counted(len(leaf), 'array')}: {kinds}"),
        values_of(arrays[0]) if arrays else quiet("none"),
    ]
