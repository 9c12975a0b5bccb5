"""`rlds2reverb index`: what it says, where it puts indexes, and what it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rlds2reverb.formats import open_source
from rlds2reverb.formats.tfds import bundled_path, index

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundled_path("cartpole"), tmp_path / "data"))


def test_indexes_go_into_the_cache(run: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLDS2REVERB_CACHE", str(tmp_path / "cache"))
    (shard,) = data.glob("*.tfrecord-*")
    for name in (f"tfds:{data}@train[3:5]", f"tfds:{data}"):
        code, shown, _ = run("index", name)
        assert (code, shown.split()) == (
            0,
            ["shards", "1", "records", "25", "indexes", "in", str(tmp_path / "cache" / "indexes")],
        )
        assert index.cached_path(shard).is_file()


def test_indexes_go_beside_the_shards(run: Run, data: Path) -> None:
    code, shown, _ = run("index", f"tfds:{data}", f"tfds:{data}@train[:1]", "--beside", "--quiet")
    assert (code, shown.split()[:4]) == (0, ["shards", "2", "records", "50"])
    (beside,) = data.glob(f"*{index.SUFFIX}")
    assert beside.name == f"cartpole-train.tfrecord-00000{index.SUFFIX}"
    assert open_source(f"tfds:{data}").episode_count == 25


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "Missing argument 'SOURCE...'"),
        (("tfds:/nowhere/at/all",), 3, "/nowhere/at/all"),
        (
            ("mix:bundled:cartpole@train[:1]|bundled:cartpole@train[1:]",),
            3,
            "only TFRecord shards need an index; expected tfds:NAME",
        ),
    ],
)
def test_what_has_no_shards_is_refused(run: Run, arguments: tuple[str, ...], code: int, said: str) -> None:
    ended, shown, told = run("index", *arguments)
    assert (ended, shown) == (code, "")
    assert said in told


def test_a_folder_that_cannot_be_written_is_refused(run: Run, data: Path) -> None:
    (shard,) = data.glob("*.tfrecord-*")
    index.beside_path(shard).mkdir()
    code, _, told = run("index", f"tfds:{data}", "--beside")
    assert code == 6
    assert "cannot be written; leave --beside out, and the index is put into the cache" in told
    assert len(told.splitlines()) == 1
