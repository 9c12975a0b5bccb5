"""Encoded images through a real server: decoded where samples come out, they are what a decoded push stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

reverb = pytest.importorskip("reverb")
pytest.importorskip("imagecodecs")
pytest.importorskip("simplejpeg")

import tensorflow as tf
from click.testing import CliRunner
from tf_agents.replay_buffers import reverb_replay_buffer

import rlds2reverb
from rlds2reverb.cli import cli
from rlds2reverb.images import decode_columns
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.specs import Nest, flatten
from rlds2reverb.tf_agents import image_decoder
from rlds2reverb.views import view_of
from rlds2reverb.views.base import View
from rlds2reverb.views.trajectory import table_signature
from tests.support import rlds_data
from tests.support.forks import Forks
from tests.support.pictures import CAMERA, WRIST, Pictures, episodes
from tests.support.rlds_data import take_all

VIEWS = (
    "two_step",
    "sequence:length=4,pad_end=true,tile_end=true",
    "episode",
    "transition",
    "n_step",
    "frame_stack:frames=3,fill=zero",
    "goal",
)
DECODED = Pictures(episodes((6, 4, 5)))
ENCODED = DECODED.encoded((CAMERA, WRIST))
SAMPLED = "sampled"


def signature(view: View, source: Pictures) -> Nest:
    return table_signature(view.signature(filled_spec(source.spec())))


@pytest.fixture(scope="module")
def address(forks: Forks) -> Iterator[str]:
    """A server with two tables for every view, and one to sample from again and again."""
    tables = [
        rlds_data.once(f"{text}/{kind}", signature(view_of(text), source))
        for text in VIEWS
        for kind, source in (("encoded", ENCODED), ("decoded", DECODED))
    ]
    from replay_server import TableConfig

    with forks.embedded([*tables, TableConfig(SAMPLED, signature(view_of("two_step"), ENCODED))]) as server:
        yield server.address


@pytest.fixture
def client(address: str) -> Iterator[rlds2reverb.Client]:
    with rlds2reverb.connect(address) as connected:
        yield connected


@pytest.mark.parametrize("text", VIEWS)
def test_decoded_samples_are_those_of_a_decoded_push(address: str, client: rlds2reverb.Client, text: str) -> None:
    encoded, decoded = f"{text}/encoded", f"{text}/decoded"
    wanted_items = client.push(DECODED, decoded, text).items_confirmed
    assert client.push(DECODED, encoded, text, encoded="all").items_confirmed == wanted_items
    kept = client.server_info().tables[encoded].signature
    assert sum(leaf.image is not None for leaf in flatten(kept).values()) >= 2
    theirs = reverb.Client(address)
    found = [decode_columns(item.columns, kept) for item in take_all(theirs, encoded)]
    wanted = [item.columns for item in take_all(theirs, decoded)]
    assert sorted(map(as_text, found)) == sorted(map(as_text, wanted))


def as_text(item: Any) -> str:
    """All values of an item; keys differ, and so does the order in which items come."""
    return "|".join(
        f"{np.asarray(leaf).dtype}{np.asarray(leaf).shape}{np.asarray(leaf).tobytes().hex()}" for leaf in item
    )


def test_the_buffer_of_tf_agents_decodes_with_a_map(address: str, client: rlds2reverb.Client) -> None:
    client.push(DECODED, SAMPLED, encoded="all")
    wanted = {column.tobytes() for episode in DECODED for column in episode.columns[CAMERA]}
    specs = reverb.Client(address).server_info()[SAMPLED].signature
    data_spec = tf.nest.map_structure(lambda one: tf.TensorSpec(one.shape[1:], one.dtype), specs)
    buffer = reverb_replay_buffer.ReverbReplayBuffer(
        data_spec, table_name=SAMPLED, sequence_length=2, server_address=address
    )
    for known in (specs, client.server_info().tables[SAMPLED].signature):
        dataset = buffer.as_dataset(sample_batch_size=3, num_steps=2).map(image_decoder(known))
        assert dataset.element_spec[0].observation["camera"] == tf.TensorSpec((3, 2, 9, 12, 3), tf.uint8)
        data, info = next(iter(dataset))
        assert info.key.shape == (3, 2)
        assert data.observation["wrist"].shape == (3, 2, 9, 12, 3)
        assert {image.tobytes() for image in data.observation["camera"].numpy().reshape(-1, 9, 12, 3)} <= wanted


def test_the_command_line_tells_encoded_images_from_text(address: str) -> None:
    shown = CliRunner().invoke(cli, ["status", "--verbose", "--server", address], catch_exceptions=False)
    assert "observation/camera  string[?] (png of uint8[9, 12, 3])" in " ".join(shown.stdout.split()).replace(
        "observation/camera string", "observation/camera  string"
    )
