"""Restores at a start: chooses the checkpoint, lays it where Reverb looks for it; and predicts a start, for `--check`."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from replay_server import uploads
from replay_server.choosing import ChosenCheckpoint, Survey, Unloaded, how_to_go_on, missing, survey, why_left_unread
from replay_server.clients import keep_left, set_aside_left
from replay_server.config import CheckpointSection
from replay_server.errors import CheckpointError, CheckpointUnreadable
from replay_server.files import RECORD_FILES, verify_record_files, writing_times
from replay_server.fitting import Fit, TableFit, fit_checkpoint, plan_fit
from replay_server.folder_lock import Holder, holder, utc
from replay_server.history import newest_checkpoint
from replay_server.logs import Far, Reading, bytes_in, log_progress, logger
from replay_server.own_tables import OWN_TABLES
from replay_server.retention import disk_need, keep_of, makes_room
from replay_server.start_from import OlderPlan, OlderStart, hash_config, note_copy, plan_older, verified_older
from replay_server.store import CHECKPOINTS, PASSING, Checkpoint, CheckpointStore, LeftOut
from replay_server.tables import TableConfig
from replay_server.working_folder import WorkingFolder
from rlds2reverb.text import counted, duration, size
from rlds2reverb.wire.messages import is_own

_STAGED = "0-restored"
"""Sorts before Reverb's own names, which begin with the year: Reverb deletes all entries of its folder but the last."""


@dataclass(frozen=True)
class Start:
    """What the server starts from.

    Attributes:
      checkpoint: the one restored, None when none was.
      fit: tables to start with, and how each was fitted.
      staged: the folder for Reverb to load, None to start empty.
      unloaded: checkpoints that exist and were passed over, newest first; broken ones are where they were moved to.
      older: the one that `--start-from` named, when there are newer ones.
      passed_over: these newer ones, newest first; they stay.
      pinned: of these, what this start has pinned.
    """

    checkpoint: Checkpoint | None
    fit: Fit
    staged: Path | None
    unloaded: tuple[Unloaded, ...] = ()
    older: Checkpoint | None = None
    passed_over: tuple[Path, ...] = ()
    pinned: tuple[Path, ...] = ()


