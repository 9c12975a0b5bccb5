"""Which files, records and rows an episode of RLlib's offline data has; numbers only, so that a large dataset needs little memory.

`find` tells the files: a folder stands for the JSON, zip and Parquet files in it and below it. They are sorted once, numbers in their
names by value, so that `worker-0_10` comes after `worker-0_9`.

`PolicyRows` is what a record of a file has of one policy: whose rows they are, and where episodes begin and end in them.

`Index` joins them. A *piece* is a run of rows of one episode in one record. Pieces are joined by worker, episode, policy and agent, in
the order of the files, where the later one goes on from the earlier: `t` follows, and no flag ended the earlier one. Where nothing goes
on, the same id names another episode.

Sources of the names: rllib/policy/sample_batch.py, rllib/core/columns.py, rllib/offline/offline_prelearner.py (`SCHEMA`).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zipfile import BadZipFile, LargeZipFile, ZipFile

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.files import check_regular
from rlds2reverb.formats.paths import by_number, stays_in
from rlds2reverb.formats.recordings import BrokenEpisode
from rlds2reverb.text import shortened

OBS, NEXT_OBS, ACTIONS, REWARDS, INFOS = "obs", "new_obs", "actions", "rewards", "infos"
TERMINATEDS, TRUNCATEDS, DONES = "terminateds", "truncateds", "dones"
EPS_ID, T, AGENT_ID, AGENT_INDEX, MODULE_ID = "eps_id", "t", "agent_id", "agent_index", "module_id"
NEXT_INFOS = "new_infos"
"""Ours: the infos of next observations, which whole episodes have."""

NAMES = (
    OBS,
    NEXT_OBS,
    ACTIONS,
    REWARDS,
    INFOS,
    TERMINATEDS,
    TRUNCATEDS,
    DONES,
    EPS_ID,
    T,
    AGENT_ID,
    AGENT_INDEX,
    MODULE_ID,
)
"""Columns with a meaning for readers; all others are kept unchanged."""
IN_ROWS = frozenset({OBS, NEXT_OBS, ACTIONS, REWARDS, TERMINATEDS, TRUNCATEDS, DONES})
IN_METADATA = frozenset({EPS_ID, AGENT_ID, AGENT_INDEX, MODULE_ID, "type", "count"})


@dataclass(frozen=True)
class Names:
    """RLlib's name -> the dataset's, for those that differ."""

    renamed: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, name: str) -> str:
        """The dataset's name."""
        return self.renamed.get(name, name)

    def standard(self, name: str) -> str:
        """RLlib's name of a column of the dataset; "" if the column has a name of RLlib's but another meaning."""
        known = next((known for known, theirs in self.renamed.items() if theirs == name), name)
        return "" if known == name and name in self.renamed and self.renamed[name] != name else known

    @staticmethod
    def parsed(text: str) -> Names:
        """Reads "obs:o;actions:a".

        Raises:
          ValueError: a name is none of RLlib's, or stands there twice.
        """
        pairs = [one.partition(":") for one in text.split(";")]
        renamed = {known: theirs for known, _, theirs in pairs}
        odd = [known for known, colon, theirs in pairs if known not in NAMES or not colon or not theirs]
        if odd or len(renamed) < len(pairs) or len(set(renamed.values())) < len(pairs):
            raise ValueError(f"expected NAME:COLUMN;..., each once, where NAME is one of {', '.join(NAMES)}")
        return Names(MappingProxyType(renamed))


JSON, PARQUET = "json", "parquet"
_KINDS = {".json": JSON, ".jsonl": JSON, ".zip": JSON, ".parquet": PARQUET}
_PATTERN = re.compile(r"[*?\[]")
_WORKER = re.compile(r"worker-(\d+)|run-(\d+)-\d+")
_RUN = re.compile(r"run-(\d+)-(\d+)")
_MOST_FILES = 10_000_000


@dataclass(frozen=True)
class DataFile:
    """A file of data.

    Attributes:
      path: on the disk.
      kind: `JSON` or `PARQUET`.
      member: of a zip file, the name inside; "" for a plain one.
    """

    path: Path
    kind: str
    member: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.member}" if self.member else str(self.path)

    @property
    def name(self) -> str:
        """Without folders."""
        return Path(self.member or self.path).name

    @property
    def worker(self) -> str:
        """The number of the worker that wrote it, "" if unknown. Ids of episodes are unique for one worker only."""
        for name in (self.name, self.path.parent.name):
            if found := _WORKER.search(name):
                return found[1] or found[2]
        return ""

    @property
    def run(self) -> tuple[str, int] | None:
        """Folder of the environment and worker, and the number of the writing, as RLlib's runners name folders of Parquet files."""
        found = _RUN.fullmatch(self.path.parent.name)
        return (f"{self.path.parent.parent}/{found[1]}", int(found[2])) if found else None


