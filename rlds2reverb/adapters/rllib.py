"""RLlib: a table's batches as its SampleBatch, MultiAgentBatch and SingleAgentEpisode, priorities back, and an input for workers.

What an item is tells how it becomes rows. It is known by its columns:

| items of the view | rows |
| --- | --- |
| requirements, fragments | theirs: the names are RLlib's; rows of a fragment stand one after the other |
| transition | one |
| n_step | one, with the number of its steps as n_step; terminated where its discount is 0, never truncated |
| two_step, sequence, episode and whatever else holds trajectories | one per pair of steps; pairs that begin with an episode's last step or with padding are left out |

Every SampleBatch has obs, actions, rewards, terminateds, truncateds, weights and n_step, and new_obs unless the items have none.
Values and dtypes are those of the table; n_step is int64, weights float32: `info.weight` where it was asked for, else ones.

Runs with Ray 2.12 (Policy, old API stack) and 2.60 (Learner, new one).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds2reverb.adapters.rllib_rows import item_of, pairs_in, rows_of, told
from rlds2reverb.adapters.serving import Server, check_pickles, opened
from rlds2reverb.client import Client
from rlds2reverb.episodes import Array
from rlds2reverb.errors import ConfigError, Stalled
from rlds2reverb.extras import needing
from rlds2reverb.learner.batch import Batch
from rlds2reverb.learner.feed import Batches
from rlds2reverb.learner.options import SampleOptions
from rlds2reverb.specs import Nest, map_leaves
from rlds2reverb.views.trajectory import FIELDS, LAST

with needing("the adapter for RLlib", "rllib", ModuleNotFoundError):
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.offline.input_reader import InputReader
    from ray.rllib.policy.sample_batch import DEFAULT_POLICY_ID, MultiAgentBatch, SampleBatch


def sample_batch(batch: Batch, n_step: int = 1) -> SampleBatch:
    """Rows for `policy.learn_on_batch`, or for an InputReader.

    Args:
      batch: of `client.sample`.
      n_step: steps between obs and new_obs, where the items do not tell; DQN and SAC discount by it.

    Raises:
      ConfigError: the items have none of the structures above, or hold no row.
    """
    columns, items = rows_of(batch)
    weight = batch.info.weight
    weights = np.ones(len(items), np.float32) if weight is None else np.asarray(weight, np.float32)[items]
    steps = np.full(len(items), n_step, np.int64)
    return SampleBatch({"weights": weights, "n_step": steps, **columns})


def multi_agent_batch(batch: Batch, n_step: int = 1, module: str = DEFAULT_POLICY_ID) -> MultiAgentBatch:
    """Rows for `Learner.update(batch=...)`, which turns numpy into tensors only in such a batch.

    Args:
      batch, n_step: as for `sample_batch`, which also tells what is raised.
      module: the RLModule (or policy) that learns from it.
    """
    rows = sample_batch(batch, n_step)
    return MultiAgentBatch({module: rows}, env_steps=rows.count)


def update_priorities(
    client: Client, table: str, batch: Batch, td_errors: npt.ArrayLike, epsilon: float = 1e-6
) -> None:
    """Gives the items of a batch the priorities that their rows' errors call for: the largest |error| of an item, plus epsilon.

    An item without rows keeps its priority.

    Args:
      client, table: where the batch came from.
      batch: of `client.sample`; the one that `sample_batch` took.
      td_errors: [N] or [N, 1], one for each row, as a Learner's results or a policy's `td_error` have them.
      epsilon: so that no item is never drawn again.

    Raises:
      ConfigError: not one error per row, or one that is not finite; nothing was sent.
      ServerUnreachable, TransportError: as `Client.update_priorities`.
    """
    _, items = rows_of(batch)
    errors = np.abs(np.asarray(td_errors, np.float64)).ravel()
    if len(errors) != len(items):
        raise ConfigError(f"td_errors: {len(errors)} for {len(items)} rows; expected one each")
    largest = np.full(batch.size, -np.inf)
    np.maximum.at(largest, items, errors)
    has_rows = np.isin(np.arange(batch.size), items)
    client.update_priorities(table, batch.info.key[has_rows], largest[has_rows] + epsilon)


def episodes(batch: Batch) -> list[SingleAgentEpisode]:
    """Episodes for `Learner.update(episodes=...)`, from items of trajectories: the view `episode`, or any other of several steps.

    An episode ends with its last step, or with its item; then it is truncated. It has T + 1 observations for T actions.
    Episodes of one step, which have no action, and padding are left out.

    Args:
      batch: of `client.sample`.

    Raises:
      ConfigError: the items are no trajectories.
    """
    if getattr(batch.data, "_fields", ()) != FIELDS:
        raise ConfigError(f"RLlib's episodes need items of trajectories ({', '.join(FIELDS)}); got {told(batch.data)}")
    masks = [None] * batch.size if batch.info.mask is None else list(batch.info.mask)
    return [one for number, mask in enumerate(masks) for one in _episodes_of(item_of(batch.data, number), mask)]


class TableInput(InputReader):  # type: ignore[misc]  # RLlib is Any where it is not installed
    """The `input_` of old-stack algorithms: `config.offline_data(input_=lambda context: TableInput("localhost:8000", "replay"))`.

    It connects when the first batch is asked for, and holds no connection before that: workers may get it pickled.

    Args:
      server: "host:port", a list of several, a function without arguments that connects, or an open client, which cannot be pickled;
        see `adapters.serving`.
      table: its name.
      batch_size: items per batch.
      n_step: as for `sample_batch`.
      options: the other fields of `SampleOptions`, by name.

    Raises:
      ConfigError: an option makes no sense.
    """

    def __init__(
        self, server: Server, table: str, batch_size: int = SampleOptions.batch_size, n_step: int = 1, **options: Any
    ) -> None:
        super().__init__()
        SampleOptions(batch_size, **options)  # wrong ones fail here, not in a worker
        self._server = server
        self._asked = {"table": table, "batch_size": batch_size, **options}
        self._n_step = n_step
        self._open: tuple[ExitStack, Batches] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For workers. Raises ConfigError where the server is an open client."""
        check_pickles(self._server)
        return {**vars(self), "_open": None}

    def next(self) -> SampleBatch:
        """The next batch, for ever; a reader whose samples are limited begins again.

        Raises:
          Stalled: it began, and ended without a batch.
          Rlds2ReverbError: as sampling does.
        """
        batch = None if self._open is None else self._open[1].next_batch()
        if batch is None:
            self.close()
            with ExitStack() as opening:  # closes the client where there is no such table
                client = opening.enter_context(opened(self._server))
                sampler: Batches = client.sample(**self._asked)
                opening.callback(sampler.close)
                self._open = opening.pop_all(), sampler
            batch = sampler.next_batch()
        if batch is None:
            raise Stalled(
                f'table "{self._asked["table"]}": it gave no sample before the end that was asked for; fill it, or wait longer'
            )
        return sample_batch(batch, self._n_step)

    def close(self) -> None:
        """Ends its streams and its connection; `next` opens others."""
        if self._open is not None:
            used, _ = self._open
            self._open = None
            used.close()


def _episodes_of(data: Any, mask: Array | None) -> Iterator[SingleAgentEpisode]:
    """Of one item [T, ...]; mask [T], the steps that are its own."""
    is_pair = pairs_in(data, mask)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_pair, [False]]).astype(np.int8)))
    for start, stop in edges.reshape(-1, 2).tolist():  # actions [start, stop), and the observation after them
        ends = bool(data.step_type[stop] == LAST)
        is_terminal = ends and bool(data.discount[stop - 1] == 0 or data.discount[stop] == 0)
        yield SingleAgentEpisode(
            observations=_steps(data.observation, start, stop + 1),
            actions=_steps(data.action, start, stop),
            rewards=data.reward[start:stop].tolist(),
            terminated=is_terminal,
            truncated=not is_terminal,
            len_lookback_buffer=0,
        )


def _steps(nest: Nest, start: int, stop: int) -> list[Nest]:
    return [map_leaves(lambda leaf, step=step: leaf[step], nest) for step in range(start, stop)]  # type: ignore[misc]
