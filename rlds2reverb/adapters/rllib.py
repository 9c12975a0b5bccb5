"""RLlib: a table's batches as its SampleBatch, MultiAgentBatch and SingleAgentEpisode, updates of priorities, and an input for workers.

The view of the items decides about the rows. It is recognised by the columns:

| items of the view | rows |
| --- | --- |
| requirements, fragments | their own, whose names are RLlib's; rows of a fragment are consecutive |
| transition | one per item |
| n_step | one per item, with the number of its steps as n_step; terminated where its discount is 0, never truncated |
| two_step, sequence, episode and all other views of trajectories | one per pair of steps; pairs that begin with an episode's last step or with padding are left out |

Every SampleBatch has obs, actions, rewards, terminateds, truncateds, weights and n_step, and new_obs unless the items have none.
Values and dtypes are those of the table; n_step is int64, weights float32: `info.weight` where the sampler computes it, else ones.

Runs with Ray 2.12 (Policy, old API stack) and 2.60 (Learner, new one).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlds2reverb.adapters.common import Server, check_pickles, open_client
from rlds2reverb.client import Client
from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, Stalled
from rlds2reverb.extras import needing
from rlds2reverb.keywords import make_options, takes_options
from rlds2reverb.learner.batch import Batch
from rlds2reverb.learner.joining import Batches
from rlds2reverb.learner.options import SampleKeywords, SampleOptions
from rlds2reverb.specs import Nest, column_spec, flatten, map_leaves, map_with_path
from rlds2reverb.text import did_you_mean
from rlds2reverb.views.trajectory import FIELDS, FIRST, LAST

if TYPE_CHECKING:
    from typing_extensions import Unpack

with needing("the adapter for RLlib", "rllib", ModuleNotFoundError):
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.offline.input_reader import InputReader
    from ray.rllib.policy.sample_batch import DEFAULT_POLICY_ID, MultiAgentBatch, SampleBatch


def sample_batch(batch: Batch, n_step: int = 1, max_seq_len: int | None = None) -> SampleBatch:
    """Rows for `policy.learn_on_batch`, or for an InputReader.

    Args:
      batch: of `client.sample`.
      n_step: steps between obs and new_obs, where the items have no such column; DQN and SAC discount by it.
      max_seq_len: for recurrent policies: cuts the rows into sequences of at most so many consecutive steps, see `_pad_sequences`.

    Raises:
      ConfigError: the items are of no view in the module's table, or hold no row, or `max_seq_len` is no positive whole number.
    """
    return _as_sample_batch(*_weighted_rows(batch, n_step), max_seq_len)


def multi_agent_batch(
    batch: Batch,
    n_step: int = 1,
    module: str = DEFAULT_POLICY_ID,
    max_seq_len: int | None = None,
    *,
    module_column: str | None = None,
    episode_column: str | None = None,
) -> MultiAgentBatch:
    """Rows for `Learner.update(batch=...)`, which turns numpy into tensors only in such a batch.

    Args:
      batch, n_step, max_seq_len: as for `sample_batch`, which also documents the errors.
      module: the RLModule (or policy) that learns from all rows.
      module_column: path of the items' column that names the RLModule of each row instead, such as extras/metadata/policy_id; the
        modules are those that occur. In items of trajectories it lies below policy_info. Files call it policy_id, EnvRunners of the new
        stack module_id: where the items have only the other of the two, it is taken.
      episode_column: path of the column that names the environment's episode, such as extras/metadata/episode_id. Rows that agree
        in it and in t are one environment step. Without it each row is one, as in a sample of RLlib's MultiAgentReplayBuffer.

    Raises:
      ConfigError: the items lack such a column, or the rows have no t, or an item of a view of trajectories has rows of several modules.
    """
    columns, items = _weighted_rows(batch, n_step)
    env_steps = len(items)
    if episode_column is not None:
        times = columns.get("t")
        if times is None or times.ndim != 1:
            raise ConfigError('episode_column: rows without "t"; take a view that has it: requirements, fragments')
        env_steps = len(set(zip(_row_labels(batch, episode_column, columns, items).tolist(), times.tolist())))
    if module_column is None:
        return MultiAgentBatch({module: _as_sample_batch(columns, items, max_seq_len)}, env_steps)
    labels = _row_labels(batch, _module_path(batch, module_column), columns, items)
    by_module = {}
    for name in sorted(set(labels.tolist())):
        rows = np.flatnonzero(labels == name)
        own = {column: map_leaves(lambda leaf, rows=rows: leaf[rows], nest) for column, nest in columns.items()}  # type: ignore[misc]
        by_module[name] = _as_sample_batch(own, items[rows], max_seq_len)
    return MultiAgentBatch(by_module, env_steps)


def update_priorities(
    client: Client, table: str, batch: Batch, td_errors: npt.ArrayLike, epsilon: float = 1e-6
) -> None:
    """Sets the priorities of a batch's items to the largest |error| of an item's rows, plus epsilon.

    An item without rows keeps its priority.

    Args:
      client, table: that the batch was sampled from.
      batch: of `client.sample`; the argument of `sample_batch`.
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
    """Episodes for `Learner.update(episodes=...)`, from items of trajectories: the view `episode`, or any view of several steps.

    An episode ends with its last step, or, truncated, with its item. It has T + 1 observations for T actions.
    Episodes of one step, which have no action, and padding are left out.

    Args:
      batch: of `client.sample`.

    Raises:
      ConfigError: the items are no trajectories.
    """
    if getattr(batch.data, "_fields", ()) != FIELDS:
        raise ConfigError(
            f"RLlib's episodes need items of trajectories ({', '.join(FIELDS)}); got {_describe(batch.data)}"
        )
    masks = [None] * batch.size if batch.info.mask is None else list(batch.info.mask)
    return [
        episode for number, mask in enumerate(masks) for episode in _cut_episodes(item_of(batch.data, number), mask)
    ]


