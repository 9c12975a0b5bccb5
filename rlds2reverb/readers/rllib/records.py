"""Records as JSON has them: a `SampleBatch`, a `MultiAgentBatch` or one step, as parts and as columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.readers.rllib import names as n
from rlds2reverb.readers.rllib.batches import Head, Part, part_of
from rlds2reverb.readers.rllib.store import Settings
from rlds2reverb.readers.rllib.values import Converter, Leaves, texts

Raw = Mapping[str, Any]
_COUNTED = (n.REWARDS, n.ACTIONS, n.TERMINATEDS, n.DONES, n.TRUNCATEDS, n.T, n.EPS_ID, n.OBS)


class _Batch:
    """The columns of one policy in a record."""

    def __init__(self, raw: Raw, settings: Settings, where: str) -> None:
        self.raw, self._names = raw, settings.names
        self.converter = Converter(where, settings.floats)
        self.rows = self._row_count()

    def take(self, name: str) -> Any:
        """A column by RLlib's name, unpacked; None where there is none."""
        value = self.raw.get(self._names.of(name))
        return self.converter.unpack(name, value) if isinstance(value, str) else value

    def _row_count(self) -> int:
        for name in _COUNTED:
            value = self.raw.get(self._names.of(name))
            if isinstance(value, (list, np.ndarray)):
                return len(value)
        for name in (n.REWARDS, n.ACTIONS, n.OBS):
            value = self.take(name)
            if isinstance(value, (np.ndarray, list)) and np.ndim(value):
                return len(value)
        raise BrokenEpisode("", "no rewards, actions or observations, so its rows cannot be counted")

    def columns(self) -> frozenset[str]:
        """RLlib's names of what may have a value per row."""
        return frozenset(
            self._names.standard(key)
            for key, value in self.raw.items()
            if isinstance(value, (str, dict, tuple))
            or (isinstance(value, (list, np.ndarray)) and (len(value) == self.rows or _is_nest(value)))
        )

    def leaves(self, name: str) -> Leaves | BrokenEpisode | None:
        """A column, or why it is none; None where there is none."""
        value = self.raw.get(self._names.of(name))
        if value is None:
            return None
        if name == n.INFOS and isinstance(value, list):
            return {"": texts(value)}
        if isinstance(value, np.ndarray) and len(value) != self.rows and _is_nest(value):
            value = list(value)
        try:
            return self.converter.leaves(name, value, self.rows)
        except BrokenEpisode as broken:
            return BrokenEpisode(broken.path, broken.why)  # the other one holds on to the record


def _is_nest(value: list[Any] | Array) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 1 and len(value) > 0
    return bool(value) and all(isinstance(one, (list, dict)) for one in value)


def parts(record: Any, settings: Settings, where: str, tells_ends: bool = False) -> list[Part]:
    """The parts of a record.

    Args:
      record: parsed JSON.
      settings: how it is read.
      where: the file and the place; for messages.
      tells_ends: whether rewards, and the observations at both ends, are told.

    Raises:
      BrokenEpisode: it is no record of RLlib.
    """
    made = []
    for policy, raw, is_multi_agent in _batches(record, settings.names):
        batch = _Batch(raw, settings, where)
        rewards, ends = _ends(batch) if tells_ends else (None, ("", ""))
        head = Head(batch.rows, policy, is_multi_agent, batch.columns(), rewards, ends)
        made.append(part_of(head, batch.take, settings.done_means))
    return made


def _ends(batch: _Batch) -> tuple[Array | None, tuple[str, str]]:
    first, last = batch.leaves(n.OBS), batch.leaves(n.NEXT_OBS)
    rewards = batch.leaves(n.REWARDS)
    ends = (_row(first, 0), _row(last, -1)) if batch.rows else ("", "")
    return rewards.get("") if isinstance(rewards, dict) else None, ends


def _row(leaves: Leaves | BrokenEpisode | None, at: int) -> str:
    return (
        repr({path: np.asarray(column[at]).tolist() for path, column in leaves.items()})
        if isinstance(leaves, dict)
        else ""
    )


def converted(record: Any, settings: Settings, where: str, wanted: frozenset[str]) -> dict[Any, Leaves | BrokenEpisode]:
    """(number of the part, RLlib's name) -> the column, or why it is none.

    Raises:
      BrokenEpisode: it is no record of RLlib.
    """
    made: dict[Any, Leaves | BrokenEpisode] = {}
    for number, (_, raw, _) in enumerate(_batches(record, settings.names)):
        batch = _Batch(raw, settings, where)
        for name in wanted:
            if (leaves := batch.leaves(name)) is not None:
                made[number, name] = leaves
    return made


def _batches(record: Any, names: n.Names) -> list[tuple[str, Raw, bool]]:
    """Policy, columns, and whether there are other agents, of each batch of a record."""
    kind = record.get("type") if isinstance(record, dict) else None
    if isinstance(kind, list):  # Ray Data writes it once per row
        kind = kind[0] if kind else None
    if kind == "SampleBatch":
        return [("", record, False)]
    if kind == "MultiAgentBatch":
        policies = record.get("policy_batches")
        if not isinstance(policies, dict) or not all(isinstance(one, dict) for one in policies.values()):
            raise BrokenEpisode("", "a MultiAgentBatch without policy_batches")
        return [(policy, columns, True) for policy, columns in policies.items()]
    is_step = isinstance(record, dict) and kind is None and isinstance(record.get(names.of(n.EPS_ID)), (str, int))
    if is_step and names.of(n.OBS) in record:
        return [("", {key: [value] for key, value in record.items()}, False)]
    raise BrokenEpisode("", "expected a record of type SampleBatch or MultiAgentBatch, or a step")
