"""RLlib's offline data as recordings: an episode for each id, agent and policy.

| recorded | RLDS |
| --- | --- |
| `obs` [T], and the last `new_obs` | observation, T + 1 rows |
| `obs` [T] alone | see `alignment`: `last_step` |
| `actions`, `rewards` | action, reward |
| `terminateds`, or `dones` | is_terminal |
| what has a value per step | a step column of that name; `infos` as text |
| `eps_id`, agent, policy, the first `t`, how it ended | metadata |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import closing
from typing import Any

import numpy as np

from rlds2reverb.episodes import STEP_FIELDS, Array
from rlds2reverb.errors import SourceError
from rlds2reverb.metadata import METADATA
from rlds2reverb.readers.casts import exactly
from rlds2reverb.readers.nests import nested
from rlds2reverb.readers.recordings import BrokenEpisode, Recording, Recordings
from rlds2reverb.readers.rllib import names as n
from rlds2reverb.readers.rllib.batches import ENDINGS, TERMINATED
from rlds2reverb.readers.rllib.index import Index
from rlds2reverb.readers.rllib.remarks import remarks_on, remarks_on_columns
from rlds2reverb.readers.rllib.rows import Rows
from rlds2reverb.readers.rllib.store import Reader, Store
from rlds2reverb.remarks import Remark
from rlds2reverb.specs import ArraySpec, Nest, column_spec
from rlds2reverb.wording import shortened

_TRIED_FOR_SPEC = 100
_ASKED_FOR = frozenset({n.OBS, n.NEXT_OBS, n.ACTIONS, n.REWARDS})
_TAKEN = frozenset({*n.IN_ROWS, *n.IN_METADATA, *STEP_FIELDS, METADATA, ""})


class RllibRecordings(Recordings):
    """The episodes of a dataset of RLlib.

    Args:
      store: its files.
      name: for messages.
      last_step: "repeat" or "mark", where the last next observation is not recorded; see `alignment`.
      keeps_others: whether columns that RLDS does not know become step columns.
    """

    def __init__(self, store: Store, name: str, last_step: str, keeps_others: bool) -> None:
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
        """Finds every piece; the columns that all records have, and the rewards if any has them."""
        for found in self._store.scan(lambda name: name in _ASKED_FOR or (keeps_others and _is_other(name))):
            columns = found.part.columns
            if not found.part.rows:
                self._store.troubles.empty += 1
                continue
            if missing := [name for name in (n.OBS, n.ACTIONS) if name not in columns]:
                there = f"no column {' and '.join(missing)}; it has {', '.join(sorted(columns))}"
                self._store.troubles.add(f"{found.file}: record {found.place.at:,}", shortened(there))
                continue
            self._index.add(found)
            self._records += 1
            for column in columns:
                self._counts[column] = self._counts.get(column, 0) + 1
            self._without_next += n.NEXT_OBS not in columns
        if not self._records:
            named = self._store.troubles.named
            raise SourceError(f"{self.name}: no records of RLlib that can be read{f': {named[0]}' if named else ''}")
        shared = frozenset(column for column, count in self._counts.items() if count == self._records)
        return shared | ({n.REWARDS} & self._counts.keys())

    @property
    def count(self) -> int:
        """How many episodes there are."""
        return len(self._index)

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """What was left out, and how what is missing was filled."""
        told = remarks_on(self._store.troubles, self._index, self._without_next, self._last_step, self._differing)
        return (*told, *remarks_on_columns({name: self._counts[name] for name in self._partial}, self._records))

    def spec(self) -> Nest:
        """That of the first episode that can be read; the others are held to it."""
        return nested(self._spec, self.name)

    def metadata_spec(self) -> Nest:
        """Ids and the ending as text; `t` where it is recorded."""
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
        self._store.stamps.check()
        with closing(self._reader(self._others)) as reader:
            rows = Rows(reader, self._columns, self._last_step)
            for number in numbers:
                yield self._recording(rows, number)
        self._store.stamps.check()

    def _reader(self, others: Sequence[str]) -> Reader:
        return self._store.reader(_ASKED_FOR.union(others))

    def _recording(self, rows: Rows, number: int) -> Recording:
        name, metadata = self._index.names[number], self.metadata_of(number)
        try:
            return Recording(self._held(self._columns_of(rows, number, self._others)), metadata, name)
        except BrokenEpisode as broken:
            return Recording({}, metadata, name, ((broken.path, broken.why),))

    def _columns_of(self, rows: Rows, number: int, others: Sequence[str]) -> dict[str, Array]:
        pieces = list(self._index.pieces(number))
        if not self._index.has_sure_seams(number):
            rows.check_seams(pieces)
        return rows.episode(pieces, self._index.ended(number) == TERMINATED, others)

    def _found_spec(self, others: Sequence[str]) -> dict[str, ArraySpec]:
        """The spec of the first episode that can be read; sets which other columns are columns."""
        why = "no episode"
        with closing(self._reader(others)) as reader:
            rows = Rows(reader, self._columns, self._last_step)
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

    def _compared(self, rows: Rows, number: int) -> int:
        """How many next observations of an episode are not its observations."""
        try:
            return rows.differing(list(self._index.pieces(number))) if n.NEXT_OBS in self._columns else 0
        except BrokenEpisode:
            return 0

    def _is_column(self, rows: Rows, number: int, name: str) -> bool:
        try:
            self._columns_of(rows, number, [name])
        except BrokenEpisode:
            return False
        return True

    def _held(self, columns: dict[str, Array]) -> dict[str, Array]:
        """The columns, held to the spec: whole numbers of JSON where others have a point get one."""
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
    """Whether RLDS does not know a column, and nothing else has its name."""
    return name not in _TAKEN and "/" not in name


def _others(columns: Set[str]) -> list[str]:
    """Columns that RLDS does not know, and whose names nothing else has."""
    return sorted(filter(_is_other, columns))
