"""A TFDS version directory, written without TensorFlow: the name and its options, the features, and the files of a split."""

from __future__ import annotations

import errno
import json
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from rlds2reverb.episode import Array, Episode
from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import needing
from rlds2reverb.files import at_end, lost, put, whole, write_whole
from rlds2reverb.formats.destination import Content, Encode, Loss, State
from rlds2reverb.formats.options import Parse, at_least_one, escaped, one_of, path_and_options, unescaped, words
from rlds2reverb.formats.tfds import LOSSES
from rlds2reverb.formats.tfds.encode import Layout
from rlds2reverb.formats.tfds.example import Column, columns_of_feature
from rlds2reverb.formats.tfds.features import (
    ENCODINGS,
    HOME,
    NONE,
    DictFeature,
    Feature,
    SequenceFeature,
    Shape,
    TensorFeature,
)
from rlds2reverb.formats.tfds.info import FEATURES_FILE, INFO_FILE, FileNames
from rlds2reverb.formats.tfds.read import data_folders
from rlds2reverb.formats.tfds.records import ARRAY_RECORD, PARQUET, TFRECORD, masked_checksum, tfrecords
from rlds2reverb.formats.tfds.splits import in_snake_case
from rlds2reverb.images import check_png_library
from rlds2reverb.specs import ArraySpec, ImageSpec, Nest, dtype_name, nested

# Specs -> the features of a TFDS dataset, and what features.json says of them.
#
# | column | feature | stored as |
# | --- | --- | --- |
# | bool, integers, float16, float32 | `Tensor` | a list of numbers |
# | float64, bfloat16, complex numbers, shapes with free sizes | `Tensor` with encoding `bytes` or `zlib` | the array's bytes, one text per step |
# | text | `Text`, or a `Tensor` of strings | bytes |
# | text, any number per step | `Sequence` | bytes, and the lengths of rows |
# | encoded images | `Image` | the files as they are |
# | arrays of uint8 or uint16 that are images | `Image` | PNG files |
#
# Source: feature.proto and the classes of `tensorflow_datasets.core.features`, TFDS 4.9.10.

PNG, TENSOR = "png", "tensor"
"""What becomes of image columns of numbers."""

_LEAST_SIDE = 16
"""An array with fewer rows or columns of pixels is no picture, but a map of a grid, say."""
_CHANNELS = (1, 3, 4)
_TEXT_DTYPE = np.dtype(object)
_LISTED = frozenset(
    ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32"]
)
"""What a list of an Example holds exactly."""


@dataclass(frozen=True)
class Choices:
    """How features are chosen.

    Attributes:
      encoding: of numbers that no list of an Example holds exactly: "bytes" or "zlib".
      images: `PNG` or `TENSOR`.
    """

    encoding: str = "bytes"
    images: str = PNG


def feature_of(spec: ArraySpec, choices: Choices, in_steps: bool) -> Feature | None:
    """The feature that holds a column's values; None where TFDS has none.

    Args:
      spec: of a step's value, or of an episode's.
      choices: how.
      in_steps: whether it is a column of steps.
    """
    if spec.image is not None:
        return ImageSpec(spec.image.shape, spec.image.dtype)
    if spec.dtype.kind == "O":
        return _text(spec.shape, in_steps)
    if is_drawn(spec, choices):
        height, width, channels = spec.shape
        return ImageSpec((height, width, channels), spec.dtype)
    free = spec.shape.count(None)
    is_listed = spec.dtype.name in _LISTED and (not free or (free == 1 and not in_steps))
    return TensorFeature(spec.shape, spec.dtype.newbyteorder("="), NONE if is_listed else choices.encoding)


def is_drawn(spec: ArraySpec, choices: Choices) -> bool:
    """Whether numbers are pixels (height, width and channels of uint8 or uint16) that become PNG files."""
    if choices.images != PNG or spec.dtype.name not in ("uint8", "uint16") or len(spec.shape) != 3:
        return False
    height, width, channels = spec.shape
    return channels in _CHANNELS and all(size is None or size >= _LEAST_SIDE for size in (height, width))


def tree_of(features: Mapping[str, Feature], files: Mapping[str, str]) -> dict[str, Any]:
    """What features.json says of features by path.

    Args:
      features: path -> feature; "steps/..." for those of steps, which stand in a dataset.
      files: path -> "png" or "jpeg", of images whose files are all of that format.
    """
    return _node(_tree(features), "", files)


