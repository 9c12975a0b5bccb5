"""What docs/wire.md says of Reverb's server and lists as observed, fact by fact; `make conformance REVERB=...` tries another Reverb.

Only our wire is used, so the Reverb that is tried need not run in this process; see `tests.support.other_reverb`.
"""

from __future__ import annotations

import re
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_server import TableConfig
from replay_server.files import DONE, RECORD_FILES
from replay_server.tables import MinSize

from rlds2reverb.errors import TransportError
from rlds2reverb.formats import open_source
from rlds2reverb.transport.grpc import GrpcTransport
from rlds2reverb.wire import codec
from rlds2reverb.wire.messages import SampleRequest
from rlds2reverb.wire.sample import plain
from rlds2reverb.wire.schema import message_class
from tests.support.contract.transport import Feed, apart, changed_message, insert, message_of
from tests.support.other_reverb import ReverbServer
from tests.support.processes import wait_until
from tests.support.project import ROOT

pytestmark = [pytest.mark.server, pytest.mark.full, pytest.mark.timeout(240)]

SECONDS = 60.0
ANY = TableConfig("plain", max_size=1000)
TWICE = TableConfig("twice", sampler="fifo", max_size=1000, max_times_sampled=2)
SMALL = TableConfig("small", sampler="fifo", remover="fifo", max_size=3)
TABLES = (ANY, TWICE, SMALL)


@pytest.fixture(scope="module")
def server() -> Iterator[ReverbServer]:
    with ReverbServer(*TABLES) as running:
        assert running.has_started, running.errors
        yield running


@pytest.fixture
def transport(server: ReverbServer) -> Iterator[GrpcTransport]:
    opened = GrpcTransport(server.address)
    for table in TABLES:
        opened.reset(table.name)
    yield opened
    opened.close()


def info_of(transport: GrpcTransport, table: TableConfig = ANY) -> Any:
    return transport.server_info().tables[table.name]


def sample(transport: GrpcTransport, table: TableConfig, count: int, timeout_seconds: float = SECONDS) -> list[Any]:
    request = codec.encode_sample_request(SampleRequest(table.name, count, timeout_seconds))
    stream = transport.sample_stream(iter([request]))
    samples, unfinished = list[Any](), b""
    try:
        for message in stream:
            read, unfinished = plain.read(unfinished + message)
            samples += read
            if len(samples) >= count:
                break
    finally:
        stream.end()
    return samples


def keys_of(samples: list[Any]) -> list[int]:
    return [read.info[0] for read in samples]


def refusal_of(transport: GrpcTransport, *messages: bytes) -> str:
    feed = Feed(*messages)
    stream = transport.insert_stream(iter(feed))
    try:
        with pytest.raises(TransportError) as raised:
            list(stream)
    finally:
        feed.give(None)
        stream.end()
    return str(raised.value)


# Keys and tables.


def test_fact_1_a_state_id_is_of_one_process(transport: GrpcTransport) -> None:
    assert transport.server_info().state_id == transport.server_info().state_id
    with ReverbServer(*TABLES) as another:
        other = GrpcTransport(another.address)
        assert other.server_info().state_id != transport.server_info().state_id
        other.close()


def test_fact_2_unknown_keys_of_changes_are_passed_over(transport: GrpcTransport) -> None:
    insert(transport, [message_of(key) for key in (1, 2, 3)])
    transport.delete_items(ANY.name, np.array([2, 99], np.uint64))
    transport.update_priorities(ANY.name, np.array([98, 1], np.uint64), np.array([5.0, 7.0]))
    assert info_of(transport).current_size == 2
    assert {(key, priority) for key, _, _, priority, _ in (read.info for read in sample(transport, ANY, 40))} == {
        (1, 7.0),
        (3, 1.0),
    }


def test_fact_3_a_known_key_is_assigned_and_a_new_one_is_an_insert(transport: GrpcTransport) -> None:
    insert(transport, [message_of(key) for key in (1, 2)])
    insert(transport, [message_of(1, priority=9.0, seed=1)])
    table = info_of(transport)
    assert (table.current_size, table.rate_limiter.inserts) == (2, 2)
    assert (1, 9.0) in {(read.info[0], read.info[3]) for read in sample(transport, ANY, 40)}


def test_fact_4_a_full_table_evicts_in_silence(transport: GrpcTransport) -> None:
    assert sorted(insert(transport, [message_of(key, SMALL.name) for key in range(1, 6)])) == [1, 2, 3, 4, 5]
    table = info_of(transport, SMALL)
    assert (table.current_size, table.rate_limiter.inserts) == (3, 5)
    assert {*keys_of(sample(transport, SMALL, 9))} == {3}, "first in first out, and sampling removes nothing"


def test_fact_5_an_item_goes_when_it_was_sampled_often_enough(transport: GrpcTransport) -> None:
    insert(transport, [message_of(key, TWICE.name) for key in (1, 2)])
    assert keys_of(sample(transport, TWICE, 4)) == [1, 1, 2, 2]
    assert info_of(transport, TWICE).current_size == 0


