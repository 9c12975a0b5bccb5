"""The confirmed episodes of pushes in one SQLite file, so that a killed push can resume.

An episode is recorded only when the server has confirmed all its items. Its row names the server process: after a restart of the
server the row proves nothing, and the episode is sent again, which item keys make harmless. It also has the server's name, so that
among many servers the same one gets the episode again.

Only the process that drives a push writes the file. A worker has a ledger in memory, and returns what was confirmed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol

from rlds2reverb.episode import KnownEpisodes, name_of_copies
from rlds2reverb.errors import LedgerError
from rlds2reverb.files import can_be_written
from rlds2reverb.prepare.preparation import Output
from rlds2reverb.text import counted, line_of
from rlds2reverb.versions import FormatVersion, program_version

_APPLICATION_ID = 0x524C3252  # "RL2R"
VERSION = FormatVersion("a ledger", 2, 2, "name another file: all episodes are sent again then, which adds nothing")
"""Version 1 had names of episodes that were not digests of their content, so none of them says anything today."""

_WAIT_SECONDS = 30.0  # for another push that writes to the same file
_WAY_OUT = "name another file, or make room where the disk is full"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS confirmed (
    push TEXT NOT NULL, episode TEXT NOT NULL, server TEXT NOT NULL, items INTEGER NOT NULL,
    PRIMARY KEY (push, episode)
) WITHOUT ROWID
"""
_SCHEMA_OF_SOURCES = """
CREATE TABLE IF NOT EXISTS sources (
    push TEXT NOT NULL, source TEXT NOT NULL, episodes INTEGER, PRIMARY KEY (push, source)
) WITHOUT ROWID
"""
"""The datasets that were pushed, and how many episodes each had; NULL where that was not known. Older ledgers lack it."""

_SCHEMA_OF_RESTORES = """
CREATE TABLE IF NOT EXISTS restores (push TEXT NOT NULL, entry TEXT NOT NULL, PRIMARY KEY (push, entry)) WITHOUT ROWID
"""
"""The restores of deleted episodes whose episodes the push has forgotten, so that it sends them again, once. Older ledgers lack it."""

_SCHEMA_OF_PROGRAM = """
CREATE TABLE IF NOT EXISTS program (version TEXT NOT NULL)
"""
"""The rlds2reverb that has opened the file last; older ledgers lack it."""


def check_ledger_file(path: Path) -> None:
    """Checks a file that is to be a ledger; it need not exist, and is not created."""
    if not can_be_written(path):
        raise LedgerError(f"ledger {path}: cannot be written; expected a file in a folder that is there")
    if not path.exists() or not path.stat().st_size:
        return
    try:  # to write, so that closing it leaves no files of the write-ahead log
        with closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=_WAIT_SECONDS)
        ) as database:
            _check_is_ours(path, database)
    except sqlite3.Error as error:
        raise LedgerError(f"ledger {path}: cannot be used ({_reason(error)}); {_WAY_OUT}") from error


def _reason(error: sqlite3.Error) -> str:
    """SQLite's message; it is the same for a locked file and for a file system without locks."""
    text = line_of(error)
    if "is locked" not in text:
        return text
    return f"{text}: another process has held it for {_WAIT_SECONDS:.0f} s, or its file system has no locks, which a ledger needs"


def _check_is_ours(path: Path, database: sqlite3.Connection) -> None:
    application = database.execute("PRAGMA application_id").fetchone()[0]
    version = database.execute("PRAGMA user_version").fetchone()[0]
    tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not tables:
        return
    if application != _APPLICATION_ID:
        raise LedgerError(f"ledger {path}: another program's file; name another one")
    if path.stat().st_size % database.execute("PRAGMA page_size").fetchone()[0]:  # SQLite would read zeros there
        raise LedgerError(
            f"ledger {path}: ends in the middle, so it was cut off or half copied; copy it again, or name another file"
        )
    if not VERSION.reads(version):
        program = None
        with suppress(sqlite3.Error):  # nothing is known of the tables of another version
            program = database.execute("SELECT version FROM program").fetchone()
        raise LedgerError(VERSION.refusal(f"ledger {path}", version, program[0] if program else ""))


class KnownSources(NamedTuple):
    """What a ledger has of one push, whatever server confirmed it.

    Attributes:
      episodes: confirmed ones.
      is_known: for each name that was asked for, whether it is among them.
      sources: datasets -> their number of episodes, None where it was not known.
    """

    episodes: int
    is_known: list[bool]
    sources: dict[str, int | None]


