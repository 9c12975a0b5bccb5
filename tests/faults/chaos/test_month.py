"""A month of service in an hour: a set that grows is pushed, episodes are deleted and let in again, tables are migrated, the service is
stopped, killed, upgraded, rolled back and started from an older state, and learners sample all the time. Each day every table must hold what
the model says, and what the journal says, and no learner may have got anything else."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.faults.chaos.month import CAST, TABLES, Month, Numbers, Shelf, State, on_tables, read_note, write_note
from tests.support.forks import Forks
from tests.support.processes import wait_until
from tests.support.server_running import get
from tests.support.versions import make_environment

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(7200)]

DAYS = 30
STEPS = 40
"""Of each day, at full size."""

GROWTH = 20
"""Episodes that each day brings, at full size."""

EVERY_SECONDS = 2.0
"""Of the service's schedule."""

MOST_DELETED = 0.4
"""Share of the episodes above which some are let in again."""

NOTHING_CHOSEN = "no episode was chosen"


def test_a_month_of_service(forks: Forks, tmp_path: Path, rng: np.random.Generator, size: float) -> None:
    make_environment(tmp_path / "new", "0.2.0")
    began = time.monotonic()
    with Month(forks, tmp_path, rng, EVERY_SECONDS) as month:
        month.data.grow(5)
        month.start()
        for table in month.service.tables:
            month.add_learner(table)
        for day in range(1, DAYS + 1):
            month.data.grow(max(3, round(GROWTH * size)))
            print(f"day {day}, {time.monotonic() - began:.0f} s, {len(month.data.names)} episodes")
            for name in rng.choice(list(DRAWN), max(1, round(STEPS * size)), p=DRAWN_SHARES):
                print(f" {name}")
                DRAWN[str(name)](month)
            if day in PLANNED:
                print(f" {PLANNED[day].__name__}")
                PLANNED[day](month)
            kills = month.counts.killed_servers
            push_all(month, faults=2)
            if (
                month.counts.killed_servers > kills
            ):  # a checkpoint may have the items of a push, and not yet the end of its entry
                push_all(month, faults=0)
            month.check()
        month.close_learners()
        month.stop()
        month.note_saved()
        month.service.by_each = {"sampler": "fifo", "max_times_sampled": 1}
        month.start()
        month.take_all()
    print(f"{month.service.starts} starts, {month.counts}")
    assert month.counts.samples
    assert month.counts.killed_clients
    assert month.counts.killed_servers


# Pushes.


def push_all(month: Month, faults: int = 1, command: Path | None = None) -> None:
    """The whole set, into every table."""
    _push(month, month.data.numbers, month.data.source, faults, command)


def push_slice(month: Month) -> None:
    """Some episodes of the set, into every table."""
    start, stop = _slice(month)
    _push(month, frozenset(range(start, stop)), f"{month.data.source}?episodes={start}:{stop}", 1)


def _push(month: Month, numbers: Numbers, source: str, faults: int, command: Path | None = None) -> None:
    plain = [table for table in month.service.tables if not TABLES[table].is_cast]
    into = [word for table in plain for word in ("--into", f"{table}={TABLES[table].view}")]
    _push_into(month, plain, numbers, ["push", source, *into], faults, command)
    if "slim" in month.service.tables:
        words = ["push", source, "--table", "slim", "--view", TABLES["slim"].view, "--transform", CAST]
        _push_into(month, ["slim"], numbers, words, faults, command)


def _push_into(
    month: Month, tables: list[str], numbers: Numbers, words: list[str], faults: int, command: Path | None
) -> None:
    words += ["--note", write_note(numbers), "--quiet"]
    if month.rng.integers(2):
        words += ["--ledger", str(month.ledger)]
    report = month.do(on_tables(tables, lambda shelf: shelf.pushed(numbers)), words, faults=faults, command=command)
    month.counts.pushes += 1
    if all(month.before[table].is_certain for table in tables):
        new = sum(
            month.data.count_items(table, month.state[table].whole - month.before[table].whole) for table in tables
        )
        assert report["items_new"] == new, (report, new)
        month.counts.new_items += new


def _slice(month: Month) -> tuple[int, int]:
    start = int(month.rng.integers(len(month.data.names)))
    return start, min(len(month.data.names), start + int(month.rng.integers(1, 5)))


# Deletes.