def _tree(features: Mapping[str, Feature]) -> Nest:
    tree = nested(features)
    steps = tree.pop("steps", {})
    return DictFeature({**_dicts(tree), "steps": SequenceFeature(DictFeature(_dicts(steps)), None, is_dataset=True)})


def _dicts(tree: Mapping[str, Any]) -> dict[str, Feature]:
    return {name: DictFeature(_dicts(one)) if isinstance(one, dict) else one for name, one in tree.items()}


def _text(shape: Shape, in_steps: bool) -> Feature | None:
    free = shape.count(None)
    if not free or (free == 1 and not in_steps):
        return TensorFeature(shape, _TEXT_DTYPE)
    if free == 1 and shape[0] is None:
        return SequenceFeature(TensorFeature(shape[1:], _TEXT_DTYPE), None, is_dataset=False)
    return None


def _node(feature: Feature, path: str, files: Mapping[str, str]) -> dict[str, Any]:
    if isinstance(feature, DictFeature):
        nodes = {
            name: _node(child, f"{path}/{name}" if path else name, files) for name, child in feature.features.items()
        }
        return {"pythonClassName": f"{HOME}features_dict.FeaturesDict", "featuresDict": {"features": nodes}}
    if isinstance(feature, SequenceFeature):
        name = "dataset_feature.Dataset" if feature.is_dataset else "sequence_feature.Sequence"
        content = {"feature": _node(feature.feature, path, files), "length": "-1"}
        return {"pythonClassName": f"{HOME}{name}", "sequence": content}
    if isinstance(feature, ImageSpec):
        image: dict[str, Any] = {"shape": _shape(feature.shape), "dtype": feature.dtype.name}
        if files.get(path):
            image["encodingFormat"] = files[path]
        return {"pythonClassName": f"{HOME}image_feature.Image", "image": image}
    if feature == TensorFeature((), _TEXT_DTYPE):
        return {"pythonClassName": f"{HOME}text_feature.Text", "text": {}}
    tensor = {"shape": _shape(feature.shape), "dtype": dtype_name(feature.dtype), "encoding": feature.encoding}
    kind = "tensor_feature.Tensor" if feature.shape or feature.encoding != NONE else "scalar.Scalar"
    return {"pythonClassName": f"{HOME}{kind}", "tensor": tensor}


def _shape(shape: Shape) -> dict[str, Any]:
    sizes = ["-1" if size is None else str(size) for size in shape]
    return {"dimensions": sizes} if sizes else {}


_NAMED = re.compile(
    r"(?P<dataset>.+?)(?::(?P<version>[^:@/\\]*))?(?:@(?P<split>[^@/\\]*))?",
    re.DOTALL,
)
_NAME = re.compile(r"[a-z]\w*", re.ASCII)
_VERSION = re.compile(r"(\d|[1-9]\d{1,8})(\.(\d|[1-9]\d{1,8})){2}", re.ASCII)
_SPLIT = re.compile(r"[a-zA-Z0-9_]+")
_MOST_SHARDS = 99_999
_SYNTAX = "tfds:/data_dir/NAME[:VERSION][@SPLIT]"


@dataclass(frozen=True)
class Target:
    """A dataset to be.

    Attributes:
      people: what messages call it.
      data_dir: the folder of all datasets.
      name, version, split: of this one.
      file_format: "tfrecord", "array_record" or "parquet".
      shards: how many files; None for as many as TFDS would write.
      shard_bytes: how large a file may become, where `shards` does not say how many there are; None for TFDS' rule.
      encoding: how numbers are stored that a list of an Example does not hold exactly: "bytes" or "zlib".
      images: what becomes of image columns of numbers: "png" files, or a "tensor" as any other.
    """

    people: str
    data_dir: Path
    name: str
    version: str = "1.0.0"
    split: str = "train"
    file_format: str = TFRECORD
    shards: int | None = None
    shard_bytes: int | None = None
    encoding: str = "bytes"
    images: str = PNG

    @property
    def path(self) -> Path:
        """The version directory."""
        return self.data_dir / self.name / self.version

    @staticmethod
    def parse(text: str) -> Target:
        """Parses the text after "tfds:".

        Raises:
          ConfigError: it names no dataset, or an option makes no sense.
        """
        people = f"tfds:{text}"
        rest, wanted = path_and_options(people, text, _KNOWN, ConfigError)
        found = _NAMED.fullmatch(rest)
        if found is None:
            raise ConfigError(f'"{people}": expected {_SYNTAX}')
        folder = Path(unescaped(found["dataset"])).expanduser()
        alone = folder.parent == Path() and not found["dataset"].startswith(".")
        data_dir = data_folders()[0] if alone else folder.parent
        version, split = found["version"] or "1.0.0", found["split"] or "train"
        _check(people, folder.name, version, split)
        return Target(people, data_dir, folder.name, version, split, **wanted)


