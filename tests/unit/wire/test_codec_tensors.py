"""Tensors: byte-exact both ways, for every dtype and shape; broken ones are a WireError and cost no memory."""

from __future__ import annotations

import contextlib
import tracemalloc
from types import SimpleNamespace
from typing import Any

import cramjam
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlds2reverb.errors import WireError
from rlds2reverb.protobuf import bytes_field, varint
from rlds2reverb.wire.codec import (
    as_wire_array,
    content_bytes,
    decode_tensor,
    decompress,
    literal_prefix,
    tensor_header,
)
from rlds2reverb.wire.schema import message_class
from tests.support import strategies
from tests.support.raising import outcome_of
from tests.support.wire import insert_cuts as cuts
from tests.support.wire import mutants
from tests.support.wire.insert_replay import assert_same, wire_form


def encoded(array: np.ndarray) -> bytes:
    return tensor_header(array.dtype, array.shape) + bytes_field(4, content_bytes(array))


def decoded(data: bytes) -> np.ndarray:
    return decode_tensor(message_class("Tensor").FromString(data))


def tensor(number: int, shape: list[int] | tuple[int, ...], content: bytes) -> SimpleNamespace:
    """A Tensor message of any shape, without the limits of a real one's parser."""
    dims = [SimpleNamespace(size=size) for size in shape]
    return SimpleNamespace(dtype=number, tensor_shape=SimpleNamespace(dim=dims), tensor_content=content)


TABLE = [
    (np.float32(1.5), "0801 1200 2206 040c0000c03f"),
    (np.array([1, -1], np.int8), "0806 120412020802 2204 020401ff"),
    (np.array([[True], [False]]), "080a 12081202080212020801 2204 02040100"),
    (np.zeros((3, 0), np.float64), "0802 12081202080312020800 220100"),
    (np.array([b"ab", b""], object), "0807 120412020802 2204 02006162"),
    (np.array(b"x", object), "0807 1200 2202 0178"),
    (np.array([], object), "0807 120412020800 2200"),
    (np.array(2**64 - 1, np.uint64), "0817 1200 220a 081cffffffffffffffff"),
]


@pytest.mark.parametrize(("array", "text"), TABLE, ids=lambda value: str(value)[:12])
def test_a_tensor_has_the_bytes_of_the_table_both_ways(array: np.float32 | np.ndarray, text: str) -> None:
    array = np.asarray(array)
    assert encoded(array).hex() == text.replace(" ", "")
    assert_same(decoded(bytes.fromhex(text)), array)


@pytest.mark.parametrize("dtype", strategies.DTYPES, ids=str)
@given(strategies.shapes(), st.integers(0, 2**32 - 1))
@settings(max_examples=20)
@example((), 0)
@example((0,), 0)
@example((2, 0, 3), 0)
def test_every_dtype_and_shape_comes_back(dtype: np.dtype, shape: tuple[int, ...], seed: int) -> None:
    array = strategies.array(np.random.default_rng(seed), dtype, shape)
    assert_same(decoded(encoded(array)), array)


@pytest.mark.parametrize("dtype", strategies.DTYPES, ids=str)
@pytest.mark.parametrize("number", range(6))
def test_every_memory_layout_comes_back_in_native_order(dtype: np.dtype, number: int) -> None:
    layout = (cuts.TEXT_LAYOUTS if dtype == object else cuts.LAYOUTS)[number]
    array = cuts.laid_out(np.random.default_rng(0), dtype, (5, 3), layout)
    assert_same(decoded(encoded(as_wire_array(array))), wire_form(array))


# 1 and 60 end the first form of the tag; 61, 257 and 65537 are the first with one, two and three more bytes.
@pytest.mark.parametrize(
    ("size", "text"),
    [
        (1, "01 00"),
        (59, "3b e8"),
        (60, "3c ec"),
        (61, "3d f03c"),
        (62, "3e f03d"),
        (255, "ff01 f0fe"),
        (256, "8002 f0ff"),
        (257, "8102 f40001"),
        (65535, "ffff03 f4feff"),
        (65536, "808004 f4ffff"),
        (65537, "818004 f8000001"),
        (1 << 24, "80808008 f8ffffff"),
        ((1 << 24) + 1, "81808008 fc00000001"),
    ],
)
def test_snappy_reads_the_literal_block(size: int, text: str) -> None:
    assert literal_prefix(size).hex() == text.replace(" ", "")
    raw = np.arange(size, dtype=np.uint8).tobytes()
    block = literal_prefix(size) + raw
    assert bytes(cramjam.snappy.decompress_raw(block)) == raw
    assert decompress(block, size) == raw


@given(st.integers(1, 70_000))
def test_a_literal_block_of_any_size_is_read(size: int) -> None:
    assert decompress(literal_prefix(size) + bytes(size), size) == bytes(size)


@given(st.binary(max_size=2000), st.integers(0, 40))
def test_a_compressed_block_is_read(raw: bytes, repeats: int) -> None:
    raw *= repeats
    assert decompress(bytes(cramjam.snappy.compress_raw(raw)), len(raw)) == raw


def test_the_best_compressible_content_is_still_read() -> None:
    array = np.zeros(5_000_000, np.uint8)
    assert len(encoded(array)) * 20 < array.size
    assert_same(decoded(encoded(array)), array)


