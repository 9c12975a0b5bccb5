"""TFDS datasets by name and by directory, read from the files and through TFDS: the same episodes, under names that each road keeps to."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.tfds import bundled_path
from rlds2reverb.specs import flatten

tfds = pytest.importorskip("tensorflow_datasets")

from etils import epath
from tensorflow_datasets.core.utils import file_utils

from rlds2reverb.formats.rlds import RldsSource
from rlds2reverb.formats.tfds import by_tensorflow
from rlds2reverb.formats.tfds.read import TfdsSource
from tests.support.tf_agents.roads import ROADS, through_tfds


@pytest.fixture(params=ROADS)
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type:
    """Reads every TFDS dataset this way; the kind of its source."""
    if request.param == "files":
        return TfdsSource
    through_tfds(monkeypatch)
    return RldsSource


def ids(name: str) -> list[str]:
    return [episode.id for episode in open_source(name)]


def test_a_slice_gives_its_episodes_the_same_names_as_the_whole(road: type) -> None:
    assert type(open_source("bundled:cartpole")) is road
    whole = ids("bundled:cartpole")
    assert len(set(whole)) == 25
    assert ids("bundled:cartpole@train[:5]") == whole[:5]
    assert ids("bundled:cartpole@train[20:]") == whole[20:]
    assert ids(f"tfds:{bundled_path('cartpole')}") == whole


def test_the_name_of_an_episode_holds_no_path() -> None:
    assert str(bundled_path("cartpole")) not in ids("bundled:cartpole@train[:1]")[0]


@pytest.mark.parametrize("name", ["cartpole", "half_cheetah"])
def test_the_fast_path_gives_what_the_nested_path_gives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    through_tfds(monkeypatch)
    fast = open_source(f"bundled:{name}")
    assert fast._batched  # type: ignore[attr-defined]
    monkeypatch.setattr(by_tensorflow, "_columns_are_stored_as_is", lambda _: False)
    slow = open_source(f"bundled:{name}")
    assert not slow._batched  # type: ignore[attr-defined]
    assert {path: str(spec) for path, spec in flatten(fast.spec()).items()} == {
        path: str(spec) for path, spec in flatten(slow.spec()).items()
    }
    for episode, other in zip(fast, slow):
        assert episode.id == other.id
        assert episode.metadata.keys() == other.metadata.keys()
        for path, column in episode.columns.items():
            assert column.dtype == other.columns[path].dtype
            np.testing.assert_array_equal(column, other.columns[path])


def numbered(observation: Any, splits: dict[str, list[int]]) -> dict[str, list[Any]]:
    """Episodes of these lengths by split; `observation` makes that of a step from its number in the dataset."""
    number = 0
    made: dict[str, list[Any]] = {}
    for split, lengths in splits.items():
        made[split] = []
        for rows in lengths:
            steps = [
                {
                    "observation": observation(number + row),
                    "action": number + row,
                    "reward": np.float32(row),
                    "discount": np.float32(1),
                    "is_first": row == 0,
                    "is_last": row == rows - 1,
                    "is_terminal": False,
                }
                for row in range(rows)
            ]
            made[split].append({"steps": steps, "episode_metadata": {"begins": number, "path": f"file {number}"}})
            number += rows
    return made


def write(parent: Path, name: str, feature: Any, episodes: dict[str, list[Any]], most: int = 2) -> Path:
    """A TFDS dataset by TFDS's own writers, so many episodes per file; its version directory."""
    from tensorflow_datasets.rlds import rlds_base

    directory = parent / name / "1.0.0"
    directory.mkdir(parents=True)
    config = rlds_base.DatasetConfig(
        name=name,
        observation_info=feature,
        action_info=np.int64,
        reward_info=np.float32,
        discount_info=np.float32,
        episode_metadata_info={"episode_metadata": {"begins": np.int64, "path": tfds.features.Text()}},
    )
    identity = tfds.core.DatasetIdentity(name, tfds.core.Version("1.0.0"), str(directory), "")
    writer = tfds.core.SequentialWriter(rlds_base.build_info(config, identity), max_examples_per_shard=most)
    writer.initialize_splits(list(episodes))
    writer.add_examples(episodes)
    writer.close_all()
    return directory


@dataclass(frozen=True)
class Written:
    """Two datasets in one TFDS data folder, and what was written."""

    folder: Path
    pictures: dict[str, list[Any]]
    numbers: dict[str, list[Any]]


