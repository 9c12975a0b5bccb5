"""Steps of environments, recorded as they happen, and the episodes that they make.

An episode of T actions has T + 1 rows. Row t has the observation o_t, the infos that came with it, the action a_t taken at it, and the reward that a_t
earned; the last row has the final observation, and 0 for action and reward.

StepKinds           which columns there are; the first step says
OpenTrajectory      the episode of one environment
OpenTrajectories    the episodes of a vector of environments: every value is written once, for all of them
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlds2reverb.episode import (
    ACTION,
    DISCOUNT,
    IS_FIRST,
    IS_LAST,
    IS_TERMINAL,
    OBSERVATION,
    REWARD,
    Array,
    Episode,
)
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.rows import flags, terminal_discount
from rlds2reverb.learner.recording import RecordedColumns, StepLayout, spec_of_value
from rlds2reverb.specs import ArraySpec, Nest, flatten
from rlds2reverb.text import shortened

INFOS = "infos"
_REWARD_SPEC = ArraySpec((), np.dtype(np.float64))
_FLAG_SPEC = ArraySpec((), np.dtype(bool))
_DISCOUNT_SPEC = ArraySpec((), np.dtype(np.float32))
_MOST_BYTES = 4 << 30
_FIRST_ROWS = 256
_NO_INFOS: dict[str, Any] = {}  # of every step that has none


@dataclass
class StepKinds:
    """The columns of an environment's steps.

    Attributes:
      observation, action: path -> spec, as the spaces have them. The dtype is that of the first value where this is another.
      record_infos: whether infos become columns.
      reward: of the rewards, by default float64, which holds whatever number an environment gives.
      infos: path below `infos` -> spec, of the first episode.
      observed, acted: how steps are nested; None before the first value.
      left_out: path of an info that no column holds -> why.
      filled: paths of infos that some rows lack, such as those of a reset; they hold 0 or empty text there.
      unlike: path -> the dtype that the space says, where the values have another one.
      outside: paths of columns with a value that is not in its space.
    """

    observation: Mapping[str, ArraySpec]
    action: Mapping[str, ArraySpec]
    record_infos: bool = False
    reward: ArraySpec = _REWARD_SPEC
    infos: dict[str, ArraySpec] | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    filled: dict[str, None] = field(default_factory=dict)
    unlike: dict[str, np.dtype[Any]] = field(default_factory=dict)
    outside: dict[str, None] = field(default_factory=dict)

    @property
    def specs(self) -> dict[str, ArraySpec]:
        """Path -> spec of every column of an episode."""
        infos = {f"{INFOS}/{path}": spec for path, spec in (self.infos or {}).items()}
        ends = {DISCOUNT: _DISCOUNT_SPEC, IS_FIRST: _FLAG_SPEC, IS_LAST: _FLAG_SPEC, IS_TERMINAL: _FLAG_SPEC}
        return {**self.observation, **self.action, REWARD: self.reward, **ends, **infos}

    def holds_reward(self, number: float) -> bool:
        """Whether the column of rewards holds the number as it is."""
        with np.errstate(over="ignore"):
            return bool(float(self.reward.dtype.type(number)) == number) or number != number

    def learn(self, name: str, value: Nest) -> None:
        """Takes the dtypes of a first observation or action, whose shapes must be those of the space.

        Raises:
          ConfigError: it has other columns or shapes than the space.
        """
        specs = self.observation if name == OBSERVATION else self.action
        values = flatten(value, name)
        if values.keys() != specs.keys():
            raise ConfigError(
                f"{name}: expected {', '.join(specs)}, as the space says; got {', '.join(values)}. Give the space of what comes, or correct the environment"
            )
        learnt = dict(specs)
        for path, spec in specs.items():
            came, _ = spec_of_value(path, values[path])
            if came.shape != spec.shape or (came.dtype.kind == "O") != (spec.dtype.kind == "O"):
                raise ConfigError(
                    f'"{path}": expected {spec}, as the space says; got {came}. Give the space of what comes, or correct the environment'
                )
            is_plain = type(values[path]) in (bool, int, float)
            if came.dtype != spec.dtype and not is_plain:
                self.unlike[path] = spec.dtype
                learnt[path] = replace(spec, dtype=came.dtype)
        if name == OBSERVATION:
            self.observation = learnt
        else:
            self.action = learnt

    def values_outside(self, columns: Mapping[str, Array]) -> Iterator[tuple[str, str]]:
        """Columns of an episode with a value that is not in its space, where none was seen before: (path, which)."""
        for path, spec in {**self.observation, **self.action}.items():
            if path in self.outside or spec.minimum is None or path not in columns or _holds_all(spec):
                continue
            column = columns[path] if path in self.observation else columns[path][:-1]
            outside = (column < spec.minimum) | (column > spec.maximum)
            if outside.any():
                row = int(np.argwhere(outside)[0][0])
                self.outside[path] = None
                yield path, f"step {row} has {column[row]}; expected {spec.minimum} to {spec.maximum}"

    def learn_infos(self, rows: list[dict[str, Any]]) -> None:
        """Takes the infos of a first episode, each by its first value; what no column holds is left out."""
        self.infos = {}
        for row in rows:
            for path, value in row.items():
                if path in self.infos or path in self.left_out:
                    continue
                try:
                    spec, _ = spec_of_value(path, value)
                except ConfigError:
                    self.left_out[path] = f"a {type(value).__name__}"
                    continue
                # 64 bits, as the values have: an episode holds what came.
                is_float = isinstance(value, float) and not isinstance(value, np.floating)
                self.infos[path] = replace(spec, dtype=np.dtype(np.float64)) if is_float else spec

    def info_columns(self, rows: list[dict[str, Any]]) -> tuple[dict[str, Array], list[tuple[str, str]]]:
        """The columns [T + 1, ...] of an episode's infos, and those that do not fit: (path, why)."""
        if self.infos is None:
            self.learn_infos(rows)
        if not self.infos and not any(rows):
            return {}, []
        columns: dict[str, Array] = {}
        faults: list[tuple[str, str]] = []
        for path, spec in (self.infos or {}).items():
            values = [row.get(path) for row in rows]
            if any(value is None for value in values):
                self.filled[path] = None
            try:
                columns[f"{INFOS}/{path}"] = _column_of(values, spec)
            except (ValueError, TypeError) as error:
                faults.append((f"{INFOS}/{path}", f"expected {spec}, as in the first episode: {error}"))
        for path in dict.fromkeys(path for row in rows for path in row):
            if path not in (self.infos or {}) and path not in self.left_out:
                self.left_out[path] = "not in the first episode"
        return columns, faults


