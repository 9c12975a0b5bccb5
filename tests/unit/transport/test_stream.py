"""A kept stream whose user is no push: samples are asked for and come, on the server in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from rlds2reverb.errors import ServerRestarted, Stalled, TransportError, WireError
from rlds2reverb.testing import FREE_LIMITER, MemoryServer, MemoryTransport, table_info
from rlds2reverb.transport.retry import Deadlines
from rlds2reverb.transport.stream import PersistentStream, StreamWords
from rlds2reverb.wire.messages import ServerInfo, Wait, sample_wait

PATIENCE_SECONDS = 20.0
QUICK = Deadlines(call=5, reconnect=10, notice=60, stall=60, backoff_first=0.01, backoff_most=0.05)
IMPATIENT = replace(QUICK, notice=0.02, stall=0.1)


class SampleStream:
    """What a stream of samples would be: the client asks for some, the server sends one key per message."""

    def __init__(self, server: SampleServer, messages: Iterator[bytes]) -> None:
        self.server, self.owed, self.over = server, 0, False
        self.asked: list[int] = []
        self.sent, self.breaks_after = 0, server.breaks.pop(0) if server.breaks else None
        self.is_silent = False
        threading.Thread(target=self._read, args=(messages,), daemon=True).start()

    def _read(self, messages: Iterator[bytes]) -> None:
        for message in messages:
            with self.server.changed:
                self.asked.append(int(message))
                self.owed += int(message)
                self.server.changed.notify_all()

    def __iter__(self) -> Iterator[bytes]:
        while True:
            with self.server.changed:
                self.server.changed.wait_for(lambda: self.over or self._is_broken or self._may_send)
                if self.over or self._is_broken:
                    raise TransportError("the sample stream broke", retryable=True)
                self.owed, self.sent = self.owed - 1, self.sent + 1
                message = b"%d" % self.server.sample().key
            yield self.server.instead or message

    @property
    def _is_broken(self) -> bool:
        return self.sent == self.breaks_after

    @property
    def _may_send(self) -> bool:
        return not self.is_silent and self.owed > 0 and self.server.tables["replay"].may_be_sampled

    def cancel(self) -> None:
        with self.server.changed:
            self.over = True
            self.server.changed.notify_all()

    end = abandon = cancel


class SampleServer(MemoryServer):
    """Gives samples over streams as well; `breaks` says after how many the next ones break."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(replace(table_info(sampler="fifo"), **changes))
        self.breaks: list[int] = []
        self.instead: bytes | None = None
        self.sampling: list[SampleStream] = []
        for key in range(1, 6):
            self.put("replay", key)


class Sampling:
    """The user: wants so many samples, a few under way at a time."""

    words = StreamWords("no sample came", "sent no sample", "without a sample", "Insert more, or wait longer")

    def __init__(self, server: SampleServer, wanted: int) -> None:
        self.server, self.wanted = server, wanted
        self.under_way = 0
        self.taken: list[int] = []
        self.resumed_for: list[str] = []

    def open(self, messages: Iterator[bytes]) -> SampleStream:
        self.server.sampling.append(SampleStream(self.server, messages))
        return self.server.sampling[-1]

    def next_messages(self) -> tuple[bytes, ...]:
        missing = min(3, self.wanted - len(self.taken)) - self.under_way
        if missing <= 0:
            return ()
        self.under_way += missing
        return (b"%d" % missing,)

    def decode(self, message: bytes) -> int:
        if not message.isdigit():
            raise WireError("no key")
        return int(message)

    def take(self, answer: int) -> bool:
        self.under_way -= 1
        self.taken.append(answer)
        return True

    def lost(self) -> None:
        self.under_way = 0

    @property
    def awaits_nothing(self) -> bool:
        return self.is_done()

    def is_done(self) -> bool:
        return len(self.taken) >= self.wanted

    def held_back(self, info: ServerInfo) -> list[Wait]:
        wait = sample_wait(info.tables["replay"])
        return [wait] if wait.blocks else []

    def restarted(self, told: str, info: ServerInfo) -> None:
        raise ServerRestarted(f"{told}; {len(self.taken)} samples came before")

    def resumed(self, why: str) -> None:
        self.resumed_for.append(why)


@pytest.fixture
def kept() -> Iterator[Callable[..., tuple[PersistentStream, Sampling]]]:
    """Opens kept streams and closes them."""
    opened: list[PersistentStream] = []

    def make(
        server: SampleServer,
        wanted: int = 20,
        deadlines: Deadlines = QUICK,
        on_wait: Callable[..., Any] = lambda _: None,
    ) -> tuple[PersistentStream, Sampling]:
        user = Sampling(server, wanted)
        transport = MemoryTransport(server)
        opened.append(PersistentStream(transport, user, server.state_id, deadlines, on_wait))
        return opened[-1], user

    yield make
    for each in opened:
        each.close()
        each._receiver.join(PATIENCE_SECONDS)
        assert not each._receiver.is_alive()


def test_what_is_wanted_comes(kept: Callable[..., tuple[PersistentStream, Sampling]]) -> None:
    stream, user = kept(SampleServer())
    stream.wait(user.is_done)
    assert user.taken == [1] * 20
    assert (stream.reconnects, len(user.server.sampling)) == (0, 1)


def test_more_may_be_wanted_later(kept: Callable[..., tuple[PersistentStream, Sampling]]) -> None:
    stream, user = kept(SampleServer(), 4)
    stream.wait(user.is_done)
    with stream.changed:
        user.wanted = 7
        stream.wake(was_idle=True)
    stream.wait(user.is_done)
    assert sum(user.server.sampling[0].asked) == 7


