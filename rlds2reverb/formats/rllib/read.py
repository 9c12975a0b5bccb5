"""RLlib's offline data as a source: `rllib:PATH[?OPTIONS]`. An episode for each id, agent and policy.

| recorded | RLDS |
| --- | --- |
| `obs` [T], and the last `new_obs` | observation, T + 1 rows |
| `obs` [T] alone | see `formats.rows`: `last_step` |
| `actions`, `rewards` | action, reward |
| `terminateds`, or `dones` | is_terminal |
| what has a value per step | a step column of that name; `infos` as text |
| `eps_id`, agent, policy, the first `t`, how it ended | metadata |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from itertools import pairwise
from typing import Any, cast

import numpy as np

from rlds2reverb.episode import ACTION, METADATA, OBSERVATION, REWARD, STEP_FIELDS, Array, Notice, note
from rlds2reverb.errors import SourceError
from rlds2reverb.extras import Lazily, needing
from rlds2reverb.formats.options import Parse, one_of, unescaped, words
from rlds2reverb.formats.recordings import BrokenEpisode, Recording, Recordings, asked
from rlds2reverb.formats.rllib.index import (
    ACTIONS,
    ENDINGS,
    IN_METADATA,
    IN_ROWS,
    INFOS,
    NEXT_INFOS,
    NEXT_OBS,
    OBS,
    PARQUET,
    REWARDS,
    TERMINATED,
    TRUNCATED,
    UNFINISHED,
    Index,
    Names,
    Piece,
    find,
)
from rlds2reverb.formats.rllib.records import JsonLines, Reader, Settings, Store
from rlds2reverb.formats.rllib.values import Leaves
from rlds2reverb.formats.rows import LAST_STEPS, MARK, REPEAT, differing, exactly, steps, with_last
from rlds2reverb.formats.source import Source
from rlds2reverb.specs import ArraySpec, Nest, column_spec, nested
from rlds2reverb.text import counted, shortened

_open_tables = Lazily("rlds2reverb.formats.rllib.tables:open_tables")

OPTIONS: dict[str, Parse] = {
    "columns": Names.parsed,
    "last_step": words(*LAST_STEPS),
    "float": one_of(**{"32": np.dtype(np.float32), "64": np.dtype(np.float64)}),
    "done_means": one_of(terminal=TERMINATED, truncation=TRUNCATED),
    "others": one_of(keep=True, drop=False),
}
"""Options beside those of every format, and how each is read."""


def open_rllib(text: str) -> Source:
    """Opens RLlib's data by the text after "rllib:".

    Raises:
      SourceError: no such files, they are damaged or none of RLlib's, or an option makes no sense.
    """
    wanted = asked("rllib", text, OPTIONS)
    given = wanted.renamed({"columns": "names", "float": "floats", "others": "keeps_others"})
    of_rows = {name: given.pop(name) for name in ("last_step", "keeps_others") if name in given}
    store = _store(wanted.place, Settings(**given))
    return wanted.source_of(RllibRecordings(store, wanted.name, **of_rows))


def _store(path: str, settings: Settings) -> Store:
    files = find([unescaped(one.strip()) for one in path.split(";")])
    if files[0].kind != PARQUET:
        return JsonLines(files, settings)
    with needing("reading RLlib's Parquet files", "parquet", SourceError):
        return cast("Store", _open_tables(files, settings))


_TRIED_FOR_SPEC = 100
_ASKED_FOR = frozenset({OBS, NEXT_OBS, ACTIONS, REWARDS})
_TAKEN = frozenset({*IN_ROWS, *IN_METADATA, *STEP_FIELDS, METADATA, ""})

_FILLED = {
    MARK: "the last row of each is its last step, whose action and reward mean nothing (last_step=mark)",
    REPEAT: "the last observation stands there twice, so that no action is lost (last_step=repeat)",
}


class RllibRecordings(Recordings):
    """The episodes of a dataset of RLlib.

    Args:
      store: its files.
      name: for messages.
      last_step: "repeat" or "mark", where the last next observation is not recorded; see `formats.rows`.
      keeps_others: whether columns that RLDS does not know become step columns.
    """

    def __init__(self, store: Store, name: str, last_step: str = REPEAT, keeps_others: bool = True) -> None:
        self.name, self._store, self._last_step = name, store, last_step
        self._index = Index()
        self._without_next = self._differing = 0
        self._counts: dict[str, int] = {}
        """How many records have a column."""
        self._records = 0
        self._columns = self._indexed(keeps_others)
        self._index.close()
        self._others: list[str] = []
        self._partial = _others(self._counts.keys() - self._columns) if keeps_others else []
        self._spec = self._found_spec(_others(self._columns) if keeps_others else [])

    def _indexed(self, keeps_others: bool) -> frozenset[str]:
        """Indexes every piece. Returns the columns that all records have, and the rewards if any record has them."""
        for found in self._store.scan(lambda name: name in _ASKED_FOR or (keeps_others and _is_other(name))):
            columns = found.part.columns
            if not found.part.rows:
                self._store.troubles.empty += 1
                continue
            if missing := [name for name in (OBS, ACTIONS) if name not in columns]:
                there = f"no column {' and '.join(missing)}; it has {', '.join(sorted(columns))}"
                self._store.troubles.add(f"{found.file}: record {found.place.at:,}", shortened(there))
                continue
            self._index.add(found)
            self._records += 1
            for column in columns:
                self._counts[column] = self._counts.get(column, 0) + 1
            self._without_next += NEXT_OBS not in columns
        if not self._records:
            named = self._store.troubles.named
            raise SourceError(f"{self.name}: no records of RLlib that can be read{f': {named[0]}' if named else ''}")
        shared = frozenset(column for column, count in self._counts.items() if count == self._records)
        return shared | ({REWARDS} & self._counts.keys())

    @property
    def count(self) -> int:
        """How many episodes there are."""
        return len(self._index)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What was left out, and how missing values were filled."""
        return tuple(self._notices())

    def _notices(self) -> Iterator[Notice]:
        troubles, index = self._store.troubles, self._index
        if troubles.corrupt:
            named = shortened("; ".join(troubles.named))
            text = f"{counted(troubles.corrupt, 'record')} cannot be read and {'is' if troubles.corrupt == 1 else 'are'} left out, as RLlib does: {named}"
            yield Notice("lost_records", text, troubles.corrupt)
        if troubles.empty:
            yield Notice("empty_records", f"{counted(troubles.empty, 'empty record')}, left out", troubles.empty)
        if troubles.repeated:
            text = f"{counted(troubles.repeated, 'row')} left out that a later file has once more: RLlib's runners write all that they have at each sample() unless output_max_rows_per_file is set"
            yield Notice("repeated_records", text, troubles.repeated)
        if late := sum(index.first_t(number) > 0 and index.has_sure_seams(number) for number in range(len(index))):
            text = f"{counted(late, 'episode')} begin after step 0; their first row is is_first all the same, and metadata t tells the step"
            yield Notice("late_start", text, late)
        if open_ends := sum(index.ended(number) == UNFINISHED for number in range(len(index))):
            text = f"{counted(open_ends, 'episode')} without an end, which are read as truncated there; metadata ending is unfinished"
            yield Notice("no_end", text, open_ends)
        if self._without_next:
            text = f"{counted(self._without_next, 'record')} without new_obs; {_FILLED[self._last_step]}"
            yield note("no_last_observation", text, self._without_next)
        if self._differing:
            text = f"{counted(self._differing, 'next observation')} of the first episode differ from the observation of the following step, as RLlib's n_step > 1 writes them, with rewards of several steps; only the last one is used"
            yield Notice("next_differs", text, self._differing)
        for name in self._partial:
            lacking = self._records - self._counts[name]
            text = f"{lacking:,} of {counted(self._records, 'record')} have no value of it per step; the column is left out"
            yield Notice("left_out", text, lacking, name)

    def spec(self) -> Nest:
        """The spec of the first readable episode; all other episodes must match it."""
        return nested(self._spec, self.name)

    def metadata_spec(self) -> Nest:
        """Ids and the ending as text; `t` if it is recorded."""
        text = ArraySpec((), np.dtype(object))
        spec = dict.fromkeys(("episode_id", "policy_id", "agent_id", "ending"), text)
        return {**spec, "t": ArraySpec((), np.dtype(np.int64))} if self._index.has_t else spec

    def metadata_of(self, number: int) -> Mapping[str, Any]:
        """Ids, the ending, and the number of the first step, of an episode."""
        episode, policy, agent = (one.encode("utf-8", "surrogatepass") for one in self._index.ids(number))
        ending = ENDINGS[self._index.ended(number)]
        known = {"episode_id": episode, "policy_id": policy, "agent_id": agent, "ending": ending}
        return {**known, "t": np.int64(self._index.first_t(number))} if self._index.has_t else known

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        """The episodes of these numbers."""
        self._store.check()
        with closing(self._reader(self._others)) as reader:
            rows = _EpisodePieces(reader, self._columns, self._last_step)
            for number in numbers:
                yield self._recording(rows, number)
        self._store.check()

    def _reader(self, others: Sequence[str]) -> Reader:
        return self._store.reader(_ASKED_FOR.union(others))

    def _recording(self, rows: _EpisodePieces, number: int) -> Recording:
        name, metadata = self._index.names[number], self.metadata_of(number)
        try:
            return Recording(self._held(self._columns_of(rows, number, self._others)), metadata, name)
        except BrokenEpisode as broken:
            return Recording({}, metadata, name, ((broken.path, broken.why),))

    def _columns_of(self, rows: _EpisodePieces, number: int, others: Sequence[str]) -> dict[str, Array]:
        pieces = list(self._index.pieces(number))
        if not self._index.has_sure_seams(number):
            rows.check_seams(pieces)
        return rows.episode(pieces, self._index.ended(number) == TERMINATED, others)

    def _found_spec(self, others: Sequence[str]) -> dict[str, ArraySpec]:
        """The spec of the first readable episode. Sets which further columns are read."""
        why = "no episode"
        with closing(self._reader(others)) as reader:
            rows = _EpisodePieces(reader, self._columns, self._last_step)
            for number in range(min(len(self._index), _TRIED_FOR_SPEC)):
                try:
                    columns = self._columns_of(rows, number, ())
                except BrokenEpisode as broken:
                    why = broken.why
                    continue
                self._others = [name for name in others if self._is_column(rows, number, name)]
                columns = self._columns_of(rows, number, self._others)
                self._differing = self._compared(rows, number)
                return {path: column_spec(column) for path, column in columns.items()}
        raise SourceError(f"{self.name}: none of the first episodes can be read: {why}")

    def _compared(self, rows: _EpisodePieces, number: int) -> int:
        """How many next observations of an episode differ from the observations that follow."""
        try:
            return rows.differing(list(self._index.pieces(number))) if NEXT_OBS in self._columns else 0
        except BrokenEpisode:
            return 0

    def _is_column(self, rows: _EpisodePieces, number: int, name: str) -> bool:
        try:
            self._columns_of(rows, number, [name])
        except BrokenEpisode:
            return False
        return True

    def _held(self, columns: dict[str, Array]) -> dict[str, Array]:
        """Checks the columns against the spec. Whole numbers of JSON become floats if the spec says so."""
        for path, wanted in self._spec.items():
            if path not in columns:
                raise BrokenEpisode(path, "is missing; other episodes have it")
            found = column_spec(columns[path])
            if found.shape != wanted.shape:
                raise BrokenEpisode(path, f"is {found}; other episodes have {wanted}")
            if found.dtype != wanted.dtype:
                made = exactly(columns[path], wanted.dtype) if found.dtype == np.int64 else None
                if made is None or wanted.dtype.kind != "f":
                    lost = ", which does not hold its values exactly" if wanted.dtype.kind == "f" else ""
                    raise BrokenEpisode(path, f"is {found}; other episodes have {wanted}{lost}")
                columns[path] = made
        if odd := columns.keys() - self._spec.keys():
            raise BrokenEpisode(min(odd), "other episodes have no such column")
        return columns


