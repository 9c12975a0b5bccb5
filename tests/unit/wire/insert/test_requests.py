"""Requests: within their limits, each sufficient in itself, and together exactly the episodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.testing.tables import ReceivedStream
from rlds2reverb.views.base import View
from rlds2reverb.views.trajectory import SequenceView, WholeEpisode, two_step
from rlds2reverb.wire import codec
from rlds2reverb.wire.insert import EncodedEpisode, Request, RequestBuilder, RequestLimits
from tests.support import strategies
from tests.support.wire import insert_cuts as cuts
from tests.support.wire.insert_cuts import Encoder
from tests.support.wire.insert_replay import assert_all_same, cut_values

TABLES = ("one", "two", "three")

limits = st.builds(RequestLimits, st.integers(1, 40), st.one_of(st.integers(1, 400), st.integers(300, 20_000)))


def built(episodes: list[EncodedEpisode], limit: RequestLimits) -> list[Request]:
    builder = RequestBuilder(limit)
    requests = [request for episode in episodes for request in builder.add(episode)]
    return [*requests, *builder.flush()]


def tables_of(count: int) -> tuple[str, ...]:
    return TABLES[:count]


class Built:
    """Some cuts, encoded and built to requests."""

    def __init__(self, some: list, tables: tuple[str, ...], chunk_length: int, limit: RequestLimits) -> None:
        encoder = Encoder(tables, 5, chunk_length)
        self.cuts, self.tables, self.limit = some, tables, limit
        self.encoded = [encoder.encode_cut(f"episode {number}", cut) for number, cut in enumerate(some)]
        self.requests = built(self.encoded, limit)

    @property
    def expected(self) -> list:
        """(table, priority, values) of every item in order."""
        return [
            (table, cut.priorities[number], cut_values(cut, number))
            for cut in self.cuts
            for number in range(len(cut.anchors))
            for table in self.tables
        ]


@st.composite
def anything_built(draw: st.DrawFn) -> Built:
    some = draw(st.lists(cuts.cuts(), min_size=1, max_size=2))
    return Built(some, tables_of(draw(st.integers(1, 3))), draw(cuts.chunk_length()), draw(limits))


@given(anything_built())
@settings(max_examples=50)
def test_a_stream_of_requests_stores_exactly_the_rows_of_the_cuts(made: Built) -> None:
    stream = ReceivedStream()
    stored = [one for request in made.requests for one in stream.feed_all(request.messages)]
    keys = [key for episode in made.encoded for key in episode.item_keys.tolist()]
    assert [item.key for item, _ in stored] == keys
    assert len(stored) == len(made.expected)
    for (item, values), (table, priority, expected) in zip(stored, made.expected):
        assert (item.table, item.priority) == (table, priority)
        assert_all_same(values, expected)
    assert not stream.held  # after the last item nothing is kept


@given(anything_built())
@settings(max_examples=35)
def test_each_request_alone_on_a_new_stream_stores_its_items(made: Built) -> None:
    expected = iter(made.expected)
    for request in made.requests:
        stored = ReceivedStream().feed_all((*request.prelude, *request.messages))
        assert [item.key for item, _ in stored] == request.item_keys.tolist()
        for _, values in stored:
            assert_all_same(values, next(expected)[-1])


@given(anything_built(), st.data())
@settings(max_examples=35)
def test_a_new_stream_can_go_on_from_any_request(made: Built, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(made.requests) - 1))
    rest = [message for request in made.requests[start:] for message in request.messages]
    stored = ReceivedStream().feed_all((*made.requests[start].prelude, *rest))
    expected = made.expected[-len(stored) :]
    assert len(stored) == sum(len(request.item_keys) for request in made.requests[start:])
    for (_, values), (_, _, of_cut) in zip(stored, expected):
        assert_all_same(values, of_cut)


@given(anything_built())
@settings(max_examples=25)
def test_requests_respect_their_limits(made: Built) -> None:
    for request in made.requests:
        assert 1 <= len(request.item_keys) <= made.limit.items
        decoded = [codec.decode_insert_request(message) for message in (*request.prelude, *request.messages)]
        *leading, last = decoded
        assert last.items
        assert all(one.chunks and not one.items and not one.keep_chunk_keys for one in leading)
        keep_bytes = 10 * len(last.keep_chunk_keys) + 4
        assert request.nbytes - keep_bytes <= made.limit.bytes or len(request.item_keys) == 1
        for message, one in zip((*request.prelude, *request.messages[:-1]), leading):
            assert len(message) <= made.limit.bytes or len(one.chunks) == 1


@given(anything_built())
@settings(max_examples=25)
def test_no_chunk_is_sent_twice_and_none_is_kept_for_nothing(made: Built) -> None:
    sent: set[int] = set()
    for number, request in enumerate(made.requests):
        decoded = [codec.decode_insert_request(message) for message in request.messages]
        new = [chunk.key for one in decoded for chunk in one.chunks]
        assert len(set(new)) == len(new)
        assert not sent & set(new)
        sent |= set(new)
        (following,) = made.requests[number + 1 : number + 2] or (None,)
        kept = set(decoded[-1].keep_chunk_keys)
        prelude = [codec.decode_insert_request(message) for message in following.prelude] if following else []
        assert kept == {chunk.key for one in prelude for chunk in one.chunks}


@given(anything_built())
@settings(max_examples=25)
def test_every_episode_is_finished_once_by_the_request_with_its_last_item(made: Built) -> None:
    finishes = [finish for request in made.requests for finish in request.finishes]
    assert finishes == [(episode.ends[0].episode_id, len(episode.items)) for episode in made.encoded]
    for episode in made.encoded:
        (holder,) = [request for request in made.requests if episode.item_keys[-1] in request.item_keys]
        assert (episode.ends[0].episode_id, len(episode.items)) in holder.finishes


def encoded(steps: int = 40, view: View | None = None, chunk_length: int = 4, name: str = "e") -> EncodedEpisode:
    cut = (view or two_step()).cut(strategies.episode(np.random.default_rng(0), steps))
    return Encoder(["t"], 1, chunk_length).encode_cut(name, cut)


def test_short_episodes_share_a_request() -> None:
    episodes = [encoded(3, name=f"e{number}") for number in range(5)]
    (request,) = built(episodes, RequestLimits())
    assert len(request.messages) == 1
    assert request.finishes == tuple((f"e{number}", 2) for number in range(5))
    assert request.prelude == ()


def test_a_request_is_handed_out_as_soon_as_it_is_full() -> None:
    builder = RequestBuilder(RequestLimits(items=10))
    requests = list(builder.add(encoded(26)))
    assert [len(request.item_keys) for request in requests] == [10, 10]
    assert [len(request.item_keys) for request in builder.flush()] == [5]
    assert list(builder.flush()) == []


@pytest.mark.parametrize(
    ("lengths", "items"),
    [((6, 8), [5, 7]), ((6, 5, 5), [9, 4]), ((4, 8), [10]), ((6, 13), [10, 7]), ((5, 8, 8), [10, 8])],
)
def test_an_episode_that_fits_into_a_request_ends_one_that_is_half_full(lengths: list[int], items: list[int]) -> None:
    """A row makes an item with the next one; a request takes ten."""
    episodes = [encoded(steps, name=str(number)) for number, steps in enumerate(lengths)]
    assert [len(request.item_keys) for request in built(episodes, RequestLimits(items=10))] == items


def test_an_exactly_full_request_leaves_nothing_behind() -> None:
    builder = RequestBuilder(RequestLimits(items=5))
    (request,) = builder.add(encoded(6))
    assert len(request.item_keys) == 5
    assert list(builder.flush()) == []


def test_a_request_may_be_filled_to_the_last_byte() -> None:
    episode = encoded(9)
    size = sum(map(len, (*episode.chunks, *episode.items)))
    (request,) = built([episode], RequestLimits(bytes=size))
    assert request.nbytes == size
    assert len(built([episode], RequestLimits(bytes=size - 1))) == 2


def test_an_item_larger_than_a_request_comes_in_several_messages() -> None:
    episode = encoded(40, WholeEpisode(), chunk_length=4)
    (request,) = built([episode], RequestLimits(bytes=2 * len(episode.chunks[0])))
    assert len(request.messages) == 5
    ((_, values),) = ReceivedStream().feed_all(request.messages)
    assert len(values[0]) == 40


def test_a_request_in_the_middle_of_an_episode_brings_its_prelude() -> None:
    requests = built([encoded(40, SequenceView(length=6), chunk_length=4)], RequestLimits(items=7))
    assert requests[0].prelude == ()
    assert all(request.prelude for request in requests[1:])
    kept = [codec.decode_insert_request(request.messages[-1]).keep_chunk_keys for request in requests]
    assert all(kept[:-1])
    assert not kept[-1]


def test_the_bytes_of_a_request_are_those_of_its_messages() -> None:
    for request in built([encoded(40)], RequestLimits(items=7)):
        assert request.nbytes == len(b"".join(request.messages))


@pytest.mark.parametrize("limit", [RequestLimits(items=1), RequestLimits(bytes=1)])
def test_the_narrowest_limits_send_items_one_by_one(limit: RequestLimits) -> None:
    requests = built([encoded(9)], limit)
    assert [len(request.item_keys) for request in requests] == [1] * 8
