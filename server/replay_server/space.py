"""Whether the disk has room for the next checkpoint, before Reverb is asked for it.

What is needed is what the newest checkpoint takes: Reverb writes every item and chunk anew each time, however little has
changed, and the older checkpoints go only when the new one is finished: a disk holds one more than `checkpoints.keep`. Where that does not fit, the items are counted:
tables that hold fewer by now need that much less, as far as items are of one size. A table that has grown since needs more;
Reverb finds that out, and what it leaves half done is removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from replay_server.errors import CheckpointError
from replay_server.reading import listed
from replay_server.store import CHECKPOINTS, SET_ASIDE, Checkpoint, numbered


@dataclass(frozen=True)
class Space:
    """Bytes that this user may still fill on a folder's file system, and bytes of the newest checkpoint (0 without one)."""

    free_bytes: int
    needed_bytes: int


def space_for(folder: Path, newest: Checkpoint | None) -> Space:
    """Asks the file system.

    Raises:
      OSError: the folder is gone, or its disk does not answer.
    """
    return Space(shutil.disk_usage(folder).free, 0 if newest is None else newest.bytes)


def check_space(
    folder: Path, keep: int, newest: Checkpoint | None, items: Callable[[], int | None] = lambda: None
) -> None:
    """Refuses a checkpoint that would not fit.

    Args:
      folder: of the checkpoints.
      keep: checkpoints that are kept there.
      newest: of them.
      items: how many all tables hold now, None when they do not answer; asked only when the newest would not fit again.

    Raises:
      CheckpointError: fewer bytes are free than it needs; says how many, and what to do.
    """
    try:
        space = space_for(folder, newest)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be asked for its free space ({error})") from error
    if newest is None or space.free_bytes >= space.needed_bytes:
        return
    held = items()
    needed = _needed_bytes(newest, held)
    if space.free_bytes < needed:
        scaled = "" if needed == newest.bytes else f" for each of its items, for {held} items"
        raise CheckpointError(
            f"{folder}: {space.free_bytes} bytes are free, {needed} are needed, as many as generation "
            f"{newest.number} takes{scaled}; nothing was written. {_ways_on(folder, keep)}; "
            "the next checkpoint is then tried as usual"
        )


def _ways_on(folder: Path, keep: int) -> str:
    """How to make room: first what mostly fills the disk."""
    ways = []
    with suppress(CheckpointError):
        if len(kept := numbered(folder / CHECKPOINTS)) > 1:
            ways.append(
                f"{len(kept)} generations are kept there: lower checkpoints.keep, which is {keep}, and restart, "
                f"or first delete the oldest of {folder / CHECKPOINTS}"
            )
        if listed(folder / SET_ASIDE):
            ways.append(f"delete what you do not need of {folder / SET_ASIDE}")
    ways.append("make the disk larger")
    text = "; or ".join(ways)
    return text[0].upper() + text[1:]


def _needed_bytes(newest: Checkpoint, items: int | None) -> int:
    before = sum(newest.manifest.items.values())
    if items is None or items >= before:
        return newest.bytes
    return -(-newest.bytes * items // before)