def prepare(
    store: CheckpointStore,
    section: CheckpointSection,
    tables: Sequence[TableConfig],
    stopped: Callable[[], bool] = lambda: False,
    older: OlderStart | None = None,
) -> Start:
    """Finds the checkpoint that `older` asks for, else the newest valid one, else `start_from`, and fits it to the config.

    Args:
      stopped: whether the server is to end; asked while a checkpoint comes from a bucket.
      older: what `--start-from` says; None without it. It is found and checked before anything is moved.

    Raises:
      StartStopped: the server is to end.
      CannotKeepError: a checkpoint that Reverb had finished before a kill cannot be kept.
      OSError: something else stands where a folder is to be, or cannot be moved or removed.
      CheckpointError: checkpoints exist and cannot be loaded (see `choosing`), `start_from` is no checkpoint, or a
        signature differs and the config says to refuse that.
    """
    log = logger("restore")
    with ExitStack() as copies:
        named: Checkpoint | None = None
        if older is not None:
            with log_progress(log, "verifying the checkpoint to start from", start_from=older.text):
                chosen_older = copies.enter_context(verified_older(older, store, section, stopped))
            named = chosen_older.checkpoint
            for reason in chosen_older.unread:
                log.warning("checkpoint passed over", start_from=older.text, reason=reason)
            if refusal := plan_fit(named.folder, tables).refusal(section.unfit_tables):
                raise CheckpointError(refusal)
        keep_left(store, log, section.start_empty)
        config = hash_config(tables, section)
        plan = OlderPlan((), (), continues=False) if named is None else plan_older(named, store, config)
        is_local = named is not None and named.folder.parent == store.kept
        if named is not None and plan.continues:
            log.info(
                "an earlier start from this checkpoint continues", checkpoint=named.number, newest=str(plan.newer[0])
            )
            for path in plan.pins:
                store.pin(path)
            named = None
        if is_local and not plan.newer:  # it is the newest
            named = None
        if named is None:
            store.forget_unwritten()
            with log_progress(log, "verifying checkpoints", reading_of(store), folder=str(store.folder)):
                checkpoint, unloaded = choose(store, section.start_empty)
        else:
            checkpoint, unloaded = named if is_local else None, ()
        set_aside_left(store, log)
        for path in store.clean():
            log.warning(
                "unfinished checkpoint removed", path=str(path), meaning="the server was killed while writing it"
            )
        staged, copy = store.reverb / _STAGED, store.folder / uploads.FETCHED
        chosen = None if checkpoint is None else ChosenCheckpoint(checkpoint.folder)
        if named is not None:
            chosen = ChosenCheckpoint(named.folder, number=named.number)
            if not is_local and uploads.may_take_over(section, store):
                uploads.take_over(section, store, chosen)
            log.warning(
                "starting from an older checkpoint",
                number=named.number,
                written=utc(named.manifest.created),
                newer=[path.name for path in plan.newer],
                meaning="the newer ones stay, and this server writes a new one before it is ready",
            )
        if chosen is None and section.start_from is not None:
            fetched = lambda: {"bytes": bytes_in(copy)}  # noqa: E731
            with log_progress(
                log, "taking the checkpoint that start_from names", fetched, start_from=section.start_from
            ):
                chosen = copies.enter_context(uploads.start_from(section, copy, stopped))
            if uploads.continues_place(section):
                uploads.take_over(section, store, chosen)
        if chosen is None:
            log.info("no checkpoint to restore", folder=str(store.folder))
            return Start(None, Fit(tuple(tables), tuple(TableFit(table.name, 0) for table in tables)), None, unloaded)
        for passed in chosen.unloaded:
            log.warning("broken checkpoint of start_from passed over", path=str(passed.path), reason=passed.reason)
        source = chosen.place or chosen.folder
        store.guard()  # verifying may have taken long
        with log_progress(log, "fitting the checkpoint to the config", bytes=bytes_in(chosen.folder)):
            fit = fit_checkpoint(chosen.folder, staged, tables, section.unfit_tables)
    for table in fit.tables:
        tell = log.warning if table.lost else log.info
        for change in table.changes:
            tell(_WORDS[change], table=table.name, items=table.items, left_out=table.lost, detail=table.detail)
    if checkpoint is not None:
        left_out = [LeftOut(table.name, table.lost, table.detail) for table in fit.tables if table.lost]
        kept = store.note_left_out(checkpoint, left_out)
        if kept is not None:
            log.warning("the checkpoint is kept for good, because not all of it was restored", path=str(kept))
    # Before Reverb runs: what it has finished when a kill comes is the newest checkpoint of the next start, whose rules would remove these.
    pinned: tuple[Path, ...] = ()
    if named is not None:
        pinned = tuple(path for path in plan.pins if store.pin(path))
        note_copy(named, store, config, is_sent=section.upload is not None)
    log.info("restoring", checkpoint=str(source), items=fit.items)
    return Start(checkpoint, fit, staged, unloaded, named, () if named is None else plan.newer, pinned)


def take_back(store: CheckpointStore, start: Start) -> None:
    """After a start that failed: unpins what it had pinned, unless Reverb has finished a checkpoint, which the next start continues from."""
    with suppress(CheckpointError, OSError):  # the start's own error says what matters
        if not WorkingFolder(store.reverb, store.taken).list_finished():
            for path in start.pinned:
                store.unpin(path)


def reading_of(store: CheckpointStore) -> Far:
    """Progress in verifying the newest checkpoint."""
    newest = next(iter(store.readable() or ()), None)
    return dict if newest is None else Reading(bytes_in(newest)).far


def forget_staged(store: CheckpointStore) -> None:
    """Removes what Reverb has loaded; its blocks are freed with the checkpoint they belong to."""
    store.guard()
    shutil.rmtree(store.reverb / _STAGED, ignore_errors=True)


