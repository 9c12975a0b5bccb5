"""The index of a shard's records: the same records with one, without one, and with one that is wrong."""

from __future__ import annotations

import os
import random
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import ConfigError, SourceError, WriteError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.buckets import path_of
from rlds2reverb.formats.paths import stamp_of
from rlds2reverb.formats.tfds import bundled_path, index, selection
from rlds2reverb.formats.tfds.read import selection_of
from rlds2reverb.formats.tfds.tfrecord import index_file, tfrecords
from rlds2reverb.workers.driver import split_tasks
from tests.support.buckets import Faults, Storage
from tests.support.formats.tfds import framed, tfrecord
from tests.support.raising import outcome_of

RECORDS = [bytes([number]) * (number * 7 % 50) for number in range(150)]
RECORD_LISTS = st.lists(st.binary(max_size=40), min_size=1, max_size=12)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLDS2REVERB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves what was walked over, however little."""
    monkeypatch.setattr(index, "_WORTH_RECORDS", 1)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return tfrecord(tmp_path / "shard", RECORDS)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records") / "a"


def indexed(path: Path, records: int, beside: bool = False) -> Path:
    return index_file(path, records, beside, lambda _: None)


def places_of(records: list[bytes]) -> list[int]:
    return [0, *np.cumsum([len(record) + 16 for record in records]).tolist()]


def known(path: Path) -> list[int]:
    return list(map(int, index.load(path, stamp_of(path))))


def index_bytes(path: Path, places: list[int] | bytes, magic: bytes = b"r2r-idx1") -> bytes:
    """A whole index file of a shard, with a right digest."""
    data = places if isinstance(places, bytes) else struct.pack(f"<{len(places)}Q", *places)
    return struct.pack("<8sQqQ", magic, *stamp_of(path), xxhash.xxh3_64_intdigest(data)) + data


@given(RECORD_LISTS, st.booleans(), st.data())
def test_records_are_those_of_a_plain_reading(
    scratch: Path, records: list[bytes], beside: bool, data: st.DataObject
) -> None:
    path = tfrecord(scratch, records)
    place = indexed(path, len(records), beside)
    assert known(path) == places_of(records)
    skip = data.draw(st.integers(0, len(records)))
    take = data.draw(st.integers(0, len(records) - skip))
    assert list(tfrecords(path, skip, take)) == records[skip : skip + take]
    assert place.exists()
    place.unlink()


@given(RECORD_LISTS, st.lists(st.integers(1, 700), min_size=1, max_size=14), st.data())
def test_places_at_which_no_record_begins_change_nothing(
    scratch: Path, records: list[bytes], lies: list[int], data: st.DataObject
) -> None:
    path = tfrecord(scratch, records)
    truth = places_of(records)
    right = truth[: data.draw(st.integers(1, len(truth)))]
    wrong = [lie for lie in sorted(lies) if lie > right[-1] and lie not in truth]
    place = index.cached_path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(index_bytes(path, right + wrong))
    skip = data.draw(st.integers(0, len(records)))
    take = data.draw(st.integers(0, len(records) - skip))
    assert list(tfrecords(path, skip, take)) == records[skip : skip + take]


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data[:31], id="head cut off"),
        pytest.param(lambda data: data[:-8], id="a place less"),
        pytest.param(lambda data: data[:-3], id="cut off"),
        pytest.param(lambda data: data + bytes(8), id="longer"),
        pytest.param(lambda data: b"r2r-idx2" + data[8:], id="another version"),
        pytest.param(lambda data: data[:8] + bytes([data[8] ^ 1]) + data[9:], id="another size"),
        pytest.param(lambda data: data[:16] + bytes([data[16] ^ 1]) + data[17:], id="another time"),
        pytest.param(lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:], id="another place"),
        pytest.param(lambda data: data * 1000, id="far too long"),
        pytest.param(lambda data: bytes(len(data)), id="zeros"),
    ],
)
@pytest.mark.parametrize("beside", [False, True])
def test_a_spoiled_index_is_as_good_as_none(shard: Path, spoil: Callable[[bytes], bytes], beside: bool) -> None:
    place = indexed(shard, 150, beside)
    place.write_bytes(spoil(place.read_bytes()))
    assert known(shard) == [0]
    assert list(tfrecords(shard, 100, 10)) == RECORDS[100:110]


@pytest.mark.parametrize(
    "places",
    [
        [],
        [16, 32],
        [0, 15],
        [0, 40, 40],
        [0, 60, 40],
        [0, 1 << 40],
        [0, 40, (1 << 64) - 1],
        [0, (1 << 64) - 16, 40],
    ],
)
def test_places_that_no_shard_has_are_refused_whatever_their_digest_says(shard: Path, places: list[int]) -> None:
    place = index.cached_path(shard)
    place.parent.mkdir(parents=True)
    place.write_bytes(index_bytes(shard, places))
    assert known(shard) == [0]


def test_what_is_no_file_is_not_waited_for(shard: Path) -> None:
    os.mkfifo(index.beside_path(shard))
    assert list(tfrecords(shard, 100, 10)) == RECORDS[100:110]


def test_a_place_without_its_head_is_not_used_and_its_index_is_replaced(shard: Path, eager: None) -> None:
    truth = places_of(RECORDS)
    place = index.cached_path(shard)
    place.parent.mkdir(parents=True)
    wrong = truth[:100] + [offset + 1 for offset in truth[100:-1]] + truth[-1:]
    place.write_bytes(index_bytes(shard, wrong))
    assert list(tfrecords(shard, 120, 3)) == RECORDS[120:123]
    assert known(shard) == truth[:124]


def test_of_a_start_that_is_wrong_nothing_is_kept(shard: Path, eager: None) -> None:
    place = index.cached_path(shard)
    place.parent.mkdir(parents=True)
    place.write_bytes(index_bytes(shard, [0, 30, 60, 99]))
    assert list(tfrecords(shard, 120, 3)) == RECORDS[120:123]
    assert known(shard) == places_of(RECORDS)[:124]


def test_a_shard_that_was_written_anew_is_walked_over_anew(shard: Path, eager: None) -> None:
    for beside in (False, True):
        indexed(shard, 150, beside)
    other = RECORDS[::-1]
    tfrecord(shard, other)
    os.utime(shard, ns=(1, 1))
    assert known(shard) == [0]
    assert list(tfrecords(shard, 100, 10)) == other[100:110]
    assert known(shard) == places_of(other)[:111]


def test_reading_leaves_an_index_of_what_was_read(shard: Path, eager: None) -> None:
    assert known(shard) == [0]
    some = tfrecords(shard, 0, 150)
    assert [next(some) for _ in range(20)] == RECORDS[:20]
    some.close()  # type: ignore[attr-defined]
    assert known(shard) == places_of(RECORDS)[:21]
    list(tfrecords(shard, 50, 10))
    assert known(shard) == places_of(RECORDS)[:61]
    list(tfrecords(shard, 30, 10))
    assert known(shard) == places_of(RECORDS)[:61]
    list(tfrecords(shard, 0, 150))
    assert known(shard) == places_of(RECORDS)


def test_little_is_read_without_a_trace(shard: Path, own_cache: Path) -> None:
    list(tfrecords(shard, 0, 150))
    list(tfrecords(shard, 100, 10))
    assert not own_cache.exists()


@pytest.mark.parametrize("skip", [0, 2])
def test_damage_is_found_as_without_an_index(scratch: Path, skip: int) -> None:
    records = [b"", b"a", bytes(range(40)), b"the last one"]
    good = framed(records)
    for place in range(len(good)):
        kept = indexed(tfrecord(scratch, records), 4)
        damaged = bytearray(good)
        damaged[place] ^= 0x40
        scratch.write_bytes(damaged)
        plain = outcome_of(SourceError, lambda: list(tfrecords(scratch, skip, 4 - skip)))
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(index_bytes(scratch, places_of(records)))
        found = outcome_of(SourceError, lambda: list(tfrecords(scratch, skip, 4 - skip)))
        jumped_over = places_of(records)[skip]
        if place >= jumped_over:
            assert str(found) == str(plain)
        else:
            assert found == records[skip:]  # what lies before is not looked at


def test_a_cache_that_cannot_be_written_costs_time_only(
    shard: Path, eager: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RLDS2REVERB_CACHE", str(tmp_path / "file"))
    assert list(tfrecords(shard, 100, 10)) == RECORDS[100:110]
    with pytest.raises(WriteError, match=r"cannot be written: .*RLDS2REVERB_CACHE=FOLDER"):
        indexed(shard, 150)


def test_one_shard_has_one_index_whatever_leads_to_it(shard: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(shard)
    assert index.cached_path(tmp_path / "link") == index.cached_path(shard)
    assert index.cached_path(tmp_path / "other") != index.cached_path(shard)


@pytest.mark.parametrize(
    ("records", "said"), [(149, "more than the 149 records"), (151, "before the end of record 150")]
)
def test_a_shard_with_another_number_of_records_gets_no_index(shard: Path, records: int, said: str) -> None:
    with pytest.raises(SourceError, match=said):
        indexed(shard, records)
    assert known(shard) == [0]


def test_progress_counts_every_record(shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds2reverb.formats.tfds.tfrecord._WALKED_AT_ONCE", 40)
    told: list[int] = []
    index_file(shard, 150, False, told.append)
    assert sum(told) == 150
    assert len(told) > 3


def test_processes_that_write_one_index_at_once_leave_a_whole_one(shard: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from rlds2reverb.formats.tfds.tfrecord import index_file, tfrecords\n"
        "for _ in range(50):\n"
        "    index_file(Path(sys.argv[1]), 150, False, lambda _: None)\n"
        "    assert len(list(tfrecords(Path(sys.argv[1]), 100, 10))) == 10\n"
    )
    both = [subprocess.Popen([sys.executable, "-c", program, str(shard)]) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert known(shard) == places_of(RECORDS)
    assert [path.name for path in index.cached_path(shard).parent.iterdir()] == [index.cached_path(shard).name]


# Datasets.


def copied(folder: Path) -> Path:
    return Path(shutil.copytree(bundled_path("cartpole"), folder))


@pytest.mark.parametrize("beside", [False, True])
def test_a_dataset_has_the_same_episodes_with_indexes(tmp_path: Path, beside: bool) -> None:
    folder = copied(tmp_path / "data")
    names = [episode.id for episode in open_source(f"tfds:{folder}")]
    before = sorted(path.name for path in folder.iterdir())
    source = open_source(f"tfds:{folder}")
    (one,) = source.selection.index(beside, lambda _: None)  # type: ignore[attr-defined]
    assert (one.records, Path(one.index).parent == folder) == (25, beside)
    there = sorted(path.name for path in folder.iterdir())
    assert [name for name in there if name not in before] == (
        [f"{Path(one.file).name}{index.SUFFIX}"] if beside else []
    )
    for part in ("train", "train[10:20]", "train[24:]", "train[:5]+train[3:9]"):
        found = [episode.id for episode in open_source(f"tfds:{folder}@{part}")]
        assert found == {"train": names, "train[10:20]": names[10:20], "train[24:]": names[24:]}.get(
            part, names[:5] + names[3:9]
        )
    assert [episode.id for episode in source.episodes(12, 14)] == names[12:14]


@pytest.mark.full
def test_tfds_reads_a_dataset_with_indexes_beside_its_shards(tmp_path: Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    folder = copied(tmp_path / "data")
    before = [dict(example) for example in tfds.builder_from_directory(folder).as_dataset("train[10:12]")]
    list(open_source(f"tfds:{folder}").selection.index(True, lambda _: None))  # type: ignore[attr-defined]
    assert list(folder.glob(f"*{index.SUFFIX}"))
    builder = tfds.builder_from_directory(folder)
    assert len(list(builder.as_dataset("train[10:12]"))) == len(before) == 2
    assert len(list(builder.as_dataset("train"))) == builder.info.splits["train"].num_examples == 25


# Buckets.


SIZE = 13 << 20


@pytest.fixture(scope="module")
def large(storage: Storage) -> tuple[str, list[bytes]]:
    """An object of many records, and they."""
    drawn = random.Random(7)
    records = [drawn.randbytes(drawn.randrange(100, 20_000)) for _ in range(SIZE // 10_000)]
    storage.create("shards")
    storage.put("shards", "shard", framed(records))
    return "s3://shards/shard", records


def asked_bytes(cloud: Faults) -> int:
    spans = [request.range.removeprefix("bytes=").split("-") for request in cloud.requests if request.range]
    return sum(int(stop) - int(start) + 1 for start, stop in spans)


def test_of_an_object_only_the_asked_records_are_asked_for(large: tuple[str, list[bytes]], cloud: Faults) -> None:
    path, records = path_of(large[0]), large[1]
    place = indexed(path, len(records))
    assert place == index.cached_path(path)
    for skip, take in ((600, 10), (0, 1), (len(records) - 1, 1), (300, 700)):
        cloud.requests.clear()
        assert list(tfrecords(path, skip, take)) == records[skip : skip + take]
        if skip:
            assert asked_bytes(cloud) == sum(len(record) + 16 for record in records[skip : skip + take])


@pytest.mark.parametrize("wrong", [601, 604, 610])
def test_a_wrong_end_of_the_records_of_an_object_costs_time_only(
    large: tuple[str, list[bytes]], cloud: Faults, wrong: int
) -> None:
    path, records = path_of(large[0]), large[1]
    places = places_of(records)
    places = [*places[:wrong], places[wrong] - 3, *places[wrong + 1 :]]
    place = index.cached_path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(index_bytes(path, places))
    for _ in range(2):
        assert list(tfrecords(path, 600, 10)) == records[600:610]
    assert not place.exists() or known(path) == places_of(records)[: len(known(path))]


def test_more_records_than_bytes_are_refused_before_they_are_counted(tmp_path: Path) -> None:
    shutil.copytree(bundled_path("cartpole"), tmp_path / "cartpole")
    info = tmp_path / "cartpole" / "dataset_info.json"
    info.write_text(re.sub(r'("shardLengths": \[\s*)"\d+"', r'\g<1>"100000000000000"', info.read_text()))
    source = open_source(f"tfds:{tmp_path / 'cartpole'}@train")
    with pytest.raises(SourceError, match=r"expected 100,000,000,000,000 records, .* bytes cannot hold them"):
        selection_of(source).rows(lambda record: 1)


def test_a_part_of_an_object_is_kept_in_whole_blocks(
    large: tuple[str, list[bytes]], cloud: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLDS2REVERB_CACHE_BYTES", "100MB")
    path, records = path_of(large[0]), large[1]
    indexed(path, len(records))
    for skip, take in ((600, 10), (300, 700), (600, 10), (len(records) - 1, 1)):
        assert list(tfrecords(path, skip, take)) == records[skip : skip + take]
    assert path.read_bytes() == framed(records)
    cloud.requests.clear()
    assert list(tfrecords(path, 5, 20)) == records[5:25]
    assert asked_bytes(cloud) == 0


def test_episodes_in_a_bucket_are_asked_for_one_by_one(
    storage: Storage, cloud: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.create("datasets")
    storage.upload(bundled_path("cartpole"), "datasets", "cartpole")
    monkeypatch.setattr(selection, "_READ_ANYWAY_BYTES", 0)
    there, here = open_source("tfds:s3://datasets/cartpole@train"), open_source("bundled:cartpole@train")
    wanted, whole = [3, 4, 12, 20], list(here)
    indexed(path_of("s3://datasets/cartpole/cartpole-train.tfrecord-00000"), len(whole))
    cloud.requests.clear()
    assert {number: episode.id for number, episode in there.at(wanted)} == {
        number: whole[number].id for number in wanted
    }
    assert asked_bytes(cloud) < 8 * max(chunk.nbytes for chunk in whole)
    assert sum(1 for request in cloud.requests if request.range) == 3


def test_ranges_of_episodes_ask_for_each_byte_once(storage: Storage, cloud: Faults) -> None:
    """As workers get them."""
    drawn = random.Random(8)
    records = [drawn.randbytes(drawn.randrange(1, 400_000)) for _ in range(60)]
    storage.create("ranges")
    storage.put("ranges", "shard", framed(records))
    path = path_of("s3://ranges/shard")
    indexed(path, len(records))
    cloud.requests.clear()
    for task in split_tasks(len(records), 2):
        assert list(tfrecords(path, task.start, task.episodes)) == records[task.start : task.stop]
    assert asked_bytes(cloud) == path.stat().st_size


def test_of_large_records_a_walk_asks_for_little_more_than_the_heads(storage: Storage, cloud: Faults) -> None:
    path, records = path_of("s3://heads/shard"), [bytes(5 << 20)] * 6
    storage.create("heads")
    storage.put("heads", "shard", framed(records))
    assert Path(indexed(path, 6)).is_file()
    assert known(path) == places_of(records)
    assert asked_bytes(cloud) <= 6 << 20  # a block of 1 MiB each


def test_an_object_that_was_written_anew_is_walked_over_anew(storage: Storage, cloud: Faults, eager: None) -> None:
    from rlds2reverb.formats.objects import forget

    path, other = path_of("s3://again/shard"), RECORDS[::-1]
    storage.create("again")
    storage.put("again", "shard", framed(RECORDS))
    indexed(path, 150)
    storage.put("again", "shard", framed(other))
    forget()
    assert known(path) == [0]
    assert list(tfrecords(path, 100, 10)) == other[100:110]


def test_nothing_is_put_beside_an_object(large: tuple[str, list[bytes]], cloud: Faults) -> None:
    with pytest.raises(SourceError, match="no index is put beside it: it is in a bucket; leave --beside out"):
        indexed(path_of(large[0]), len(large[1]), beside=True)
    assert cloud.requests == []


def test_a_file_of_the_hub_is_told_from_another_one_of_its_size() -> None:
    from rlds2reverb.formats.objects import Entry

    stamps = {Entry(5, 0, "", blob).stat().st_mtime_ns for blob in ("one", "two", "")}
    assert len(stamps) == 3


def test_what_is_beside_a_shard_counts_without_a_cache_folder(shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    indexed(shard, len(RECORDS), beside=True)

    def refuse(path: Path, kind: str = "index") -> Path:
        raise ConfigError(f"{path}: no folder for a cache of the {kind}")

    monkeypatch.setattr(index, "cached_path", refuse)
    assert len(index.load(shard, stamp_of(shard))) > 1
