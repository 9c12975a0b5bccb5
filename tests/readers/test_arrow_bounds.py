"""Files of Parquet and Arrow that unpack to far more than they are, and honest ones."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

from rlds2reverb.readers import arrow_bounds  # noqa: E402
from rlds2reverb.readers.arrow_files import read_arrow, read_parquet  # noqa: E402
from rlds2reverb.readers.flatbuffers import unpacked_bytes  # noqa: E402
from rlds2reverb.readers.parquet_pages import pages_of  # noqa: E402

ROWS = 5_000
RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _little_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_bounds, "_FREE_BYTES", 1 << 20)


def honest() -> Any:
    """Numbers, texts, lists, structs and values that are missing."""
    texts, odd = [f"task {at % 7}" for at in range(ROWS)], RANDOM.bytes(ROWS).hex()
    return pa.table(
        {
            "x": RANDOM.normal(size=ROWS),
            "short": pa.array(RANDOM.integers(0, 99, ROWS), pa.int8()),
            "done": np.arange(ROWS) % 100 == 99,
            "text": texts,
            "other.text": [odd[at] * 3 for at in range(ROWS)],
            "none": pa.array([None if at % 3 else at for at in range(ROWS)]),
            "lists": pa.array([[at] * (at % 4) for at in range(ROWS)]),
            "words": pa.array([texts[at : at + at % 3] for at in range(ROWS)]),
            "sized": pa.FixedSizeListArray.from_arrays(pa.array(RANDOM.normal(size=3 * ROWS)), 3),
            "pairs": pa.array([[(text, at)] for at, text in enumerate(texts)], pa.map_(pa.string(), pa.int32())),
            "image": pa.array([{"bytes": RANDOM.bytes(30), "path": text} for text in texts]),
        }
    )


WRITINGS = [
    {"compression": compression, "data_page_version": version, "use_dictionary": by_dictionary, "row_group_size": 2_000}
    for compression, version, by_dictionary in product(("none", "snappy", "zstd"), ("1.0", "2.0"), (True, False))
]


@pytest.mark.parametrize("writing", WRITINGS, ids=str)
def test_the_pages_have_what_the_footer_tells(tmp_path: Path, writing: Any) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(honest(), path, data_page_size=1_000, **writing)
    with pq.ParquetFile(path) as file, path.open("rb") as raw:
        for group in map(file.metadata.row_group, range(file.metadata.num_row_groups)):
            for chunk in map(group.column, range(group.num_columns)):
                start = chunk.dictionary_page_offset or chunk.data_page_offset
                pages = pages_of(raw.fileno(), start, chunk.total_compressed_size, chunk.num_values)
                assert pages.values == chunk.num_values
                assert 0.5 * chunk.total_uncompressed_size < pages.unpacked < chunk.total_uncompressed_size
                assert (pages.by_dictionary > 0) == ("RLE_DICTIONARY" in chunk.encodings)
    assert read_parquet(path) == pq.read_table(path)


def test_headers_of_chunks_that_are_not_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    texts = [f"{at:0>900}" for at in range(ROWS)]
    pq.write_table(pa.table({"text": texts}), path, data_page_size=20_000, use_dictionary=False, compression="none")
    with pq.ParquetFile(path) as file, path.open("rb") as raw:
        chunk = file.metadata.row_group(0).column(0)
        assert chunk.total_compressed_size > 1 << 20
        pages = pages_of(raw.fileno(), chunk.data_page_offset, chunk.total_compressed_size, chunk.num_values)
        assert (pages.values, pages.by_dictionary) == (ROWS, 0)
    assert read_parquet(path).num_rows == ROWS


BOMBS: dict[str, tuple[Any, dict[str, Any]]] = {
    "numbers that are one": ({"x": np.zeros(4 << 20)}, {}),
    "a text of a dictionary": ({"x": ["y" * 10_000] * 3_000}, {}),
    "a text of a dictionary, in lists": ({"x": [["y" * 10_000] * 30] * 100}, {}),
    "a text of a dictionary, in structs": ({"x": [{"z": "y" * 10_000}] * 3_000}, {}),
    "a text that is told by the one before": (
        {"x": ["y" * 10_000] * 3_000},
        {"use_dictionary": False, "column_encoding": {"x": "DELTA_BYTE_ARRAY"}},
    ),
    "packed numbers": ({"x": np.zeros(4 << 20)}, {"use_dictionary": False, "compression": "zstd"}),
    "empty lists": ({"x": [[]] * 300_000}, {}),
    "nothing at all": ({"x": pa.nulls(4 << 20, pa.float64())}, {}),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_unpacks_to_far_more_than_it_is_is_refused(tmp_path: Path, name: str) -> None:
    path, (columns, writing) = tmp_path / "x.parquet", BOMBS[name]
    pq.write_table(pa.table(columns), path, **writing)
    assert path.stat().st_size < 30_000
    before = pa.total_allocated_bytes()
    with pytest.raises(ValueError, match="bytes to read at once, of"):
        read_parquet(path)
    assert pa.total_allocated_bytes() - before < 1 << 20


@pytest.mark.parametrize(
    "writing", [{}, {"use_dictionary": False, "column_encoding": {"x": "DELTA_BYTE_ARRAY"}}], ids=str
)
@pytest.mark.parametrize("of_each", ["texts", "lists", "structs"])
def test_texts_that_could_be_longer_than_they_are_are_read(tmp_path: Path, of_each: str, writing: Any) -> None:
    """Many short ones, and a long one that each might be."""
    path = tmp_path / "x.parquet"
    texts = [*(f"word {at % 100}" for at in range(5_000)), "y" * 50_000]
    made = {"texts": texts, "lists": [[one] for one in texts], "structs": [{"a": one} for one in texts]}[of_each]
    if writing and of_each != "texts":
        leaf = {"lists": "x.list.element", "structs": "x.a"}[of_each]
        writing = {**writing, "column_encoding": {leaf: "DELTA_BYTE_ARRAY"}}
    pq.write_table(pa.table({"x": made}), path, **writing)
    if writing and of_each == "lists":
        with pytest.raises(ValueError, match="bytes to read at once"):
            read_parquet(path)
        return
    assert read_parquet(path)["x"].to_pylist() == made


def test_only_columns_that_are_read_count(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a.b": range(3_000), "a": [{"c": 1}] * 3_000, "bomb": ["y" * 10_000] * 3_000}), path)
    with pq.ParquetFile(path) as file:
        arrow_bounds.ParquetBounds(path, file, ["a.b", "a"]).check()
        for columns in (["bomb"], None):
            with pytest.raises(ValueError, match=r"has 30,\d\d\d,\d\d\d bytes"):
                arrow_bounds.ParquetBounds(path, file, columns).check([0])


@pytest.mark.parametrize("is_inside", [False, True])
def test_missing_lists_of_one_size_are_counted_as_pyarrow_fills_them(tmp_path: Path, is_inside: bool) -> None:
    path, sized = tmp_path / "x.parquet", pa.list_(pa.float64(), 10_000)
    rows: Any = [[None]] * 100 if is_inside else [None] * 100
    pq.write_table(pa.table({"x": pa.array(rows, pa.list_(sized) if is_inside else sized)}), path)
    with pytest.raises(ValueError, match="has 16,000,000 bytes to read at once"):
        read_parquet(path)


def test_a_footer_that_tells_fewer_values_than_there_are(tmp_path: Path) -> None:
    path, count = tmp_path / "x.parquet", 1 << 22
    pq.write_table(pa.table({"x": [np.zeros(count)]}), path, data_page_size=1 << 30, write_statistics=False)
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    told, lie = b"\x80\x80\x80\x04", b"\x82\x80\x80\x00"  # the numbers 2^22 and 1 of Thrift's compact protocol
    assert told in data[footer:]
    path.write_bytes(data[:footer] + data[footer:].replace(told, lie))
    with pq.ParquetFile(path) as file:
        assert file.metadata.row_group(0).column(0).num_values == 1
        assert file.read()["x"].to_pylist()[0] == [0] * count
    with pytest.raises(ValueError, match="bytes to read at once"):
        read_parquet(path)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_files_of_arrow_are_read_whole(tmp_path: Path, compression: str | None) -> None:
    path = tmp_path / "x.arrow"
    table = honest()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=1_000)
    assert read_arrow(path) == table
    for size in range(path.stat().st_size - 1, 0, -40_001):
        os.truncate(path, size)
        with pytest.raises((ValueError, OSError)):
            read_arrow(path)


def test_buffers_of_arrow_that_unpack_to_far_more_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    table = pa.table({"x": np.zeros(4 << 20)})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema, options=options) as writer:
        writer.write_table(table)
    before = pa.total_allocated_bytes()
    with pytest.raises(ValueError, match=r"has 33,554,4\d\d bytes to read at once"):
        read_arrow(path)
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_dictionaries_of_arrow_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    table = pa.table({"x": pa.array(["a", "b"]).dictionary_encode()})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(ValueError, match="record batches only"):
        read_arrow(path)


@given(st.binary(max_size=200))
def test_any_bytes_are_pages_or_an_error(data: bytes) -> None:
    with TemporaryFile(buffering=0) as file:
        file.write(data)
        try:
            pages = pages_of(file.fileno(), 0, len(data), 1 << 40)
        except ValueError:
            return
    assert min(pages.values, pages.unpacked) >= 0


@given(st.binary(max_size=200), st.binary(max_size=50))
def test_any_bytes_are_buffers_or_an_error(message: bytes, body: bytes) -> None:
    try:
        assert unpacked_bytes(memoryview(message), memoryview(body)) >= 0
    except ValueError:
        return
