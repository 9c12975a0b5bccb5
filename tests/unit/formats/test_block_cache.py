"""Blocks of objects on disk: right, or not there; the least recently used go; processes share a folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.cli import cli
from rlds2reverb.conversion.convert import convert
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.block_cache import BYTES_VARIABLE, BlockCache, block_cache, bytes_of, version_of
from rlds2reverb.formats.buckets import BucketPath
from rlds2reverb.formats.objects import forget
from tests.contract.destination_cases import data
from tests.support.buckets import Faults, Storage

MIB = 1 << 20
ONE, TWO = version_of("s3://a/b", "1", 10), version_of("s3://a/b", "2", 10)


def block(text: str) -> memoryview:
    return memoryview(text.encode())


def bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_a_block_comes_back_under_its_version_and_number_only(tmp_path: Path) -> None:
    kept = BlockCache(tmp_path, 10**6)
    kept.put(ONE, 3, block("three"))
    assert bytes(kept.get(ONE, 3, 5) or b"") == b"three"
    assert kept.get(ONE, 2, 5) is kept.get(TWO, 3, 5) is kept.get(ONE, 3, 4) is None


@given(draw=st.data())
def test_a_damaged_file_is_as_if_it_were_not_there(
    tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("blocks")
    kept = BlockCache(folder, 10**6)
    content = draw.draw(st.binary(min_size=1, max_size=50))
    kept.put(ONE, 0, memoryview(content))
    [file] = [path for path in folder.rglob("*") if path.is_file()]
    whole = file.read_bytes()
    at = draw.draw(st.integers(0, len(whole) - 1))
    damaged = draw.draw(st.sampled_from([whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], b""]))
    file.write_bytes(damaged)
    assert kept.get(ONE, 0, len(content)) is None
    kept.put(ONE, 0, memoryview(content))
    assert bytes(kept.get(ONE, 0, len(content)) or b"") == content


def test_what_was_used_least_recently_goes_first(tmp_path: Path) -> None:
    kept = BlockCache(tmp_path, 10_000)
    for number in range(8):
        kept.put(ONE, number, memoryview(bytes([number]) * 1_000))
    for at, path in enumerate(sorted(tmp_path.rglob("*-*"), key=lambda path: int(path.name.rpartition("-")[2]))):
        os.utime(path, (at, at))
    assert kept.get(ONE, 0, 1_000) is not None  # is the newest now
    for number in range(8, 12):
        kept.put(ONE, number, memoryview(bytes([number]) * 1_000))
    assert bytes_below(tmp_path) <= 10_000
    assert kept.get(ONE, 0, 1_000) is not None
    assert kept.get(ONE, 1, 1_000) is None
    assert kept.get(ONE, 11, 1_000) is not None


def test_a_folder_that_cannot_be_written_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    kept = BlockCache(tmp_path / "file", 10**6)
    kept.put(ONE, 0, block("one"))
    assert kept.get(ONE, 0, 3) is None


def test_processes_share_a_folder(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from rlds2reverb.formats.block_cache import BlockCache\n"
        f"kept = BlockCache(Path({str(tmp_path)!r}), 200_000)\n"
        "for at in range(300):\n"
        "    data = bytes([at % 7]) * 1_000\n"
        f"    kept.put({ONE!r}, at % 97, memoryview(data)) if at % 3 else None\n"
        f"    found = kept.get({ONE!r}, at % 97, 1_000)\n"
        "    assert found is None or len(set(bytes(found))) == 1\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert bytes_below(tmp_path) <= 250_000


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("500", 500), ("2 kB", 2_000), ("1.5G", 1_500_000_000), ("20TB", 20 * 10**12)]
)
def test_sizes(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "many", "-1", "1e3", "5PB", "NaN"])
def test_no_sizes(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="expected a number of bytes"):
        bytes_of(text)
    if text:
        monkeypatch.setenv(BYTES_VARIABLE, text)
        with pytest.raises(ConfigError, match=f"^{BYTES_VARIABLE}"):
            block_cache()


@pytest.fixture
def file(storage: Storage, cloud: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BucketPath:
    """An object of ten blocks and a bit."""
    monkeypatch.setenv(BYTES_VARIABLE, "100MB")
    storage.create("cached")
    data = np.random.default_rng(1).bytes(10 * MIB + 12_345)
    storage.put("cached", tmp_path.name, data)
    return BucketPath(f"s3://cached/{tmp_path.name}")


def test_what_was_read_is_not_fetched_again(file: BucketPath, cloud: Faults) -> None:
    data = file.read_bytes()
    before = len([request for request in cloud.requests if request.range])
    assert before > 0
    assert file.read_bytes() == data
    with file.open("rb") as again:
        again.seek(5 * MIB - 10)
        assert again.read(20) == data[5 * MIB - 10 : 5 * MIB + 10]
    assert len([request for request in cloud.requests if request.range]) == before


def test_only_what_is_missing_is_fetched(file: BucketPath, cloud: Faults) -> None:
    with file.open("rb", 0) as first:
        first.seek(2 * MIB)
        first.read(MIB)
    cloud.sent = 0
    data = file.read_bytes()
    assert len(data) - 8 * MIB <= cloud.sent <= len(data) + 100_000
    assert file.read_bytes() == data


def test_a_new_version_is_fetched(file: BucketPath, storage: Storage, tmp_path: Path) -> None:
    old = file.read_bytes()
    new = bytes(len(old))
    storage.put("cached", tmp_path.name, new)
    forget()
    assert file.read_bytes() == new


def test_the_options_of_the_command_line(
    file: BucketPath, cloud: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(BYTES_VARIABLE)
    wrong = CliRunner().invoke(cli, ["--cache-bytes", "many", "inspect", "npz:x"])
    assert wrong.exit_code == 2
    assert "--cache-bytes" in wrong.output
    convert(data.KINDS["plain"](tmp_path), "ted:s3://cached/set.h5")
    folder, seen = tmp_path / "here", []
    for _ in range(2):
        monkeypatch.delenv(BYTES_VARIABLE, raising=False)
        cloud.requests.clear()
        ended = CliRunner().invoke(cli, ["--cache", str(folder), "inspect", "ted:s3://cached/set.h5", "--json"])
        assert ended.exit_code == 0, ended.output
        seen.append(len([request for request in cloud.requests if request.range]))
    assert seen[0] > 0 == seen[1]
    assert bytes_below(folder / "blocks") > 0
