"""Checkpoints in a bucket: sent whole or not at all, by one server, rotated there; and taken from there whole or not at all."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from replay_server import uploads as uploads_module
from replay_server.choosing import find_start
from replay_server.config import CheckpointSection, decode
from replay_server.errors import CannotKeepError, CheckpointError, CheckpointUnreadable, StartStopped
from replay_server.files import MANIFEST
from replay_server.restore import outlook, prepare
from replay_server.retention import Keep
from replay_server.start_from import OlderStart
from replay_server.store import CheckpointStore, CopyOfOlder, decode_manifest, read_manifest
from replay_server.tables import TableConfig
from replay_server.uploads import (
    FETCHED,
    OWNER,
    UPLOAD_ID,
    Fetching,
    Uploads,
    check_place,
    look,
    start_from,
    take_over,
)

from rlds2reverb.errors import ConfigError
from rlds2reverb.formats import objects
from rlds2reverb.formats.buckets import BucketPath
from rlds2reverb.formats.objects import access
from tests.support.buckets import Faults, Request, Storage, environment
from tests.support.disks import small_disk_at
from tests.support.forks import Forks
from tests.support.processes import eventually, wait_until
from tests.support.server_running import Server
from tests.unit.server.test_service import config_of, insert, metrics, take
from tests.unit.server.test_store import add, opened

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

GENERATIONS = "generations"


@pytest.fixture
def place(storage: Storage, cloud: Faults, tmp_path: Path, request: pytest.FixtureRequest) -> BucketPath:
    """A place in a bucket, in which nothing is; of `s3://` or the scheme that the test names."""
    storage.create("checkpoints")
    return BucketPath(f"{getattr(request, 'param', 's3')}://checkpoints/{tmp_path.name}/replay")


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return opened(tmp_path / "checkpoints")


def sent(store: CheckpointStore, place: BucketPath, *numbers: int, keep: int = 3) -> Uploads:
    """Made-up checkpoints, written and sent one after the other."""
    uploads = Uploads(store, place, Keep(last=keep))
    uploads.start(None)
    for number in numbers:
        uploads.note(add(store, number))
        wait_until(lambda: not uploads.state.waiting, reason=lambda: uploads.state)
    return uploads


def objects_in(place: BucketPath) -> list[str]:
    objects.forget()
    return [str(path.relative_to(place)) for path in place.walk()]


def whole(place: BucketPath) -> list[int]:
    objects.forget()
    return [checkpoint.number for checkpoint in look(place).whole]


def left_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*")) if folder.exists() else []


@pytest.mark.parametrize("place", ["s3", "gs"], indirect=True)
def test_checkpoints_are_sent_as_they_come_and_the_oldest_go(store: CheckpointStore, place: BucketPath) -> None:
    uploads = sent(store, place, 1, 2, 3, 4, keep=2)
    wait_until(lambda: uploads.state.count == 2)
    assert whole(place) == [4, 3]
    assert {name.split("/")[1] for name in objects_in(place) if GENERATIONS in name} == {"000003", "000004"}
    status = uploads.status()
    assert (status["generations"], status["last"]["generation"], status["behind_seconds"]) == (2, 4, 0)
    assert (status["failures"], status["last_error"], status["sending"], status["waiting"]) == (0, "", None, 0)
    uploads.finish(60)


@pytest.mark.parametrize("place", ["s3", "gs"], indirect=True)
def test_what_was_sent_is_what_a_start_takes(store: CheckpointStore, place: BucketPath, tmp_path: Path) -> None:
    sent(store, place, 1, 2)
    for named in (place, place / GENERATIONS / "000002"):
        with start_from(CheckpointSection(start_from=str(named)), tmp_path / FETCHED) as found:
            assert found is not None
            assert (found.place, found.number) == (place / GENERATIONS / "000002", 2)
            copy = shutil.copytree(found.folder, tmp_path / named.name)
        assert not (tmp_path / FETCHED).exists()
        manifest = decode_manifest((store.kept / "000002" / MANIFEST).read_bytes(), copy)
        assert {path.name: path.stat().st_size for path in copy.iterdir()} == {
            name: entry.bytes for name, entry in manifest.files.items()
        }


def damage(place: BucketPath, number: int, name: str, how: str) -> None:
    path = place / GENERATIONS / f"{number:06d}" / name
    data = path.read_bytes()
    if how == "removed":
        path.remove()
    elif how == "shorter":
        path.upload_bytes(data[:-1])
    else:
        path.upload_bytes(bytes(len(data)))
    objects.forget()


@pytest.mark.parametrize("name", ["tables.tfrecord", "chunks.tfrecord", MANIFEST])
@pytest.mark.parametrize("how", ["removed", "shorter", "changed"])
def test_a_damaged_one_is_never_taken(
    store: CheckpointStore, place: BucketPath, tmp_path: Path, name: str, how: str
) -> None:
    sent(store, place, 1, 2)
    damage(place, 2, name, how)
    section = CheckpointSection(start_from=str(place))
    with start_from(section, tmp_path / FETCHED) as found:
        assert found is not None
        assert (found.number, which_copy(found.folder, store)) == (1, 1)
        passed_over = [checkpoint.path for checkpoint in found.unloaded]
    assert passed_over == ([] if (name, how) == (MANIFEST, "removed") else [place / GENERATIONS / "000002"])
    damage(place, 1, name, how)
    with (
        pytest.raises(CheckpointError, match=r"^checkpoints\.start_from: ") as error,
        start_from(section, tmp_path / FETCHED),
    ):
        pass
    assert not isinstance(error.value, CheckpointUnreadable)
    assert left_in(tmp_path / FETCHED) == []


def which_copy(folder: Path, store: CheckpointStore) -> int:
    """The number of the checkpoint of which this is a copy."""
    for path in store.paths():
        if all((path / entry.name).read_bytes() == entry.read_bytes() for entry in folder.iterdir()):
            return int(path.name)
    return 0


def test_one_that_cannot_be_read_stops_a_start_as_on_a_disk(
    store: CheckpointStore, place: BucketPath, cloud: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent(store, place, 1, 2)
    objects.forget()
    section = CheckpointSection(start_from=str(place))
    monkeypatch.setattr(access, "_PAUSES", ())
    cloud.before = lambda request: 403 if "000002/chunks" in request.path else None
    with (
        pytest.raises(CheckpointUnreadable, match=r"000002/chunks\.tfrecord: access was refused"),
        start_from(section, tmp_path / FETCHED),
    ):
        pass
    cloud.before = lambda _: None
    cloud.cut = lambda request: "000002/items" in request.path
    with (
        pytest.raises(CheckpointUnreadable, match=r"000002/items\.tfrecord.*checkpoint 1 is older"),
        start_from(section, tmp_path / FETCHED),
    ):
        pass
    assert left_in(tmp_path / FETCHED) == []
    found = outlook(CheckpointSection(folder=str(tmp_path / "new"), start_from=f"{place}-nothing"), ())
    assert "expected a checkpoint folder" in found.refusal


def test_a_disk_without_room_takes_nothing(store: CheckpointStore, place: BucketPath, tmp_path: Path) -> None:
    sent(store, place, 1)
    with small_disk_at(tmp_path / "disk", 1 << 14) as disk:
        (disk / "filler").write_bytes(bytes(1 << 14))
        with (
            pytest.raises(CannotKeepError, match=r"make room on the disk"),
            start_from(CheckpointSection(start_from=str(place)), disk / FETCHED),
        ):
            pass
        assert not (disk / FETCHED).exists()


def test_a_stop_ends_a_start_that_fetches(store: CheckpointStore, place: BucketPath, tmp_path: Path) -> None:
    sent(store, place, 1)
    section = CheckpointSection(start_from=str(place))
    with (
        pytest.raises(StartStopped, match=r"tables\.tfrecord: stopped after 0 bytes"),
        start_from(section, tmp_path / FETCHED, lambda: True),
    ):
        pass
    assert not (tmp_path / FETCHED).exists()


def test_what_was_not_sent_to_its_end_is_removed_and_never_taken(
    store: CheckpointStore, place: BucketPath, tmp_path: Path
) -> None:
    (place / GENERATIONS / "000007" / "chunks.tfrecord").upload_bytes(b"half")
    with pytest.raises(CheckpointError, match="expected a checkpoint folder"):
        find_start(str(place), Fetching(tmp_path / FETCHED))
    sent(store, place, 1)
    assert whole(place) == [1]
    assert not any("000007" in name for name in objects_in(place))


def test_one_that_is_rotated_away_while_it_is_sent_is_given_up(
    store: CheckpointStore, place: BucketPath, cloud: Faults
) -> None:
    uploads = Uploads(store, place, Keep(last=3))

    def rotate(request: Request) -> None:
        if "000001/tables" in request.path and request.method == "PUT":
            shutil.rmtree(store.kept / "000001")
            uploads.note(add(store, 2))

    cloud.before_write = rotate
    first = add(store, 1)
    uploads.start(first)
    wait_until(lambda: not uploads.state.waiting)
    assert (whole(place), uploads.state.failures) == ([2], 1)
    assert not any("000001" in name for name in objects_in(place))


def test_a_damaged_checkpoint_is_not_sent(store: CheckpointStore, place: BucketPath) -> None:
    uploads = sent(store, place, 1)
    damaged = add(store, 2)
    (damaged.folder / "items.tfrecord").write_bytes(b"damaged")
    uploads.note(damaged)
    wait_until(lambda: uploads.state.failures > 0)
    assert "items.tfrecord: 7 bytes" in uploads.state.last_error
    assert whole(place) == [1]
    shutil.rmtree(damaged.folder)
    uploads.finish(60)


def test_a_refusal_is_counted_and_tried_again(store: CheckpointStore, place: BucketPath, cloud: Faults) -> None:
    cloud.before_write = lambda _: 403
    uploads = Uploads(store, place, Keep(last=3))
    uploads.start(add(store, 1))
    wait_until(lambda: uploads.state.failures >= 2)
    assert "access was refused" in uploads.status()["last_error"]
    assert uploads.status()["waiting"] > 0
    assert uploads.state.behind_seconds > 0
    uploads.note(add(store, 2))
    cloud.before_write = lambda _: None
    wait_until(lambda: not uploads.state.waiting)
    assert (whole(place), uploads.state.last_error, uploads.state.behind_seconds) == ([2], "", 0)


def test_one_that_disappears_from_the_bucket_at_rest_is_sent_again(
    store: CheckpointStore, place: BucketPath, cloud: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing new is kept meanwhile. While it cannot be sent, it waits, and the alert can tell."""
    monkeypatch.setattr(uploads_module, "LOOK_SECONDS", 0.05)
    uploads = sent(store, place, 1)
    cloud.before_write = lambda request: 403 if "tables" in request.path and request.method == "PUT" else None
    (place / GENERATIONS / "000001" / MANIFEST).remove()
    wait_until(lambda: bool(uploads.state.waiting) and uploads.state.failures > 0)
    assert uploads.state.behind_seconds > 0
    cloud.before_write = lambda _: None
    wait_until(lambda: not uploads.state.waiting)
    assert (whole(place), uploads.state.last_error) == ([1], "")
    uploads.finish(60)


