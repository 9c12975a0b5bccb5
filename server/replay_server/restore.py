"""Choosing what a server starts from, and laying it where Reverb looks for it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from replay_server.config import CheckpointSection
from replay_server.fitting import Fit, TableFit, fit_checkpoint
from replay_server.generations import Generation, Generations, find_checkpoint
from replay_server.logs import Logger, logger
from replay_server.tables import TableConfig

_STAGED = "0-restored"
"""Sorts before the names that Reverb gives, which begin with the year: of its folder Reverb deletes all but the last."""


@dataclass(frozen=True)
class Start:
    """What the server starts from.

    Attributes:
      generation: the one restored, None when none was.
      fit: tables to start with, and what became of each.
      staged: the folder for Reverb to load, None to start empty.
    """

    generation: Generation | None
    fit: Fit
    staged: Path | None


def prepare(generations: Generations, section: CheckpointSection, tables: Sequence[TableConfig]) -> Start:
    """Finds the newest valid generation, else `start_from`, and fits it to the config.

    Raises:
      CheckpointError: `start_from` is no checkpoint, or a signature differs and the config says to refuse that.
    """
    log = logger("restore")
    for path in generations.clean():
        log.warning("unfinished checkpoint removed", path=str(path), meaning="the server was killed while writing it")
    generation, broken = generations.newest_valid()
    for path, reason in broken:
        log.error("broken checkpoint set aside", path=str(path), reason=reason)
    if generation is not None:
        source = generation.folder
    elif section.start_from is not None:
        source = find_checkpoint(Path(section.start_from))
    else:
        log.info("no checkpoint to restore", folder=str(generations.folder))
        return Start(None, Fit(tuple(tables), tuple(TableFit(one.name, 0) for one in tables)), None)
    staged = generations.reverb / _STAGED
    fit = fit_checkpoint(source, staged, tables, section.unfit_tables)
    _tell(log, fit)
    if generation is not None and not fit.is_whole:
        kept = generations.keep_for_good(generation, time.strftime("left-out-%Y%m%d", time.gmtime()))
        log.warning("the generation is kept for good, because not all of it was restored", path=str(kept))
    log.info("restoring", checkpoint=str(source), items=sum(table.items for table in fit.tables))
    return Start(generation, fit, staged)


def forget_staged(generations: Generations) -> None:
    """Removes what Reverb has loaded; its blocks are freed with the generation they belong to."""
    shutil.rmtree(generations.reverb / _STAGED, ignore_errors=True)


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
