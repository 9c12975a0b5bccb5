"""RLlib's offline data as a source: `rllib:PATH[?OPTIONS]`, with an episode for each id, agent and policy.

docs/formats/rllib.md says which column becomes which, and has the options. The observation after the last step is the last `new_obs`; where
there is none, `last_step` decides (see `formats.rows`).
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.episode import ACTION, METADATA, OBSERVATION, REWARD, STEP_FIELDS, Array, Notice, is_under, note
from rlds2reverb.errors import SourceError
from rlds2reverb.extras import needing
from rlds2reverb.formats.agreement import EVERY, SPEC_OPTIONS, Agreement, NoSpecFrom, SpecFrom, agree, look_at, promote
from rlds2reverb.formats.options import Parse, one_of, unescape_text, words
from rlds2reverb.formats.recordings import BrokenEpisode, Recording, Recordings, parse_source_name, read_each
from rlds2reverb.formats.rllib import keys
from rlds2reverb.formats.rllib.index import PARQUET, EpisodeIndex, Piece, find
from rlds2reverb.formats.rllib.records import JsonLines, Reader, ReadSettings, Store
from rlds2reverb.formats.rllib.values import Leaves
from rlds2reverb.formats.rows import LAST_STEPS, MARK, REPEAT, differing, exactly, steps, with_last
from rlds2reverb.formats.source import Source
from rlds2reverb.specs import ArraySpec, Nest, column_spec, nested
from rlds2reverb.text import counted, shortened

OPTIONS: dict[str, Parse] = {
    "columns": keys.ColumnNames.parse,
    "last_step": words(*LAST_STEPS),
    "float": one_of(**{"32": np.dtype(np.float32), "64": np.dtype(np.float64)}),
    "done_means": one_of(terminal=keys.TERMINATED, truncation=keys.TRUNCATED),
    "others": one_of(keep=True, drop=False),
    **SPEC_OPTIONS,
}


def open_rllib(text: str) -> Source:
    """Opens RLlib's data by the text after "rllib:".

    Raises:
      SourceError: there are no such files, they are damaged or not RLlib's, or an option makes no sense.
    """
    request = parse_source_name("rllib", text, OPTIONS)
    chosen = request.rename_options({"columns": "names", "float": "floats", "others": "keeps_others"})
    of_rows = {name: chosen.pop(name) for name in ("last_step", "keeps_others", "spec_from") if name in chosen}
    settings = ReadSettings(**chosen)
    files = find([unescape_text(path.strip()) for path in request.place.split(";")], request.files)
    store: Store
    if files[0].kind == PARQUET:
        with needing("reading RLlib's Parquet files", "parquet", SourceError):
            from rlds2reverb.formats.rllib.tables import open_tables

            store = open_tables(files, settings)
    else:
        store = JsonLines(files, settings)
    return request.make_source(RllibRecordings(store, request.name, **of_rows))


_REQUIRED = frozenset({keys.OBS, keys.NEXT_OBS, keys.ACTIONS, keys.REWARDS})
_TAKEN = frozenset({*keys.IN_ROWS, *keys.IN_METADATA, *STEP_FIELDS, METADATA, ""})

_FILLED = {
    MARK: "the last row of each is its last step, whose action and reward mean nothing (last_step=mark)",
    REPEAT: "the last observation stands there twice, so that no action is lost (last_step=repeat)",
}


class _EpisodeLook(NamedTuple):
    specs: Mapping[str, ArraySpec]
    nbytes: int


class RllibRecordings(Recordings):
    """The episodes of a dataset; `keeps_others` says whether columns that RLDS does not know become step columns."""

    def __init__(
        self, store: Store, name: str, last_step: str = REPEAT, keeps_others: bool = True, spec_from: SpecFrom = EVERY
    ) -> None:
        self.name, self._store, self._last_step, self._spec_from = name, store, last_step, spec_from
        self._index = EpisodeIndex()
        self._without_next = self._differing = 0
        self._counts: dict[str, int] = {}  # column -> number of records that have it
        self._records = 0
        self._columns = self._indexed(keeps_others)
        self._index.close()
        self._chosen: Sequence[int] | None = None
        other_names = sorted(name for name in self._counts if keeps_others and _is_other(name))
        self._partial = [name for name in other_names if name not in self._columns]
        self._unread: frozenset[str] = frozenset()
        self._shared = [name for name in other_names if name in self._columns]

    def choose(self, numbers: Sequence[int] | None) -> None:
        self._chosen = numbers
        _ = self._agreement

    def _indexed(self, keeps_others: bool) -> frozenset[str]:
        """Indexes every piece. Returns the columns that all records have, and the rewards if any record has them."""
        for found_rows in self._store.scan(lambda name: name in _REQUIRED or (keeps_others and _is_other(name))):
            columns = found_rows.part.columns
            if not found_rows.part.rows:
                self._store.troubles.empty += 1
                continue
            if missing := [name for name in (keys.OBS, keys.ACTIONS) if name not in columns]:
                there = f"no column {' and '.join(missing)}; it has {', '.join(sorted(columns))}"
                self._store.troubles.add(f"{found_rows.file}: record {found_rows.place.at:,}", shortened(there))
                continue
            self._index.add(found_rows)
            self._records += 1
            for column in columns:
                self._counts[column] = self._counts.get(column, 0) + 1
            self._without_next += keys.NEXT_OBS not in columns
        if not self._records:
            named = self._store.troubles.named
            raise SourceError(f"{self.name}: no records of RLlib that can be read{f': {named[0]}' if named else ''}")
        shared = frozenset(column for column, count in self._counts.items() if count == self._records)
        return shared | ({keys.REWARDS} & self._counts.keys())

    @property
    def count(self) -> int:
        return len(self._index.episodes)

    @property
    def notices(self) -> tuple[Notice, ...]:
        return tuple(self._notices())

    def _notices(self) -> Iterator[Notice]:
        troubles, episodes = self._store.troubles, self._index.episodes
        if troubles.corrupt:
            named = shortened("; ".join(troubles.named))
            text = f"{counted(troubles.corrupt, 'record')} cannot be read and {'is' if troubles.corrupt == 1 else 'are'} left out, as RLlib does: {named}"
            yield Notice("lost_records", text, troubles.corrupt)
        if troubles.empty:
            yield Notice("empty_records", f"{counted(troubles.empty, 'empty record')}, left out", troubles.empty)
        if troubles.repeated:
            text = f"{counted(troubles.repeated, 'row')} left out that a later file has once more: RLlib's runners write all that they have at each sample() unless output_max_rows_per_file is set"
            yield Notice("repeated_records", text, troubles.repeated)
        if late := sum(chain.first_t > 0 and chain.has_sure_seams for chain in episodes):
            text = f"{counted(late, 'episode')} begin after step 0; their first row is is_first all the same, and metadata t has the step"
            yield Notice("late_start", text, late)
        if open_ends := sum(chain.ended == keys.UNFINISHED for chain in episodes):
            text = f"{counted(open_ends, 'episode')} without an end, which are read as truncated there; metadata ending is unfinished"
            yield Notice("no_end", text, open_ends)
        if self._without_next:
            text = f"{counted(self._without_next, 'record')} without new_obs; {_FILLED[self._last_step]}"
            yield note("no_last_observation", text, self._without_next)
        if self._differing:
            text = f"{counted(self._differing, 'next observation')} of the first episode differ from the observation of the following step, as RLlib's n_step > 1 writes them, with rewards of several steps; only the last one is used"
            yield Notice("next_differs", text, self._differing)
        yield from self._agreement.notices
        for name in self._partial:
            lacking = self._records - self._counts[name]
            text = f"{lacking:,} of {counted(self._records, 'record')} have no value of it per step; the column is left out"
            yield Notice("left_out", text, lacking, name)

    def spec(self) -> Nest:
        return nested(self._spec, self.name)

    def metadata_spec(self) -> Nest:
        text = ArraySpec((), np.dtype(object))
        spec = dict.fromkeys(("episode_id", "policy_id", "agent_id", "ending"), text)
        numbers = (keys.AGENT_INDEX, "t") if self._index.has_t else (keys.AGENT_INDEX,)
        return {**spec, **dict.fromkeys(numbers, ArraySpec((), np.dtype(np.int64)))}

    def metadata_of(self, number: int) -> Mapping[str, Any]:
        chain = self._index.episodes[number]
        episode, policy, agent = (text.encode("utf-8", "surrogatepass") for text in chain.ids)
        metadata: dict[str, Any] = {"episode_id": episode, "policy_id": policy, "agent_id": agent}
        metadata |= {keys.AGENT_INDEX: np.int64(chain.agent_index), "ending": keys.ENDINGS[chain.ended]}
        return {**metadata, "t": np.int64(chain.first_t)} if self._index.has_t else metadata

    def without(self, paths: Collection[str]) -> RllibRecordings:
        """Leaves out rewards and further columns, each as a whole; observations and actions say where an episode's pieces meet, so they are read."""
        fewer = copy.copy(self)
        fewer._others = [
            name for name in self._others if not all(path in paths for path in self._spec if is_under(path, name))
        ]
        fewer._columns = self._columns - ({keys.REWARDS} if REWARD in paths else set())
        fewer._unread = frozenset(paths)
        return fewer

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        names = self._index.names
        with self._rows(self._others) as rows:

            def read_one(number: int) -> Recording:
                columns = self._check(self._columns_of(rows, number, self._others))
                return Recording(columns, self.metadata_of(number), names[number])

            yield from read_each(read_one, numbers, names.__getitem__, self.metadata_of)

    @contextmanager
    def _rows(self, other_names: Sequence[str]) -> Iterator[_EpisodePieces]:
        with self._store.reader(_REQUIRED.union(other_names)) as reader:
            yield _EpisodePieces(reader, self._columns, self._last_step)

    def _columns_of(self, rows: _EpisodePieces, number: int, other_names: Sequence[str]) -> dict[str, Array]:
        pieces, chain = list(self._index.pieces(number)), self._index.episodes[number]
        if not chain.has_sure_seams:
            rows.check_seams(pieces)
        return rows.episode(pieces, chain.ended == keys.TERMINATED, other_names)

    @cached_property
    def _agreement(self) -> Agreement:
        """The spec of the chosen episodes, which each must match, and what is left out for it."""
        numbers = range(self.count) if self._chosen is None else self._chosen
        with self._rows(self._shared) as rows:
            try:
                looks = look_at(
                    numbers,
                    lambda number: self._look(rows, number),
                    self.name,
                    self._spec_from,
                    nbytes=attrgetter("nbytes"),
                    count=self.count,
                )
            except NoSpecFrom:
                raise
            except SourceError as error:
                raise SourceError(f"{self.name}: none of the episodes looked at can be read: {error}") from error
            with suppress(BrokenEpisode):
                self._differing = rows.differing(list(self._index.pieces(min(looks))))
        return agree({number: look.specs for number, look in looks.items()}, self._spec_from, promote)

    def _look(self, rows: _EpisodePieces, number: int) -> _EpisodeLook:
        """What one episode has; further columns that cannot be read are not among it."""
        try:
            columns = self._columns_of(rows, number, self._shared)
        except BrokenEpisode:
            self._columns_of(rows, number, ())  # raises if it is not for a further column
            readable = []
            for name in self._shared:
                with suppress(BrokenEpisode):
                    self._columns_of(rows, number, [name])
                    readable.append(name)
            columns = self._columns_of(rows, number, readable)
        specs = {path: column_spec(column) for path, column in columns.items()}
        return _EpisodeLook(specs, sum(column.nbytes for column in columns.values()))

    @cached_property
    def _others(self) -> list[str]:
        """The further columns that are read: those with a path in the spec."""
        return [name for name in self._shared if any(is_under(path, name) for path in self._spec)]

    @property
    def _spec(self) -> Mapping[str, ArraySpec]:
        return self._agreement.specs

    def _check(self, columns: dict[str, Array]) -> dict[str, Array]:
        """Checks the columns against the spec. Whole numbers of JSON become floats if the spec says so."""
        for path, spec in self._spec.items():
            if path in self._unread:
                continue
            if path not in columns:
                raise BrokenEpisode(path, "is missing; other episodes have it")
            recorded = column_spec(columns[path])
            if recorded.shape != spec.shape:
                raise BrokenEpisode(path, f"is {recorded}; other episodes have {spec}")
            if recorded.dtype != spec.dtype:
                cast = exactly(columns[path], spec.dtype) if recorded.dtype == np.int64 else None
                if cast is None or spec.dtype.kind != "f":
                    lost = ", which does not hold its values exactly" if spec.dtype.kind == "f" else ""
                    raise BrokenEpisode(path, f"is {recorded}; other episodes have {spec}{lost}")
                columns[path] = cast
        return {path: columns[path] for path in self._spec if path in columns}