def _check(people: str, name: str, version: str, split: str) -> None:
    if not _NAME.fullmatch(name) or name != in_snake_case(name):
        raise ConfigError(
            f'"{people}": "{name}": expected a name of a dataset in lower case, such as my_dataset ({_SYNTAX})'
        )
    if not _VERSION.fullmatch(version):
        raise ConfigError(f'"{people}": version "{version}": expected three numbers, such as 1.0.0')
    if not _SPLIT.fullmatch(split) or split == "all":
        raise ConfigError(f'"{people}": split "{split}": expected one name of letters, digits and _, such as train')


def _shards(text: str) -> int:
    number = at_least_one(text)
    if number > _MOST_SHARDS:
        raise ValueError(f"expected 1 to {_MOST_SHARDS:,}, for names of files number them by five digits")
    return number


_KNOWN: dict[str, Parse] = {
    "file_format": words(TFRECORD, ARRAY_RECORD, PARQUET),
    "shards": _shards,
    "shard_bytes": at_least_one,
    "encoding": one_of(**{name: name for name in ENCODINGS if name != NONE}),
    "images": one_of(png=PNG, tensor=TENSOR),
}


_STEPS = "steps"


def open_tfds(text: str) -> TfdsDestination:
    """The destination named after "tfds:".

    Raises:
      ConfigError: it names no dataset, an option makes no sense, or a library is missing.
    """
    target = Target.parse(text)
    check_libraries(target.file_format)
    return TfdsDestination(target)


