"""Chunks: every row of every column is in exactly one, and comes back as it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import cramjam
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlds2reverb.episode import Array
from rlds2reverb.errors import WireError
from rlds2reverb.protobuf import bytes_field
from rlds2reverb.wire import codec
from rlds2reverb.wire.insert import choose_chunk_length, chunks, keys
from rlds2reverb.wire.insert.chunks import ChunkLayout, encode_chunks
from rlds2reverb.wire.messages import Chunk
from rlds2reverb.wire.schema import message_class
from tests.support import strategies
from tests.support.wire import insert_cuts as cuts
from tests.support.wire.insert_replay import assert_same, wire_form


def decoded(data: bytes) -> Chunk:
    (chunk,) = codec.decode_insert_request(data).chunks
    return chunk


def parsed(data: bytes) -> Any:
    (chunk,) = message_class("InsertStreamRequest").FromString(data).chunks
    return chunk


def contents(data: bytes) -> list[bytes]:
    return [tensor.tensor_content for tensor in parsed(data).data.tensors]


def layout_of(
    lengths: Sequence[int], chunk_length: int, seed: int = 0, ids: Sequence[int] | None = None
) -> ChunkLayout:
    numbers = np.array(range(1, 1 + len(lengths)) if ids is None else ids, np.uint64)
    return ChunkLayout.of(lengths, chunk_length, seed, 0, numbers)


LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=5)
"""Rows of episodes."""


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=4),
    st.integers(1, 300),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**40),
)
def test_a_layout_puts_each_row_into_one_chunk(lengths: list[int], chunk_length: int, seed: int, first: int) -> None:
    layout = ChunkLayout.of(lengths, chunk_length, seed, first, np.arange(len(lengths), dtype=np.uint64))
    begin, stop = layout.bounds()
    spans = list(zip(layout.owner.tolist(), begin.tolist(), stop.tolist()))
    assert [(owner, row) for owner, start, end in spans for row in range(start, end)] == [
        (number, row) for number, rows in enumerate(lengths) for row in range(rows)
    ]
    assert all(end - start == chunk_length or end == lengths[owner] for owner, start, end in spans)
    # As items count rows, each row is in the chunk that they look for it in.
    for owner, start in enumerate(layout.starts.tolist()):
        assert all(layout.owner[row // chunk_length] == owner for row in range(start, start + lengths[owner]))
    assert layout.first_rows().tolist() == [sum(lengths[:owner]) + start for owner, start, _ in spans]
    chunk_keys = codec.decode_confirmed_keys(bytes_field(1, layout.key_varints.tobytes()))
    assert chunk_keys.tolist() == keys(seed, np.arange(first, first + layout.count)).tolist()


def test_a_layout_without_rows_has_no_chunks() -> None:
    assert ChunkLayout.of([0], 4, 0).count == 0


@given(st.data(), LENGTHS, cuts.chunk_length(), st.integers(0, 2**63))
@settings(max_examples=60)
def test_chunks_decode_to_the_rows_of_every_column(
    data: st.DataObject, lengths: list[int], chunk_length: int, episode_id: int
) -> None:
    columns = {f"column{n}": data.draw(cuts.columns(sum(lengths))) for n in range(data.draw(st.integers(1, 4)))}
    layout = layout_of(lengths, chunk_length, 7, range(episode_id, episode_id + len(lengths)))
    check_chunks(columns, layout)


def check_chunks(columns: dict[str, Array], layout: ChunkLayout) -> None:
    """The chunks that they are encoded as have the rows, episode by episode."""
    encoded = encode_chunks(columns, layout)
    assert len(encoded) == layout.count
    begin, stop = layout.bounds()
    for number, (field, at) in enumerate(zip(encoded, layout.first_rows())):
        chunk, rows = decoded(field), stop[number] - begin[number]
        assert (chunk.start, chunk.stop) == (begin[number], stop[number])
        assert chunk.episode_id == layout.episode_ids[layout.owner[number]]
        assert chunk.key == int(keys(7, np.array([number]))[0])
        assert len(chunk.tensors) == len(columns)
        for tensor, column in zip(chunk.tensors, columns.values()):
            assert_same(tensor, wire_form(column)[at : at + rows])


@given(
    st.lists(st.integers(1, 9000), min_size=1, max_size=3),
    st.lists(st.integers(1, 20), min_size=1, max_size=3),
    st.integers(1, 9),
    st.booleans(),
)
@settings(max_examples=40)
def test_large_rows_come_back_as_well(
    widths: list[int], lengths: list[int], chunk_length: int, last_is_text: bool
) -> None:
    rng, rows = np.random.default_rng(0), sum(lengths)
    columns = {str(n): rng.integers(0, 256, (rows, width), np.uint8) for n, width in enumerate(widths)}
    if last_is_text:
        columns["text"] = strategies.array(rng, np.dtype(object), (rows, 2))
    check_chunks(columns, layout_of(lengths, chunk_length, 7))


@pytest.mark.parametrize("rows", [1, 126, 127, 128, 129, 20_000])
def test_row_numbers_around_a_wider_varint_are_right(rows: int) -> None:
    layout = ChunkLayout.of([rows], 1, 3)
    found = [decoded(field) for field in encode_chunks({"x": np.arange(rows)}, layout)]
    assert [(chunk.start, chunk.stop) for chunk in found] == [(row, row + 1) for row in range(rows)]
    assert [int(chunk.tensors[0][0]) for chunk in found] == list(range(rows))


@given(st.data(), st.integers(1, 30), cuts.chunk_length())
@settings(max_examples=50)
def test_a_chunk_says_how_many_tensors_and_bytes_it_has(data: st.DataObject, rows: int, chunk_length: int) -> None:
    columns = {f"column{n}": data.draw(cuts.columns(rows)) for n in range(data.draw(st.integers(1, 3)))}
    layout = ChunkLayout.of([rows], chunk_length, 0)
    for field in encode_chunks(columns, layout):
        chunk, tensors = parsed(field), decoded(field).tensors
        assert chunk.data_tensors_len == len(tensors) == len(columns)
        assert chunk.data_uncompressed_size == sum(
            sum(map(len, tensor.ravel().tolist())) if tensor.dtype == object else tensor.nbytes for tensor in tensors
        )
        assert not chunk.delta_encoded


def test_a_chunk_has_these_bytes() -> None:
    key = np.frombuffer(bytes.fromhex("81808080808080808001"), np.uint8)
    layout = replace(layout_of([2], 2, ids=[5]), key_varints=key[None])
    (field,) = encode_chunks({"reward": np.array([[1], [2]], np.uint8)}, layout)
    tensor = "0804 1208 12020802 12020801 2204 02040102"
    expected = f"0a36 08 81808080808080808001 120f 08858080808080808080001000 1801 2a14 0a12 {tensor} 3001 3802"
    assert field.hex() == expected.replace(" ", "")


SMALL, LARGE = 15, 16  # rows of 32 bytes: below and at COMPRESS_FROM_BYTES


@pytest.mark.parametrize(("chunk_length", "compressed"), [(SMALL, False), (LARGE, True)])
def test_a_repetitive_column_is_compressed_from_512_bytes_a_chunk(chunk_length: int, compressed: bool) -> None:
    column = np.ones((64, 8), np.float32)
    assert (chunk_length * 32 >= chunks.COMPRESS_FROM_BYTES) == compressed
    for field in encode_chunks({"x": column}, ChunkLayout.of([64], chunk_length, 0)):
        (content,) = contents(field)
        assert (len(content) < 100) == compressed or decoded(field).stop == 64


def test_random_bytes_are_stored_as_a_literal() -> None:
    column = np.random.default_rng(0).integers(0, 256, (64, 100), np.uint8)
    for number, field in enumerate(encode_chunks({"x": column}, ChunkLayout.of([64], 16, 0))):
        raw = column[16 * number : 16 * number + 16].tobytes()
        assert contents(field)[0].endswith(raw)
        assert bytes(cramjam.snappy.decompress_raw(contents(field)[0])) == raw


def test_each_column_is_judged_for_itself() -> None:
    rng = np.random.default_rng(0)
    columns = {"zeros": np.zeros((32, 64)), "noise": rng.normal(size=(32, 64)), "text": np.full(32, b"abc", object)}
    (field,) = encode_chunks(columns, ChunkLayout.of([32], 32, 0))
    zeros, noise, text = contents(field)
    assert len(zeros) < columns["zeros"].nbytes / 10
    assert len(noise) > columns["noise"].nbytes
    assert text == b"\x03" * 32 + b"abc" * 32


def test_only_the_first_bytes_of_a_chunk_decide() -> None:
    column = np.zeros(2 * chunks.SAMPLE_BYTES, np.uint8)
    column[: chunks.SAMPLE_BYTES] = np.random.default_rng(0).integers(0, 256, chunks.SAMPLE_BYTES, np.uint8)
    (field,) = encode_chunks({"x": column}, ChunkLayout.of([len(column)], len(column), 0))
    assert len(contents(field)[0]) > len(column)


@pytest.mark.parametrize("dtype", ["datetime64[s]", "V3", "longdouble"])
def test_a_dtype_that_cannot_be_stored_is_named_with_its_column(dtype: str) -> None:
    with pytest.raises(WireError, match=r'column "observation/when": dtype .*: Reverb cannot store it'):
        encode_chunks({"observation/when": np.zeros(3, dtype)}, ChunkLayout.of([3], 2, 0))


@pytest.mark.parametrize("kind", ["float64", "zeros", "text"])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_chunk_that_no_message_holds_is_refused_before_it_is_made(
    kind: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    column = {"float64": np.random.default_rng(0).random((5, 4096)), "zeros": np.zeros((5, 4096))}.get(kind)
    if column is None:
        column = np.array([bytes(8 * 4096)] * 5, object)
    monkeypatch.setattr(chunks, "MOST_CHUNK_BYTES", rows * 8 * 4096)
    assert len(encode_chunks({"x": column}, ChunkLayout.of([5], rows, 0))) == -(-5 // rows)
    monkeypatch.setattr(chunks, "MOST_CHUNK_BYTES", rows * 8 * 4096 - 1)
    way_on = r"a smaller chunk_length \(--chunk-length\) than 2" if rows > 1 else "leave out columns"
    with pytest.raises(
        WireError, match=rf"steps 0 to {rows - 1}: a chunk of [\d,]+ decoded bytes, .* at most [\d,]+; .*{way_on}"
    ):
        encode_chunks({"x": column}, ChunkLayout.of([5], rows, 0))


@pytest.mark.parametrize("kind", ["S", "U", "O"])
def test_text_counts_by_its_bytes(kind: str) -> None:
    words = ["a", "日本".encode() if kind == "S" else "日本", ""]
    (field,) = encode_chunks({"text": np.array(words, kind)}, ChunkLayout.of([3], 3, 0))
    assert parsed(field).data_uncompressed_size == 7
    assert decoded(field).tensors[0].tolist() == [b"a", "日本".encode(), b""]


def test_the_columns_are_not_changed() -> None:
    column = strategies.array(np.random.default_rng(0), np.dtype(">f4"), (9, 2))
    before = column.copy()
    column.flags.writeable = False
    encode_chunks({"x": column}, ChunkLayout.of([9], 4, 0))
    assert column.dtype == before.dtype
    assert column.tobytes() == before.tobytes()


@pytest.mark.parametrize(
    ("row_bytes", "window_rows", "expected"),
    [
        (0, 2, chunks.MAX_ROWS),
        (1, 1, chunks.MAX_ROWS),
        (128, 2, 32),
        (129, 2, 31),
        (512, 2, 8),
        (1024, 2, 4),
        (1024, 32, 8),  # a quarter of the window
        (12_345, 2, 2),  # an image of 64 x 64 x 3: two rows, as a window has
        (12_345, 1, 1),
        (28_224, 2, 1),  # an image of 84 x 84 x 4
        (128, 33, 33),
        (128, 100_000, 2048),
        (1 << 20, 1000, 1),
        (0, 1000, 1000),
    ],
)
def test_the_chunk_length_follows_from_row_and_window(row_bytes: int, window_rows: int, expected: int) -> None:
    assert choose_chunk_length(row_bytes, window_rows) == expected


@pytest.mark.parametrize(
    ("row_bytes", "text_bytes", "expected"),
    [
        (100, 60, 32),
        (1024, 1000, 4),  # a long text
        (2200, 2048, 32),  # a file: the smallest that counts
        (15_360, 15_200, 6),
        (30_000, 29_000, 3),
        (200_000, 199_000, 1),
    ],
)
def test_rows_with_files_make_longer_chunks(row_bytes: int, text_bytes: int, expected: int) -> None:
    assert choose_chunk_length(row_bytes, 2, text_bytes) == expected


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 40), st.integers(0, 1 << 40))
@example(1 << 40, 1, 0)
def test_the_chosen_chunk_length_is_bounded(row_bytes: int, window_rows: int, text_bytes: int) -> None:
    rows = choose_chunk_length(row_bytes, window_rows, text_bytes)
    if window_rows <= chunks.MAX_ROWS:
        is_pair = window_rows > 1 and row_bytes <= chunks.PAIR_BYTES
        least = max(1 + is_pair, window_rows // chunks.WINDOW_SHARE)
        assert least <= rows <= chunks.MAX_ROWS
        aim = chunks.FILE_CHUNK_BYTES if text_bytes >= chunks.FILE_BYTES else chunks.CHUNK_BYTES
        assert rows == least or rows * row_bytes <= aim
    else:
        assert 1 <= rows <= window_rows
        assert rows == 1 or rows * row_bytes <= chunks.LONG_CHUNK_BYTES
