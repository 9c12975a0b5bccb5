"""Which of TED's keys becomes which of RLDS' columns.

| TED | RLDS |
| --- | --- |
| `observation` (with what is nested in it), at the root and under `next` | `observation`, T + 1 rows |
| `action` | `action` |
| `next.reward` | `reward`, without its last size where that is 1 |
| `next.terminated` | `is_terminal` of the row after; without it `next.done` less `next.truncated` |
| `discount` | `discount` |
| any other key at the root and under `next` | a column of that name, T + 1 rows |
| any other key at the root | a column of that name, a row of zeros at its end |
| any other key under `next` | a column `next/...`, a row of zeros at its end |

Without a key `observation`, all that stands at the root and under `next` is the observation. Without `action` or `next.reward`, a
single key whose innermost name is that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds2reverb.episodes import (
    ACTION,
    DISCOUNT,
    FLAGS,
    IS_LAST,
    IS_TERMINAL,
    OBSERVATION,
    REWARD,
    Array,
    columns_below,
    columns_under,
    is_under,
)
from rlds2reverb.errors import SourceError
from rlds2reverb.readers.alignment import MARK, steps, with_last, zero_row
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.readers.ted.bounds import any_of
from rlds2reverb.readers.ted.keys import NEXT, TedOptions, last_part
from rlds2reverb.readers.ted.trajectories import Rows, Trajectories
from rlds2reverb.remarks import Remark, note
from rlds2reverb.specs import ArraySpec

_REWARD = NEXT + REWARD
_FLAG = ArraySpec((), np.dtype(bool))
_FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Roles:
    """What each key is taken for: path of a column -> key.

    Attributes:
      observed: columns with T + 1 rows.
      steps: columns with T rows, beside those that follow.
      reward, discount, terminated, truncated, done: keys, "" for none.
      remarks: of what was guessed.
    """

    observed: Mapping[str, str]
    steps: Mapping[str, str]
    reward: str
    discount: str
    terminated: str
    truncated: str
    done: str
    remarks: tuple[Remark, ...]

    @staticmethod
    def of(held: Trajectories) -> Roles:
        """The roles of a buffer's keys.

        Raises:
          SourceError: two keys would be one column.
        """
        remarks: list[Remark] = []
        observed = {key: key for key in held.observed if key != held.id_key}
        single = {key for key in held.steps if is_under(key, OBSERVATION)}
        if observed and not single and not any(is_under(key, OBSERVATION) for key in observed):
            remarks.append(_guess("the observation is", observed, "observation"))
            alone = len(observed) == 1
            observed = {OBSERVATION if alone else f"{OBSERVATION}/{key}": key for key in observed}
        steps = {key: key for key in held.steps}
        reward = _single(held, REWARD, _REWARD, steps, remarks)
        action = "" if any(is_under(key, ACTION) for key in steps) else _single(held, ACTION, ACTION, steps, remarks)
        if action:
            steps[ACTION] = action
        found = {key: NEXT + key if NEXT + key in steps else "" for key in ("terminated", "truncated", "done")}
        discount = DISCOUNT if DISCOUNT in steps else ""
        for key in (*found.values(), discount, held.id_key):
            steps.pop(key, None)
        taken = [
            path for path in (*observed, *steps) if path in (REWARD, DISCOUNT, *FLAGS) or path.startswith("metadata/")
        ]
        if taken or set(observed) & set(steps):
            raise SourceError(
                f'a key "{(taken or sorted(set(observed) & set(steps)))[0]}" has the name of a column of another meaning'
            )
        return Roles(observed, steps, reward, discount, remarks=tuple(remarks), **found)

    def spec(self, held: Trajectories, options: TedOptions) -> dict[str, ArraySpec]:
        """Path -> spec of a step's value."""
        made = {path: held.observed[key] for path, key in self.observed.items()}
        made |= {path: held.steps[key] for path, key in self.steps.items()}
        if self.reward:
            made[REWARD] = _unpacked(held.steps[self.reward])
        if self.discount:
            made[DISCOUNT] = _unpacked(held.steps[self.discount])
        elif self.tells_terminals(options):
            made[DISCOUNT] = ArraySpec((), _FLOAT32)
        flags = FLAGS if self.tells_terminals(options) else tuple(name for name in FLAGS if name != IS_TERMINAL)
        return {**made, **dict.fromkeys(flags, _FLAG)}

    def tells_terminals(self, options: TedOptions) -> bool:
        """Whether it is known which episodes end in a terminal state."""
        return bool(self.terminated or (self.done and (self.truncated or options.done_is_terminal is not None)))

    def columns(self, rows: Rows, number: int, options: TedOptions) -> dict[str, Array]:
        """RLDS' columns of one trajectory."""
        read = {path: rows.step(key, number) for path, key in self.steps.items()}
        observed = {path: rows.observe(key, number) for path, key in self.observed.items()}
        observation = columns_under(observed, OBSERVATION) or self._closed(columns_under(read, OBSERVATION), options)
        reward = _flat(rows.step(self.reward, number)) if self.reward else None
        discount = _flat(rows.step(self.discount, number)) if self.discount else None
        terminals = self._terminals(rows, number, options)
        count = len(terminals) if terminals is not None else _first_length(read, observed, reward)
        if options.last_step == MARK and not columns_under(observed, OBSERVATION):
            count -= 1
            read, terminals = (
                {path: column[:count] for path, column in read.items()},
                None if terminals is None else terminals[:count],
            )
            reward, discount = (
                None if reward is None else reward[:count],
                None if discount is None else discount[:count],
            )
        others = {
            path: column
            for path, column in (observed | read).items()
            if not is_under(path, OBSERVATION) and not is_under(path, ACTION)
        }
        ends = None if terminals is None else bool(terminals[-1:].any())
        made = steps(
            columns_below(observation, OBSERVATION),
            columns_below(read, ACTION),
            reward,
            ends,
            _padded(others, count),
            discount,
        )
        if discount is not None:
            made[DISCOUNT][-1:] = 0 if ends else 1
        if terminals is not None and terminals[:-1].any():
            made[IS_TERMINAL] = np.append(False, terminals)
        if len(made[IS_LAST]) != count + 1:
            raise BrokenEpisode("", f"has {len(made[IS_LAST]):,} rows; expected {count + 1:,}, one more than steps")
        return made

    def _closed(self, columns: Mapping[str, Array], options: TedOptions) -> dict[str, Array]:
        """Observations without those after the last step."""
        if options.last_step == MARK:
            return dict(columns)
        return {path: with_last(column, column[-1]) for path, column in columns.items()}

    def _terminals(self, rows: Rows, number: int, options: TedOptions) -> Array | None:
        """[T] whether the state after each step is terminal."""
        if self.terminated:
            return any_of(rows.step(self.terminated, number))
        if self.done and self.truncated:
            return any_of(rows.step(self.done, number)) & ~any_of(rows.step(self.truncated, number))
        if self.done and options.done_is_terminal is not None:
            return any_of(rows.step(self.done, number)) & options.done_is_terminal
        return None