# Streams.


@pytest.mark.parametrize("is_kept", [False, True])
def test_fact_6_a_request_with_items_forgets_the_chunks_that_it_does_not_keep(
    transport: GrpcTransport, is_kept: bool
) -> None:
    whole = message_class("InsertStreamRequest").FromString(message_of(3))
    _, items = apart(whole.SerializeToString())
    if is_kept:
        whole.keep_chunk_keys.extend(chunk.chunk_key for chunk in whole.chunks)
        assert {*insert(transport, [whole.SerializeToString(), items])} == {3}
    else:
        assert "INTERNAL" in refusal_of(transport, whole.SerializeToString(), items)


def test_fact_7_only_chunks_that_are_held_may_be_kept(transport: GrpcTransport) -> None:
    message = changed_message(lambda request: request.keep_chunk_keys.append(12345))
    assert "FAILED_PRECONDITION" in refusal_of(transport, message)


def test_fact_8_a_sample_timeout_of_0_is_none(transport: GrpcTransport) -> None:
    with pytest.raises(TransportError, match="DEADLINE_EXCEEDED"):
        sample(transport, ANY, 1, timeout_seconds=0.2)
    request = message_class("SampleStreamRequest")(table=ANY.name, num_samples=1)
    request.rate_limiter_timeout.milliseconds = 0
    feed = Feed(request.SerializeToString())
    stream = transport.sample_stream(iter(feed))
    try:
        wait_until(lambda: info_of(transport).current_size == 0)
        insert(transport, [message_of(4)])
        samples, _ = plain.read(next(iter(stream)))
    finally:
        feed.give(None)
        stream.end()
    assert keys_of(samples) == [4]


def test_fact_9_a_large_sample_comes_in_entries_of_which_the_first_says_what_it_is(transport: GrpcTransport) -> None:
    def grow(request: Any) -> None:
        """Ten megabytes in chunks of one."""
        chunk, item = request.chunks[0], request.items[0]
        item.key, item.table = 5, ANY.name
        tensor = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)
        del item.flat_trajectory.columns[:]
        del request.chunks[:]
        column = item.flat_trajectory.columns.add()
        for number in range(10):
            other = request.chunks.add()
            other.CopyFrom(chunk)
            other.chunk_key = chunk.chunk_key + 1 + number
            proto = message_class("Tensor")(dtype=4, tensor_content=bytes(codec.content_bytes(tensor)))
            for size in (1, len(tensor)):
                proto.tensor_shape.dim.add(size=size)
            del other.data.tensors[:]
            other.data.tensors.add().CopyFrom(proto)
            other.data_tensors_len, other.sequence_range.start, other.sequence_range.end = 1, number, number
            column.chunk_slices.add(chunk_key=other.chunk_key, offset=0, length=1, index=0)

    assert insert(transport, [changed_message(grow)]) == [5]
    request = codec.encode_sample_request(SampleRequest(ANY.name, 1, SECONDS))
    entries: list[Any] = []
    stream = transport.sample_stream(iter([request]))
    for message in stream:
        entries += message_class("SampleStreamResponse").FromString(message).entries
        if entries[-1].end_of_sequence:
            break
    stream.end()
    assert len(entries) > 1
    assert [entry.HasField("info") for entry in entries] == [True, *[False] * (len(entries) - 1)]
    assert [entry.end_of_sequence for entry in entries] == [*[False] * (len(entries) - 1), True]


# Checkpoints.


def entries_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_fact_10_an_entry_is_called_by_its_time_and_has_four_files(tmp_path: Path) -> None:
    with ReverbServer(*TABLES, folder=tmp_path) as server:
        transport = GrpcTransport(server.address)
        insert(transport, [message_of(key) for key in (1, 2)])
        path = Path(transport.checkpoint(SECONDS))
        transport.close()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+[+-][\d:]+", path.name), path.name
    assert [path, *entries_in(path)] == [
        *entries_in(tmp_path),
        *(path / name for name in sorted((*RECORD_FILES, DONE))),
    ]
    assert (path / DONE).read_bytes() == b""
    for name in RECORD_FILES:
        assert zlib.decompress((path / name).read_bytes()) or name != RECORD_FILES[0]
    items = [*open_source(f"reverb:{path}?table={ANY.name},as=items")]
    assert len(items) == 2


def test_fact_11_one_entry_is_kept_and_every_other_one_deleted_by_its_name(tmp_path: Path) -> None:
    with ReverbServer(*TABLES, folder=tmp_path) as server:
        transport = GrpcTransport(server.address)
        first = Path(transport.checkpoint(SECONDS))
        second = Path(transport.checkpoint(SECONDS))
        assert (entries_in(tmp_path), first.exists()) == ([second], False)
        (tmp_path / "lost+found").mkdir()
        third = Path(transport.checkpoint(SECONDS))
        assert (entries_in(tmp_path), third.exists()) == ([tmp_path / "lost+found"], False)
        transport.close()


