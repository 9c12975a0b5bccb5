"""A transformed dataset in a real Reverb: what its sampler returns is what TensorFlow makes of the recorded columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.forks import Embedded, Forks

reverb = pytest.importorskip("reverb")
tf = pytest.importorskip("tensorflow")

import rlds2reverb
from rlds2reverb import Client, Episode
from rlds2reverb.formats.transform import transform_of
from rlds2reverb.formats.transformed import transformed
from rlds2reverb.specs import flatten
from rlds2reverb.views import view_of
from tests.support import rlds_data, strategies

VIEW = "sequence:length=2"
TRANSFORM = """
transform:
  action: concat(world_vector, rotation_delta, open_gripper)
  select: [observation/image, observation/state, action]
  resize: {observation/image: 24x32}
  rename: {observation/state: observation/proprio}
"""
COLUMNS: strategies.Columns = {
    "observation/image": (np.dtype(np.uint8), (48, 40, 3)),
    "observation/state": (np.dtype(np.float32), (7,)),
    "observation/natural_language_instruction": (np.dtype(object), ()),
    "action/world_vector": (np.dtype(np.float32), (3,)),
    "action/rotation_delta": (np.dtype(np.float32), (3,)),
    "action/open_gripper": (np.dtype(bool), ()),
    "action/terminate_episode": (np.dtype(np.float32), ()),
}


def robot(number: int) -> Episode:
    return strategies.episode(np.random.default_rng(number), 5, COLUMNS, episode_id=f"bridge#{number}")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("transform") / "bridge.yaml"
    path.write_text(TRANSFORM)
    return path


@pytest.fixture(scope="module")
def running(forks: Forks, file: Path) -> Iterator[Embedded]:
    source = transformed(rlds2reverb.open_source([robot(0)]), transform_of(file))
    tables = [rlds_data.once("robots", view_of(VIEW).signature(source.spec())), rlds_data.once("any")]
    with forks.embedded(tables) as server:
        yield server


@pytest.fixture
def client(running: Embedded) -> Iterator[Client]:
    with rlds2reverb.connect(running.address) as connected:
        yield connected


def test_what_is_sampled_is_what_tensorflow_makes_of_the_recorded_columns(
    running: Embedded, client: Client, file: Path
) -> None:
    episodes = [robot(number) for number in range(3)]
    report = client.push(episodes, "robots", VIEW, transform=file)
    assert report.items_new == 3 * 4
    signature = flatten(client.server_info().tables["robots"].signature)
    wanted = {}
    for episode in episodes:
        columns = expected(episode)
        for start in range(4):
            window = tuple(columns[path][start : start + 2].tobytes() for path in sorted(columns))
            wanted[window] = episode.id
    paths = sorted(expected(episodes[0]))
    sampler = reverb.Client(running.address)
    found = set()
    for sample in sampler.sample("robots", num_samples=12, emit_timesteps=False):
        leaves = dict(zip(signature, sample.data))
        assert (leaves["observation/image"].dtype, leaves["observation/image"].shape) == (np.uint8, (2, 24, 32, 3))
        found.add(tuple(np.ascontiguousarray(leaves[path]).tobytes() for path in paths))
    assert found == set(wanted)


def expected(episode: Episode) -> dict[str, Any]:
    """What the transform says, by TensorFlow."""
    columns = episode.columns
    image = tf.image.resize(columns["observation/image"], (24, 32), method="area")
    parts = [columns[f"action/{name}"] for name in ("world_vector", "rotation_delta", "open_gripper")]
    action = tf.concat([*parts[:2], tf.cast(parts[2], tf.float32)[:, None]], axis=-1)
    return {
        "observation/image": tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8).numpy(),
        "observation/proprio": columns["observation/state"],
        "action": action.numpy(),
    }


def test_pushed_again_it_adds_nothing_and_without_the_transform_it_adds_all(
    running: Embedded, client: Client, file: Path
) -> None:
    reverb.Client(running.address).reset("any")
    data = [robot(0)]
    assert client.push(data, "any", VIEW, transform=file).items_new == 4
    assert client.push(data, "any", VIEW, transform={"transform": {**transform_of(file).as_dict()}}).items_new == 0
    assert client.push(data, "any", VIEW).items_new == 4
    assert client.push(data, "any", VIEW, transform=()).items_new == 0
    assert client.server_info().tables["any"].current_size == 8