def _holds_all(spec: ArraySpec) -> bool:
    """Whether the bounds are those of the dtype, as of images."""
    if spec.dtype.kind not in "iu" or np.ndim(spec.minimum) or np.ndim(spec.maximum):
        return False
    bounds = np.iinfo(spec.dtype)
    return bool(spec.minimum == bounds.min and spec.maximum == bounds.max)


def _column_of(values: list[Any], spec: ArraySpec) -> Array:
    """A column [T, ...] of values of one spec; None becomes 0 or empty text."""
    sizes = tuple(size or 0 for size in spec.shape)
    kind = spec.dtype.kind
    # Not NaN, which validation refuses wherever it stands.
    column = np.full((len(values), *sizes), b"" if kind == "O" else 0, spec.dtype)
    for row, value in enumerate(values):
        if value is None:
            continue
        if kind == "O":
            if not isinstance(value, (str, bytes)):
                raise ValueError(f"got a {type(value).__name__} in row {row}")
            column[row] = value.encode() if isinstance(value, str) else value
            continue
        array = np.asarray(value)
        if array.shape != sizes or not np.can_cast(array.dtype, spec.dtype, "same_kind"):
            raise ValueError(f"got {array.dtype}{list(array.shape)} in row {row}")
        with np.errstate(over="ignore"):
            column[row] = array
        if array.dtype != spec.dtype and not np.array_equal(column[row], array, equal_nan=array.dtype.kind in "fc"):
            raise ValueError(f"got {shortened(str(value))} in row {row}, which that dtype does not hold")
    return column


