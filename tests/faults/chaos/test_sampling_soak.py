"""Minutes of sampling while items are evicted and the server comes back with other data: every batch is compared with what was pushed."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from replay_server import TableConfig

import rlds2reverb
from rlds2reverb import Episode
from rlds2reverb.episode import Array
from rlds2reverb.errors import Rlds2ReverbError, TransportError
from tests.support.forks import Embedded, Forks
from tests.support.processes import free_port, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(3600)]

SECONDS = 600
EPISODES, ROWS = 40, 50
MAX_SIZE = 3 * EPISODES * (ROWS - 1) // 2
"""Items: one and a half generations, so that each evicts the one before."""

BATCH, PREFETCH = 64, 4


def test_every_sample_has_the_values_that_were_pushed(
    forks: Forks, tmp_path: Path, rng: np.random.Generator, size: float
) -> None:
    until, kills, compared, generations = time.monotonic() + SECONDS * size, 0, 0, 0
    with forks.embedded([TableConfig("bounded", max_size=MAX_SIZE)], port=free_port()) as server:
        with Pushing(server) as pushing, rlds2reverb.connect(server.address) as client:
            pushing.await_generations(2)
            streams, arena = int(rng.integers(1, 4)), int(rng.choice([1 << 20, 64 << 20]))
            sampled = client.sample(
                "bounded", BATCH, prefetch=PREFETCH, streams=streams, arena_bytes=arena, reconnect_seconds=300.0
            )
            with sampled as sampler:
                while kills < 2 or time.monotonic() < until:
                    enough = pushing.done + int(rng.integers(2, 8))
                    while pushing.done < enough:
                        compared += len(_compare(next(sampler)))
                    oldest = pushing.restart(server)
                    kills += 1
                    while sampler.restarts < kills:
                        compared += len(_compare(next(sampler)))
                    for _ in range(streams * (PREFETCH + 1)):  # what was received before
                        compared += len(_compare(next(sampler)))
                    for _ in range(20):
                        assert _compare(next(sampler)).min() >= oldest
            generations = pushing.done
    print(
        f"{compared:,} samples compared, {generations} generations, {kills} restarts, {streams} streams, arena {arena}"
    )


class Pushing:
    """Pushes for ever, each time other values under the same names of episodes; goes on when the server comes back.

    Attributes:
      done: generations that were stored.
    """

    def __init__(self, server: Embedded) -> None:
        self._address = server.address
        self._has_ended = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self.done = self._current = 0

    def __enter__(self) -> Pushing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self._thread.join()

    def await_generations(self, count: int) -> None:
        wait_until(lambda: self.done >= count or self._error is not None)
        assert self._error is None

    def restart(self, server: Embedded) -> int:
        """Kills the server and starts an empty one at its port; the oldest generation that it can get."""
        server.stop()
        oldest = self._current
        server.start()
        assert self._error is None
        return oldest

    def _run(self) -> None:
        try:
            for self._current in itertools.count():
                if self._has_ended.is_set():
                    return
                with self._surviving(), rlds2reverb.connect(self._address, timeout_seconds=5.0) as client:
                    client.push(_episodes(self._current), table="bounded", again=True, allow_eviction=True)
                    self.done += 1
        except BaseException as error:
            self._error = error
            raise

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        try:
            yield
        except Rlds2ReverbError as error:
            if not isinstance(error, TransportError):
                raise
            self._has_ended.wait(0.05)


def _episodes(generation: int) -> list[Episode]:
    episodes = []
    for number in range(EPISODES):
        steps = np.arange(ROWS) + (generation * EPISODES + number) * ROWS
        flags = {"is_first": steps % ROWS == 0, "is_last": steps % ROWS == ROWS - 1}
        columns = {**_columns(steps), **flags, "is_terminal": np.zeros(ROWS, bool)}
        episodes.append(Episode(columns, {}, f"episode-{number}"))
    return episodes


def _columns(steps: Array) -> dict[str, Array]:
    """[...] numbers of steps -> what those steps hold, whole numbers all, so that they compare exactly."""
    state = steps[..., None] * np.array([7, 11, 13, 17, 19]) % 10_007
    image = (steps[..., None] * np.arange(1, 433) >> 3) % 256
    return {
        "observation/image": image.reshape(*steps.shape, 12, 12, 3).astype(np.uint8),
        "observation/state": state.astype(np.float32),
        "action": steps,
        "reward": (steps % 97).astype(np.float32),
        "discount": np.ones(steps.shape, np.float32),
    }


def _compare(batch: rlds2reverb.Batch) -> Array:
    """[BATCH] the generations of a batch's samples, after all of their values were compared."""
    step_type, image, state, steps, next_step_type, reward, discount = map(np.asarray, batch.data)
    np.testing.assert_array_equal(steps[:, 1], steps[:, 0] + 1)
    row = steps % ROWS
    assert row[:, 0].max() < ROWS - 1  # both steps are of one episode
    np.testing.assert_array_equal(step_type, 1 + (row == ROWS - 1) - (row == 0))
    np.testing.assert_array_equal(next_step_type[:, 0], step_type[:, 1])
    expected = _columns(steps)
    found = {"observation/image": image, "observation/state": state, "reward": reward, "discount": discount}
    for name, values in found.items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)
    generations: Array = steps[:, 0] // (ROWS * EPISODES)
    return generations
