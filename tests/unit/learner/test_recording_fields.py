"""Fields that no item holds: a writer refuses them at the first step."""

from __future__ import annotations

import numpy as np
import pytest

from rlds2reverb.errors import ConfigError
from tests.support.learner.loops import step, writer
from tests.support.push.in_memory import Server


def test_a_misspelt_field_is_refused_with_the_one_that_is_meant() -> None:
    server = Server()
    with writer(server) as to:
        with pytest.raises(ConfigError, match=r'field "rewards" is in no item of "replay".*did you mean reward\?'):
            to.append(observation=np.zeros(3, np.float32), action=np.int64(0), rewards=7.0)
        to.append(step(0))  # the episode is as before
        to.end_episode(observation=np.ones(3, np.float32), terminal=True)
    assert len(server.contents()) == 1


def test_a_field_of_another_name_is_refused() -> None:
    with writer(Server()) as to, pytest.raises(ConfigError, match=r'"lives" is in no item.*lost; leave it out, or'):
        to.append({**step(0), "lives": 3})


def test_fields_of_every_step_may_go_unused() -> None:
    with writer(Server()) as to:
        to.append({**step(0), "is_first": True, "is_last": False})
        to.discard_episode()