def flat_infos(info: Mapping[str, Any]) -> dict[str, Any]:
    """Path -> value of an info; an array is copied, for some environments write into the same one."""
    if not isinstance(info, Mapping):
        raise ConfigError(f"info: expected a dict, as gymnasium's environments give, got {shortened(repr(info))}")
    flat: dict[str, Any] = {}
    for key, value in info.items():
        if isinstance(value, Mapping):
            flat.update({f"{key}/{below}": leaf for below, leaf in flat_infos(value).items()})
        elif value is not None:
            flat[str(key)] = value.copy() if isinstance(value, np.ndarray) else value
    return flat


def episode_of(
    columns: Mapping[str, Array],
    is_terminal: bool,
    metadata: Mapping[str, Any],
    faults: tuple[tuple[str, str], ...] = (),
    where: str = "",
) -> Episode:
    """The episode of columns [T + 1, ...], with discounts and flags; is_terminal says whether it was terminated, `where` is for messages."""
    rows = len(columns[REWARD])
    return Episode(
        {**columns, DISCOUNT: terminal_discount(rows, is_terminal), **flags(rows, is_terminal)},
        metadata,
        faults=faults,
        where=where,
    )


class OpenTrajectory:
    """Records the episode of one environment, and then the next one. Values are copied.

    Args:
      kinds: of its columns, which the first step completes.
    """

    def __init__(self, kinds: StepKinds) -> None:
        self.kinds = kinds
        # Made by the first step, and used again by every episode: many are short.
        self._observed: RecordedColumns | None = None
        self._acted: RecordedColumns | None = None
        # Whether each of the two is a single value, which needs no taking apart.
        self._is_plain_observation = tuple(kinds.observation) == (OBSERVATION,)
        self._is_plain_action = tuple(kinds.action) == (ACTION,)
        self._infos: list[dict[str, Any]] = []
        self._records_infos = kinds.record_infos
        self._is_open = False

    def __len__(self) -> int:
        """Actions so far."""
        return self._acted.rows if self._is_open and self._acted is not None else 0

    @property
    def is_open(self) -> bool:
        return self._is_open

    def begin(self, observation: Nest, info: Mapping[str, Any]) -> None:
        """Begins an episode, and forgets one that has not ended."""
        self.forget()
        if self._observed is None:
            self.kinds.learn(OBSERVATION, observation)
            layout = StepLayout({OBSERVATION: observation})
            self._observed = RecordedColumns(layout, self.kinds.observation, _MOST_BYTES)
        self._observe(self._observed, observation)
        self._is_open = True
        if self._records_infos:
            self._infos.append(flat_infos(info) if info else _NO_INFOS)

    def add(self, action: Nest, reward: Any, observation: Nest, info: Mapping[str, Any]) -> None:
        """Adds an action, and what it led to.

        Raises:
          ConfigError: no episode is open; or a value has another dtype or shape than the ones before.
        """
        observed, acted = self._observed, self._acted
        if not self._is_open or observed is None:
            raise ConfigError(
                "step: no episode has begun; call reset before the first step, and after the last step of an episode"
            )
        if acted is None:
            acted = self._acted = self._begin_actions(action)
        number = reward if type(reward) is float else _number(reward)
        # A float would be rounded to the dtype of the first reward.
        if not self._holds_rewards and not self.kinds.holds_reward(number):
            raise ConfigError(
                f'"{REWARD}": {number!r} is not a {self.kinds.reward.dtype}, the dtype of the first one; give rewards of one dtype, '
                "by a wrapper of the environment or a step callback"
            )
        if self._is_plain_action:
            acted.append_row((action, number))
        else:
            acted.append({ACTION: action, REWARD: number})
        try:
            self._observe(observed, observation)
        except BaseException:
            acted.rows -= 1  # nothing of the step is taken
            raise
        if self._records_infos:
            self._infos.append(flat_infos(info) if info else _NO_INFOS)

    def _begin_actions(self, action: Nest) -> RecordedColumns:
        self.kinds.learn(ACTION, action)
        self._holds_rewards = self.kinds.reward.dtype == np.float64
        specs = {**self.kinds.action, REWARD: self.kinds.reward}
        return RecordedColumns(StepLayout({ACTION: action, REWARD: 0.0}), specs, _MOST_BYTES)

    def _observe(self, observed: RecordedColumns, observation: Nest) -> None:
        if self._is_plain_observation:
            observed.append_row((observation,))
        else:
            observed.append({OBSERVATION: observation})

    def end(self, is_terminal: bool, metadata: Mapping[str, Any], where: str = "") -> Episode:
        """Ends the episode, which has at least one action."""
        observed, acted = self._observed, self._acted
        assert observed is not None  # the caller has asked for its length
        assert acted is not None
        acted.append_values({})
        columns = {**observed.finished(), **acted.finished()}
        faults: list[tuple[str, str]] = []
        if self._records_infos:
            infos, faults = self.kinds.info_columns(self._infos)
            columns |= infos
        self.forget()
        return episode_of(columns, is_terminal, metadata, tuple(faults), where)

    def forget(self) -> None:
        """Drops what was recorded since the last end."""
        for part in (self._observed, self._acted):
            if part is not None:
                part.begin()
        self._infos = []
        self._is_open = False


