"""Paths and files in buckets: like those of a disk, whatever the service does."""

from __future__ import annotations

import gc
import io
import os
import pickle
import random
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import ConfigError, SourceError, StorageError
from rlds2reverb.formats import objects, open_destination, open_source
from rlds2reverb.formats.buckets import BucketPath, local_copy, path_of
from rlds2reverb.formats.objects import access
from rlds2reverb.formats.paths import stamp_of
from rlds2reverb.formats.registry import SOURCES
from rlds2reverb.formats.tfds import bundled_path
from tests.support import buckets as services
from tests.support.buckets import COMMIT, Faults, Request, Storage, delayed

SIZE = 11 * (1 << 20) + 123
DATA = random.Random(5).randbytes(SIZE)
SECRET = services.KEYS["AWS_SECRET_ACCESS_KEY"]


@pytest.fixture(scope="module")
def bucket(storage: Storage) -> str:
    storage.create("files")
    storage.put("files", "large.bin", DATA)
    storage.put("files", "folder/a b#c%25+d.txt", b"odd")
    storage.put("files", "folder/below/one.txt", b"1\n2\n")
    storage.put("files", "folder/below/two.npz", b"2")
    return "s3://files"


# Paths.


PARTS = st.lists(st.text("ab.%#", min_size=1, max_size=4).filter(lambda part: part != "."), min_size=1, max_size=4)


