"""TF-Agents' own test module, run against our three functions: the same 39 cases, unchanged."""

from __future__ import annotations

import types

import pytest

pytest.importorskip("tf_agents")

from tf_agents.replay_buffers import rlds_to_reverb, rlds_to_reverb_test

from rlds2reverb import convert_rlds_to_trajectories, create_trajectory_data_spec, push_rlds_to_reverb

_OURS = types.SimpleNamespace(
    convert_rlds_to_trajectories=convert_rlds_to_trajectories,
    create_trajectory_data_spec=create_trajectory_data_spec,
    push_rlds_to_reverb=push_rlds_to_reverb,
    get_rlds_step_features=rlds_to_reverb.get_rlds_step_features,
)


@pytest.fixture(autouse=True)
def _our_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rlds_to_reverb_test, "rlds_to_reverb", _OURS)


class TestPush(rlds_to_reverb_test.RldsToReverbTest):
    """Specs and pushes."""


class TestConversion(rlds_to_reverb_test.RldsToTrajectoriesTest):
    """Conversions."""


def test_all_cases_of_the_wheel_are_collected() -> None:
    names = [
        n for case in (TestPush, TestConversion) for n in dir(case) if n.startswith("test_") and n != "test_session"
    ]
    assert len(names) == 39