def find(paths: Sequence[str]) -> list[DataFile]:
    """The files of data, sorted; those of several paths as these are given.

    Args:
      paths: paths and patterns.

    Raises:
      SourceError: nothing is there, a link leads out of the folder, or there are files of both kinds.
    """
    text = ";".join(paths)
    found = [file for one in paths for file in _of(one)]
    if not found:
        raise SourceError(f"{text}: no files of data; expected .json, .zip or .parquet files, or a folder of them")
    if len({file.kind for file in found}) > 1:
        raise SourceError(f"{text}: has both JSON and Parquet files; name one kind, as in {text.rstrip('/')}/*.json")
    return [member for file in found for member in (_members(file) if file.path.suffix == ".zip" else (file,))]


def _of(text: str) -> list[DataFile]:
    path = Path(text).expanduser()
    if not text:
        raise SourceError("an empty path; expected a file, a folder or a pattern")
    try:
        if path.is_dir():
            return [_file(one, path) for one in _sorted(path.rglob("*"), path) if one.suffix.lower() in _KINDS]
        if not path.exists() and not _PATTERN.search(text):
            raise SourceError(f"{text}: no such file or folder")
        if path.exists():
            return [_file(path, None)]
        fixed = _fixed_part(path)
        return [_file(one, None) for one in _sorted(fixed.glob(str(path.relative_to(fixed))), fixed)]
    except (OSError, ValueError, NotImplementedError) as error:
        raise SourceError(f"{text}: cannot be read: {shortened(str(error))}") from error


def _fixed_part(path: Path) -> Path:
    """The path up to the first folder with a pattern."""
    fixed = Path(path.anchor or ".")
    for part in path.parts[1:] if path.anchor else path.parts:
        if _PATTERN.search(part):
            break
        fixed = fixed / part
    return fixed


def _sorted(paths: object, folder: Path) -> list[Path]:
    kept = []
    for path in paths:  # type: ignore[attr-defined]
        if not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts) and not path.is_dir():
            kept.append(path)
        if len(kept) > _MOST_FILES:
            raise SourceError(f"{folder}: more than {_MOST_FILES:,} files")
    return sorted(kept, key=lambda path: by_number(str(path)))


def _file(path: Path, folder: Path | None) -> DataFile:
    """Checks that a path is a regular file inside the folder in which it was found."""
    check_regular(path)
    if folder is not None and not stays_in(folder, path):
        raise SourceError(f"{path}: a link that leads out of the folder; name the file itself to read it")
    return DataFile(path, _KINDS.get(path.suffix.lower(), JSON))


def _members(file: DataFile) -> list[DataFile]:
    try:
        with ZipFile(file.path) as archive:
            names = [one.filename for one in archive.infolist() if not one.is_dir()]
    except (BadZipFile, LargeZipFile, OSError, ValueError, NotImplementedError, EOFError) as error:
        raise SourceError(f"{file.path}: cannot be read as a zip file: {shortened(str(error))}") from error
    wanted = [name for name in names if Path(name).suffix.lower() in (".json", ".jsonl")]
    if not wanted:
        raise SourceError(f"{file.path}: holds no .json files; found {shortened(', '.join(names)) or 'nothing'}")
    if len(set(wanted)) < len(wanted):
        raise SourceError(f"{file.path}: two members have the same name")
    return [DataFile(file.path, JSON, name) for name in sorted(wanted, key=by_number)]


UNFINISHED, TERMINATED, TRUNCATED = 0, 1, 2
ENDINGS = (b"unfinished", b"terminated", b"truncated")


@dataclass(frozen=True, eq=False)
class PolicyRows:
    """Rows of one policy in a record: what the index needs to know.

    Attributes:
      rows: how many.
      policy: its name; "" if there is just one, or if `modules` has names.
      is_multi_agent: whether other agents may act between its rows, so that `t` has gaps.
      episodes: [rows] ids, or None if none are recorded.
      agents: [rows] ids or numbers, or None.
      t: [rows] numbers of steps, or None.
      ended: [rows] `UNFINISHED`, `TERMINATED` or `TRUNCATED`.
      columns: names of those that have a value per row.
      rewards: [rows] or None; to tell rows that were written twice.
      ends: the first observation and the last next one, as text; "" where that is not needed.
      modules: [rows] names of policies, or None.
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

    def policy_of(self, row: int) -> str:
        """The name of the policy that acted in a row; "" if there is just one."""
        return self.policy if self.policy or self.modules is None else str(self.modules[row])

    def runs(self) -> list[tuple[int, int]]:
        """Where one episode's rows follow one another: (start, stop)."""
        if self.rows == 0:
            return []
        changes = self.ended[:-1] != UNFINISHED
        for ids in (self.episodes, self.agents, self.modules):
            if ids is not None:
                changes = changes | (ids[1:] != ids[:-1])
        if self.t is not None:
            ahead = self.t[1:] - self.t[:-1]
            changes = changes | (ahead <= 0 if self.is_multi_agent else ahead != 1)
        stops = [*(np.flatnonzero(changes) + 1).tolist(), self.rows]
        return list(zip([0, *stops[:-1]], stops))


