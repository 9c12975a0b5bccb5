"""RLlib's new stack learns offline from a table, or from a dataset without a server: the `offline_data_class` of a config.

    config.offline_data(input_="localhost:8000/replay", offline_data_class=table_data("localhost:8000", "replay"))
    config.offline_data(input_="bundled:cartpole", offline_data_class=local_data("bundled:cartpole"))

`input_` must be set, but is not read. Items become episodes, those go through the algorithm's learner connectors with the learner's own module,
and each training step gets a batch of at least `train_batch_size_per_learner` steps, as from RLlib's files. Items of `two_step` are episodes of one
step; what looks back or ahead within an episode, such as the advantages of MARWIL or the states of a recurrent module, needs longer ones: the
view `sequence`, or `episode`.

Source: OfflineData, OfflinePreLearner and MARWIL.training_step of Ray 2.60.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from rlds2reverb.adapters.common import Server, open_client
from rlds2reverb.adapters.rllib import episodes
from rlds2reverb.errors import ConfigError, Stalled
from rlds2reverb.extras import needing
from rlds2reverb.keywords import make_options, takes_options
from rlds2reverb.learner.batch import Batch
from rlds2reverb.learner.local import local
from rlds2reverb.learner.local.options import LocalKeywords, LocalOptions
from rlds2reverb.learner.options import SampleKeywords, SampleOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

with needing("the adapter for RLlib", "rllib", ModuleNotFoundError):
    from ray.rllib.env import INPUT_ENV_SPACES
    from ray.rllib.offline.offline_data import OfflineData
    from ray.rllib.offline.offline_prelearner import OfflinePreLearner
    from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

Batches = Iterator[Batch]
OpenBatches = Callable[[ExitStack], Batches]
"""Opens what gives batches, and puts what is to be closed onto the stack."""


@takes_options(SampleOptions)
def table_data(
    server: Server, table: str, batch_size: int = SampleOptions.batch_size, **options: Unpack[SampleKeywords]
) -> type[OfflineData]:
    """An `offline_data_class` that samples a table of trajectories.

    Args:
      server: "host:port", or a function without arguments that connects; see `adapters.common.Server`.
      table: its name.
      batch_size: items that are drawn at once. A training step takes as many draws as it needs.
      options: the other fields of `SampleOptions`, by name.

    Raises:
      ConfigError: an option makes no sense.
    """
    make_options(SampleOptions, "table_data", batch_size, **options)

    def open_batches(opened: ExitStack) -> Batches:
        client = opened.enter_context(open_client(server))
        sampler = client.sample(table, batch_size, **options)
        opened.callback(sampler.close)
        return iter(sampler)

    return _class_of(open_batches, f'table "{table}"')


@takes_options(LocalOptions)
def local_data(
    dataset: Any, view: Any = "two_step", batch_size: int = 256, **options: Unpack[LocalKeywords]
) -> type[OfflineData]:
    """An `offline_data_class` that reads a dataset without a server, again and again.

    Args:
      dataset, view, batch_size: as of `rlds2reverb.local`; the view gives trajectories.
      options: the further ones of `rlds2reverb.local`, by name.
    """

    def open_batches(opened: ExitStack) -> Batches:
        batches = local(dataset, view, batch_size, **options)
        opened.callback(batches.close)
        return iter(batches)

    return _class_of(open_batches, f"dataset {dataset}")


def _class_of(open_batches: OpenBatches, name: str) -> type[OfflineData]:
    class TableOfflineData(_OfflineBatches):
        _open_batches = staticmethod(open_batches)
        _name = name

    return TableOfflineData


class _OfflineBatches(OfflineData):  # type: ignore[misc]  # RLlib is Any where it is not installed
    """Episodes of batches, through the learner connectors."""

    _open_batches: OpenBatches
    _name: str

    def __init__(self, config: Any) -> None:
        # RLlib's own opens a ray.data.Dataset here, which there is none of; algorithms set and read these attributes.
        if config.num_learners or config.dataset_num_iters_per_learner != 1:
            raise ConfigError(
                f"{self._name}: it gives batches, not iterators of Ray Data: set num_learners=0 and dataset_num_iters_per_learner=1"
            )
        if config.is_multi_agent:
            raise ConfigError(f"{self._name}: RLlib learns offline from episodes of one agent only")
        self.config = config
        self.iter_batches_kwargs: dict[str, Any] = {}
        self.spaces: Any = None
        self.learner_handles: Any = None
        self.module_spec: Any = None
        self.locality_hints: Any = None
        self._connectors: _Connectors | None = None
        self._opened = ExitStack()
        self._batches: Batches | None = None

    def sample(self, num_samples: int, return_iterator: bool = False, **_: Any) -> MultiAgentBatch:
        """A batch of at least `num_samples` steps, in whole episodes of the items.

        Raises:
          ConfigError: the items are no trajectories, or an iterator is asked for.
          Stalled: there is no item with a step.
          Rlds2ReverbError: as sampling does.
        """
        if return_iterator:
            raise ConfigError(f"{self._name}: it gives batches, not iterators; see its errors about num_learners")
        chosen, steps = [], 0
        while steps < num_samples:
            for episode in episodes(self._next_batch()):
                chosen.append(episode.to_numpy())
                steps += len(episode)
        if self._connectors is None:
            self._connectors = _Connectors(
                config=self.config, spaces=self.spaces[INPUT_ENV_SPACES], module_spec=self.module_spec
            )
        return self._connectors.batch_of(chosen, self.learner_handles[0])

    def _next_batch(self) -> Batch:
        for _ in range(2):  # limited samples, and passes over a dataset, begin again
            self._batches = batches = self._batches or self._begin()
            for batch in batches:
                if any(len(episode) for episode in episodes(batch)):
                    return batch
            self.close()
        raise Stalled(f"{self._name}: it ended without an item that has a step")

    def _begin(self) -> Batches:
        with ExitStack() as opening:
            batches = self._open_batches(opening)
            self._opened = opening.pop_all()
        return batches

    def close(self) -> None:
        """Ends streams and connections; the next sample opens new ones."""
        self._batches = None
        self._opened.close()


class _Connectors(OfflinePreLearner):  # type: ignore[misc]
    """The algorithm's learner connectors, over episodes that are there already."""

    def batch_of(self, chosen: list[Any], learner: Any) -> MultiAgentBatch:
        # The learner is in this process: its module is used as it is, so value predictions are those of now. RLlib's own
        # copies the weights once, when it begins.
        self._module = learner.module
        columns = self._learner_connector(
            rl_module=self._module, batch={}, episodes=chosen, shared_data={}, metrics=None
        )
        modules = {
            module: SampleBatch(rows)
            for module, rows in columns.items()
            if self._should_module_be_updated(module, columns)
        }
        return MultiAgentBatch(modules, env_steps=sum(len(episode) for episode in chosen))


__all__ = ["local_data", "table_data"]
