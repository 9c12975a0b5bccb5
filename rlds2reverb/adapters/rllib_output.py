"""The `output` of an RLlib config is a table: what an algorithm's EnvRunners sample goes there, each episode once.

    config.env_runners(env_runner_cls=TableEnvRunner)  # TableMultiAgentEnvRunner for several agents
    config.offline_data(output="localhost:8000/replay", output_config={"view": "transition"}, output_write_episodes=False)

    config.offline_data(output=lambda context: TableOutput("localhost:8000", "replay", "transition"))  # the old stack

All of them write as `table_callbacks` does, see `rllib_writing`; an EnvRunner of these classes also sends what waits when the algorithm stops.

Source: EnvRunnerGroup, OfflineSingleAgentEnvRunner and RolloutWorker of Ray 2.60.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb.adapters.common import Server
from rlds2reverb.adapters.rllib_writing import RecordKeywords, table_callbacks
from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import needing
from rlds2reverb.specs import flatten
from rlds2reverb.views import ViewLike

if TYPE_CHECKING:
    from typing_extensions import Unpack

with needing("the adapter for RLlib", "rllib", ModuleNotFoundError):
    from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
    from ray.rllib.offline.output_writer import OutputWriter

_STOP_SECONDS = 30.0  # that the end of an EnvRunner waits for a server


class _Recording:
    """Makes an EnvRunner write what it samples.

    The config's `output` is "host:port/table"; its `output_config` has the other arguments of `table_callbacks`, by name.

    Raises:
      ConfigError: `output` is no such text, or an option makes no sense.
      TypeError: `output_config` has another key.
    """

    def __init__(self, config: Any, **arguments: Any) -> None:
        server, _, table = config.output.rpartition("/") if isinstance(config.output, str) else ("", "", "")
        if not server or not table:
            raise ConfigError(
                f'{type(self).__name__}: config.output {config.output!r}: expected "host:port/table", by config.offline_data(output=...)'
            )
        self._callbacks_of_output = table_callbacks(server, table, **config.output_config)()
        super().__init__(config=config, **arguments)  # type: ignore[call-arg]

    def sample(self, **arguments: Any) -> Any:
        """As RLlib's own, and hands the result over to be written."""
        samples = super().sample(**arguments)  # type: ignore[misc]
        self._callbacks_of_output.on_sample_end(env_runner=self, samples=samples)
        return samples

    def stop(self) -> None:
        """As RLlib's own, and sends what waits, for at most 30 seconds; the log says what was not sent."""
        super().stop()  # type: ignore[misc]
        self._callbacks_of_output.recorder.close(_STOP_SECONDS)


class TableEnvRunner(_Recording, SingleAgentEnvRunner):  # type: ignore[misc]  # RLlib is Any where it is not installed
    """The EnvRunner of one agent, which writes what it samples: `config.env_runners(env_runner_cls=TableEnvRunner)`."""


class TableMultiAgentEnvRunner(_Recording, MultiAgentEnvRunner):  # type: ignore[misc]
    """The same of several agents, each of which has episodes of its own."""


class TableOutput(OutputWriter):  # type: ignore[misc]
    """The `output` of the old stack: `config.offline_data(output=lambda context: TableOutput("localhost:8000", "replay", "transition"))`.

    It connects with the first episode. Agents are named by their `agent_index`. Workers of the evaluation have an output too, unless the function
    returns a `NoopOutput` for them (`context.config["in_evaluation"]`).

    Args:
      server, table, view: as of `table_callbacks`.
      options: its further ones, by name; `extra_columns` are names of columns of the SampleBatch.

    Raises:
      ConfigError: an option makes no sense.
    """

    def __init__(
        self, server: Server, table: Any, view: ViewLike | None = None, **options: Unpack[RecordKeywords]
    ) -> None:
        self._recorder = table_callbacks(server, table, view, **options)().recorder
        # A sample need not have a fragment of each environment.
        self._recorder.assembler.calls_to_drop = None

    def write(self, sample_batch: Any) -> None:
        """Takes what a RolloutWorker has sampled: a SampleBatch or a MultiAgentBatch.

        Raises:
          ConfigError: rows without eps_id, t or new_obs, or whose new_obs is not the next row's obs, as with `n_step` > 1.
          Rlds2ReverbError: writing has failed.
        """
        batches = getattr(sample_batch, "policy_batches", None)
        if batches is None:
            self._recorder.take([_Rows(part, "", False) for part in _split(sample_batch)])
        else:
            self._recorder.take(
                [_Rows(part, str(name), True) for name, batch in batches.items() for part in _split(batch)]
            )


def _split(batch: Any) -> Iterator[Any]:
    """The parts of a SampleBatch that are consecutive steps of one agent each."""
    for name in ("eps_id", "t", "obs", "new_obs", "actions", "rewards", "terminateds", "truncateds"):
        if name not in batch:
            raise ConfigError(f'TableOutput: RLlib\'s rows have no "{name}"; there are {", ".join(sorted(batch))}')
    is_seam = np.diff(batch["t"]) != 1
    for name in ("eps_id", "agent_index"):
        if name in batch:
            is_seam |= np.diff(batch[name]) != 0
    starts = [0, *(np.flatnonzero(is_seam) + 1).tolist()]
    for start, stop in zip(starts, [*starts[1:], len(batch)]):
        if start < stop:
            yield batch.slice(start, stop)


class _Rows:
    """Consecutive rows of one agent, as `EpisodeAssembler` takes a chunk of an episode of the new stack."""

    observation_space = action_space = None

    def __init__(self, rows: Any, module: str, is_of_many: bool) -> None:
        self._rows, self.module_id = rows, module
        agent = int(rows["agent_index"][0]) if "agent_index" in rows else 0
        self.agent_index = agent if is_of_many else None
        episode = str(int(rows["eps_id"][0]))
        self.id_ = f"{episode}/{agent}" if is_of_many else episode
        self.multi_agent_episode_id = episode if is_of_many else None
        self.agent_id = str(agent) if is_of_many else None
        self.t_started = int(rows["t"][0])
        self.times = np.append(rows["t"], rows["t"][-1] + 1)
        self.is_terminated = bool(rows["terminateds"][-1])
        self.is_done = self.is_terminated or bool(rows["truncateds"][-1])
        self.extra_model_outputs: Mapping[str, Any] = rows

    def __len__(self) -> int:
        return len(self._rows["rewards"])

    def get_observations(self) -> Any:
        """The observations of the rows, and the one after the last: [T + 1, ...], or a nest of such."""
        own, following = flatten(self._rows["obs"]), flatten(self._rows["new_obs"])
        for path, column in own.items():
            if not _equal(column[1:], following[path][:-1]):
                raise ConfigError(
                    f'TableOutput: "new_obs" of a row is not "obs" of the next one{f" at {path}" if path else ""}: set n_step=1, and n-step returns '
                    "when sampling (the view n_step)"
                )
        joined = {path: np.concatenate([column, following[path][-1:]]) for path, column in own.items()}
        return joined.get("", joined)

    def get_actions(self) -> Any:
        """The actions of the rows."""
        return self._rows["actions"]

    def get_rewards(self) -> Array:
        """The rewards of the rows."""
        return np.asarray(self._rows["rewards"])

    def get_extra_model_outputs(self, name: str) -> Any:
        """A further column of the rows."""
        return self._rows[name]


def _equal(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


__all__ = ["TableEnvRunner", "TableMultiAgentEnvRunner", "TableOutput"]