def known_sources(path: Path, push: str, names: Callable[[], Sequence[str]]) -> KnownSources | None:
    """What a ledger file has of a push; None if it has nothing, or is not there. Changes nothing; `names` is called only if there is something.

    Raises:
      LedgerError: the file cannot be read.
    """
    if not path.exists() or not path.stat().st_size:
        return None
    try:
        with closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=_WAIT_SECONDS)
        ) as database:
            _check_is_ours(path, database)
            count = database.execute("SELECT count(*) FROM confirmed WHERE push = ?", (push,)).fetchone()[0]
            if not count:
                return None
            has = "SELECT count(*) FROM confirmed WHERE push = ? AND episode = ?"
            is_known = [database.execute(has, (push, _value_of(name))).fetchone()[0] > 0 for name in names()]
            sources: dict[str, int | None] = {}
            if database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'sources'").fetchone()[0]:
                rows = database.execute("SELECT source, episodes FROM sources WHERE push = ?", (push,))
                sources = {_text_of(source): episodes for source, episodes in rows}
            return KnownSources(count, is_known, sources)
    except sqlite3.Error as error:
        raise LedgerError(f"ledger {path}: cannot be used ({_reason(error)}); {_WAY_OUT}") from error


class Ledger(Protocol):
    """The confirmed episodes of one output of a push to one server."""

    @property
    def confirmed(self) -> KnownEpisodes:
        """Episode -> items over all tables, of episodes that this server process had confirmed when the ledger was opened."""

    @property
    def here(self) -> KnownEpisodes:
        """Episode -> items over all tables, of episodes that an earlier process of this server had confirmed."""

    def record(self, finished: Iterable[tuple[str, int]]) -> None:
        """Records confirmed episodes (id, items over all tables).

        Raises:
          LedgerError: they cannot be written.
        """


