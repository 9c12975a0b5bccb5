"""The three file formats: the same records from each, lost ones, and damage."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats.tfds.records import check_format, open_records
from rlds2reverb.formats.tfds.selection import Selection
from rlds2reverb.formats.tfds.splits import Part
from tests.support.formats.tfds import tfrecord
from tests.support.raising import outcome_of

RECORDS = [bytes([number]) * (number * 7 % 50) for number in range(150)]


def array_record(path: Path, records: list[bytes]) -> Path:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    return path


def parquet(path: Path, records: list[bytes], name: str = "data", kind: str = "binary") -> Path:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({name: pyarrow.array(records, kind)})
    checksums = {"write_page_checksum": True} if parquet_has_checksums() else {}
    pyarrow.parquet.write_table(table, path, row_group_size=40, **checksums)
    return path


def parquet_has_checksums() -> bool:
    """Whether this pyarrow writes and verifies them."""
    import pyarrow

    return int(pyarrow.__version__.split(".")[0]) >= 15


WRITERS: dict[str, tuple[str, Callable[[Path, list[bytes]], Path]]] = {
    "tfrecord": ("google_crc32c", tfrecord),
    "array_record": ("array_record", array_record),
    "parquet": ("pyarrow", parquet),
}


@pytest.fixture(params=list(WRITERS))
def file_format(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(WRITERS[request.param][0])
    return str(request.param)


@pytest.fixture
def shard(file_format: str, tmp_path: Path) -> Path:
    return WRITERS[file_format][1](tmp_path / "shard", RECORDS)


@pytest.mark.parametrize(("skip", "take"), [(0, 150), (0, 0), (1, 148), (39, 2), (149, 1), (150, 0)])
def test_the_asked_records_are_read(file_format: str, shard: Path, skip: int, take: int) -> None:
    assert list(open_records(shard, file_format, skip, take)) == RECORDS[skip : skip + take]


def test_fewer_records_than_asked_for_are_refused(file_format: str, shard: Path) -> None:
    with pytest.raises(SourceError, match=r"shard: (has 150 records; expected|the file ends before)"):
        list(open_records(shard, file_format, 100, 51))


def test_what_is_no_such_file_is_refused(file_format: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a record in sight, and neither a checksum")
    (tmp_path / "empty").touch()
    for name in ("text", "empty", ".", "missing"):
        with pytest.raises(SourceError, match=str(tmp_path)):
            list(open_records(tmp_path / name, file_format, 0, 1))


def test_damage_gives_an_error_or_the_same_records(file_format: str, shard: Path, tmp_path: Path) -> None:
    if file_format == "parquet" and not parquet_has_checksums():
        pytest.skip("this pyarrow does not verify checksums")
    good, draw = shard.read_bytes(), random.Random(7)
    for number in range(60):
        damaged = bytearray(good)
        damaged[draw.randrange(len(good))] ^= 1 << draw.randrange(8)
        (tmp_path / "damaged").write_bytes(damaged if number % 3 else good[: draw.randrange(len(good))])
        found = outcome_of(SourceError, lambda: list(open_records(tmp_path / "damaged", file_format, 0, len(RECORDS))))
        assert found == RECORDS or str(tmp_path / "damaged") in str(found)


def test_lost_rows_of_a_parquet_file_are_noticed_also_by_a_part(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    shard = parquet(tmp_path / "shard", RECORDS[:100])
    with pytest.raises(SourceError, match=r"shard: has 100 records; expected 150, .* loses records past 100"):
        list(open_records(shard, "parquet", 0, 150))
    with pytest.raises(SourceError, match=r"shard: has 100 records; expected 150"):
        list(open_records(shard, "parquet", 0, 10, total=150))
    assert list(open_records(shard, "parquet", 0, 100)) == RECORDS[:100]


@pytest.mark.parametrize(("skip", "take", "left"), [(0, 10, 10), (0, 150, 100), (90, 60, 10), (120, 30, 0)])
def test_lost_rows_of_a_parquet_file_are_left_out(tmp_path: Path, skip: int, take: int, left: int) -> None:
    pytest.importorskip("pyarrow")
    shard = parquet(tmp_path / "shard", RECORDS[:100])
    selection, lost = Selection(tmp_path, "parquet", [Part("shard", skip, take, 150)], 1).without_lost()
    assert [record.data for record in selection.records(0, selection.count)] == RECORDS[skip : skip + left]
    assert lost == ({shard: take - left} if left < take else {})


def test_a_parquet_file_of_other_columns_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    for file, found in (
        (parquet(tmp_path / "name", [b"a"], "other"), "'other': 'binary'"),
        (parquet(tmp_path / "kind", [1], kind="int8"), "'data': 'int8'"),  # type: ignore[list-item]
    ):
        with pytest.raises(SourceError, match=f'expected a column "data" of binary records, found .*{found}'):
            list(open_records(file, "parquet", 0, 1))
    nothing = parquet(tmp_path / "nothing", [b"a", None])  # type: ignore[list-item]
    with pytest.raises(SourceError, match="a row without a record"):
        list(open_records(nothing, "parquet", 0, 2))


def test_riegeli_is_refused() -> None:
    with pytest.raises(SourceError, match=r'x: riegeli files are not read here.*file_format="tfrecord"'):
        check_format("riegeli", "x")
    for known in WRITERS:
        check_format(known, "x")


@pytest.mark.parametrize(("file_format", "library"), [("array_record", "array_record"), ("parquet", "pyarrow")])
def test_a_missing_library_is_named(
    file_format: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = [name for name in sys.modules if name.partition(".")[0] == library]
    for name in (library, *loaded):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "shard").touch()
    with pytest.raises(SourceError, match=f"shard: reading {file_format} files needs {library}"):
        list(open_records(tmp_path / "shard", file_format, 0, 1))