def test_another_server_is_refused_and_the_first_goes_on(
    store: CheckpointStore, place: BucketPath, tmp_path: Path
) -> None:
    first = sent(store, place, 1)
    other = opened(tmp_path / "other")
    second = Uploads(other, place, Keep(last=3))
    second.start(add(other, 5))
    wait_until(lambda: second.state.failures > 0)
    assert f"another server sends its checkpoints there: process {os.getpid()}" in second.state.last_error
    second.finish(60)
    assert second.state.waiting
    first.note(add(store, 2))
    wait_until(lambda: not first.state.waiting)
    assert whole(place) == [2, 1]
    document, notes = check_place(CheckpointSection(folder=str(other.folder), upload=str(place)))
    assert [checkpoint["generation"] for checkpoint in document["uploaded"]] == [2, 1]
    assert any("another server sends" in note for note in notes)


def test_the_next_start_of_a_folder_takes_its_place_and_the_one_before_sends_nothing_more(
    store: CheckpointStore, place: BucketPath
) -> None:
    first = sent(store, place, 1)
    second = sent(opened(store.folder), place, 2)
    objects.forget()
    first.note(add(store, 3))
    wait_until(lambda: first.state.failures > 0)
    assert "another server sends its checkpoints there" in first.state.last_error
    first.finish(60)
    assert whole(place) == [2, 1]
    second.finish(60)