Take = Callable[[str], Any]
"""RLlib's name of a column -> its values [rows], a list or an array; None if it is missing."""


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
    """Rows of one policy, from recorded columns.

    Args:
      take: gives a column by its name.
      done_means: what `dones` mean without terminateds.
      rows, columns, policy, is_multi_agent, rewards, ends: see `PolicyRows`.

    Raises:
      BrokenEpisode: a column is not what it should be.
    """
    agents = take(AGENT_ID)
    agents = take(AGENT_INDEX) if agents is None or _nothing(agents) else agents
    return PolicyRows(
        rows,
        policy,
        is_multi_agent,
        episodes=_ids(EPS_ID, take(EPS_ID), rows),
        agents=_ids(AGENT_ID, agents, rows),
        t=_times(take(T), rows),
        ended=_ended(take, rows, done_means),
        columns=columns,
        rewards=rewards,
        ends=ends,
        modules=None if policy else _ids(MODULE_ID, take(MODULE_ID), rows),
    )


def _nothing(values: Any) -> bool:
    return len(values) > 0 and all(one is None for one in values)


def _ids(name: str, values: Any, rows: int) -> Array | None:
    if values is None or _nothing(values):
        return None
    _check(name, values, rows)
    column = values if isinstance(values, np.ndarray) else _array(name, values)
    if column.dtype.kind in "iuSU" and column.ndim == 1:
        return column
    return np.asarray([str(one) for one in values])


def _times(values: Any, rows: int) -> Array | None:
    if values is None or _nothing(values):
        return None
    _check(T, values, rows)
    column = np.asarray(_array(T, values)).reshape(rows, -1 if rows else 1)
    if (
        column.shape[1] != 1
        or column.dtype.kind not in "iuf"
        or not np.isfinite(column).all()
        or (np.abs(column.astype(np.float64)) > 1 << 53).any()
    ):
        raise BrokenEpisode(T, f'column "{T}": expected the numbers of steps')
    return column[:, 0].astype(np.int64)


def _ended(take: Take, rows: int, done_means: int) -> Array:
    ended = np.zeros(rows, np.uint8)
    terminateds = take(TERMINATEDS)
    means = TERMINATED
    if terminateds is None:
        terminateds, means = take(DONES), done_means
    for values, meaning in ((take(TRUNCATEDS), TRUNCATED), (terminateds, means)):
        if values is not None:
            ended[_flags(values, rows)] = meaning
    return ended


def _flags(values: Any, rows: int) -> Array:
    _check(TERMINATEDS, values, rows)
    column = _array(TERMINATEDS, values)
    if column.dtype.kind not in "biuf" or column.size != rows:
        raise BrokenEpisode(TERMINATEDS, "flags of the ends of episodes: expected true or false per step")
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
_LOOKED_AT = 64
"""How many unfinished episodes of one id are searched; bounds the time if a file has one id only."""


@dataclass(frozen=True)
class RecordPlace:
    """A part of a record: number of the file, where in it, number of the part."""

    file: int
    at: int
    part: int


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
class _Chain:
    """Pieces that continue one another."""

    number: int
    first_t: int
    last_t: int
    ended: int
    is_multi_agent: bool

    def continues_at(self, t: int) -> bool:
        """Whether a piece that begins at `t` may continue this chain."""
        if self.ended != UNFINISHED:
            return False
        if t == _NOT_RECORDED or self.last_t == _NOT_RECORDED:
            return t == self.last_t
        return t > self.last_t if self.is_multi_agent else t == self.last_t + 1


