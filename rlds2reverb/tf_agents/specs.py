"""What is expected of the data's steps, and of a table's signature.

Source: `tf_agents.replay_buffers.rlds_to_reverb`, tf-agents 0.19.0; the texts of errors are its own.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import trajectory

from rlds2reverb.client import Target
from rlds2reverb.episodes import DISCOUNT, STEP_FIELDS
from rlds2reverb.errors import SpecError, SpecMismatch
from rlds2reverb.push.tables import check_tables
from rlds2reverb.sources.rlds import STEPS, array_spec
from rlds2reverb.specs import differences, flatten, map_leaves
from rlds2reverb.tf_agents.observers import item_rows
from rlds2reverb.views.across import AcrossEpisodes
from rlds2reverb.views.sequence import SequenceView
from rlds2reverb.views.trajectory import FIELDS, POLICY_INFO, with_window

_RIGHT_SIGNATURE = (
    "create the table with signature=tensor_spec.add_outer_dim(create_trajectory_data_spec(rlds_data, policy_info_fn)), "
    "or by the config that `rlds2reverb inspect SOURCE --server-config` prints"
)

_SPEC_MISMATCH = "Replay buffer table signature spec should match RLDS data spec."


def step_spec_of(rlds_data: tf.data.Dataset) -> Any:
    """The element spec of a step, checked with TF-Agents' texts."""
    if STEPS not in rlds_data.element_spec:
        raise ValueError(f"No dataset representing RLDS {STEPS} exist in the data.")
    step_spec = rlds_data.flat_map(lambda episode: episode[STEPS]).element_spec
    if not all(name in step_spec for name in STEP_FIELDS):
        raise ValueError(
            f"Invalid RLDS step spec. Features expected are {list(STEP_FIELDS)}, but found {list(step_spec.keys())}"
        )
    return step_spec


def data_spec(signature: Any) -> trajectory.Trajectory:
    """What TF-Agents' buffers and agents call `data_spec` or `collect_data_spec`: a row of a table of trajectories.

    Args:
      signature: the table's, as `client.server_info()` has it; extras are its policy_info.

    Returns:
      A Trajectory of `tf.TensorSpec`, without outer dimension.

    Raises:
      SpecError: the table holds no trajectories.
    """
    if getattr(signature, "_fields", ()) != FIELDS:
        raise SpecError(f"expected the signature of a table of trajectories ({', '.join(FIELDS)}), got {signature!r}")
    return trajectory.Trajectory(
        *map_leaves(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype, leaf.name or None), tuple(signature))
    )


def check_discount(step_spec: Any) -> None:
    """Raises TypeError unless the discount is float32, as the trajectory spec says it is."""
    if step_spec[DISCOUNT].dtype != tf.float32:
        raise TypeError(
            f"RLDS discount: expected float32, as the trajectory spec says, got {step_spec[DISCOUNT].dtype.name}; "
            "cast it with a map over the steps"
        )


def check_signature(spec: Any, observer: Any) -> None:
    """Raises TF-Agents' ValueError unless the observer's table takes such trajectories, leaf by leaf; see `specs.differences`.

    A table whose sizes are fixed takes items of as many rows. A table without policy_info takes what an observer stores
    with it, too, as with TF-Agents: its items then have more columns than its signature. A target names its view, so it is refused by a
    table that was made for another one; an observer has no view, and is not asked for one.

    Args:
      spec: of the trajectories, as `create_trajectory_data_spec` gives it.
      observer: what has `get_table_signature()`.
    """
    found = observer.get_table_signature()
    if found is not None and isinstance(observer, Target):
        _check_target(spec, observer)
    elif lines := _what_does_not_fit(spec, observer, found):
        raise ValueError(_SPEC_MISMATCH) from SpecMismatch("table", lines, _RIGHT_SIGNATURE)


def _check_target(spec: Any, target: Target) -> None:
    items = with_window(_array_specs(spec), _rows(target.output.view))
    try:
        check_tables(target.output, items, target.client.server_info(), target.allow_other_views)
    except SpecMismatch as error:
        raise ValueError(_SPEC_MISMATCH) from error


def _what_does_not_fit(spec: Any, observer: Any, found: Any) -> list[str]:
    if found is None:
        return ["the table has no signature"]
    bare = spec._replace(policy_info=())
    if found == tensor_spec.add_outer_dim(bare):
        return []
    with_info = bool(tf.nest.flatten(getattr(found, POLICY_INFO, ())))
    signature = _array_specs(found)
    is_free = all(leaf.shape[:1] == (None,) for leaf in flatten(signature).values())
    return _differences(spec if with_info else bare, None if is_free else item_rows(observer), signature)


def _differences(spec: Any, rows: int | None, found: Any) -> list[str]:
    return differences(with_window(_array_specs(spec), rows), found)


def _array_specs(nest: Any) -> Any:
    return map_leaves(lambda leaf: array_spec(leaf, "trajectory"), nest)


def _rows(view: Any) -> int | None:
    return view.length if isinstance(view, (SequenceView, AcrossEpisodes)) else None
