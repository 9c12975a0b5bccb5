"""Pushes RLDS data into the tables of an observer, over this package's own wire."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils

from rlds2reverb.client import Target, connect
from rlds2reverb.cuts import Cut
from rlds2reverb.episode import IS_FIRST, STEP_FIELDS, Episode
from rlds2reverb.errors import ConfigError, ViewError
from rlds2reverb.formats.rlds import STEPS, batch_steps, without_tuning
from rlds2reverb.keywords import make_options, takes_options
from rlds2reverb.prepare.policy import RAISE, SKIP, Policy
from rlds2reverb.prepare.standard import Standard
from rlds2reverb.push.options import SendKeywords, SendOptions
from rlds2reverb.push.sender import Sender, Writer
from rlds2reverb.specs import flatten
from rlds2reverb.tf_agents.conversion import trajectories_one_by_one
from rlds2reverb.tf_agents.observers import (
    StreamCutter,
    forget_bypassed,
    left_where_it_ends,
    stream_from,
    view_of_observer,
)
from rlds2reverb.tf_agents.specs import (
    PolicyInfo,
    PolicyInfoFn,
    RldsData,
    TrajectoryPlan,
    check_discount,
    check_signature,
    plan_of,
)
from rlds2reverb.tf_agents.step_stream import Rows, StreamError, adjacent, join_segments, segments, with_lookahead
from rlds2reverb.views.base import EXTRAS, View, spell_view
from rlds2reverb.views.trajectory import POLICY_INFO, AcrossEpisodes, SequenceView, WholeEpisode
from rlds2reverb.wire.insert import Part

if TYPE_CHECKING:
    from typing_extensions import Unpack

Observer = Union[reverb_utils.ReverbAddEpisodeObserver, reverb_utils.ReverbAddTrajectoryObserver, Target]
RowCutter = Union[SequenceView, WholeEpisode, StreamCutter]

# Windows of a stream that are cut at once. The rows of the last window are stored again with the next ones.
_WINDOWS_AT_ONCE = 4

_log = logging.getLogger("rlds2reverb.tf_agents")

_TOO_LONG = (
    "The number of trajectories within the same episode exceeds `max_sequence_length`. Consider increasing the "
    "`max_sequence_length` or set `bypass_partial_episodes` to true to bypass the episodes with length more than "
    "`max_sequence_length`."
)


@takes_options(SendOptions)
def push_rlds_to_reverb(
    rlds_data: RldsData,
    reverb_observer: Observer,
    policy_info_fn: PolicyInfoFn = None,
    *,
    on_invalid: str | None = None,
    allow: Sequence[str] = (),
    **options: Unpack[SendKeywords],
) -> int:
    """Stores the data's trajectories in Reverb as the observer would have, and waits until the server has them all.

    The configuration of TF-Agents' three observers is read; the data goes over this package's own wire, in the same order.
    An observer of another kind is called step by step. Called twice, it stores twice. What was stored before an
    error stays stored.

    Args:
      rlds_data: as for `create_trajectory_data_spec`.
      reverb_observer: `ReverbAddTrajectoryObserver`, `ReverbAddEpisodeObserver`, `ReverbTrajectorySequenceObserver`, a
        `Target` (`client.target(...)`), or any callable with `get_table_signature()`.
      policy_info_fn: as for `convert_rlds_to_trajectories`.
      on_invalid: None stores NaN and whatever else breaks none of TF-Agents' own rules, as TF-Agents does. "raise" and "skip" judge
        episodes as `client.push` judges them: a bad one ends the push, or is left out and counted in the log. Not for an observer
        that is called step by step.
      allow: codes of problems to tolerate then, as of `client.push`: ["nan"].
      options: how items are sent, as of `client.push`. Not for an observer that is called step by step.

    Returns:
      The number of trajectories made of the data (one per step), as TF-Agents counts them; without those that were left out.

    Raises:
      ValueError: no RLDS steps, a field is missing, the table's signature differs (the cause lists the leaves), or an
        episode is longer than the episode observer's `max_sequence_length` and not bypassed.
      SourceError: as for `create_trajectory_data_spec`.
      TypeError: the discount is not float32.
      InvalidEpisode: `on_invalid` is "raise", and an episode is bad; those before it are stored.
      ConfigError: another `on_invalid`, an unknown code in `allow`, or `on_invalid` or options of sending for an observer that is called step by step.
      tf.errors.InvalidArgumentError: as for `convert_rlds_to_trajectories`.
      TransportError: the server cannot be reached, was restarted, or confirms nothing.
    """
    if isinstance(reverb_observer, Target):
        target_view = reverb_observer.output.view
        if getattr(target_view, EXTRAS, ()):
            raise ViewError(
                f"view {spell_view(target_view)}: push_rlds_to_reverb fills policy_info by policy_info_fn and takes no extras; use client.push"
            )
    policy = _policy_of(on_invalid, allow)
    sending = make_options(SendOptions, "push_rlds_to_reverb", **options)
    plan = plan_of(rlds_data, policy_info_fn)
    check_signature(plan.spec, reverb_observer)
    check_discount(plan.step_spec)
    if isinstance(reverb_observer, Target):
        return _push(plan, reverb_observer, _cutter(reverb_observer.output.view), policy, sending)
    view = view_of_observer(reverb_observer)
    if isinstance(view, AcrossEpisodes):
        return _push_stream(plan, reverb_observer, view, policy, sending)
    if view is None or reverb_observer._cached_steps:
        return _push_by_call(plan, reverb_observer, policy, sending)
    reverb_observer.flush()  # earlier observations of the caller come first
    forget_bypassed(reverb_observer)
    with connect(reverb_observer.py_client.server_address) as client:
        return _push(plan, client.target(reverb_observer._table_names, view), view, policy, sending)


def _policy_of(on_invalid: str | None, allow: Sequence[str]) -> Policy | None:
    if on_invalid is None and not allow:
        return None
    if on_invalid not in (RAISE, SKIP):
        raise ConfigError(
            f"push_rlds_to_reverb: on_invalid {on_invalid!r}, allow {list(allow)!r}: expected on_invalid to be {RAISE!r} or {SKIP!r}, or neither of "
            "the two, which stores what TF-Agents stores; client.push has all policies"
        )
    return Policy(on_invalid, allow=allow)


def _push_stream(
    plan: TrajectoryPlan, observer: Any, view: AcrossEpisodes, policy: Policy | None, options: SendOptions
) -> int:
    stream = stream_from(observer, plan.spec)
    if stream is None:
        return _push_by_call(plan, observer, policy, options)
    observer.flush()
    cutter = StreamCutter(stream)
    with connect(observer.py_client.server_address) as client, left_where_it_ends(observer, cutter, plan.spec):
        return _push(plan, client.target(observer._table_names, view), cutter, policy, options)


def _push_by_call(plan: TrajectoryPlan, observer: Any, policy: Policy | None, options: SendOptions) -> int:
    if changed := [name for name, value in vars(options).items() if value != getattr(SendOptions(), name)]:
        raise ConfigError(
            f"push_rlds_to_reverb: {', '.join(changed)}: this observer is called step by step and sends by itself; leave them out"
        )
    if policy is not None:  # it has stored the beginning of an episode before the rest of it is read
        raise ConfigError(
            "push_rlds_to_reverb: on_invalid: this observer is called step by step, so its episodes cannot be judged before they are stored; leave "
            'on_invalid out, or give client.target("TABLE", view=...) in its place'
        )
    count = 0
    for entry in trajectories_one_by_one(plan):
        observer(entry)
        count += 1
    if hasattr(observer, "flush"):
        observer.flush()
    return count


def _push(plan: TrajectoryPlan, target: Target, cutter: RowCutter, policy: Policy | None, options: SendOptions) -> int:
    client, tables, order = target.client, target.output.tables, plan.column_order
    push_seed = secrets.randbits(64)
    steps = items = 0
    segments_of_rows = _checked_segments(plan, policy)
    if isinstance(cutter, StreamCutter):  # cut so much at once that the rows carried over are few beside the new ones
        segments_of_rows = join_segments(segments_of_rows, _WINDOWS_AT_ONCE * cutter.view.length)
    with (
        Sender(client.transport, tables, client.server_info(), deadlines=options.deadlines) as sender,
        Writer(sender, options) as writer,
    ):
        for number, rows in enumerate(segments_of_rows):
            cut = _cut(cutter, rows).in_order(order)
            steps += len(next(iter(rows.values())))
            items += len(cut.anchors) * len(tables)
            if len(cut.anchors):
                writer.write(str(number), [Part(tables, push_seed, str(number), cut)])
    if policy is not None and policy.rejected:
        _log.warning("Left out as bad: %s.", ", ".join(f"{code} {count:,}" for code, count in policy.rejected.items()))
    _log.info("Successfully wrote %d steps to Reverb, as %d items.", steps, items)
    return steps


def _cutter(view: View) -> RowCutter:
    if isinstance(view, AcrossEpisodes):
        return StreamCutter(view.stream())
    if isinstance(view, (SequenceView, WholeEpisode)):
        return view
    raise ViewError(
        f"view {spell_view(view)}: push_rlds_to_reverb takes two_step, sequence, episode or across_episodes; use client.push"
    )


def _cut(cutter: RowCutter, rows: Rows) -> Cut:
    try:
        cut = cutter.cut_rows(rows)
    except ViewError as error:
        raise ValueError(_TOO_LONG) from error
    if not len(cut.anchors) and isinstance(cutter, WholeEpisode):
        _log.error("An episode of %d steps exceeds `max_sequence_length` and was not stored.", cut.row_count)
    return cut


def _checked_segments(plan: TrajectoryPlan, policy: Policy | None = None) -> Iterator[Rows]:
    """Segments of trajectory rows, each with one boundary; raises TF-Agents' error for bad data, and `InvalidEpisode` by the policy."""
    episodes = without_tuning(
        plan.data.map(lambda episode: batch_steps(episode[STEPS])).prefetch(1)
    ).as_numpy_iterator()
    if policy is not None and not policy.stops:  # before the flags of the next step are looked up
        episodes = (steps for number, steps in enumerate(episodes) if _is_good(_columns(steps), number, policy))
    blocks = with_lookahead(_with_policy_info(episodes, plan.policy_info))
    if policy is not None and policy.stops:  # when the one before it, which the look-up holds back, has been stored
        blocks = (block for number, block in enumerate(blocks) if _is_good(block.columns, number, policy))
    try:
        yield from segments(blocks)
    except StreamError as error:
        message = f"assertion failed: [{error}] [step {error.step} of its episode]"
        raise tf.errors.InvalidArgumentError(None, None, message) from error