class OutputLedgers:
    """The ledgers of a push to one server, one per output; without ledgers no episode is known."""

    def __init__(self, ledgers: Sequence[Ledger], outputs: Sequence[Output]) -> None:
        self._ledgers, self._outputs = ledgers, outputs

    def __len__(self) -> int:
        return len(self._ledgers)

    def have(self, episode_id: str) -> bool:
        """Whether this server process has confirmed the episode for at least one output."""
        return any(episode_id in ledger.confirmed for ledger in self._ledgers)

    def had(self, episode_id: str) -> bool:
        """Whether an earlier process of this server has confirmed it for at least one output."""
        return any(episode_id in ledger.here for ledger in self._ledgers)

    def lacking(self, episode_id: str) -> list[int]:
        """Numbers of the outputs whose ledgers lack the episode; of all outputs without ledgers."""
        if not self._ledgers:
            return [*range(len(self._outputs))]
        return [number for number, ledger in enumerate(self._ledgers) if episode_id not in ledger.confirmed]

    def items_of(self, episode_id: str) -> dict[int, int]:
        """Number of an output -> items of the episode in each of its tables, of the outputs whose ledgers have it."""
        items = {number: ledger.confirmed.get(episode_id) for number, ledger in enumerate(self._ledgers)}
        tables = [len(output.tables) for output in self._outputs]
        return {number: count // tables[number] for number, count in items.items() if count is not None}

    def items_by_table(self, episode_id: str) -> dict[str, int]:
        """Table -> items of the episode, by the ledgers that have it."""
        items = self.items_of(episode_id)
        return {table: count for number, count in items.items() for table in self._outputs[number].tables}

    def record(self, rows: Mapping[int, Iterable[tuple[str, int]]]) -> None:
        """Records confirmed episodes: number of an output -> (id, items over all its tables). Raises as `Ledger.record`."""
        for number, finished in rows.items():
            self._ledgers[number].record(finished)


class MemoryLedger:
    """A ledger in memory; `rows` has the (episode, items over all tables) recorded since it was made."""

    def __init__(self, confirmed: KnownEpisodes = KnownEpisodes(), here: KnownEpisodes = KnownEpisodes()) -> None:
        self.confirmed, self.here = confirmed, here
        self.rows: list[tuple[str, int]] = []

    def record(self, finished: Iterable[tuple[str, int]]) -> None:
        self.rows += finished


class SqliteLedger:
    """A ledger in a file. Use as a context manager. Reads are thread-safe: they use memory, 16 bytes an episode (`identity.KnownEpisodes`).

    Args:
      path: the file; created when absent. Pushes may share it.
      push: identifies the push by tables, view and options; not by the server's address, which may change.
      server: identifies the server process; "" for a missing server.
      name: of the server, such as its address.
      restores: id of a restore of deleted episodes -> their names; each is forgotten once, whatever server it was on.
    """

    def __init__(
        self,
        path: str | Path,
        push: str,
        server: str,
        name: str = "",
        restores: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> None:
        self._path = Path(path).absolute()
        self._push = push
        self._server = f"{server} {name}".strip()
        self._new = 0
        try:
            self._database = sqlite3.connect(self._path, timeout=_WAIT_SECONDS)
            with _closed_on_error(self._database):
                self._prepare()
                self._forget(restores)
                self._file = self._path.stat()
                self.confirmed = KnownEpisodes.of(self._rows(lambda process, _: process == server))
                self.here = KnownEpisodes.of(self._rows(lambda process, at: process != server and at == name != ""))
                count = "SELECT count(*) FROM confirmed WHERE push = ?"
                self.outdated = self._database.execute(count, (push,)).fetchone()[0] - len(self.confirmed)
        except (sqlite3.Error, OSError) as error:
            reason = _reason(error) if isinstance(error, sqlite3.Error) else error.strerror
            raise LedgerError(f"ledger {self._path}: cannot be used ({reason}); {_WAY_OUT}") from error

    def __enter__(self) -> SqliteLedger:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def __len__(self) -> int:
        return len(self.confirmed) + self._new

    def record(self, finished: Iterable[tuple[str, int]]) -> None:
        """Records confirmed episodes (id, items over all tables) in one transaction."""
        rows = [(self._push, _value_of(episode), self._server, items) for episode, items in finished]
        if not rows:
            return
        try:
            with self._database:
                # Replace: an episode that an earlier process of the server had is stored again, and its row names this process then.
                self._database.executemany("INSERT OR REPLACE INTO confirmed VALUES (?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            if not self._is_there():
                raise self._gone() from error
            raise LedgerError(
                f"ledger {self._path}: cannot be written ({_reason(error)}): {counted(len(rows), 'episode')} that the server has just "
                "confirmed are stored, and not in the ledger. Make room or name another file, and run the same push again: what the "
                "ledger lacks is sent once more, and adds nothing"
            ) from error
        if not self._is_there():  # SQLite writes to a removed file without an error
            raise self._gone()
        self._new += len(rows)

    def note_source(self, source: str, episodes: int | None) -> None:
        """Notes that a dataset is pushed, and how many episodes it has."""
        try:
            with self._database:
                self._database.execute(
                    "INSERT OR REPLACE INTO sources VALUES (?, ?, ?)", (self._push, _value_of(source), episodes)
                )
        except sqlite3.Error as error:
            raise LedgerError(f"ledger {self._path}: cannot be written ({_reason(error)}); {_WAY_OUT}") from error

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(self._path.stat(), self._file)
        except OSError:
            return False

    def _gone(self) -> LedgerError:
        return LedgerError(
            f"ledger {self._path}: was removed or replaced while the push was running, so what it knew is lost. What the server has "
            "confirmed stays stored; leave the file alone and run the same push again: everything is sent once more, and adds nothing"
        )

    def _rows(self, is_wanted: Callable[[str, str], bool]) -> Iterator[tuple[str, int]]:
        query = "SELECT episode, server, items FROM confirmed WHERE push = ?"
        for episode, server, items in self._database.execute(query, (self._push,)):
            process, _, name = server.partition(" ")
            if is_wanted(process, name):
                yield _text_of(episode), items

    def _forget(self, restores: Mapping[str, Collection[str]]) -> None:
        if not restores:
            return
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            done = {
                entry for (entry,) in self._database.execute("SELECT entry FROM restores WHERE push = ?", (self._push,))
            }
            if not (new := restores.keys() - done):
                return
            names = {name for entry in new for name in restores[entry]}
            rows = self._database.execute("SELECT episode FROM confirmed WHERE push = ?", (self._push,))
            outdated = [(self._push, episode) for (episode,) in rows if name_of_copies(_text_of(episode)) in names]
            self._database.executemany("DELETE FROM confirmed WHERE push = ? AND episode = ?", outdated)
            self._database.executemany("INSERT INTO restores VALUES (?, ?)", [(self._push, entry) for entry in new])

    def _prepare(self) -> None:
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")  # of two that find a new file, one waits for the other
            _check_is_ours(self._path, self._database)
            self._database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            self._database.execute(f"PRAGMA user_version = {VERSION.version}")
            self._database.execute(_SCHEMA)
            self._database.execute(_SCHEMA_OF_SOURCES)
            self._database.execute(_SCHEMA_OF_RESTORES)
            self._database.execute(_SCHEMA_OF_PROGRAM)
            if self._database.execute("SELECT version FROM program").fetchall() != [(program_version(),)]:
                self._database.execute("DELETE FROM program")
                self._database.execute("INSERT INTO program VALUES (?)", (program_version(),))
        # Busy in another push, or not possible on this file system: the mode that it has is as safe, only slower.
        with suppress(sqlite3.OperationalError):
            self._database.execute("PRAGMA journal_mode = WAL")


def _value_of(text: str) -> str | bytes:
    """Text as SQLite keeps it: what UTF-8 cannot hold, as a file name of other bytes, as bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def _text_of(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "surrogatepass")


@contextmanager
def _closed_on_error(database: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        database.close()
        raise
