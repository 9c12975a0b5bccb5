"""What a call of the drop-in finds out about its data, it finds out once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("tf_agents")

from tf_agents.specs import tensor_spec

from rlds2reverb import convert_rlds_to_trajectories, create_trajectory_data_spec, push_rlds_to_reverb
from rlds2reverb.tf_agents import push as pushing
from rlds2reverb.tf_agents import specs as plans
from rlds2reverb.tf_agents.specs import PolicyInfo, step_spec_of
from rlds2reverb.views.trajectory import two_step
from tests.support.rlds_data import dataset, episode


class Counted:
    """A policy_info_fn that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, current: Any, following: Any) -> Any:
        self.calls += 1
        return {"delta": following["observation"] - current["observation"]}


class Observer:
    """An observer of another kind, which is called step by step."""

    def __init__(self, signature: Any) -> None:
        self.signature, self.seen = signature, 0

    def get_table_signature(self) -> Any:
        return self.signature

    def __call__(self, entry: Any) -> None:
        self.seen += 1


@pytest.fixture(scope="module")
def data() -> tf.data.Dataset:
    rng = np.random.default_rng(1)
    episodes = [episode(rng, rows, True, observation=("float32", (3,))) for rows in (4, 1, 6)]
    return dataset(episodes, episodes[0])


@pytest.fixture
def looks() -> Iterator[mock.Mock]:
    """Counts looks at the steps' spec."""
    with mock.patch.object(plans, "step_spec_of", wraps=step_spec_of) as looked:
        yield looked


def test_a_spec_takes_one_trace_and_one_look(data: tf.data.Dataset, looks: mock.Mock) -> None:
    function = Counted()
    assert create_trajectory_data_spec(data, function).policy_info["delta"] == tf.TensorSpec((3,), tf.float32)
    assert (function.calls, looks.call_count) == (1, 1)


def test_a_conversion_takes_one_trace_and_one_look(data: tf.data.Dataset, looks: mock.Mock) -> None:
    function = Counted()
    assert sum(1 for _ in convert_rlds_to_trajectories(data, function)) == 11
    assert (function.calls, looks.call_count) == (1, 1)


def test_a_push_by_calls_takes_one_trace_and_one_look(data: tf.data.Dataset, looks: mock.Mock) -> None:
    observer = Observer(tensor_spec.add_outer_dim(create_trajectory_data_spec(data, Counted())))
    looks.reset_mock()
    function = Counted()
    assert push_rlds_to_reverb(data, observer, function) == observer.seen == 11
    assert (function.calls, looks.call_count) == (1, 1)


def test_the_rows_of_a_push_take_no_other_trace(data: tf.data.Dataset) -> None:
    """Episodes of several lengths, each of which would be a reason to trace anew."""
    function = Counted()
    plan = plans.plan_of(data, function)
    rows = list(pushing._checked_segments(plan))
    assert sum(len(row["policy_info/delta"]) for row in rows) == 11
    assert function.calls == 1
    assert list(two_step().cut_rows(rows[0]).in_order(plan.column_order).fields)


def test_without_a_function_there_is_no_policy_info(data: tf.data.Dataset) -> None:
    assert plans.plan_of(data, None).policy_info == PolicyInfo()
    assert create_trajectory_data_spec(data).policy_info == ()
