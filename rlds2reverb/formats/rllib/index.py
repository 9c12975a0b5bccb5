"""Which files, records and rows an episode of RLlib's offline data has; numbers only, so that a large dataset needs little memory.

`find` finds the files: a folder stands for the JSON, zip and Parquet files in it and below it. They are sorted once, numbers in their
names by value, so that `worker-0_10` comes after `worker-0_9`.

`PolicyRows` describes the rows of one policy in a record: their episodes, and where these begin and end.

`EpisodeIndex` joins them. A *piece* is a run of rows of one episode in one record. Pieces are joined by worker, episode, policy and agent, in
the order of the files, if the later one continues the earlier: `t` follows, and no flag ended the earlier one. Otherwise the same id
names another episode.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, LargeZipFile, ZipFile

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.files import check_regular
from rlds2reverb.formats.buckets import for_library, path_of
from rlds2reverb.formats.dataset_files import DatasetFiles
from rlds2reverb.formats.paths import by_number
from rlds2reverb.formats.recordings import BrokenEpisode
from rlds2reverb.formats.rllib import keys
from rlds2reverb.text import shortened

JSON, PARQUET = "json", "parquet"
_KINDS = {".json": JSON, ".jsonl": JSON, ".zip": JSON, ".parquet": PARQUET}
_PATTERN = re.compile(r"[*?\[]")
_WORKER = re.compile(r"worker-(\d+)|run-(\d+)-\d+")
_RUN = re.compile(r"run-(\d+)-(\d+)")
_MOST_FILES = 10_000_000


@dataclass(frozen=True)
class DataFile:
    """A file of data; `member` is the name inside of a zip file, "" for a plain one."""

    path: Path
    kind: str
    member: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.member}" if self.member else str(self.path)

    @property
    def name(self) -> str:
        return Path(self.member or self.path).name

    @property
    def worker(self) -> str:
        """The number of the worker that wrote it, "" if unknown. Episode ids are unique per worker only."""
        for name in (self.name, self.path.parent.name):
            if match := _WORKER.search(name):
                return match[1] or match[2]
        return ""

    @property
    def run(self) -> tuple[str, int] | None:
        """Folder of the environment and worker, and the number of the writing, from the name that RLlib's runners give a folder."""
        match = _RUN.fullmatch(self.path.parent.name)
        return (f"{self.path.parent.parent}/{match[1]}", int(match[2])) if match else None


def find(paths: Sequence[str], files: DatasetFiles) -> list[DataFile]:
    """The files at paths and patterns, in the order of these, sorted within each. They are pinned in `files`.

    Raises:
      SourceError: there are none, a link leads out of the folder, or there are files of both kinds.
    """
    text = ";".join(paths)
    data_files = [file for path in paths for file in _find_at(path, files)]
    if not data_files:
        raise SourceError(f"{text}: no files of data; expected .json, .zip or .parquet files, or a folder of them")
    files.restrict(file.path for file in data_files)
    if len({file.kind for file in data_files}) > 1:
        raise SourceError(f"{text}: has both JSON and Parquet files; name one kind, as in {text.rstrip('/')}/*.json")
    return [
        member for file in data_files for member in (_list_members(file) if file.path.suffix == ".zip" else (file,))
    ]


def _find_at(text: str, files: DatasetFiles) -> list[DataFile]:
    path = path_of(text)
    if not text:
        raise SourceError("an empty path; expected a file, a folder or a pattern")
    try:
        if path.is_dir():
            path = files.pin(path)
            return [_data_file(below) for below in _sort(path.rglob("*"), path) if below.suffix.lower() in _KINDS]
        if not path.exists() and not _PATTERN.search(text):
            raise SourceError(f"{text}: no such file or folder")
        if path.exists():
            return [_data_file(files.pin(path))]
        fixed = next(parent for parent in path.parents if not _PATTERN.search(str(parent)))
        return [_data_file(files.pin(match)) for match in _sort(fixed.glob(str(path.relative_to(fixed))), fixed)]
    except (OSError, ValueError, NotImplementedError) as error:
        raise SourceError(f"{text}: cannot be read: {shortened(str(error))}") from error


def _sort(paths: Iterable[Path], folder: Path) -> list[Path]:
    kept: list[Path] = []
    for path in paths:
        if not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts) and not path.is_dir():
            kept.append(path)
        if len(kept) > _MOST_FILES:
            raise SourceError(f"{folder}: more than {_MOST_FILES:,} files")
    return sorted(kept, key=lambda path: by_number(str(path)))


