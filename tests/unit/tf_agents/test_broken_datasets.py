"""TFDS directories that are damaged or hostile: a `SourceError` of one line, never a crash, a hang or foreign code.

Read from the files and through TFDS. What the files' reader leaves to TFDS is refused in TFDS's words either way.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb import cli
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.dataset_files import DatasetFiles
from rlds2reverb.formats.tfds import bundled_path
from tests.support.raising import error_of

tf = pytest.importorskip("tensorflow")
tfds = pytest.importorskip("tensorflow_datasets")

from etils import epath
from tensorflow_datasets.core.features import feature as tfds_feature
from tensorflow_datasets.core.utils import file_utils

from rlds2reverb.formats.tfds import by_tensorflow
from rlds2reverb.formats.tfds.names import Request
from tests.support.profiles import scaled
from tests.support.tf_agents.roads import ROADS, through_tfds

INFO, FEATURES, DATA = "dataset_info.json", "features.json", "cartpole-train.tfrecord-00000"
CORE = "tensorflow_datasets.core.features"

Change = Callable[[Path], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of a good dataset."""
    return Path(shutil.copytree(bundled_path("cartpole"), tmp_path / "cartpole" / "1.0.0"))


@pytest.fixture(params=ROADS)
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Reads every dataset this way."""
    if request.param == "tfds":
        through_tfds(monkeypatch)
    return str(request.param)


def read(folder: Path, episodes: str = "train") -> int:
    """Reads all episodes: how many there are."""
    source = open_source(f"tfds:{folder}@{episodes}")
    source.spec()
    return sum(1 for _ in source)


def refused(folder: Path, said: str) -> None:
    with pytest.raises(SourceError, match=said) as caught:
        read(folder)
    assert_readable(caught.value)


def assert_readable(error: SourceError) -> None:
    text = str(error)
    assert "\n" not in text
    assert "{{" not in text
    assert "[Op:" not in text
    assert len(text) < 900


# Ways to break a file.


def write(name: str, data: bytes | str) -> Change:
    return lambda folder: (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def edit(name: str, change: Callable[[bytes], bytes]) -> Change:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def remove(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def become_directory(name: str) -> Change:
    return lambda folder: ((folder / name).unlink(), (folder / name).mkdir())


def become_pipe(name: str) -> Change:
    return lambda folder: ((folder / name).unlink(), os.mkfifo(folder / name))


def grow(name: str) -> Change:
    return lambda folder: os.truncate(folder / name, 1 << 30)


def in_json(name: str, change: Callable[[Any], Any]) -> Change:
    def apply(folder: Path) -> None:
        value = json.loads((folder / name).read_text())
        changed = change(value)
        (folder / name).write_text(json.dumps(value if changed is None else changed))

    return apply


def info(**values: Any) -> Change:
    return in_json(INFO, lambda value: value.update(values))


def split(**values: Any) -> Change:
    return in_json(INFO, lambda value: value["splits"][0].update(values))


def observation(feature: Any) -> Change:
    """Another feature in place of the observation."""
    return in_json(FEATURES, lambda value: step(value).update(observation=feature))


def metadata(feature: Any) -> Change:
    """Another feature in place of the episode's seed."""
    return in_json(FEATURES, lambda value: value["featuresDict"]["features"].update(seed=feature))