def test_a_start_from_the_place_that_it_sends_to_continues_for_the_one_before(
    store: CheckpointStore, place: BucketPath, tmp_path: Path
) -> None:
    new = opened(tmp_path / "new")
    section = CheckpointSection(folder=str(new.folder), upload=str(place), start_from=f"{place}/")
    with start_from(section, new.folder / FETCHED) as found:
        assert found is None  # its first start
    assert outlook(section, (TableConfig("one"),)).starts_from == "nothing: empty tables"
    sent(store, place, 1, 2)
    objects.forget()
    with start_from(section, new.folder / FETCHED) as found:
        assert found is not None
        take_over(section, new, found)
    assert new.highest == 2
    assert (new.folder / UPLOAD_ID).read_text() == (store.folder / UPLOAD_ID).read_text()
    assert check_place(section)[1] == ()
    sent(new, place, 9)
    assert whole(place) == [3, 2, 1]
    for path in place.walk():
        if path.name != OWNER:
            path.remove()
    objects.forget()
    with pytest.raises(CheckpointError, match="checkpoint 3 was sent there"), start_from(section, tmp_path / FETCHED):
        pass


def test_a_start_from_an_older_checkpoint_of_its_place_takes_it_over_into_a_new_folder(
    store: CheckpointStore, place: BucketPath, tmp_path: Path
) -> None:
    sent(store, place, 1, 2).finish(60)
    tables, older = [TableConfig("one")], OlderStart("1", 1)
    for folder, is_new in ((opened(tmp_path / "new"), True), (opened(tmp_path / "sent elsewhere"), False)):
        if not is_new:
            (folder.folder / UPLOAD_ID).write_text("another")
        section = CheckpointSection(folder=str(folder.folder), upload=str(place))
        takes_place = outlook(section, tables, older).takes_place
        assert (takes_place, check_place(section, takes_place)[1] == ()) == (is_new, is_new)
        prepare(folder, section, tables, older=older)
        id_before = (store.folder / UPLOAD_ID).read_text()
        assert (folder.folder / UPLOAD_ID).read_text() == (id_before if is_new else "another")
    sent(opened(tmp_path / "new"), place, 9).finish(60)
    assert whole(place)[0] == 3