def _data_file(path: Path) -> DataFile:
    """Checks that a path is a regular file."""
    check_regular(path)
    return DataFile(path, _KINDS.get(path.suffix.lower(), JSON))


def _list_members(file: DataFile) -> list[DataFile]:
    try:
        with ZipFile(for_library(file.path)) as archive:
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
    except (BadZipFile, LargeZipFile, OSError, ValueError, NotImplementedError, EOFError) as error:
        raise SourceError(f"{file.path}: cannot be read as a zip file: {shortened(str(error))}") from error
    members = [name for name in names if Path(name).suffix.lower() in (".json", ".jsonl")]
    if not members:
        raise SourceError(f"{file.path}: holds no .json files; found {shortened(', '.join(names)) or 'nothing'}")
    if len(set(members)) < len(members):
        raise SourceError(f"{file.path}: two members have the same name")
    return [DataFile(file.path, JSON, name) for name in sorted(members, key=by_number)]


@dataclass(frozen=True, eq=False)
class PolicyRows:
    """Rows of one policy in a record, as the index needs them; None for a column that is not recorded.

    Attributes:
      rows: their number.
      policy: its name; "" if there is just one, or if `modules` has names.
      is_multi_agent: whether other agents may act between its rows, so that `t` has gaps.
      episodes: [rows] ids.
      agents: [rows] ids or numbers.
      t: [rows] numbers of steps.
      ended: [rows] `UNFINISHED`, `TERMINATED` or `TRUNCATED`.
      columns: names of the columns that have a value per row.
      rewards: [rows]; kept to recognise rows that were written twice.
      ends: the first observation and the last next one, as text; "" where that is not needed.
      modules: [rows] names of policies.
    """

    rows: int
    policy: str
    is_multi_agent: bool
    episodes: Array | None
    agents: Array | None
    t: Array | None
    ended: Array
    columns: frozenset[str]
    rewards: Array | None = None
    ends: tuple[str, str] = ("", "")
    modules: Array | None = None

    def runs(self) -> list[tuple[int, int]]:
        """(start, stop) of consecutive rows of one episode."""
        if self.rows == 0:
            return []
        changes = self.ended[:-1] != keys.UNFINISHED
        for ids in (self.episodes, self.agents, self.modules):
            if ids is not None:
                changes = changes | (ids[1:] != ids[:-1])
        if self.t is not None:
            # Where agents act in turn, `t` counts the steps of all of them.
            ahead = self.t[1:] - self.t[:-1]
            changes = changes | (ahead <= 0 if self.is_multi_agent else ahead != 1)
        stops = [*(np.flatnonzero(changes) + 1).tolist(), self.rows]
        return list(zip([0, *stops[:-1]], stops))


Take = Callable[[str], Any]  # RLlib's name of a column -> its values [rows], a list or an array; None if it is missing


def policy_rows(
    take: Take,
    done_means: int,
    *,
    rows: int,
    columns: frozenset[str],
    policy: str = "",
    is_multi_agent: bool = False,
    rewards: Array | None = None,
    ends: tuple[str, str] = ("", ""),
) -> PolicyRows:
    """Rows of one policy, from columns by name; raises `BrokenEpisode` for a column of another length or with invalid values."""
    agents = take(keys.AGENT_ID)
    agents = take(keys.AGENT_INDEX) if agents is None or _has_none(agents) else agents
    ended = np.zeros(rows, np.uint8)
    # Old files have only `dones`, which RLlib itself reads as `terminateds`.
    terminateds, means = take(keys.TERMINATEDS), keys.TERMINATED
    if terminateds is None:
        terminateds, means = take(keys.DONES), done_means
    for values, meaning in ((take(keys.TRUNCATEDS), keys.TRUNCATED), (terminateds, means)):
        if values is not None:
            ended[_flags(values, rows)] = meaning
    return PolicyRows(
        rows,
        policy,
        is_multi_agent,
        episodes=_ids(keys.EPS_ID, take(keys.EPS_ID), rows),
        agents=_ids(keys.AGENT_ID, agents, rows),
        t=_times(take(keys.T), rows),
        ended=ended,
        columns=columns,
        rewards=rewards,
        ends=ends,
        modules=None if policy else _ids(keys.MODULE_ID, take(keys.MODULE_ID), rows),
    )


def _has_none(values: Any) -> bool:
    return len(values) > 0 and all(value is None for value in values)