def _is_other(name: str) -> bool:
    return name not in _TAKEN and "/" not in name


_FIELDS = {keys.OBS: OBSERVATION, keys.NEXT_OBS: OBSERVATION, keys.ACTIONS: ACTION, keys.REWARDS: REWARD}


class _EpisodePieces:
    """Makes episodes of pieces; `available` are the names of columns that every record has."""

    def __init__(self, reader: Reader, available: frozenset[str], last_step: str) -> None:
        self._reader, self._available, self._last_step = reader, available, last_step

    def check_seams(self, pieces: list[Piece]) -> None:
        """Raises `BrokenEpisode` if steps are missing: each piece must begin with the observation that the piece before led to."""
        for before, after in pairwise(pieces):
            ends, begins = self._last([before]), self._column(after, keys.OBS)
            if ends is not None and not all(
                path in ends and np.array_equal(ends[path], column[after.start], equal_nan=column.dtype.kind in "fc")
                for path, column in begins.items()
            ):
                raise BrokenEpisode(
                    OBSERVATION,
                    "steps are missing: a record begins with another observation than the record before it led to",
                )

    def episode(self, pieces: list[Piece], is_terminal: bool, other_names: Iterable[str]) -> dict[str, Array]:
        """RLDS columns of pieces in the order of their steps. Raises `BrokenEpisode` if these do not go together."""
        observation = self._join(pieces, keys.OBS)
        action = self._join(pieces, keys.ACTIONS)
        reward = _number_per_step(self._join(pieces, keys.REWARDS)[""]) if keys.REWARDS in self._available else None
        further = {
            f"{name}/{path}" if path else name: column
            for name in other_names
            for path, column in self._join(pieces, name).items()
        }
        if keys.INFOS in further and (info := self._last(pieces, keys.NEXT_INFOS)) is not None:
            further[keys.INFOS] = with_last(further[keys.INFOS], info[""])
        last = self._last(pieces)
        if last is None and self._last_step == MARK:
            reward = None if reward is None else reward[:-1]
            action, further = ({path: column[:-1] for path, column in columns.items()} for columns in (action, further))
            return steps(observation, action, reward, is_terminal, further)
        if last is None:
            last = {path: column[-1] for path, column in observation.items()}
        shapes = {path: np.shape(row) for path, row in last.items()}
        if shapes != {path: column.shape[1:] for path, column in observation.items()}:
            raise BrokenEpisode(OBSERVATION, "the last next observation has another shape than the observations")
        observation = {path: _append_last(column, last[path]) for path, column in observation.items()}
        return steps(observation, action, reward, is_terminal, further)

    def _last(self, pieces: list[Piece], name: str = keys.NEXT_OBS) -> dict[str, Array] | None:
        """The observation after the last step, or another column there; None if it is not recorded."""
        try:
            leaves = self._read_leaves(pieces[-1], name)
        except LookupError:
            return None
        return {path: column[pieces[-1].stop - 1] for path, column in leaves.items()}

    def _column(self, piece: Piece, name: str) -> Leaves:
        try:
            return self._read_leaves(piece, name)
        except LookupError as error:
            raise BrokenEpisode(_path(name), f'no column "{name}" in {error.args[0]}') from error

    def _read_leaves(self, piece: Piece, name: str) -> Leaves:
        """A column of a piece's record, with at least as many rows as the piece needs."""
        try:
            leaves = self._reader.column(piece.place, name)
        except BrokenEpisode as broken:
            raise BrokenEpisode(_path(broken.path), broken.why) from broken
        if any(len(column) < piece.stop for column in leaves.values()):
            raise BrokenEpisode(_path(name), f'column "{name}": the file changed while it was read')
        return leaves

    def differing(self, pieces: list[Piece]) -> int:
        """The number of next observations that differ from the observation of the following step."""
        if keys.NEXT_OBS not in self._available:
            return 0
        now, following = self._join(pieces, keys.OBS), self._join(pieces, keys.NEXT_OBS)
        odd = [differing(column[1:], following[path][:-1]) for path, column in now.items() if path in following]
        return int(np.any(odd, axis=0).sum()) if odd else 0

    def _join(self, pieces: list[Piece], name: str) -> Leaves:
        parts = [self._column(piece, name) for piece in pieces]
        slices = [
            {path: column[piece.start : piece.stop] for path, column in leaves.items()}
            for piece, leaves in zip(pieces, parts)
        ]
        if any(leaves.keys() != slices[0].keys() for leaves in slices):
            raise BrokenEpisode(_path(name), f'column "{name}": its parts have different columns below them')
        return {path: _concatenate(name, [leaves[path] for leaves in slices]) for path in slices[0]}