def test_a_place_keeps_what_a_start_from_an_older_checkpoint_has_passed_over(
    store: CheckpointStore, place: BucketPath
) -> None:
    sent(store, place, 1, 2, 3).finish(60)
    source = read_manifest(store.kept / "000001").xxh3
    store.note_copies([CopyOfOlder(4, source, "", is_safe_there=False)])
    uploads = sent(opened(store.folder), place, 4, 5, keep=1)
    wait_until(lambda: uploads.state.count == 2)
    assert (whole(place), look(place).pinned) == ([5, 3], frozenset({3}))
    assert [copy.is_safe_there for copy in store.copies()] == [True]
    section = CheckpointSection(folder=str(store.folder), upload=str(place))
    assert [row.get("kept") for row in check_place(section)[0]["uploaded"]] == [None, "pinned"]
    (place / GENERATIONS / "000003.keep").remove()
    uploads.note(add(store, 6))
    wait_until(lambda: not uploads.state.waiting and uploads.state.count == 1)
    assert whole(place) == [6]
    uploads.finish(60)


def test_a_first_start_that_sent_none_to_its_end_is_one_again(
    store: CheckpointStore, place: BucketPath, cloud: Faults, tmp_path: Path
) -> None:
    cloud.before_write = lambda request: 403 if "/chunks" in request.path else None
    uploads = Uploads(store, place, Keep(last=3))
    uploads.start(add(store, 1))
    wait_until(lambda: uploads.state.failures > 0)
    shutil.rmtree(store.kept)
    uploads.finish(0)
    cloud.before_write = lambda _: None
    new = opened(tmp_path / "new")
    section = CheckpointSection(folder=str(new.folder), upload=str(place), start_from=str(place))
    objects.forget()
    with start_from(section, new.folder / FETCHED) as found:
        assert found is None
        take_over(section, new, found)
    sent(new, place, 1)
    assert whole(place) == [1]


def test_a_check_says_what_is_there_and_what_is_wrong(store: CheckpointStore, place: BucketPath, cloud: Faults) -> None:
    sent(store, place, 1, 2)
    damage(place, 1, "items.tfrecord", "shorter")
    (place / GENERATIONS / "000003" / "chunks.tfrecord").upload_bytes(b"half")
    before = objects_in(place)
    section = CheckpointSection(folder=str(store.folder), upload=str(place), upload_keep=7)
    document, notes = check_place(section)
    [row] = document["uploaded"]
    manifest = decode_manifest((store.kept / "000002" / MANIFEST).read_bytes(), place)
    assert (row["generation"], row["items"]) == (2, 2)
    assert row["bytes"] == sum(file.bytes for file in manifest.files.values())
    assert (document["upload"], document["upload_keep"]) == (str(place), 7)
    assert [("000001" in note, "000003" in note) for note in notes] == [(True, False), (False, True)]
    cloud.before_write = lambda _: 403
    assert "cannot be written to" in check_place(section)[1][-1]
    assert objects_in(place) == before
    missing = CheckpointSection(folder=str(store.folder), upload="s3://no-such-bucket/replay")
    assert "there is no such bucket" in check_place(missing)[1][0]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("upload", "/data/copies"),
        ("upload", "hf://datasets/org/name"),
        ("upload", "gs://"),
        ("upload", "az://bucket/replay"),
        ("upload", "https://host/replay"),
        ("start_from", "az://bucket/replay"),
        ("start_from", "https://host/replay"),
        ("folder", "gs://bucket/replay"),
    ],
)
def test_places_that_nothing_can_be_sent_to_are_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"at `\$\.checkpoints\.{key}`"):
        decode({"tables": [{"name": "t"}], "checkpoints": {key: value}}, "config")