def _ids(name: str, values: Any, rows: int) -> Array | None:
    if values is None or _has_none(values):
        return None
    _check(name, values, rows)
    column = values if isinstance(values, np.ndarray) else _array(name, values)
    if column.dtype.kind in "iuSU" and column.ndim == 1:
        return column
    return np.asarray([str(value) for value in values])


def _times(values: Any, rows: int) -> Array | None:
    if values is None or _has_none(values):
        return None
    _check(keys.T, values, rows)
    column = np.asarray(_array(keys.T, values)).reshape(rows, -1 if rows else 1)
    if (
        column.shape[1] != 1
        or column.dtype.kind not in "iuf"
        or not np.isfinite(column).all()
        or (np.abs(column.astype(np.float64)) > 1 << 53).any()
    ):
        raise BrokenEpisode(keys.T, f'column "{keys.T}": expected the numbers of steps')
    return column[:, 0].astype(np.int64)


def _flags(values: Any, rows: int) -> Array:
    _check(keys.TERMINATEDS, values, rows)
    column = _array(keys.TERMINATEDS, values)
    if column.dtype.kind not in "biuf" or column.size != rows:
        raise BrokenEpisode(keys.TERMINATEDS, "flags of the ends of episodes: expected true or false per step")
    return np.asarray(column.reshape(rows) != 0)


def _array(name: str, values: Sequence[Any]) -> Array:
    try:
        return np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise BrokenEpisode(name, f'column "{name}": its rows have different shapes') from error


def _check(name: str, values: Any, rows: int) -> None:
    if not isinstance(values, (list, np.ndarray)) or len(values) != rows:
        raise BrokenEpisode(name, f'column "{name}": expected a value for each of {rows:,} rows')


_NOT_RECORDED = -1
_DIGITS = 18  # of a number that int64 holds, whatever they are
_LOOKED_AT = 64  # unfinished episodes of one id that are searched; bounds the time if a file has one id only


@dataclass(frozen=True)
class RecordPlace:
    """A part of a record: number of the file; the line's offset or the row group, and the row in it; number of the part."""

    file: int
    at: int
    row: int = 0
    part: int = 0


@dataclass(frozen=True)
class FoundRows:
    """A part of a record, and where it is."""

    place: RecordPlace
    file: DataFile
    part: PolicyRows


@dataclass(frozen=True)
class Piece:
    """Rows [start, stop) of a part."""

    place: RecordPlace
    start: int
    stop: int


@dataclass
class Chain:
    """Pieces that continue one another: an episode, once the index is closed.

    Attributes:
      number: of the chain.
      ids: episode, policy and agent, as recorded.
      first_t, last_t: numbers of steps.
      ended: `UNFINISHED`, `TERMINATED` or `TRUNCATED`.
      is_multi_agent: see `PolicyRows`.
      agent_index: the number of the agent in the episode of the environment, as RLlib's `agent_index`.
    """

    number: int
    ids: tuple[str, str, str]
    first_t: int
    last_t: int
    ended: int
    is_multi_agent: bool
    agent_index: int = 0

    @property
    def has_sure_seams(self) -> bool:
        """Whether step numbers prove that no steps are missing between its pieces."""
        return self.first_t != _NOT_RECORDED and not self.is_multi_agent

    def continues_at(self, t: int) -> bool:
        if self.ended != keys.UNFINISHED:
            return False
        if t == _NOT_RECORDED or self.last_t == _NOT_RECORDED:
            return t == self.last_t
        return t > self.last_t if self.is_multi_agent else t == self.last_t + 1


