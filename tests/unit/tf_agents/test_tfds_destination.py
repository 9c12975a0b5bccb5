"""What is written as TFDS is read by TFDS: the same features, episodes in their order, values to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlds2reverb.conversion.convert import convert
from rlds2reverb.episode import Episode
from rlds2reverb.formats import open_destination, open_source
from rlds2reverb.formats.destination import Content
from rlds2reverb.formats.tfds.tfrecord import tfrecords
from rlds2reverb.specs import ArraySpec, ImageSpec, flatten
from tests.contract.destination_cases import data
from tests.support import rlds_data

tf = pytest.importorskip("tensorflow")
tfds = pytest.importorskip("tensorflow_datasets")


def by_tfds(folder: Path, split: str = "train") -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Columns and metadata of every episode, as TFDS reads them."""
    found = []
    for episode in tfds.builder_from_directory(str(folder)).as_dataset(split=split):
        steps = list(episode.pop("steps").as_numpy_iterator())
        columns = {path: [flatten(step)[path] for step in steps] for path in flatten(steps[0])}
        found.append((columns, {path: value.numpy() for path, value in flatten(episode).items()}))
    return found


def assert_read(folder: Path, episodes: Any) -> None:
    found = by_tfds(folder)
    assert len(found) == len(list(episodes))
    for (columns, metadata), wanted in zip(found, episodes):
        assert columns.keys() == wanted.columns.keys()
        for path, column in wanted.columns.items():
            if column.dtype == object:
                assert np.array(columns[path], object).tolist() == column.tolist()
                continue
            stacked = np.stack(columns[path])
            assert stacked.dtype == column.dtype, path
            assert stacked.tobytes() == column.tobytes(), path
        assert metadata.keys() == wanted.metadata.keys()
        for name, value in wanted.metadata.items():
            assert np.array_equal(metadata[name], value), name


@pytest.mark.parametrize("kind", ["plain", "dtypes", "text", "images", "nested", "metadata", "last_row"])
@pytest.mark.parametrize("options", ["?shards=2", "?encoding=zlib,images=tensor"])
def test_tfds_reads_what_is_written(kind: str, options: str, tmp_path: Path) -> None:
    episodes = data.KINDS[kind](tmp_path)
    report = convert(episodes, f"tfds:{tmp_path / 'my_set'}{options}")
    assert_read(Path(report.path), episodes)


def test_tfds_reads_files_in_our_order(tmp_path: Path) -> None:
    report = convert("bundled:cartpole", f"tfds:{tmp_path / 'my_set'}?shards=3")
    assert_read(Path(report.path), list(open_source("bundled:cartpole")))


def test_it_is_loaded_by_name_and_sliced(tmp_path: Path) -> None:
    convert("bundled:cartpole", f"tfds:{tmp_path / 'my_set'}:2.1.0@test?shards=3")
    dataset, info = tfds.load("my_set", data_dir=str(tmp_path), split="test[5:8]", with_info=True)
    wanted = list(open_source("bundled:cartpole"))[5:8]
    assert [int(example["seed"]) for example in dataset] == [int(episode.metadata["seed"]) for episode in wanted]
    assert str(info.version) == "2.1.0"
    assert info.splits["test"].num_examples == 25
    assert info.splits["test"].num_shards == 3


@pytest.mark.parametrize("file_format", ["array_record", "parquet"])
def test_tfds_reads_other_formats_by_number(tmp_path: Path, file_format: str) -> None:
    report = convert("bundled:cartpole", f"tfds:{tmp_path / 'my_set'}?shards=2,file_format={file_format}")
    if file_format == "parquet":
        assert_read(Path(report.path), list(open_source("bundled:cartpole")))
        return
    source = tfds.builder_from_directory(report.path).as_data_source(split="train")
    wanted = [int(episode.metadata["seed"]) for episode in open_source("bundled:cartpole")]
    assert [int(source[number]["seed"]) for number in range(len(source))] == wanted


def test_tfds_gives_the_features_that_were_meant(tmp_path: Path) -> None:
    episodes = data.KINDS["dtypes"](tmp_path)
    report = convert(episodes, f"tfds:{tmp_path / 'my_set'}")
    features = tfds.builder_from_directory(report.path).info.features["steps"]["observation"]
    assert features["float64"].dtype == np.float64
    assert np.dtype(features["bfloat16"].np_dtype) == np.dtype(ml_dtypes.bfloat16)
    again = tfds.features.FeaturesDict.from_config(report.path)
    assert again.get_tensor_spec() == tfds.builder_from_directory(report.path).info.features.get_tensor_spec()


def test_a_record_is_what_tfds_itself_writes(tmp_path: Path) -> None:
    """But for the order of the keys, which is none in a map."""
    report = convert("bundled:cartpole@train[:1]", f"tfds:{tmp_path / 'my_set'}")
    features = tfds.features.FeaturesDict.from_config(report.path)
    (episode,) = open_source("bundled:cartpole@train[:1]")
    steps = [{path: column[row] for path, column in episode.columns.items()} for row in range(len(episode))]
    encoded = features.encode_example({**episode.metadata, "steps": steps})
    serializer = tfds.core.example_serializer.ExampleSerializer(features.get_serialized_info())
    theirs = tf.train.Example.FromString(serializer.serialize_example(encoded))
    (record,) = tfrecords(next(Path(report.path).glob("*tfrecord*")), 0, 1)
    assert tf.train.Example.FromString(record) == theirs