def _is_other(name: str) -> bool:
    """Whether a column is unknown to RLDS and its name is free."""
    return name not in _TAKEN and "/" not in name


def _others(columns: Set[str]) -> list[str]:
    """Columns that are unknown to RLDS and whose names are free."""
    return sorted(filter(_is_other, columns))


_FIELDS = {OBS: OBSERVATION, NEXT_OBS: OBSERVATION, ACTIONS: ACTION, REWARDS: REWARD}


class _EpisodePieces:
    """Makes episodes of pieces.

    Args:
      reader: of the columns.
      available: names of columns that every record has.
      last_step: see `formats.rows`.
    """

    def __init__(self, reader: Reader, available: frozenset[str], last_step: str) -> None:
        self._reader, self._available, self._last_step = reader, available, last_step

    def check_seams(self, pieces: list[Piece]) -> None:
        """Refuses an episode with missing steps: each piece must begin with the observation that the piece before led to.

        Raises:
          BrokenEpisode: steps are missing, or a column cannot be read.
        """
        for before, after in pairwise(pieces):
            ends, begins = self._last([before]), self._column(after, OBS)
            if ends is not None and any(
                not _same(ends.get(path), column[after.start]) for path, column in begins.items()
            ):
                raise BrokenEpisode(
                    OBSERVATION,
                    "steps are missing: a record goes on from another observation than the record before it led to",
                )

    def episode(self, pieces: list[Piece], is_terminal: bool, others: Iterable[str]) -> dict[str, Array]:
        """RLDS columns.

        Args:
          pieces: in the order of their steps.
          is_terminal: whether the last step's end is terminal.
          others: names of further columns.

        Raises:
          BrokenEpisode: a column cannot be read, or its pieces do not go together.
        """
        observation = self._joined(pieces, OBS)
        action = self._joined(pieces, ACTIONS)
        reward = self._joined(pieces, REWARDS)[""] if REWARDS in self._available else None
        if reward is not None:
            reward = _number_per_step(reward)
        further = {
            f"{name}/{path}" if path else name: column
            for name in others
            for path, column in self._joined(pieces, name).items()
        }
        if INFOS in further and (info := self._last(pieces, NEXT_INFOS)) is not None:
            further[INFOS] = with_last(further[INFOS], np.asarray(info[""], object))
        last = self._last(pieces)
        if last is None and self._last_step == MARK:
            action, reward = _shortened(action), None if reward is None else reward[:-1]
            further = _shortened(further)
        else:
            observation = _closed(
                observation, {path: column[-1] for path, column in observation.items()} if last is None else last
            )
        return steps(observation, action, reward, is_terminal, further)

    def _last(self, pieces: list[Piece], name: str = NEXT_OBS) -> dict[str, Array] | None:
        """The observation after the last step, or another column there; None if it is not recorded."""
        try:
            found = self._checked(pieces[-1], name)
        except LookupError:
            return None
        return {path: column[pieces[-1].stop - 1] for path, column in found.items()}

    def _column(self, piece: Piece, name: str) -> Leaves:
        try:
            return self._checked(piece, name)
        except LookupError as error:
            raise BrokenEpisode(_path(name), f'no column "{name}" in {error.args[0]}') from error

    def _checked(self, piece: Piece, name: str) -> Leaves:
        """A column of a piece's record, with at least as many rows as the piece needs."""
        try:
            found = self._reader.column(piece.place, name)
        except BrokenEpisode as broken:
            raise BrokenEpisode(_path(broken.path), broken.why) from broken
        if any(len(column) < piece.stop for column in found.values()):
            raise BrokenEpisode(_path(name), f'column "{name}": the file changed while it was read')
        return found

    def differing(self, pieces: list[Piece]) -> int:
        """How many next observations differ from the observations of the steps that follow.

        Raises:
          BrokenEpisode: a column cannot be read, or its pieces do not go together.
        """
        now, following = self._joined(pieces, OBS), self._joined(pieces, NEXT_OBS)
        odd = [differing(column[1:], following[path][:-1]) for path, column in now.items() if path in following]
        return int(np.any(odd, axis=0).sum()) if odd else 0

    def _joined(self, pieces: list[Piece], name: str) -> Leaves:
        parts = [self._column(piece, name) for piece in pieces]
        slices = [
            {path: column[piece.start : piece.stop] for path, column in leaves.items()}
            for piece, leaves in zip(pieces, parts)
        ]
        if any(one.keys() != slices[0].keys() for one in slices):
            raise BrokenEpisode(_path(name), f'column "{name}": its parts have different columns below them')
        return {path: _concatenated(name, [one[path] for one in slices]) for path in slices[0]}


