"""RLlib's new stack learns offline from a table, or from a dataset without a server: the `offline_data_class` of a config.

    config.offline_data(input_="localhost:8000/replay", offline_data_class=table_data("localhost:8000", "replay"))
    config.offline_data(input_="bundled:cartpole", offline_data_class=local_data("bundled:cartpole"))

`input_` must be set, but is not read. Items become episodes, those go through the algorithm's learner connectors, and each batch has
`train_batch_size_per_learner` steps, as from RLlib's files. Items of `two_step` are episodes of one step; what looks back or ahead within an
episode, such as the advantages of MARWIL or the states of a recurrent module, needs longer ones: the view `sequence`, or `episode`.

| num_learners | dataset_num_iters_per_learner | who reads |
| --- | --- | --- |
| 0 | 1 | the algorithm's process, a batch for each training step |
| 0 | n | the same, n batches for each training step |
| 1 or more | n | each Learner in its own process |

Source: OfflineData, OfflinePreLearner, MiniBatchRayDataIterator, and training_step of MARWIL and CQL, of Ray 2.60.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rlds2reverb.adapters.common import Server, check_pickles, open_client
from rlds2reverb.adapters.rllib import episodes
from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, Stalled
from rlds2reverb.extras import needing
from rlds2reverb.keywords import make_options, takes_options
from rlds2reverb.learner.batch import Batch
from rlds2reverb.learner.local import local
from rlds2reverb.learner.local.options import LocalKeywords, LocalOptions
from rlds2reverb.learner.options import SampleKeywords, SampleOptions
from rlds2reverb.specs import flatten, map_leaves, map_with_path

if TYPE_CHECKING:
    from typing_extensions import Unpack

with needing("the adapter for RLlib", "rllib", ModuleNotFoundError):
    import ray
    import torch
    from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

    try:
        from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
        from ray.rllib.core.columns import Columns
        from ray.rllib.env import INPUT_ENV_SPACES
        from ray.rllib.offline.offline_data import OfflineData
        from ray.rllib.offline.offline_prelearner import OfflinePreLearner
        from ray.rllib.utils.torch_utils import convert_to_torch_tensor
    except ImportError as missing:
        raise ImportError(
            f"learning offline needs RLlib's new stack, as Ray 2.60 has it; this is Ray {ray.__version__}, whose old stack takes "
            "rlds2reverb.adapters.rllib.TableInput as its input_"
        ) from missing

Batches = Iterator[Batch]


@takes_options(SampleOptions)
def table_data(
    server: Server, table: str, batch_size: int = SampleOptions.batch_size, **options: Unpack[SampleKeywords]
) -> type[OfflineData]:
    """An `offline_data_class` that samples a table of trajectories. Each Learner has a connection and samples of its own.

    Args:
      server: "host:port", or a function without arguments that connects; see `adapters.common.Server`. Learners in other processes
        cannot use an open client.
      table: its name.
      batch_size: items that are drawn at once. A training step takes as many draws as it needs.
      options: the other fields of `SampleOptions`, by name.

    Raises:
      ConfigError: an option makes no sense.
    """
    make_options(SampleOptions, "table_data", batch_size, **options)
    return _class_of(_TableReading(server, table, batch_size, options))


@takes_options(LocalOptions)
def local_data(
    dataset: Any, view: Any = "two_step", batch_size: int = 256, **options: Unpack[LocalKeywords]
) -> type[OfflineData]:
    """An `offline_data_class` that reads a dataset without a server, again and again. Of several Learners each reads other items.

    Args:
      dataset, view, batch_size: as of `rlds2reverb.local`; the view gives trajectories.
      options: the further ones of `rlds2reverb.local`, by name.
    """
    return _class_of(_DatasetReading(dataset, view, batch_size, options))


class _Reading(Protocol):
    """What a Learner reads, in whichever process it is."""

    @property
    def name(self) -> str: ...

    def open(self, opened: ExitStack, rank: int, world_size: int) -> Batches:
        """Batches for the Learner `rank` of `world_size`; puts what is to be closed onto the stack."""


@dataclass(frozen=True)
class _TableReading:
    server: Server
    table: str
    batch_size: int
    options: SampleKeywords

    def __getstate__(self) -> dict[str, Any]:
        """For Learners in other processes. Raises ConfigError where the server is an open client."""
        check_pickles(self.server)
        return dict(vars(self))

    @property
    def name(self) -> str:
        return f'table "{self.table}"'

    def open(self, opened: ExitStack, rank: int, world_size: int) -> Batches:
        client = opened.enter_context(open_client(self.server))
        sampler = client.sample(self.table, self.batch_size, **self.options)
        opened.callback(sampler.close)
        return iter(sampler)


@dataclass(frozen=True)
class _DatasetReading:
    dataset: Any
    view: Any
    batch_size: int
    options: LocalKeywords

    @property
    def name(self) -> str:
        return "a list of episodes" if isinstance(self.dataset, list) else f"dataset {self.dataset}"

    def open(self, opened: ExitStack, rank: int, world_size: int) -> Batches:
        options: LocalKeywords = {**self.options}
        if world_size > 1:
            options |= {"rank": rank, "world_size": world_size}
        batches = local(self.dataset, self.view, self.batch_size, **options)
        opened.callback(batches.close)
        return iter(batches)


def _class_of(reading: _Reading) -> type[OfflineData]:
    class TableOfflineData(_OfflineBatches):
        _reading = reading

    return TableOfflineData


class _OfflineBatches(OfflineData):  # type: ignore[misc]  # RLlib is Any where it is not installed
    """Gives a Learner in this process its batches, and those in other processes what they make them of."""

    _reading: _Reading

    def __init__(self, config: Any) -> None:
        # RLlib's own opens a ray.data.Dataset here, which there is none of; algorithms set and read these attributes.
        name = self._reading.name
        if config.dataset_num_iters_per_learner is None:
            raise ConfigError(
                f"{name}: it has no end, so a training step cannot be a pass over it: set dataset_num_iters_per_learner, the batches of a "
                "training step"
            )
        if config.is_multi_agent:
            raise ConfigError(
                f"{name}: RLlib learns offline from episodes of one agent only; "
                "`multi_agent_batch(..., module_column=...)` gives rows of several RLModules for `Learner.update(batch=...)`"
            )
        self.config = config
        self.iter_batches_kwargs: dict[str, Any] = {}
        self.spaces: Any = None
        self.learner_handles: Any = None
        self.module_spec: Any = None
        self.locality_hints: Any = None
        self._steps: _LearnerSteps | None = None
        self._iterators: list[Any] | None = None

    def sample(self, num_samples: int, return_iterator: bool = False, num_shards: int = 1, **_: Any) -> Any:
        """A batch of `num_samples` steps; or, for each Learner, what gives it such batches.

        Raises:
          ConfigError: the items are no trajectories; or Learners in other processes cannot use an open client.
          Stalled: there is no item with a step.
          Rlds2ReverbError: as sampling does.
        """
        if not return_iterator:
            return self._own_steps().take(num_samples)
        if self._iterators is None:
            self._iterators = self._remote_iterators(num_shards) if num_shards else [_Iterator(self._own_steps())]
        return self._iterators

    def close(self) -> None:
        """Ends this process's streams and connections; the next sample opens new ones. Learners in other processes keep theirs."""
        if self._steps is not None:
            self._steps.close()

    def _own_steps(self) -> _LearnerSteps:
        """Of the Learner in this process. Its module is used as it is, so value predictions are those of now."""
        if self._steps is None:
            module = self.learner_handles[0].module
            self._steps = _LearnerSteps(self._reading, self._make_connectors(module=module))
        return self._steps

    def _remote_iterators(self, world_size: int) -> list[Any]:
        """Each goes to its Learner with every training step, so all that is large lies in Ray's object store."""
        state = self.learner_handles[0].get_state.remote(components=COMPONENT_RL_MODULE)
        parts = ray.put((self._reading, self._make_connectors, state))
        return [_RemoteIterator(parts, rank, world_size) for rank in range(world_size)]

    @property
    def _make_connectors(self) -> Callable[..., _Connectors]:
        return partial(
            _Connectors, config=self.config, spaces=self.spaces[INPUT_ENV_SPACES], module_spec=self.module_spec
        )


