"""The encoder: what a server would hand out for an encoded cut is exactly the cut's rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.cuts import Cut, Window, share
from rlds2reverb.errors import ViewError, WireError
from rlds2reverb.testing.tables import ReceivedStream
from rlds2reverb.views.trajectory import two_step
from rlds2reverb.wire import codec
from rlds2reverb.wire.insert import EncodedEpisode, EpisodeEncoder, Part, choose_chunk_length, keys, seed
from rlds2reverb.wire.messages import Chunk, Item
from tests.support import strategies
from tests.support.wire import insert_cuts as cuts
from tests.support.wire.insert_cuts import Encoder
from tests.support.wire.insert_replay import assert_all_same, cut_values


def a_cut(steps: int = 9) -> Cut:
    return two_step().cut(strategies.episode(np.random.default_rng(0), steps))


def chunks_of(episode: EncodedEpisode) -> list[Chunk]:
    return [chunk for field in episode.chunks for chunk in codec.decode_insert_request(field).chunks]


def items_of(episode: EncodedEpisode) -> list[Item]:
    return [item for field in episode.items for item in codec.decode_insert_request(field).items]


@given(cuts.cuts(), st.one_of(st.none(), cuts.chunk_length()), st.integers(1, 3), st.integers(0, 2**64 - 1))
@settings(max_examples=60)
def test_an_encoded_cut_holds_the_slow_obvious_slices(
    cut: Cut, chunk_length: int | None, tables: int, push_seed: int
) -> None:
    names = ["one", "two", "日本"][:tables]
    encoded = Encoder(names, push_seed, chunk_length).encode_cut("episode", cut)
    stream = ReceivedStream()
    assert not stream.feed_all(encoded.chunks)
    stored = stream.feed(b"".join(encoded.items))
    assert len(stored) == len(encoded.items) == tables * len(cut.anchors)
    for number, (item, values) in enumerate(stored):
        of_cut, table = number // tables, names[number % tables]
        assert item.table == table
        assert item.priority == cut.priorities[of_cut]
        assert item.key == keys(seed(f"{push_seed:x}", table, "episode"), cut.steps)[of_cut]
        assert item.key == encoded.item_keys[number]
        assert_all_same(values, cut_values(cut, of_cut))


@given(st.lists(cuts.cuts(), min_size=2, max_size=3), st.none() | cuts.chunk_length())
@settings(max_examples=40)
def test_parts_share_rows_and_keep_their_items_keys_and_order(some: list[Cut], chunk_length: int | None) -> None:
    shared = share(some)
    parts = [Part((f"t{number}",), number, "episode", cut) for number, cut in enumerate(shared)]
    encoded = EpisodeEncoder(chunk_length).encode("episode", parts)
    stream = ReceivedStream()
    stream.feed_all(encoded.chunks)
    stored = stream.feed(b"".join(encoded.items))
    assert np.all(np.diff(np.maximum.accumulate(encoded.last_chunk)) >= 0)
    for number, (part, cut) in enumerate(zip(parts, some)):
        mine = [(item, values) for item, values in stored if item.table == f"t{number}"]
        alone = Encoder(part.tables, part.push_seed).encode_cut("episode", part.cut)
        assert [item.key for item, _ in mine] == alone.item_keys.tolist()
        assert [item.priority for item, _ in mine] == cut.priorities.tolist()
        for of_cut, (_, values) in enumerate(mine):
            assert_all_same(values, cut_values(cut, of_cut))


@given(cuts.hand_made(), cuts.chunk_length(), st.integers(1, 3))
@settings(max_examples=40)
def test_each_item_refers_to_chunks_within_its_span(cut: Cut, chunk_length: int, tables: int) -> None:
    encoded = Encoder("abc"[:tables], 0, chunk_length).encode_cut("episode", cut)
    order = [chunk.key for chunk in chunks_of(encoded)]
    for item, first, last in zip(items_of(encoded), encoded.first_chunk, encoded.last_chunk):
        used = {order.index(piece.chunk_key) for column in item.columns for piece in column.slices}
        assert (min(used), max(used)) == (first, last)


def test_the_same_push_makes_the_same_item_keys_and_new_chunk_keys() -> None:
    one, other = (Encoder(["t"], 5, 4).encode_cut("episode", a_cut()) for _ in range(2))
    assert one.item_keys.tolist() == other.item_keys.tolist()
    assert not {chunk.key for chunk in chunks_of(one)} & {chunk.key for chunk in chunks_of(other)}


@pytest.mark.parametrize(
    ("push_seed", "table", "key_name"), [(6, "t", "episode"), (5, "u", "episode"), (5, "t", "another episode")]
)
def test_another_push_table_or_episode_makes_other_item_keys(push_seed: int, table: str, key_name: str) -> None:
    one = Encoder(["t"], 5).encode_cut("episode", a_cut())
    other = Encoder([table], push_seed).encode_cut(key_name, a_cut())
    assert not set(one.item_keys.tolist()) & set(other.item_keys.tolist())


def test_an_item_key_does_not_depend_on_the_chunk_length_or_the_order_of_anchors() -> None:
    cut = a_cut()
    backwards = replace(cut, anchors=cut.anchors[::-1], priorities=cut.priorities[::-1])
    one = Encoder(["t"], 5, 2).encode_cut("episode", cut)
    other = Encoder(["t"], 5, 7).encode_cut("episode", backwards)
    assert one.item_keys.tolist() == other.item_keys.tolist()[::-1]


def test_episodes_of_one_encoder_share_no_chunk_key_and_no_number() -> None:
    encoder = Encoder(["t"], 5, 2)
    episodes = [chunks_of(encoder.encode_cut(f"episode {number}", a_cut())) for number in range(5)]
    every = [chunk.key for chunks in episodes for chunk in chunks]
    assert len(set(every)) == len(every)
    assert len({chunk.episode_id for chunks in episodes for chunk in chunks}) == 5
    assert all(len({chunk.episode_id for chunk in chunks}) == 1 for chunks in episodes)


def test_the_chunk_length_is_chosen_from_row_and_window() -> None:
    cut = a_cut(60)
    chunks = chunks_of(Encoder(["t"], 5).encode_cut("episode", cut))
    assert chunks[0].stop == choose_chunk_length(cut.row_bytes, 2)
    # A column that looks back makes the longest window of all.
    name, field = next(iter(cut.fields.items()))
    fields = {**cut.fields, name: replace(field, windows=(Window(-40, -39),))}
    far = replace(cut, fields=fields, anchors=np.array([40]), priorities=np.ones(1))
    assert chunks_of(Encoder(["t"], 5).encode_cut("episode", far))[0].stop == choose_chunk_length(cut.row_bytes, 42)


@pytest.mark.parametrize(
    ("anchors", "window", "message"),
    [
        ([-1, 3], Window(0, 2), "items at anchors -1 to 3 hold rows -1 to 4, which reach outside the 9 rows"),
        ([0, 8], Window(0, 2), "at anchors 0 to 8 hold rows 0 to 9, which reach outside"),
        ([0], Window(-1, 2), "reach outside"),
        ([0], Window(0, 10), "reach outside"),
    ],
)
def test_a_window_outside_the_rows_is_refused(anchors: list[int], window: Window, message: str) -> None:
    cut = a_cut()
    bad = Cut.of_columns(cut.rows, (window,) * len(cut.rows), np.array(anchors), np.ones(len(anchors)))
    with pytest.raises(ViewError, match=message):
        Encoder(["t"], 0).encode_cut("episode", bad)


def test_a_dtype_that_cannot_be_stored_is_named_with_its_column() -> None:
    cut = Cut.of_columns({"when": np.zeros(3, "datetime64[s]")}, (Window(0, 1),), np.arange(3), np.ones(3))
    with pytest.raises(WireError, match='column "when": dtype datetime64'):
        Encoder(["t"], 0).encode_cut("episode", cut)


def test_an_encoded_cut_holds_no_reference_to_the_arrays() -> None:
    cut = a_cut()
    rows = {path: column.copy() for path, column in cut.rows.items()}
    encoded = Encoder(["t"], 0, 4).encode_cut("episode", replace(cut, rows=rows))
    for column in rows.values():
        column[...] = 0
    stream = ReceivedStream()
    stream.feed_all(encoded.chunks)
    for number, (_, values) in enumerate(stream.feed(b"".join(encoded.items))):
        assert_all_same(values, cut_values(cut, number))
