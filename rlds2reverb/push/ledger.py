"""Which episodes of which push are confirmed: one SQLite file, so that a killed push can go on where it was.

An episode is written down only when the server has confirmed all its items. A row also holds which server process
confirmed it: after a restart of the server the row is no longer proof, and the episode is sent again, which item keys
make harmless. And it holds the server's name, so that of several servers the same one gets the episode again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path

from rlds2reverb.errors import LedgerError
from rlds2reverb.files import can_be_written

_APPLICATION_ID = 0x524C3252  # "RL2R"
_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS confirmed (
    push TEXT NOT NULL, episode TEXT NOT NULL, server TEXT NOT NULL, items INTEGER NOT NULL,
    PRIMARY KEY (push, episode)
) WITHOUT ROWID
"""


def check_ledger_file(path: Path) -> None:
    """Checks a file that is to be a ledger. Leaves no trace: the file need not exist, and is not made.

    Raises:
      LedgerError: it is a folder, another program's, of another version, or cannot be written; or its folder is missing.
    """
    if not can_be_written(path):
        raise LedgerError(f"ledger {path}: cannot be written; expected a file in a folder that is there")
    if not path.exists() or not path.stat().st_size:
        return
    try:  # to write, so that closing it leaves no files of the write-ahead log
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=30.0)) as database:
            _check_is_ours(path, database)
    except sqlite3.Error as error:
        raise LedgerError(f"ledger {path}: cannot be used ({error}); name another file") from error


def _check_is_ours(path: Path, database: sqlite3.Connection) -> None:
    """Refuses a database with tables that are no ledger's."""
    application = database.execute("PRAGMA application_id").fetchone()[0]
    version = database.execute("PRAGMA user_version").fetchone()[0]
    tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and (application, version) != (_APPLICATION_ID, _VERSION):
        raise LedgerError(f"ledger {path}: another program's file, or version {version}, not {_VERSION}")


class Ledger:
    """The confirmed episodes of one push. Use as a context manager.

    Args:
      path: the file; created when absent. Several pushes may share it.
      push: what identifies the push (tables, view and options); not the server's address, which may change.
      server: what identifies the server process; "" for none, as of a server that is away.
      name: what the server is called, such as its address.

    Raises:
      LedgerError: the file is no ledger, or of another version, or cannot be written.
    """

    def __init__(self, path: str | Path, push: str, server: str, name: str = "") -> None:
        self._path = Path(path)
        self._push = push
        self._server = f"{server} {name}".strip()
        try:
            self._database = sqlite3.connect(self._path, timeout=30.0)
            rows = self._recorded()
        except sqlite3.Error as error:
            raise LedgerError(f"ledger {self._path}: cannot be used ({error}); name another file") from error
        told = [(episode, *recorded.partition(" ")[::2], items) for episode, recorded, items in rows]
        self._confirmed = {episode: items for episode, process, _, items in told if process == server}
        self._here = {episode for episode, process, where, _ in told if process != server and where == name != ""}
        self.outdated = len(rows) - len(self._confirmed)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def __contains__(self, episode: str) -> bool:
        return episode in self._confirmed

    def __len__(self) -> int:
        """Episodes of this push that this server process has confirmed."""
        return len(self._confirmed)

    @property
    def confirmed(self) -> Mapping[str, int]:
        """Episode -> items over all tables, of those that this server process has confirmed."""
        return self._confirmed

    @property
    def here(self) -> Collection[str]:
        """The episodes that another process of this name confirmed, and nobody else since."""
        return self._here

    def was_here(self, episode: str) -> bool:
        """Whether the episode is one of `here`."""
        return episode in self._here

    def items_in_all_tables(self, episode: str) -> int:
        """Items that a confirmed episode has, over all tables of the push."""
        return self._confirmed[episode]

    def record(self, finished: Iterable[tuple[str, int]]) -> None:
        """Writes down confirmed episodes (id, items over all tables) in one transaction.

        Raises:
          LedgerError: the file cannot be written.
        """
        rows = [(self._push, episode, self._server, items) for episode, items in finished]
        if not rows:
            return
        try:
            with self._database:
                self._database.executemany("INSERT OR REPLACE INTO confirmed VALUES (?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise LedgerError(f"ledger {self._path}: cannot be written ({error})") from error
        self._confirmed.update((episode, items) for _, episode, _, items in rows)

    def _recorded(self) -> list[tuple[str, str, int]]:
        """Episode, server and items of every row of this push; closes the database when it cannot be used."""
        try:
            self._prepare()
            query = "SELECT episode, server, items FROM confirmed WHERE push = ?"
            return self._database.execute(query, (self._push,)).fetchall()
        except BaseException:
            self._database.close()
            raise

    def _prepare(self) -> None:
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")  # of two that find a new file, one waits for the other
            _check_is_ours(self._path, self._database)
            self._database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            self._database.execute(f"PRAGMA user_version = {_VERSION}")
            self._database.execute(_SCHEMA)
        with suppress(sqlite3.OperationalError):  # busy in another push: the mode it has is as safe, only slower
            self._database.execute("PRAGMA journal_mode = WAL")
