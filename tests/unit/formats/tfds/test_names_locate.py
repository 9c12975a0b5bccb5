"""Named datasets, found in data folders."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats.buckets import path_of
from rlds2reverb.formats.tfds.names import DatasetName, Request, data_folders, find, version_directory


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
