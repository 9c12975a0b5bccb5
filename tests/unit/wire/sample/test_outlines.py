"""What an outline says of a response is what protobuf reads there."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import WireError
from rlds2reverb.wire.sample import stream as module
from rlds2reverb.wire.sample.batches import BatchBuilder
from rlds2reverb.wire.sample.stream import outlines
from rlds2reverb.wire.schema import message_class
from tests.unit.wire import mutants
from tests.unit.wire.sample import responses
from tests.unit.wire.sample.reference import SlowBuilder, bits
from tests.unit.wire.sample.test_batches import built, outcome_or_none


@pytest.fixture(autouse=True)
def all_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGE", 0)


@given(responses.streams())
def test_entries_are_those_of_protobuf(messages: list[bytes]) -> None:
    for message in messages:
        found = outlines(message)
        assert found is not None
        assert list(map(parts, found)) == list(
            map(parts, message_class("SampleStreamResponse").FromString(message).entries)
        )


@given(responses.streams(), st.integers(1, 12), responses.ARENA_BYTES)
def test_batches_are_those_of_the_reference(messages: list[bytes], batch_size: int, arena_bytes: int) -> None:
    expected = built(SlowBuilder(batch_size), messages)
    assert list(map(bits, built(BatchBuilder(batch_size, arena_bytes), messages))) == list(map(bits, expected))


@given(st.data())
def test_broken_responses_are_refused_or_read_as_the_reference_reads_them(data: st.DataObject) -> None:
    messages = data.draw(responses.streams(4))
    broken = [data.draw(mutants.mutated([message])) if data.draw(st.booleans()) else message for message in messages]
    outcome = outcome_or_none(BatchBuilder(2, 1 << 16), broken, WireError)
    expected = outcome_or_none(SlowBuilder(2), broken, WireError, DecodeError)
    assert outcome == expected or None in (outcome, expected)


def test_small_entries_are_left_to_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGE", 4)
    response = message_class("SampleStreamResponse")(entries=[{"end_of_sequence": True}])
    assert outlines(response.SerializeToString()) is None


def parts(entry: Any) -> Any:
    return entry.HasField("info"), entry.info, list(entry.data), entry.end_of_sequence