@given(PARTS, st.sampled_from(["s3://data", "gs://data", "hf://datasets/org/name"]))
def test_paths_are_put_together_and_taken_apart_as_those_of_a_disk(parts: list[str], root: str) -> None:
    path, there = path_of(root), Path("/data")
    for part in parts:
        path, there = path / part, there / part
    assert isinstance(path, BucketPath)
    assert str(path) == f"{root}/{'/'.join(parts)}"
    assert path == path_of(str(path))
    assert hash(path) == hash(path_of(str(path)))
    assert (path.name, path.suffix, path.stem) == (there.name, there.suffix, there.stem)
    assert str(path.parent) == root + str(there.parent)[5:]
    assert str(path.relative_to(path_of(root))) == "/".join(parts)
    assert path_of(root) / path.relative_to(path_of(root)) == path
    assert path.is_relative_to(path_of(root))
    assert path.is_absolute()
    assert path.absolute() == path.expanduser() == path
    assert pickle.loads(pickle.dumps(path)) == path
    assert isinstance(path.with_name("other").parent / "x", BucketPath)
    is_inside = path.resolve().is_relative_to(path_of(root).resolve())
    assert is_inside == (".." not in parts or there.resolve().is_relative_to("/data"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ftp://host/x", "unknown scheme; expected gs://, s3://, hf://"),
        ("s3://", "expected s3://BUCKET/FOLDER"),
        ("hf://org/name", "expected hf://datasets/ORG/NAME"),
        ("hf://datasets/name", "expected hf://datasets/ORG/NAME"),
        ("~no-such-user-at-all/x", "home directory"),
    ],
)
def test_what_is_no_path_is_refused(text: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        path_of(text)


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_bucket_is_looked_through_as_a_disk(scheme: str, bucket: str, cloud: Faults) -> None:
    root = path_of(f"{scheme}://files")
    assert sorted(path.name for path in root.iterdir()) == ["folder", "large.bin"]
    assert [str(path) for path in root.glob("folder/*/*.txt")] == [f"{scheme}://files/folder/below/one.txt"]
    assert sorted(path.name for path in root.rglob("*.*")) == ["a b#c%25+d.txt", "large.bin", "one.txt", "two.npz"]
    assert list(root.glob("nothing/*")) == []
    folder = root / "folder"
    assert (folder.is_dir(), folder.is_file(), folder.exists()) == (True, False, True)
    assert ((root / "large.bin").is_dir(), (root / "large.bin").is_file()) == (False, True)
    assert not (folder / "fold").exists()
    assert not (root / "fold").exists(), "a name that begins another"
    assert (folder / "../large.bin").stat().st_size == SIZE
    assert (folder / "below/one.txt").read_text().splitlines() == ["1", "2"]
    with pytest.raises(FileNotFoundError):
        list((root / "nothing").iterdir())
    with pytest.raises(FileNotFoundError):
        (root / "nothing").stat()
    with pytest.raises(FileNotFoundError):
        (root / "nothing").open("rb")
    with pytest.raises(SourceError, match="No such object"):
        stamp_of(root / "nothing")


def test_a_key_may_hold_any_sign(bucket: str, cloud: Faults) -> None:
    found = path_of(f"{bucket}/folder/a b#c%25+d.txt")
    assert found.read_bytes() == b"odd"
    assert found in list(found.parent.iterdir())


def test_only_whole_objects_are_written(bucket: str, cloud: Faults, tmp_path: Path) -> None:
    path = path_of(bucket) / "new"
    writes: list[Any] = [path.mkdir, path.unlink, path.touch, lambda: path.write_bytes(b""), lambda: path.open("wb")]
    for write in writes:
        with pytest.raises(StorageError, match=r"only whole objects are written|is written whole"):
            write()


@pytest.mark.parametrize("size", [0, 5, 20 << 20])
def test_an_object_is_written_replaced_and_removed(size: int, storage: Storage, cloud: Faults, tmp_path: Path) -> None:
    storage.create("objects")
    path, file = BucketPath(f"s3://objects/{tmp_path.name}/one"), tmp_path / "file"
    assert path.parent.walk() == []
    file.write_bytes(random.Random(1).randbytes(size))
    path.upload(file)
    assert path.read_bytes() == file.read_bytes()
    assert path.parent.walk() == [path]
    assert not path.upload_bytes(b"another", is_new=True)
    assert path.read_bytes() == file.read_bytes()
    assert path.upload_bytes(b"another")
    assert path.read_bytes() == b"another"
    path.remove()
    path.remove()
    assert not path.exists()
    assert path.upload_bytes(b"anew", is_new=True)


def test_a_part_that_fails_leaves_the_object_as_it_was(storage: Storage, cloud: Faults, tmp_path: Path) -> None:
    storage.create("objects")
    path, file = BucketPath(f"s3://objects/{tmp_path.name}/one"), tmp_path / "file"
    path.upload_bytes(b"before")
    file.write_bytes(bytes(20 << 20))
    cloud.before_write = lambda request: 403 if "partNumber=2" in request.path else None
    with pytest.raises(StorageError, match="access was refused"):
        path.upload(file)
    assert path.read_bytes() == b"before"
    is_older = tuple(map(int, version("obstore").split(".")[:2])) < (0, 12)  # and leaves the parts that were sent
    assert is_older or any(request.method == "DELETE" and "uploadId" in request.path for request in cloud.requests)
    cloud.before_write = lambda _: None
    path.upload(file)
    assert path.stat().st_size == 20 << 20


def test_the_hub_is_only_read() -> None:
    with pytest.raises(ConfigError, match="hub is only read"):
        open_destination("tfds:hf://datasets/org/name/set")


# Files.


@pytest.mark.parametrize("has_threads", [True, False])
def test_a_file_is_read_from_anywhere(has_threads: bool, bucket: str, cloud: Faults) -> None:
    path, rng = path_of(bucket) / "large.bin", random.Random(3)
    here = io.BytesIO(DATA)
    with path.open("rb", 0) if has_threads else path.open_without_threads() as file:  # type: ignore[attr-defined]
        for _ in range(300):
            offset, size = rng.randrange(SIZE + 10), rng.choice([1, 100, 5_000, 700_000, 6 << 20])
            whence = rng.choice([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END])
            place = offset if whence == os.SEEK_SET else offset // 3 - SIZE // 6
            if whence == os.SEEK_CUR and here.tell() + place < 0:
                continue
            if whence == os.SEEK_END:
                place = -abs(place)
            assert file.seek(place, whence) == here.seek(place, whence)
            assert file.read(size) == here.read(size)
            assert file.tell() == here.tell()


def test_reading_on_costs_less_than_a_request_a_megabyte(bucket: str, cloud: Faults) -> None:
    with (path_of(bucket) / "large.bin").open("rb") as file:
        assert b"".join(iter(lambda: file.read(100_000), b"")) == DATA
    ranges = [request for request in cloud.requests if request.range]
    assert len(ranges) <= SIZE / 1e6
    assert cloud.sent <= SIZE + 10_000, "nothing is read twice"


def test_several_ranges_are_on_their_way_at_once(bucket: str, cloud: Faults) -> None:
    at_once: list[int] = []
    now = 0

    def before(_: Request) -> None:
        nonlocal now
        now += 1
        at_once.append(now)
        time.sleep(0.05)
        now -= 1

    cloud.before = before
    with (path_of(bucket) / "large.bin").open("rb") as file:
        assert file.read() == DATA
    assert max(at_once) > 1


def test_text_is_read(bucket: str, cloud: Faults) -> None:
    with (path_of(bucket) / "folder/below/one.txt").open() as file:
        assert list(file) == ["1\n", "2\n"]


def test_a_closed_file_is_not_read(bucket: str, cloud: Faults) -> None:
    file = (path_of(bucket) / "large.bin").open("rb", 0)
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.read(1)


def test_a_copy_is_made_once(bucket: str, cloud: Faults) -> None:
    path = path_of(bucket) / "large.bin"
    copy = local_copy(path)
    assert copy.read_bytes() == DATA
    assert local_copy(path) == copy
    assert local_copy(copy) == copy
    with pytest.raises(FileNotFoundError):
        local_copy(path_of(bucket) / "nothing")


def test_hdf5_is_read_while_garbage_is_collected_elsewhere(
    bucket: str, cloud: Faults, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection in a thread that fetches would wait for h5py's lock, and the reader that holds it for the thread."""
    rows = 700_000
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["observations"] = np.arange(rows, dtype=np.float32).reshape(-1, 1)
        file.create_dataset("actions", data=np.arange(rows, dtype=np.float32).reshape(-1, 1), chunks=(1000, 1))
        file["rewards"] = np.zeros(rows, np.float32)
        file["terminals"] = np.arange(rows) % 1000 == 999
        file["timeouts"] = np.zeros(rows, bool)
    storage.upload(tmp_path / "a.hdf5", "files", "a.hdf5")
    monkeypatch.setenv("AWS_ENDPOINT_URL", storage.url)  # the proxy's threads would be caught in the same way
    objects.forget()
    before = gc.get_threshold()
    gc.enable()
    gc.set_threshold(1)
    try:
        circle: list[Any] = [h5py.File(tmp_path / "a.hdf5")]
        circle.append(circle)
        del circle
        there = [episode.columns["action"].sum() for episode in open_source("d4rl:s3://files/a.hdf5").first(3)]
    finally:
        gc.set_threshold(*before)
        gc.disable()
    here = [episode.columns["action"].sum() for episode in open_source(f"d4rl:{tmp_path / 'a.hdf5'}").first(3)]
    assert there == here


# Faults.


def read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_service_is_asked_again(status: int, bucket: str, cloud: Faults) -> None:
    cloud.before = lambda request: status if request.number % 3 == 0 else None
    assert read(path_of(bucket) / "large.bin") == DATA


def test_an_answer_that_is_cut_off_is_asked_for_again(bucket: str, cloud: Faults) -> None:
    cloud.cut = lambda request: request.number % 3 == 1
    assert read(path_of(bucket) / "large.bin") == DATA


def test_slow_answers_are_waited_for(bucket: str, cloud: Faults) -> None:
    cloud.before = delayed(0.05)
    assert read(path_of(bucket) / "large.bin") == DATA


def test_an_object_that_changes_while_it_is_read_is_noticed(storage: Storage, bucket: str, cloud: Faults) -> None:
    storage.put("files", "changing.bin", DATA)

    def swap(request: Request) -> None:
        if request.number == 2:
            storage.put("files", "changing.bin", DATA[::-1])

    cloud.before = swap
    path = path_of(bucket) / "changing.bin"
    before = stamp_of(path)
    with pytest.raises(StorageError, match=r"changing.bin: was written anew while it was read; open the source again"):
        read(path)
    objects.forget()
    assert stamp_of(path) != before, "although it has the same size, and perhaps the same second"


def test_a_service_that_never_answers_is_no_damaged_episode(
    storage: Storage, bucket: str, cloud: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        np.savez(tmp_path / f"{number}.npz", observation=np.zeros((4, 2)), action=np.zeros((4, 1)), reward=np.zeros(4))
    storage.upload(tmp_path, "files", "episodes")
    source = open_source("npz:s3://files/episodes")
    assert len(list(source)) == 3
    monkeypatch.setattr(access, "_PAUSES", (0.01,))
    monkeypatch.setattr(access, "_RETRY", access._NO_RETRY)
    objects.forget()
    cloud.cut = lambda _: True
    with pytest.raises(StorageError, match=r"s3://files/episodes/0.npz: no answer: .*; check the network"):
        list(source)


# Credentials.


def without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in services.KEYS:
        monkeypatch.delenv(name)


def test_a_bucket_that_does_not_exist_is_named(bucket: str, cloud: Faults) -> None:
    with pytest.raises(StorageError, match=r"s3://no-such-bucket/x: there is no such bucket; check its name"):
        open_source("npz:s3://no-such-bucket/x")


def test_a_missing_dataset_is_a_sentence(bucket: str, cloud: Faults) -> None:
    for name in (
        "npz:s3://files/nothing",
        "tfds:s3://files/nothing",
        "lerobot:s3://files/nothing",
        "minari:s3://files/x",
    ):
        with pytest.raises(SourceError, match="s3://files/"):
            open_source(name)


def test_a_public_bucket_needs_no_credentials(bucket: str, cloud: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    without_keys(monkeypatch)
    assert read(path_of(bucket) / "folder/below/one.txt") == b"1\n2\n"


def test_a_private_bucket_needs_them(bucket: str, cloud: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    without_keys(monkeypatch)
    cloud.is_public = False
    with pytest.raises(
        StorageError, match="access was refused: it is not public, and no credentials were found"
    ) as error:
        read(path_of(bucket) / "folder/below/one.txt")
    assert SECRET not in str(error.value)


def test_a_profile_of_the_tools_is_used(
    bucket: str, cloud: Faults, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_keys(monkeypatch)
    monkeypatch.setenv("AWS_PROFILE", "robots")
    (tmp_path / "credentials").write_text(
        "[robots]\naws_access_key_id = some-key\naws_secret_access_key = some-secret\n"
    )
    (tmp_path / "config").write_text("[profile robots]\nregion = us-east-1\n")
    cloud.is_public = False
    assert read(path_of(bucket) / "folder/below/one.txt") == b"1\n2\n"
    monkeypatch.setattr(access, "find_spec", lambda _: None)  # where boto3 is not installed
    objects.forget()
    assert read(path_of(bucket) / "folder/below/one.txt") == b"1\n2\n"


@pytest.mark.parametrize(
    ("status", "message"),
    [(403, "access was refused with the credentials in the environment"), (401, "access was refused with")],
)
def test_refusals_are_sentences(status: int, message: str, bucket: str, cloud: Faults) -> None:
    cloud.before = lambda _: status
    with pytest.raises(StorageError, match=message) as error:
        read(path_of(bucket) / "large.bin")
    assert SECRET not in str(error.value)


def test_a_service_that_is_not_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch, cloud: Faults) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(access, "_RETRY", access._NO_RETRY)
    objects.forget()
    with pytest.raises(StorageError, match=r"no answer: .*; check the network and the address"):
        path_of("s3://files/large.bin").exists()


# The hub.


@pytest.fixture
def on_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for number in range(2):
        values = {"observation": np.full((300, 2), number), "action": np.zeros((300, 1)), "reward": np.zeros(300)}
        np.savez(tmp_path / f"data/{number}.npz", **values)
    (tmp_path / "README.md").write_text("short")
    return tmp_path


def test_a_dataset_on_the_hub_is_read(on_hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with services.hub(on_hub, "team/some_set") as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        objects.forget()
        root = path_of("hf://datasets/team/some_set")
        assert sorted(path.name for path in root.iterdir()) == ["README.md", "data"]
        assert (root / "README.md").read_text() == "short"
        assert not (root / "nothing").exists()
        there = list(open_source("npz:hf://datasets/team/some_set/data"))
        here = list(open_source(f"npz:{on_hub / 'data'}"))
        assert [episode.id for episode in there] == [episode.id for episode in here]
        for episode, other in zip(there, here):
            np.testing.assert_equal(dict(episode.columns), dict(other.columns))
        pinned = path_of(f"hf://datasets/team/some_set@{COMMIT}/README.md")
        assert pinned.read_text() == "short"
        with pytest.raises(StorageError, match="no such dataset, or it is private"):
            path_of("hf://datasets/team/other").is_dir()
        with pytest.raises(StorageError, match="no such revision"):
            path_of("hf://datasets/team/some_set@nowhere").is_dir()
    objects.forget()


# What is in a folder.


def test_the_datasets_in_a_folder_are_listed(bucket: str, storage: Storage, cloud: Faults) -> None:
    storage.upload(bundled_path("cartpole"), "files", "robots/cartpole/1.0.0")
    storage.put("files", "robots/deeper/runs/one.npz", b"")
    assert list(SOURCES.below(path_of("s3://files/robots"))) == [
        "tfds:s3://files/robots/cartpole/1.0.0",
        "npz:s3://files/robots/deeper/runs/one.npz",
    ]
    with pytest.raises(SourceError, match=r"write SCHEME:s3://files/robots, or list the datasets in it"):
        open_source("s3://files/robots")


def test_the_folder_of_a_dataset_is_listed_once_when_it_is_opened(bucket: str, storage: Storage, cloud: Faults) -> None:
    storage.upload(bundled_path("cartpole"), "files", "once/cartpole/1.0.0")
    for _ in range(2):  # opened again, it is asked for anew
        asked = len(cloud.requests)
        open_source("tfds:s3://files/once/cartpole/1.0.0").spec()
        assert sum("list-type" in request.path for request in cloud.requests[asked:]) == 1
