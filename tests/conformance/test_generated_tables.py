"""Tables that we generate are TF-Agents' own: its push, its observers and its replay buffer take them unchanged, and so do ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tf_agents")

import reverb
import tensorflow as tf
import yaml
from click.testing import CliRunner
from replay_server.config import decode, from_plain, load, table_configs, to_plain
from tf_agents.replay_buffers import reverb_replay_buffer, rlds_to_reverb
from tf_agents.specs.tensor_spec import add_outer_dim

import rlds2reverb
from rlds2reverb.cli import cli
from rlds2reverb.errors import SpecMismatch
from rlds2reverb.specs import map_leaves, view_in
from rlds2reverb.views import view_of
from rlds2reverb.views.trajectory import name_of, table_signature
from tests.conformance.observing import (
    SIDES,
    SPECS,
    Episodes,
    Options,
    Stream,
    Windows,
    assert_same_outcome,
    dataset,
    outcome,
)
from tests.support.forks import Embedded, Forks
from tests.support.rlds_data import tensor_spec

VIEWS = {
    "pairs": "two_step",
    "windows": "sequence:length=5,stride=2",
    "whole": "episode",
    "stream": "across_episodes:length=3",
}
OBSERVERS = {"pairs": Windows(), "windows": Windows(5, 2), "whole": Episodes(1000), "stream": Stream(3)}
CONFIG = Path(__file__).parents[2] / "configs" / "server.yaml"
DERIVED = {"name": "derived", "signature": {"from_dataset": "bundled:cartpole"}}


@pytest.fixture(scope="module")
def generated() -> Any:
    """The config that `inspect --server-config` prints, and a table whose signature it says how to derive."""
    into = [word for name, view in VIEWS.items() for word in ("--into", f"{name}={view}")]
    shown = CliRunner().invoke(cli, ["inspect", "bundled:cartpole", "--limit", "3", "--server-config", *into])
    assert shown.exit_code == 0, shown.output
    config = yaml.safe_load(shown.stdout)
    # Handed out once and in order, so that what is stored can be compared.
    once = [{**table, "sampler": "fifo", "max_times_sampled": 1} for table in (*config["tables"], DERIVED)]
    return {**config, "tables": once}


@pytest.fixture(scope="module")
def server(forks: Forks, generated: Any) -> Iterator[Embedded]:
    with forks.embedded(table_configs(decode(generated, "generated"))) as running:
        yield running


@pytest.fixture(scope="module")
def cartpole() -> tf.data.Dataset:
    return rlds2reverb.load("bundled:cartpole").take(3)


def tf_agents_signature(data: tf.data.Dataset) -> Any:
    return add_outer_dim(rlds_to_reverb.create_trajectory_data_spec(data))


@pytest.mark.parametrize("view", VIEWS.values())
@pytest.mark.parametrize("spec", SPECS)
def test_a_signature_written_to_a_config_is_tf_agents_own(spec: str, view: str) -> None:
    data = dataset(spec, [])
    items = view_of(view).signature(rlds2reverb.open_source(data).spec())
    written = yaml.safe_dump(to_plain(table_signature(items, name_of(view_of(view)))))
    assert map_leaves(tensor_spec, from_plain(yaml.safe_load(written))) == tf_agents_signature(data)


def test_the_shipped_server_has_tf_agents_own_signature() -> None:
    tables = {table.name: table for table in table_configs(load(CONFIG, (), {}))}
    for name, source in {"replay": "bundled:half_cheetah", "cartpole": "bundled:cartpole"}.items():
        data = rlds2reverb.load(source)
        assert map_leaves(tensor_spec, tables.pop(name).signature) == tf_agents_signature(data)
    assert tables == {}


@pytest.mark.parametrize(("table", "options"), [*OBSERVERS.items(), ("derived", Windows())])
def test_tf_agents_own_push_takes_them_and_stores_what_ours_does(
    server: Embedded, cartpole: tf.data.Dataset, table: str, options: Options
) -> None:
    sampler = reverb.Client(server.address)
    sampler.reset(table)
    data = {"ours": "bundled:cartpole@train[:3]", "theirs": cartpole}
    results = [outcome(push, data[side], options.observer(sampler, [table]), [table]) for side, push in SIDES.items()]
    assert_same_outcome(*results)
    assert results[0].error is None
    assert results[0].stored[0]


def test_the_push_in_its_head_and_a_target_take_them(server: Embedded, cartpole: tf.data.Dataset) -> None:
    with rlds2reverb.connect(server.address) as client:
        client.plan(cartpole, VIEWS)
        steps = {rlds2reverb.push_rlds_to_reverb(cartpole, client.target(name, view)) for name, view in VIEWS.items()}
    assert len(steps) == 1


def test_they_say_which_view_they_are_for_and_refuse_another(server: Embedded, cartpole: tf.data.Dataset) -> None:
    sampler = reverb.Client(server.address)
    sampler.reset("whole")
    with rlds2reverb.connect(server.address) as client:
        found = {name: view_in(table.signature) for name, table in client.tables().items()}
        assert found == {name: name_of(view_of(view)) for name, view in {**VIEWS, "derived": "two_step"}.items()}
        for table, view in (("whole", "two_step"), ("pairs", "sequence:length=5"), ("derived", "episode")):
            with pytest.raises(SpecMismatch, match="view: items are of"):
                client.push(cartpole, table, view=view)
            with pytest.raises(ValueError, match="signature spec should match RLDS data spec") as caught:
                rlds2reverb.push_rlds_to_reverb(cartpole, client.target(table, view))
            assert isinstance(caught.value.__cause__, SpecMismatch)
        with pytest.raises(ValueError):  # of several tables, every one is looked at
            rlds2reverb.push_rlds_to_reverb(cartpole, client.target(["whole", "pairs"], VIEWS["whole"]))
        assert client.tables()["whole"].current_size == 0
        sampler.reset("derived")
        assert client.push(cartpole, "derived", view="episode", allow_other_views=True).items_new == 3
        rlds2reverb.push_rlds_to_reverb(cartpole, client.target("derived", "episode", allow_other_views=True))
        assert client.tables()["derived"].current_size == 6
    sampler.reset("derived")


def test_the_replay_buffer_of_tf_agents_reads_them(server: Embedded, cartpole: tf.data.Dataset) -> None:
    sampler = reverb.Client(server.address)
    sampler.reset("derived")
    rlds_to_reverb.push_rlds_to_reverb(cartpole, Windows().observer(sampler, ["derived"]))
    buffer = reverb_replay_buffer.ReverbReplayBuffer(
        rlds_to_reverb.create_trajectory_data_spec(cartpole), "derived", 2, server_address=server.address
    )
    pairs, _ = next(iter(buffer.as_dataset(sample_batch_size=4, num_steps=2, single_deterministic_pass=False)))
    assert pairs.observation.shape == (4, 2, 4)
