"""What a table is, as plain values, and the `reverb.Table` made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlds2reverb.errors import ConfigError
from rlds2reverb.specs import ArraySpec, Nest, map_leaves

SELECTORS = ("uniform", "fifo", "lifo", "max_heap", "min_heap", "prioritized")


@dataclass(frozen=True)
class TableConfig:
    """One table.

    Attributes:
      name: the table's name.
      signature: nest of `ArraySpec` (`view.signature(step_spec)`), or None for a table that takes anything.
      max_size: items; more inserted are removed by `remover`.
      sampler, remover: one of `SELECTORS`.
      priority_exponent: of "prioritized" selectors.
      max_times_sampled: samples of one item before it is removed; 0 for no limit.
      min_size: items needed before the first sample.
      samples_per_insert: None for no ratio; else inserts block when samples fall behind.
      error_buffer: how far inserts and samples may drift apart, in samples; needed with a ratio.
      queue_size: a number makes the table a first-in-first-out queue of that size, each item sampled once.
    """

    name: str
    signature: Nest | None = None
    max_size: int = 1_000_000
    sampler: str = "uniform"
    remover: str = "fifo"
    priority_exponent: float = 0.8
    max_times_sampled: int = 0
    min_size: int = 1
    samples_per_insert: float | None = None
    error_buffer: float | None = None
    queue_size: int | None = None


def reverb_table(config: TableConfig) -> Any:
    """A `reverb.Table`.

    Raises:
      ConfigError: a selector that does not exist, or a ratio without an error buffer.
    """
    import reverb

    signature = None if config.signature is None else map_leaves(_tensor_spec, config.signature)
    if config.queue_size is not None:
        return reverb.Table.queue(config.name, max_size=config.queue_size, signature=signature)
    return reverb.Table(
        name=config.name,
        sampler=_selector(reverb, config, config.sampler),
        remover=_selector(reverb, config, config.remover),
        max_size=config.max_size,
        max_times_sampled=config.max_times_sampled,
        rate_limiter=_rate_limiter(reverb, config),
        signature=signature,
    )


def _selector(reverb: Any, config: TableConfig, name: str) -> Any:
    selectors = reverb.selectors
    makers = {
        "uniform": selectors.Uniform,
        "fifo": selectors.Fifo,
        "lifo": selectors.Lifo,
        "max_heap": selectors.MaxHeap,
        "min_heap": selectors.MinHeap,
        "prioritized": lambda: selectors.Prioritized(config.priority_exponent),
    }
    if name not in makers:
        raise ConfigError(f'table "{config.name}": selector "{name}", expected one of {", ".join(SELECTORS)}')
    return makers[name]()


def _rate_limiter(reverb: Any, config: TableConfig) -> Any:
    if config.samples_per_insert is None:
        return reverb.rate_limiters.MinSize(config.min_size)
    if config.error_buffer is None:
        raise ConfigError(f'table "{config.name}": samples_per_insert needs an error_buffer')
    return reverb.rate_limiters.SampleToInsertRatio(config.samples_per_insert, config.min_size, config.error_buffer)


def _tensor_spec(spec: ArraySpec) -> Any:
    import tensorflow as tf

    dtype = tf.string if spec.dtype == object else tf.dtypes.as_dtype(spec.dtype)
    if spec.minimum is None or spec.maximum is None:
        return tf.TensorSpec(spec.shape, dtype, spec.name or None)
    from tensorflow.python.framework.tensor_spec import BoundedTensorSpec

    return BoundedTensorSpec(spec.shape, dtype, spec.minimum, spec.maximum, spec.name or None)
