"""A TFDS version directory, written without TensorFlow: the name and its options, the features, and the files of a split."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from rlds2reverb.encoding import check_png_library
from rlds2reverb.episode import Array, Episode
from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import needing
from rlds2reverb.files import at_end, lost, put, whole, write_whole
from rlds2reverb.formats.destination import Content, Destination, Encode, Loss, State, place_named
from rlds2reverb.formats.options import Parse, at_least_one, escape_text, read_path_and_options, words
from rlds2reverb.formats.tfds import LOSSES
from rlds2reverb.formats.tfds.columns import column_of
from rlds2reverb.formats.tfds.encode import RecordLayout
from rlds2reverb.formats.tfds.features import ENCODINGS, HOME, NONE, STEPS, Shape, Stored, TensorFeature
from rlds2reverb.formats.tfds.info import (
    ARRAY_RECORD,
    DEFAULT_TEMPLATE,
    FEATURES_FILE,
    INFO_FILE,
    METADATA,
    METADATA_FILE,
    OUR_DESCRIPTION,
    PARQUET,
    TFRECORD,
    FileNames,
    written_about,
)
from rlds2reverb.formats.tfds.names import data_folders, in_snake_case
from rlds2reverb.formats.tfds.tfrecord import FRAME_BYTES, frame, tfrecords
from rlds2reverb.specs import ArraySpec, ImageSpec, Nest, dtype_name, is_plain_number, nested

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
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_LISTED = frozenset(
    ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32"]
)
"""What a list of an Example holds exactly."""


@dataclass(frozen=True)
class FeatureChoices:
    """How features are chosen: the encoding of numbers that no list of an Example holds exactly, and `PNG` or `TENSOR` for images."""

    encoding: str = "bytes"
    images: str = PNG


def feature_of(spec: ArraySpec, choices: FeatureChoices, in_steps: bool) -> Stored | None:
    """The feature that holds a column's values, of a step or else of an episode; None where TFDS has none."""
    shape, dtype = spec.shape, spec.dtype
    if spec.image is not None:
        return Stored(ImageSpec(spec.image.shape, spec.image.dtype))
    if dtype.kind != "O" and not is_plain_number(dtype) and dtype != _BFLOAT16:
        return None
    if dtype.kind == "O" and 0 in shape:
        return None
    free = shape.count(None)
    fits_list = not free or (free == 1 and not in_steps)
    if dtype.kind == "O":
        if fits_list:
            return Stored(TensorFeature(shape, _TEXT_DTYPE))
        return Stored(TensorFeature(shape[1:], _TEXT_DTYPE), (None,)) if free == 1 and shape[0] is None else None
    if is_drawn(spec, choices):
        height, width, channels = shape
        return Stored(ImageSpec((height, width, channels), dtype))
    is_listed = dtype.name in _LISTED and fits_list and 0 not in shape  # TensorFlow dies of a list without values
    encoding = NONE if is_listed else choices.encoding
    return Stored(TensorFeature(shape, dtype.newbyteorder("="), encoding))


def _why_no_feature(spec: ArraySpec) -> str:
    """The code of the loss of a column that no feature holds."""
    if spec.dtype.kind != "O":
        return "dtype"
    return "empty_texts" if 0 in spec.shape else "text_of_free_sizes"


def is_drawn(spec: ArraySpec, choices: FeatureChoices) -> bool:
    """Whether numbers are pixels (height, width and channels of uint8 or uint16) that become PNG files."""
    if choices.images != PNG or spec.dtype.name not in ("uint8", "uint16") or len(spec.shape) != 3:
        return False
    height, width, channels = spec.shape
    return channels in _CHANNELS and all(size is None or size >= _LEAST_SIDE for size in (height, width))


def layout_of(
    columns: Mapping[str, ArraySpec], metadata: Mapping[str, ArraySpec], choices: FeatureChoices
) -> RecordLayout:
    """How columns of steps, and features of an episode, are stored; without what no feature holds.

    Columns are ordered by key, so that equal episodes are equal records.
    """
    steps, of_episode, where = {}, {}, "the dataset to be"
    for path, spec in sorted(columns.items()):
        if (feature := feature_of(spec, choices, in_steps=True)) is not None:
            steps[path] = feature
    for path, spec in sorted(metadata.items()):
        if not _hides_steps(path) and (feature := feature_of(spec, choices, in_steps=False)) is not None:
            of_episode[path] = feature
    images = {path: spec.image.format for path, spec in columns.items() if spec.image is not None}
    tree = _describe(nested(of_episode), "", {})
    tree["featuresDict"]["features"][STEPS] = _describe_sequence(
        "dataset_feature.Dataset", _describe(nested(steps), "", images)
    )
    return RecordLayout(
        [column_of(Stored(step.leaf, (None, *step.lengths)), path, where, STEPS) for path, step in steps.items()],
        [column_of(feature, path, where) for path, feature in of_episode.items()],
        tree,
    )


