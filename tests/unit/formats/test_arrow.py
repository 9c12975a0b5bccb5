"""Files of Parquet and Arrow: honest ones, ones that claim far more than they have, and damaged ones."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq

from rlds2reverb.errors import SourceError
from rlds2reverb.formats import paths
from rlds2reverb.formats.arrow import check_row_groups, numbers_of, read_arrow, read_parquet

ROWS = 5_000
RANDOM = np.random.default_rng(0)


@pytest.fixture
def little_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "FREE_BYTES", 1 << 20)


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


def write_arrow(path: Path, table: Any, compression: str | None = None, **how: Any) -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema, options=options) as writer:
        writer.write_table(table, **how)


@pytest.mark.parametrize("writing", WRITINGS, ids=str)
def test_files_of_parquet_are_read_whole(tmp_path: Path, little_is_free: None, writing: Any) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(honest(), path, **writing)
    assert read_parquet(path) == pq.read_table(path)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_files_of_arrow_are_read_whole(tmp_path: Path, little_is_free: None, compression: str | None) -> None:
    path, table = tmp_path / "x.arrow", honest()
    write_arrow(path, table, compression, max_chunksize=1_000)
    assert read_arrow(path) == table
    for size in range(path.stat().st_size - 1, 0, -40_001):
        os.truncate(path, size)
        with pytest.raises((ValueError, OSError)):
            read_arrow(path)


ZEROS = np.zeros(1 << 20)
CLAIMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "numbers that are one": (ZEROS, {}),
    "packed numbers": (ZEROS, {"use_dictionary": False, "compression": "zstd"}),
    "packed texts": (["y" * 1_000] * 9_000, {"use_dictionary": False, "compression": "zstd"}),
    "empty lists": ([[]] * 300_000, {}),
    "nothing at all": (pa.nulls(1 << 20, pa.float64()), {}),
    "missing lists of one size": (pa.array([None] * 100, pa.list_(pa.float64(), 10_000)), {}),
    "in structs": (pa.StructArray.from_arrays([pa.array(ZEROS)], ["y"]), {}),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_file_that_claims_100_times_its_size_is_refused_before_it_is_read(
    tmp_path: Path, little_is_free: None, name: str
) -> None:
    path, (column, writing) = tmp_path / "x.parquet", CLAIMS[name]
    pq.write_table(pa.table({"x": column}), path, **writing)
    assert path.stat().st_size < 30_000
    before = pa.total_allocated_bytes()
    with pytest.raises(ValueError, match="bytes to read at once, of"):
        read_parquet(path)
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_a_file_of_arrow_that_claims_100_times_its_size_is_refused(tmp_path: Path, little_is_free: None) -> None:
    path = tmp_path / "x.arrow"
    write_arrow(path, pa.table({"x": ZEROS}), "zstd", max_chunksize=1 << 17)
    with pytest.raises(ValueError, match="bytes to read at once, of"):
        read_arrow(path)


def test_row_groups_and_columns_that_are_not_read_do_not_count(tmp_path: Path, little_is_free: None) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table({"a.b": np.arange(1 << 20) % 3, "a": [{"c": 1}] * (1 << 20), "zeros": ZEROS})
    pq.write_table(table, path, row_group_size=1 << 10)
    with pq.ParquetFile(path) as file:
        check_row_groups(path, file, ["a.b", "a"], [0])
        check_row_groups(path, file, groups=[0, 1])
    pq.write_table(pa.table({"x": np.arange(10), "zeros": pa.nulls(10, pa.list_(pa.float64(), 1 << 20))}), path)
    with pq.ParquetFile(path) as file:
        check_row_groups(path, file, ["x"])
        with pytest.raises(ValueError, match="bytes to read at once, of"):
            check_row_groups(path, file)


@pytest.mark.parametrize("read", [read_parquet, read_arrow])
def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path, read: Any) -> None:
    os.mkfifo(tmp_path / "x")
    with pytest.raises(SourceError, match="not a regular file"):
        read(tmp_path / "x")


ERRORS = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError)


@pytest.mark.parametrize("mask", [1, 4, 0x80, 0xFF])
def test_any_damaged_byte_gives_an_error_or_a_table(tmp_path: Path, mask: int) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": [[1, None], []], "y": ["a", None]}), path, store_schema=False)
    whole = path.read_bytes()
    length = int.from_bytes(whole[-8:-4], "little")
    for at in range(len(whole) - 8 - length, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :])
        try:
            found = str(read_parquet(path).schema)
        except ERRORS as error:
            found = str(error)
        assert found


@pytest.mark.parametrize("data", [b"", b"PAR1", bytes(8), b"\xff\xff\xff\xffPAR1", b"\x15\x02\x01\x00\x00\x00PAR1"])
def test_what_is_no_file_of_parquet_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(data)
    with pytest.raises((pa.ArrowException, OSError)):
        read_parquet(path)


@pytest.mark.parametrize("dtype", ["int8", "uint64", "float16", "float32", "float64", "bool"])
def test_numbers_are_those_of_to_numpy(dtype: str) -> None:
    values = RANDOM.integers(0, 2, 9).astype(dtype)
    for column in (pa.array(values), pa.array(values)[3:7], pa.array(values)[:0]):
        numbers = numbers_of(column)
        assert numbers.dtype == values.dtype
        np.testing.assert_array_equal(numbers, column.to_numpy(zero_copy_only=False))


def test_values_that_are_missing_are_nan() -> None:
    np.testing.assert_array_equal(numbers_of(pa.array([1, None, 3])), [1, np.nan, 3])


IMPORTS_OF_PANDAS = """
import sys, importlib.abc
class Recorder(importlib.abc.MetaPathFinder):
    asked = False
    def find_spec(self, name, path, target=None):
        self.asked |= name == "pandas"
recorder = Recorder()
sys.meta_path.insert(0, recorder)
import pyarrow as pa, numpy as np
from rlds2reverb.formats.arrow import numbers_of
column = pa.Array.from_buffers(pa.float32(), 3, [None, pa.py_buffer(np.arange(3, dtype=np.float32))])
assert numbers_of(column).tolist() == [0, 1, 2] and not recorder.asked
column.to_numpy()
print(recorder.asked)
"""


def test_numbers_need_no_pandas() -> None:
    """pyarrow imports it for `to_numpy`, which in a worker took longer than to open a dataset and to decode its first batch."""
    output = subprocess.run(
        [sys.executable, "-c", IMPORTS_OF_PANDAS], check=True, capture_output=True, text=True
    ).stdout
    assert output.strip() == "True", "pyarrow's own way needs none either: numbers_of may go"
