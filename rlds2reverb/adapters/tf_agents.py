"""Samples as TF-Agents' replay buffers give them: `as_dataset` of (Trajectory, `reverb.SampleInfo`).

Elements are those of `tf_agents.replay_buffers.reverb_replay_buffer.ReverbReplayBuffer` (0.19): the same nests, dtypes and static
shapes, each sample's info repeated for each of its steps. So agents, a dataset's `map`, and training loops accept both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from rlds2reverb.adapters.common import INFO_DTYPES, Cutter, Server, open_client
from rlds2reverb.client import Client
from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import needing
from rlds2reverb.keywords import make_options, takes_options
from rlds2reverb.learner.options import SampleKeywords, SampleOptions
from rlds2reverb.servers.tables import table_of
from rlds2reverb.specs import Nest, flatten, map_leaves

if TYPE_CHECKING:
    from typing_extensions import Unpack

with needing("the adapter for TF-Agents", "tf-agents", ModuleNotFoundError):
    import reverb
    import tensorflow as tf
    from tf_agents.replay_buffers import replay_buffer as theirs
    from tf_agents.replay_buffers import reverb_replay_buffer
    from tf_agents.trajectories import trajectory

    from rlds2reverb.adapters.tf_data import Source, array_spec, make_dataset

_DETERMINISTIC = ("fifo", "lifo", "max_heap", "min_heap")


_DECIDED = ("batch_size", "ragged", "spec")


@takes_options(SampleOptions, without=_DECIDED, decode=False)
def as_trajectory_dataset(
    server: Server,
    table: str,
    sample_batch_size: int | None = None,
    num_steps: int | None = None,
    sequence_length: int | None = None,
    data_spec: Nest = None,
    **options: Unpack[SampleKeywords],
) -> tf.data.Dataset:
    """The dataset of `ReverbReplayBuffer(...).as_dataset(sample_batch_size, num_steps)`, sampled by our client.

    Args:
      server: a client, which must stay open; or "host:port", a list of addresses, or a function that connects: then every iterator
        has a connection of its own.
      table: its name.
      sample_batch_size: items, or pieces of `num_steps`, per element; None for single ones without the axis of a batch.
      num_steps: steps of the pieces that items are split into; the remainder at the end of an item is dropped.
      sequence_length: steps of every item, where the table's signature leaves them free. It makes shapes static.
      data_spec: for a table without signature.
      options: the fields of `SampleOptions` except `batch_size`, `ragged` and `spec`, by name.
        Encoded images stay encoded unless `decode=True`. `slices` and `view` cut items out of samples; `weights` are
        refused, for `reverb.SampleInfo` has no field for them.

    Raises:
      ValueError: `num_steps` does not divide the steps of an item.
      ConfigError: the server has no such table, its signature is not known, or an option makes no sense.
      ServerUnreachable: no answer within the deadline.
    """
    buffer = SampledReplayBuffer(server, table, sequence_length, data_spec, **options)
    return buffer.as_dataset(sample_batch_size, num_steps)


class SampledReplayBuffer(theirs.ReplayBuffer):  # type: ignore[misc]
    """TF-Agents' `ReverbReplayBuffer` for reading, over our client: `as_dataset`, `num_frames`, `update_priorities`, `clear`.

    Args:
      server, table, sequence_length, data_spec, options: as for `as_trajectory_dataset`.

    Raises:
      ConfigError, ServerUnreachable: as `as_trajectory_dataset` does.
    """

    @takes_options(SampleOptions, without=_DECIDED, decode=False)
    def __init__(
        self,
        server: Server,
        table: str,
        sequence_length: int | None = None,
        data_spec: Nest = None,
        **options: Unpack[SampleKeywords],
    ) -> None:
        for name in _DECIDED:
            if name in options:
                raise ConfigError(f"{name}: as_dataset decides on it; leave it out")
        options.setdefault("decode", False)
        asked = make_options(SampleOptions, "as_trajectory_dataset", **options)
        if asked.weights is not None:
            raise ConfigError(
                "weights: reverb.SampleInfo has no field for them; adapters.tf_data gives them as info.weight, "
                "and info.probability and info.table_size are here to compute them from"
            )
        if asked.slices is not None and not asked.slices.strict:
            raise ConfigError(
                "slices: strict=False fills short episodes up, and reverb.SampleInfo has no field for the mask of these rows; "
                "leave strict out, or use adapters.tf_data"
            )
        rows = sequence_length if asked.cut is None else None  # else the cut decides the length
        outer = None if data_spec is None else map_leaves(lambda leaf: array_spec(leaf).with_leading(rows), data_spec)
        self._source = Source.of(server, table, replace(asked, spec=outer))
        self._row_spec = _row_spec(self._source, data_spec if asked.cut is None else None)
        self._sequence_length = _length(self._source, sequence_length)
        super().__init__(self._row_spec, self._source.table.max_size, stateful_dataset=True)

    def update_priorities(self, keys: Any, priorities: Any) -> None:
        """Changes priorities; also inside a `tf.function`.

        Args:
          keys: uint64 [B], or [B, T] as `info.key` has them.
          priorities: [B].
        """
        tf.numpy_function(self._update, [keys, tf.cast(priorities, tf.float64)], [], stateful=True)

    def _update(self, keys: Array, priorities: npt.ArrayLike) -> None:
        with open_client(self._source.server) as client:
            client.update_priorities(self._source.table.name, keys[:, 0] if keys.ndim == 2 else keys, priorities)

    def add_batch(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("SampledReplayBuffer only reads; fill the table with client.push or an observer")

    get_next = gather_all = add_batch

    def _num_frames(self) -> int:
        with open_client(self._source.server) as client:
            return table_of(client.server_info(), self._source.table.name).current_size

    def _clear(self) -> None:
        with open_client(self._source.server) as client:
            client.reset(self._source.table.name)

    def _as_dataset(
        self, sample_batch_size: int | None, num_steps: int | None, sequence_preprocess_fn: Any, num_parallel_calls: Any
    ) -> tf.data.Dataset:
        if num_parallel_calls and sample_batch_size and num_parallel_calls > sample_batch_size:
            raise ValueError(
                f"num_parallel_calls {num_parallel_calls}: expected at most sample_batch_size, which is {sample_batch_size}"
            )
        return self._dataset(self._source.options, sample_batch_size, num_steps, sequence_preprocess_fn, True)

    def _single_deterministic_pass_dataset(
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        sequence_preprocess_fn: Any = None,
        num_parallel_calls: Any = None,
    ) -> tf.data.Dataset:
        table = self._source.table
        if table.sampler not in _DETERMINISTIC or table.remover not in _DETERMINISTIC:
            raise ValueError(
                f'table "{table.name}": single_deterministic_pass needs a sampler and a remover without chance '
                f"({', '.join(_DETERMINISTIC)}); these are {table.sampler} and {table.remover}"
            )
        options = replace(self._source.options, streams=1, prefetch=1)
        return self._dataset(options, sample_batch_size, num_steps, sequence_preprocess_fn, False)

    def _dataset(
        self, options: SampleOptions, size: int | None, num_steps: int | None, preprocess: Any, is_shuffled: bool
    ) -> tf.data.Dataset:
        length = self._sequence_length
        if num_steps and length and length % num_steps:  # as ReverbReplayBuffer
            raise ValueError(
                f"num_steps {num_steps}: expected a divisor of the steps of an item, which are {length}; "
                "others would drop the ends of items"
            )
        source = replace(self._source, options=replace(options, batch_size=size or 1, drop_last=False))
        if preprocess is not None:
            return self._dataset_with_preprocessing(source, size, num_steps, preprocess, is_shuffled)
        steps = length if num_steps is None else num_steps
        cutter = Cutter(source.table.name, source.options.batch_size, length, num_steps, is_shuffled)
        specs = self._specs((steps,) if size is None else (size, steps))
        return make_dataset(source, cutter.single if size is None else cutter.batched, specs, self._pack)

    def _dataset_with_preprocessing(
        self, source: Source, size: int | None, num_steps: int | None, preprocess: Any, is_shuffled: bool
    ) -> tf.data.Dataset:
        """TensorFlow cuts the items, after `preprocess`, which is a function of tensors."""
        cutter = Cutter(source.table.name, 1, self._sequence_length, None, False)
        items = make_dataset(source, cutter.single, self._specs((self._sequence_length,)), self._pack)
        items = items.map(tf.autograph.experimental.do_not_convert(lambda data, info: (preprocess(data), info)))
        if num_steps and num_steps != self._sequence_length:
            pieces = items.map(
                lambda *element: reverb_replay_buffer.truncate_reshape_rows_by_num_steps(element, num_steps)
            )
            items = pieces.unbatch()
            if is_shuffled:
                items = items.shuffle((size or 1) * ((self._sequence_length or 100 * num_steps) // num_steps))
        return items if size is None else items.batch(size, drop_remainder=True)

    def _specs(self, outer: tuple[int | None, ...]) -> list[tf.TensorSpec]:
        columns = [tf.TensorSpec((*outer, *leaf.shape[1:]), leaf.dtype) for leaf in self._source.leaves.values()]
        return columns + [tf.TensorSpec(outer, dtype) for dtype in INFO_DTYPES]

    def _pack(self, *tensors: tf.Tensor) -> tuple[Any, Any]:
        columns, info = tensors[: -len(INFO_DTYPES)], tensors[-len(INFO_DTYPES) :]
        return tf.nest.pack_sequence_as(self._row_spec, columns), reverb.SampleInfo(*info)


def replay_buffer(
    server: Client | str, table: str, sequence_length: int | None = None, data_spec: Nest = None, **options: Any
) -> reverb_replay_buffer.ReverbReplayBuffer:
    """TF-Agents' own buffer over a table of a running server, in this process or another.

    Args:
      server: an open client, or "host:port".
      table: its name.
      sequence_length: steps of every item, where the table's signature leaves them free; None for items of any length.
      data_spec: for a table without signature; by default from the signature.
      options: further arguments of `ReverbReplayBuffer`.

    Raises:
      ConfigError: the server has no such table, or its signature is not known.
      ServerUnreachable: no answer within the deadline.
    """
    outer = (
        None
        if data_spec is None
        else map_leaves(lambda leaf: array_spec(leaf).with_leading(sequence_length), data_spec)
    )
    source = Source.of(server, table, SampleOptions(spec=outer, decode=False))
    address = server.transport.address if isinstance(server, Client) else server
    length = _length(source, sequence_length)
    return _BufferOfOneServer(_row_spec(source, data_spec), table, length, server_address=address, **options)


class _BufferOfOneServer(reverb_replay_buffer.ReverbReplayBuffer):  # type: ignore[misc]
    """TF-Agents' buffer, with a client for priorities of its own server.

    TF-Agents names that client "rb_tf_client" in every buffer, and TensorFlow keeps one resource per name: in a process with buffers over two
    servers all priorities go to the first one, and updates wait for ever once that is gone (tf-agents 0.19, reverb_replay_buffer.py).
    """

    def __init__(self, *arguments: Any, server_address: str, **options: Any) -> None:
        super().__init__(*arguments, server_address=server_address, **options)
        self._tf_client = reverb.TFClient(server_address, f"rlds2reverb_{server_address}")


def _row_spec(source: Source, data_spec: Nest) -> Nest:
    """TF-Agents' `data_spec`: a step, nested as the dataset's elements."""
    if data_spec is not None:
        return data_spec
    for path, leaf in flatten(source.structure).items():
        if not leaf.shape:
            raise ConfigError(
                f'table "{source.table.name}", column "{path}": it has no axis of steps; use adapters.tf_data'
            )
    decoded = list(source.leaves.values())
    specs = [tf.TensorSpec(leaf.shape[1:], leaf.dtype, leaf.name or None) for leaf in decoded]
    packed = tf.nest.pack_sequence_as(source.structure, specs)
    is_trajectory = getattr(packed, "_fields", ()) == trajectory.Trajectory._fields
    return trajectory.Trajectory(*packed) if is_trajectory else packed


def _length(source: Source, sequence_length: int | None) -> int | None:
    """The steps of an item, as given, or as of the signature where all its leaves have one number of rows."""
    lengths: set[int | None] = {leaf.shape[0] for leaf in flatten(source.structure).values()}
    if sequence_length is None and len(lengths) == 1:
        return lengths.pop()
    if any(size not in (None, sequence_length) for size in lengths):
        raise ConfigError(
            f'table "{source.table.name}": sequence_length {sequence_length}, but its signature has items of '
            f"{', '.join(map(str, lengths))} steps"
        )
    return sequence_length