def _hides_steps(path: str) -> bool:
    """Whether a feature of the episode would stand where RLDS has the steps."""
    return path.split("/")[0] == STEPS


def _describe(nest: Nest, path: str, images: Mapping[str, str]) -> dict[str, Any]:
    """What features.json says of features; `images` are path -> "png" or "jpeg" where all files are of that format."""
    if isinstance(nest, dict):
        nodes = {name: _describe(child, f"{path}/{name}" if path else name, images) for name, child in nest.items()}
        return {"pythonClassName": f"{HOME}features_dict.FeaturesDict", "featuresDict": {"features": nodes}}
    leaf = nest.leaf
    if nest.lengths:
        return _describe_sequence("sequence_feature.Sequence", _describe(Stored(leaf), path, images))
    if isinstance(leaf, ImageSpec):
        image: dict[str, Any] = {"shape": _describe_shape(leaf.shape), "dtype": leaf.dtype.name}
        if images.get(path):
            image["encodingFormat"] = images[path]
        return {"pythonClassName": f"{HOME}image_feature.Image", "image": image}
    if leaf == TensorFeature((), _TEXT_DTYPE):
        return {"pythonClassName": f"{HOME}text_feature.Text", "text": {}}
    tensor = {"shape": _describe_shape(leaf.shape), "dtype": dtype_name(leaf.dtype), "encoding": leaf.encoding}
    kind = "tensor_feature.Tensor" if leaf.shape or leaf.encoding != NONE else "scalar.Scalar"
    return {"pythonClassName": f"{HOME}{kind}", "tensor": tensor}


