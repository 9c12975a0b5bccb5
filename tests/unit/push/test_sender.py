"""The sender against an in-process server: confirmed, held back, broken, restarted, stalled, closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import grpc
import numpy as np
import pytest
from grpc import StatusCode

from rlds2reverb.cuts import Cut
from rlds2reverb.errors import ServerRestarted, ServerUnreachable, Stalled, TransportError, WireError
from rlds2reverb.push import sender
from rlds2reverb.push.sender import Sender
from rlds2reverb.transport import stream as closing
from rlds2reverb.transport.base import RETRYABLE
from rlds2reverb.transport.grpc import GrpcTransport
from rlds2reverb.transport.retry import Deadlines
from rlds2reverb.views.trajectory import SequenceView
from rlds2reverb.wire.insert import Request, RequestBuilder, RequestLimits
from rlds2reverb.wire.session import SessionWindow
from tests.support import strategies
from tests.support.fake_reverb import PATIENCE_SECONDS, FakeReverb, plan
from tests.support.faults.proxy import UP, Proxy
from tests.support.processes import wait_until
from tests.support.wire.insert_cuts import Encoder
from tests.support.wire.insert_replay import assert_all_same, cut_values

TABLE = "replay"
EPISODES, STEPS, LENGTH, ITEMS_A_REQUEST = 4, 23, 5, 6
ITEMS = STEPS - LENGTH + 1
"""Items of one episode."""

QUICK = Deadlines(call=5, reconnect=10, notice=60, stall=60, backoff_first=0.01, backoff_most=0.05)
IMPATIENT = replace(QUICK, notice=0.02, stall=0.1)

AGAIN_HELPS = [grpc.StatusCode[name] for name in sorted(RETRYABLE)]
FINAL = sorted(set(grpc.StatusCode) - {*AGAIN_HELPS, grpc.StatusCode.OK}, key=lambda code: code.name)


class Load:
    """A few episodes as requests, each in the middle of an episode needing its prelude."""

    def __init__(self) -> None:
        encoder, builder = Encoder([TABLE], 1, chunk_length=2), RequestBuilder(RequestLimits(ITEMS_A_REQUEST))
        rng = np.random.default_rng(0)
        self.cuts = [SequenceView(LENGTH).cut(strategies.episode(rng, STEPS)) for _ in range(EPISODES)]
        encoded = [encoder.encode_cut(f"episode {number}", cut) for number, cut in enumerate(self.cuts)]
        self.requests = [request for episode in encoded for request in builder.add(episode)]
        self.requests += builder.flush()
        self.keys = [key for request in self.requests for key in request.item_keys.tolist()]
        self.finishes = [(f"episode {number}", ITEMS) for number in range(EPISODES)]

    def value(self, number: int) -> tuple[np.ndarray, ...]:
        cut: Cut = self.cuts[number // ITEMS]
        return cut_values(cut, number % ITEMS)


LOAD = Load()


@pytest.fixture
def fake() -> Iterator[FakeReverb]:
    with FakeReverb(TABLE) as running:
        yield running


class Push:
    """A sender on a transport of its own; remembers what it was told while it waited."""

    def __init__(self, fake: FakeReverb, window: SessionWindow, deadlines: Deadlines, call_seconds: float) -> None:
        self.told: list[str] = []
        self.on_wait = self.told.append
        self.transport = GrpcTransport(fake.address, call_seconds=call_seconds)
        info = self.transport.server_info()
        self.sender = Sender(
            self.transport, (TABLE,), info, window, deadlines, lambda reason: self.on_wait(reason.text)
        )

    def send_all(self, start: int = 0) -> None:
        for request in LOAD.requests[start:]:
            self.sender.send(request)

    def run(self, start: int = 0) -> None:
        """Sends the requests from number `start` on, and drains."""
        self.send_all(start)
        self.sender.drain()

    def until(self, claim: Callable[[Sender], bool]) -> None:
        """Waits until the claim holds for the sender."""
        end = time.monotonic() + PATIENCE_SECONDS
        with self.sender._stream.changed:
            while not claim(self.sender):
                assert time.monotonic() < end, "it did not happen"
                self.sender._stream.changed.wait(0.01)

    def close(self) -> None:
        self.sender.close()
        self.transport.close()


@pytest.fixture
def push(fake: FakeReverb) -> Iterator[Callable[..., Push]]:
    """Makes pushes to `fake` and closes them."""
    made: list[Push] = []

    def make(window: SessionWindow = SessionWindow(), deadlines: Deadlines = QUICK, call_seconds: float = 5.0) -> Push:
        made.append(Push(fake, window, deadlines, call_seconds))
        return made[-1]

    yield make
    for each in made:
        each.close()
        each.sender._stream._receiver.join(PATIENCE_SECONDS)
        assert not each.sender._stream._receiver.is_alive()


def assert_all_stored(fake: FakeReverb, push: Push) -> None:
    """Every item once, in order, with its values; and the sender's account of it."""
    assert list(fake.stored[TABLE]) == LOAD.keys
    for number, values in enumerate(fake.stored[TABLE].values()):
        assert_all_same(values, LOAD.value(number))
    assert push.sender.confirmed_items == len(LOAD.keys)
    assert push.sender.take_finished() == LOAD.finishes
    assert push.sender.take_finished() == []