def _same(one: Array | None, other: Array) -> bool:
    return one is not None and np.array_equal(one, other, equal_nan=np.asarray(other).dtype.kind in "fc")


def _path(name: str) -> str:
    """The RLDS column of a column of RLlib."""
    return _FIELDS.get(name, name)


def _concatenated(name: str, parts: list[Array]) -> Array:
    if len(parts) == 1:
        return parts[0]
    if len({part.shape[1:] for part in parts}) > 1:
        raise BrokenEpisode(_path(name), f'column "{name}": its parts have shapes {[part.shape for part in parts][:3]}')
    kinds = {part.dtype for part in parts}
    if len(kinds) > 1 and not all(kind.kind in "if" for kind in kinds):
        raise BrokenEpisode(_path(name), f'column "{name}": its parts have dtypes {sorted(map(str, kinds))}')
    return np.concatenate(_alike(name, parts))


def _alike(name: str, parts: list[Array]) -> list[Array]:
    dtypes = {part.dtype for part in parts}
    if len(dtypes) == 1:
        return parts
    wanted = np.result_type(*({dtype for dtype in dtypes if dtype.kind == "f"} or dtypes))
    made = [exactly(part, wanted) for part in parts]
    if any(part is None for part in made):
        raise BrokenEpisode(
            _path(name),
            f'column "{name}": its parts have dtypes {sorted(map(str, dtypes))}, and {wanted} does not hold them exactly',
        )
    return [part for part in made if part is not None]


