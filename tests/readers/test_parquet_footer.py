"""Footers of Parquet files, against pyarrow where they are whole; damaged ones give errors and end no process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

from rlds2reverb.readers.arrow_files import read_parquet  # noqa: E402
from rlds2reverb.readers.parquet_footer import footer_of  # noqa: E402
from tests.readers.test_arrow_bounds import WRITINGS, honest  # noqa: E402


@pytest.mark.parametrize("writing", WRITINGS, ids=str)
def test_tell_what_pyarrow_tells(tmp_path: Path, writing: Any) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(honest(), path, **writing)
    found = footer_of(path)
    with pq.ParquetFile(path) as file:
        groups = [file.metadata.row_group(at) for at in range(file.metadata.num_row_groups)]
    assert len(found) == len(groups)
    for chunks, group in zip(found, groups):
        assert len(chunks) == group.num_columns
        for chunk, told in zip(chunks, map(group.column, range(group.num_columns))):
            assert chunk.path == told.path_in_schema
            assert (chunk.values, chunk.data_page) == (told.num_values, told.data_page_offset)
            assert (chunk.unpacked, chunk.stored) == (told.total_uncompressed_size, told.total_compressed_size)
            assert chunk.dictionary_page == (told.dictionary_page_offset or 0)


def told_of(path: Path) -> str:
    """The columns of a file, or why it cannot be read."""
    try:
        return str(read_parquet(path).schema)
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError) as error:
        return str(error)


@pytest.mark.parametrize("mask", [1, 4, 0x80, 0xFF])
def test_any_damaged_byte_gives_an_error_or_a_table(tmp_path: Path, mask: int) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": [[1, None], []], "y": ["a", None]}), path, store_schema=False)
    whole = path.read_bytes()
    length = int.from_bytes(whole[-8:-4], "little")
    for at in range(len(whole) - 8 - length, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :])
        assert told_of(path)


@pytest.mark.parametrize("data", [b"", b"PAR1", bytes(8), b"\xff\xff\xff\xffPAR1", b"\x15\x02\x01\x00\x00\x00PAR1"])
def test_what_is_no_footer_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="footer"):
        footer_of(path)


def test_a_large_footer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": np.arange(9)}), path)
    monkeypatch.setattr("rlds2reverb.readers.parquet_footer._MOST_BYTES", 100)
    with pytest.raises(ValueError, match="at most 100 are read"):
        footer_of(path)