def has_stored(count: int, fake: FakeReverb) -> bool:
    return len(fake.stored[TABLE]) == count


def messages(requests: list[Request]) -> list[bytes]:
    return [message for request in requests for message in request.messages]


def test_the_load_needs_what_the_tests_are_about() -> None:
    assert len(LOAD.requests) > 10
    assert sum(bool(request.prelude) for request in LOAD.requests) > 5
    assert len(LOAD.keys) == EPISODES * ITEMS


# Confirmation.


def test_everything_sent_is_confirmed_and_stored_in_order(fake: FakeReverb, push: Callable[..., Push]) -> None:
    one = push()
    one.run()
    assert_all_stored(fake, one)
    (stream,) = fake.streams
    assert stream.messages == messages(LOAD.requests)
    assert one.sender.sent_bytes == sum(map(len, stream.messages))
    assert one.sender.reconnects == 0
    assert one.told == []


@pytest.mark.parametrize("batch", [1, 4, 7])
def test_confirmations_come_in_pieces_of_any_size(batch: int) -> None:
    with FakeReverb(TABLE, batch=batch) as fake:
        one = Push(fake, SessionWindow(), QUICK, 5)
        one.run()
        assert_all_stored(fake, one)
        one.close()


def test_an_episode_is_finished_when_the_request_with_its_last_item_is_confirmed(
    fake: FakeReverb, push: Callable[..., Push]
) -> None:
    before = (ITEMS - 1) // ITEMS_A_REQUEST * ITEMS_A_REQUEST  # items in the requests before that one
    fake.hold(before + ITEMS_A_REQUEST - 1)
    one = push()
    one.send_all()
    fake.happens(lambda fake: len(fake.stored[TABLE]) == before + ITEMS_A_REQUEST - 1)
    one.until(lambda sender: sender._session.stored_items == before)
    assert one.sender.take_finished() == []
    fake.hold(1)
    one.until(lambda sender: sender._session.stored_items == before + ITEMS_A_REQUEST)
    assert one.sender.take_finished() == [("episode 0", ITEMS)]
    fake.release()
    one.sender.drain()
    assert one.sender.take_finished() == LOAD.finishes[1:]


def test_draining_without_a_request_returns_at_once(push: Callable[..., Push]) -> None:
    push().sender.drain()


def test_a_sender_is_closed_by_its_block(fake: FakeReverb) -> None:
    transport = GrpcTransport(fake.address)
    with Sender(transport, (TABLE,), transport.server_info(), deadlines=QUICK) as opened:
        opened.send(LOAD.requests[0])
        opened.drain()
    assert not opened._stream._receiver.is_alive()
    fake.happens(lambda fake: fake.streams[0].over)
    transport.close()


# Backpressure.


@pytest.mark.parametrize("window", [SessionWindow(items=13), SessionWindow(bytes=3 * LOAD.requests[0].nbytes)])
def test_the_server_never_has_more_to_confirm_than_the_window(
    fake: FakeReverb, push: Callable[..., Push], window: SessionWindow
) -> None:
    fake.hold()
    one = push(window)
    one.send_all()
    fake.happens(lambda fake: fake.streams and fake.streams[0].waiting)
    for _ in range(5):
        wanted = len(fake.stored[TABLE]) + 3
        fake.hold(3)
        fake.happens(partial(has_stored, wanted))
    fake.release()
    one.sender.drain()
    assert_all_stored(fake, one)
    most = window.items if window.items < 100 else 3 * ITEMS_A_REQUEST
    assert ITEMS_A_REQUEST <= fake.streams[0].most_waiting <= most