class TableInput(InputReader):  # type: ignore[misc]  # RLlib is Any where it is not installed
    """The `input_` of old-stack algorithms: `config.offline_data(input_=lambda context: TableInput("localhost:8000", "replay"))`.

    It connects at the first batch, and holds no connection before that, so it can be pickled for workers.

    Args:
      server: "host:port", a list of addresses, a function without arguments that connects, or an open client, which cannot be pickled;
        see `adapters.common.Server`.
      table: its name.
      batch_size: items per batch.
      n_step: as for `sample_batch`.
      options: the other fields of `SampleOptions`, by name.

    Raises:
      ConfigError: an option makes no sense.
    """

    @takes_options(SampleOptions)
    def __init__(
        self,
        server: Server,
        table: str,
        batch_size: int = SampleOptions.batch_size,
        n_step: int = 1,
        **options: Unpack[SampleKeywords],
    ) -> None:
        super().__init__()
        make_options(SampleOptions, "TableInput", batch_size, **options)  # wrong ones fail here, not in a worker
        self._server = server
        self._table, self._batch_size = table, batch_size
        self._options: SampleKeywords = options
        self._n_step = n_step
        self._open: tuple[ExitStack, Batches] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For workers. Raises ConfigError where the server is an open client."""
        check_pickles(self._server)
        return {**vars(self), "_open": None}

    def next(self) -> SampleBatch:
        """Returns the next batch, without an end; a reader of limited samples begins again.

        Raises:
          Stalled: it began again, and ended without a batch.
          Rlds2ReverbError: as sampling does.
        """
        batch = None if self._open is None else self._open[1].next_batch()
        if batch is None:
            self.close()
            with ExitStack() as opening:  # closes the client where there is no such table
                client = opening.enter_context(open_client(self._server))
                sampler: Batches = client.sample(self._table, self._batch_size, **self._options)
                opening.callback(sampler.close)
                self._open = opening.pop_all(), sampler
            batch = sampler.next_batch()
        if batch is None:
            raise Stalled(
                f'table "{self._table}": it gave no sample before the end that the options set; fill it, or wait longer'
            )
        return sample_batch(batch, self._n_step)

    def close(self) -> None:
        """Ends its streams and its connection; `next` opens new ones."""
        if self._open is not None:
            used, _ = self._open
            self._open = None
            used.close()


def _cut_episodes(data: Any, mask: Array | None) -> Iterator[SingleAgentEpisode]:
    """The episodes in one item [T, ...]; mask [T], the item's own steps."""
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