def step(features: Any) -> Any:
    return features["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]


def tensor(*sizes: Any, dtype: str = "float32", encoding: str = "none") -> dict[str, Any]:
    shape = {"dimensions": [str(size) for size in sizes]}
    return feature("tensor_feature.Tensor", tensor={"dtype": dtype, "encoding": encoding, "shape": shape})


def feature(name: str, **content: Any) -> dict[str, Any]:
    return {"pythonClassName": f"{CORE}.{name}", **content}


def listed(name: str, of: Any) -> dict[str, Any]:
    return feature(name, sequence={"feature": of, "length": "-1"})


def example(change: Callable[[Any], Any]) -> Change:
    """The second episode changed, with good checksums."""

    def apply(folder: Path) -> None:
        records = [record.numpy() for record in tf.data.TFRecordDataset(str(folder / DATA))]
        message = tf.train.Example.FromString(records[1])
        changed = change(message.features.feature)
        records[1] = changed if isinstance(changed, bytes) else message.SerializeToString()
        with tf.io.TFRecordWriter(str(folder / DATA)) as writer:
            for record in records:
                writer.write(record)

    return apply


def flip(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :]


SEQUENCE, DATASET = "sequence_feature.Sequence", "dataset_feature.Dataset"

ANY_JSON: dict[str, tuple[Callable[[str], Change], str]] = {
    "missing": (remove, "cannot be read: No such file"),
    "a directory": (become_directory, "not a regular file"),
    "a pipe": (become_pipe, "not a regular file"),
    "empty": (lambda name: write(name, ""), "not JSON: Expecting value"),
    "half": (lambda name: edit(name, lambda data: data[: len(data) // 2]), "not JSON"),
    "not text": (lambda name: write(name, b"\xff\xfe\0"), "not JSON: 'utf-8' codec"),
    "another encoding": (lambda name: edit(name, lambda data: data.decode().encode("utf-16")), "not JSON"),
    "no object": (lambda name: write(name, '["type"]'), "expected a JSON object, found"),
    "null": (lambda name: write(name, "null"), "expected a JSON object, found null"),
    "an empty object": (lambda name: write(name, "{}"), "cannot be opened"),
    "50,000 brackets": (lambda name: write(name, "[" * 50_000), "not JSON: .*recursion"),
    "50,000 objects": (lambda name: write(name, '{"features":' * 50_000), "not JSON: .*recursion"),
    "a number of 5,000 digits": (lambda name: write(name, '{"a":' + "1" * 5000 + "}"), "(not JSON|cannot be opened)"),
    "1 GB": (grow, "has 1,073,741,824 bytes; expected at most"),
}

BROKEN: dict[str, tuple[Change, str]] = {
    **{
        f"{name} is {what}": (make(name), f"{name}: {said}" if said != "cannot be opened" else said)
        for name in (INFO, FEATURES)
        for what, (make, said) in ANY_JSON.items()
    },
    "version that is none": (info(version="one"), "Invalid version 'one'"),
    "version that is a number": (info(version=3), "Failed to parse version field"),
    "name of another dataset": (info(name="other"), "1 is missing: other-train.tfrecord-00000 .*the folder has 1 file .*cartpole-train"),
    "name that is empty": (info(name=""), "Could not format template"),
    "field that is unknown": (info(nonsense=1), 'no field named "nonsense"'),
    "file format that is none": (info(fileFormat="nonsense"), "'nonsense' is not a valid FileFormat"),
    "file format that tf.data cannot read": (info(fileFormat="array_record"), "1 is missing: cartpole-train.array_record-00000 "),
    "splits that are no list": (info(splits=3), "Failed to parse splits field"),
    "no splits": (info(splits=[]), "there are: none"),
    "split without a name": (info(splits=[{}]), "Split must be a non-empty string"),
    "another split": (split(name="test"), "Unknown split 'train'.*there are: test"),
    "no files": (split(shardLengths=[]), 'split "train" cannot be read: .*no data'),
    "negative lengths": (split(shardLengths=["-1"]), 'split "train" cannot be read'),
    "lengths that are none": (split(shardLengths=["x"]), "Failed to parse shardLengths field"),
    "a file too many": (split(shardLengths=["12", "13"]), r"1 is missing: cartpole-train.tfrecord-00001 \(train\[1shard\], episodes 12 to 24\)"),
    "an episode too many": (split(shardLengths=["26"]), "episode 25: cannot be read: .*contained only 25"),
    "files elsewhere": (split(filepathTemplate="/nowhere/{SPLIT}"), "1 is missing: /nowhere/train "),
    "a template that is none": (split(filepathTemplate="{"), 'split "train" cannot be read'),
    "supervised keys that are none": (info(supervisedKeys={"input": "x"}), "cannot be opened"),
    "a feature without content": (observation(feature("tensor_feature.Tensor")), "cannot be opened"),
    "an abstract feature": (observation(feature("top_level_feature.TopLevelFeature", tensor={})), "cannot be opened"),
    "content of another feature": (observation(feature("features_dict.FeaturesDict", tensor={})), "cannot be opened"),
    "JSON in JSON that is none": (observation(feature("tensor_feature.Tensor", jsonFeature={"json": "["})), "opened"),
    "dtype that is none": (observation(tensor(4, dtype="nonsense")), "cannot be opened: .*nonsense"),
    "dtype of no array": (observation(tensor(4, dtype="variant")), "cannot be opened"),
    "dtype that is not stored": (observation(tensor(4, dtype="complex64")), "feature 'steps/observation'"),
    "dtype of other data": (observation(tensor(4, dtype="int64")), "episode 0: .*Key: steps/observation.*expected type"),
    "size that is none": (observation(tensor("x")), "Failed to parse dimensions"),
    "size below 0": (observation(tensor(-5)), "Unexpected shape"),
    "size of other data": (observation(tensor(5)), "episode 0: cannot be read: Key: steps/observation"),
    "an unknown size": (observation(tensor(-1)), "feature 'steps/observation'.*unknown dimension"),
    "two unknown sizes": (observation(tensor(-1, -1)), "record 0: the record lacks 2 step features"),
    "a size of 0": (observation(tensor(0)), r'feature "steps/observation" has the shape \(None, 0\)'),
    "a size of 2^63 - 1": (observation(tensor((1 << 63) - 1)), 'feature "steps/observation" has the shape'),
    "sizes whose product overflows": (observation(tensor(1 << 62, 2)), 'feature "steps/observation" has the shape'),
    "sizes whose product is far above": (observation(tensor(*[(1 << 63) - 1] * 2)), "which TensorFlow cannot read"),
    "very many sizes": (observation(tensor(*[1] * 300)), 'split "train" cannot be read'),
    "a ragged feature": (
        observation(listed(SEQUENCE, listed(SEQUENCE, tensor(4)))),
        'step feature "observation" is a RaggedTensorSpec; only plain tensors.*to_tensor',
    ),
    "a dataset in a step": (observation(listed(DATASET, tensor(4))), 'step feature "observation" is a DatasetSpec'),
    "a dataset beside the steps": (metadata(listed(DATASET, tensor(dtype="int64"))), 'episode feature "seed" is a data'),
    "an image that is none": (
        observation(feature("image_feature.Image", image={"dtype": "uint8", "shape": {"dimensions": ["2", "2", "3"]}})),
        "episode 0: cannot be read: Key: steps/observation",
    ),
    "an image format that is none": (
        observation(feature("image_feature.Image", image={"dtype": "uint8", "encodingFormat": "x"})),
        "cannot be opened",
    ),
    "features 60 deep": (
        in_json(FEATURES, lambda value: deep(value, 60)), "cannot be opened: .*Failed to parse",
    ),
    "no steps": (
        in_json(FEATURES, lambda value: value["featuresDict"]["features"].pop("steps") and None),
        'not RLDS: an episode needs a feature "steps"',
    ),
    "steps that are a tensor": (
        in_json(FEATURES, lambda value: value["featuresDict"]["features"].update(steps=tensor(4))),
        "not RLDS: a step must be a dict",
    ),
    "features that are no dict": (in_json(FEATURES, lambda _: tensor(4)), "cannot be read"),
    "metadata that is absent": (
        in_json(FEATURES, lambda value: value["featuresDict"]["features"].update(more=tensor(dtype="int64"))),
        "episode 0: cannot be read: Feature: more .* is required",
    ),
    "data that is missing": (remove(DATA), f"1 is missing: {DATA} "),
    "data that is a directory": (become_directory(DATA), f"{DATA}: cannot be read: not a regular file"),
    "data that is a pipe": (become_pipe(DATA), f"{DATA}: cannot be read: not a regular file"),
    "data that is empty": (write(DATA, b""), "episode 0: cannot be read: .*contained only 0"),
    "data that is text": (write(DATA, "hello\n" * 1000), f"{DATA}: record 0, at byte 0, says"),
    "data cut in a length": (edit(DATA, lambda data: data[:5]), "contained only 0"),
    "data cut early": (edit(DATA, lambda data: data[:100]), f"{DATA}: record 0, at byte 0, says"),
    "data cut late": (edit(DATA, lambda data: data[:80_000]), "episode 24: cannot be read: truncated record"),
    "data twice": (edit(DATA, lambda data: data * 2), "episode 25: cannot be read: .*at least 26"),
    "a bit of a length": (edit(DATA, flip(7)), f"{DATA}: record 0, at byte 0, says"),
    "a bit of a checksum": (edit(DATA, flip(9)), "episode 0: cannot be read: corrupted record"),
    "a bit of an episode": (edit(DATA, flip(50_000)), "episode 14: cannot be read: corrupted record"),
    "an example that is empty": (example(lambda _: b""), "episode 1: cannot be read: Feature: .* is required"),
    "an example that is none": (example(lambda _: b"\xff" * 50), "episode 1: cannot be read"),
    "a column of another length": (
        example(lambda features: features["steps/observation"].float_list.value.pop() and None),
        "episode 1: cannot be read: Key: steps/observation",
    ),
    "a column of another kind": (
        example(lambda features: features["steps/reward"].bytes_list.value.append(b"x")),
        "episode 1: cannot be read: Key: steps/reward",
    ),
    "two values for one": (
        example(lambda features: features["seed"].int64_list.value.append(3)), "episode 1: cannot be read: Key: seed",
    ),
}  # fmt: skip


HERE: dict[str, str] = {
    "dataset_info.json is an empty object": 'version "": expected MAJOR.MINOR.PATCH',
    "version that is none": 'version "one": expected MAJOR.MINOR.PATCH',
    "version that is a number": "version: expected a text, found 3",
    "name that is empty": 'split "train" cannot be read: .*cannot be filled in at "{DATASET}"',
    "file format that is none": 'fileFormat "nonsense": expected tfrecord',
    "splits that are no list": "splits: expected a list, found 3",
    "split without a name": r'splits\[0\]: name "": expected a letter or a digit',
    "no files": 'split "train" cannot be read: it has no episodes',
    "files elsewhere": "/nowhere/train: is out of the dataset's folder",
    "negative lengths": "shardLengths: expected numbers of at least 0",
    "lengths that are none": "shardLengths: expected a whole number",
    "an episode too many": "episode 25: cannot be read: .*ends before the end of record 25",
    "a feature without content": 'feature "steps/observation": expected a JSON object "tensor"',
    "content of another feature": 'feature "steps/observation": expected a JSON object "featuresDict"',
    "dtype of other data": 'episode 0: .*feature "observation": expected a list of integers, found floats',
    "size that is none": 'feature "steps/observation": expected a size',
    "size below 0": 'feature "steps/observation": expected a size',
    "size of other data": 'episode 0: .*feature "observation": has 156 values; expected a multiple of 5',
    "a size of 0": 'episode 0: .*feature "observation": has 156 values; expected a multiple of 0',
    "a size of 2^63 - 1": 'feature "steps/observation": expected a size of at most',
    "sizes whose product overflows": 'feature "steps/observation": expected a size of at most',
    "sizes whose product is far above": 'feature "steps/observation": expected a size of at most',
    "very many sizes": "shape: expected at most 16 sizes",
    "an image that is none": 'episode 0: .*feature "observation": expected a list of byte strings, found floats',
    "an image format that is none": 'episode 0: .*feature "observation": expected a list of byte strings, found floats',
    "features 60 deep": "or 32 levels of them",
    "steps that are a tensor": "not RLDS: .*must be a dataset of dicts",
    "features that are no dict": 'not RLDS: an episode needs a feature "steps"',
    "metadata that is absent": 'episode 0: .*record 0, feature "more": is missing in the record, and it is not optional',
    "data that is empty": "episode 0: cannot be read: .*ends before the end of record 0",
    "data that is text": "record 0 is damaged: the checksum of its length",
    "data cut in a length": "episode 0: cannot be read: .*ends before the end of record 0",
    "data cut early": "episode 0: cannot be read: ",
    "data cut late": "episode 24: cannot be read: .*ends before the end of record 24",
    "data twice": "episode 25: cannot be read: .*more than the 25 records",
    "a bit of a length": "record 0 is damaged: the checksum of its length",
    "a bit of a checksum": "record 0 is damaged: the checksum of its length",
    "a bit of an episode": "episode 14: cannot be read: .*record 14 is damaged: the checksum of its data",
    "an example that is empty": 'episode 1: cannot be read: .*feature ".*": is missing',
    "a column of another length": 'episode 1: .*feature "observation": has 63 values; expected a multiple of 4',
    "a column of another kind": 'episode 1: .*feature "reward": expected a list of floats, found byte strings',
    "two values for one": 'episode 1: .*feature "seed": has 2 values; expected one',
}
"""What is said where the files are read here, if it is not what TFDS says."""

NOT_LOOKED_AT_HERE = {"supervised keys that are none"}
"""What is wrong, and plays no part in reading episodes from the files."""


def deep(features: Any, levels: int) -> None:
    value = tensor(4)
    for _ in range(levels):
        value = feature("features_dict.FeaturesDict", featuresDict={"features": {"a": value}})
    step(features)["observation"] = value


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_dataset_is_refused_on_one_line(road: str, folder: Path, what: str) -> None:
    change, said = BROKEN[what]
    change(folder)
    if road == "files" and what in NOT_LOOKED_AT_HERE:
        assert read(folder) == 25
    else:
        refused(folder, HERE.get(what, said) if road == "files" else said)


def test_what_is_said_here_is_said_of_what_is_broken() -> None:
    assert HERE.keys() | NOT_LOOKED_AT_HERE <= BROKEN.keys()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", [INFO, FEATURES, DATA])
def test_a_file_that_may_not_be_read_is_refused(road: str, folder: Path, name: str) -> None:
    (folder / name).chmod(0)
    refused(folder, f"{name}: cannot be read: Permission denied")


@pytest.mark.parametrize("what", ["a bit of an episode", "null", "an unknown size", "a size of 0"])
def test_the_command_line_says_it_on_one_line_and_exits_with_3(
    road: str, folder: Path, what: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    change, _ = BROKEN.get(what) or BROKEN[f"{INFO} is {what}"]
    change(folder)
    monkeypatch.setattr(sys, "argv", ["rlds2reverb", "inspect", f"tfds:{folder}"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 3
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith("rlds2reverb: ")]
    assert len(errors) == 1
    assert errors[0].startswith("rlds2reverb: error: ")


# A record that claims to be larger than any memory.


def test_a_record_of_2_to_the_40_bytes_with_a_good_checksum_is_refused(road: str, folder: Path) -> None:
    data = (folder / DATA).read_bytes()
    second = int.from_bytes(data[:8], "little") + 16
    length = (1 << 40).to_bytes(8, "little")
    (folder / DATA).write_bytes(data[:second] + length + masked_crc(length) + data[second + 12 :])
    assert masked_crc(data[:8]) == data[8:12]
    refused(folder, f"{DATA}: record 1, at byte {second}, says that it has 1,099,511,627,776 bytes")
    assert read(folder, "train[:1]") == 1


def masked_crc(data: bytes) -> bytes:
    """TFRecord's checksum: CRC-32C, turned by 15 bits, and a constant added."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


# Feature classes: what TFDS would import.

PAYLOAD = """
from pathlib import Path
from tensorflow_datasets.core.features import Tensor
Path(__file__).with_name("ran").touch()
class X(Tensor):
    pass
"""


@pytest.fixture
def payload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that can be imported by the returned path's stem; the path itself appears when it is."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "payload.py").write_text(PAYLOAD)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "payload", raising=False)
    return folder / "ran"


HOSTILE = {**tensor(4), "pythonClassName": "payload.X"}
OLD = {"type": "payload.X", "content": {"shape": [4], "dtype": "float32"}, "proto_cls": ""}
OLD_DICT = {"type": f"{CORE}.features_dict.FeaturesDict", "content": {"a": OLD}, "proto_cls": ""}

HOSTILE_PLACES: dict[str, tuple[str, Change]] = {
    "a step feature": (FEATURES, observation(HOSTILE)),
    "an episode feature": (FEATURES, metadata(HOSTILE)),
    "the whole": (FEATURES, in_json(FEATURES, lambda value: value.update(pythonClassName="payload.X"))),
    "the field's other name": (
        FEATURES, observation({"python_class_name": "payload.X", "tensor": tensor(4)["tensor"]}),
    ),
    "inside a list": (FEATURES, observation(listed(SEQUENCE, HOSTILE))),
    "20 deep": (
        FEATURES, in_json(FEATURES, lambda value: (deep(value, 20), innermost(step(value)["observation"]))[0]),
    ),
    "the old form": (FEATURES, in_json(FEATURES, lambda _: OLD)),
    "in a dict of the old form": (FEATURES, in_json(FEATURES, lambda _: OLD_DICT)),
    "in a text of the old form": (
        FEATURES,
        in_json(
            FEATURES,
            lambda value: {
                "type": f"{CORE}.features_dict.FeaturesDict",
                "content": json.dumps({"features": {"a": HOSTILE}}),
                "proto_cls": "tensorflow_datasets.FeaturesDict",
            },
        ),
    ),
    "JSON in JSON": (
        FEATURES,
        observation(feature("features_dict.FeaturesDict", jsonFeature={"json": json.dumps({"a": OLD})})),
    ),
    "JSON in JSON in JSON": (
        FEATURES,
        observation(
            feature(
                "features_dict.FeaturesDict",
                jsonFeature={
                    "json": " " + json.dumps({"a": feature(SEQUENCE, jsonFeature={"json": json.dumps({"feature": OLD})})})
                },
            )
        ),
    ),
    "the dataset's info": (INFO, info(features=HOSTILE)),
    "JSON in JSON of the info": (
        INFO,
        info(features=feature("features_dict.FeaturesDict", jsonFeature={"json": json.dumps({"a": OLD})})),
    ),
}  # fmt: skip


def innermost(value: Any) -> None:
    while "featuresDict" in value:
        value = value["featuresDict"]["features"]["a"]
    value["pythonClassName"] = "payload.X"


@pytest.mark.parametrize("place", HOSTILE_PLACES)
def test_a_feature_class_from_elsewhere_is_never_imported(road: str, folder: Path, payload: Path, place: str) -> None:
    name, change = HOSTILE_PLACES[place]
    change(folder)
    refused(folder, rf'{name}: feature class "payload\.X" is unknown.*allowed are .*FeaturesDict.*Tensor')
    assert "payload" not in sys.modules
    assert not payload.exists()


def test_a_prepared_dataset_is_looked_at_before_it_is_opened_by_its_name(
    road: str, folder: Path, payload: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_utils, "_REGISTERED_DATA_DIRS", {epath.Path(folder.parent.parent)})
    for name in ("cartpole", "cartpole:1.0.0"):
        assert sum(1 for _ in open_source(f"tfds:{name}@train[:1]")) == 1
    observation(HOSTILE)(folder)
    for name in ("cartpole", "cartpole:1.0.0"):
        with pytest.raises(SourceError, match=r'features.json: feature class "payload\.X"'):
            open_source(f"tfds:{name}")
    assert not payload.exists()


def test_a_script_in_the_directory_is_not_run(
    road: str, folder: Path, payload: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cartpole.py", "builder.py", "cartpole_dataset_builder.py", "__init__.py"):
        for place in (folder, folder.parent):
            (place / name).write_text(f"from pathlib import Path; Path({str(payload)!r}).touch()")
    info(moduleName="payload")(folder)
    monkeypatch.setattr(file_utils, "_REGISTERED_DATA_DIRS", {epath.Path(folder.parent.parent)})
    for name in (str(folder), "cartpole"):
        assert sum(1 for _ in open_source(f"tfds:{name}@train[:1]")) == 1
    assert "payload" not in sys.modules
    assert not payload.exists()


@pytest.mark.parametrize("name", ["kaggle:cartpole", "huggingface:x/y", "someone:data:1.0.0"])
def test_a_namespace_which_comes_with_code_is_refused(name: str) -> None:
    with pytest.raises(
        SourceError, match=f'tfds:{name}: "[a-z]*" is a namespace, and datasets of a namespace come with code to run'
    ):
        open_source(f"tfds:{name}")


def test_a_class_that_the_program_imported_itself_is_accepted(folder: Path) -> None:
    class Own(tfds.features.Tensor):  # type: ignore[name-defined]  # of a module that may be absent
        pass

    observation({**tensor(4), "pythonClassName": f"{__name__}.Own"})(folder)
    assert read(folder, "train[:1]") == 1
    del Own


def test_every_feature_of_tfds_is_known_also_by_its_former_name() -> None:
    known = set(by_tensorflow._class_names(tfds.features.FeatureConnector))
    public = [kind for kind in vars(tfds.features).values() if isinstance(kind, type)]
    names = {
        f"{kind.__module__}.{kind.__name__}"
        for kind in public
        if issubclass(kind, tfds.features.FeatureConnector) and kind is not tfds.features.FeatureConnector
    }
    assert len(names) > 10
    assert names <= known
    assert f"{CORE}.feature.Tensor" in known
    assert known <= set(tfds_feature.FeatureConnector._registered_features)  # so TFDS imports nothing for them


@pytest.mark.parametrize("content", [{"names_file": "/etc/hostname"}, {"labels": "/etc/hostname"}])
def test_a_file_to_read_labels_from_is_refused(road: str, folder: Path, content: dict[str, str]) -> None:
    label = feature("class_label_feature.ClassLabel", jsonFeature={"json": json.dumps(content)})
    observation(label)(folder)
    refused(folder, "names a file to read: not accepted")


# Whatever a file holds, reading ends in episodes or in a SourceError.


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(bundled_path("cartpole"), tmp_path_factory.mktemp("fuzz") / "cartpole"))


def damaged(data: bytes, damages: list[tuple[float, int]]) -> bytes:
    changed = bytearray(data)
    for where, byte in damages:
        changed[int(where * len(changed))] = byte
    return bytes(changed)


DAMAGES = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4)


@settings(max_examples=scaled(40))
@given(st.sampled_from([INFO, FEATURES]), DAMAGES)
def test_any_bytes_in_the_small_files_give_episodes_or_an_error(
    victim: Path, name: str, damages: list[tuple[float, int]]
) -> None:
    check_damaged(victim, name, damages)


@settings(max_examples=8)
@given(DAMAGES)
def test_any_bytes_in_the_data_give_episodes_or_an_error(victim: Path, damages: list[tuple[float, int]]) -> None:
    check_damaged(victim, DATA, damages)


def check_damaged(victim: Path, name: str, damages: list[tuple[float, int]]) -> None:
    good = (victim / name).read_bytes()
    (victim / name).write_bytes(damaged(good, damages))
    try:
        errors = [
            error_of(SourceError, lambda: read(victim, "train[:2]")),
            error_of(SourceError, lambda: read_through_tfds(victim, "train[:2]")),
        ]
    finally:
        (victim / name).write_bytes(good)
    for error in errors:
        if error is not None:
            assert_readable(error)


def read_through_tfds(folder: Path, episodes: str) -> int:
    request = Request.parse(f"{folder}@{episodes}")
    return sum(1 for _ in by_tensorflow.open_by_tensorflow(folder, DatasetFiles(), request, "x"))


def test_a_good_copy_is_read_whole(road: str, folder: Path) -> None:
    assert read(folder) == 25
    assert read(folder, "train[:1]") == 1