def _single(held: Trajectories, name: str, usual: str, steps: dict[str, str], remarks: list[Remark]) -> str:
    """The key of a role, taken out of `steps`: the usual one, or the only one that is called so."""
    if usual in steps:
        return steps.pop(usual)
    at = usual.startswith(NEXT)
    alike = [key for key in steps if last_part(key) == name and key.startswith(NEXT) == at]
    if len(alike) != 1:
        return ""
    remarks.append(_guess(f"the {name} is", alike, name))
    return steps.pop(alike[0])


def _guess(what: str, keys: Any, option: str) -> Remark:
    names = "+".join(key.removeprefix(NEXT).replace("/", ".") for key in keys)
    return note("keys", f"{what} taken from {names}, as there is no key of the usual name; {option}=KEY says otherwise")


def _first_length(*groups: Any) -> int:
    read, observed, reward = groups
    if read:
        return len(next(iter(read.values())))
    return len(reward) if reward is not None else len(next(iter(observed.values()))) - 1


def _padded(columns: Mapping[str, Array], count: int) -> dict[str, Array]:
    return {path: np.concatenate([one, zero_row(one)]) if len(one) == count else one for path, one in columns.items()}


def _unpacked(spec: ArraySpec) -> ArraySpec:
    return ArraySpec((), spec.dtype) if spec.shape == (1,) else spec


def _flat(column: Array) -> Array:
    return column[:, 0] if column.shape[1:] == (1,) else column