def _path(name: str) -> str:
    return _FIELDS.get(name, name)


def _concatenate(name: str, parts: list[Array]) -> Array:
    if len(parts) == 1:
        return parts[0]
    if len({part.shape[1:] for part in parts}) > 1:
        raise BrokenEpisode(_path(name), f'column "{name}": its parts have shapes {[part.shape for part in parts][:3]}')
    return np.concatenate(_cast_alike(name, parts))


def _cast_alike(name: str, parts: list[Array]) -> list[Array]:
    """Parts of one dtype; numbers of several in one that holds all of them exactly."""
    dtypes = {part.dtype for part in parts}
    if len(dtypes) == 1:
        return parts
    text = f'column "{name}": its parts have dtypes {", ".join(sorted(map(str, dtypes)))}'
    if not all(dtype.kind in "if" for dtype in dtypes):
        raise BrokenEpisode(_path(name), text)
    dtype = np.result_type(*({dtype for dtype in dtypes if dtype.kind == "f"} or dtypes))
    casts = [cast for part in parts if (cast := exactly(part, dtype)) is not None]
    if len(casts) < len(parts):
        raise BrokenEpisode(_path(name), f"{text}, and {dtype} does not hold them exactly")
    return casts


def _number_per_step(reward: Array) -> Array:
    if reward.size != len(reward) or reward.dtype.kind not in "biuf":
        raise BrokenEpisode(REWARD, f"has shape {reward.shape} and dtype {reward.dtype}; expected a number per step")
    flat = reward.reshape(-1)
    if flat.dtype.kind == "f":
        return flat
    cast = exactly(flat.astype(np.int8) if flat.dtype == bool else flat, np.dtype(np.float64))
    if cast is None:
        raise BrokenEpisode(REWARD, f"whole numbers of {flat.dtype} that float64 does not hold exactly")
    return cast


def _append_last(column: Array, last: Array) -> Array:
    """A column and the last next observation, of one dtype."""
    row = np.asarray(last, object if column.dtype == object else None)
    if row.dtype != column.dtype:
        cast = exactly(row, column.dtype)
        if cast is None and (column.dtype != np.int64 or row.dtype.kind != "f"):
            raise BrokenEpisode(
                OBSERVATION, f"{column.dtype} does not hold the last next observation, which is {row.dtype}, exactly"
            )
        column, row = (column, cast) if cast is not None else _cast_alike(keys.OBS, [column, row])
    return with_last(column, row)
