"""The user's function that computes policy_info: traced once, then part of every graph that needs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

import tensorflow as tf

PolicyInfoFn = Optional[Callable[[Any, Any], Any]]
"""(current_step, next_step) -> policy_info, or None."""


@dataclass(frozen=True)
class PolicyInfo:
    """policy_info by a function of two steps, or none.

    Attributes:
      function: (current_step, next_step) -> a nest of tensors, as a graph; None without a function.
      spec: of what it gives; () without a function.
    """

    function: Callable[[Any, Any], Any] | None = None
    spec: Any = ()

    @classmethod
    def traced(cls, policy_info_fn: PolicyInfoFn, step_spec: Any) -> PolicyInfo:
        """Calls the function once, with symbolic steps of this spec."""
        if policy_info_fn is None:
            return cls()
        traced = tf.function(_as_tensors(policy_info_fn)).get_concrete_function(step_spec, step_spec)
        return cls(traced, tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), traced.structured_outputs))

    def of_pairs(self, current: Any, following: Any) -> Any:
        """policy_info of [n] pairs of steps: the function is called for each, inside the graph."""
        function = self.function
        if function is None or not tf.nest.flatten(self.spec):
            return self.spec
        return tf.map_fn(lambda pair: function(*pair), (current, following), fn_output_signature=self.spec)


def _as_tensors(policy_info_fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The same function with every leaf of its result as a tensor."""
    function = tf.autograph.experimental.do_not_convert(tf.nest.map_structure)
    return lambda current, following: function(tf.convert_to_tensor, policy_info_fn(current, following))