def delete_or_let_in(month: Month) -> None:
    """Deletes episodes, chosen in one of the ways; lets some in again when many are out, or by chance."""
    out = Shelf().out.union(*(shelf.out for shelf in month.state.values()))
    if out and (len(out) > MOST_DELETED * len(month.data.names) or month.rng.integers(4) == 0):
        _let_in(month, out)
        return
    ways = (_choose_by_number, _choose_by_length, _choose_by_name, _choose_by_push)
    ways[int(month.rng.integers(len(ways)))](month)


def _choose_by_number(month: Month) -> None:
    start, stop = _slice(month)
    source = f"{month.data.source}?episodes={start}:{stop}"
    _delete(month, _some_tables(month), [source], frozenset(range(start, stop)))


def _choose_by_length(month: Month) -> None:
    length = int(month.rng.choice(month.data.lengths))
    numbers = frozenset(number for number, rows in enumerate(month.data.lengths) if rows == length)
    _delete(month, _some_tables(month), [month.data.source, "--where", f"length == {length}"], numbers)


def _choose_by_name(month: Month) -> None:
    numbers = frozenset(map(int, month.rng.integers(len(month.data.names), size=int(month.rng.integers(1, 4)))))
    _delete(month, [], _episodes(month, numbers), numbers)


def _choose_by_push(month: Month) -> None:
    entries = [
        entry
        for entry in month.ask("journal")["entries"]
        if (entry["kind"], entry["state"]) == ("push", "done") and 0 < len(read_note(entry["note"])) < 6
    ]
    if entries:
        entry = entries[int(month.rng.integers(len(entries)))]
        _delete(month, [], ["--push", entry["id"]], None, read_note(entry["note"]))


def _delete(
    month: Month, tables: list[str], words: list[str], numbers: Numbers | None, among: Numbers | None = None
) -> None:
    """Looks first which episodes it would be, then deletes them.

    Args:
      tables: of a dataset's episodes; [] for all.
      numbers: that it must be; None for some of `among`.
    """
    by_source = [word for table in tables for word in ("--into", f"{table}={TABLES[table].view}")]
    if tables == ["slim"]:
        by_source += ["--transform", CAST]
    planned = month.ask("delete", *words, *by_source, "--dry-run", or_error="" if among is None else NOTHING_CHOSEN)
    if not planned:
        return
    chosen = month.data.numbers_of(planned["names"])
    assert chosen == numbers if among is None else chosen <= among, (words, chosen, numbers, among)
    left = tables or month.service.tables
    effect = on_tables(left, lambda shelf: shelf.deleted(chosen))
    note = ["--note", write_note(chosen)]
    by_name = [*_episodes(month, chosen), *(word for table in tables for word in ("--table", table))]
    report = month.do(effect, ["delete", *words, *by_source, *note], ["delete", *by_name, *note])
    assert not report["unsaved"], report
    assert month.data.numbers_of(report["names"]) == chosen
    for table in left:
        if month.before[table].is_certain:
            gone = month.data.count_items(table, month.before[table].whole & chosen)
            assert report["items"][table] == gone, (report, table, gone)
    month.note_saved()
    month.counts.deletes += 1


def _let_in(month: Month, out: Numbers) -> None:
    """By names, or by the delete that took them out."""
    deletes = [
        entry
        for entry in month.ask("journal")["entries"]
        if (entry["kind"], entry["state"]) == ("delete", "done") and read_note(entry["note"])
    ]
    if deletes and month.rng.integers(2):
        entry = deletes[int(month.rng.integers(len(deletes)))]
        tables, words = entry["tables"], ["--push", entry["id"]]
        numbers = read_note(entry["note"]) & Shelf().out.union(*(month.state[table].out for table in tables))
    else:
        chosen = month.rng.choice(sorted(out), int(month.rng.integers(1, len(out) + 1)), replace=False)
        numbers, tables = frozenset(map(int, chosen)), month.service.tables
        words = _episodes(month, numbers)
    if not numbers:
        return
    report = month.do(
        on_tables(tables, lambda shelf: shelf.let_in(numbers)),
        ["delete", "--restore", *words, "--note", write_note(numbers)],
        done_already=NOTHING_CHOSEN,
    )
    if report:
        assert month.data.numbers_of(report["names"]) == numbers, (report, numbers)
        assert not report["unsaved"], report
        month.note_saved()
    month.counts.restores += 1


