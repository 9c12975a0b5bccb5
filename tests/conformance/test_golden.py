"""What Reverb's own writers and TF-Agents' observers sent, recorded, decodes to what was written; and our encoder sends the same items."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlds2reverb.cuts import Cut, Window
from rlds2reverb.episode import Episode
from rlds2reverb.specs import differences, flatten
from rlds2reverb.views.trajectory import SequenceView, WholeEpisode
from rlds2reverb.wire import codec
from rlds2reverb.wire.insert import Request, RequestBuilder, RequestLimits
from rlds2reverb.wire.messages import Chunk, Item
from rlds2reverb.wire.schema import message_class
from tests.conformance import record_goldens
from tests.support import reference
from tests.support.wire.insert_cuts import Encoder

COLUMNS = dict(sorted(record_goldens.episode().items()))


def replay(messages: list[bytes]) -> list[tuple[Item, list[np.ndarray]]]:
    """Items and their values, by Reverb's rule: after a message with items only the named chunks are kept."""
    held: dict[int, Chunk] = {}
    items = []
    for message in messages:
        request = codec.decode_insert_request(message)
        held.update({chunk.key: chunk for chunk in request.chunks})
        items += [(item, list(codec.item_values(item, held))) for item in request.items]
        if request.items:
            held = {key: held[key] for key in request.keep_chunk_keys}
    return items


def test_trajectory_writer_items_decode_to_what_was_written() -> None:
    items = replay(record_goldens.load("pairs.bin"))
    wanted = [[column[step - 1 : step + 1] for column in COLUMNS.values()] for step in range(1, record_goldens.STEPS)]
    reference.assert_same_items([values for _, values in items], wanted)
    assert [item.priority for item, _ in items] == list(range(1, record_goldens.STEPS))
    assert {item.table for item, _ in items} == {"pairs"}


@pytest.mark.parametrize("chunk_length", [1, 2, 3, 32])
def test_our_encoder_sends_the_same_items(chunk_length: int) -> None:
    anchors = np.arange(record_goldens.STEPS - 1)
    cut = Cut.of_columns(COLUMNS, (Window(0, 2),) * len(COLUMNS), anchors, anchors + 1.0)
    builder = RequestBuilder(RequestLimits())
    encoded = Encoder(("pairs",), 7, chunk_length).encode_cut("episode", cut)
    requests = [*builder.add(encoded), *builder.flush()]
    ours = replay([message for request in requests for message in request.messages])
    theirs = replay(record_goldens.load("pairs.bin"))
    reference.assert_same_items([values for _, values in ours], [values for _, values in theirs])
    for (our_item, _), (their_item, _) in zip(ours, theirs):
        assert (our_item.table, our_item.priority) == (their_item.table, their_item.priority)
        assert [column.squeeze for column in our_item.columns] == [column.squeeze for column in their_item.columns]


def rows_by_tf_agents() -> list[reference.Row]:
    steps = [step for columns in record_goldens.rlds_episodes() for step in reference.steps_of(columns)]
    return reference.trajectories(steps)


OBSERVED: dict[str, tuple[SequenceView | WholeEpisode, list[list[Any]]]] = {
    "windows": (
        SequenceView(3, 1, True, True, 0.5),
        reference.sequence_items(rows_by_tf_agents(), 3, 3, 1, True, True),
    ),
    "episodes": (WholeEpisode(priority=2.0), reference.episode_items(rows_by_tf_agents())),
}
"""File -> our view that stores the same, and the items step by step."""


@pytest.mark.parametrize("name", OBSERVED)
def test_items_of_tf_agents_observers_decode_to_what_was_observed(name: str) -> None:
    view, wanted = OBSERVED[name]
    items = replay(record_goldens.load(f"{name}.bin"))
    for table in {item.table for item, _ in items}:
        found = [(item, values) for item, values in items if item.table == table]
        reference.assert_same_items([values for _, values in found], wanted)
        assert {item.priority for item, _ in found} == {view.priority}
    assert not any(column.squeeze for item, _ in items for column in item.columns)


@pytest.mark.parametrize("chunk_length", [1, 2, 32])
@pytest.mark.parametrize("name", OBSERVED)
def test_our_encoder_sends_the_same_items_as_tf_agents_observers(name: str, chunk_length: int) -> None:
    theirs = replay(record_goldens.load(f"{name}.bin"))
    tables = list(dict.fromkeys(item.table for item, _ in theirs))
    encoder, builder = Encoder(tables, 7, chunk_length), RequestBuilder(RequestLimits(4))
    requests: list[Request] = []
    for number, columns in enumerate(record_goldens.rlds_episodes()):
        cut = OBSERVED[name][0].cut(Episode(flatten(columns)))
        requests += builder.add(encoder.encode_cut(str(number), cut))
    requests += builder.flush()
    ours = replay([message for request in requests for message in request.messages])
    reference.assert_same_items([values for _, values in ours], [values for _, values in theirs])
    for (our_item, _), (their_item, _) in zip(ours, theirs, strict=True):
        assert (our_item.table, our_item.priority) == (their_item.table, their_item.priority)
        assert [column.squeeze for column in our_item.columns] == [column.squeeze for column in their_item.columns]


@pytest.mark.parametrize("name", ["pairs", "structured", "windows", "episodes"])
def test_what_we_decode_is_all_that_was_sent(name: str) -> None:
    """Reverb's writers set a few fields that we neither read nor write; what we read, written again, is the rest."""
    for message in record_goldens.load(f"{name}.bin"):
        proto = message_class("InsertStreamRequest").FromString(message)
        request = codec.decode_insert_request(message)
        assert (len(request.chunks), len(request.items)) == (len(proto.chunks), len(proto.items))
        for chunk, sent in zip(request.chunks, proto.chunks, strict=True):
            assert (
                sum(tensor.nbytes for tensor in chunk.tensors if tensor.dtype != object) <= sent.data_uncompressed_size
            )
            assert chunk.stop - chunk.start == len(chunk.tensors[0])
            assert (
                len(chunk.tensors) == sent.data_tensors_len == 1
            )  # Reverb makes one chunk per column; we make one in all


def test_the_recordings_are_small() -> None:
    assert sum(file.stat().st_size for file in record_goldens.GOLDENS.iterdir()) < 200_000


def test_structured_writer_items_decode_to_what_was_written() -> None:
    items = replay(record_goldens.load("structured.bin"))
    wanted = [
        [np.asarray(COLUMNS["step"][step]), COLUMNS["wide"][step - 1 : step + 1]]
        for step in range(1, record_goldens.STEPS)
    ]
    reference.assert_same_items([values for _, values in items], wanted)
    assert all([column.squeeze for column in item.columns] == [True, False] for item, _ in items)


def test_server_info_decodes_to_the_tables_that_were_made() -> None:
    (message,) = record_goldens.load("server_info.bin")
    info = codec.decode_server_info(message)
    assert set(info.tables) >= {"pairs", "structured", "signed"}
    assert info.state_id > 0
    signed = info.tables["signed"]
    assert (signed.max_size, signed.current_size, signed.sampler, signed.remover) == (77, 0, "uniform", "fifo")
    assert info.tables["pairs"].current_size == record_goldens.STEPS - 1
    assert info.tables["pairs"].signature is None
    assert differences(record_goldens.signature(), signed.signature) == []
    assert list(flatten(signed.signature)) == ["first", "second/a/0", "second/b"]
    assert np.all(flatten(signed.signature)["first"].maximum == 1)