def test_a_stream_that_breaks_is_taken_up_again_and_asks_for_what_is_missing(
    kept: Callable[..., tuple[PersistentStream, Sampling]],
) -> None:
    server = SampleServer()
    server.breaks = [2, 1, 0, 5]
    stream, user = kept(server)
    stream.wait(user.is_done)
    assert len(user.taken) == 20
    assert stream.reconnects == 4
    assert [stream.sent for stream in server.sampling] == [2, 1, 0, 5, 12]


def test_a_limiter_is_no_reason_for_another_stream_and_is_told(
    kept: Callable[..., tuple[PersistentStream, Sampling]],
) -> None:
    server = SampleServer(rate_limiter=replace(FREE_LIMITER, min_size_to_sample=9))
    told = []

    def tell(reason: Any) -> None:
        told.append(reason)
        if len(told) == 5:
            for key in range(6, 10):
                server.put("replay", key)

    stream, user = kept(server, deadlines=replace(QUICK, notice=0.02, silence=0.03), on_wait=tell)
    stream.wait(user.is_done)
    assert len(server.sampling) == 1
    assert all("sampling waits for 4 more inserts" in reason.text for reason in told[:5])
    assert {reason.held_by for reason in told[:5]} == {("replay",)}
    assert told[-1].text == ""


def test_a_stall_is_told_in_the_users_words(kept: Callable[..., tuple[PersistentStream, Sampling]]) -> None:
    server = SampleServer(rate_limiter=replace(FREE_LIMITER, min_size_to_sample=9))
    stream, user = kept(server, deadlines=IMPATIENT)
    with pytest.raises(
        Stalled,
        match=r"server memory: no sample came for .* s; table .* sampling waits for 4 more inserts .*\. Insert more",
    ) as error:
        stream.wait(user.is_done)
    assert error.value.retryable


def test_a_silent_stream_is_left_for_another_one(kept: Callable[..., tuple[PersistentStream, Sampling]]) -> None:
    server = SampleServer()
    stream, user = kept(server, 0, deadlines=replace(QUICK, notice=0.02, silence=0.05))
    server.until(lambda: bool(server.sampling))
    server.sampling[0].is_silent = True
    with stream.changed:
        user.wanted = 5
        stream.wake(was_idle=True)
    stream.wait(user.is_done)
    assert server.sampling[0].over
    assert (stream.reconnects, server.sampling[0].sent, server.sampling[1].sent) == (1, 0, 5)


def test_streams_that_only_break_stall_and_say_why(kept: Callable[..., tuple[PersistentStream, Sampling]]) -> None:
    server = SampleServer()
    server.breaks = [0] * 10_000
    stream, user = kept(server, deadlines=replace(IMPATIENT, stall=0.3))
    with pytest.raises(
        Stalled, match=r"streams that ended without a sample: \d+, the last one: the sample stream broke"
    ):
        stream.wait(user.is_done)


def test_another_server_process_is_told_with_what_it_means(
    kept: Callable[..., tuple[PersistentStream, Sampling]],
) -> None:
    server = SampleServer()
    server.breaks = [3]
    with server.changed:  # before the first sample
        stream, user = kept(server)
        server.state_id += 1
    with pytest.raises(ServerRestarted, match=r"another server process answers than before .*; 3 samples came before"):
        stream.wait(user.is_done)


def test_an_answer_that_is_not_understood_is_raised_where_it_is_waited_for(
    kept: Callable[..., tuple[PersistentStream, Sampling]],
) -> None:
    server = SampleServer()
    server.instead = b"what"
    stream, user = kept(server)
    for _ in range(2):
        with pytest.raises(WireError, match="no key"):
            stream.wait(user.is_done)


def test_a_server_that_is_away_is_waited_for(kept: Callable[..., tuple[PersistentStream, Sampling]]) -> None:
    server = SampleServer()
    server.breaks = [3]
    server.refusals.extend(["UNAVAILABLE"] * 3)
    stream, user = kept(server)
    stream.wait(user.is_done)
    assert stream.reconnects == 1


def test_what_is_awaited_is_noticed_at_once_however_rarely_waits_are_told(
    kept: Callable[..., tuple[PersistentStream, Sampling]],
) -> None:
    """Nothing is polled: with these deadlines a poll would come after an hour."""
    server = SampleServer()
    stream, user = kept(server, deadlines=replace(QUICK, notice=3600.0, stall=7200.0))
    stream.wait(user.is_done)
    assert user.is_done()


def test_lingering_ends_with_the_time_the_claim_or_the_failure(
    kept: Callable[..., tuple[PersistentStream, Sampling]],
) -> None:
    server = SampleServer(rate_limiter=replace(FREE_LIMITER, min_size_to_sample=9))
    stream, user = kept(server)
    stream.linger(user.is_done, 0.01)
    assert not user.taken
    for key in range(6, 10):
        server.put("replay", key)
    stream.linger(user.is_done, PATIENCE_SECONDS)
    assert user.is_done()


def test_closing_while_much_is_awaited_leaves_no_thread(kept: Callable[..., tuple[PersistentStream, Sampling]]) -> None:
    server = SampleServer(rate_limiter=replace(FREE_LIMITER, min_size_to_sample=9))
    stream, _ = kept(server)
    server.until(lambda: bool(server.sampling and server.sampling[0].asked))
    stream.close()
    stream.close()
    assert not stream._receiver.is_alive()
    assert server.sampling[0].over