OBS, NEXT_OBS, ACTIONS = "obs", "new_obs", "actions"
REWARDS, TERMINATEDS, TRUNCATEDS = _PER_ROW = "rewards", "terminateds", "truncateds"

Rows = tuple[dict[str, Any], Array]
"""Column -> values [N, ...], and [N] the number of each row's item."""


def rows_of(batch: Batch) -> Rows:
    """The rows of items; raises ConfigError for a view that RLlib cannot learn from."""
    data = batch.data
    if getattr(data, "_fields", ()) == FIELDS:
        return _from_trajectories(batch)
    names = set(data) if isinstance(data, dict) else set()
    if {OBS, ACTIONS} <= names:
        return _from_rllib(batch)
    if {"observation", "action", "next"} <= names:
        return _from_transitions(data, batch.size)
    if {"observation", "action", "next_observation", "reward", "discount"} <= names:
        return _from_n_steps(data, batch.size)
    raise ConfigError(
        "RLlib needs items of the views requirements, fragments, transition, n_step, or of a view of trajectories; "
        f"got {_describe(data)}"
    )


def _describe(data: Nest) -> str:
    return f"the columns {', '.join(flatten(data))}" if isinstance(data, (dict, tuple)) else "a list without names"


def _weighted_rows(batch: Batch, n_step: int) -> Rows:
    """`rows_of` with the columns weights and n_step."""
    columns, items = rows_of(batch)
    weight = batch.info.weight
    weights = np.ones(len(items), np.float32) if weight is None else np.asarray(weight, np.float32)[items]
    steps = np.full(len(items), n_step, np.int64)
    return {"weights": weights, "n_step": steps, **columns}, items


def _as_sample_batch(columns: dict[str, Any], items: Array, max_seq_len: int | None) -> SampleBatch:
    if max_seq_len is None:
        return SampleBatch(columns)
    if isinstance(max_seq_len, bool) or not isinstance(max_seq_len, (int, np.integer)) or max_seq_len < 1:
        raise ConfigError(f"max_seq_len: expected a positive whole number of steps, got {max_seq_len!r}")
    padded = _pad_sequences(columns, items, int(max_seq_len))
    return SampleBatch(padded, _max_seq_len=int(max_seq_len), _zero_padded=True)


def _pad_sequences(columns: dict[str, Any], items: Array, length: int) -> dict[str, Any]:
    """Rows [N, ...] -> S sequences of consecutive steps, [S * length, ...], with zeros behind the shorter ones, and seq_lens [S].

    Columns state_in... keep the first row of each sequence, [S, ...], and state_out... all rows, unpadded; so does RLlib. Text is
    filled with None.
    Source: rllib/policy/rnn_sequencing.py (`pad_batch_to_sequences_of_same_size`, `chop_into_sequences`) of Ray 2.12 and 2.60.
    """
    count = len(items)
    numbers = np.arange(count)
    run_starts = np.flatnonzero(np.append(True, ~_continues(columns, items))[:count])
    run_of_row = np.searchsorted(run_starts, numbers, side="right") - 1
    starts = np.flatnonzero((numbers - run_starts[run_of_row]) % length == 0)
    sequence = np.searchsorted(starts, numbers, side="right") - 1
    places = sequence * length + numbers - starts[sequence]

    def pad(leaf: Array) -> Array:
        padded = np.full((len(starts) * length, *leaf.shape[1:]), None if leaf.dtype == object else 0, leaf.dtype)
        padded[places] = leaf
        return padded

    padded = {}
    for name, nest in columns.items():
        if name.startswith("state_in"):
            padded[name] = map_leaves(lambda leaf: leaf[starts], nest)
        else:
            padded[name] = nest if name.startswith("state_out") else map_leaves(pad, nest)
    return {**padded, "seq_lens": np.diff(np.append(starts, count)).astype(np.int32)}