def test_sending_waits_while_too_much_is_queued(
    fake: FakeReverb, push: Callable[..., Push], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "QUEUE_BYTES", 2 * LOAD.requests[0].nbytes)
    fake.hold()
    one = push(SessionWindow(items=1), replace(QUICK, notice=0.01))
    waits = threading.Event()
    one.on_wait = lambda text: waits.set()
    queued = []

    def send() -> None:
        for request in LOAD.requests:
            one.sender.send(request)
            queued.append(request)

    thread = threading.Thread(target=send)
    thread.start()
    assert waits.wait(PATIENCE_SECONDS)  # told so by `send`, which therefore waits
    assert len(queued) < len(LOAD.requests)
    assert one.sender._session.queued_bytes <= 2 * LOAD.requests[0].nbytes + max(r.nbytes for r in LOAD.requests)
    fake.release()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    one.sender.drain()
    assert_all_stored(fake, one)


# Broken streams.


@pytest.mark.parametrize("confirmed", [0, 1, 5, 6, 7, 40, ITEMS * EPISODES - 1])
def test_a_broken_stream_is_opened_again_and_the_unconfirmed_sent_again(
    fake: FakeReverb, push: Callable[..., Push], confirmed: int
) -> None:
    fake.plans.append(plan(confirmed, grpc.StatusCode.UNAVAILABLE))
    one = push()
    one.run()
    assert_all_stored(fake, one)
    assert one.sender.reconnects == 1
    first = confirmed // ITEMS_A_REQUEST  # the first request that was not wholly confirmed
    again = [*LOAD.requests[first].prelude, *messages(LOAD.requests[first:])]
    assert fake.streams[1].messages == again
    assert fake.assigned == confirmed % ITEMS_A_REQUEST


def test_a_stream_that_breaks_again_and_again_goes_on_as_long_as_items_are_confirmed(
    fake: FakeReverb, push: Callable[..., Push]
) -> None:
    fake.plans.extend(plan(7, grpc.StatusCode.UNAVAILABLE) for _ in range(8))
    one = push()
    one.run()
    assert_all_stored(fake, one)
    assert one.sender.reconnects == 8


@pytest.mark.parametrize("code", [None, *AGAIN_HELPS], ids=str)
def test_a_stream_that_ends_with_a_retryable_status_or_none_is_opened_again(
    fake: FakeReverb, push: Callable[..., Push], code: StatusCode | None
) -> None:
    fake.plans.append(plan(3, code))
    one = push()
    one.run()
    assert_all_stored(fake, one)
    assert one.sender.reconnects == 1


@pytest.mark.parametrize("code", FINAL, ids=lambda code: code.name)
def test_a_status_that_does_not_pass_ends_the_push(
    fake: FakeReverb, push: Callable[..., Push], code: StatusCode
) -> None:
    fake.plans.append(plan(3, code))
    one = push()
    with pytest.raises(TransportError, match=f"inserting: {code.name}: as planned") as error:
        one.run()
    assert not error.value.retryable
    assert len(fake.streams) == 1
    with pytest.raises(TransportError, match=code.name):
        one.sender.send(LOAD.requests[0])


def test_a_request_that_breaks_reverbs_rules_ends_the_push(fake: FakeReverb, push: Callable[..., Push]) -> None:
    one = push()
    middle = LOAD.requests[1]
    one.sender.send(replace(middle, messages=(b"",)))
    with pytest.raises(TransportError, match="INVALID_ARGUMENT: a request with neither chunks nor items"):
        one.sender.drain()


def test_a_break_while_nothing_is_sent_is_mended(fake: FakeReverb, push: Callable[..., Push]) -> None:
    one = push()
    one.sender.send(LOAD.requests[0])
    one.sender.drain()
    fake.break_streams()
    fake.happens(lambda fake: len(fake.streams) == 2)
    one.run(start=1)
    assert_all_stored(fake, one)