def _number(reward: Any) -> float:
    try:
        return float(reward)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f'"{REWARD}": expected a number, got {shortened(repr(reward))}. Nothing of this step was taken'
        ) from error


NEXT_STEP, SAME_STEP, DISABLED = "NextStep", "SameStep", "Disabled"
"""How a vector of environments begins anew where an episode has ended: `gymnasium.vector.AutoresetMode`."""


@dataclass(frozen=True)
class EndedTrajectory:
    """An episode of one environment of a vector.

    Attributes:
      place: of the environment.
      columns: path -> [T + 1, ...].
      is_terminal: whether it was terminated; else truncated.
      faults: infos that do not fit, see `Episode`.
    """

    place: int
    columns: Mapping[str, Array]
    is_terminal: bool
    faults: tuple[tuple[str, str], ...] = ()


class OpenTrajectories:
    """Records the episodes of N environments that step together.

    | mode | the step that ends an episode gives | the next step of that environment |
    | --- | --- | --- |
    | NEXT_STEP | the final observation | takes no action: its observation begins the next episode |
    | SAME_STEP | the observation that begins the next episode; the final one is in infos["final_obs"] | is the first of it |
    | DISABLED | the final observation | comes after `reset` of this environment |

    Args:
      kinds: of the columns, which the first step completes.
      count: N.
      mode: one of the three.
      nest: of a value of the observation space, see `columns_of_space`.

    Raises:
      ConfigError: a space of text.
    """

    def __init__(self, kinds: StepKinds, count: int, mode: str, nest: Callable[[Any], Nest] | None = None) -> None:
        for path, spec in {**kinds.observation, **kinds.action}.items():
            if spec.dtype.kind == "O":
                raise ConfigError(
                    f'"{path}": text is not recorded from vectors of environments; record each environment by itself'
                )
        self.kinds, self._count, self._mode, self._nest = kinds, count, mode, nest
        self._row = -1  # of the observation that came last
        self._room = _FIRST_ROWS
        self._arrays: dict[str, Array] = {}
        # By environment: the row of its episode's first observation, and whether one is open.
        self._first = np.zeros(count, np.int64)
        self._is_open = np.zeros(count, bool)
        self._infos: list[list[dict[str, Any]]] = [[] for _ in range(count)]

    def __len__(self) -> int:
        """Actions of all open episodes."""
        return int((self._row - self._first)[self._is_open].sum())

    @property
    def open_lengths(self) -> Array:
        """[N] actions of each open episode; -1 where none is open."""
        return np.where(self._is_open, self._row - self._first, -1)

    def reset(self, observations: Nest, infos: Mapping[str, Any], mask: Array | None = None) -> None:
        """Begins episodes, and forgets those that have not ended.

        Args:
          observations: nest of [N, ...].
          mask: [N] which environments were reset; None for all.
        """
        if mask is None or self._row < 0:
            self._row = 0
            self._write(OBSERVATION, observations, 0)
            begins = np.ones(self._count, bool)
        else:
            begins = mask
            for path, values in flatten(observations, OBSERVATION).items():
                self._arrays[path][self._row][begins] = self._checked(path, values)[begins]
        self._begin(begins, infos)

    def _begin(self, begins: Array, infos: Mapping[str, Any]) -> None:
        self._first[begins] = self._row
        self._is_open |= begins
        if self.kinds.record_infos:
            for place in np.flatnonzero(begins).tolist():
                self._infos[place] = [info_at(infos, place)]

    def step(
        self,
        actions: Nest,
        observations: Nest,
        rewards: Any,
        terminated: Array,
        truncated: Array,
        infos: Mapping[str, Any],
    ) -> list[EndedTrajectory]:
        """Adds a step of all environments; returns the episodes that it ended.

        Args:
          actions, observations: nests of [N, ...].
          rewards, terminated, truncated: [N].
          infos: as a vector of environments gives them, with a mask `_NAME` for each name.

        Raises:
          ConfigError: no episode is open, an environment was not reset, or a value has another dtype or shape than those before.
        """
        if self._row < 0:
            raise ConfigError("step: no episode has begun; call reset before the first step")
        if self._mode == DISABLED and not self._is_open.all():
            waiting = ", ".join(map(str, np.flatnonzero(~self._is_open).tolist()))
            raise ConfigError(
                f"step: the episodes of environments {waiting} have ended, and nothing resets them (autoreset is disabled): call "
                'reset(options={"reset_mask": terminated | truncated}) first'
            )
        if self._row + 2 > self._room or not self._arrays:
            self._make_room()
        row = self._row
        self._write(ACTION, actions, row)
        self._rewards()[row] = rewards
        self._write(OBSERVATION, observations, row + 1)
        self._row = row + 1  # now that all of the step is there
        begins = ~self._is_open if self._mode == NEXT_STEP else np.zeros(self._count, bool)
        ends = (np.asarray(terminated) | np.asarray(truncated)) & self._is_open
        if self.kinds.record_infos:
            self._take_infos(infos, ends)
        ended = [
            self._end(place, bool(terminated[place]), infos if self._mode == SAME_STEP else None)
            for place in np.flatnonzero(ends).tolist()
        ]
        self._is_open &= ~ends
        if self._mode == SAME_STEP:
            begins |= ends
        if begins.any():
            self._begin(begins, infos)
        return ended

    def cut(self, mask: Array | None = None) -> list[EndedTrajectory]:
        """Ends open episodes that have an action, as truncated, and forgets the others: of the environments of the mask [N], by default all."""
        chosen = np.ones(self._count, bool) if mask is None else np.asarray(mask, bool)
        ended = [self._end(place, False, None) for place in np.flatnonzero((self.open_lengths > 0) & chosen).tolist()]
        self._is_open &= ~chosen
        return ended

    def forget(self) -> None:
        """Drops the open episodes."""
        self._is_open[:] = False

    def _take_infos(self, infos: Mapping[str, Any], ends: Array) -> None:
        for place in np.flatnonzero(self._is_open).tolist():
            is_final = ends[place] and self._mode == SAME_STEP
            info = info_at(infos.get("final_info", {}), place) if is_final else info_at(infos, place)
            self._infos[place].append(info)

    def _end(self, place: int, is_terminal: bool, infos: Mapping[str, Any] | None) -> EndedTrajectory:
        first, last = int(self._first[place]), self._row
        rows = last + 1 - first
        columns: dict[str, Array] = {}
        for path, array in self._arrays.items():
            column = array[first : last + 1, place].copy()
            if path == REWARD or path in self.kinds.action:
                column[rows - 1] = b"" if column.dtype.kind == "O" else 0
            columns[path] = column
        if infos is not None:
            final = _final_observation(infos, place)
            for path, value in flatten(final if self._nest is None else self._nest(final), OBSERVATION).items():
                columns[path][rows - 1] = value
        faults: list[tuple[str, str]] = []
        if self.kinds.record_infos:
            of_infos, faults = self.kinds.info_columns(self._infos[place])
            columns |= of_infos
        return EndedTrajectory(place, columns, is_terminal, tuple(faults))

    def _write(self, name: str, values: Nest, row: int) -> None:
        for path, value in flatten(values, name).items():
            array = self._arrays.get(path)
            if array is None:
                array = self._arrays[path] = self._new(path, name, values)
            array[row] = self._checked(path, value)

    def _new(self, path: str, name: str, values: Nest) -> Array:
        specs = self.kinds.observation if name == OBSERVATION else self.kinds.action
        if not any(known in self._arrays for known in specs):
            self.kinds.learn(name, _first_of(values))
            specs = self.kinds.observation if name == OBSERVATION else self.kinds.action
        if path not in specs:
            raise ConfigError(f'"{path}": the space has no such column; expected {", ".join(specs)}')
        spec = specs[path]
        return np.empty((self._room, self._count, *(size or 0 for size in spec.shape)), spec.dtype)

    def _checked(self, path: str, value: Any) -> Array:
        array, expected = np.asarray(value), self._arrays[path]
        if array.dtype != expected.dtype or array.shape != expected.shape[1:]:
            if array.shape == expected.shape[1:] and array.dtype.kind in "iu" and expected.dtype.kind in "iu":
                info = np.iinfo(expected.dtype)
                if array.min() >= info.min and array.max() <= info.max:
                    return array.astype(expected.dtype)
            raise ConfigError(
                f'"{path}": expected {expected.dtype}{list(expected.shape[1:])} of {self._count} environments, got {array.dtype}{list(array.shape)}'
            )
        return array

    def _rewards(self) -> Array:
        if REWARD not in self._arrays:
            self._arrays[REWARD] = np.empty((self._room, self._count), np.float64)
        return self._arrays[REWARD]

    def _make_room(self) -> None:
        """Moves the rows of the open episodes to the front, or doubles the arrays where these fill more than half."""
        oldest = int(self._first[self._is_open].min(initial=self._row))
        room = self._room if oldest > self._room // 2 else 2 * self._room
        for path, array in self._arrays.items():
            moved = np.empty((room, *array.shape[1:]), array.dtype)
            moved[: self._row + 1 - oldest] = array[oldest : self._row + 1]
            self._arrays[path] = moved
        self._room = room
        self._row -= oldest
        self._first -= oldest


