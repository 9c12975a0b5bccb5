"""A snapshot -> the recordings that its table makes, or why it makes none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rlds2reverb.errors import SourceError, WireError
from rlds2reverb.remarks import note
from rlds2reverb.sources.base import columns_of
from rlds2reverb.specs import ArraySpec
from rlds2reverb.stored.episodes import CUT, REFUSE, SPLIT, Missing, StoredEpisodes
from rlds2reverb.stored.index import Index, index_of
from rlds2reverb.stored.layouts import Trajectories, layout_of, why_no_steps
from rlds2reverb.stored.reads import Reads
from rlds2reverb.stored.rows import RowReader
from rlds2reverb.stored.runs import Runs, runs_of
from rlds2reverb.stored.single import StoredItems
from rlds2reverb.stored.snapshot import Snapshot
from rlds2reverb.stored.streams import episodes_in

EPISODES, ITEMS = "episodes", "items"
KINDS = (EPISODES, ITEMS)
"""What becomes an episode: the rows of an episode's items together, or each item."""

_NUMBERED = note(
    "columns_numbered",
    "the table has no signature, so its columns are called 0, 1, ...; name them with columns=A+B+..., in their order",
)
_WAY_OUT = "read each item as an episode with as=items"


def recordings_of(
    snapshot: Snapshot,
    kind: str = EPISODES,
    missing: Missing = Missing(),
    streams: str = REFUSE,
    names: Sequence[str] | None = None,
) -> StoredEpisodes | StoredItems:
    """What a snapshot's table makes.

    Args:
      snapshot: of a table.
      kind: one of `KINDS`.
      missing: see `StoredEpisodes`.
      streams: one of `GAPS`, of sequences that hold several episodes: bad episodes, or cut, see `streams`.
      names: paths of the items' columns, in their order; None for those of the signature, or their numbers without one.

    Raises:
      SourceError: the table is empty, its items cannot be read, or they make no episodes; says why, and how to go on.
    """
    index = index_of(snapshot.name, snapshot.items, snapshot.chunks)
    leaves = _leaves(snapshot, index, names)
    if snapshot.signature is None and names is None:
        snapshot = replace(snapshot, remarks=(*snapshot.remarks, _NUMBERED))
    if kind == ITEMS:
        return StoredItems(snapshot, index, leaves)
    where = f'{snapshot.name}: the items of table "{snapshot.table}" make no episodes'
    if why := why_no_steps(leaves) or index.unlike:
        raise SourceError(f"{where}: {why}; {_WAY_OUT}")
    layout = layout_of(Reads(_of_a_row(leaves, index), index.shifts.tolist(), index.lengths.tolist()))
    if isinstance(layout, str):
        raise SourceError(f"{where}: {layout}; {_WAY_OUT}")
    runs = runs_of(index)
    if _are_alone(index, runs):
        raise SourceError(
            f"{where}: each was written as a sequence of its own, so nothing tells their order; {_WAY_OUT}"
        )
    if streams == SPLIT:
        if not isinstance(layout, Trajectories):
            raise SourceError(
                f"{snapshot.name}: streams=split is for trajectories, whose step_type tells where episodes begin"
            )
        runs, remark = episodes_in(snapshot.name, runs, RowReader(snapshot.chunks, index, list(leaves)))
        snapshot, missing = replace(snapshot, remarks=(*snapshot.remarks, remark)), replace(missing, gaps=CUT)
    return StoredEpisodes(snapshot, index, runs, list(leaves), layout, missing)


def _of_a_row(leaves: Mapping[str, ArraySpec], index: Index) -> dict[str, ArraySpec]:
    """Path -> spec of one row of a column."""
    return {
        path: leaf if is_squeezed else replace(leaf, shape=leaf.shape[1:])
        for (path, leaf), is_squeezed in zip(leaves.items(), index.squeezed.tolist())
    }


def _are_alone(index: Index, runs: Runs) -> bool:
    """Whether every item is the only row of its sequence, and there are several."""
    return len(runs) == len(index.keys) > 1 and bool(((runs.stops - runs.firsts) == 1).all())


def _leaves(snapshot: Snapshot, index: Index, names: Sequence[str] | None) -> dict[str, ArraySpec]:
    """Path -> spec of an item's column, in the items' order.

    Raises:
      SourceError: they are not as many as the items' columns.
    """
    where = f'{snapshot.name}: table "{snapshot.table}"'
    if snapshot.signature is None:
        found = _seen(snapshot, index, where)
        if names is None:
            return {str(number): leaf for number, leaf in enumerate(found)}
    else:
        told: Mapping[str, ArraySpec] = columns_of(snapshot.signature, snapshot.name)
        if names is None and len(told) == index.columns:
            return _with_rows(told, index, where)
        found = _seen(snapshot, index, where) if len(told) != index.columns else list(told.values())
        if names is None:
            raise SourceError(
                f"{where}: its items have {index.columns} columns, its signature {len(told)}; name them with columns=A+B+..."
            )
    if len(names) != index.columns or len(set(names)) != len(names):
        raise SourceError(
            f"{where}: its items have {index.columns} columns; columns names {len(names)}: {', '.join(names)}"
        )
    return dict(zip(names, found))


def _with_rows(told: Mapping[str, ArraySpec], index: Index, where: str) -> dict[str, ArraySpec]:
    for (path, leaf), squeezed in zip(told.items(), index.squeezed.tolist()):
        if not squeezed and not leaf.shape:
            raise SourceError(f'{where}: column "{path}" has rows in the items, and none in the signature')
    return dict(told)


def _seen(snapshot: Snapshot, index: Index, where: str) -> list[ArraySpec]:
    """The spec of each column, from a chunk that holds it.

    Raises:
      SourceError: that cannot be read.
    """
    found = []
    for column in range(index.columns):
        number = int(np.argmax(index.tensors[:, column] >= 0))
        try:
            rows = snapshot.chunks.tensors(number)[int(index.tensors[number, column])]
        except (WireError, IndexError) as error:
            raise SourceError(f"{where}: column {column}: chunk {snapshot.chunks.keys[number]}: {error}") from error
        if not rows.ndim:
            raise SourceError(f"{where}: column {column}: chunk {snapshot.chunks.keys[number]} has no rows")
        row = ArraySpec(rows.shape[1:], rows.dtype)
        found.append(row if index.squeezed[column] else row.with_leading(None))
    return found