SPLITS = {"train": [4, 1, 3, 2, 5], "test": [3, 2]}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """ "pictures" has images (stored as PNG), text and a class label; "numbers" what is stored as it is, nested."""
    features = tfds.features
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (40, 4, 5, 3), np.uint8)
    cube = rng.normal(size=(40, 2, 2)).astype(np.float32).astype(np.float64)  # TFRecords hold no more than float32
    pictures = numbered(
        lambda number: {"image": images[number], "text": f"step {number}", "label": "ab"[number % 2]}, SPLITS
    )
    numbers = numbered(
        lambda number: {
            "flag": number % 3 == 0,
            "deep": {"cube": cube[number], "small": np.int8(number - 9)},
            "text": f"step {number}" * (number % 4),
        },
        SPLITS,
    )
    folder = tmp_path_factory.mktemp("tfds")
    picture = {
        "image": features.Image(shape=(4, 5, 3)),
        "text": features.Text(),
        "label": features.ClassLabel(names="ab"),
    }
    write(folder, "pictures", features.FeaturesDict(picture), pictures)
    deep = {"cube": features.Tensor(shape=(2, 2), dtype=np.float64), "small": features.Scalar(dtype=np.int8)}
    number = {"flag": np.bool_, "deep": deep, "text": features.Text()}
    write(folder, "numbers", features.FeaturesDict(number), numbers)
    return Written(folder, pictures, numbers)


def columns_of(steps: list[Any]) -> dict[str, Any]:
    """Rows, as they were written, to columns."""
    rows = [flatten(step) for step in steps]
    texts = {path for path, value in rows[0].items() if isinstance(value, str)}
    return {
        path: np.array([row[path].encode() for row in rows], object)
        if path in texts
        else np.stack([r[path] for r in rows])
        for path in rows[0]
    }