def _first_of(values: Nest) -> Nest:
    """The value of the first environment, of a nest of [N, ...]."""
    if isinstance(values, Mapping):
        return {key: _first_of(value) for key, value in values.items()}
    return np.asarray(values)[0]


def info_at(infos: Mapping[str, Any], place: int) -> dict[str, Any]:
    """Path -> value of the infos of one environment of a vector, without the final ones of an episode before."""
    flat: dict[str, Any] = {}
    for key, values in infos.items():
        if (key.startswith("_") and key[1:] in infos) or key in ("final_obs", "final_info"):
            continue
        mask = infos.get(f"_{key}")
        if mask is not None and not mask[place]:
            continue
        if isinstance(values, Mapping):
            flat.update({f"{key}/{below}": value for below, value in info_at(values, place).items()})
        elif (value := values[place]) is not None:
            flat[str(key)] = value.copy() if isinstance(value, np.ndarray) else value
    return flat


def _final_observation(infos: Mapping[str, Any], place: int) -> Nest:
    """The final observation of an episode that ended in a step which also began the next one."""
    finals = infos.get("final_obs")
    if finals is None:
        raise ConfigError(
            'step: an episode ended, and infos has no "final_obs" of it, as autoreset in the same step gives (gymnasium 1.0 and later)'
        )
    if isinstance(finals, Mapping):
        return {key: _final_observation({"final_obs": value}, place) for key, value in finals.items()}
    return finals[place]
