"""Records of a checkpoint's files: any bytes are records or one error, and what comes from outside is bounded."""

from __future__ import annotations

import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_server.errors import CheckpointError
from replay_server.files import read_records

from rlds2reverb.stored.records import RecordError, inflate, records_of


def record(data: bytes, length: int | None = None) -> bytes:
    return (len(data) if length is None else length).to_bytes(8, "little") + b"sum_" + data + b"sum_"


def stream(*data: bytes) -> bytes:
    return zlib.compress(b"".join(map(record, data)))


def cut(data: bytes, size: int) -> Iterator[bytes]:
    """In pieces of `size` bytes."""
    return (data[start : start + size] for start in range(0, len(data), size))


def found(compressed: bytes, size: int = 1 << 20) -> list[bytes] | None:
    """The records; None for the reader's own error, which is the only one allowed."""
    try:
        return list(records_of(inflate(cut(compressed, size)), 256 << 20))
    except RecordError:
        return None


RECORDS = st.lists(st.binary(max_size=40), max_size=8)


@given(RECORDS, st.integers(1, 50))
def test_records_are_what_was_written_however_their_bytes_come(data: list[bytes], size: int) -> None:
    assert found(stream(*data), size) == data


@given(RECORDS, st.integers(1, 50))
def test_a_stream_that_ends_in_the_middle_is_an_error_at_every_place(data: list[bytes], size: int) -> None:
    whole = stream(*data)
    assert found(b"") == []  # nothing was written at all
    assert {end for end in range(1, len(whole)) if found(whole[:end], size) is not None} == set()


@given(st.binary(max_size=200), st.integers(1, 50))
def test_any_bytes_are_records_or_the_readers_error(data: bytes, size: int) -> None:
    found(data, size)
    found(zlib.compress(data), size)


@given(RECORDS, st.integers(0, 7), st.integers(1, 255))
def test_a_damaged_stream_is_no_other_data(data: list[bytes], bit: int, place: int) -> None:
    whole = bytearray(stream(*data))
    whole[place % len(whole)] ^= 1 << bit
    assert found(bytes(whole)) in (None, data)


def test_the_reader_knows_no_checkpoints() -> None:
    with pytest.raises(RecordError, match=r"^ends in the middle, after 3 bytes$") as caught:
        list(inflate([stream(b"good")[:3]]))
    assert not isinstance(caught.value, CheckpointError)


def test_an_error_of_a_checkpoints_file_names_it_once(tmp_path: Path) -> None:
    path = tmp_path / "items.tfrecord"
    for damaged, reason in (
        (b"no zlib", r"damaged \(.*\)"),
        (stream(b"good")[:-1], r"ends in the middle, after \d+ bytes"),
        (zlib.compress(record(b"good")[:-1]), "its last record ends in the middle"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=rf"^{path}: {reason}$") as caught:
            list(read_records(path))
        assert isinstance(caught.value.__cause__, RecordError)


@pytest.mark.parametrize("length", [1 << 40, (1 << 64) - 1, (256 << 20) + 1])
def test_an_absurd_length_ends_the_reading_at_once(tmp_path: Path, length: int) -> None:
    path = tmp_path / "items.tfrecord"
    bomb = zlib.compress(record(b"good") + record(bytes(64 << 20), length))
    path.write_bytes(bomb)
    records = read_records(path)
    assert next(records) == b"good"
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=rf"items.tfrecord: record 1 says that it has {length:,} bytes"):
            next(records)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_long_records_are_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "items.tfrecord"
    wanted = [b"", b"x" * (3 << 20), b"y"]
    path.write_bytes(stream(*wanted))
    assert list(read_records(path)) == wanted