# With real servers.


@pytest.fixture
def variables(cloud: Faults, tmp_path: Path) -> dict[str, str]:
    return {name: value for name, value in environment(cloud.url, tmp_path).items() if value is not None}


def status_of(server: Server) -> dict[str, Any]:
    return dict(server.get("/status.json")[1]["checkpoints"]["upload"])


def test_a_server_that_lost_its_folder_continues_from_the_bucket(
    forks: Forks, place: BucketPath, variables: dict[str, str], tmp_path: Path
) -> None:
    homes = [tmp_path / name for name in "ab"]
    for home in homes:
        home.mkdir()
    configs = [config_of(home, upload=str(place), start_from=str(place)) for home in homes]
    with Server(forks, homes[0], configs[0], **variables) as first:
        first.until_ready()
        stored = insert(first.address, 6)
        assert first.stop() == 0
    assert whole(place) == [1]
    shutil.rmtree(homes[0] / "checkpoints")
    with Server(forks, homes[1], configs[1], "--check", **variables) as checked:
        code, output, errors = checked.result()
    found = yaml.safe_load(output)["checkpoints"]
    assert (code, errors) == (0, "")
    assert found["starts_from"] == f"{place}/generations/000001, named by start_from"
    assert [(checkpoint["generation"], checkpoint["items"]) for checkpoint in found["uploaded"]] == [(1, 6)]
    assert yaml.safe_load(output)["tables"]["t"]["at_start"] == "6 items restored"
    with Server(forks, homes[1], configs[1], **variables) as second:
        second.until_ready()
        assert not (homes[1] / "checkpoints" / FETCHED).exists()
        assert take(second.address, 2) == stored[:2]
        assert second.get("/checkpoint", "POST")[1]["generation"] == 2
        wait_until(lambda: not status_of(second)["behind_seconds"] and status_of(second)["generations"] == 2)
        assert metrics(second.url)["replay_upload_generations", "", ""] == 2
        assert metrics(second.url)["replay_upload_failures_total", "", ""] == 0
        assert status_of(second)["last"]["items"] == {"t": 4}
        assert second.stop() == 0  # nothing has changed since
    assert whole(place) == [2, 1]


def test_a_kill_while_one_is_sent_leaves_nothing_that_a_start_would_take(
    forks: Forks, place: BucketPath, cloud: Faults, variables: dict[str, str], tmp_path: Path
) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def hold(request: Request) -> int | None:
        if "/items.tfrecord" in request.path and not go_on.is_set():
            reached.set()
            go_on.wait()
            return 500
        return None

    cloud.before_write = hold
    config = config_of(tmp_path, upload=str(place))
    with Server(forks, tmp_path, config, **variables) as first:
        first.until_ready()
        stored = insert(first.address, 6)
        assert first.get("/checkpoint", "POST")[0] == 200
        wait_until(reached.is_set)
        assert first.get("/checkpoint?anew=1", "POST")[1]["generation"] == 2  # sending holds up nothing
        assert status_of(first)["sending"] == 1
        assert metrics(first.url)["replay_upload_behind_seconds", "", ""] > 0
        first.stop(signal.SIGKILL)
    go_on.set()
    eventually(lambda: _assert_half_sent(place))
    elsewhere = CheckpointSection(folder=str(tmp_path / "new"), start_from=str(place))
    assert "expected a checkpoint folder" in outlook(elsewhere, ()).refusal
    with Server(forks, tmp_path, config, **variables) as second:
        second.until_ready()
        wait_until(lambda: status_of(second)["generations"] == 1)
        assert whole(place) == [2]
        assert not any("000001" in name for name in objects_in(place))
        assert take(second.address, 6) == stored
        second.stop(signal.SIGKILL)


