"""What the name of a TFDS destination says, and what it must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.tfds.write import Target


def test_a_name_says_folder_version_split_and_options() -> None:
    found = Target.parse("/data/a:b@c/my_set:1.2.30@test?file_format=parquet,shards=3,encoding=zlib,images=tensor")
    assert found.path == Path("/data/a:b@c/my_set/1.2.30")
    assert (found.split, found.file_format, found.shards) == ("test", "parquet", 3)
    assert (found.encoding, found.images, found.shard_bytes) == ("zlib", "tensor", None)


def test_what_is_not_said_is_usual() -> None:
    found = Target.parse("/data/my_set")
    assert found.path == Path("/data/my_set/1.0.0")
    assert (found.split, found.file_format, found.shards) == ("train", "tfrecord", None)


def test_a_name_alone_is_in_the_folder_of_tfds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert Target.parse("my_set:2.0.0").path == tmp_path / "my_set" / "2.0.0"
    assert Target.parse("./my_set").path == Path("my_set/1.0.0")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "expected tfds:/data_dir"),
        ("/data/MySet", "lower case"),
        ("/data/mySet", "lower case"),
        ("/data/my-set", "lower case"),
        ("/data/1set", "lower case"),
        ("/", "lower case"),
        ("/data/my_set:1.0", "three numbers"),
        ("/data/my_set:1.0.01", "three numbers"),
        ("/data/my_set:*.0.0", "three numbers"),
        ("/data/my_set@train[:3]", "one name of letters"),
        ("/data/my_set@all", "one name of letters"),
        ("/data/my_set?shards=0", "at least 1"),
        ("/data/my_set?shards=x", "whole number"),
        ("/data/my_set?shards=100000", "expected 1 to 99,999"),
        ("/data/my_set?encoding=none", "bytes or zlib"),
        ("/data/my_set?file_format=riegeli", "expected tfrecord"),
        ("/data/my_set?nonsense=1", 'unknown option "nonsense=1"'),
        ("/data/my_set?shards=1,shards=2", "twice"),
    ],
)
def test_names_that_make_no_sense_are_refused(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Target.parse(text)
