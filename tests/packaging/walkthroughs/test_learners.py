"""The learners with TF-Agents learn from a running server; all learners are short."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from replay_server import TableConfig

import rlds2reverb
from tests.support import learner_examples as examples
from tests.support.forks import Forks


@pytest.fixture(scope="module")
def address(forks: Forks) -> Iterator[str]:
    with forks.embedded([TableConfig(examples.TABLE, examples.signature())]) as server:
        with rlds2reverb.connect(server.address) as client:
            client.push(examples.SOURCE, examples.TABLE)
        yield server.address


@pytest.mark.parametrize("name", ["bc_tf_agents", "dqn_tf_agents"])
def test_a_learner_with_tf_agents_learns(name: str, address: str) -> None:
    examples.check_learned(examples.report_of(name, address))


def test_a_learner_takes_just_the_samples_that_it_learns_from(address: str) -> None:
    with rlds2reverb.connect(address) as client:
        before = client.tables()[examples.TABLE].rate_limiter.samples
        examples.report_of("bc_tf_agents", address, "--steps", "7")
        assert client.tables()[examples.TABLE].rate_limiter.samples == before + 7 * 64


# The same two learners with each library. LeRobot's policies (lerobot_policy.py) come from that library, with data of their own.
CARTPOLE_LEARNERS = [path for path in sorted(examples.LEARNERS.glob("*_*.py")) if path.stem != "lerobot_policy"]


def test_learners_are_short() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in CARTPOLE_LEARNERS}
    assert {name.partition("_")[0] for name in lines} == {"bc", "dqn"}
    assert len(lines) == 6
    assert {name for name, count in lines.items() if count >= examples.MOST_LINES} == set()


def test_what_a_learner_tells_its_reader_to_type_is_its_own_name() -> None:
    for path in CARTPOLE_LEARNERS:
        assert (
            f"python examples/learners/{Path(path).name} --server localhost:8000 --table cartpole" in path.read_text()
        )