def choose(store: CheckpointStore, start_empty: bool) -> tuple[Checkpoint | None, tuple[Unloaded, ...]]:
    """The checkpoint to load, and those passed over: the broken ones moved aside, the unreadable ones left and pinned.

    Raises:
      CheckpointError: the start must not continue, see `choosing`; nothing was moved.
    """
    log = logger("restore")
    survey_of_kept = survey(store.kept)
    gone = missing(store.folder, newest_checkpoint(store.folder))
    if (reason := survey_of_kept.refusal(gone)) and not start_empty:
        raise CheckpointError(how_to_go_on(reason))
    if gone:
        log.warning("newest checkpoint missing", reason=gone)
    unloaded = []
    for passed in survey_of_kept.unloaded:
        if passed.is_readable:
            unloaded.append(replace(passed, path=store.set_aside(passed.path, "broken")))
            log.warning("broken checkpoint set aside", path=str(unloaded[-1].path), reason=passed.reason)
        else:
            unloaded.append(passed)
            if passed.path != store.kept:
                store.pin(passed.path)
            log.warning("unreadable checkpoint passed over", path=str(passed.path), reason=passed.reason)
    return survey_of_kept.checkpoint, tuple(unloaded)


_WORDS = {
    "new": "table is new, it starts empty",
    "not_in_config": "table is no longer in the config, its items are left out",
    "other_signature": "table has another signature now, it starts empty",
    "trimmed": "table is smaller now, items were removed as its remover would",
    "limiter_changed": "rate limiter changed, its samples are counted anew",
    "prefill_done": "prefill is done, the configured rate limiter holds from now on",
}


_REFUSED = "nothing: the start would be refused"
_SET_ASIDE = "set aside"


@dataclass(frozen=True)
class Outlook:
    """What a start would do.

    Attributes:
      starts_from: in words.
      last: the newest good checkpoint, with its age and size in words; "" without one.
      tables: what becomes of each table of the config and of the checkpoint, in words, but for the server's own; empty where nothing can be read.
      kept: the kept checkpoints, newest first, as `_row_of` has them.
      need: what `checkpoints.keep` takes on disk, in words; "" without a checkpoint.
      used_by: the server that uses the folder now, "" when none does.
      notes: what would be passed over or left out, and why.
      refusal: why the start would be refused, one reason per line; "" when it would not.
      takes_place: whether it takes over the place of `checkpoints.upload`, from which its checkpoint comes.
    """

    starts_from: str
    last: str = ""
    tables: Mapping[str, str] = field(default_factory=dict)
    kept: tuple[Mapping[str, Any], ...] = ()
    need: str = ""
    used_by: str = ""
    notes: tuple[str, ...] = ()
    refusal: str = ""
    takes_place: bool = False


def outlook(section: CheckpointSection, tables: Sequence[TableConfig], older: OlderStart | None = None) -> Outlook:
    """What a start with this config, and with what `--start-from` says, would find now. A folder in use is described, too: its server may end."""
    folder = Path(section.folder).absolute()
    held = Holder()
    try:
        held = holder(folder)
        content = _of_content(section, folder, tables) if older is None else _of_older(older, section, folder, tables)
    except CheckpointError as error:
        content = Outlook(_REFUSED, refusal=str(error))
    except OSError as error:
        content = Outlook(_REFUSED, refusal=f"checkpoint folder {section.folder}: cannot be read ({error})")
    reasons = [reason for reason in (held.refusal, content.refusal) if reason]
    kept, need = _list_kept(section, folder)
    return replace(content, kept=kept, need=need, used_by=held.words, refusal="\n".join(reasons))