class Index:
    """The episodes and their pieces. Filled by `add`, then closed once."""

    def __init__(self) -> None:
        self._places: dict[str, array[int]] = {
            key: array("q") for key in ("file", "at", "part", "start", "stop", "t", "chain")
        }
        self._chains: list[_Chain] = []
        self._open: dict[tuple[str, ...], list[_Chain]] = {}
        self._ids: list[tuple[str, str, str]] = []

    def add(self, found: FoundRows) -> None:
        """Adds the pieces of a part."""
        part = found.part
        for start, stop in part.runs():
            t = _NOT_RECORDED if part.t is None else int(part.t[start])
            key = self._key(found, start)
            chain = self._chain_for(key, t, part.is_multi_agent)
            chain.last_t = _NOT_RECORDED if part.t is None else int(part.t[stop - 1])
            chain.ended = int(part.ended[stop - 1])
            values = (found.place.file, found.place.at, found.place.part, start, stop, t, chain.number)
            for column, value in zip(self._places.values(), values):
                column.append(value)

    def _key(self, found: FoundRows, start: int) -> tuple[str, ...]:
        part, policy = found.part, found.part.policy_of(start)
        agent = "" if part.agents is None else str(part.agents[start])
        if part.episodes is None:
            return f"{found.file.name}@{found.place.at}+{start}", policy, agent, found.file.worker
        return str(part.episodes[start]), policy, agent, found.file.worker

    def _chain_for(self, key: tuple[str, ...], t: int, is_multi_agent: bool) -> _Chain:
        chains = self._open.setdefault(key, [])
        for chain in reversed(chains[-_LOOKED_AT:]):
            if chain.continues_at(t):
                return chain
        chain = _Chain(len(self._chains), t, t, UNFINISHED, is_multi_agent)
        chains.append(chain)
        self._chains.append(chain)
        self._ids.append((key[0], key[1], key[2]))
        return chain

    def close(self) -> None:
        """Joins pieces that the files have in another order, and numbers the episodes by their first piece."""
        into = np.arange(len(self._chains))
        for chains in self._open.values():
            if len(chains) > 1:
                self._join(chains, into)
        self._open.clear()
        columns = {
            key: np.frombuffer(column, np.int64) if column else np.zeros(0, np.int64)
            for key, column in self._places.items()
        }
        kept, episode = np.unique(into[columns["chain"]], return_inverse=True)
        order = np.lexsort((np.arange(len(episode)), columns["t"], episode))
        self._columns: dict[str, Array] = {key: column[order] for key, column in columns.items()}
        self._bounds = np.searchsorted(episode[order], np.arange(len(kept) + 1))
        self._chains = [self._chains[number] for number in kept]
        self._ids = [self._ids[number] for number in kept]
        self.names = list(_names(self._ids, [0 if chain.is_multi_agent else chain.first_t for chain in self._chains]))
        self._places = {}

    def _join(self, chains: list[_Chain], into: Array) -> None:
        waiting = sorted(chains, key=lambda chain: (chain.first_t, chain.number))
        heads: list[_Chain] = []
        for chain in waiting:
            before = next(
                (
                    head
                    for head in heads[-_LOOKED_AT:]
                    if chain.first_t != _NOT_RECORDED and head.continues_at(chain.first_t)
                ),
                None,
            )
            if before is None:
                heads.append(chain)
                continue
            into[chain.number] = before.number
            before.last_t, before.ended = chain.last_t, chain.ended

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @property
    def has_t(self) -> bool:
        """Whether every piece has a step number."""
        return bool((self._columns["t"] != _NOT_RECORDED).all())

    def pieces(self, number: int) -> Iterator[Piece]:
        """The pieces of an episode, in the order of its steps."""
        for at in range(int(self._bounds[number]), int(self._bounds[number + 1])):
            one = {key: int(column[at]) for key, column in self._columns.items()}
            yield Piece(RecordPlace(one["file"], one["at"], one["part"]), one["start"], one["stop"])

    def ids(self, number: int) -> tuple[str, str, str]:
        """Episode, policy and agent, as recorded."""
        return self._ids[number]

    def first_t(self, number: int) -> int:
        """The number of its first step."""
        return self._chains[number].first_t

    def has_sure_seams(self, number: int) -> bool:
        """Whether step numbers prove that no steps are missing between its pieces."""
        chain = self._chains[number]
        return chain.first_t != _NOT_RECORDED and not chain.is_multi_agent

    def ended(self, number: int) -> int:
        """Its end: `UNFINISHED`, `TERMINATED` or `TRUNCATED`."""
        return self._chains[number].ended


def _names(ids: list[tuple[str, str, str]], first: list[int]) -> Iterator[str]:
    """A name for each episode: id, policy, agent, the first step if it is late, and a number if the name is taken."""
    seen: dict[str, int] = {}
    taken: set[str] = set()
    for (episode, policy, agent), t in zip(ids, first):
        is_alone = policy in ("", "default_policy") and agent in ("", "0")
        name = episode if is_alone else "/".join(one for one in (episode, policy, agent) if one)
        name = f"{name}@{t}" if t > 0 else name
        made, number = name, seen.get(name, 1)
        while made in taken:
            number += 1
            made = f"{name}~{number}"
        seen[name] = number
        taken.add(made)
        yield made