def assert_columns(found: Any, wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for path, column in wanted.items():
        assert found[path].shape == column.shape, path
        np.testing.assert_array_equal(found[path], column, err_msg=path)


@pytest.mark.parametrize("split", SPLITS)
def test_images_text_and_labels_are_decoded(road: type, written: Written, split: str) -> None:
    source = open_source(f"tfds:{written.folder}/pictures/1.0.0@{split}")
    assert type(source) is road
    assert not getattr(source, "_batched", False)
    assert source.episode_count == len(SPLITS[split])
    for episode, wanted in zip(source, written.pictures[split], strict=True):
        columns = columns_of(wanted["steps"])
        columns["observation/label"] = np.array([ord(label) - ord(b"a") for label in columns["observation/label"]])
        assert_columns(episode.columns, columns)
        assert episode.columns["observation/image"].dtype == np.uint8


@pytest.mark.parametrize("split", SPLITS)
def test_what_is_stored_as_it_is_is_read_by_the_column(road: type, written: Written, split: str) -> None:
    source = open_source(f"tfds:{written.folder}/numbers/1.0.0@{split}")
    assert type(source) is road
    assert getattr(source, "_batched", True)
    for episode, wanted in zip(source, written.numbers[split], strict=True):
        assert_columns(episode.columns, columns_of(wanted["steps"]))
        assert episode.columns["observation/deep/small"].dtype == np.int8
        assert episode.columns["observation/flag"].dtype == bool
        metadata = wanted["episode_metadata"]
        assert episode.metadata["episode_metadata/begins"] == metadata["begins"]
        assert episode.metadata["episode_metadata/path"] == metadata["path"].encode()


def test_the_fast_path_gives_what_the_nested_path_gives_for_every_kind_of_feature(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    through_tfds(monkeypatch)
    name = f"tfds:{written.folder}/numbers/1.0.0"
    fast = open_source(name)
    monkeypatch.setattr(by_tensorflow, "_columns_are_stored_as_is", lambda _: False)
    slow = open_source(name)
    assert flatten(fast.spec()) == flatten(slow.spec())
    for episode, other in zip(fast, slow, strict=True):
        assert (episode.id, list(episode.columns)) == (other.id, list(other.columns))
        assert {path: column.dtype for path, column in episode.columns.items()} == {
            path: column.dtype for path, column in other.columns.items()
        }
        assert_columns(episode.columns, dict(other.columns))


def assert_the_same(one: Any, other: Any) -> None:
    """Two sources with equal specs, and equal episodes in the same order; their names are each road's own."""
    assert flatten(one.spec()) == flatten(other.spec())
    assert one.episode_count == other.episode_count
    for found, wanted in zip(one, other, strict=True):
        assert (found.recorded_id, found.faults) == (wanted.recorded_id, wanted.faults)
        assert list(found.columns) == list(wanted.columns)
        assert list(found.metadata) == list(wanted.metadata)
        for path, column in wanted.columns.items():
            assert found.columns[path].dtype == column.dtype, path
            np.testing.assert_array_equal(found.columns[path], column, err_msg=path)
        for path, value in wanted.metadata.items():
            assert type(found.metadata[path]) is type(value), path
            np.testing.assert_array_equal(found.metadata[path], value, err_msg=path)


@pytest.mark.parametrize(
    "name",
    [
        "bundled:cartpole", "bundled:half_cheetah", "bundled:cartpole@train[3:17]?even=1of3,order=file",
        "numbers", "numbers@train[1:]+test[:1]", "numbers@all", "pictures@test", "many", "many@train[5%:-3]+test",
        "many?order=file", "many@all?even=1of3", "ordered", "ordered@train[10:40]",
    ],
)  # fmt: skip
def test_both_roads_give_the_same(written: Written, many: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(
        file_utils,
        "_REGISTERED_DATA_DIRS",
        {epath.Path(written.folder), epath.Path(many), epath.Path(many / "ordered")},
    )
    name = name if name.startswith("bundled:") else f"tfds:{name}"
    here = open_source(name)
    assert type(here) is TfdsSource
    through_tfds(monkeypatch)
    there = open_source(name)
    assert type(there) is RldsSource
    assert_the_same(here, there)
    assert_the_same(here.shard(1, 2), there.shard(1, 2))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ "many" has more files than are open at a time, and more than a block of episodes in most; "ordered" keeps its order."""
    folder = tmp_path_factory.mktemp("many")
    feature = tfds.features.FeaturesDict({"x": np.int64})
    lengths = {"train": [1] * 340, "test": [2, 1] * 20}
    write(folder, "many", feature, numbered(lambda number: {"x": number}, lengths), most=17)
    short = numbered(lambda number: {"x": number}, {"train": [1] * 90})
    directory = write(folder / "ordered", "ordered", feature, short, most=40)
    info = json.loads((directory / "dataset_info.json").read_text())
    (directory / "dataset_info.json").write_text(json.dumps({**info, "disableShuffling": True}))
    return folder


def test_parquet_files_give_the_same_on_both_roads(many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    copy = Path(shutil.copytree(many / "many" / "1.0.0", tmp_path / "many" / "1.0.0"))
    for path in copy.glob("*.tfrecord-*"):
        records = list(tfds.core.file_adapters.TfRecordFileAdapter.make_tf_data(str(path)).as_numpy_iterator())
        parquet.write_table(pyarrow.table({"data": records}), copy / path.name.replace(".tfrecord-", ".parquet-"))
        path.unlink()
    told = json.loads((copy / "dataset_info.json").read_text())
    (copy / "dataset_info.json").write_text(json.dumps({**told, "fileFormat": "parquet"}))
    here = open_source(f"tfds:{copy}@train[20:90]+test")
    through_tfds(monkeypatch)
    assert_the_same(here, open_source(f"tfds:{copy}@train[20:90]+test"))


def as_array_records(directory: Path, parent: Path) -> Path:
    """A copy of a version directory whose files TFDS wrote as ArrayRecord."""
    pytest.importorskip("array_record")
    copy = Path(shutil.copytree(directory, parent / directory.parent.name / directory.name))
    adapters = tfds.core.file_adapters
    for path in copy.glob("*.tfrecord-*"):
        records = list(adapters.TfRecordFileAdapter.make_tf_data(str(path)).as_numpy_iterator())
        target = copy / path.name.replace(".tfrecord-", ".array_record-")
        adapters.ArrayRecordFileAdapter.write_examples(str(target), list(enumerate(records)))
        path.unlink()
    described = json.loads((copy / "dataset_info.json").read_text())
    (copy / "dataset_info.json").write_text(json.dumps({**described, "fileFormat": "array_record"}))
    return copy


@pytest.mark.parametrize("split", ["train", "train[1:4]", "test[-1:]+train[:2]", "all", "train?even=1of2"])
@pytest.mark.parametrize("name", ["numbers", "pictures"])
def test_array_record_files_give_the_same_on_both_roads(
    written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, split: str
) -> None:
    copy = as_array_records(written.folder / name / "1.0.0", tmp_path)
    here = open_source(f"tfds:{copy}@{split}")
    through_tfds(monkeypatch)
    there = open_source(f"tfds:{copy}@{split}")
    assert there.episode_count == here.episode_count
    assert_the_same(here, there)


def sounds(parent: Path) -> tuple[Path, dict[str, list[Any]]]:
    """A dataset with a feature that TFDS alone decodes, and what was written."""
    episodes = numbered(lambda number: {"sound": np.arange(8, dtype=np.int16) + number}, SPLITS)
    feature = tfds.features.FeaturesDict({"sound": tfds.features.Audio(shape=(8,), dtype=np.int16)})
    return write(parent, "sounds", feature, episodes), episodes


def test_array_record_files_with_sounds_are_read_through_tfds_as_tfrecords_are(tmp_path: Path) -> None:
    directory, episodes = sounds(tmp_path)
    copy = as_array_records(directory, tmp_path / "copy")
    for split, written_episodes in episodes.items():
        of_records, of_array_records = (
            open_source(f"tfds:{folder}@{split}?order=file") for folder in (directory, copy)
        )
        assert type(of_array_records) is RldsSource
        assert of_array_records.episode_count == len(written_episodes)
        for record, other, episode in zip(of_records, of_array_records, written_episodes, strict=True):
            assert record.id == other.id
            assert_columns(other.columns, columns_of(episode["steps"]))
            assert other.columns["observation/sound"].dtype == np.int16
    whole = [episode.id for episode in of_array_records]
    assert ids(f"tfds:{copy}@test[1:]") == whole[1:]
    assert [episode.id for episode in open_source(f"tfds:{copy}@test").shard(1, 2)] == whole[1::2]
    assert [episode.id for episode in open_source(f"tfds:{copy}@test").without(["action"])] == whole


def test_array_record_files_that_are_cut_or_missing_are_told_by_name_through_tfds(tmp_path: Path) -> None:
    directory, _ = sounds(tmp_path)
    copy = as_array_records(directory, tmp_path / "copy")
    first, *_ = sorted(copy.glob("*train.array_record-*"))
    first.write_bytes(first.read_bytes()[: first.stat().st_size // 2])
    with pytest.raises(SourceError, match=f"episode 0: cannot be read: .*{first.name}"):
        list(open_source(f"tfds:{copy}"))
    first.unlink()
    with pytest.raises(SourceError, match=first.name):
        open_source(f"tfds:{copy}")


def test_tfds_reads_where_it_is_asked_to(written: Written) -> None:
    here, there = (open_source(f"tfds:{written.folder}/numbers/1.0.0?reader={reader}") for reader in ("files", "tfds"))
    assert (type(here), type(there)) == (TfdsSource, RldsSource)
    assert_the_same(here, there)


def test_lost_records_are_none_of_tfds_options(written: Written) -> None:
    with pytest.raises(SourceError, match="lost_records=skip: TFDS cannot leave out lost records"):
        open_source(f"tfds:{written.folder}/numbers/1.0.0?reader=tfds,lost_records=skip")


def test_files_are_interleaved_unless_the_order_of_the_files_is_asked_for(many: Path) -> None:
    def begins(name: str) -> list[int]:
        return [int(episode.metadata["episode_metadata/begins"]) for episode in open_source(f"tfds:{many}/{name}")]

    assert begins("many/1.0.0?order=file") == list(range(340))
    assert begins("many/1.0.0")[:34] == [*range(16), *range(17, 33), 34, 35]
    assert sorted(begins("many/1.0.0")) == list(range(340))
    assert begins("ordered/ordered/1.0.0") == list(range(90))


def test_every_slice_gives_an_episode_the_same_name_and_content(road: type, written: Written) -> None:
    name = f"tfds:{written.folder}/numbers/1.0.0"
    whole = {episode.id: episode for split in SPLITS for episode in open_source(f"{name}@{split}")}
    assert len(whole) == 7
    train = list(whole)[:5]
    for split, wanted in {
        "train[:2]": train[:2],
        "train[3:]": train[3:],
        "train[40%:80%]": train[2:4],
        "train[-1:]": train[-1:],
        "train+test": list(whole),
        "train[4:]+test[:1]": list(whole)[4:6],
    }.items():
        found = list(open_source(f"{name}@{split}"))
        assert [episode.id for episode in found] == wanted, split
        for episode in found:
            assert_columns(episode.columns, dict(whole[episode.id].columns))


def test_shards_share_out_the_episodes_under_the_same_names(road: type, written: Written) -> None:
    source = open_source(f"tfds:{written.folder}/numbers/1.0.0")
    whole = [episode.id for episode in source]
    assert [[episode.id for episode in source.shard(index, 2)] for index in range(2)] == [whole[::2], whole[1::2]]


def test_a_copy_in_another_place_gives_the_same_names_and_other_data_others(
    road: type, written: Written, tmp_path: Path
) -> None:
    name = "numbers/1.0.0"
    shutil.copytree(written.folder / name, tmp_path / name)
    assert ids(f"tfds:{tmp_path / name}") == ids(f"tfds:{written.folder / name}")
    feature = tfds.features.FeaturesDict({"x": np.int64})
    other = write(tmp_path / "other", "numbers", feature, numbered(lambda number: {"x": number}, SPLITS))
    assert not set(ids(f"tfds:{other}")) & set(ids(f"tfds:{written.folder / name}"))


@pytest.mark.parametrize("name", ["numbers", "numbers:1.0.0"])
def test_a_prepared_dataset_is_found_by_its_name(
    road: type, written: Written, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(file_utils, "_REGISTERED_DATA_DIRS", {epath.Path(written.folder)})
    source = open_source(f"tfds:{name}@test")
    assert (source.name, source.episode_count) == (f"tfds:{name}@test", 2)
    assert [episode.id for episode in source] == ids(f"tfds:{written.folder}/numbers/1.0.0@test")


def test_a_directory_may_be_relative_or_below_home(
    road: type, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(written.folder)
    monkeypatch.setenv("HOME", str(written.folder))
    wanted = ids(f"tfds:{written.folder}/numbers/1.0.0")
    assert ids("tfds:./numbers/1.0.0") == wanted
    assert ids("tfds:~/numbers/1.0.0") == wanted


def test_a_dataset_without_steps_is_no_rlds(road: type, tmp_path: Path) -> None:
    identity = tfds.core.DatasetIdentity("plain", tfds.core.Version("1.0.0"), str(tmp_path), "")
    info = tfds.core.DatasetInfo(builder=identity, features=tfds.features.FeaturesDict({"x": np.int64}))
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=2)
    writer.initialize_splits(["train"])
    writer.add_examples({"train": [{"x": 1}]})
    writer.close_all()
    with pytest.raises(SourceError, match=r"not RLDS: an episode needs a feature \"steps\"; found .*'x'"):
        open_source(f"tfds:{tmp_path}")


def test_a_damaged_file_stops_the_reading_with_the_episode_named(road: type, written: Written, tmp_path: Path) -> None:
    shutil.copytree(written.folder / "numbers" / "1.0.0", tmp_path / "copy")
    file = sorted((tmp_path / "copy").glob("*train.tfrecord*"))[1]
    file.write_bytes(file.read_bytes()[:-10])
    source = open_source(f"tfds:{tmp_path / 'copy'}")
    read = []
    with pytest.raises(SourceError, match=r"episode \d: cannot be read") as caught:
        read += [episode.id for episode in source]
    assert str(caught.value).startswith(f"tfds:{tmp_path / 'copy'}, episode ")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tfds:no_such_dataset", "cannot be opened"),
        ("tfds:/no/such/directory", "expected a version directory"),
        ("tfds:", "expected tfds:NAME"),
        ("tfds:@train", "expected tfds:NAME"),
        ("bundled:cartpole@test", "there are: train"),
        ("bundled:cartpole@train[", "there are: train"),
        ("bundled:walker", "expected one of cartpole, half_cheetah"),
    ],
)
def test_what_cannot_be_opened_is_said_on_one_line(road: type, name: str, said: str) -> None:
    with pytest.raises(SourceError, match=said.replace("[", r"\[")) as error:
        list(open_source(name))
    assert "\n" not in str(error.value)