class EpisodeIndex:
    """The episodes and their pieces. Filled by `add`, then closed once.

    Attributes:
      episodes: their chains.
      names: of the episodes.
    """

    def __init__(self) -> None:
        columns = ("file", "at", "row", "part", "start", "stop", "t", "chain")
        # `array`, not lists of numbers: a dataset may have millions of pieces, and each number would be an object of 32 bytes.
        self._places: dict[str, array[int]] = {key: array("q") for key in columns}
        self._open: dict[tuple[str, str, str, str], list[Chain]] = {}
        self._agents: dict[tuple[str, str], dict[str, int]] = {}  # episode and worker -> agents that have names
        self.episodes: list[Chain] = []

    def add(self, found_rows: FoundRows) -> None:
        part = found_rows.part
        for start, stop in part.runs():
            t = _NOT_RECORDED if part.t is None else int(part.t[start])
            policy = part.policy if part.policy or part.modules is None else str(part.modules[start])
            agent = "" if part.agents is None else str(part.agents[start])
            if part.episodes is None:
                episode = f"{found_rows.file.name}@{found_rows.place.at}+{start}"
            else:
                episode = str(part.episodes[start])
            key = (episode, policy, agent, found_rows.file.worker)  # ids are unique for one worker only
            chain = self._chain_for(key, t, part.is_multi_agent)
            chain.last_t = _NOT_RECORDED if part.t is None else int(part.t[stop - 1])
            chain.ended = int(part.ended[stop - 1])
            place = found_rows.place
            values = (place.file, place.at, place.row, place.part, start, stop, t, chain.number)
            for column, value in zip(self._places.values(), values):
                column.append(value)

    def _chain_for(self, key: tuple[str, str, str, str], t: int, is_multi_agent: bool) -> Chain:
        chains = self._open.setdefault(key, [])
        for chain in reversed(chains[-_LOOKED_AT:]):
            if chain.continues_at(t):
                return chain
        episode, _, agent, worker = key
        index = self._number_agent(episode, agent, worker)
        chain = Chain(len(self.episodes), key[:3], t, t, keys.UNFINISHED, is_multi_agent, index)
        chains.append(chain)
        self.episodes.append(chain)
        return chain

    def _number_agent(self, episode: str, agent: str, worker: str) -> int:
        """The number of an agent: itself where it is one, else by the order in which the agents of an episode occur, as RLlib counts."""
        if agent.isascii() and agent.isdecimal() and len(agent) <= _DIGITS:
            return int(agent)
        if not agent:
            return 0
        agents = self._agents.setdefault((episode, worker), {})
        return agents.setdefault(agent, len(agents))

    def close(self) -> None:
        """Joins pieces that the files have in another order, and numbers the episodes by their first piece."""
        into = np.arange(len(self.episodes))
        for chains in self._open.values():
            if len(chains) > 1:
                self._join(chains, into)
        self._open.clear()
        self._agents.clear()
        columns = {
            key: np.frombuffer(column, np.int64) if column else np.zeros(0, np.int64)
            for key, column in self._places.items()
        }
        kept, episode = np.unique(into[columns["chain"]], return_inverse=True)
        order = np.lexsort((np.arange(len(episode)), columns["t"], episode))
        self._columns: dict[str, Array] = {key: column[order] for key, column in columns.items()}
        self._bounds = np.searchsorted(episode[order], np.arange(len(kept) + 1))
        self.episodes = [self.episodes[number] for number in kept]
        self.names = list(_name_episodes(self.episodes))
        self._places = {}

    def _join(self, chains: list[Chain], into: Array) -> None:
        """Joins chains of one key in the order of their steps; sets the number of the chain that each of them continues."""
        heads: list[Chain] = []
        for chain in sorted(chains, key=lambda chain: (chain.first_t, chain.number)):
            tried = heads[-_LOOKED_AT:] if chain.first_t != _NOT_RECORDED else []
            before = next((head for head in tried if head.continues_at(chain.first_t)), None)
            if before is None:
                heads.append(chain)
                continue
            into[chain.number] = before.number
            before.last_t, before.ended = chain.last_t, chain.ended

    @property
    def has_t(self) -> bool:
        """Whether every piece has a step number."""
        return bool((self._columns["t"] != _NOT_RECORDED).all())

    def pieces(self, number: int) -> Iterator[Piece]:
        """The pieces of an episode, in the order of its steps."""
        for at in range(int(self._bounds[number]), int(self._bounds[number + 1])):
            place = {key: int(column[at]) for key, column in self._columns.items()}
            file, at_line, row, part = (place[key] for key in ("file", "at", "row", "part"))
            yield Piece(RecordPlace(file, at_line, row, part), place["start"], place["stop"])


def _name_episodes(episodes: list[Chain]) -> Iterator[str]:
    """A name for each episode: id, policy, agent, the first step if it is late, and a number if the name is taken."""
    seen: dict[str, int] = {}
    taken: set[str] = set()
    for chain in episodes:
        episode, policy, agent = chain.ids
        is_alone = policy in ("", "default_policy") and agent in ("", "0")
        name = episode if is_alone else "/".join(filter(None, (episode, policy, agent)))
        name = f"{name}@{chain.first_t}" if chain.first_t > 0 and not chain.is_multi_agent else name
        unique, number = name, seen.get(name, 1)
        while unique in taken:
            number += 1
            unique = f"{name}~{number}"
        seen[name] = number
        taken.add(unique)
        yield unique
