"""Named datasets, found in data folders."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import SourceError
from rlds2reverb.formats.buckets import path_of
from rlds2reverb.formats.tfds.names import FILE_ORDER, DatasetName, Request, data_folders, find, version_directory
from rlds2reverb.formats.tfds.splits import EvenPart


def prepare(folder: Path, *places: str) -> None:
    """Version directories as far as locating looks at them."""
    for place in places:
        (folder / place).mkdir(parents=True)
        (folder / place / "features.json").write_text("{}")


def default_config(folder: Path, name: object) -> None:
    (folder / ".config").mkdir(parents=True)
    (folder / ".config" / "metadata.json").write_text(json.dumps({"default_config_name": name}))


def found(text: str, *folders: Path) -> str:
    """Where a dataset is, below the first folder."""
    return find(DatasetName.parse(text), list(folders)).relative_to(folders[0]).as_posix()


def test_the_highest_version_is_taken_number_by_number(tmp_path: Path) -> None:
    prepare(tmp_path, "x/1.9.0", "x/1.10.0", "x/1.2.0", "x/0.99.99", "x/incomplete.ABC123_2.0.0", "x/3.0", "x/03.0.0")
    (tmp_path / "x" / "9.0.0").write_text("a file")
    assert found("x", tmp_path) == "x/1.10.0"
    assert found("X:1.9.0", tmp_path) == "x/1.9.0"
    assert found("x:0.*.*", tmp_path) == "x/0.99.99"
    assert found("x:*.2.*", tmp_path) == "x/1.2.0"
    assert found("x:1.*.0", tmp_path) == "x/1.10.0"


def test_a_config_is_named_or_the_default(tmp_path: Path) -> None:
    prepare(tmp_path, "x/a/1.0.0", "x/b/2.0.0")
    assert found("x/a", tmp_path) == "x/a/1.0.0"
    with pytest.raises(SourceError, match=r"a config must be named \(there are: a, b\)"):
        found("x", tmp_path)
    default_config(tmp_path / "x", "b")
    assert found("x", tmp_path) == "x/b/2.0.0"
    assert found("x:2.0.0", tmp_path) == "x/b/2.0.0"
    assert found("x/a:1.0.0", tmp_path) == "x/a/1.0.0"


@pytest.mark.parametrize("name", ["../y", "/etc", 3, ["a"]])
def test_a_default_config_that_is_none_is_refused(tmp_path: Path, name: object) -> None:
    prepare(tmp_path, "x/a/1.0.0", "y/1.0.0")
    default_config(tmp_path / "x", name)
    with pytest.raises(SourceError, match="default_config_name: expected the name of a config"):
        found("x", tmp_path)


def test_a_dataset_in_two_data_folders_is_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    prepare(one, "x/1.0.0", "y/1.0.0")
    prepare(two, "x/2.0.0", "y/1.0.0")
    with pytest.raises(SourceError, match=r"several data folders: .*one/x/1\.0\.0, .*two/x/2\.0\.0"):
        found("x", one, two)
    assert found("x:1.0.0", one, two) == "x/1.0.0"
    with pytest.raises(SourceError, match="several data folders"):
        found("y:1.*.*", one, two)


def test_what_is_not_there_is_told_with_what_is(tmp_path: Path) -> None:
    prepare(tmp_path, "x/1.0.0", "x/2.0.0")
    (tmp_path / "x" / "3.0.0").mkdir()
    (tmp_path / "empty").mkdir()
    for text, said in {
        "y": "there is no such dataset in",
        "x:4.0.0": r"no such version \(there are: 1\.0\.0, 2\.0\.0, 3\.0\.0\)",
        "x:4.*.*": "no such version",
        "x": r"3\.0\.0 has no features\.json",
        "x:3.0.0": r"3\.0\.0 has no features\.json",
        "x/c": r"no such config \(the dataset has none\)",
        "empty": "a folder of that name without any version",
    }.items():
        with pytest.raises(SourceError, match=said) as caught:
            found(text, tmp_path)
        assert str(caught.value).startswith(f"tfds:{text}: cannot be opened: ")
        assert str(caught.value).endswith("tfds:/path/to/version_dir")


def test_a_folder_that_is_there_is_read_or_told_how_to_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path, "sp ace/x/1.0.0", "y/z")
    monkeypatch.chdir(tmp_path)
    for text in ("sp ace/x/1.0.0", "sp ace/x"):
        assert Request.parse(f"{text}@test") == Request(text, "test")
    with pytest.raises(SourceError, match=r"no such dataset in .*; for the folder here write tfds:\./y/z$"):
        found("y/z", tmp_path / "nothing")


def test_a_directory_of_versions_is_told_from_one_of_a_version(tmp_path: Path) -> None:
    prepare(tmp_path, "x/1.9.0", "x/1.10.0")
    with pytest.raises(SourceError, match=r"this one has versions; name one: 1\.9\.0, 1\.10\.0$"):
        version_directory(tmp_path / "x")
    assert version_directory(tmp_path) == tmp_path  # whose files are looked for next


def test_data_folders_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.delitem(sys.modules, "tensorflow_datasets.core.utils.file_utils", raising=False)
    usual = tmp_path / "tensorflow_datasets"
    assert data_folders({}) == [usual]
    assert data_folders({"TFDS_DATA_DIR": "/data"}) == [Path("/data")]
    more = os.pathsep.join(["~/a", "/b", "", "/b"])
    assert data_folders({"RLDS2REVERB_DATA_DIRS": more}) == sorted([tmp_path / "a", Path("/b"), usual])
    assert data_folders({"TFDS_DATA_DIR": "/b", "RLDS2REVERB_DATA_DIRS": "/b"}) == [Path("/b")]


def test_folders_that_the_program_told_tfds_count(monkeypatch: pytest.MonkeyPatch) -> None:
    told = SimpleNamespace(_REGISTERED_DATA_DIRS={Path("/told")})
    monkeypatch.setitem(sys.modules, "tensorflow_datasets.core.utils.file_utils", cast(Any, told))
    assert data_folders({"TFDS_DATA_DIR": "/data"}) == [Path("/data"), Path("/told")]


def test_folders_may_lie_in_buckets() -> None:
    assert data_folders({"TFDS_DATA_DIR": "gs://bucket/x"}) == [path_of("gs://bucket/x")]
    found = data_folders({"TFDS_DATA_DIR": "/b", "RLDS2REVERB_DATA_DIRS": f"/a{os.pathsep}s3://bucket"})
    assert found == [Path("/a"), Path("/b"), path_of("s3://bucket")]
    with pytest.raises(SourceError, match="unknown scheme"):
        data_folders({"TFDS_DATA_DIR": "ftp://bucket/x"})


def test_a_home_that_does_not_exist_is_told() -> None:
    with pytest.raises(SourceError, match="home directory"):
        path_of("~no-such-user-at-all/x")


# Names of TFDS sources, taken apart.


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("x", Request(DatasetName("x"))),
        ("x@", Request(DatasetName("x"))),
        ("x@test", Request(DatasetName("x"), "test")),
        ("MyRobot2Data", Request(DatasetName("my_robot2_data"))),
        ("x/cfg-1.a+b:1.*.*@train[:10%]", Request(DatasetName("x", "cfg-1.a+b", "1.*.*"), "train[:10%]")),
        ("x:1.20.3", Request(DatasetName("x", "", "1.20.3"))),
        ("x@train + test", Request(DatasetName("x"), "train + test")),
        ("/data/x/1.0.0", Request("/data/x/1.0.0")),
        ("/data/x/1.0.0@test", Request("/data/x/1.0.0", "test")),
        ("./x@test", Request("./x", "test")),
        ("../x", Request("../x")),
        ("~/x", Request("~/x")),
        ("~somebody/x@a", Request("~somebody/x", "a")),
        ("gs://bucket/x/1.0.0@test", Request("gs://bucket/x/1.0.0", "test")),
        (r"C:\data\x@test", Request(r"C:\data\x", "test")),
        ("C:/data/x@test", Request("C:/data/x", "test")),
        ("/data/me@home/x", Request("/data/me@home/x")),
        ("/data/me@home/x@test", Request("/data/me@home/x", "test")),
        ("/data/what?/x@test", Request("/data/what?/x", "test")),
        ("x?order=file", Request(DatasetName("x"), order=FILE_ORDER)),
        ("x@test?order=tfds", Request(DatasetName("x"), "test")),
        ("/x@test?order=file,lost_records=skip", Request("/x", "test", FILE_ORDER, True)),
        ("/x?even=2of3", Request("/x", even=EvenPart(2, 3))),
        ("/x@test?drop_remainder=yes,even=0of3", Request("/x", "test", even=EvenPart(0, 3, drop_remainder=True))),
        ("/x?reader=tfds", Request("/x", through_tfds=True)),
        ("/x?reader=files", Request("/x")),
        ("/x?", Request("/x")),
        ("/x%40y%3Fz%2525@a", Request("/x@y?z%25", "a")),
    ],
)
def test_a_name_says_what_is_read(text: str, wanted: Request) -> None:
    assert Request.parse(text) == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected tfds:NAME"),
        ("@train", "expected tfds:NAME"),
        ("?order=file", "expected tfds:NAME"),
        ("1x", '"1x" is no name of a dataset'),
        ("x:1.9", '"x:1.9" is no name of a dataset.*VERSION is three numbers'),
        ("x:latest", '"x" is a namespace, and'),
        ("x y", "is no name of a dataset"),
        ("x/", "is no name of a dataset"),
        ("d4rl/a/b", "is no name of a dataset"),
        ("huggingface:x", "datasets of a namespace come with code to run"),
        ("a-b:x/c:1.0.0", "datasets of a namespace come with code to run"),
        ("x/a=1,b=2", 'arguments "a=1,b=2" are for the code'),
        ("x/cfg:1.0.0/a=1", 'arguments "a=1" are for the code'),
        ("x?orders=file", 'unknown option "orders=file"; there are: order, lost_records, reader, even, drop_remainder'),
        ("x?order", 'option "order": expected tfds or file'),
        ("x?order=file&lost_records=skip", 'option "order=file&lost_records=skip": expected tfds or file'),
        ("x?order=file,order=file", 'option "order" is given twice'),
        ("x?order=file,", 'unknown option ""'),
        ("x?lost_records=all", "expected refuse or skip"),
        ("x?reader=tensorflow", "expected files or tfds"),
        ("x?even=3of3", "expected INDEXofCOUNT with 0 <= INDEX < COUNT"),
        ("x?even=-1of3", "expected INDEXofCOUNT"),
        ("x?even=1of٣", "expected INDEXofCOUNT"),
        ("x?even=1of" + "9" * 5000, "expected INDEXofCOUNT"),
        ("x?drop_remainder=yes", "goes with even=INDEXofCOUNT only"),
        ("x?even=0of1,drop_remainder=1", "expected yes or no"),
    ],
)
def test_a_name_that_makes_no_sense_is_refused_on_one_line(text: str, said: str) -> None:
    with pytest.raises(SourceError, match=said) as caught:
        Request.parse(text)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_a_request_or_refused(text: str) -> None:
    try:
        found = Request.parse(text)
    except SourceError:
        return
    assert found.dataset
    assert found.split


@given(
    name=st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True),
    config=st.from_regex(r"([a-z+.\-]{1,5})?", fullmatch=True),
)
def test_a_dataset_name_reads_as_it_is_written(name: str, config: str) -> None:
    one = DatasetName(name, config, "1.2.*")
    assert DatasetName.parse(str(one)) == one