def test_another_server_process_ends_the_push(fake: FakeReverb, push: Callable[..., Push]) -> None:
    fake.hold(8)
    one = push()
    one.send_all()
    fake.happens(lambda fake: len(fake.stored[TABLE]) == 8)
    fake.restart()
    fake.release()
    with pytest.raises(ServerRestarted, match="another server process answers than before") as error:
        one.sender.drain()
    assert "UNAVAILABLE: as planned" in str(error.value)
    assert not error.value.retryable
    assert not fake.stored[TABLE]
    assert len(fake.streams) == 1


def test_a_server_that_does_not_come_back_ends_the_push(fake: FakeReverb, push: Callable[..., Push]) -> None:
    fake.hold()
    one = push(deadlines=replace(QUICK, reconnect=0.1), call_seconds=0.1)
    one.send_all()
    fake.happens(lambda fake: fake.streams and fake.streams[0].messages)
    fake.stop()
    with pytest.raises(ServerUnreachable, match=r"no answer within 0.1 s"):
        one.sender.drain()


def test_a_server_that_refuses_to_tell_its_state_ends_the_push(fake: FakeReverb, push: Callable[..., Push]) -> None:
    one = push()
    fake.plans.append(plan(0, grpc.StatusCode.UNAVAILABLE))
    fake.info_codes.append(grpc.StatusCode.PERMISSION_DENIED)
    fake.break_streams()
    with pytest.raises(TransportError, match="PERMISSION_DENIED"):
        one.run()


# What is not Reverb's protocol.


def test_a_confirmation_of_an_unknown_item_ends_the_push(fake: FakeReverb, push: Callable[..., Push]) -> None:
    fake.plans.append(plan(response=b"\x08\x05"))
    with pytest.raises(WireError, match="not in flight"):
        push().run()


def test_an_answer_that_is_no_confirmation_ends_the_push(fake: FakeReverb, push: Callable[..., Push]) -> None:
    fake.plans.append(plan(response=b"\xff\xff"))
    with pytest.raises(WireError, match="InsertStreamResponse"):
        push().run()


# Waiting.


def test_a_stall_is_explained_by_the_rate_limiter(fake: FakeReverb, push: Callable[..., Push]) -> None:
    counts = {"insert_stats": {"completed": 8}, "sample_stats": {"completed": 1}}
    fake.limiters[TABLE] = {"max_diff": 5.0, "min_size_to_sample": 0, **counts}
    fake.hold(8)
    one = push(deadlines=IMPATIENT)
    with pytest.raises(Stalled, match=r"nothing was confirmed for .* s; table \"replay\"") as error:
        one.run()
    assert "inserting waits for 3 more samples" in str(error.value)
    assert "wait longer (stall_seconds" in str(error.value)
    assert error.value.retryable
    assert all("waits for 3 more samples" in text for text in one.told if text)


def test_a_stall_without_a_limiter_says_that_none_blocks(fake: FakeReverb, push: Callable[..., Push]) -> None:
    fake.hold()
    one = push(deadlines=replace(QUICK, notice=0.02))
    with pytest.raises(StopWaiting, match="no rate limiter blocks: the server is busy or saves a checkpoint"):
        one.on_wait = stop_waiting
        one.run()


class StopWaiting(Exception):
    """Ends a wait from within."""


def stop_waiting(reason: str) -> None:
    raise StopWaiting(reason)


def test_answers_without_a_key_are_no_progress(fake: FakeReverb, push: Callable[..., Push]) -> None:
    fake.hold()
    fake.plans.append(plan(empty_answers=True))
    with pytest.raises(Stalled, match="no rate limiter blocks"):
        push(deadlines=replace(IMPATIENT, stall=0.5)).run()


def test_breaks_before_the_last_confirmation_are_no_reason(fake: FakeReverb, push: Callable[..., Push]) -> None:
    fake.plans.append(plan(3, grpc.StatusCode.INTERNAL))
    fake.hold(10)
    one = push(deadlines=replace(QUICK, notice=0.1))
    one.on_wait = stop_waiting
    with pytest.raises(StopWaiting, match="no rate limiter blocks: the server is busy"):
        one.run()
    assert (one.sender.reconnects, one.sender._session.stored_items) == (1, ITEMS_A_REQUEST)


def test_a_stall_of_a_server_that_answers_nothing_says_so(fake: FakeReverb, push: Callable[..., Push]) -> None:
    fake.hold()
    one = push(deadlines=IMPATIENT)
    fake.info_codes.extend([grpc.StatusCode.PERMISSION_DENIED] * 1000)
    with pytest.raises(Stalled, match="asking for its tables: PERMISSION_DENIED"):
        one.run()


