"""Extras on a real server: Reverb's sampler reads them by name, and TF-Agents' buffer and agents take them as policy_info."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

reverb = pytest.importorskip("reverb")

import tensorflow as tf
from replay_server import TableConfig
from tf_agents.agents.behavioral_cloning import behavioral_cloning_agent
from tf_agents.networks import sequential
from tf_agents.replay_buffers import reverb_replay_buffer
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

import rlds2reverb
from rlds2reverb import Episode
from rlds2reverb.episode import content_digest, metadata_specs
from rlds2reverb.errors import SpecError, ViewError
from rlds2reverb.formats.source import spec_of
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.specs import flatten, nested
from rlds2reverb.tf_agents.specs import data_spec
from rlds2reverb.views import FROM_CONFIG_ONLY, VIEWS, view_of
from rlds2reverb.views.base import View, signature_of
from rlds2reverb.views.requirements import Requirements
from rlds2reverb.views.trajectory import table_signature
from tests.support import rlds_data, strategies
from tests.support.forks import Forks
from tests.unit.views.test_base_extras import all_items

WANTED = ["all", "metadata/language_instruction", "metadata/seed"]
OPTIONS = (
    "slices:length=3,per_episode=2",
    "fragments:length=3",
    "n_step:n=4,early=true",
    "sequence:length=6,pad_end=true",
)
NAMES = (*(name for name in VIEWS if name not in (*FROM_CONFIG_ONLY, "jigsaw", "slices", "fragments")), *OPTIONS)
EVERY_VIEW: dict[str, View] = {
    **{text: view_of(f"{text}{',' if ':' in text else ':'}extras={'+'.join(WANTED)}") for text in NAMES},
    "requirements": Requirements({"obs": {"shift": "-1:0"}}, extras=WANTED),
}
LEARNERS = {
    "pairs": "two_step",
    "windows": "sequence:length=4",
    "whole": "episode",
    "stream": "across_episodes:length=3",
}
"""Tables that TF-Agents samples, with the signature that `inspect --server-config` writes."""


def robot(number: int, rows: int) -> Episode:
    """An episode as robot data has it: text of steps, nested numbers, metadata."""
    columns: strategies.Columns = {
        "observation": (np.dtype(np.float32), (3,)),
        "action": (np.dtype(np.float32), (2,)),
        "language": (np.dtype(object), ()),
        "info/gripper/open": (np.dtype(bool), ()),
        "info/force": (np.dtype(np.float64), (2,)),
    }
    plain = strategies.episode(np.random.default_rng(number), rows, columns, episode_id=f"e{number}")
    return Episode(
        plain.columns, {"language_instruction": f"task {number}".encode(), "seed": np.int64(number)}, plain.id
    )


EPISODES = [robot(number, rows) for number, rows in enumerate((7, 4, 9))]


def signature(view: View) -> Any:
    return signature_of(view, filled_spec(spec_of(EPISODES[0])), nested(metadata_specs(EPISODES[0])))


def learners_view(table: str) -> View:
    text = LEARNERS[table]
    return view_of(f"{text}{',' if ':' in text else ':'}extras={'+'.join(WANTED)}")


@pytest.fixture(scope="module")
def address(forks: Forks) -> Iterator[str]:
    """A server with a table for every view, which hands out its items once and in order; and tables to learn from."""
    once = [rlds_data.once(str(number), signature(view)) for number, view in enumerate(EVERY_VIEW.values())]
    learners = [TableConfig(name, table_signature(signature(learners_view(name)))) for name in LEARNERS]
    with forks.embedded([*once, *learners]) as server:
        yield server.address


@pytest.fixture
def client(address: str) -> Iterator[rlds2reverb.Client]:
    with rlds2reverb.connect(address) as connected:
        yield connected


@pytest.mark.parametrize("text", EVERY_VIEW)
def test_reverb_reads_extras_by_name(address: str, client: rlds2reverb.Client, text: str) -> None:
    view, table = EVERY_VIEW[text], str(list(EVERY_VIEW).index(text))
    order, wanted = all_items(view, EPISODES)
    report = client.push(EPISODES, table, view=view)
    assert report.items_confirmed == len(wanted) > 0
    dataset = reverb.TrajectoryDataset.from_table_signature(
        address, table, max_in_flight_samples_per_worker=1, num_workers_per_iterator=1, max_samples=len(wanted)
    )
    for sample, item in zip(dataset, wanted, strict=True):
        found = flatten(sample.data)
        assert list(found) == order
        for path, value in zip(order, item):
            np.testing.assert_array_equal(found[path].numpy(), value if value.shape else value.item(), err_msg=path)


def buffer_of(client: rlds2reverb.Client, address: str, table: str, length: int | None) -> Any:
    spec = data_spec(client.server_info().tables[table].signature)
    return reverb_replay_buffer.ReverbReplayBuffer(
        spec, table, sequence_length=length, server_address=address, max_cycle_length=1
    )


@pytest.mark.parametrize("table", LEARNERS)
def test_tf_agents_buffer_gives_policy_info(address: str, client: rlds2reverb.Client, table: str) -> None:
    """Each sample is one of the items that the slow reference makes, to the byte."""
    view = learners_view(table)
    order, wanted = all_items(view, EPISODES)
    expected = {content_digest(dict(zip(order, item))) for item in wanted}
    client.push(EPISODES, table, view=view)
    length = None if table == "whole" else len(wanted[0][0])
    dataset = buffer_of(client, address, table, length).as_dataset(num_steps=length, single_deterministic_pass=False)
    seen, tasks = set(), set()
    for experience, _ in dataset.take(40):
        found = {path: tensor.numpy() for path, tensor in flatten(experience).items()}
        assert list(found) == order
        seen.add(content_digest(found))
        info = experience.policy_info
        assert set(info) == {"info", "language", "metadata"}
        assert info["info"]["gripper"]["open"].dtype == tf.bool
        said = set(info["metadata"]["language_instruction"].numpy().tolist())
        assert len(said) == 1 or table == "stream"
        tasks |= said
    assert seen <= expected
    assert len(seen) > 2 or table == "whole"
    assert tasks <= {b"task 0", b"task 1", b"task 2"}


def test_an_agent_learns_from_what_the_buffer_gives(address: str, client: rlds2reverb.Client) -> None:
    client.push(EPISODES, "pairs", view=learners_view("pairs"))
    spec = data_spec(client.server_info().tables["pairs"].signature)
    assert isinstance(spec, trajectory.Trajectory)
    buffer = buffer_of(client, address, "pairs", 2)
    action = tensor_spec.BoundedTensorSpec((2,), tf.float32, -9, 9)
    network = sequential.Sequential([tf.keras.layers.Dense(2)])
    agent = behavioral_cloning_agent.BehavioralCloningAgent(
        ts.time_step_spec(spec.observation),
        action,
        cloning_network=network,
        optimizer=tf.keras.optimizers.Adam(),
        loss_fn=lambda taken, training: tf.reduce_mean((network(taken.observation)[0] - taken.action) ** 2, axis=-1),
    )
    agent.initialize()
    experience, _ = next(iter(buffer.as_dataset(sample_batch_size=4, num_steps=2, single_deterministic_pass=False)))
    assert experience.policy_info["metadata"]["seed"].shape == (4, 2)
    first = tf.nest.map_structure(lambda tensor: tensor[:, 0], experience)  # this agent wants single steps
    assert np.isfinite(agent.train(first).loss.numpy())


def test_a_data_spec_needs_a_table_of_trajectories() -> None:
    for signature_of_table in (None, signature(EVERY_VIEW["transition"])):
        with pytest.raises(SpecError, match="expected the signature of a table of trajectories"):
            data_spec(signature_of_table)


def test_the_drop_in_refuses_a_target_of_extras(client: rlds2reverb.Client) -> None:
    data = rlds2reverb.load(EPISODES)
    with pytest.raises(ViewError, match="takes no extras; use client"):
        rlds2reverb.push_rlds_to_reverb(data, client.target("pairs", "two_step:extras=all"))