def _of_older(older: OlderStart, section: CheckpointSection, folder: Path, tables: Sequence[TableConfig]) -> Outlook:
    """A start with `--start-from`; one in a bucket is fetched for it, and removed."""
    store = CheckpointStore(folder, section.keep, is_only_read=True)
    left: Path | None = None
    notes: list[str] = []
    if WorkingFolder(store.reverb, store.taken).list_finished():
        try:
            left, notes = _left_by_reverb(folder, survey(store.kept))
        except (CheckpointUnreadable, OSError) as error:
            if not section.start_empty:
                raise CheckpointUnreadable(how_to_go_on(why_left_unread(folder, error))) from error
            notes = [f"{why_left_unread(folder, error)}; it would be set aside"]
    with tempfile.TemporaryDirectory(prefix="rlds2reverb-check-") as copies:
        with verified_older(older, store, section, copy=Path(copies) / uploads.FETCHED) as chosen:
            named, is_local = chosen.checkpoint, chosen.checkpoint.folder.parent == store.kept
            notes += chosen.unread
            plan = plan_older(named, store, hash_config((*tables, *OWN_TABLES), section), left)
            if plan.continues or (is_local and not plan.newer):
                content = _of_content(section, folder, tables)
                why = (
                    f"an earlier start from checkpoint {named.number} has written {plan.newer[0].name}, and nothing came since: that continues"
                    if plan.newer
                    else f"checkpoint {named.number} is the newest: the start is as without --start-from"
                )
                return replace(content, notes=(*chosen.unread, why, *content.notes))
            words = f"checkpoint {named.number}, written at {utc(named.manifest.created)}, {named.item_count} items, {named.bytes} bytes"
            fitted = _fit_start(words, named.folder, section, tables, _SET_ASIDE)
    if left is not None:
        notes.append(
            f"{left.name}, which Reverb had finished before the server was killed, is kept first, as a checkpoint"
        )
    notes += [f"checkpoint {path.name} is newer and stays, pinned" for path in plan.pins]
    if count := len(plan.newer) - len(plan.pins):
        notes.append(
            f"{counted(count, 'more newer checkpoint')} {'stays' if count == 1 else 'stay'} as checkpoints.keep says"
        )
    notes.append("before the server is ready it writes a new checkpoint, from which the next start continues")
    takes_place = not is_local and uploads.may_take_over(section, store)
    return replace(fitted, notes=(*notes, *fitted.notes), takes_place=takes_place)


def _of_content(section: CheckpointSection, folder: Path, tables: Sequence[TableConfig]) -> Outlook:
    survey_of_folder = survey(folder / CHECKPOINTS)
    checkpoint = survey_of_folder.checkpoint
    last = (
        ""
        if checkpoint is None
        else _last(f"checkpoint {checkpoint.number}", checkpoint.manifest.created, checkpoint.bytes)
    )
    try:
        left, notes = _left_by_reverb(folder, survey_of_folder)
    except (CheckpointUnreadable, OSError) as error:
        reason = why_left_unread(folder, error)
        if not section.start_empty:
            return Outlook(_REFUSED, last, refusal=how_to_go_on(reason))
        left, notes = None, [f"{reason}; it would be set aside"]
    if left:
        words = f"what Reverb had finished as {left.name} before the server was killed"
        fitted = _fit_start(words, left, section, tables, _SET_ASIDE)
        return replace(
            fitted, last=_last(left.name, writing_times(left)[1], bytes_in(left)), notes=(*notes, *fitted.notes)
        )
    gone = missing(folder, newest_checkpoint(folder))
    if (reason := survey_of_folder.refusal(gone)) and not section.start_empty:
        return Outlook(_REFUSED, last, notes=tuple(notes), refusal=how_to_go_on(reason))
    if checkpoint is not None:
        words = f"checkpoint {checkpoint.number}, {checkpoint.item_count} items, {checkpoint.bytes} bytes"
        chosen = _fit_start(words, checkpoint.folder, section, tables, _SET_ASIDE)
    elif section.start_from is None:
        chosen = _empty(tables)
    else:
        chosen = _of_start_from(section, tables)
    ends = {True: "would be set aside", False: "would be passed over"}
    own = (f"{passed.reason}; it {ends[passed.is_readable]}" for passed in survey_of_folder.unloaded)
    return replace(chosen, last=last, notes=(*notes, *filter(None, [gone]), *own, *chosen.notes))


def _list_kept(section: CheckpointSection, folder: Path) -> tuple[tuple[Mapping[str, Any], ...], str]:
    """The kept checkpoints, and what `checkpoints.keep` takes on disk; nothing where the folder cannot be listed."""
    try:
        listed = CheckpointStore(folder, section.keep, is_only_read=True).listed()
        free = shutil.disk_usage(folder).free if listed else None
    except (CheckpointError, OSError):
        return (), ""
    now = time.time()
    documents = [checkpoint.document(now) for checkpoint in listed]
    sizes = [document["bytes"] for document in documents if document["bytes"] is not None]
    freed = [
        bytes_in(row.folder) if document["bytes"] is None else document["bytes"]
        for row, document in zip(listed, documents, strict=True)
        if makes_room(row.kept, PASSING)
    ]
    need = disk_need(keep_of(section.keep), freed, sizes[0], free).words() if sizes else ""
    return tuple(map(_row_of, documents)), need