def test_a_table_that_is_gone_is_not_waited_for(fake: FakeReverb, push: Callable[..., Push]) -> None:
    fake.hold()
    one = push(deadlines=IMPATIENT)
    fake.untold.add(TABLE)
    with pytest.raises(Stalled, match="no rate limiter blocks"):
        one.run()


def test_streams_that_only_break_stall_in_the_end_and_say_why(fake: FakeReverb, push: Callable[..., Push]) -> None:
    fake.plans.extend(plan(0, grpc.StatusCode.INTERNAL) for _ in range(10_000))
    one = push(deadlines=replace(IMPATIENT, stall=0.3))
    with pytest.raises(Stalled, match=r"streams that ended without a confirmation: \d+, the last one: .*INTERNAL"):
        one.run()


def test_a_wait_is_told_and_so_is_its_end(fake: FakeReverb, push: Callable[..., Push]) -> None:
    fake.hold()
    fake.limiters[TABLE] = {"max_diff": 0.0, "min_size_to_sample": 0}
    one = push(deadlines=replace(QUICK, notice=0.02))

    def let_in(text: str) -> None:
        one.told.append(text)
        if len(one.told) == 3:
            fake.release()

    one.on_wait = let_in
    one.run()
    assert_all_stored(fake, one)
    assert one.told[-1] == ""
    assert len(one.told) >= 4
    assert all("waits for 1 more sample" in text for text in one.told[:3])


def test_a_wait_that_is_over_for_a_while_is_told_as_well(fake: FakeReverb, push: Callable[..., Push]) -> None:
    fake.hold()
    one = push(deadlines=replace(QUICK, notice=0.05))
    stored_when_told = []

    def let_one_in(text: str) -> None:
        one.told.append(text)
        if text:
            fake.hold(1)
        else:
            stored_when_told.append(len(fake.stored[TABLE]))
            fake.release()

    one.on_wait = let_one_in
    one.run()
    assert one.told[0].startswith("no rate limiter blocks")
    assert one.told[-1] == ""
    assert 0 < stored_when_told[0] < len(LOAD.keys)


def test_a_pause_between_requests_is_no_stall(fake: FakeReverb, push: Callable[..., Push]) -> None:
    one = push(deadlines=replace(QUICK, notice=0.02))
    one.sender.send(LOAD.requests[0])
    one.sender.drain()
    one.sender._stream._idle._since -= 1000  # long ago
    fake.hold()
    one.on_wait = lambda text: fake.release()  # after a while without a confirmation
    one.run(start=1)
    assert_all_stored(fake, one)


# Silent streams.


def test_a_silent_stream_is_given_up_for_another_one(fake: FakeReverb, push: Callable[..., Push]) -> None:
    """The server holds the first stream back as a half-open connection does; no limiter blocks, and it answers."""
    fake.hold(8)
    one = push(deadlines=replace(QUICK, notice=0.02, silence=0.05))
    one.send_all()
    fake.happens(lambda fake: len(fake.stored[TABLE]) == 8)

    def release_later(reason: str) -> None:
        if one.sender.reconnects:
            fake.release()

    one.on_wait = release_later
    one.sender.drain()
    assert_all_stored(fake, one)
    assert one.sender.reconnects >= 1
    assert fake.streams[0].over
    assert one.transport.server_info().state_id == fake.state_id


def test_a_stream_that_a_limiter_holds_back_is_kept(fake: FakeReverb, push: Callable[..., Push]) -> None:
    fake.hold()
    fake.limiters[TABLE] = {"max_diff": 0.0, "min_size_to_sample": 0}
    one = push(deadlines=replace(QUICK, notice=0.02, silence=0.03))

    def let_in(text: str) -> None:
        one.told.append(text)
        if len(one.told) == 10:
            fake.release()

    one.on_wait = let_in
    one.run()
    assert_all_stored(fake, one)
    assert (one.sender.reconnects, len(fake.streams)) == (0, 1)


def test_streams_are_given_up_ever_less_often(fake: FakeReverb, push: Callable[..., Push]) -> None:
    fake.hold()
    one = push(deadlines=replace(IMPATIENT, silence=0.02, stall=2.0))
    with pytest.raises(
        Stalled, match=r"streams that ended without a confirmation: \d, the last one: .* it answers, and"
    ):
        one.run()
    assert 2 <= len(fake.streams) <= 8  # 0.02 s + 0.04 s + ... < 2 s


