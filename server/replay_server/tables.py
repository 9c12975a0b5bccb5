"""What a table is, as plain values, and the `reverb.Table` made of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from replay_server.limiters import MinSize, Prefill, Queue, RateLimiter, Stack, reverb_limiter
from rlds2reverb.errors import ConfigError
from rlds2reverb.specs import ArraySpec, Nest, map_leaves

Selector = Literal["uniform", "fifo", "lifo", "max_heap", "min_heap", "prioritized"]
SELECTORS: tuple[str, ...] = get_args(Selector)


@dataclass(frozen=True)
class TableConfig:
    """One table.

    Attributes:
      name: the table's name.
      signature: nest of `ArraySpec` (`view.signature(step_spec)`), or None for a table that takes anything.
      max_size: items; more inserted are removed by `remover`.
      sampler, remover: one of `SELECTORS`; a queue or stack has its own.
      priority_exponent: of "prioritized" selectors.
      max_times_sampled: samples of one item before it is removed; 0 for no limit, 1 in a queue or stack.
      rate_limiter: see `limiters`.
    """

    name: str
    signature: Nest | None = None
    max_size: int = 1_000_000
    sampler: str = "uniform"
    remover: str = "fifo"
    priority_exponent: float = 0.8
    max_times_sampled: int = 0
    rate_limiter: RateLimiter = MinSize()

    @staticmethod
    def queue(name: str, size: int, signature: Nest | None = None) -> TableConfig:
        """First in, first out, each item sampled once."""
        return TableConfig(name, signature, size, "fifo", "fifo", 0.8, 1, Queue(size=size))

    @staticmethod
    def stack(name: str, size: int, signature: Nest | None = None) -> TableConfig:
        """Last in, first out, each item sampled once."""
        return TableConfig(name, signature, size, "lifo", "lifo", 0.8, 1, Stack(size=size))

    def filled(self) -> TableConfig:
        """The table after its prefill; itself where there is none."""
        return replace(self, rate_limiter=self.rate_limiter.then) if isinstance(self.rate_limiter, Prefill) else self


def reverb_table(config: TableConfig) -> Any:
    """A `reverb.Table`.

    Raises:
      ConfigError: a selector that does not exist, or what Reverb and TensorFlow refuse.
    """
    import reverb

    try:
        return reverb.Table(
            name=config.name,
            sampler=_selector(reverb, config, config.sampler),
            remover=_selector(reverb, config, config.remover),
            max_size=config.max_size,
            max_times_sampled=config.max_times_sampled,
            rate_limiter=reverb_limiter(config.rate_limiter),
            signature=None if config.signature is None else map_leaves(_tensor_spec, config.signature),
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(f'table "{config.name}": {error}') from error


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


def _tensor_spec(spec: ArraySpec) -> Any:
    import tensorflow as tf

    dtype = tf.string if spec.dtype == object else tf.dtypes.as_dtype(spec.dtype)
    if spec.minimum is None or spec.maximum is None:
        return tf.TensorSpec(spec.shape, dtype, spec.name or None)
    from tensorflow.python.framework.tensor_spec import BoundedTensorSpec

    return BoundedTensorSpec(spec.shape, dtype, spec.minimum, spec.maximum, spec.name or None)
