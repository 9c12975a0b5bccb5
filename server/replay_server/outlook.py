"""What a start would find in the checkpoint folder, for `--check`: looked at as the start would, nothing taken or moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from replay_server.choosing import Survey, find_start, how_to_go_on, survey, why_left_unread
from replay_server.config import CheckpointSection
from replay_server.errors import CheckpointError, CheckpointUnreadable
from replay_server.generation import Generation
from replay_server.holder import Holder, holder
from replay_server.record_files import verify_record_files
from replay_server.tables import TableConfig
from replay_server.working_folder import WorkingFolder
from rlds2reverb.wording import counted

_REFUSED = "nothing: the start would be refused"


@dataclass(frozen=True)
class Outlook:
    """What a start would do.

    Attributes:
      starts_from: in words.
      used_by: the server that uses the folder now, "" when none does.
      notes: what would be passed over or left out, and why.
      refusal: why the start would be refused, one reason per line; "" when it would not.
    """

    starts_from: str
    used_by: str = ""
    notes: tuple[str, ...] = ()
    refusal: str = ""


def outlook(section: CheckpointSection, tables: Sequence[TableConfig]) -> Outlook:
    """What a start with this config would find now. A folder in use is described all the same: its server may end."""
    folder = Path(section.folder).absolute()
    held = Holder()
    try:
        held = holder(folder)
        found = _of_content(section, folder, tables)
    except CheckpointError as error:
        found = Outlook(_REFUSED, refusal=str(error))
    except OSError as error:
        found = Outlook(_REFUSED, refusal=f"checkpoint folder {section.folder}: cannot be read ({error})")
    reasons = [reason for reason in (held.refusal, found.refusal) if reason]
    return replace(found, used_by=held.words, refusal="\n".join(reasons))


def _of_content(section: CheckpointSection, folder: Path, tables: Sequence[TableConfig]) -> Outlook:
    found = survey(folder / "generations")
    try:
        left, notes = _left_by_reverb(folder, found)
    except (CheckpointUnreadable, OSError) as error:
        reason = why_left_unread(folder, error)
        if not section.start_empty:
            return Outlook(_REFUSED, refusal=how_to_go_on(reason))
        left, notes = "", [f"{reason}; it would be set aside"]
    if left:
        return Outlook(f"what Reverb had finished as {left} before the server was killed", notes=tuple(notes))
    if (reason := found.refusal()) and not section.start_empty:
        return Outlook(_REFUSED, notes=tuple(notes), refusal=how_to_go_on(reason))
    chosen = _chosen(section, found, tables)
    return replace(chosen, notes=(*notes, *_passed_over(found), *chosen.notes))


def _chosen(section: CheckpointSection, found: Survey, tables: Sequence[TableConfig]) -> Outlook:
    """What the tables come from, and what of it would be left out."""
    if (made := found.generation) is not None:
        return Outlook(_words(made), notes=_left_out(made.manifest.items, tables))
    if section.start_from is None:
        return Outlook("nothing: empty tables")
    other = find_start(section.start_from)
    notes = [f"{one.reason}; it would be passed over" for one in other.unloaded]
    return Outlook(f"{other.folder}, named by start_from", notes=(*notes, *_left_out(other.items or {}, tables)))


def _words(made: Generation) -> str:
    return f"generation {made.number}, {sum(made.manifest.items.values())} items, {made.bytes} bytes"


def _passed_over(found: Survey) -> list[str]:
    ends = {True: "would be set aside", False: "would be passed over"}
    return [f"{one.reason}; it {ends[one.is_readable]}" for one in found.unloaded]


def _left_out(items: Mapping[str, int], tables: Sequence[TableConfig]) -> tuple[str, ...]:
    """One line per table of a checkpoint that does not fit into the config's."""
    wanted = {table.name: table for table in tables}
    return tuple(line for name, held in items.items() if (line := _does_not_fit(name, held, wanted.get(name))))


def _does_not_fit(name: str, held: int, table: TableConfig | None) -> str:
    if table is None:
        return f'table "{name}" is not in the config: {counted(held, "item")} would be left out' if held else ""
    if held <= table.max_size:
        return ""
    lost = counted(held - table.max_size, "item")
    return f'table "{name}": max_size is {table.max_size} now: {lost} of {held} would be removed, as its remover would'


def _left_by_reverb(folder: Path, found: Survey) -> tuple[str, list[str]]:
    """The entry that the start would keep as the newest generation, "" for none; and why not newer ones."""
    working = WorkingFolder(folder / "reverb", folder / "taken")
    notes: list[str] = []
    for name in working.finished_after(found.as_of):
        try:
            verify_record_files(working.place(name))
            return name, notes
        except CheckpointError as error:
            if not error.is_broken:
                raise
            notes.append(f"{error}; it would be set aside")
    return "", notes
