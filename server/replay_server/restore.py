"""Choosing what a server starts from, and laying it where Reverb looks for it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from replay_server.choosing import Unloaded, find_start, how_to_go_on, missing, survey
from replay_server.clients import keep_left, set_aside_left
from replay_server.config import CheckpointSection
from replay_server.errors import CheckpointError
from replay_server.fitting import Fit, TableFit, fit_checkpoint
from replay_server.history_file import newest_checkpoint
from replay_server.logs import Logger, logger
from replay_server.store import Checkpoint, CheckpointStore, LeftOut
from replay_server.tables import TableConfig
from replay_server.telling import bytes_in, telling

_STAGED = "0-restored"
"""Sorts before the names that Reverb gives, which begin with the year: Reverb deletes all entries of its folder but the last."""


@dataclass(frozen=True)
class Start:
    """What the server starts from.

    Attributes:
      checkpoint: the one restored, None when none was.
      fit: tables to start with, and what became of each.
      staged: the folder for Reverb to load, None to start empty.
      unloaded: checkpoints that exist and were passed over, newest first; broken ones are where they were moved to.
    """

    checkpoint: Checkpoint | None
    fit: Fit
    staged: Path | None
    unloaded: tuple[Unloaded, ...] = ()


def prepare(store: CheckpointStore, section: CheckpointSection, tables: Sequence[TableConfig]) -> Start:
    """Finds the newest valid checkpoint, else `start_from`, and fits it to the config.

    Raises:
      CannotKeepError: a checkpoint that Reverb had finished before a kill cannot be kept.
      OSError: something else stands where a folder is to be, or does not let itself be moved or removed.
      CheckpointError: checkpoints exist and cannot be loaded (see `choosing`), `start_from` is no checkpoint, or a
        signature differs and the config says to refuse that.
    """
    log = logger("restore")
    keep_left(store, log, section.start_empty)
    with telling(log, "verifying checkpoints", folder=str(store.folder)):
        checkpoint, unloaded = choose(store, section.start_empty)
    set_aside_left(store, log)
    for path in store.clean():
        log.warning("unfinished checkpoint removed", path=str(path), meaning="the server was killed while writing it")
    if checkpoint is not None:
        source = checkpoint.folder
    elif section.start_from is not None:
        source = _find(section.start_from, log)
    else:
        log.info("no checkpoint to restore", folder=str(store.folder))
        return Start(None, Fit(tuple(tables), tuple(TableFit(one.name, 0) for one in tables)), None, unloaded)
    store.guard()  # verifying may have taken long
    staged = store.reverb / _STAGED
    with telling(log, "fitting the checkpoint to the config", bytes=bytes_in(source)):
        fit = fit_checkpoint(source, staged, tables, section.unfit_tables)
    _tell(log, fit)
    if checkpoint is not None:
        left_out = [LeftOut(table.name, table.lost, table.detail) for table in fit.tables if table.lost]
        kept = store.note_left_out(checkpoint, left_out)
        if kept is not None:
            log.warning("the generation is kept for good, because not all of it was restored", path=str(kept))
    log.info("restoring", checkpoint=str(source), items=sum(table.items for table in fit.tables))
    return Start(checkpoint, fit, staged, unloaded)


def forget_staged(store: CheckpointStore) -> None:
    """Removes what Reverb has loaded; its blocks are freed with the checkpoint they belong to."""
    store.guard()
    shutil.rmtree(store.reverb / _STAGED, ignore_errors=True)


def choose(store: CheckpointStore, start_empty: bool) -> tuple[Checkpoint | None, tuple[Unloaded, ...]]:
    """The checkpoint to load, and those passed over: the broken ones moved aside, the unreadable ones left and pinned.

    Raises:
      CheckpointError: the start should not go on, see `choosing`; nothing was moved.
    """
    log = logger("restore")
    found = survey(store.kept)
    gone = missing(store.folder, newest_checkpoint(store.folder))
    if (reason := found.refusal(gone)) and not start_empty:
        raise CheckpointError(how_to_go_on(reason))
    if gone:
        log.warning("newest generation missing", reason=gone)
    unloaded = []
    for one in found.unloaded:
        if one.is_readable:
            unloaded.append(replace(one, path=store.set_aside(one.path, "broken")))
            log.warning("broken checkpoint set aside", path=str(unloaded[-1].path), reason=one.reason)
        else:
            unloaded.append(one)
            if one.path != store.kept:
                store.pin(one.path)
            log.warning("unreadable checkpoint passed over", path=str(one.path), reason=one.reason)
    return found.checkpoint, tuple(unloaded)


def _find(start_from: str, log: Logger) -> Path:
    found = find_start(start_from)
    for one in found.unloaded:
        log.warning("broken checkpoint of start_from passed over", path=str(one.path), reason=one.reason)
    return found.folder


_WORDS = {
    "new": "table is new, it starts empty",
    "not_in_config": "table is no longer in the config, its items are left out",
    "other_signature": "table has another signature now, it starts empty",
    "trimmed": "table is smaller now, items were removed as its remover would",
    "limiter_changed": "rate limiter changed, its samples are counted anew",
    "prefill_done": "prefill is done, the configured rate limiter holds from now on",
}


def _tell(log: Logger, fit: Fit) -> None:
    for table in fit.tables:
        for change in table.changes:
            tell = log.warning if table.lost else log.info
            tell(_WORDS[change], table=table.name, items=table.items, left_out=table.lost, detail=table.detail)