def _describe_sequence(name: str, node: Mapping[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": f"{HOME}{name}", "sequence": {"feature": node, "length": "-1"}}


def _describe_shape(shape: Shape) -> dict[str, Any]:
    sizes = ["-1" if size is None else str(size) for size in shape]
    return {"dimensions": sizes} if sizes else {}


# The name of a dataset to be, and its options.

_NAMED = re.compile(r"(?P<dataset>.+?)(?::(?P<version>[^:@/\\]*))?(?:@(?P<split>[^@/\\]*))?", re.DOTALL)
_NAME = re.compile(r"[a-z]\w*", re.ASCII)
_VERSION = re.compile(r"(\d|[1-9]\d{1,8})(\.(\d|[1-9]\d{1,8})){2}", re.ASCII)
_SPLIT = re.compile(r"[a-zA-Z0-9_]+")
_MOST_SHARDS = 99_999
_KEPT = {
    "description", "citation", "location", "redistribution_info", "release_notes", "data_source_accesses", "download_size",
    "download_checksums", METADATA
}  # fmt: skip
"""Facts of a dataset of TFDS that hold for a copy, whatever becomes of its columns."""
_SYNTAX = "tfds:/data_dir/NAME[:VERSION][@SPLIT]"


@dataclass(frozen=True)
class Target:
    """A dataset to be.

    Attributes:
      people: what messages call it.
      data_dir: the folder of all datasets.
      shards: number of files; None for as many as TFDS would write.
      shard_bytes: largest file, where `shards` is None; None for TFDS' rule.
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
        return self.data_dir / self.name / self.version

    @staticmethod
    def parse(text: str) -> Target:
        """Parses the text after "tfds:".

        Raises:
          ConfigError: it names no dataset, or an option makes no sense.
        """
        people = f"tfds:{text}"
        name_text, options = read_path_and_options(people, text, _OPTIONS, ConfigError)
        parts = _NAMED.fullmatch(name_text)
        if parts is None:
            raise ConfigError(f'"{people}": expected {_SYNTAX}')
        folder = place_named(parts["dataset"])
        is_name_alone = folder.parent == Path() and not parts["dataset"].startswith(".")
        data_dir = data_folders()[0] if is_name_alone else folder.parent
        name, version, split = folder.name, parts["version"] or "1.0.0", parts["split"] or "train"
        if not _NAME.fullmatch(name) or name != in_snake_case(name):
            raise ConfigError(
                f'"{people}": "{name}": expected a name of a dataset in lower case, such as my_dataset ({_SYNTAX})'
            )
        if not _VERSION.fullmatch(version):
            raise ConfigError(f'"{people}": version "{version}": expected three numbers, such as 1.0.0')
        if not _SPLIT.fullmatch(split) or split == "all":
            raise ConfigError(f'"{people}": split "{split}": expected one name of letters, digits and _, such as train')
        return Target(people, data_dir, name, version, split, **options)


def _parse_shards(text: str) -> int:
    number = at_least_one(text)
    if number > _MOST_SHARDS:
        raise ValueError(f"expected 1 to {_MOST_SHARDS:,}, for names of files number them by five digits")
    return number


_OPTIONS: dict[str, Parse] = {
    "file_format": words(TFRECORD, ARRAY_RECORD, PARQUET),
    "shards": _parse_shards,
    "shard_bytes": at_least_one,
    "encoding": words(*(name for name in ENCODINGS if name != NONE)),
    "images": words(PNG, TENSOR),
}


def open_tfds(text: str) -> TfdsDestination:
    """The destination named after "tfds:".

    Raises:
      ConfigError: it names no dataset, an option makes no sense, or a library is missing.
    """
    target = Target.parse(text)
    check_libraries(target.file_format)
    return TfdsDestination(target)


class TfdsDestination(Destination):
    def __init__(self, target: Target) -> None:
        self.name, self.path, self._target = target.people, target.path, target
        self._choices = FeatureChoices(target.encoding, target.images)

    def source(self, path: Path) -> str:
        return f"tfds:{escape_text(path.absolute())}@{self._target.split}"

    @property
    def marks(self) -> Sequence[str]:
        return ("dataset_info.json", "*.json", "*.txt", "*-of-*", "*.tfrecord*")

    def held_files(self, columns: Mapping[str, ArraySpec], images: Mapping[str, ImageSpec]) -> Mapping[str, ImageSpec]:
        """The images of columns with one image per step; TensorFlow decodes by the fast DCT, and turns none by EXIF."""
        return {
            path: replace(image, is_accurate=False, is_upright=False)
            for path, image in images.items()
            if not columns[path].shape
        }

    def losses(self, content: Content) -> Sequence[Loss]:
        losses = [
            Loss("name_of_steps", LOSSES["name_of_steps"], f"metadata/{path}")
            for path in content.metadata
            if _hides_steps(path)
        ]
        for in_steps, above, specs in ((True, "", content.columns), (False, "metadata/", content.metadata)):
            losses += [
                Loss(code, f"{spec}: {LOSSES[code]}", above + path)
                for path, spec in specs.items()
                if feature_of(spec, self._choices, in_steps) is None
                for code in [_why_no_feature(spec)]
            ]
        return losses

    @property
    def least_rows(self) -> int:
        return 1  # rows are steps

    def flags(self, _: Episode) -> Mapping[str, Array]:
        return {}  # all are kept

    def encoder(self, content: Content) -> Encode:
        return self._layout(content).encode

    def sink(self, work: Path, content: Content, state: State | None) -> TfdsSink:
        facts = content.about.facts
        about = written_about({name: facts[name] for name in self.kept_facts(content)})
        return TfdsSink(work, self._target, self._layout(content).tree, about, state)

    def kept_facts(self, content: Content) -> Collection[str]:
        """The facts that hold for the copy: of a dataset of TFDS those that do not depend on its features or config; of other systems the description."""
        return content.about.facts.keys() & (_KEPT if content.about.system == "tfds" else {"description"})

    def _layout(self, content: Content) -> RecordLayout:
        if any(is_drawn(spec, self._choices) for spec in (*content.columns.values(), *content.metadata.values())):
            check_png_library("images=tensor")
        return layout_of(content.columns, content.metadata, self._choices)


# All records in one file, until the number of files, and where each begins, is known.

RECORDS, LENGTHS = ".records", ".lengths"
"""Names of its files."""

_LENGTH = struct.Struct("<Q")


class Spool:
    """TFRecords, and their lengths beside them. What came after the `records` of an earlier run, of `size` bytes with their frames, is cut off."""

    def __init__(self, folder: Path, records: int = 0, size: int = 0) -> None:
        self.path, self._lengths_path = folder / RECORDS, folder / LENGTHS
        self.records, self.size = records, size
        self._lost: OSError | None = None
        self._file = self._open_at_end(self.path, size)
        self._lengths = self._open_at_end(self._lengths_path, records * _LENGTH.size)

    def append(self, record: bytes) -> None:
        """Raises `OSError` if records of the earlier run are missing, or the disk fails."""
        if self._lost is not None:
            raise self._lost
        before, after = frame(record)
        self._file.write(before)
        self._file.write(record)
        self._file.write(after)
        self._lengths.write(_LENGTH.pack(len(record)))
        self.records += 1
        self.size += len(record) + FRAME_BYTES

    def sync(self) -> None:
        for file in (self._file, self._lengths):
            put(file)

    def close(self) -> None:
        try:
            self._file.close()
        finally:
            self._lengths.close()

    def _open_at_end(self, path: Path, size: int) -> BinaryIO:
        """See `files.at_end`; but one that is shorter may have been cut by `finish`: it stays, and `append` raises."""
        there = path.stat().st_size if path.exists() else 0
        if there < size:
            self._lost = lost(path, size)
        file: BinaryIO = at_end(path, min(there, size))
        return file


def lengths_in(folder: Path, records: int) -> Array:
    """[records] uint64 bytes of every record, without frames. Raises `OSError` if there are fewer."""
    lengths: Array = np.fromfile(folder / LENGTHS, "<u8", count=records)
    if len(lengths) < records:
        raise lost(folder / LENGTHS, records * _LENGTH.size)
    return lengths


# The number of files of a dataset, and where it is cut: the rule of TFDS.
#
# Source: core/utils/shard_utils.py of TFDS 4.9.10.

LEAST_BYTES, MOST_BYTES = 64 << 20, 1 << 30
_MANY = 1024
_FEW = (512, 256, 128, 64, 32, 16, 8, 4, 2)


def shard_count(total_bytes: int, episodes: int) -> int:
    """The number of files that TFDS would write: 1, a power of two up to 1024, or a multiple of that; each of 64 MiB to 1 GiB, and with
    at least one episode. `total_bytes` are those of all records, without their frames.
    """
    total = total_bytes + episodes * FRAME_BYTES
    least, most = total // MOST_BYTES, total // LEAST_BYTES
    if least <= _MANY <= most and episodes >= _MANY:
        return _MANY
    if least > _MANY:
        return _MANY * max(1, min(-(-least // _MANY), episodes // _MANY))
    return next((count for count in _FEW if least <= count <= most and episodes >= count), 1)


def shards_of_at_most(most_bytes: int, total_bytes: int, episodes: int) -> int:
    """The number of files of about `most_bytes`, none without an episode."""
    return max(1, min(-(-(total_bytes + episodes * FRAME_BYTES) // most_bytes), episodes))


def bounds(episodes: int, shards: int) -> Sequence[int]:
    """[shards + 1] the first episode of every file, and behind the last; halves are rounded to even numbers."""
    return [round(episodes * shard / shards) for shard in range(shards + 1)]


# The records of a spool -> the files of a split. Done again from anywhere after a kill, it ends with the same files.

_EXTRAS = {ARRAY_RECORD: "array-record", PARQUET: "parquet"}
_COPIED_BYTES = 8 << 20
_ROWS_AT_ONCE = 64


def check_libraries(file_format: str) -> None:
    """Raises `ConfigError` if what writes the format is not installed."""
    if file_format == TFRECORD:
        return
    with needing(f"writing {file_format} files", _EXTRAS[file_format], ConfigError):
        if file_format == PARQUET:
            import pyarrow.parquet  # noqa: F401
        else:
            import array_record.python.array_record_module  # noqa: F401


def write_files(folder: Path, file_format: str, names: Sequence[str], bounds: Sequence[int], lengths: Array) -> None:
    """Writes all files to the folder of the spool, from [files + 1] bounds of records and [n] bytes of every record without its frame.

    The last file first: its records are copied, and cut off the spool, so that at most one file is on disk twice.
    Raises `OSError` if records are missing, or the disk fails.
    """
    spool = folder / RECORDS
    ends = np.concatenate([[0], np.cumsum(lengths.astype(np.int64) + FRAME_BYTES)])  # [n + 1]
    for name, start, stop in reversed(list(zip(names, bounds, bounds[1:]))):
        if not spool.exists() or spool.stat().st_size < ends[stop]:
            if not (folder / name).exists():
                raise lost(spool, ends[stop])
        elif file_format == TFRECORD and not start:
            spool.replace(folder / name)
        else:
            with whole(folder / name) as unfinished:
                if file_format == TFRECORD:
                    with spool.open("rb") as records, unfinished.open("wb") as file:
                        records.seek(ends[start])
                        shutil.copyfileobj(records, file, _COPIED_BYTES)
                else:
                    write = _write_parquet if file_format == PARQUET else _write_array_record
                    write(unfinished, tfrecords(spool, start, stop - start))
            os.truncate(spool, ends[start])


def _write_parquet(path: Path, records: Any) -> None:
    """One column `data`, as TFDS has it; small row groups, so that memory is bounded."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("data", pa.binary())])
    with pq.ParquetWriter(path, schema) as writer:
        while rows := list(islice(records, _ROWS_AT_ONCE)):
            writer.write_table(pa.table({"data": pa.array(rows, pa.binary())}, schema))


def _write_array_record(path: Path, records: Any) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    try:
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for record in records:
            writer.write(record)
        writer.close()
    except RuntimeError as error:  # its only error; only the text has the system's reason
        text = str(error)
        number = next((code for code in (errno.ENOSPC, errno.EDQUOT) if os.strerror(code) in text), errno.EIO)
        raise OSError(number, " ".join(text.split()), str(path)) from error


class TfdsSink:
    """Writes one split to `work`, the version directory to be.

    Args:
      tree: the content of features.json.
      about: what the dataset says of itself (`written_about`).
      state: of an earlier run.
    """

    def __init__(
        self, work: Path, target: Target, tree: Mapping[str, Any], about: Mapping[str, Any], state: State | None
    ) -> None:
        self._work, self._target, self._tree, self._about = work, target, tree, dict(about)
        begun = state or {"records": 0, "size": 0}
        self._spool = Spool(work, begun["records"], begun["size"])

    def write(self, record: bytes) -> Sequence[Loss]:
        self._spool.append(record)
        return ()

    def sync(self) -> State:
        self._spool.sync()
        return {"records": self._spool.records, "size": self._spool.size}

    def finish(self) -> None:
        self.close()
        if not (self._work / INFO_FILE).exists():
            self._cut()
        for name in (RECORDS, LENGTHS):
            (self._work / name).unlink(missing_ok=True)

    def close(self) -> None:
        self._spool.close()

    def _cut(self) -> None:
        """Cuts the records into files, and describes them."""
        target, records = self._target, self._spool.records
        total = self._spool.size - records * FRAME_BYTES
        if target.shards is not None:
            shards = min(target.shards, records)
        elif target.shard_bytes is not None:
            shards = shards_of_at_most(target.shard_bytes, total, records)
        else:
            shards = shard_count(total, records)
        cuts = bounds(records, shards)
        named = FileNames(target.name, target.split, target.file_format)
        names = [named.of_shard(shard, shards) for shard in range(shards)]
        write_files(self._work, target.file_format, names, cuts, lengths_in(self._work, records))
        files = {FEATURES_FILE: self._tree}
        if METADATA in self._about:
            files[METADATA_FILE] = self._about.pop(METADATA)
        files[INFO_FILE] = self._info(total, cuts)  # the last one, for it says that all are there
        for name, value in files.items():
            write_whole(self._work / name, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())

    def _info(self, total_bytes: int, cuts: Sequence[int]) -> dict[str, Any]:
        """A message of TFDS in proto3's JSON, which has large numbers as texts."""
        split = {
            "filepathTemplate": DEFAULT_TEMPLATE,
            "name": self._target.split,
            "numBytes": str(total_bytes),
            "shardLengths": [str(stop - start) for start, stop in pairwise(cuts)],
        }
        return {
            "description": OUR_DESCRIPTION,
            **self._about,
            "disableShuffling": True,
            "fileFormat": self._target.file_format,
            "name": self._target.name,
            "splits": [split],
            "version": self._target.version,
        }
