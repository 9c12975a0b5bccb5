"""Requests: within their limits, each sufficient in itself, and together exactly the episodes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rlds2reverb.errors import WireError
from rlds2reverb.testing.tables import ReceivedStream
from rlds2reverb.views.base import View
from rlds2reverb.views.trajectory import SequenceView, WholeEpisode, two_step
from rlds2reverb.wire import codec
from rlds2reverb.wire.insert import EncodedEpisode, Request, RequestBuilder, RequestLimits
from rlds2reverb.wire.session import Session, SessionWindow
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
    stored = [item_and_rows for request in made.requests for item_and_rows in stream.feed_all(request.messages)]
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
        assert all(
            request_sent.chunks and not request_sent.items and not request_sent.keep_chunk_keys
            for request_sent in leading
        )
        keep_bytes = 10 * len(last.keep_chunk_keys) + 4
        assert request.nbytes - keep_bytes <= made.limit.bytes or len(request.item_keys) == 1
        for message, request_sent in zip((*request.prelude, *request.messages[:-1]), leading):
            assert len(message) <= made.limit.bytes or len(request_sent.chunks) == 1


@given(anything_built())
@settings(max_examples=25)
def test_no_chunk_is_sent_twice_and_none_is_kept_for_nothing(made: Built) -> None:
    sent: set[int] = set()
    for number, request in enumerate(made.requests):
        decoded = [codec.decode_insert_request(message) for message in request.messages]
        new = [chunk.key for message in decoded for chunk in message.chunks]
        assert len(set(new)) == len(new)
        assert not sent & set(new)
        sent |= set(new)
        (following,) = made.requests[number + 1 : number + 2] or (None,)
        kept = set(decoded[-1].keep_chunk_keys)
        prelude = [codec.decode_insert_request(message) for message in following.prelude] if following else []
        assert kept == {chunk.key for message in prelude for chunk in message.chunks}


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


# The session against a simple model: nothing lost, nothing reported early, the window respected.

FIRST_KEY = 2**63


def request(keys: list[int], finishes: tuple[tuple[str, int], ...] = (), size: int = 10, prelude: int = 0) -> Request:
    """A request of one message; the session never looks inside."""
    number = keys[0] if keys else 0
    preludes = tuple(f"prelude {number}.{part}".encode() for part in range(prelude))
    message = f"request {number}".encode().ljust(size, b".")
    return Request((message,), preludes, 1, np.array(keys, np.uint64), finishes)


def array(keys: list[int]) -> np.ndarray:
    return np.array(keys, np.uint64)


@dataclass
class Model:
    """What the session must hold, in the plainest form."""

    window: SessionWindow
    outbox: list[Request] = field(default_factory=list)
    flying: list[tuple[Request, set[int]]] = field(default_factory=list)
    finished: list[tuple[str, int]] = field(default_factory=list)
    stored: int = 0
    sent: int = 0
    new_stream: bool = True

    def room(self) -> bool:
        if not self.flying:
            return True
        items = sum(len(sent.item_keys) for sent, _ in self.flying) + len(self.outbox[0].item_keys)
        size = sum(sent.nbytes for sent, _ in self.flying) + self.outbox[0].nbytes
        return items <= self.window.items and size <= self.window.bytes

    def next_messages(self) -> tuple[bytes, ...]:
        if not self.outbox or not self.room():
            return ()
        one = self.outbox.pop(0)
        self.flying.append((one, set(one.item_keys.tolist())))
        messages = (*one.prelude, *one.messages) if self.new_stream else one.messages
        self.new_stream = False
        self.sent += sum(map(len, messages))
        return messages

    def confirm(self, keys: list[int]) -> None:
        for _, left in self.flying:
            left.difference_update(keys)
        while self.flying and not self.flying[0][1]:
            one, _ = self.flying.pop(0)
            self.stored += len(one.item_keys)
            self.finished += one.finishes

    def lost(self) -> None:
        self.outbox = [sent for sent, _ in self.flying] + self.outbox
        self.flying, self.new_stream = [], True

    def unconfirmed(self) -> list[int]:
        """Keys in flight in the order in which they were sent."""
        return [key for sent, left in self.flying for key in sent.item_keys.tolist() if key in left]


class SessionMachine(RuleBasedStateMachine):
    """Adds, sends, confirms in any order, loses streams; the model says what must come of it."""

    @initialize(items=st.integers(1, 12), size=st.integers(1, 120))
    def begin(self, items: int, size: int) -> None:
        window = SessionWindow(items, size)
        self.session, self.model = Session(window), Model(window)
        self.next_key, self.number = FIRST_KEY, 0
        self.added: list[tuple[str, int]] = []
        self.reported: list[tuple[str, int]] = []

    @rule(count=st.integers(1, 8), size=st.integers(30, 60), prelude=st.integers(0, 2), episodes=st.integers(0, 2))
    def add(self, count: int, size: int, prelude: int, episodes: int) -> None:
        keys = list(range(self.next_key, self.next_key + count))
        finishes = tuple((f"episode {self.number}.{part}", part) for part in range(episodes))
        self.next_key, self.number = self.next_key + count, self.number + 1
        one = request(keys, finishes, size, prelude)
        self.session.add(one)
        self.model.outbox.append(one)
        self.added += finishes

    @rule()
    def send(self) -> None:
        assert self.session.next_messages() == self.model.next_messages()

    @precondition(lambda self: self.model.flying)
    @rule(data=st.data())
    def confirm_in_order(self, data: st.DataObject) -> None:
        keys = self.model.unconfirmed()
        self.confirm(keys[: data.draw(st.integers(0, len(keys)))])

    @precondition(lambda self: self.model.flying)
    @rule(data=st.data())
    def confirm_shuffled(self, data: st.DataObject) -> None:
        keys = data.draw(st.permutations(self.model.unconfirmed()))
        self.confirm(keys[: data.draw(st.integers(0, len(keys)))])

    @rule(behind=st.integers(0, 5))
    def confirm_what_was_never_sent(self, behind: int) -> None:
        with pytest.raises(WireError, match=r"confirmed 1 items? that .* not in flight"):
            self.session.confirm(array([self.next_key + behind]))

    @precondition(lambda self: self.confirmed_keys())
    @rule(data=st.data())
    def confirm_again(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.confirmed_keys()))
        with pytest.raises(WireError, match="not in flight"):
            self.session.confirm(array([key]))

    @rule()
    def lose_the_stream(self) -> None:
        self.session.lost()
        self.model.lost()

    @rule()
    def take_finished(self) -> None:
        self.reported += self.session.take_finished()
        assert self.reported == self.model.finished

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        session, model = self.session, self.model
        assert session.queued_bytes == sum(queued.nbytes for queued in model.outbox)
        assert session.flying_bytes == sum(sent.nbytes for sent, _ in model.flying)
        assert session.flying_items == sum(len(sent.item_keys) for sent, _ in model.flying)
        assert session.stored_items == model.stored
        assert session.sent_bytes == model.sent
        assert session.idle == (not model.outbox and not model.flying)

    @invariant()
    def the_window_is_respected(self) -> None:
        if len(self.model.flying) > 1:
            assert self.session.flying_items <= self.model.window.items
            assert self.session.flying_bytes <= self.model.window.bytes

    def teardown(self) -> None:
        """Sent and confirmed until nothing is left, everything added is stored, in order."""
        if not hasattr(self, "session"):
            return
        while not self.session.idle:
            self.send()
            if self.model.flying and not (self.model.outbox and self.model.room()):
                self.confirm(self.model.unconfirmed())
        self.take_finished()
        assert self.reported == self.added
        assert self.session.stored_items == self.next_key - FIRST_KEY
        assert self.session.next_messages() == ()

    def confirm(self, keys: list[int]) -> None:
        self.session.confirm(array(keys))
        self.model.confirm(keys)

    def confirmed_keys(self) -> list[int]:
        return [key for sent, left in self.model.flying for key in sent.item_keys.tolist() if key not in left]


TestSession = SessionMachine.TestCase
TestSession.settings = settings(max_examples=60, stateful_step_count=40)


# The table of transitions, row by row.

MANY = SessionWindow()


def keys_of(number: int) -> list[int]:
    return [FIRST_KEY + 10 * number + part for part in range(3)]


def one(number: int, **options: int) -> Request:
    return request(keys_of(number), ((f"e{number}", 3),), **options)


def session_with(*requests: Request, window: SessionWindow = MANY, sent: int = 0) -> Session:
    session = Session(window)
    for each in requests:
        session.add(each)
    for _ in range(sent):
        assert session.next_messages()
    return session


def test_new_add_queued() -> None:
    session = Session(MANY)
    assert session.idle
    session.add(one(0, size=70))
    assert not session.idle
    assert (session.queued_bytes, session.flying_items, session.sent_bytes) == (70, 0, 0)


def test_queued_next_messages_in_flight() -> None:
    session = session_with(one(0, size=70))
    assert session.next_messages() == one(0, size=70).messages
    assert (session.queued_bytes, session.flying_items, session.flying_bytes, session.sent_bytes) == (0, 3, 70, 70)
    assert session.next_messages() == ()


@pytest.mark.parametrize("window", [SessionWindow(items=5), SessionWindow(bytes=139), SessionWindow(items=1, bytes=1)])
def test_queued_next_messages_stays_queued_when_the_window_is_full(window: SessionWindow) -> None:
    session = session_with(one(0, size=70), one(1, size=70), window=window, sent=1)
    assert session.next_messages() == ()
    assert session.queued_bytes == 70
    session.confirm(array(keys_of(0)))
    assert session.next_messages() == one(1, size=70).messages


@pytest.mark.parametrize("window", [SessionWindow(items=6), SessionWindow(bytes=140)])
def test_a_window_can_be_filled_exactly(window: SessionWindow) -> None:
    session_with(one(0, size=70), one(1, size=70), window=window, sent=2)


def test_a_request_larger_than_the_window_is_let_through_alone() -> None:
    session = session_with(one(0), window=SessionWindow(items=1, bytes=1), sent=1)
    assert session.flying_items == 3


def test_in_flight_confirm_with_keys_left_in_flight() -> None:
    session = session_with(one(0), sent=1)
    session.confirm(array(keys_of(0)[:2]))
    assert session.take_finished() == []
    assert (session.stored_items, session.flying_items) == (0, 3)


def test_in_flight_confirm_with_no_key_left_stored() -> None:
    session = session_with(one(0), sent=1)
    session.confirm(array(keys_of(0)[:2]))
    session.confirm(array(keys_of(0)[2:]))
    assert session.take_finished() == [("e0", 3)]
    assert session.take_finished() == []
    assert (session.stored_items, session.flying_items, session.flying_bytes) == (3, 0, 0)
    assert session.idle


def test_a_request_confirmed_early_waits_for_those_before_it() -> None:
    session = session_with(one(0), one(1), sent=2)
    session.confirm(array(keys_of(1)))
    assert (session.take_finished(), session.stored_items) == ([], 0)
    session.confirm(array(keys_of(0)))
    assert session.take_finished() == [("e0", 3), ("e1", 3)]
    assert session.stored_items == 6


def test_one_confirmation_may_span_requests() -> None:
    session = session_with(one(0), one(1), one(2), sent=3)
    session.confirm(array([*keys_of(0), *keys_of(1)[:1]]))
    session.confirm(array([*keys_of(1)[1:], *keys_of(2)]))
    assert session.take_finished() == [("e0", 3), ("e1", 3), ("e2", 3)]


def test_in_flight_lost_queued_whole() -> None:
    session = session_with(one(0, prelude=2), one(1, prelude=2), one(2), sent=2)
    session.confirm(array(keys_of(0)[:2]))
    session.lost()
    assert (session.flying_items, session.flying_bytes) == (0, 0)
    assert session.next_messages() == (*one(0, prelude=2).prelude, *one(0, prelude=2).messages)
    assert session.next_messages() == one(1).messages  # without its prelude: the stream has it by now
    session.confirm(array([*keys_of(0), *keys_of(1)]))
    assert session.take_finished() == [("e0", 3), ("e1", 3)]


def test_what_is_stored_is_not_sent_again() -> None:
    session = session_with(one(0), one(1, prelude=1), sent=2)
    session.confirm(array(keys_of(0)))
    session.lost()
    assert session.next_messages() == (*one(1, prelude=1).prelude, *one(1).messages)


def test_a_key_of_a_request_that_is_queued_again_is_not_in_flight() -> None:
    session = session_with(one(0), sent=1)
    session.lost()
    with pytest.raises(WireError, match=r"confirmed 3 items that .* not in flight"):
        session.confirm(array(keys_of(0)))


def test_a_foreign_key_among_good_ones_is_a_wire_error() -> None:
    session = session_with(one(0), one(1), sent=1)
    with pytest.raises(WireError, match=r"confirmed 1 items? that .* not in flight"):
        session.confirm(array([*keys_of(0), keys_of(1)[0]]))


def test_confirming_nothing_changes_nothing() -> None:
    session = session_with(one(0), sent=1)
    session.confirm(array([]))
    assert session.flying_items == 3
    Session(MANY).confirm(array([]))


@pytest.mark.parametrize("keys", [[FIRST_KEY + 1, FIRST_KEY + 50], [FIRST_KEY + 70, FIRST_KEY + 70]])
@pytest.mark.parametrize("sent", [0, 1])
def test_two_items_of_one_key_are_a_wire_error(keys: list[int], sent: int) -> None:
    session = session_with(one(0), sent=sent)
    with pytest.raises(WireError, match="the same key"):
        session.add(request(keys))


def test_the_key_of_a_stored_item_may_come_again() -> None:
    session = session_with(one(0), sent=1)
    session.confirm(array(keys_of(0)))
    session.add(one(0))
    assert session.next_messages() == one(0).messages
    session.confirm(array(keys_of(0)))
    assert session.stored_items == 6
