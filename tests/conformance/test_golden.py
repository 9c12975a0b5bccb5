"""What Reverb's own writers sent, recorded, decodes to what was written; and our encoder sends the same items."""

from __future__ import annotations

import numpy as np
import pytest

from rlds2reverb.specs import differences, flatten
from rlds2reverb.views.base import Cut, Window
from rlds2reverb.wire import codec
from rlds2reverb.wire.encoder import EpisodeEncoder
from rlds2reverb.wire.messages import Chunk, Item
from rlds2reverb.wire.requests import RequestBuilder, RequestLimits
from tests import reference
from tests.conformance import record_goldens

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


@pytest.mark.parametrize("rows_per_chunk", [1, 2, 3, 32])
def test_our_encoder_sends_the_same_items(rows_per_chunk: int) -> None:
    anchors = np.arange(record_goldens.STEPS - 1)
    cut = Cut(COLUMNS, (Window(0, 2),) * len(COLUMNS), anchors, anchors + 1.0)
    builder = RequestBuilder(RequestLimits())
    encoded = EpisodeEncoder(("pairs",), 7, rows_per_chunk).encode("episode", cut)
    requests = [*builder.add(encoded), *builder.flush()]
    ours = replay([message for request in requests for message in request.messages])
    theirs = replay(record_goldens.load("pairs.bin"))
    reference.assert_same_items([values for _, values in ours], [values for _, values in theirs])
    for (our_item, _), (their_item, _) in zip(ours, theirs):
        assert (our_item.table, our_item.priority) == (their_item.table, their_item.priority)
        assert [column.squeeze for column in our_item.columns] == [column.squeeze for column in their_item.columns]


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
    assert set(info.tables) == {"pairs", "structured", "signed"}
    assert info.state_id > 0
    signed = info.tables["signed"]
    assert (signed.max_size, signed.current_size, signed.sampler, signed.remover) == (77, 0, "uniform", "fifo")
    assert info.tables["pairs"].current_size == record_goldens.STEPS - 1
    assert info.tables["pairs"].signature is None
    assert differences(record_goldens.signature(), signed.signature) == []
    assert list(flatten(signed.signature)) == ["first", "second/a/0", "second/b"]
    assert np.all(flatten(signed.signature)["first"].maximum == 1)