def _continues(columns: dict[str, Any], items: Array) -> Array:
    """[N - 1] whether a row is followed by the next step of its episode.

    Rows with eps_id and t tell by these, whichever items they come from: a sample puts steps of an episode side by side that do not
    follow each other, which RLlib's own rule, by eps_id, would join. Other rows follow each other within their item.
    """
    identity = [columns[name] for name in ("eps_id", "agent_index", "unroll_id", "env_id") if name in columns]
    times = columns.get("t")
    if "eps_id" in columns and times is not None and all(leaf.ndim == 1 for leaf in (*identity, times)):
        follows = np.diff(times) == 1
        for leaf in identity:
            follows &= leaf[1:] == leaf[:-1]
    else:
        follows = items[1:] == items[:-1]
    for name in (TERMINATEDS, TRUNCATEDS):
        if name in columns and columns[name].ndim == 1:
            follows = follows & ~columns[name][:-1].astype(bool)
    return np.asarray(follows, bool)


def _module_path(batch: Batch, path: str) -> str:
    """The path, or the one with the other name that RLlib has for a policy, where the items have only that."""
    above, slash, name = path.rpartition("/")
    other = {"policy_id": "module_id", "module_id": "policy_id"}.get(name, name)
    is_other = _column_at(batch.data, path) is None and _column_at(batch.data, above + slash + other) is not None
    return above + slash + other if is_other else path


def _row_labels(batch: Batch, path: str, columns: dict[str, Any], items: Array) -> Array:
    """[N] texts: the values of an items' column, by row. Raises ConfigError for none, or for several within an item of trajectories."""
    values = _column_at(batch.data, path)
    if values is None:
        paths = list(flatten(item_of(batch.data, 0)))
        raise ConfigError(f'the items have no "{path}"; there are {", ".join(paths)}{did_you_mean(path, paths)}')
    by_row = flatten(columns).get(path)
    if by_row is not None and len(by_row) == len(items):
        return _texts(path, by_row)
    masks: list[Any] = [None] * batch.size if batch.info.mask is None else list(batch.info.mask)
    labels: list[str] = []
    for number, (value, mask) in enumerate(zip(values, masks)):
        texts = set(_texts(path, np.atleast_1d(value if mask is None or np.ndim(value) == 0 else value[mask])).tolist())
        if len(texts) != 1:
            names = ", ".join(sorted(texts)) or "none"
            raise ConfigError(f'item {number} of the batch: "{path}" is {names}; expected one value for all its rows')
        labels += texts
    return np.array(labels, object)[items]


def _column_at(nest: Nest, path: str) -> Any:
    """The column of a batch at a path: an array [B, ...] or a list of B arrays; None if there is none."""
    for name in path.split("/"):
        nest = (
            nest.get(name) if isinstance(nest, dict) else getattr(nest, name, None) if isinstance(nest, tuple) else None
        )
    return nest if isinstance(nest, (np.ndarray, list)) else None


def _texts(path: str, values: Array) -> npt.NDArray[Any]:
    if values.ndim != 1 or values.dtype.kind not in "OSUiu":
        raise ConfigError(
            f'"{path}" names nothing: expected text or a whole number for each row, got {column_spec(values)}'
        )
    return np.array([value.decode() if isinstance(value, bytes) else str(value) for value in values.tolist()], object)


def _from_transitions(data: Any, count: int) -> Rows:
    following = data["next"]
    columns = {
        OBS: data["observation"],
        NEXT_OBS: following["observation"],
        ACTIONS: data["action"],
        REWARDS: following["reward"][..., 0],
        TERMINATEDS: following["terminated"][..., 0],
        TRUNCATEDS: following["truncated"][..., 0],
    }
    return columns, np.arange(count)


def _from_n_steps(data: Any, count: int) -> Rows:
    columns = {
        OBS: data["observation"],
        NEXT_OBS: data["next_observation"],
        ACTIONS: data["action"],
        REWARDS: data["reward"],
        TERMINATEDS: data["discount"] == 0,
        TRUNCATEDS: np.zeros(count, bool),
    }
    steps = {"n_step": data["steps"].astype(np.int64)} if "steps" in data else {}
    return {**columns, **steps}, np.arange(count)


