"""What a table is, as plain values, and the `reverb.Table` made of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from replay_server.limiters import MinSize, Queue, RateLimiter, Stack
from replay_server.selectors import Selector, reverb_selector
from rlds2reverb.errors import ConfigError
from rlds2reverb.specs import ArraySpec, Nest, map_leaves
from rlds2reverb.wire.signature import names_on_wire


@dataclass(frozen=True)
class TableConfig:
    """One table. The defaults here are those of the server's config and of every file that it writes.

    Attributes:
      name: the table's name.
      signature: nest of `ArraySpec` (`table_signature(view.signature(step_spec), view)`), or None for a table that takes anything.
      max_size: items; more inserted are removed by `remover`.
      sampler, remover: each one of `selectors.SELECTORS`; a queue or stack has its own.
      priority_exponent: of "prioritized" selectors.
      max_times_sampled: samples of one item before it is removed; 0 for no limit, 1 in a queue or stack.
      rate_limiter: see `limiters`.
    """

    name: str
    signature: Nest | None = None
    max_size: int = 1_000_000
    sampler: Selector = "uniform"
    remover: Selector = "fifo"
    priority_exponent: float = 0.8
    max_times_sampled: int = 0
    rate_limiter: RateLimiter = MinSize()

    @staticmethod
    def queue(name: str, size: int, signature: Nest | None = None) -> TableConfig:
        """First in, first out; each item is sampled once."""
        return TableConfig(name, signature).with_limiter(Queue(size=size))

    @staticmethod
    def stack(name: str, size: int, signature: Nest | None = None) -> TableConfig:
        """Last in, first out; each item is sampled once."""
        return TableConfig(name, signature).with_limiter(Stack(size=size))

    def with_limiter(self, limiter: RateLimiter) -> TableConfig:
        """The table with this limiter, in the shape that the limiter wants, if it wants one."""
        return replace(self, rate_limiter=limiter, **({} if limiter.shape is None else asdict(limiter.shape)))

    def filled(self) -> TableConfig:
        """The table after its prefill; itself where there is none."""
        return replace(self, rate_limiter=self.rate_limiter.settled())


def reverb_table(config: TableConfig) -> Any:
    """A `reverb.Table`.

    Raises:
      ConfigError: a selector that does not exist, or what Reverb and TensorFlow refuse.
    """
    import reverb

    try:
        return reverb.Table(
            name=config.name,
            sampler=reverb_selector(config.sampler, config.priority_exponent),
            remover=reverb_selector(config.remover, config.priority_exponent),
            max_size=config.max_size,
            max_times_sampled=config.max_times_sampled,
            rate_limiter=config.rate_limiter.to_reverb(),
            signature=None if config.signature is None else map_leaves(_stored_spec, config.signature),
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(f'table "{config.name}": {error}') from error


def tensor_spec(spec: ArraySpec) -> Any:
    """A `tf.TensorSpec`, or a bounded one: what TensorFlow sees of a leaf."""
    import tensorflow as tf

    dtype = tf.string if spec.dtype == object else tf.dtypes.as_dtype(spec.dtype)
    name = names_on_wire(spec)[0] or None
    if spec.minimum is None or spec.maximum is None:
        return tf.TensorSpec(spec.shape, dtype, name)
    from tensorflow.python.framework.tensor_spec import BoundedTensorSpec

    return BoundedTensorSpec(spec.shape, dtype, spec.minimum, spec.maximum, name)


def _stored_spec(spec: ArraySpec) -> Any:
    """The same for Reverb to keep: where the leaf says which view the table is for, its first axis has a name once it is written as a message."""
    import tensorflow as tf

    plain, axis = tensor_spec(spec), names_on_wire(spec)[1]
    if not axis:
        return plain

    class Shape(tf.TensorShape):  # type: ignore[misc]
        def as_proto(self) -> Any:
            proto = super().as_proto()
            proto.dim[0].name = axis
            return proto

    kind = type(type(plain).__name__, (type(plain),), {"shape": property(lambda self: Shape(self._shape))})
    bounds = () if spec.minimum is None or spec.maximum is None else (spec.minimum, spec.maximum)
    return kind(spec.shape, plain.dtype, *bounds, plain.name)