def _is_good(columns: Mapping[str, Any], number: int, policy: Policy) -> bool:
    """Judges the fields of an episode that are stored; an empty episode, of which nothing is stored, is good."""
    if not len(columns[IS_FIRST]):
        return True
    fields = {path: column for path, column in columns.items() if path.split("/")[0] in STEP_FIELDS}
    episode = Episode(fields, id=f"number {number:,}")
    return policy.accepts(episode, policy.examine(episode, Standard()).problems)


def _with_policy_info(episodes: Iterator[Any], policy_info: PolicyInfo) -> Iterator[Mapping[str, Any]]:
    """Columns of every episode, with the columns of policy_info if there is a function."""
    if policy_info.function is None:
        yield from map(_columns, episodes)
        return
    compute = tf.function(policy_info.of_pairs, reduce_retracing=True)
    for steps, later in adjacent(episodes):
        after = _padding_step(steps) if later is None else later
        following = tf.nest.map_structure(lambda now, then: np.concatenate((now[1:], then[:1])), steps, after)
        info = tf.nest.map_structure(lambda tensor: tensor.numpy(), compute(steps, following))
        yield {**_columns(steps), **flatten(info, POLICY_INFO)}


def _columns(steps: Mapping[str, Any]) -> dict[str, Any]:
    """Columns by path; a step field named policy_info is ignored, as by TF-Agents."""
    return flatten({name: columns for name, columns in steps.items() if name != POLICY_INFO})


def _padding_step(like: Any) -> Any:
    """The step that follows the last one of the data: zeros, and the first of an episode."""

    def zeros(column: Any) -> Any:
        return np.full((1, *column.shape[1:]), b"" if column.dtype == object else 0, column.dtype)

    return {**tf.nest.map_structure(zeros, like), IS_FIRST: np.ones(1, bool)}