def written(tmp_path: Path, specs: dict[str, ArraySpec], episodes: list[Episode]) -> Path:
    """A dataset with these columns beside the flags, written without the engine."""
    destination = open_destination(f"tfds:{tmp_path / 'my_set'}")
    flags = {name: ArraySpec((), np.dtype(bool)) for name in ("is_first", "is_last")}
    destination.path.mkdir(parents=True)
    content = Content("x", {**specs, **flags}, {})
    sink, encode = destination.sink(destination.path, content, None), destination.encoder(content)
    for episode in episodes:
        sink.write(encode(episode))
    sink.sync()
    sink.finish()
    sink.close()
    return destination.path


def test_tfds_reads_sizes_that_are_free_and_texts_of_any_number(tmp_path: Path) -> None:
    specs = {
        "one": ArraySpec((None, 2), np.dtype(np.float32)),
        "two": ArraySpec((None, None), np.dtype(np.int16)),
        "said": ArraySpec((None,), np.dtype(object)),
    }
    rng, episodes = np.random.default_rng(0), []
    for size in (1, 3):
        said = np.empty((4, size), object)
        said[:] = b"text"
        columns = {
            "one": rng.normal(size=(4, size, 2)).astype(np.float32),
            "two": rng.integers(0, 99, (4, size, size + 1), np.int16),
            "said": said,
            "is_first": np.arange(4) == 0,
            "is_last": np.arange(4) == 3,
        }
        episodes.append(Episode(columns))
    folder = written(tmp_path, specs, episodes)
    for (columns, _), wanted in zip(by_tfds(folder), episodes):
        for path in ("one", "two"):
            np.testing.assert_array_equal(np.stack(columns[path]), wanted.columns[path])
        assert [list(column) for column in columns["said"]] == wanted.columns["said"].tolist()


def test_tfds_decodes_the_files_that_were_kept(tmp_path: Path) -> None:
    simplejpeg = pytest.importorskip("simplejpeg")
    pixels = np.random.default_rng(0).integers(0, 256, (20, 24, 3), np.uint8)
    files = np.empty(3, object)
    files[:] = [simplejpeg.encode_jpeg(pixels)] * 3
    rows = np.arange(3)
    episode = Episode({"image": files, "is_first": rows == 0, "is_last": rows == 2})
    spec = ArraySpec.of_images(ImageSpec((20, 24, 3), np.dtype(np.uint8), "jpeg"))
    folder = written(tmp_path, {"image": spec}, [episode])
    ((columns, _),) = by_tfds(folder)
    np.testing.assert_array_equal(columns["image"][0], tf.io.decode_jpeg(files[0]).numpy())


def test_a_dataset_of_tensorflow_is_written(tmp_path: Path) -> None:
    made = [rlds_data.episode(np.random.default_rng(number), 3) for number in range(3)]
    dataset = rlds_data.dataset(made, metadata=[{"number": at, "key": f"key {at}".encode()} for at in range(3)])
    report = convert(dataset, f"tfds:{tmp_path / 'my_set'}", verify=True)
    assert report.verified == 3
    assert_read(Path(report.path), list(open_source(dataset)))


def test_a_dataset_written_by_tfds_comes_through(tmp_path: Path) -> None:
    """Features with a meaning of their own become plain ones of the same values."""
    features = tfds.features.FeaturesDict(
        {
            "label": tfds.features.ClassLabel(names=["a", "b"]),
            "picture": tfds.features.Image(shape=(None, None, 3)),
            "words": tfds.features.Sequence(tfds.features.Text()),
            "steps": tfds.features.Dataset(
                {
                    "observation": tfds.features.Image(shape=(20, 24, 3), encoding_format="jpeg"),
                    "action": tfds.features.Tensor(shape=(2,), dtype=np.float64, encoding="zlib"),
                    "said": tfds.features.Text(),
                    **{name: tfds.features.Scalar(np.bool_) for name in ("is_first", "is_last", "is_terminal")},
                }
            ),
        }
    )
    identity = tfds.core.dataset_info.DatasetIdentity("theirs", "1.0.0", str(tmp_path / "theirs"), "tests")
    info = tfds.core.DatasetInfo(builder=identity, features=features)
    (tmp_path / "theirs").mkdir()
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=2)
    writer.initialize_splits(["train"])
    rng = np.random.default_rng(0)
    for number in range(3):
        steps = [
            {
                "observation": rng.integers(0, 256, (20, 24, 3), np.uint8),
                "action": rng.normal(size=2),
                "said": f"step {at}",
                "is_first": at == 0,
                "is_last": at == 2,
                "is_terminal": at == 2,
            }
            for at in range(3)
        ]
        picture = rng.integers(0, 256, (4 + number, 5, 3), np.uint8)
        writer.add_examples(
            {"train": [{"label": number % 2, "picture": picture, "words": ["x"] * number, "steps": steps}]}
        )
    writer.close_all()
    source = f"tfds:{tmp_path / 'theirs'}"
    report = convert(source, f"tfds:{tmp_path / 'my_set'}", verify=True)
    assert (report.verified, report.losses, report.encoded) == (3, (), ("observation",))
    for (columns, metadata), (others, wanted) in zip(
        by_tfds(Path(report.path)), by_tfds(tmp_path / "theirs"), strict=True
    ):
        assert columns.keys() == others.keys()
        assert all(np.array_equal(columns[path], others[path]) for path in others)
        assert metadata.keys() == wanted.keys()
        assert all(np.array_equal(metadata[name], wanted[name]) for name in wanted)
