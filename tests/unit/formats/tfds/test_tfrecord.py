"""TFRecord files: lengths before anything allocates what they say, and records with their checksums."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import SourceError
from rlds2reverb.formats.tfds import BUNDLED, bundled_path
from rlds2reverb.formats.tfds.tfrecord import check_records, masked_checksum, tfrecords
from tests.support.formats.tfds import framed, tfrecord
from tests.support.raising import error_of


def file_of(path: Path, *lengths: int) -> Path:
    """Records of these lengths; checksums are not looked at."""
    path.write_bytes(b"".join(length.to_bytes(8, "little") + b"sum_" + bytes(length) + b"sum_" for length in lengths))
    return path


def absurd(path: Path, length: int) -> Path:
    """A good record, one that claims another length, and a good one."""
    file_of(path, 10, 20, 30)
    data = bytearray(path.read_bytes())
    data[26:34] = length.to_bytes(8, "little")
    path.write_bytes(data)
    return path


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records") / "a"


@given(st.lists(st.integers(0, 50)), st.integers(0, 2000))
def test_good_files_pass_and_what_ends_early_passes_or_names_the_record(
    scratch: Path, lengths: list[int], kept: int
) -> None:
    check_records(file_of(scratch, *lengths))
    scratch.write_bytes(scratch.read_bytes()[:kept])
    error = error_of(SourceError, lambda: check_records(scratch))
    if error is not None:
        assert f"has {scratch.stat().st_size:,}: it is damaged there or before" in str(error)


@pytest.mark.parametrize("length", [1 << 40, (1 << 64) - 1, (1 << 31) + 1, 200])
def test_a_record_longer_than_its_file_is_refused(tmp_path: Path, length: int) -> None:
    path = absurd(tmp_path / "a", length)
    with pytest.raises(SourceError, match=rf"a: record 1, at byte 26, says that it has {length:,} bytes.*file has 108"):
        check_records(path)


def test_a_record_of_more_than_two_gigabytes_is_refused_also_in_a_file_as_large(tmp_path: Path) -> None:
    path = absurd(tmp_path / "a", 1 << 32)
    os.truncate(path, 1 << 33)  # sparse
    with pytest.raises(SourceError, match="record 1, at byte 26"):
        check_records(path)


def test_records_that_will_not_be_read_are_not_looked_at(tmp_path: Path) -> None:
    path = absurd(tmp_path / "a", 1 << 40)
    check_records(path, 1)
    with pytest.raises(SourceError, match="record 1"):
        check_records(path, 2)


def test_what_is_no_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, said in {
        "missing": "No such file",
        "pipe": "not a regular file",
        ".": "not a regular file",
        "loop": "symbolic links",
    }.items():
        with pytest.raises(SourceError, match=f"cannot be read: .*{said}"):
            check_records(tmp_path / name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    file_of(tmp_path / "a", 1).chmod(0)
    with pytest.raises(SourceError, match="cannot be read: Permission denied"):
        check_records(tmp_path / "a")


@pytest.mark.parametrize("name", BUNDLED)
def test_looking_reads_a_few_bytes_of_a_record(name: str) -> None:
    files = list(bundled_path(name).glob("*.tfrecord-*"))
    assert files
    reads = []

    def on_call(frame: object, event: str, function: object) -> None:
        if event == "c_call" and getattr(function, "__name__", "") == "read":
            reads.append(event)

    sys.setprofile(on_call)
    try:
        for file in files:
            check_records(file)
    finally:
        sys.setprofile(None)
    assert len(reads) == {"cartpole": 26, "half_cheetah": 5}[name]


RECORDS = [b"", b"a", bytes(range(256)), b"the last one"]


def test_the_checksum_is_that_of_tensorflow() -> None:
    assert masked_checksum(bytes(32)) == ((0x8A9136AA >> 15 | 0x8A9136AA << 17) + 0xA282EAD8) % (
        1 << 32
    )  # RFC 3720, B.4


@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_the_asked_records_are_read(scratch: Path, records: list[bytes], data: st.DataObject) -> None:
    skip = data.draw(st.integers(0, len(records)))
    take = data.draw(st.integers(0, len(records) - skip))
    assert list(tfrecords(tfrecord(scratch, records), skip, take)) == records[skip : skip + take]


def read_until_error(path: Path, skip: int) -> tuple[list[bytes], SourceError | None]:
    found: list[bytes] = []
    try:
        for record in tfrecords(path, skip, len(RECORDS) - skip):
            found += [record]  # also where the next one fails
    except SourceError as error:
        return found, error
    return found, None


@pytest.mark.parametrize("skip", [0, 2])
def test_every_flipped_byte_is_found_and_what_came_before_is_good(scratch: Path, skip: int) -> None:
    good = framed(RECORDS)
    for place in range(len(good)):
        damaged = bytearray(good)
        damaged[place] ^= 0x40
        scratch.write_bytes(damaged)
        found, error = read_until_error(scratch, skip)
        assert found == RECORDS[skip : skip + len(found)]
        jumped_over = sum(16 + len(record) for record in RECORDS[:skip])
        assert error is not None or place < jumped_over  # the data of records that are not read is not looked at
        if error is not None:
            assert f"{scratch}: record {skip + len(found)}" in str(error) or place < jumped_over


@pytest.mark.parametrize("skip", [0, 2])
def test_every_cut_is_found(scratch: Path, skip: int) -> None:
    good = framed(RECORDS)
    for length in range(len(good)):
        scratch.write_bytes(good[:length])
        found, error = read_until_error(scratch, skip)
        assert found == RECORDS[skip : skip + len(found)]
        assert "the file ends before the end of record" in str(error)


def test_an_absurd_length_with_a_right_checksum_is_refused(tmp_path: Path) -> None:
    head = (1 << 40).to_bytes(8, "little")
    data = framed(RECORDS[:2]) + head + masked_checksum(head).to_bytes(4, "little")
    (tmp_path / "a").write_bytes(data + bytes(100))
    with pytest.raises(SourceError, match=f"a: record 2, at byte 33, says that it has {1 << 40:,} bytes"):
        list(tfrecords(tmp_path / "a", 0, 3))


def test_what_is_no_file_cannot_be_read(tmp_path: Path) -> None:
    for path, said in ((tmp_path, "not a regular file"), (tmp_path / "missing", "No such file")):
        with pytest.raises(SourceError, match=f"cannot be read: .*{said}"):
            list(tfrecords(path, 0, 1))
