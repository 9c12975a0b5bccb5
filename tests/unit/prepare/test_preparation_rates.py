"""Views in seconds get the rate of their dataset: the same items, under the same names, as by steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import rlds2reverb
from rlds2reverb.errors import ViewError
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.source import About
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.prepare.preparation import Output, Preparation
from rlds2reverb.views import view_of
from rlds2reverb.views.base import View
from rlds2reverb.views.prioritized import Prioritized
from tests.support import strategies
from tests.support.push.in_memory import Server, planned, push_to, table_info


class Timed(EpisodeList):
    """Episodes at a rate."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        super().__init__(
            [strategies.episode(np.random.default_rng(n), 9, episode_id=f"e{n}") for n in range(3)], "timed"
        )
        self._facts = facts

    @property
    def about(self) -> About:
        return About.of("lerobot", self._facts)


SECONDS, STEPS = (
    view_of("chunk:history=-0.2s:0s,horizon=3,stride=0.1s,short=pad"),
    view_of("chunk:history=-2:0,horizon=3,short=pad"),
)


@pytest.mark.parametrize(
    ("seconds", "steps"), [(SECONDS, STEPS), (Prioritized(SECONDS, "reward"), Prioritized(STEPS, "reward"))]
)
def test_seconds_are_steps_at_the_rate_of_the_dataset(seconds: View, steps: View) -> None:
    ready = Preparation.open(Timed({"fps": 10}), EpisodeOptions(), [Output(("t",), seconds)])
    assert [output.view for output in ready.outputs] == [steps]


def test_a_push_and_a_local_pass_name_items_as_by_steps() -> None:
    source: Any = Timed({"fps": 10})
    servers = [Server({"t": table_info("t")}) for _ in range(2)]
    for server, view in zip(servers, (SECONDS, STEPS)):
        push_to(server, source, (Output(("t",), view),))
    stored = [set(server.items["t"]) for server in servers]
    with rlds2reverb.local(source, view=SECONDS, table="t", batch_size=4, epochs=1) as by_seconds:
        keys = {int(key) for batch in by_seconds for key in batch.info.key}
    assert stored[0] == stored[1] == keys
    plan = planned(Server({"t": table_info("t")}), source, {"t": SECONDS}, None)
    assert plan.view == STEPS.label


@pytest.mark.parametrize("facts", [{}, {"fps": "10"}, {"fps": 0}, {"fps": True}])
def test_a_dataset_without_a_rate_is_refused(facts: Mapping[str, Any]) -> None:
    with pytest.raises(ViewError, match="need a rate, and timed says none that holds for all of it; add fps=N"):
        Preparation.open(Timed(facts), EpisodeOptions(), [Output(("t",), SECONDS)])


def test_seconds_that_are_no_multiple_of_the_rate_are_refused() -> None:
    with pytest.raises(ViewError, match=r"expected a multiple of 0\.142857 s"):
        Preparation.open(Timed({"fps": 7}), EpisodeOptions(), [Output(("t",), SECONDS)])
