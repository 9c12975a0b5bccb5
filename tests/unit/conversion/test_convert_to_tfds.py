"""Version directories: their files, in every format; images, and what no feature holds."""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.conversion.convert import convert
from rlds2reverb.errors import ConfigError, InvalidEpisode, SourceError
from rlds2reverb.formats import open_destination, open_source
from rlds2reverb.formats.destination import Content
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.tfds import bundled_path, write
from rlds2reverb.formats.tfds.tfrecord import tfrecords
from rlds2reverb.specs import ArraySpec, ImageSpec, column_spec
from tests.contract.destination_cases import data
from tests.contract.test_destinations import contents

FORMATS = ["tfrecord", "array_record", "parquet"]
TEXT = np.dtype(object)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def into(tmp_path: Path, options: str = "", source: Any = "bundled:cartpole", **given: Any) -> Path:
    """Converts; the version directory."""
    report = convert(source, f"tfds:{tmp_path / 'my_set'}{options}", verify=True, **given)
    return Path(report.path)


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("shards", [1, 2, 7])
def test_every_format_is_cut_into_files_and_read_in_order(tmp_path: Path, file_format: str, shards: int) -> None:
    folder = into(tmp_path, f"?file_format={file_format},shards={shards}")
    shown = [f"my_set-train.{file_format}-{shard:05}-of-{shards:05}" for shard in range(shards)]
    assert names(folder) == ["dataset_info.json", "features.json", *shown]
    info = json.loads((folder / "dataset_info.json").read_text(encoding="utf-8"))
    assert info["fileFormat"] == file_format
    assert sum(map(int, info["splits"][0]["shardLengths"])) == 25
    assert contents(open_source(f"tfds:{folder}")) == contents(open_source("bundled:cartpole"))


def test_equal_episodes_make_equal_files(tmp_path: Path) -> None:
    one, other = into(tmp_path / "a", "?shards=3"), into(tmp_path / "b", "?shards=3")
    assert names(one) == names(other)
    assert all((one / name).read_bytes() == (other / name).read_bytes() for name in names(one))


def test_a_dataset_of_tfds_written_again_is_the_same(tmp_path: Path) -> None:
    once = into(tmp_path / "a")
    again = into(tmp_path / "b", source=f"tfds:{once}")
    assert all((once / name).read_bytes() == (again / name).read_bytes() for name in names(once))


def test_files_of_a_size_that_is_asked_for(tmp_path: Path) -> None:
    folder = into(tmp_path, "?shard_bytes=20000")
    sizes = [path.stat().st_size for path in folder.glob("*tfrecord*")]
    assert len(sizes) == 5
    assert max(sizes) < 40_000