class _LearnerSteps:
    """The steps of one Learner: episodes of items, through the learner connectors. It opens what it reads with the first of them.

    Batches have exactly as many steps as are asked for, as those of Ray Data: with one more, a Learner in this process would make a second minibatch,
    and fill it up with steps of the first. Those of recurrent modules have as many sequences as have no more steps.
    """

    def __init__(self, reading: _Reading, connectors: _Connectors, rank: int = 0, world_size: int = 1) -> None:
        self._reading, self._connectors, self._rank, self._world_size = reading, connectors, rank, world_size
        self._opened = ExitStack()
        self._batches: Batches | None = None
        self._columns: dict[str, Any] = {}  # of steps, or padded sequences, that no batch has had

    def take(self, count: int) -> MultiAgentBatch:
        """A batch of `count` steps. What an episode has beyond them begins the next one."""
        while (steps := _steps_until(self._columns))[-1] < count:
            columns = self._connectors.columns_of(self._take_episodes(count - steps[-1]))
            self._columns = _join_columns(self._columns, columns)
        stop = max(1, int(np.searchsorted(steps, count, side="right")) - 1)
        taken = map_leaves(lambda leaf: leaf[:stop], self._columns)
        self._columns = map_leaves(lambda leaf: leaf[stop:], self._columns)
        return MultiAgentBatch({DEFAULT_MODULE_ID: SampleBatch(taken)}, env_steps=int(steps[stop]))

    def _take_episodes(self, steps: int) -> list[Any]:
        """Episodes of at least so many steps."""
        chosen: list[Any] = []
        while steps > 0:
            for episode in self._next_episodes():
                chosen.append(episode.to_numpy())
                steps -= len(episode)
        return chosen

    def _next_episodes(self) -> list[Any]:
        """Those of the next batch that has a step."""
        for _ in range(2):  # limited samples, and passes over a dataset, begin again
            self._batches = batches = self._batches or self._begin()
            for batch in batches:
                chosen = episodes(batch)
                if any(map(len, chosen)):
                    return chosen
            self.close()
        raise Stalled(f"{self._reading.name}: it ended without an item that has a step")

    def _begin(self) -> Batches:
        with ExitStack() as opening:
            batches = self._reading.open(opening, self._rank, self._world_size)
            self._opened = opening.pop_all()
        return batches

    def close(self) -> None:
        """Ends streams and connections; the next steps open new ones."""
        self._batches = None
        self._opened.close()


