"""The learners with PyTorch and JAX learn from a running server, and draw what they learned."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlds2reverb
from tests.support import learner_examples as examples
from tests.systems.learners.conftest import StartServer

PNG_START = b"\x89PNG"


@pytest.fixture(scope="module")
def address(start_server: StartServer) -> str:
    address = start_server({"name": examples.TABLE, "signature": examples.signature()}).address
    with rlds2reverb.connect(address) as client:
        client.push(examples.SOURCE, examples.TABLE)
    return address


@pytest.mark.parametrize("name", ["bc_torch", "dqn_torch", "bc_jax", "dqn_jax"])
def test_a_learner_learns(name: str, address: str) -> None:
    examples.check_learned(examples.report_of(name, address))


def test_a_learner_draws_its_curve(address: str, tmp_path: Path) -> None:
    picture = tmp_path / "bc.png"
    examples.report_of("bc_torch", address, "--steps", "10", "--plot", str(picture))
    assert picture.read_bytes().startswith(PNG_START)