def _from_rllib(batch: Batch) -> Rows:
    """Rows of items that are rows of RLlib's columns, or fragments of such rows."""
    column = next((batch.data[name] for name in _PER_ROW if name in batch.data), None)
    if column is None or not (isinstance(column, list) or column.ndim > 1):
        return dict(batch.data), np.arange(batch.size)
    lengths = [len(rows) for rows in column] if batch.info.mask is None else batch.info.mask.sum(axis=1)
    rows = {name: _concatenate_rows(column, lengths) for name, column in batch.data.items()}
    return rows, np.repeat(np.arange(batch.size), lengths)


def _concatenate_rows(nest: Nest, lengths: Iterable[int]) -> Nest:
    """[B, L, ...], or B arrays [L, ...] -> [N, ...], the first `length` rows of each item; the rest is padding."""
    if isinstance(nest, dict):
        return {name: _concatenate_rows(child, lengths) for name, child in nest.items()}
    return np.concatenate([rows[:length] for rows, length in zip(nest, lengths)])


def _from_trajectories(batch: Batch) -> Rows:
    if not isinstance(batch.data.step_type, list):  # all items have as many steps
        columns, is_pair = _pairs(batch.data, batch.info.mask)
        return columns, np.nonzero(is_pair)[0]
    parts = [_pairs(item_of(batch.data, slice(number, number + 1))) for number in range(batch.size)]
    rows = {name: _concatenate([columns[name] for columns, _ in parts]) for name in parts[0][0]}
    return rows, np.repeat(np.arange(batch.size), [is_pair.sum() for _, is_pair in parts])


def pairs_in(data: Any, mask: Array | None) -> Array:
    """[..., T - 1] whether a step of trajectories [..., T] is followed by another one of its episode.

    Only an episode's last step, and padding of a view, are followed by a first one. `mask` is [..., T], as of `BatchInfo`.
    """
    is_pair: Array = (data.step_type[..., :-1] != LAST) & (data.next_step_type[..., :-1] != FIRST)
    if mask is not None:
        is_pair &= mask[..., 1:]
    return is_pair


def _pairs(data: Any, mask: Array | None = None) -> tuple[dict[str, Any], Array]:
    """Rows of trajectories [B, T, ...], and [B, T - 1]: `pairs_in`."""
    if data.step_type.shape[1] < 2:
        raise ConfigError("RLlib needs trajectories of at least two steps: a row is a step and the next one")
    is_pair = pairs_in(data, mask)

    def first(nest: Nest) -> Nest:
        return map_leaves(lambda leaf: leaf[:, :-1][is_pair], nest)

    def second(nest: Nest) -> Nest:
        return map_leaves(lambda leaf: leaf[:, 1:][is_pair], nest)

    is_last = first(data.next_step_type) == LAST
    is_terminal = is_last & ((first(data.discount) == 0) | (second(data.discount) == 0))
    columns = {
        OBS: first(data.observation),
        NEXT_OBS: second(data.observation),
        ACTIONS: first(data.action),
        REWARDS: first(data.reward),
        TERMINATEDS: is_terminal,
        TRUNCATEDS: is_last & ~is_terminal,
    }
    return columns, is_pair


def item_of(nest: Nest, which: Any) -> Nest:
    """One item of a batch's nest, whose leaves are arrays or lists of arrays; for a slice of one, a batch of it."""
    if isinstance(nest, dict):
        return {name: item_of(child, which) for name, child in nest.items()}
    if isinstance(nest, tuple):
        children = [item_of(child, which) for child in nest]
        return type(nest)(*children) if hasattr(nest, "_fields") else tuple(children)
    return np.stack(nest[which]) if isinstance(which, slice) else nest[which]


def _concatenate(nests: Sequence[Nest]) -> Nest:
    columns = [flatten(nest) for nest in nests]
    return map_with_path(lambda path, _: np.concatenate([leaves[path] for leaves in columns]), nests[0])