def _episodes(month: Month, numbers: Numbers) -> list[str]:
    return [word for number in sorted(numbers) for word in ("--episode", month.data.names[number])]


def _some_tables(month: Month) -> list[str]:
    """That one push fills."""
    plain = [table for table in month.service.tables if not TABLES[table].is_cast]
    if len(plain) < len(month.service.tables) and month.rng.integers(3) == 0:
        return ["slim"]
    return list(map(str, month.rng.choice(plain, int(month.rng.integers(1, len(plain) + 1)), replace=False)))


# The service.


def checkpoint(month: Month) -> None:
    """By the command; the service may be killed in it."""
    month.do(lambda state: state, ["checkpoint", "--http", month.service.url])
    month.note_saved()


def restart(month: Month) -> None:
    """By SIGTERM, or after a crash."""
    _end(month)
    month.start()


def rest(month: Month) -> None:
    """Nothing but samples: no checkpoint is written however often one is due."""
    assert get(f"{month.service.url}/checkpoint", "POST")[0] == 200
    month.note_saved()
    before, due = month.service.generations(), month.service.not_needed()
    goal = due + int(month.rng.integers(2, 5))
    wait_until(lambda: month.service.not_needed() >= goal, 120)
    assert month.service.generations() == before
    month.counts.rests += 1


def go_back(month: Month) -> None:
    """Starts from an older checkpoint: all that came after it is undone, deletes as well."""
    choices = [number for number in month.service.generations() if number in month.exact]
    number = choices[int(month.rng.integers(len(choices)))]
    _end(month)
    month.start("--start-from", str(number), state=month.exact[number])
    month.counts.older_states += 1


def upgrade(month: Month) -> None:
    """To another version: of the service, and of the one that pushes next."""
    command = month.service.checkpoints.parent / "new" / "bin" / "rlds2reverb"
    month.stop()
    month.note_saved()
    month.service.command = command
    month.start()
    push_all(month, command=command)


def roll_back(month: Month) -> None:
    """To the version of before."""
    month.stop()
    month.note_saved()
    month.service.command = None
    month.start()


def _end(month: Month) -> None:
    if month.rng.integers(2):
        month.kill()
    else:
        month.stop()
        month.note_saved()


# Migrations.


def migrate_running(month: Month) -> None:
    """From the running table, by another view."""
    _prepare_migration(month, "windows")
    _migrate(month, "windows", "replay")


def migrate_checkpoint(month: Month) -> None:
    """From a copy of a checkpoint, into another dtype."""
    _prepare_migration(month, "slim")
    copy = month.service.checkpoints.parent / "copy"
    shutil.copytree(month.service.path_of(month.service.generations()[-1]), copy)
    _migrate(month, "slim", f"{copy}?table=replay", "--transform", CAST)


def _prepare_migration(month: Month, table: str) -> None:
    """A restart adds the new table to the config."""
    push_all(month)
    month.stop()
    month.note_saved()
    month.service.tables.append(table)
    month.start()


def _migrate(month: Month, table: str, old: str, *words: str) -> None:
    shelf = month.state["replay"]
    assert shelf.is_certain

    def effect(state: State) -> State:
        return {**state, table: state[table].deleted(shelf.out).pushed(shelf.whole)}

    view = ("--view", TABLES[table].view)
    report = month.do(
        effect, ["migrate", old, "--table", table, *view, *words, "--note", "migrate", "--quiet"], faults=3
    )
    assert report["items"] == {table: month.data.count_items(table, shelf.whole)}, report
    month.note_saved()  # it has read the new table back, through a checkpoint
    month.counts.migrations += 1
    month.add_learner(table)


PLANNED: dict[int, Callable[[Month], None]] = {
    5: go_back,
    8: migrate_running,
    12: upgrade,
    15: roll_back,
    18: rest,
    20: migrate_checkpoint,
    24: go_back,
    28: rest,
}
"""Day -> what is done on it, beside what is drawn."""

DRAWN: dict[str, Callable[[Month], None]] = {
    "push_all": push_all,
    "push_slice": push_slice,
    "delete_or_let_in": delete_or_let_in,
    "checkpoint": checkpoint,
    "restart": restart,
    "rest": rest,
}
DRAWN_SHARES = (0.15, 0.2, 0.4, 0.08, 0.15, 0.02)