class TfdsDestination:
    """A version directory to be."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._choices = Choices(target.encoding, target.images)

    @property
    def name(self) -> str:
        """What people call it."""
        return self._target.people

    @property
    def path(self) -> Path:
        """The version directory."""
        return self._target.path

    def source(self, path: Path) -> str:
        """`tfds:PATH@SPLIT`."""
        return f"tfds:{escaped(path.absolute())}@{self._target.split}"

    @property
    def marks(self) -> Sequence[str]:
        """Those of a version directory."""
        return ("dataset_info.json", "*.json", "*.txt", "*-of-*", "*.tfrecord*")

    def held_files(self, columns: Mapping[str, ArraySpec], images: Mapping[str, ImageSpec]) -> Mapping[str, ImageSpec]:
        """Those of columns with one image per step; TensorFlow decodes by the fast DCT."""
        return {path: replace(image, is_accurate=False) for path, image in images.items() if not columns[path].shape}

    def losses(self, content: Content) -> Sequence[Loss]:
        """Columns that no feature holds."""
        lost = [
            Loss("text_of_free_sizes", f"{spec}: {LOSSES['text_of_free_sizes']}", path)
            for path, spec in (*content.columns.items(), *_named(content.metadata))
            if feature_of(spec, self._choices, not path.startswith("metadata/")) is None
        ]
        named = [
            Loss("name_of_steps", LOSSES["name_of_steps"], path) for path, _ in _named(content.metadata) if _hides(path)
        ]
        return [*named, *lost]

    @property
    def least_rows(self) -> int:
        """One: rows are steps."""
        return 1

    def flags(self, _: Episode) -> Mapping[str, Array]:
        """All are kept."""
        return {}

    def encoder(self, content: Content) -> Encode:
        """Makes records."""
        self._check_library(content)
        return self._layout(content).record

    def sink(self, work: Path, content: Content, state: State | None) -> TfdsSink:
        """Begins to write, or goes on."""
        self._check_library(content)
        return TfdsSink(work, self._target, self._layout(content).tree, state)

    def _check_library(self, content: Content) -> None:
        if any(is_drawn(spec, self._choices) for spec in (*content.columns.values(), *content.metadata.values())):
            check_png_library("images=tensor")

    def _layout(self, content: Content) -> Layout:
        return layout_of(content.columns, content.metadata, self._choices)


def layout_of(columns: Mapping[str, ArraySpec], metadata: Mapping[str, ArraySpec], choices: Choices) -> Layout:
    """How columns of steps, and features of an episode, are stored; without what no feature holds."""
    steps = dict(_features(columns, choices, in_steps=True))
    others = {
        path: feature
        for path, feature in _features(metadata, choices, in_steps=False)
        if not _hides(f"metadata/{path}")
    }
    files = {f"{_STEPS}/{path}": spec.image.format for path, spec in columns.items() if spec.image is not None}
    tree = tree_of({**others, **{f"{_STEPS}/{path}": one for path, one in steps.items()}}, files)
    return Layout(_stored(steps, (None,), _STEPS), _stored(others, (), ""), tree)


def _features(specs: Mapping[str, ArraySpec], choices: Choices, in_steps: bool) -> Iterator[tuple[str, Feature]]:
    for path, spec in specs.items():
        feature = feature_of(spec, choices, in_steps)
        if feature is not None:
            yield path, feature


def _named(metadata: Mapping[str, ArraySpec]) -> list[tuple[str, ArraySpec]]:
    return [(f"metadata/{path}", spec) for path, spec in metadata.items()]


def _hides(path: str) -> bool:
    """Whether a feature of the episode has the name of the steps."""
    return path.split("/")[1] == _STEPS


def _stored(features: Mapping[str, Feature], lengths: tuple[None, ...], prefix: str) -> list[Column]:
    """Where each column is stored, ordered by key, so that equal episodes are equal records."""
    return [
        column
        for path in sorted(features)
        for column in columns_of_feature(features[path], path, "the dataset to be", lengths, prefix)
    ]


# All records in one file, while nobody knows yet how many files there are to be, and where each begins.

RECORDS, LENGTHS = ".records", ".lengths"
"""Names of its files."""

FRAME_BYTES = 16
_HEAD = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_SUM = struct.Struct("<I")


class Spool:
    """TFRecords, and their lengths beside them.

    Args:
      folder: where.
      records: how many there are of an earlier run; what came after them is cut off.
      size: their bytes, frames included.
    """

    def __init__(self, folder: Path, records: int = 0, size: int = 0) -> None:
        self.path, self._lengths_path = folder / RECORDS, folder / LENGTHS
        self.records, self.size = records, size
        self._lost: OSError | None = None
        self._file = self._at_end(self.path, size)
        self._lengths = self._at_end(self._lengths_path, records * _LENGTH.size)

    def append(self, record: bytes) -> None:
        """Takes a record.

        Raises:
          OSError: records of the earlier run are missing, or the disk.
        """
        if self._lost is not None:
            raise self._lost
        length = _LENGTH.pack(len(record))
        self._file.write(_HEAD.pack(len(record), masked_checksum(length)))
        self._file.write(record)
        self._file.write(_SUM.pack(masked_checksum(record)))
        self._lengths.write(length)
        self.records += 1
        self.size += len(record) + FRAME_BYTES

    def sync(self) -> None:
        """Puts all on disk."""
        for file in (self._file, self._lengths):
            put(file)

    def close(self) -> None:
        """Lets go of the files."""
        try:
            self._file.close()
        finally:
            self._lengths.close()

    def _at_end(self, path: Path, size: int) -> BinaryIO:
        """See `growing_files.at_end`; but one that is shorter may have been cut by `finish`: it stays, and takes nothing more."""
        there = path.stat().st_size if path.exists() else 0
        if there < size:
            self._lost = lost(path, size)
        file: BinaryIO = at_end(path, min(there, size))
        return file


def lengths_in(folder: Path, records: int) -> Array:
    """[records] uint64 bytes of every record, without frames.

    Raises:
      OSError: there are fewer.
    """
    found: Array = np.fromfile(folder / LENGTHS, "<u8", count=records)
    if len(found) < records:
        raise lost(folder / LENGTHS, records * _LENGTH.size)
    return found


# How many files a dataset is cut into, and where: the rule of TFDS.
#
# Source: core/utils/shard_utils.py of TFDS 4.9.10.

LEAST_BYTES, MOST_BYTES = 64 << 20, 1 << 30
_FRAME_BYTES = 16
_MANY = 1024
_FEW = (512, 256, 128, 64, 32, 16, 8, 4, 2)


def shard_count(total_bytes: int, episodes: int) -> int:
    """How many files TFDS would write: 1, a power of two up to 1024, or a multiple of that; each of 64 MiB to 1 GiB.

    Args:
      total_bytes: of all records, without their frames.
      episodes: how many there are; no file is without one.
    """
    total = total_bytes + episodes * _FRAME_BYTES
    least, most = total // MOST_BYTES, total // LEAST_BYTES
    if least <= _MANY <= most and episodes >= _MANY:
        return _MANY
    if least > _MANY:
        return _MANY * max(1, min(-(-least // _MANY), episodes // _MANY))
    return next((count for count in _FEW if least <= count <= most and episodes >= count), 1)


def shards_of_at_most(most_bytes: int, total_bytes: int, episodes: int) -> int:
    """How many files of about so many bytes, none without an episode."""
    return max(1, min(-(-(total_bytes + episodes * _FRAME_BYTES) // most_bytes), episodes))


def bounds(episodes: int, shards: int) -> Sequence[int]:
    """[shards + 1] the first episode of every file, and behind the last; halves are rounded to even numbers."""
    return [round(episodes * shard / shards) for shard in range(shards + 1)]


# The records of a spool -> the files of a split. Done again from anywhere after a kill, it ends with the same files.

_EXTRAS = {ARRAY_RECORD: "array-record", PARQUET: "parquet"}
_COPIED_BYTES = 8 << 20
_ROWS_AT_ONCE = 64


def check_libraries(file_format: str) -> None:
    """Refuses to begin without what writes the format.

    Raises:
      ConfigError: it is not installed.
    """
    if file_format == TFRECORD:
        return
    with needing(f"writing {file_format} files", _EXTRAS[file_format], ConfigError):
        if file_format == PARQUET:
            import pyarrow.parquet  # noqa: F401
        else:
            import array_record.python.array_record_module  # noqa: F401


def write_files(folder: Path, file_format: str, names: Sequence[str], bounds: Sequence[int], lengths: Array) -> None:
    """Writes all files.

    Args:
      folder: where the spool is, and the files will be.
      file_format: of them.
      names: of the files.
      bounds: [files + 1] the first record of every file, and behind the last.
      lengths: [n] bytes of every record, without frames.

    Raises:
      OSError: records are missing, or the disk.
    """
    if file_format == TFRECORD:
        _cut(folder, names, bounds, lengths)
        return
    write = _parquet if file_format == PARQUET else _array_record
    for name, start, stop in zip(names, bounds, bounds[1:]):
        if not (folder / name).exists():
            if not (folder / RECORDS).exists():
                raise lost(folder / RECORDS, int(lengths.sum()))
            with whole(folder / name) as unfinished:
                write(unfinished, tfrecords(folder / RECORDS, start, stop - start))
    (folder / RECORDS).unlink(missing_ok=True)


def _cut(folder: Path, names: Sequence[str], bounds: Sequence[int], lengths: Array) -> None:
    """The last file first: its records are copied, and cut off the spool, so that at most one file stands there twice. The first is the rest."""
    spool = folder / RECORDS
    if not spool.exists():
        if not (folder / names[0]).exists():
            raise lost(spool, int(lengths.sum()))
        return  # a run before came so far
    ends = np.concatenate([[0], np.cumsum(lengths.astype(np.int64) + FRAME_BYTES)])  # [n + 1]
    for name, start, stop in list(zip(names, bounds, bounds[1:]))[:0:-1]:
        if spool.stat().st_size > ends[start]:
            with whole(folder / name) as unfinished:
                _copy(spool, unfinished, ends[start], ends[stop])
            os.truncate(spool, ends[start])
        elif not (folder / name).exists():
            raise lost(spool, ends[stop])
    if spool.stat().st_size < ends[bounds[1]]:
        raise lost(spool, ends[bounds[1]])
    spool.replace(folder / names[0])


def _copy(spool: Path, path: Path, start: int, stop: int) -> None:
    with spool.open("rb") as records, path.open("wb") as file:
        records.seek(start)
        _copy_bytes(records, file, stop - start)


def _copy_bytes(records: BinaryIO, file: BinaryIO, left: int) -> None:
    while left:
        data = records.read(min(left, _COPIED_BYTES))
        file.write(data)
        left -= len(data)


def _parquet(path: Path, records: Any) -> None:
    """One column `data`, as TFDS has it; a row group per some records, so that memory is bounded."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("data", pa.binary())])
    with pq.ParquetWriter(path, schema) as writer:
        waiting: list[bytes] = []
        for record in records:
            waiting.append(record)
            if len(waiting) == _ROWS_AT_ONCE:
                writer.write_table(pa.table({"data": pa.array(waiting, pa.binary())}, schema))
                waiting = []
        if waiting:
            writer.write_table(pa.table({"data": pa.array(waiting, pa.binary())}, schema))


