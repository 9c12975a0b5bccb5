"""A dataset is converted into a bucket whole or not at all, whatever stops it; reading it there gives what a folder gives."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from rlds2reverb.cli import cli
from rlds2reverb.conversion import convert as engine
from rlds2reverb.conversion.convert import convert
from rlds2reverb.conversion.place import PREFIX
from rlds2reverb.conversion.report import ConvertReport
from rlds2reverb.errors import ConfigError, Rlds2ReverbError, SourceError, StorageError
from rlds2reverb.formats import open_destination, open_source
from rlds2reverb.formats.buckets import BucketPath
from rlds2reverb.formats.objects import Bucket
from tests.contract.destination_cases import data
from tests.contract.test_destinations import contents, written
from tests.support.buckets import Faults, Request, Storage
from tests.support.profiles import DEEP, SEED, drawn
from tests.support.raising import outcome_of

FORMATS = {
    "tfds": "tfds:{}/my_set?shards=3",
    "minari": "minari:{}/set",
    "ted": "ted:{}/set",
    "ted file": "ted:{}/set.h5",
    "ilr": "ilr:{}/set",
    "ilr file": "ilr:{}/set.tar.zst",
    "lerobot": "lerobot:{}/set?fps=10,last_step=keep",
}


@pytest.fixture
def place(storage: Storage, cloud: Faults, tmp_path: Path) -> str:
    """A folder of a bucket; nothing is there yet."""
    storage.create("written")
    return f"s3://written/{tmp_path.name}"


def everything(place: str) -> list[str]:
    """The names of all objects in the folder."""
    return [path.relative_to(BucketPath(place)).as_posix() for path in BucketPath(place).walk()]


def staged(tmp_path: Path) -> list[Path]:
    """What a conversion keeps on this machine until it is done."""
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


@pytest.mark.parametrize("form", FORMATS)
def test_a_bucket_gets_what_a_folder_gets(form: str, place: str, tmp_path: Path) -> None:
    episodes = data.KINDS["plain"](tmp_path)
    here, there = FORMATS[form].format(tmp_path), FORMATS[form].format(place)
    convert(episodes, here)
    report = convert(episodes, there, verify=True)
    assert report.verified == report.episodes_written == data.EPISODES
    assert report.path.startswith("s3://written/")
    assert written(open_destination(there)) == written(open_destination(here))
    assert not any(PREFIX in name for name in everything(place))
    assert staged(tmp_path) == []
    with pytest.raises(ConfigError, match=r"is there already.*--overwrite"):
        convert(episodes[:2], there)
    convert(episodes[:2], there, overwrite=True)
    assert written(open_destination(there)) == written(open_destination(here))[:2]


class Killed(BaseException):
    """In place of a signal that nobody can catch."""


@contextmanager
def killed_at(number: float, after: bool = False) -> Iterator[Callable[[], int]]:
    """From the change of the bucket of this number on every one fails, the first before or after it is made; tells how many there were."""
    made, calls = count(1), 0

    def counting(call: Any) -> Any:
        def counted(*given: Any, **named: Any) -> Any:
            nonlocal calls
            calls = next(made)
            if calls == number and after:
                call(*given, **named)
            if calls >= number:
                raise Killed
            return call(*given, **named)

        return counted

    with pytest.MonkeyPatch().context() as patch:
        for name in ("upload", "upload_bytes", "remove"):
            patch.setattr(Bucket, name, counting(getattr(Bucket, name)))
        yield lambda: calls


@pytest.mark.parametrize("replaces", [False, True], ids=["", "replaces"])
@pytest.mark.parametrize("form", ["tfds", "ted file", "lerobot"])
def test_a_kill_at_any_change_of_the_bucket_loses_nothing(
    form: str, replaces: bool, place: str, tmp_path: Path
) -> None:
    episodes = data.KINDS["plain"](tmp_path)

    def prepared(folder: str) -> str:
        name = FORMATS[form].format(f"{place}/{folder}")
        if replaces:
            convert(episodes[:2], name)
        return name

    name = prepared("whole")
    with killed_at(math.inf) as calls:
        convert(episodes, name, overwrite=replaces)
    wanted = written(open_destination(name))
    points = list(product(range(1, calls() + 1), (False, True)))
    order = np.random.default_rng([SEED if DEEP else 0, len(form), replaces]).permutation(len(points))
    for number, after in [points[at] for at in order[: drawn(1, 100)]]:
        folder = f"{number}{'after' * after}"
        destination = open_destination(name := prepared(folder))
        with killed_at(number, after), suppress(Killed):
            convert(episodes, name, overwrite=replaces)
        with suppress(Rlds2ReverbError):  # no dataset
            assert written(destination) in (wanted, wanted[:2])
        again = outcome_of(ConfigError, lambda: convert(episodes, name, overwrite=replaces, verify=True))
        assert isinstance(again, ConvertReport) or "is there already" in str(again)  # it was done
        assert written(destination) == wanted, folder
        assert not any(PREFIX in key for key in everything(f"{place}/{folder}")), folder
        assert staged(tmp_path) == [], folder


def test_what_is_uploaded_is_not_uploaded_again(place: str, tmp_path: Path, cloud: Faults) -> None:
    episodes, name = data.KINDS["plain"](tmp_path), FORMATS["tfds"].format(place)
    refused, sent, is_full = "my_set-train.tfrecord-00001-of-00003", [], True

    def before_write(request: Request) -> int | None:
        file = request.path.rpartition("/")[2]
        if request.method != "PUT" or file.startswith(PREFIX):
            return None
        if is_full and file == refused:
            return 403
        sent.append(file)
        return None

    cloud.before_write = before_write
    with pytest.raises(StorageError, match=f"{refused}: access was refused with the credentials in the environment"):
        convert(episodes, name)
    assert "dataset_info.json" not in sent
    with pytest.raises(SourceError):
        open_source(name.partition("?")[0]).spec()
    is_full = False
    convert(episodes, name)
    assert len(sent) == len(set(sent))
    assert {refused, "dataset_info.json"} <= set(sent)
    assert sent[-1] == "dataset_info.json"
    assert contents(open_source(f"tfds:{place}/my_set/1.0.0")) != []


def test_another_machine_is_kept_out(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episodes, name = data.KINDS["plain"](tmp_path), FORMATS["lerobot"].format(place)
    with killed_at(3), pytest.raises(Killed):
        convert(episodes, name)
    monkeypatch.setenv("RLDS2REVERB_CACHE", str(tmp_path / "another machine"))
    with pytest.raises(ConfigError, match=r'another conversion is writing it: .*"host".*\.converting-set'):
        convert(episodes, name)
    monkeypatch.setenv("RLDS2REVERB_CACHE", str(tmp_path / "cache"))
    convert(episodes, name)
    assert not any(PREFIX in key for key in everything(place))
    monkeypatch.setenv("RLDS2REVERB_CACHE", str(tmp_path / "another machine"))
    assert convert(episodes, name, overwrite=True).episodes_written == data.EPISODES


def test_beginning_anew_removes_what_was_sent_and_nothing_else(place: str, tmp_path: Path) -> None:
    episodes, name = data.KINDS["plain"](tmp_path), FORMATS["tfds"].format(place)
    BucketPath(f"{place}/other").upload_bytes(b"not ours")
    with killed_at(4), pytest.raises(Killed):
        convert(episodes, name)
    assert len(everything(place)) > 2
    assert convert(episodes[:2], name, restart=True, verify=True).verified == 2
    assert len(list(open_source(f"tfds:{place}/my_set/1.0.0"))) == 2
    assert BucketPath(f"{place}/other").read_bytes() == b"not ours"


def test_an_object_that_is_not_what_was_sent_is_found(
    place: str, tmp_path: Path, cloud: Faults, storage: Storage
) -> None:
    episodes, name = data.KINDS["plain"](tmp_path), FORMATS["ted file"].format(place)

    def swap(request: Request) -> None:
        if request.path.endswith(".h5"):
            key = f"{tmp_path.name}/set.h5"
            storage.put("written", key, b"\0" * BucketPath(f"{place}/set.h5").stat().st_size)

    cloud.before = swap
    with pytest.raises(StorageError, match=r"written anew while it was read|is not what was uploaded"):
        convert(episodes, name, verify=True)
    cloud.before = lambda _: None
    assert convert(episodes, name, verify=True).verified == data.EPISODES


def test_only_a_dataset_of_that_format_is_replaced(place: str, tmp_path: Path) -> None:
    episodes, name = data.KINDS["plain"](tmp_path), FORMATS["lerobot"].format(place)
    BucketPath(f"{place}/set/thesis.tex").upload_bytes(b"years of work")
    with pytest.raises(ConfigError, match=r"holds thesis\.tex"):
        convert(episodes, name, overwrite=True)
    assert BucketPath(f"{place}/set/thesis.tex").read_bytes() == b"years of work"
    assert everything(place) == ["set/thesis.tex"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lerobot:s3://nobucket/set", "there is no such bucket"),
        ("lerobot:hf://datasets/org/set", "hub is only read"),
        ("lerobot:ftp://host/set", "unknown scheme"),
        ("lerobot:s3://", "expected s3://BUCKET/FOLDER"),
    ],
)
def test_a_place_that_takes_nothing_is_refused_at_once(
    name: str, said: str, cloud: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.Conversion, "_write_all", lambda *_: pytest.fail("episodes were read"))
    with pytest.raises(Rlds2ReverbError, match=said):
        convert(data.KINDS["plain"](tmp_path), name)
    assert not any("data" in path.parts for path in staged(tmp_path))


def test_the_command_converts_a_part_of_a_bucket_into_a_bucket(place: str, tmp_path: Path) -> None:
    convert(data.KINDS["plain"](tmp_path), FORMATS["tfds"].format(place))
    wanted = contents(open_source(f"tfds:{place}/my_set/1.0.0"))
    given = ["convert", f"tfds:{place}/my_set/1.0.0@train[1:3]", f"tfds:{place}/part", "--verify", "--json", "--quiet"]
    ended = CliRunner().invoke(cli, given)
    assert ended.exit_code == 0, ended.output
    assert json.loads(ended.stdout)["verified"] == 2
    assert contents(open_source(f"tfds:{place}/part/1.0.0")) == wanted[1:3]
