"""Servers that answer samples with garbage, too much, too little or nothing: errors of ours, no wrong batch, and always an end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rlds2reverb.errors import Rlds2ReverbError, ServerRestarted, Stalled, TransportError, WireError
from rlds2reverb.testing import streams
from rlds2reverb.wire.schema import message_class
from tests.support.faults import hostile
from tests.support.faults.hostile import HostileServer, Requests
from tests.support.faults.sampling import be_quick, contents, sampler_of
from tests.support.processes import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(60)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    be_quick(monkeypatch, silence_seconds=0.1)
    yield
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("rlds2reverb-")])


def good_info(_: int = 0) -> bytes:
    """A table from which samples may be taken."""
    info = message_class("ServerInfoResponse").FromString(hostile.server_info())
    info.table_info[0].current_size = 100
    data: bytes = info.SerializeToString()
    return data


def samples(count: int, first: int = 0) -> bytes:
    """An answer of so many samples, whose values are their keys."""
    return streams.encode_samples(
        streams.Sampled(key, 1.0, 1, 1.0, 100, (np.array(key, np.int64),)) for key in range(first, first + count)
    )


def honest(requests: Requests, _: Any) -> Iterator[bytes]:
    for request in requests:
        yield samples(streams.decode_sample_request(request).samples)


def nothing(requests: Requests, _: Any) -> Iterator[bytes]:
    for _ in requests:
        yield from ()


def empty_answers(requests: Requests, _: Any) -> Iterator[bytes]:
    for _ in requests:
        yield b""


def end_at_once(_: Requests, __: Any) -> Iterator[bytes]:
    yield from ()


def end_after_a_request(requests: Requests, _: Any) -> Iterator[bytes]:
    next(requests)
    yield from ()


def too_many(requests: Requests, _: Any) -> Iterator[bytes]:
    for request in requests:
        yield samples(streams.decode_sample_request(request).samples + 1)


def unasked(requests: Requests, _: Any) -> Iterator[bytes]:
    for request in requests:
        yield samples(streams.decode_sample_request(request).samples)
        yield samples(1)


def garbage(requests: Requests, _: Any) -> Iterator[bytes]:
    next(requests)
    yield b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"
    yield from nothing(requests, _)


def half_an_answer(requests: Requests, _: Any) -> Iterator[bytes]:
    for request in requests:
        yield samples(streams.decode_sample_request(request).samples)[:-7]


def test_the_hostile_server_can_be_honest() -> None:
    """Without this the other tests could fail for reasons of their own."""
    with (
        HostileServer(good_info, sample=honest) as server,
        sampler_of(server.address, "one", 10, samples=95) as sampler,
    ):
        batches = list(sampler)
    assert [batch.size for batch in batches] == [10] * 9 + [5]
    assert all(content == (np.int64(key).tobytes(),) for key, content in contents(batches))


@pytest.mark.parametrize("sample", [too_many, unasked, garbage, half_an_answer])
def test_answers_that_cannot_be_are_wire_errors(sample: hostile.InsertStream) -> None:
    with HostileServer(good_info, sample=sample) as server:
        with sampler_of(server.address, "one", 10, timeout_seconds=20.0) as sampler, pytest.raises(WireError):
            list(sampler)
    assert server.streams == 1


@pytest.mark.parametrize("sample", [nothing, empty_answers])
def test_a_server_that_gives_nothing_stalls_the_learner(sample: hostile.InsertStream) -> None:
    with HostileServer(good_info, sample=sample) as server:
        with sampler_of(server.address, "one", 10, timeout_seconds=1.0) as sampler:
            with pytest.raises(Stalled, match=r"no batch within 1 s .*gave no sample on its stream"):
                list(sampler)
    assert 1 < server.streams < 10


@pytest.mark.parametrize("sample", [end_at_once, end_after_a_request])
def test_streams_that_always_end_early_stall_the_learner(sample: hostile.InsertStream) -> None:
    with HostileServer(good_info, sample=sample) as server:
        with sampler_of(server.address, "one", 10, timeout_seconds=0.7) as sampler:
            with pytest.raises(Stalled, match=r"streams that ended without a sample: \d+.*it ended the stream"):
                list(sampler)
    assert 1 < server.streams < 60  # the pauses grow: no storm of attempts


def test_a_stream_that_ends_after_every_answer_is_slow_but_no_fault() -> None:
    def answer_once(requests: Requests, _: Any) -> Iterator[bytes]:
        yield samples(min(7, streams.decode_sample_request(next(requests)).samples))

    with HostileServer(good_info, sample=answer_once) as server:
        with sampler_of(server.address, "one", 10, samples=95) as sampler:
            assert sum(batch.size for batch in sampler) == 95
            assert sampler.reconnects >= 13


@pytest.mark.parametrize("seed", range(5))
def test_damaged_answers_are_values_or_errors_of_ours(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def damaged(requests: Requests, _: Any) -> Iterator[bytes]:
        for request in requests:
            data = bytearray(samples(streams.decode_sample_request(request).samples))
            data[int(rng.integers(len(data)))] = int(rng.integers(256))
            yield bytes(data)

    with HostileServer(good_info, sample=damaged) as server:
        with sampler_of(server.address, "one", 10, samples=2000, timeout_seconds=1.0) as sampler:
            end = time.monotonic() + 30
            with pytest.raises(Rlds2ReverbError):
                while time.monotonic() < end:
                    next(sampler)


def test_a_server_that_has_no_sample_streams_is_named() -> None:
    with HostileServer(good_info) as server, sampler_of(server.address, "one", 10) as sampler:
        with pytest.raises(TransportError, match="sampling: UNIMPLEMENTED"):
            next(sampler)


def test_another_server_behind_the_address_without_the_table_ends_the_sampling() -> None:
    answers = iter([hostile.server_info(state_id=1), hostile.server_info(state_id=1)])
    other = hostile.server_info("another", state_id=2)
    with HostileServer(lambda _: next(answers, other), sample=end_after_a_request) as server:
        with sampler_of(server.address, "one", 10) as sampler, pytest.raises(ServerRestarted, match='no table "one"'):
            next(sampler)


def test_nonsense_about_the_tables_while_sampling_is_an_error_of_ours() -> None:
    answers = iter([good_info(), good_info()])
    with HostileServer(lambda _: next(answers, b"\xff" * 9), sample=nothing) as server:
        with sampler_of(server.address, "one", 10, timeout_seconds=5.0) as sampler, pytest.raises(Rlds2ReverbError):
            next(sampler)