def _array_record(path: Path, records: Any) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    try:
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for record in records:
            writer.write(record)
        writer.close()
    except RuntimeError as error:  # its only kind; only the text has the system's reason
        text = str(error)
        number = next((one for one in (errno.ENOSPC, errno.EDQUOT) if os.strerror(one) in text), errno.EIO)
        raise OSError(number, " ".join(text.split()), str(path)) from error


_DESCRIPTION = "Episodes in RLDS form, converted by rlds2reverb."


class TfdsSink:
    """Writes one split.

    Args:
      work: the version directory to be.
      target: what the files are called, and how they are written.
      tree: what features.json says.
      state: of an earlier run.
    """

    def __init__(self, work: Path, target: Target, tree: Mapping[str, Any], state: State | None) -> None:
        self._work, self._target, self._tree = work, target, tree
        self._state: State = {"records": 0, "size": 0} if state is None else state
        is_cut = state is not None and not (work / RECORDS).exists()  # `finish` came so far in an earlier run
        self._spool = None if is_cut else Spool(work, self._state["records"], self._state["size"])

    def write(self, record: bytes) -> Sequence[Loss]:
        """Takes an episode's record; nothing of it is lost."""
        self._opened.append(record)
        return ()

    def sync(self) -> State:
        """Puts all records on disk."""
        self._opened.sync()
        self._state = {"records": self._opened.records, "size": self._opened.size}
        return self._state

    def finish(self) -> None:
        """Cuts the records into files, and describes them."""
        self.close()
        if (self._work / INFO_FILE).exists():
            (self._work / LENGTHS).unlink(missing_ok=True)
            return
        records, total = self._state["records"], self._state["size"] - self._state["records"] * FRAME_BYTES
        shards = self._shards(total, records)
        cuts = bounds(records, shards)
        named = FileNames(self._target.name, self._target.split, self._target.file_format)
        names = [named.of_shard(shard, shards) for shard in range(shards)]
        write_files(self._work, self._target.file_format, names, cuts, lengths_in(self._work, records))
        for name, value in ((FEATURES_FILE, self._tree), (INFO_FILE, self._info(total, cuts))):
            write_whole(self._work / name, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())
        (self._work / LENGTHS).unlink(missing_ok=True)

    def close(self) -> None:
        """Lets go of the spool."""
        if self._spool is not None:
            self._spool.close()

    @property
    def _opened(self) -> Spool:
        if self._spool is None:
            raise lost(self._work / RECORDS, self._state["size"])
        return self._spool

    def _shards(self, total_bytes: int, records: int) -> int:
        if self._target.shards is not None:
            return min(self._target.shards, records)
        if self._target.shard_bytes is not None:
            return shards_of_at_most(self._target.shard_bytes, total_bytes, records)
        return shard_count(total_bytes, records)

    def _info(self, total_bytes: int, cuts: Sequence[int]) -> dict[str, Any]:
        """A message of TFDS in proto3's JSON, which has large numbers as texts."""
        split = {
            "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            "name": self._target.split,
            "numBytes": str(total_bytes),
            "shardLengths": [str(stop - start) for start, stop in pairwise(cuts)],
        }
        return {
            "description": _DESCRIPTION,
            "disableShuffling": True,
            "fileFormat": self._target.file_format,
            "name": self._target.name,
            "splits": [split],
            "version": self._target.version,
        }
