"""The codec: byte-exact where both directions exist, and any bytes give a value or a WireError."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlds2reverb.errors import WireError
from rlds2reverb.protobuf import bytes_field, varint
from rlds2reverb.specs import ArraySpec, named_tuple_type
from rlds2reverb.views.trajectory import SequenceView
from rlds2reverb.wire import codec
from rlds2reverb.wire.codec import NUMPY_DTYPES, STRING, as_wire_array, encode_signature, numpy_dtype, wire_number
from rlds2reverb.wire.insert import RequestBuilder, RequestLimits
from rlds2reverb.wire.messages import Chunk, Item, ItemColumn, RateLimiter, Slice
from rlds2reverb.wire.schema import message_class
from tests.support import strategies
from tests.support.raising import outcome_of
from tests.support.wire import mutants
from tests.support.wire.insert_cuts import Encoder

DECODERS: dict[str, Callable[[bytes], Any]] = {
    "InsertStreamRequest": codec.decode_insert_request,
    "ServerInfoResponse": codec.decode_server_info,
    "InsertStreamResponse": codec.decode_confirmed_keys,
}

KEY = 2**63 + 5
KEY_TEXT = "85808080808080808001"
SPEC = named_tuple_type("Trajectory", ("reward", "observation"))(
    ArraySpec((None,), np.dtype(np.float32), "r"), {"b": ArraySpec((None, 2), np.dtype(object)), "a": ()}
)


def requests_of_an_episode() -> list[bytes]:
    columns: strategies.Columns = {"observation/text": (np.dtype(object), (2,)), "action": (np.dtype(np.float32), (3,))}
    cut = SequenceView(3).cut(strategies.episode(np.random.default_rng(3), 9, columns))
    builder = RequestBuilder(RequestLimits(items=3))
    encoded = Encoder(["one", "two"], 1, chunk_length=4).encode_cut("episode", cut)
    return [message for request in (*builder.add(encoded), *builder.flush()) for message in request.messages]


def server_info() -> bytes:
    limiter = {"samples_per_insert": 8.0, "min_diff": -1.0, "max_diff": 1.0, "min_size_to_sample": 3}
    table = {
        "name": "replay",
        "sampler_options": {"prioritized": {"priority_exponent": 0.8}},
        "remover_options": {"fifo": True},
        "max_size": 100,
        "current_size": 7,
        "max_times_sampled": -1,
        "rate_limiter_info": {**limiter, "insert_stats": {"completed": 9}, "sample_stats": {"completed": 8}},
        "signature": encode_signature(SPEC),
        "num_episodes": 4,
        "num_deleted_episodes": 5,
        "num_unique_samples": 6,
    }
    state = {"high": 1, "low": 2}
    tables = [table, {"name": "plain"}]
    return message_class("ServerInfoResponse")(tables_state_id=state, table_info=tables).SerializeToString()


def confirmed(keys: list[int]) -> bytes:
    return message_class("InsertStreamResponse")(keys=keys).SerializeToString()


VALID: dict[str, list[bytes]] = {
    "InsertStreamRequest": requests_of_an_episode(),
    "ServerInfoResponse": [server_info()],
    "InsertStreamResponse": [confirmed([2**63, 2**64 - 1, KEY]), confirmed([1, KEY, 0])],
}


# Confirmations.

# (keys, bytes): those of the server, then other forms that the protocol allows.
CONFIRMED = [
    ([], ""),
    ([KEY], f"0a0a {KEY_TEXT}"),
    ([KEY, 2**64 - 1], f"0a14 {KEY_TEXT} ffffffffffffffffff01"),
    ([1], "0a01 01"),
    ([0, 300], "0a03 00ac02"),
    ([1, KEY], f"0a0b 01 {KEY_TEXT}"),
    ([2**63 - 1], "0a09 ffffffffffffffff7f"),
]
OTHER_FORMS = [
    ([], "0a00"),
    ([KEY], f"08 {KEY_TEXT}"),
    ([KEY, KEY], f"0a0a {KEY_TEXT} 0a0a {KEY_TEXT}"),
    ([KEY, 1], f"0a0a {KEY_TEXT} 0801"),
    ([KEY], f"0a0a {KEY_TEXT} 1005"),  # and a field that is not known
    ([KEY], f"0a8a00 {KEY_TEXT}"),  # a length with padding
]


@pytest.mark.parametrize(("keys", "text"), CONFIRMED)
def test_confirmed_keys_have_the_bytes_of_the_table_both_ways(keys: list[int], text: str) -> None:
    data = bytes.fromhex(text)
    assert confirmed(keys) == data
    found = codec.decode_confirmed_keys(data)
    assert found.dtype == np.uint64
    assert found.tolist() == keys


@pytest.mark.parametrize(("keys", "text"), OTHER_FORMS)
def test_confirmed_keys_are_read_in_every_form(keys: list[int], text: str) -> None:
    assert codec.decode_confirmed_keys(bytes.fromhex(text)).tolist() == keys


keys_lists = st.lists(st.one_of(st.integers(2**63, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=300)


@given(st.one_of(keys_lists, st.lists(st.integers(2**63, 2**64 - 1), max_size=300)))
def test_any_confirmed_keys_are_read(keys: list[int]) -> None:
    assert codec.decode_confirmed_keys(confirmed(keys)).tolist() == keys


@given(st.lists(st.integers(2**63, 2**64 - 1), min_size=1, max_size=20), st.data())
def test_confirmed_keys_that_are_cut_off_are_a_wire_error(keys: list[int], data: st.DataObject) -> None:
    whole = confirmed(keys)
    with pytest.raises(WireError):
        codec.decode_confirmed_keys(whole[: data.draw(st.integers(1, len(whole) - 1))])


# ServerInfo.


UPDATES = st.lists(st.tuples(st.integers(0, 2**64 - 1), st.floats(0, allow_infinity=False)), max_size=20)


@given(st.text(max_size=200), UPDATES)
def test_updates_of_priorities_are_what_protobuf_reads(table: str, updates: list[tuple[int, float]]) -> None:
    keys, priorities = (
        np.array([key for key, _ in updates], np.uint64),
        np.array([priority for _, priority in updates], np.float64),
    )
    data = codec.encode_update_priorities_request(table, keys, priorities)
    found = message_class("MutatePrioritiesRequest").FromString(data)
    assert found.table == table
    assert [(update.key, update.priority) for update in found.updates] == updates
    assert not found.delete_keys
    assert codec.encode_update_priorities_request(table, keys[::-1], priorities[::-1].astype(">f8")) == (
        codec.encode_update_priorities_request(table, keys[::-1].copy(), priorities[::-1].copy())
    )


def test_asking_for_server_info_takes_no_bytes() -> None:
    assert message_class("ServerInfoRequest")().SerializeToString() == b""


def test_server_info_is_read_field_by_field() -> None:
    info = codec.decode_server_info(server_info())
    assert info.state_id == (1 << 64) + 2
    assert list(info.tables) == ["replay", "plain"]
    table = info.tables["replay"]
    assert (table.name, table.sampler, table.remover) == ("replay", "prioritized(0.8)", "fifo")
    assert (table.max_size, table.current_size, table.max_times_sampled) == (100, 7, -1)
    assert table.rate_limiter == RateLimiter(8.0, -1.0, 1.0, 3, 9, 8)
    assert table.signature == SPEC
    assert (table.episodes, table.deleted_episodes, table.unique_samples) == (4, 5, 6)


def test_a_table_may_have_no_signature() -> None:
    assert codec.decode_server_info(server_info()).tables["plain"].signature is None


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"fifo": True}, "fifo"),
        ({"lifo": True}, "lifo"),
        ({"uniform": True}, "uniform"),
        ({"prioritized": {"priority_exponent": 1.0}}, "prioritized(1)"),
        ({"heap": {"min_heap": True}}, "min_heap"),
        ({"heap": {}}, "max_heap"),
        ({}, "unknown"),
    ],
)
def test_a_distribution_is_named_as_in_a_config(options: dict[str, bool | dict[str, bool | float]], word: str) -> None:
    table = {"name": "t", "sampler_options": options, "remover_options": options}
    data = message_class("ServerInfoResponse")(table_info=[table]).SerializeToString()
    found = codec.decode_server_info(data).tables["t"]
    assert (found.sampler, found.remover) == (word, word)


# Insert requests.


def test_an_insert_request_is_read_field_by_field() -> None:
    tensor = bytes_field(1, bytes.fromhex("0806 120412020802 2204 02040102"))  # int8 [1, 2]
    chunk = bytes.fromhex(f"08 {KEY_TEXT} 1206 080710031804") + bytes_field(5, tensor)
    piece = bytes_field(1, bytes.fromhex(f"08 {KEY_TEXT} 1000 1802 2000"))
    column = bytes_field(1, piece + bytes.fromhex("1001"))
    item = bytes.fromhex("0809 120174 29") + struct.pack("<d", 1.5) + bytes_field(8, column)
    request = codec.decode_insert_request(bytes_field(1, chunk) + bytes_field(2, item) + bytes.fromhex("1a020102"))
    (found,) = request.chunks
    assert (found.key, found.episode_id, found.start, found.stop) == (KEY, 7, 3, 5)
    assert [(array.dtype, array.tolist()) for array in found.tensors] == [(np.dtype(np.int8), [1, 2])]
    assert request.items == (Item(9, "t", 1.5, (ItemColumn((Slice(KEY, 0, 2, 0),), squeeze=True),)),)
    assert request.keep_chunk_keys == (1, 2)


def test_delta_encoding_is_refused() -> None:
    data = message_class("InsertStreamRequest")(chunks=[{"chunk_key": 3, "delta_encoded": True}]).SerializeToString()
    with pytest.raises(WireError, match="chunk 3: delta encoding is not supported"):
        codec.decode_insert_request(data)


# Items and their chunks.

CHUNKS = {
    1: Chunk(1, 0, 0, 3, (np.arange(3), np.array([b"a\x00", b"b", b""], object), np.zeros((3, 0, 2)))),
    2: Chunk(2, 0, 3, 5, (np.arange(3, 5), np.array([b"c", b"d"], object), np.zeros((2, 0, 2)))),
    3: Chunk(3, 0, 0, 1, (np.array(5), np.zeros((1, 2)), np.zeros(1, np.int8))),
}


def value(*slices: Slice, squeeze: bool = False) -> np.ndarray:
    (found,) = codec.item_values(Item(9, "t", 1.0, (ItemColumn(slices, squeeze),)), CHUNKS)
    return found


def test_the_slices_of_a_column_are_joined_in_order() -> None:
    assert value(Slice(1, 1, 2, 0), Slice(2, 0, 2, 0)).tolist() == [1, 2, 3, 4]
    assert value(Slice(2, 1, 1, 0), Slice(1, 0, 1, 0)).tolist() == [4, 0]
    assert value(Slice(1, 2, 1, 1), Slice(2, 0, 1, 1)).tolist() == [b"", b"c"]
    assert value(Slice(1, 2, 1, 2), Slice(2, 0, 1, 2)).shape == (2, 0, 2)


def test_a_squeezed_column_loses_its_first_axis_only() -> None:
    number = value(Slice(2, 1, 1, 0), squeeze=True)
    assert (number.shape, number.dtype, int(number)) == ((), np.dtype(int), 4)
    assert value(Slice(1, 0, 1, 2), squeeze=True).shape == (0, 2)


def test_squeezed_text_stays_an_array_of_bytes_as_it_is() -> None:
    text = value(Slice(1, 0, 1, 1), squeeze=True)
    assert (text.shape, text.dtype, text.item()) == ((), np.dtype(object), b"a\x00")


@pytest.mark.parametrize(
    ("slices", "squeeze", "message"),
    [
        ([Slice(7, 0, 1, 0)], False, "chunk or column that is not there"),
        ([Slice(1, 0, 1, 3)], False, "chunk or column that is not there"),
        ([Slice(1, 0, 1, -1)], False, "chunk or column that is not there"),
        ([Slice(1, 0, 4, 0)], False, "outside the chunk's 3 rows"),
        ([Slice(1, 3, 1, 0)], False, "outside the chunk's 3 rows"),
        ([Slice(1, -1, 2, 0)], False, "outside the chunk's 3 rows"),
        ([Slice(1, 0, 0, 0)], False, "outside the chunk's 3 rows"),
        ([Slice(1, 2, -1, 0)], False, "outside the chunk's 3 rows"),
        ([Slice(3, 0, 1, 0)], False, "outside the chunk's 0 rows"),  # a tensor without a first axis
        ([], False, "a column without slices"),
        ([], True, "a column without slices"),
        ([Slice(1, 0, 2, 0)], True, "squeezed column of 2 rows"),
        ([Slice(1, 0, 1, 0), Slice(3, 0, 1, 1)], False, "pieces of unequal"),
        ([Slice(1, 0, 1, 0), Slice(3, 0, 1, 2)], False, "pieces of unequal"),
        ([Slice(1, 0, 1, 0), Slice(1, 0, 1, 1)], False, "pieces of unequal"),
    ],
)
def test_an_item_that_points_nowhere_is_a_wire_error(slices: list[Slice], squeeze: bool, message: str) -> None:
    with pytest.raises(WireError, match=f"item 9: .*{message}"):
        value(*slices, squeeze=squeeze)


# Any bytes.


def value_or_wire_error(name: str, data: bytes) -> None:
    found = outcome_of(WireError, lambda: DECODERS[name](data))
    if isinstance(found, WireError):
        assert str(found)
    elif name == "InsertStreamRequest":
        values_or_wire_error(found)


def values_or_wire_error(request: Any) -> None:
    chunks = {chunk.key: chunk for chunk in request.chunks}
    for item in request.items:
        try:
            codec.item_values(item, chunks)
        except WireError:
            continue


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.binary(max_size=200))
@settings(max_examples=200)
@example(data=b"")
@example(data=b"\x0a")
@example(data=b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")
def test_any_bytes_are_a_value_or_a_wire_error(name: str, data: bytes) -> None:
    value_or_wire_error(name, data)


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.data())
@settings(max_examples=200)
def test_a_broken_message_is_a_value_or_a_wire_error(name: str, data: st.DataObject) -> None:
    value_or_wire_error(name, data.draw(mutants.mutated(VALID[name])))


@pytest.mark.parametrize("name", DECODERS)
def test_every_prefix_is_a_value_or_a_wire_error(name: str) -> None:
    for message in VALID[name]:
        for size in range(len(message) + 1):
            value_or_wire_error(name, message[:size])


@pytest.mark.parametrize("name", DECODERS)
def test_every_flipped_bit_is_a_value_or_a_wire_error(name: str) -> None:
    message = min(VALID[name], key=len)
    for at in range(len(message)):
        for bit in range(8):
            value_or_wire_error(name, message[:at] + bytes([message[at] ^ 1 << bit]) + message[at + 1 :])


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.data())
@settings(max_examples=40)
def test_any_message_of_the_schema_is_a_value_or_a_wire_error(name: str, data: st.DataObject) -> None:
    value_or_wire_error(name, data.draw(mutants.messages(name, depth=5)).SerializeToString())


def nested(field_of_list: bytes, levels: int) -> bytes:
    """A StructuredValue: lists in lists."""
    value = b"\x9a\x03\x00"
    for _ in range(levels):
        inner = bytes_field(1, value)
        value = field_of_list + varint(len(inner)) + inner
    return value


def info_with_signature(signature: bytes) -> bytes:
    return bytes_field(2, bytes_field(6, signature))


@pytest.mark.parametrize("levels", [50, 64, 65, 100, 5000])
def test_a_deeply_nested_signature_is_a_wire_error(levels: int) -> None:
    with pytest.raises(WireError):
        codec.decode_server_info(info_with_signature(nested(b"\x9a\x03", levels)))


def test_a_signature_nested_as_deep_as_people_do_is_read() -> None:
    table = codec.decode_server_info(info_with_signature(nested(b"\x9a\x03", 20))).tables[""]
    depth, level = 0, table.signature
    while level:
        (level,) = level
        depth += 1
    assert depth == 20


@pytest.mark.parametrize("error", [DecodeError("truncated"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad byte")])
def test_each_error_of_a_protobuf_parser_is_a_wire_error(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: bytes) -> None:
        raise error

    monkeypatch.setattr(codec, "message_class", lambda _: SimpleNamespace(FromString=refuse))
    with pytest.raises(WireError, match="ServerInfoResponse: 3 bytes that are no such message") as raised:
        codec.decode_server_info(b"abc")
    assert raised.value.__cause__ is error


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\xff\xff\xff\xff\x07",  # a chunk of 2 GiB that does not come
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x12\x05\x12\x02\xff\xfe\x00",  # a table name that is not UTF-8
        b"\xff" * 30,
        b"\x0b\x0b\x0b\x0b",  # groups that do not end
        b"\x0e",  # a wire type that does not exist
    ],
)
def test_broken_protobuf_is_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError, match="no such message"):
        codec.decode_insert_request(data)


# Every dtype has the number that TensorFlow gives it, and comes back from it.

# types.proto of TensorFlow 2.15.
NUMBERS = [
    ("float32", 1), ("float64", 2), ("int32", 3), ("uint8", 4), ("int16", 5), ("int8", 6), ("object", 7),
    ("complex64", 8), ("int64", 9), ("bool", 10), ("bfloat16", 14), ("uint16", 17), ("complex128", 18),
    ("float16", 19), ("uint32", 22), ("uint64", 23),
]  # fmt: skip


def named(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


@pytest.mark.parametrize(("name", "number"), NUMBERS)
def test_a_dtype_and_its_number_stand_for_each_other(name: str, number: int) -> None:
    assert wire_number(named(name)) == number
    assert numpy_dtype(number) == named(name)


def test_the_table_lists_every_dtype_that_reverb_stores() -> None:
    assert {number for _, number in NUMBERS} == set(NUMPY_DTYPES)
    assert set(NUMPY_DTYPES.values()) == set(strategies.DTYPES)


@pytest.mark.parametrize("kind", [">f4", ">f8", ">i2", ">u8", ">c16", ">f2", "<i4", "=i4", "longlong", "intc"])
def test_byte_order_and_aliases_do_not_matter(kind: str) -> None:
    dtype = np.dtype(kind)
    assert numpy_dtype(wire_number(dtype)) == dtype.newbyteorder("=")


@pytest.mark.parametrize("kind", ["S5", "U7", "S", "U", "O"])
def test_every_kind_of_text_is_a_string(kind: str) -> None:
    assert wire_number(np.dtype(kind)) == STRING


@pytest.mark.parametrize(
    "dtype",
    [
        *map(np.dtype, ("datetime64[s]", ">M8[ns]", "timedelta64[ms]", "V8", "longdouble", "clongdouble")),
        np.dtype([("x", "f4")]),
        np.dtype(ml_dtypes.float8_e4m3fn),
        np.dtype(ml_dtypes.int4),
    ],
    ids=str,
)
def test_a_dtype_that_reverb_cannot_store_is_refused_by_name(dtype: np.dtype) -> None:
    with pytest.raises(WireError, match="Reverb cannot store it; convert the column to one of float32") as error:
        wire_number(dtype)
    assert str(dtype) in str(error.value)


@pytest.mark.parametrize("number", [0, -1, 11, 12, 13, 15, 16, 20, 21, 24, 101, 2**31 - 1])
def test_a_number_that_reverb_does_not_store_is_refused(number: int) -> None:
    with pytest.raises(WireError, match=f"tensor dtype number {number}: expected one of"):
        numpy_dtype(number)


@pytest.mark.parametrize("dtype", strategies.DTYPES, ids=str)
def test_a_column_that_fits_the_wire_is_not_copied(dtype: np.dtype) -> None:
    column = strategies.array(np.random.default_rng(0), dtype, (4, 3))
    assert as_wire_array(column) is column


@pytest.mark.parametrize("dtype", strategies.DTYPES, ids=str)
def test_a_column_out_of_order_is_copied_to_c_order(dtype: np.dtype) -> None:
    column = strategies.array(np.random.default_rng(0), dtype, (8, 3))
    for view in (column[::2], column[::-1], np.asfortranarray(column), column[:, 1:]):
        out = as_wire_array(view)
        assert out.flags.c_contiguous
        assert out.dtype == dtype
        assert out.tolist() == view.tolist()


@pytest.mark.parametrize("kind", [">f4", ">i8", ">u2", ">c8"])
def test_a_big_endian_column_is_swapped(kind: str) -> None:
    column = np.arange(6).astype(kind).reshape(2, 3)
    out = as_wire_array(column)
    assert out.dtype == np.dtype(kind).newbyteorder("<")
    assert out.tobytes() == column.astype(np.dtype(kind).newbyteorder("<")).tobytes()


@pytest.mark.parametrize("kind", ["S", "U"])
def test_fixed_width_text_becomes_objects(kind: str) -> None:
    out = as_wire_array(np.array([["a", "bcd"]], kind))
    assert out.dtype == object
    assert [text if isinstance(text, bytes) else text.encode() for text in out.ravel()] == [b"a", b"bcd"]