def _assert_half_sent(place: BucketPath) -> None:
    found = objects_in(place)
    assert "generations/000001/tables.tfrecord" in found
    assert f"generations/000001/{MANIFEST}" not in found


def test_a_stop_while_a_start_fetches_ends_it_with_nothing_left(
    forks: Forks,
    store: CheckpointStore,
    place: BucketPath,
    cloud: Faults,
    variables: dict[str, str],
    tmp_path: Path,
) -> None:
    sent(store, place, 1)
    reached, go_on = threading.Event(), threading.Event()

    def hold(request: Request) -> None:
        if "/chunks.tfrecord" in request.path:
            reached.set()
            go_on.wait()

    cloud.before = hold
    folder = tmp_path / "new"
    config = config_of(tmp_path, {"name": "one"}, folder=str(folder), start_from=str(place))
    with Server(forks, tmp_path, config, **variables) as server:
        wait_until(reached.is_set, reason=lambda: server.log)
        server.process.send(signal.SIGTERM)
        go_on.set()
        assert server.process.wait() == 0
        assert "stopped before the start" in server.log
        assert "chunks.tfrecord: stopped after" in server.log
    assert not (folder / FETCHED).exists()
    assert list((folder / GENERATIONS).iterdir()) == list((folder / "reverb").iterdir()) == []


def test_a_stop_waits_no_longer_than_it_was_told(
    forks: Forks, place: BucketPath, cloud: Faults, variables: dict[str, str], tmp_path: Path
) -> None:
    cloud.before_write = lambda _: 403
    config = config_of(tmp_path, upload=str(place), upload_on_shutdown_seconds=0.1)
    with Server(forks, tmp_path, config, **variables) as server:
        server.until_ready()
        insert(server.address, 1)
        assert server.stop() == 0
        assert "the last checkpoint is not in the bucket" in server.log
        # On a slow machine the time is over before the first answer.
        assert re.search(r"access was refused|not sent within 0\.1 s", server.log)
    assert whole(place) == []


def make_newer(path: BucketPath) -> None:
    path.upload_bytes(json.dumps({**json.loads(path.read_bytes()), "format": 2, "program": "9.8.7"}).encode())
    objects.forget()


def test_what_a_newer_release_has_sent_stays_and_a_start_does_not_pass_over_it(
    store: CheckpointStore, place: BucketPath, tmp_path: Path
) -> None:
    # By content: the sender may look once more than it was asked to, and sends what it finds unreadable anew, by another number.
    def digest(number: int) -> str:
        return read_manifest(store.kept / f"{number:06d}").xxh3

    def is_rotated(newest: int) -> bool:
        state = uploads.state
        return state.last is not None and (state.last.manifest.xxh3, state.count) == (digest(newest), 1)

    uploads = sent(store, place, 1, 2, keep=1)
    wait_until(lambda: is_rotated(2))
    make_newer(place / GENERATIONS / "000002" / MANIFEST)
    with (
        pytest.raises(CheckpointUnreadable, match=r"a checkpoint of version 2, written by rlds2reverb 9\.8\.7"),
        start_from(CheckpointSection(start_from=str(place)), tmp_path / FETCHED),
    ):
        pass
    for number in (3, 4):
        uploads.note(add(store, number))
        wait_until(lambda: not uploads.state.waiting, reason=lambda: uploads.state)
    wait_until(lambda: is_rotated(4))
    objects.forget()
    contents = look(place)
    assert [checkpoint.manifest.xxh3 for checkpoint in contents.whole] == [digest(4)]
    assert [path.name for path, _ in contents.newer] == ["000002"]
    assert (contents.broken, contents.unfinished) == ((), ())
    assert any(path.startswith(f"{GENERATIONS}/000002/") for path in objects_in(place)), "it is not rotated away"
    uploads.finish(60)


def test_nothing_is_sent_to_the_place_of_a_newer_release(store: CheckpointStore, place: BucketPath) -> None:
    sent(store, place, 1).finish(60)
    make_newer(place / OWNER)
    before = (place / OWNER).read_bytes()
    uploads = Uploads(store, place, Keep(last=3))
    uploads.start(add(store, 2))
    wait_until(lambda: uploads.state.failures > 0)
    said = "the record of who sends to a bucket of version 2, written by rlds2reverb 9.8.7"
    assert said in uploads.state.last_error
    assert ((place / OWNER).read_bytes(), whole(place)) == (before, [1])
    _, notes = check_place(CheckpointSection(folder=str(store.folder), upload=str(place)))
    assert said in notes[0]
    uploads.finish(0)