def _steps_until(columns: dict[str, Any]) -> Array:
    """[rows + 1] the number of steps before each row, and of all; a row is a step, or a sequence of seq_lens steps."""
    lengths = columns.get(Columns.SEQ_LENS)
    if lengths is None:
        return np.arange(len(next(iter(flatten(columns).values()), ())) + 1)
    return np.append(0, np.cumsum(np.asarray(lengths, np.int64)))


def _join_columns(before: dict[str, Any], columns: dict[str, Any]) -> dict[str, Any]:
    """Joins nests of tensors or arrays [rows, ...]."""
    if not before:
        return columns
    parts = flatten(before)

    def join(path: str, leaf: Any) -> Any:
        pair = parts[path], leaf
        return np.concatenate(pair) if isinstance(leaf, np.ndarray) else torch.cat(pair)

    joined: dict[str, Any] = map_with_path(join, columns)
    return joined


class _Iterator:
    """What a Learner takes for a `ray.data.DataIterator`: batches without an end."""

    def __init__(self, steps: _LearnerSteps) -> None:
        self._steps = steps

    def iter_torch_batches(self, *, batch_size: int, device: Any = None, **_: Any) -> Iterator[dict[str, Any]]:
        """Name of an RLModule -> columns, tensors on the device."""
        while True:
            modules = self._steps.take(batch_size).policy_batches
            yield convert_to_torch_tensor({name: dict(rows) for name, rows in modules.items()}, device)


@dataclass(frozen=True)
class _RemoteIterator:
    """An `_Iterator` of a Learner in another process, which opens what it reads there.

    Value predictions, as MARWIL's advantages need them, are those of the weights that the Learners begin with: so are RLlib's own, whose
    workers copy the weights once.

    Attributes:
      parts: Ray's reference to a reading, a function that makes the connectors, and a reference to the state of the Learners' module.
      rank, world_size: the Learner's number, and how many there are.
    """

    parts: Any
    rank: int
    world_size: int

    def iter_torch_batches(self, **options: Any) -> Iterator[dict[str, Any]]:
        reading, make_connectors, state = ray.get(self.parts)
        connectors = make_connectors(module_state=ray.get(state)[COMPONENT_RL_MODULE])
        return _Iterator(_LearnerSteps(reading, connectors, self.rank, self.world_size)).iter_torch_batches(**options)


class _Connectors(OfflinePreLearner):  # type: ignore[misc]
    """The algorithm's learner connectors, over episodes that are there already.

    Args:
      module: whose predictions they use; None for one of its own, in the state `module_state`.
      options: of RLlib's class.
    """

    def __init__(self, module: Any = None, **options: Any) -> None:
        super().__init__(**options)
        if module is not None:
            self._module = module

    def columns_of(self, chosen: list[Any]) -> dict[str, Any]:
        """The columns of the RLModule. Raises ConfigError if it is not trained."""
        modules = self._learner_connector(
            rl_module=self._module, batch={}, episodes=chosen, shared_data={}, metrics=None
        )
        if not self._should_module_be_updated(DEFAULT_MODULE_ID, modules):
            raise ConfigError(f"policies_to_train: it leaves out {DEFAULT_MODULE_ID}, so that nothing is trained")
        columns: dict[str, Any] = modules[DEFAULT_MODULE_ID]
        return columns


__all__ = ["local_data", "table_data"]