def test_fact_12_a_checkpoint_has_what_was_confirmed_before_and_calls_go_on_after_it(tmp_path: Path) -> None:
    def fill(request: Any) -> None:
        """32 MB that do not shrink, so that they take a while to be written."""
        tensor = np.random.default_rng(1).integers(0, 256, (2, 1 << 24), np.uint8)
        proto = request.chunks[0].data.tensors[0]
        proto.dtype, proto.tensor_content = 4, bytes(codec.content_bytes(tensor))
        del proto.tensor_shape.dim[:]
        for size in tensor.shape:
            proto.tensor_shape.dim.add(size=size)

    with ReverbServer(*TABLES, folder=tmp_path) as server:
        transport, other = GrpcTransport(server.address), GrpcTransport(server.address)
        insert(transport, [changed_message(fill), *(message_of(key, SMALL.name) for key in (1, 2))])
        paths: list[str] = []
        writing = threading.Thread(target=lambda: paths.append(transport.checkpoint(SECONDS)))
        writing.start()
        wait_until(lambda: any(tmp_path.glob(f"*/{RECORD_FILES[0]}")))
        assert insert(other, [message_of(77, SMALL.name)]) == [77]
        assert sample(other, SMALL, 1)
        writing.join()
        assert info_of(transport, SMALL).current_size == 3
        transport.close()
        other.close()
    assert len([*open_source(f"reverb:{paths[0]}?table={SMALL.name},as=items")]) in (2, 3)


def test_fact_13_a_restored_table_is_as_its_checkpoint_has_it(tmp_path: Path) -> None:
    with ReverbServer(*TABLES, folder=tmp_path) as server:
        transport = GrpcTransport(server.address)
        insert(transport, [message_of(key, SMALL.name) for key in range(1, 6)])
        keys_of(sample(transport, SMALL, 7))
        before = info_of(transport, SMALL)
        transport.checkpoint(SECONDS)
        transport.close()
    changed = TableConfig(SMALL.name, sampler="lifo", max_size=50, rate_limiter=MinSize(2))
    with ReverbServer(ANY, TWICE, changed, folder=tmp_path) as server:
        transport = GrpcTransport(server.address)
        after = info_of(transport, SMALL)
        transport.close()
    for name in ("max_size", "sampler", "remover", "current_size", "deleted_episodes", "unique_samples"):
        assert getattr(after, name) == getattr(before, name), name
    limits = [(table.rate_limiter.inserts, table.rate_limiter.samples) for table in (before, after)]
    assert limits[0] == limits[1]


def test_fact_14_a_start_without_a_table_of_the_checkpoint_is_refused(tmp_path: Path) -> None:
    with ReverbServer(*TABLES, folder=tmp_path) as server:
        transport = GrpcTransport(server.address)
        transport.checkpoint(SECONDS)
        transport.close()
    with ReverbServer(ANY, folder=tmp_path) as server:
        assert not server.has_started
    assert SMALL.name in server.errors or TWICE.name in server.errors


def test_fact_15_a_truncated_newest_entry_refuses_the_start(tmp_path: Path) -> None:
    with ReverbServer(*TABLES, folder=tmp_path) as server:
        transport = GrpcTransport(server.address)
        insert(transport, [message_of(key) for key in range(1, 9)])
        path = Path(transport.checkpoint(SECONDS))
        transport.close()
    older = tmp_path / f"2000{path.name[4:]}"
    older.mkdir()
    for file in path.iterdir():
        (older / file.name).write_bytes(file.read_bytes())
    chunks = path / RECORD_FILES[2]
    chunks.write_bytes(chunks.read_bytes()[:-40])
    with ReverbServer(*TABLES, folder=tmp_path) as server:
        assert not server.has_started, "the older entry is not taken"


# Whether all are here.

_ROW = re.compile(r"^\| (\d+) \| ([^|]+) \|$", re.MULTILINE)


def page() -> str:
    return (ROOT / "docs/wire.md").read_text()


def facts() -> dict[int, str]:
    return {int(number): words for number, words in _ROW.findall(page().partition("## Observed facts")[2])}


def test_every_fact_of_the_page_has_a_test_and_every_test_a_fact() -> None:
    tests = re.findall(r"^def test_fact_(\d+)_", Path(__file__).read_text(), re.MULTILINE)
    assert sorted(map(int, tests)) == sorted(facts()) == [*range(1, len(facts()) + 1)]


def test_all_that_the_page_marks_as_observed_names_its_fact() -> None:
    text, _, _ = page().partition("## Observed facts")
    marks = re.findall(r"\*observed\*(?:, facts? ([\d, and]+))?", text.partition("\n## ")[2])
    assert marks
    for mark in marks:
        numbers = {*map(int, re.findall(r"\d+", mark))}
        assert numbers, "an observation without a fact"
        assert numbers <= facts().keys()
