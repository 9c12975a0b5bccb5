"""RLDS data for the TensorFlow suites: made from columns, written to Reverb tables, read back from them.

TensorFlow is imported only by the functions that need it, so that the core's environment can collect this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.support import reference, strategies


def episode(
    rng: np.random.Generator,
    rows: int,
    terminal: bool = True,
    observation: Any = ("float32", (3,)),
    action: Any = ("float32", (2,)),
    reward: Any = ("float32", ()),
) -> dict[str, Any]:
    """Nested columns [T, ...] of one valid episode; a spec is a (dtype, shape) or a dict or list of these."""
    at = np.arange(rows)
    discount = rng.uniform(size=rows).astype(np.float32)
    return {
        "observation": values(rng, rows, observation),
        "action": values(rng, rows, action),
        "reward": values(rng, rows, reward),
        "discount": discount,
        "is_first": at == 0,
        "is_last": at == rows - 1,
        "is_terminal": (at == rows - 1) & terminal,
    }


def values(rng: np.random.Generator, rows: int, spec: Any) -> Any:
    """Random columns of a spec; a list of specs gives a tuple."""
    if isinstance(spec, Mapping):
        return {key: values(rng, rows, child) for key, child in spec.items()}
    if isinstance(spec, list):
        return tuple(values(rng, rows, child) for child in spec)
    dtype, shape = spec
    return strategies.array(rng, np.dtype(dtype), (rows, *shape))


def signature(columns: Any) -> Any:
    """The `tf.TensorSpec`s of columns whose first axis is free."""
    import tensorflow as tf

    def leaf(column: Any) -> Any:
        return tf.TensorSpec((None, *column.shape[1:]), tf.string if column.dtype == object else column.dtype)

    return reference.mapped(leaf, columns)


def dataset(episodes: Iterable[Any], like: Any = None, metadata: Sequence[Mapping[str, Any]] | None = None) -> Any:
    """An RLDS `tf.data.Dataset`.

    Args:
      episodes: nested columns, each one episode; read anew by every iteration, so a list may change in between.
      like: columns that give the spec, where there may be no episodes.
      metadata: for every episode a dict of features.
    """
    import tensorflow as tf

    like = next(iter(episodes)) if like is None else like
    plain: dict[str, Any] = dict(metadata[0]) if metadata else {}
    specs = {name: tf.TensorSpec(np.shape(value), _tf_dtype(value)) for name, value in plain.items()}

    def elements() -> Iterable[Any]:
        for number, columns in enumerate(episodes):
            yield {**(metadata[number] if metadata else {}), "steps": columns}

    columns = tf.data.Dataset.from_generator(elements, output_signature={**specs, "steps": signature(like)})
    return columns.map(lambda element: {**element, "steps": tf.data.Dataset.from_tensor_slices(element["steps"])})


def _tf_dtype(value: Any) -> Any:
    import tensorflow as tf

    return tf.string if isinstance(value, (bytes, str)) else np.asarray(value).dtype


@dataclass(frozen=True)
class StoredItem:
    """What Reverb's own sampler says of one item."""

    key: int
    priority: float
    columns: list[Any]


def take_all(client: Any, table: str, dtypes: Sequence[np.dtype[Any]] = ()) -> list[StoredItem]:
    """Empties a first-in-first-out table whose items are sampled once; the items in the order of insertion.

    Args:
      client: a `reverb.Client`.
      table: its name.
      dtypes: of the columns. Only needed where one is bfloat16: `reverb.Client.sample` cannot return it as an array
        ("Unsupported tf type: DT_BFLOAT16", dm-reverb 0.14), the sampler inside `reverb.TrajectoryDataset` can.
    """
    count = client.server_info()[table].current_size
    if not count:
        return []
    if any(dtype.name == "bfloat16" for dtype in dtypes):
        return _take_by_dataset(client, table, count, dtypes)
    samples = client.sample(table, count, emit_timesteps=False)
    return [StoredItem(sample.info.key, sample.info.priority, list(sample.data)) for sample in samples]


def _take_by_dataset(client: Any, table: str, count: int, dtypes: Sequence[np.dtype[Any]]) -> list[StoredItem]:
    import reverb
    import tensorflow as tf

    samples = reverb.TrajectoryDataset(
        client.server_address,
        table,
        [tf.string if dtype == object else tf.dtypes.as_dtype(dtype) for dtype in dtypes],
        [tf.TensorShape(None)] * len(dtypes),
        max_in_flight_samples_per_worker=1,
        num_workers_per_iterator=1,
        max_samples=count,
    )
    return [
        StoredItem(int(sample.info.key), float(sample.info.priority), [column.numpy() for column in sample.data])
        for sample in samples
    ]


def once(name: str, nest: Any = None) -> Any:
    """A table that hands out every item once, in the order of insertion."""
    from replay_server import TableConfig

    return TableConfig(name, nest, sampler="fifo", remover="fifo", max_times_sampled=1, max_size=10_000_000)


def tensor_spec(spec: Any) -> Any:
    """An `ArraySpec` as `tf.TensorSpec`, bounded or not."""
    import tensorflow as tf
    from tensorflow.python.framework.tensor_spec import BoundedTensorSpec

    dtype = tf.string if spec.dtype == object else tf.dtypes.as_dtype(spec.dtype)
    if spec.minimum is None or spec.maximum is None:
        return tf.TensorSpec(spec.shape, dtype, spec.name or None)
    return BoundedTensorSpec(spec.shape, dtype, spec.minimum, spec.maximum, spec.name or None)


def trajectory_signature(columns: Any, policy_info_fn: Callable[[Any, Any], Any] | None = None) -> Any:
    """The table signature (of `ArraySpec`) that TF-Agents wants for such steps."""
    from tf_agents.specs import tensor_spec

    from rlds2reverb.formats.rlds import array_spec
    from rlds2reverb.specs import map_leaves, named_tuple_type
    from rlds2reverb.tf_agents import create_trajectory_data_spec
    from rlds2reverb.views.trajectory import FIELDS

    spec = tensor_spec.add_outer_dim(create_trajectory_data_spec(dataset([columns]), policy_info_fn))
    # A namedtuple class of our own: TF-Agents' would make the server's process import TF-Agents.
    return named_tuple_type("Trajectory", FIELDS)(*map_leaves(lambda leaf: array_spec(leaf, "trajectory"), spec))