def test_more_files_than_episodes_are_not_made(tmp_path: Path) -> None:
    assert len(names(into(tmp_path, "?shards=100", limit=3))) == 3 + 2


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("kill", range(1, 13))
def test_cutting_files_goes_on_after_a_kill(
    tmp_path: Path, file_format: str, kill: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    calls = []

    def counted(function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            calls.append(function)
            if len(calls) == kill:
                raise Killed
            return function(*arguments, **named)

        return call

    name = f"tfds:{tmp_path / 'my_set'}?file_format={file_format},shards=4"
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", counted(Path.replace))
        patched.setattr(os, "truncate", counted(os.truncate))
        with suppress(Killed):
            convert("bundled:cartpole@train[:5]", name)
    if not open_destination(name).path.exists():
        convert("bundled:cartpole@train[:5]", name, verify=True)
    folder = open_destination(name).path
    assert contents(open_source(f"tfds:{folder}")) == contents(open_source("bundled:cartpole@train[:5]"))
    assert len(names(folder)) == 2 + 4


def test_numbers_that_lists_do_not_hold_are_packed(tmp_path: Path) -> None:
    plain = into(tmp_path / "a", source=data.with_columns(data.dtypes))
    packed = into(tmp_path / "b", "?encoding=zlib", source=data.with_columns(data.dtypes))
    steps = json.loads((packed / "features.json").read_text(encoding="utf-8"))["featuresDict"]["features"]["steps"]
    observation = steps["sequence"]["feature"]["featuresDict"]["features"]["observation"]["featuresDict"]["features"]
    found = {name: node["tensor"]["encoding"] for name, node in observation.items()}
    assert {name for name, encoding in found.items() if encoding == "zlib"} == {
        *("float64", "complex64", "complex128", "bfloat16"),
    }
    assert contents(open_source(f"tfds:{plain}")) == contents(open_source(f"tfds:{packed}"))


def jpeg_dataset(tmp_path: Path) -> tuple[Path, list[bytes]]:
    """A dataset of JPEG files, and the files."""
    simplejpeg = pytest.importorskip("simplejpeg")
    rng = np.random.default_rng(0)
    made = [simplejpeg.encode_jpeg(rng.integers(0, 256, (20, 24, 3), np.uint8)) for _ in range(3)]
    destination = open_destination(f"tfds:{tmp_path / 'jpegs'}")
    episode = data.episode(1)
    image = ArraySpec.of_images(ImageSpec((20, 24, 3), np.dtype(np.uint8), "jpeg"))
    columns = {path: ArraySpec(column.shape[1:], column.dtype) for path, column in episode.columns.items()}
    destination.path.mkdir(parents=True)
    content = Content("x", {**columns, "image": image}, {})
    sink, encode = destination.sink(destination.path, content, None), destination.encoder(content)
    stored = np.empty(3, object)
    stored[:] = made
    sink.write(encode(episode.with_columns(image=stored)))
    sink.sync()
    sink.finish()
    sink.close()
    return destination.path, made


def test_the_bytes_of_image_files_are_kept(tmp_path: Path) -> None:
    folder, made = jpeg_dataset(tmp_path)
    report = convert(f"tfds:{folder}", f"tfds:{tmp_path / 'my_set'}", verify=True)
    assert report.encoded == ("image",)
    back = open_source(f"tfds:{report.path}")
    assert next(iter(back.encoded(["image"]))).columns["image"].tolist() == made


def test_images_are_decoded_where_that_is_asked_for(tmp_path: Path) -> None:
    folder, _ = jpeg_dataset(tmp_path)
    report = convert(f"tfds:{folder}", f"tfds:{tmp_path / 'my_set'}", verify=True, decode=True)
    assert report.encoded == ()
    one, other = (next(iter(open_source(f"tfds:{path}"))).columns["image"] for path in (folder, report.path))
    np.testing.assert_array_equal(one, other)


def test_a_destination_that_holds_no_files_gets_pixels_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = jpeg_dataset(tmp_path)
    monkeypatch.setattr("rlds2reverb.formats.tfds.write.TfdsDestination.held_files", lambda *_: {})
    name = f"tfds:{tmp_path / 'my_set'}"
    with pytest.raises(SourceError, match="cannot hold the bytes of image files"):
        convert(f"tfds:{folder}", name, encoded="all")
    assert convert(f"tfds:{folder}", name, verify=True).encoded == ()


def test_small_arrays_of_bytes_are_no_images(tmp_path: Path) -> None:
    grids = data.with_columns(lambda rng, rows: {"observation": rng.integers(0, 9, (rows, 7, 7, 3), np.uint8)})
    folder = into(tmp_path, source=grids)
    assert "image_feature" not in (folder / "features.json").read_text(encoding="utf-8")


def content(columns: dict[str, ArraySpec] | None = None, metadata: dict[str, ArraySpec] | None = None) -> Content:
    return Content("x", columns or {}, metadata or {})


def test_what_no_feature_holds_is_told(tmp_path: Path) -> None:
    destination = open_destination(f"tfds:{tmp_path / 'my_set'}")
    odd = {"said": ArraySpec((None, None), TEXT), "b": ArraySpec((3, None), TEXT), "ok": ArraySpec((None, 3), TEXT)}
    numbers = ArraySpec((), np.dtype(np.int64))
    told = destination.losses(content(odd, {**odd, "steps": numbers, "steps/x": numbers, "other_steps": numbers}))
    assert {(loss.code, loss.path) for loss in told} == {
        *(("text_of_free_sizes", path) for path in ("said", "b", "metadata/said")),
        *(("name_of_steps", path) for path in ("metadata/steps", "metadata/steps/x")),
    }


def test_metadata_that_hides_the_steps_is_left_out(tmp_path: Path) -> None:
    episodes = [data.episode(number, metadata={"steps": 3, "other": 4}) for number in range(2)]
    report = convert(episodes, f"tfds:{tmp_path / 'my_set'}", verify=True)
    assert [(loss.code, loss.path) for loss in report.losses] == [("name_of_steps", "metadata/steps")]
    assert dict(next(iter(open_source(f"tfds:{report.path}"))).metadata) == {"other": 4}


@pytest.mark.parametrize(
    ("library", "options"), [("pyarrow", "?file_format=parquet"), ("array_record", "?file_format=array_record")]
)
def test_a_library_that_is_missing_is_told_at_once(
    tmp_path: Path, library: str, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    for name in [module for module in list(sys.modules) if module.startswith(f"{library}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=f"needs {library}"):
        open_destination(f"tfds:{tmp_path / 'my_set'}{options}")


def test_an_episode_that_no_record_holds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds2reverb.formats.tfds.encode.MOST_BYTES", 2_000)
    with pytest.raises(InvalidEpisode, match=r"a record of [\d,]+ bytes; .* at most 2,000"):
        into(tmp_path)
    assert not (tmp_path / "my_set" / "1.0.0").exists()


def test_metadata_that_may_be_ragged_is_left_out_and_images_are_not(tmp_path: Path) -> None:
    class Described(EpisodeList):
        def metadata_spec(self) -> Any:
            sizes = {"rows": ArraySpec((None, None), np.dtype(np.int64))}
            return {**sizes, "picture": ArraySpec((None, None, 3), np.dtype(np.uint8))}

    pictures = [np.full((16 + number, 20, 3), number, np.uint8) for number in range(2)]
    rows = np.zeros((2, 2), np.int64)
    episodes = [data.episode(number, metadata={"rows": rows, "picture": pictures[number]}) for number in range(2)]
    report = convert(Described(episodes), f"tfds:{tmp_path / 'my_set'}", verify=True)
    assert [(loss.code, loss.path) for loss in report.losses] == [("ragged_metadata", "metadata/rows")]
    back = [episode.metadata["picture"] for episode in open_source(f"tfds:{report.path}")]
    assert all(np.array_equal(image, other) for image, other in zip(back, pictures))


def test_what_array_record_says_of_the_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("array_record.python.array_record_module")

    class Full:
        def __init__(self, *_: object) -> None:
            raise RuntimeError("write() failed: No space left on device; at byte 3")

    name = "?file_format=array_record"
    with monkeypatch.context() as patched:
        patched.setattr(module, "ArrayRecordWriter", Full)
        with pytest.raises(OSError, match=r"1\.0\.0 \(.*\.unfinished\): cannot be written: No space left"):
            into(tmp_path, name)
    assert len(names(into(tmp_path, name))) == 3


def test_a_spool_goes_on_where_it_was_synced(tmp_path: Path) -> None:
    one = write.Spool(tmp_path)
    one.append(b"first")
    one.sync()
    size = one.size
    one.append(b"second")
    one.close()
    other = write.Spool(tmp_path, 1, size)
    other.append(b"third one")
    other.close()
    assert write.lengths_in(tmp_path, 2).tolist() == [5, 9]
    assert list(tfrecords(tmp_path / write.RECORDS, 0, 2)) == [b"first", b"third one"]


@pytest.mark.parametrize("name", [write.RECORDS, write.LENGTHS])
def test_a_spool_that_has_lost_records_takes_no_more(tmp_path: Path, name: str) -> None:
    one = write.Spool(tmp_path)
    one.append(b"first")
    one.sync()
    one.close()
    (tmp_path / name).write_bytes(b"")
    other = write.Spool(tmp_path, 1, one.size)
    with pytest.raises(OSError, match="begin anew"):
        other.append(b"second")
    other.close()


@pytest.mark.parametrize("name", [write.RECORDS, write.LENGTHS])
@pytest.mark.parametrize("options", ["", "?shards=2", "?file_format=parquet"])
def test_a_spool_that_has_lost_records_is_no_dataset(tmp_path: Path, name: str, options: str) -> None:
    episodes = [data.episode(number) for number in range(3)]
    destination, work = open_destination(f"tfds:{tmp_path / 'set'}{options}"), tmp_path / "work"
    work.mkdir()
    told = content({path: column_spec(column) for path, column in episodes[0].columns.items()}, {})
    sink, encode = destination.sink(work, told, None), destination.encoder(told)
    for episode in episodes:
        sink.write(encode(episode))
    state = sink.sync()
    sink.close()
    (work / name).unlink()
    again = destination.sink(work, told, state)
    with pytest.raises(OSError, match=r"begin anew|No such file.*lengths'"):
        again.finish()
    with pytest.raises(OSError, match="begin anew"):
        again.write(encode(episodes[0]))
    again.close()


SAID = {
    "citation": "@misc{own}", "location": {"urls": ["https://own/page"]}, "redistributionInfo": {"license": "CC-BY"},
    "releaseNotes": {"1.0.0": "first"}, "description": "of our own", "downloadSize": "17",
}  # fmt: skip


def described(folder: Path, **more: Any) -> Path:
    """A copy of a bundled dataset that says more of itself."""
    shutil.copytree(bundled_path("cartpole"), folder)
    info = json.loads((folder / "dataset_info.json").read_text())
    (folder / "dataset_info.json").write_text(json.dumps(info | SAID | more))
    (folder / "metadata.json").write_text(json.dumps({"robot": "own", "rate": 5}))
    return folder


def test_a_copy_says_of_itself_what_the_dataset_says(tmp_path: Path) -> None:
    first = described(
        tmp_path / "first", supervisedKeys={"input": "a"}, configName="big", moduleName="own.module", configTags=[]
    )
    report = convert(f"tfds:{first}@train[:3]", f"tfds:{tmp_path / 'copy'}:2.0.0", transform={"drop": ["discount"]})
    info = json.loads(Path(report.path, "dataset_info.json").read_text())
    assert {name: info[name] for name in SAID} == SAID
    assert (info["name"], info["version"], info["splits"][0]["shardLengths"]) == ("copy", "2.0.0", ["3"])
    assert json.loads(Path(report.path, "metadata.json").read_text()) == {"robot": "own", "rate": 5}
    assert [(loss.code, loss.path) for loss in report.losses] == [("dataset_metadata", "dataset/supervised_keys")]


def test_a_description_is_one_in_other_systems_too(tmp_path: Path) -> None:
    first = described(tmp_path / "first")
    report = convert(f"tfds:{first}", f"minari:{tmp_path / 'cart-v0'}")
    told = json.loads((tmp_path / "cart-v0" / "data" / "metadata.json").read_text())
    assert told["description"] == "of our own"
    lost = {loss.path for loss in report.losses if loss.code == "dataset_metadata"}
    names = ("citation", "location", "redistribution_info", "release_notes", "download_size", "metadata")
    assert lost == {f"dataset/{name}" for name in names}
    back = convert(f"minari:{tmp_path / 'cart-v0'}", f"tfds:{tmp_path / 'back'}", strict=True)
    assert json.loads(Path(back.path, "dataset_info.json").read_text())["description"] == "of our own"


def test_a_description_of_ours_is_none_of_the_dataset(tmp_path: Path) -> None:
    folder = into(tmp_path, source=[data.episode(3)])
    assert open_source(f"tfds:{folder}").about.facts == {}


@pytest.mark.full
@pytest.mark.parametrize("reader", ["files", "tfds"])
def test_tfds_reads_what_a_copy_says(tmp_path: Path, reader: str) -> None:
    tfds: Any = pytest.importorskip("tensorflow_datasets")
    options = "?reader=tfds" if reader == "tfds" else ""
    report = convert(f"tfds:{described(tmp_path / 'first')}{options}", f"tfds:{tmp_path / 'copy'}")
    info = tfds.builder_from_directory(report.path).info
    assert (info.description, info.citation, info.homepage) == ("of our own", "@misc{own}", "https://own/page")
    assert (info.redistribution_info.license, dict(info.metadata)) == ("CC-BY", {"robot": "own", "rate": 5})