@given(st.lists(st.one_of(st.binary(max_size=200), st.text(max_size=60)), max_size=6))
def test_text_is_utf8_and_comes_back_as_bytes(texts: list[bytes | str]) -> None:
    array = np.empty(len(texts), object)
    array[:] = texts
    expected = [text if isinstance(text, bytes) else text.encode() for text in texts]
    assert content_bytes(array) == b"".join(varint(len(text)) for text in expected) + b"".join(expected)
    assert decoded(encoded(array)).tolist() == expected


@pytest.mark.parametrize("value", [None, 5, ["a"], bytearray(b"a")], ids=str)
def test_an_object_that_is_no_text_is_refused(value: Any) -> None:
    array = np.empty(1, object)
    array[0] = value
    with pytest.raises(WireError, match=f"expected bytes or str, got {type(value).__name__}"):
        content_bytes(array)


def test_text_without_a_utf8_form_is_refused() -> None:
    with pytest.raises(WireError, match="UTF-8"):
        content_bytes(np.array(["\ud800"], object))


def test_a_decoded_tensor_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        decoded(encoded(np.zeros(3)))[0] = 1


@pytest.mark.parametrize(
    ("number", "shape", "content", "message"),
    [
        (11, (), b"", "tensor dtype number 11"),
        (1, (-1,), b"\x00", "no free sizes"),
        (1, (2, -5), b"\x00", "no free sizes"),
        (1, (2,), b"\x04\x0c\x00\x00\x00\x00", "snappy block of 4 bytes, the shape and dtype need 8"),
        (1, (), b"", "snappy block of 0 bytes"),
        (1, (0,), b"", "not a snappy block"),
        (1, (1,), b"\x04\x0c\x00", "not a snappy block"),
        (1, (1,), b"\x04\xff\xff", "not a snappy block"),
        (1, (1,), b"\xff" * 10, "not a snappy block"),
        (1, (2**62, 2**62), b"\x00", "more than 2147483648"),
        (2, (2**28 + 1,), b"\x00", "more than 2147483648"),
        (1, (0, 2**62, 2**62), b"\x00", "shape"),
        (1, (2**62, 0), b"\x00", "shape"),
        (1, (0,) * 200, b"\x00", "shape"),
        (1, (1,) * 200, b"\x04\x0c\x00\x00\x00\x00", "shape"),
        (1, (2**29 - 1,), b"\xfc\xff\xff\xff\x07\x00", "snappy"),
        (4, (2**31,), b"\x80\x80\x80\x80\x08", "snappy"),
        (7, (2**62,), b"\x01a", "cannot be in 2 bytes"),
        (7, (0, 2**62, 2**62), b"", "shape"),
        (7, (-1,), b"", "no free sizes"),
        (7, (2,), b"\x05\x05abc", "lengths say 12 bytes, content has 5"),
        (7, (1,), b"\x01ab", "lengths say 2 bytes, content has 3"),
        (7, (1,), b"\x80", "a length that does not end"),
        (7, (2,), b"\x00\x80", "a length that does not end"),
        (7, (1,), b"\x80" * 11, "a length that does not end"),
        (7, (1,), b"\xff" * 9 + b"\x01", "content has 10"),
        (7, (), b"", "1 texts cannot be in 0 bytes"),
    ],
)
def test_a_hostile_tensor_is_a_wire_error_and_costs_no_memory(
    number: int, shape: tuple[int, ...], content: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 1 << 16
    snappy = cramjam.snappy

    def guarded(block: bytes) -> Any:
        assert snappy.decompress_raw_len(block) <= most, "asked for a huge buffer"
        return snappy.decompress_raw(block)

    spy = SimpleNamespace(decompress_raw=guarded, decompress_raw_len=snappy.decompress_raw_len)
    monkeypatch.setattr("rlds2reverb.wire.codec.cramjam.snappy", spy)
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=message):
            decode_tensor(tensor(number, shape, content))
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=60), st.integers(0, 2**33))
def test_any_block_is_bytes_of_the_size_or_a_wire_error(block: bytes, size: int) -> None:
    with contextlib.suppress(WireError):
        assert len(decompress(block, size)) == size


VALID = [encoded(np.asarray(array)) for array, _ in TABLE] + [
    encoded(strategies.array(np.random.default_rng(1), dtype, (3, 2))) for dtype in strategies.DTYPES
]


def value_or_wire_error(message: Any) -> None:
    array = outcome_of(WireError, lambda: decode_tensor(message))
    assert isinstance(array, WireError) or array.shape == tuple(dim.size for dim in message.tensor_shape.dim)


@given(mutants.mutated(VALID))
@settings(max_examples=200)
def test_a_broken_tensor_is_a_value_or_a_wire_error(data: bytes) -> None:
    try:
        message = message_class("Tensor").FromString(data)
    except (DecodeError, UnicodeDecodeError):
        return
    value_or_wire_error(message)


@given(mutants.messages("Tensor"))
@settings(max_examples=100)
def test_any_tensor_message_is_a_value_or_a_wire_error(message: Any) -> None:
    value_or_wire_error(message)


contents = st.one_of(st.binary(), st.sampled_from([b"\x00", b"", b"\x01\x00\x01", b"\x04\x0c1234", b"\x011"]))


@given(st.sampled_from([1, 7, 10]), st.lists(st.sampled_from([0, 1, 2, 2**31, 2**62, -1]), max_size=70), contents)
def test_any_shape_is_a_value_or_a_wire_error(number: int, shape: list[int], content: bytes) -> None:
    value_or_wire_error(tensor(number, shape, content))
