"""Environments and policies that tests play, by their names, too."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

NESTED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (4, 5, 3), np.uint8),
        "pair": spaces.Tuple((spaces.Discrete(4, start=1), spaces.MultiBinary(3))),
        "said": spaces.Text(8),
        "speeds": spaces.MultiDiscrete([2, 3]),
    }
)
ACTIONS = spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (2,), np.float32)))


class Nested(gymnasium.Env[Any, Any]):
    """Observations of every kind; ends after so many steps as its seed says, terminated where that is even."""

    observation_space, action_space = NESTED, ACTIONS

    def __init__(self) -> None:
        self._at = self._length = 0
        self.observation_space = deepcopy(type(self).observation_space)  # whose random numbers are its own

    def _observe(self) -> Any:
        return self.observation_space.sample() | {"said": f"step {self._at}"}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._at, self._length = 0, 2 + (seed or 0) % 4
        self.observation_space.seed(seed)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._at += 1
        is_over, is_even = self._at == self._length, self._length % 2 == 0
        info = {"at": self._at, "where": {"x": np.float32(self._at)}, "odd": object()}
        return self._observe(), float(self._at), is_over and is_even, is_over and not is_even, info


class Wordless(Nested):
    """Without text, which vectors of environments do not stack."""

    observation_space = spaces.Dict({key: space for key, space in NESTED.items() if key != "said"})

    def _observe(self) -> Any:
        return self.observation_space.sample()


class InPlace(gymnasium.Env[Any, Any]):
    """Writes every observation into the same array, as some simulators do."""

    observation_space, action_space = spaces.Box(-9, 9, (2,), np.float32), spaces.Discrete(2)

    def __init__(self, breaks_at: int = 0) -> None:
        self._buffer, self._breaks_at = np.zeros(2, np.float32), breaks_at

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._buffer[:] = 0
        return self._buffer, {"start": 1}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._buffer += 1
        if self._breaks_at and self._buffer[0] >= self._breaks_at:
            raise ValueError("the motor\nis burnt")
        return self._buffer, 1.0, False, bool(self._buffer[0] >= 4), {"late": 2.5}


class Alike(InPlace):
    """Every episode is the same."""

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**given)[0], {}


class Unseeded(InPlace):
    """No episode is like another, whatever the seed; breaks at this one, where that is said."""

    played, breaks_in = 0, -1

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        if type(self).played == self.breaks_in:
            raise ValueError("the cable is off")
        type(self).played += 1
        observation, info = super().reset(**given)
        observation += np.float32(type(self).played / 128)
        return observation, info


class OtherDtype(InPlace):
    """Says float32, and gives float64."""

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**given)[0].astype(np.float64), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, *rest = super().step(action)
        return (observation.astype(np.float64), *rest)


class Outside(InPlace):
    """Gives what its space does not have."""

    observation_space = spaces.Box(-9, 2, (2,), np.float32)


class Short(InPlace):
    """A Tuple of which a part is missing."""

    observation_space = spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2)))

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        return (1,), {}


class Sequences(InPlace):
    observation_space = spaces.Sequence(spaces.Discrete(2))


def cart(**kwargs: Any) -> Any:
    return gymnasium.make("CartPole-v1", **kwargs)


def nothing() -> Any:
    return None


def balance(observation: Any) -> Any:
    return np.int64(observation[2] > 0)


def leave(observation: Any) -> Any:
    raise SystemExit(0)


def half(observation: Any) -> Any:
    return 0.5


def noisy(observation: Any, rng: Any, step: int) -> Any:
    return rng.integers(2) if step % 2 else np.int64(1)


def of_all(observations: Any) -> Any:
    return (observations[:, 2] > 0).astype(np.int64)