def _row_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """A checkpoint for people; what it is like is told by the sizes of its files, and only what a start takes is read to the end."""
    if document["created"] is None:
        return {"checkpoint": document["name"], "problem": document["problem"]}
    return {
        "checkpoint": document["name"],
        "written": utc(document["created"]),
        "age": duration(document["age_seconds"]),
        "items": document["items"],
        "size": size(document["bytes"]),
        "kept": ", ".join(document["kept"]) or "until the next one is written",
        **({"problem": document["problem"]} if document["problem"] else {}),
    }


def _last(name: str, written: float, count: int) -> str:
    return f"{name}, written at {utc(written)}, {duration(time.time() - written)} ago, {size(count)}"


def _empty(tables: Sequence[TableConfig]) -> Outlook:
    return Outlook("nothing: empty tables", tables={table.name: "empty" for table in tables})


def _of_start_from(section: CheckpointSection, tables: Sequence[TableConfig]) -> Outlook:
    """A start from what `start_from` names; of one in a bucket only the descriptions of the tables are fetched."""
    with (
        tempfile.TemporaryDirectory(prefix="rlds2reverb-check-") as copies,
        uploads.start_from(section, Path(copies) / uploads.FETCHED, only=RECORD_FILES[:1]) as other,
    ):
        if other is None:
            return _empty(tables)
        words = f"{other.place or other.folder}, named by start_from"
        chosen = _fit_start(words, other.folder, section, tables, "left out")
        passed_over = (f"{passed.reason}; it would be passed over" for passed in other.unloaded)
        return replace(chosen, notes=(*passed_over, *chosen.notes))


def _fit_start(
    words: str, source: Path, section: CheckpointSection, tables: Sequence[TableConfig], lost: str
) -> Outlook:
    """A start from this checkpoint, which `words` name; `lost` says what becomes of items that are not restored."""
    plan = plan_fit(source, (*tables, *OWN_TABLES))
    if refusal := plan.refusal(section.unfit_tables):
        fits = {
            fit.name: f"refused: {fit.detail}"
            if "other_signature" in fit.changes
            else "not started, because the start is refused"
            for fit in plan.fit.tables
            if not is_own(fit.name)
        }
        return Outlook(_REFUSED, tables=fits, refusal=refusal)
    fits = {fit.name: _start_of(fit, lost) for fit in plan.fit.tables if not is_own(fit.name)}
    notes = tuple(f'table "{fit.name}": {fits[fit.name]}' for fit in plan.fit.tables if fit.name in fits and fit.lost)
    return Outlook(words, tables=fits, notes=notes)


def _start_of(fit: TableFit, lost: str) -> str:
    left_out = f"{counted(fit.lost, 'item')} {lost}: {fit.detail}"
    if "new" in fit.changes:
        return "empty: it is not in the checkpoint"
    if "other_signature" in fit.changes:
        return f"empty, {left_out}"
    if "not_in_config" in fit.changes:
        return left_out
    parts = [f"{counted(fit.items, 'item')} restored", *([left_out] if fit.lost else [])]
    if "limiter_changed" in fit.changes:
        parts.append("the rate limiter changed and counts samples anew")
    if "prefill_done" in fit.changes:
        parts.append("the prefill is done")
    return ", ".join(parts)


def _left_by_reverb(folder: Path, checkpoints: Survey) -> tuple[Path | None, list[str]]:
    """The entry that the start would keep as the newest checkpoint, None for none; and why not newer ones."""
    working = WorkingFolder(folder / "reverb", folder / "taken")
    notes: list[str] = []
    for name in working.list_finished_after(checkpoints.as_of):
        try:
            verify_record_files(place := working.place(name))
            return place, notes
        except CheckpointError as error:
            if not error.is_broken:
                raise
            notes.append(f"{error}; it would be set aside")
    return None, notes