def _number_per_step(reward: Array) -> Array:
    if reward.size != len(reward) or reward.dtype.kind not in "biuf":
        raise BrokenEpisode(REWARD, f"has shape {reward.shape} and dtype {reward.dtype}; expected a number per step")
    flat = reward.reshape(-1)
    if flat.dtype.kind == "f":
        return flat
    made = exactly(flat.astype(np.int8) if flat.dtype == bool else flat, np.dtype(np.float64))
    if made is None:
        raise BrokenEpisode(REWARD, f"whole numbers of {flat.dtype} that float64 does not hold exactly")
    return made


def _shortened(columns: Leaves) -> Leaves:
    return {path: column[:-1] for path, column in columns.items()}


def _closed(columns: Leaves, last: dict[str, Array]) -> Leaves:
    if columns.keys() != last.keys() or any(
        np.shape(last[path]) != column.shape[1:] for path, column in columns.items()
    ):
        raise BrokenEpisode(OBSERVATION, "the last next observation has another shape than the observations")
    return {path: _with_last(column, last[path]) for path, column in columns.items()}


def _with_last(column: Array, last: Array) -> Array:
    """A column and the last next observation, of one dtype."""
    row = np.asarray(last, object if column.dtype == object else None)
    if row.dtype != column.dtype:
        made = exactly(row, column.dtype)
        if made is None and (column.dtype != np.int64 or row.dtype.kind != "f"):
            raise BrokenEpisode(
                OBSERVATION, f"{column.dtype} does not hold the last next observation, which is {row.dtype}, exactly"
            )
        column, row = (column, made) if made is not None else _alike(OBS, [column, row])
    return with_last(column, row)