def test_another_server_process_is_noticed_on_a_silent_stream(fake: FakeReverb, push: Callable[..., Push]) -> None:
    fake.hold(8)
    one = push(deadlines=replace(QUICK, notice=0.02))
    one.send_all()
    fake.happens(lambda fake: len(fake.stored[TABLE]) == 8)
    fake.state_id += 1
    with pytest.raises(ServerRestarted, match="another server process answers than before"):
        one.sender.drain()


def test_a_caller_that_never_waits_notices_a_silent_stream(fake: FakeReverb, push: Callable[..., Push]) -> None:
    fake.hold()
    one = push(deadlines=replace(QUICK, silence=0.01))
    one.sender.send(LOAD.requests[0])

    def has_noticed() -> bool:
        one.sender.check()
        return len(fake.streams) > 1

    wait_until(has_noticed)
    fake.release()
    one.run(start=1)
    assert_all_stored(fake, one)


# Closing.


def test_closing_while_the_server_holds_everything_back_ends_the_stream(
    fake: FakeReverb, push: Callable[..., Push]
) -> None:
    fake.hold()
    one = push()
    one.send_all()
    fake.happens(lambda fake: fake.streams and fake.streams[0].waiting)
    one.sender.close()
    assert not one.sender._stream._receiver.is_alive()
    fake.happens(lambda fake: fake.streams[0].over)
    assert one.sender.confirmed_items == 0


def test_closing_while_the_caller_waits_leaves_no_thread(fake: FakeReverb, push: Callable[..., Push]) -> None:
    fake.hold()
    one = push(deadlines=IMPATIENT)
    with pytest.raises(Stalled):
        one.run()
    one.sender.close()
    one.sender.close()
    assert not one.sender._stream._receiver.is_alive()


def test_closing_while_the_server_is_away_ends_with_the_channel(fake: FakeReverb, push: Callable[..., Push]) -> None:
    fake.hold()
    one = push(deadlines=replace(QUICK, call=0.01), call_seconds=0.2)
    one.send_all()
    fake.happens(lambda fake: fake.streams and fake.streams[0].messages)
    fake.stop()
    one.close()
    one.sender._stream._receiver.join(PATIENCE_SECONDS)
    assert not one.sender._stream._receiver.is_alive()


def test_closing_a_stream_that_became_half_open_after_the_last_confirmation_leaves_no_thread(
    fake: FakeReverb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "_FAREWELL_SECONDS", 0.1)
    with Proxy(fake.port) as proxy:
        transport = GrpcTransport(proxy.address)
        one = Sender(transport, (TABLE,), transport.server_info(), deadlines=QUICK)
        one.send(LOAD.requests[0])
        one.drain()
        proxy.hold_after(UP, 1)  # the end of the stream
        one.close()
        assert not one._stream._receiver.is_alive()
        assert sum(transport._connections._holders.values()) == 0
        transport.close()


def test_closing_between_two_streams_opens_no_other(fake: FakeReverb, push: Callable[..., Push]) -> None:
    fake.plans.extend(plan(0, grpc.StatusCode.INTERNAL) for _ in range(10_000))
    one = push(deadlines=replace(QUICK, backoff_first=PATIENCE_SECONDS, backoff_most=PATIENCE_SECONDS))
    one.until(lambda sender: len(sender._stream._breaks) == 2)  # it pauses
    one.sender.close()
    assert not one.sender._stream._receiver.is_alive()
    assert len(fake.streams) == 2


def test_closing_at_once_opens_no_stream_that_stays(fake: FakeReverb, push: Callable[..., Push]) -> None:
    for _ in range(20):
        one = push()
        one.sender.close()
        assert not one.sender._stream._receiver.is_alive()
    fake.happens(lambda fake: all(stream.over for stream in fake.streams))


def test_a_closed_channel_ends_the_push(fake: FakeReverb, push: Callable[..., Push]) -> None:
    fake.hold()
    one = push()
    one.send_all()
    fake.happens(lambda fake: fake.streams and fake.streams[0].messages)
    one.transport.close()
    with pytest.raises(TransportError, match="no call can be made"):
        one.sender.drain()
