"""TFDS datasets that TFDS itself reads: those with a feature that `read` does not know.

Episodes are the same either way; their names are not, for TFDS gives the columns that it decodes, and not the records. A dataset may come
from anywhere. So what TFDS would import, and what TensorFlow would crash on, is refused before either sees it.

TFDS imports the module of every feature class that such a file names, so a dataset from elsewhere could run any code
on this machine that can be imported. Therefore only classes that are loaded already are accepted: nothing is left to
import.

Where tensorflow-datasets 4.9.10 takes a class from text (`FeatureConnector.from_json`, `from_proto`, `cls_from_name`):

- `pythonClassName` of a feature, in features.json and in `features` of dataset_info.json, at any depth;
- `type` of a feature as older versions wrote it, beside its `content`;
- the same once more in JSON within JSON: the text `json` of a `jsonFeature`, and a `content` that is a text.

`proto_cls` picks one of TFDS's own messages, `moduleName` is shown only, and neither is imported. A builder's code
(NAME.py) in the directory is not looked at either. The files `names_file` and `labels` of an old label class are read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.errors import SourceError, StorageError
from rlds2reverb.files import read_object
from rlds2reverb.formats.dataset_files import DatasetFiles
from rlds2reverb.formats.rlds import STEPS, RldsSource, source_errors
from rlds2reverb.formats.source import columns_of
from rlds2reverb.formats.tfds.columns import check_record
from rlds2reverb.formats.tfds.example import is_empty, read_lists
from rlds2reverb.formats.tfds.info import (
    ARRAY_RECORD,
    EXPECTED,
    FEATURES_FILE,
    INFO_FILE,
    TFRECORD,
    DatasetInfo,
    read_about,
    read_info,
)
from rlds2reverb.formats.tfds.missing import check_shards
from rlds2reverb.formats.tfds.names import FILE_ORDER, Request
from rlds2reverb.formats.tfds.selection import Selection
from rlds2reverb.formats.tfds.splits import parts_of
from rlds2reverb.formats.tfds.tfrecord import check_records
from rlds2reverb.specs import ArraySpec
from rlds2reverb.text import shortened

_CLASS_KEYS = ("pythonClassName", "python_class_name")
_OLD_CLASS_KEY = "type"
_FILE_KEYS = ("names_file", "labels")


def check_metadata(directory: Path, classes: Collection[str]) -> None:
    """Refuses a version directory whose files name a feature class other than these, by their full names.

    Raises:
      SourceError: a file is missing, is not JSON or too large, or names an unknown class or a file to read; the message says which.
    """
    for name in (INFO_FILE, FEATURES_FILE):
        path = directory / name
        for part in _walk_objects(read_object(path, EXPECTED)):
            names = [part[key] for key in _CLASS_KEYS if isinstance(part.get(key), str)]
            if _OLD_CLASS_KEY in part and "content" in part:
                old = part[_OLD_CLASS_KEY]
                names.append(old if isinstance(old, str) else json.dumps(old))
            for unknown in (name for name in names if name not in classes):
                allowed = ", ".join(sorted({name.rpartition(".")[2] for name in classes}))
                raise SourceError(
                    f"{path}: feature class {shortened(json.dumps(unknown))} is unknown, and TFDS would import its module; "
                    f"allowed are the classes of tfds.features ({allowed}), and of your own those that your program "
                    "imported before"
                )
            for key in _FILE_KEYS:
                if isinstance(part.get(key), str):
                    shown = shortened(json.dumps(part[key]))
                    raise SourceError(f'{path}: "{key}": {shown} names a file to read: not accepted')


def _walk_objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every JSON object in a value, also in texts that are JSON themselves."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            if part.lstrip().startswith(("{", "[")):
                with suppress(ValueError, RecursionError):
                    waiting.append(json.loads(part))
        elif isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            yield part
            waiting += part.values()


_ID_FEATURE = "tfds_id"
_STEP_KEYS = f"{STEPS}/".encode()

_STORED_AS_IS = (tfds.features.FeaturesDict, tfds.features.Tensor, tfds.features.Scalar, tfds.features.Text)
"""Features that need no decoding: their steps are read as whole columns, which costs less."""

_MOST_VALUES = 1 << 31
"""Most values of one step's feature: a record has at most that many bytes, and TensorFlow crashes where a product of sizes overflows."""

_FILES_AT_ONCE = 16
"""Files that are checked in parallel: on remote storage, each check waits."""


def open_by_tensorflow(directory: Path, files: DatasetFiles, request: Request, people: str) -> RldsSource:
    """Opens a version directory with TFDS; `people` is what messages and reports call it, and `files` are those in it.

    Raises:
      SourceError: no such split, a file is missing or damaged, it would import code, it is not in RLDS form, or an option
        is given that TFDS does not have.
    """
    if request.lost_records:
        raise SourceError(f"{people}: lost_records=skip: TFDS cannot leave out lost records; leave the option out")
    with source_errors(f"{people}: cannot be opened", f"expected {EXPECTED}"):
        check_metadata(directory, set(_class_names(tfds.features.FeatureConnector)))
        builder = tfds.builder_from_directory(str(directory))
        as_is = _columns_are_stored_as_is(builder)
    _check_shapes(builder, people)
    split, parts = _parts_of(builder, request, people)
    shards = [str(part.filename).removeprefix(f"{directory}/") for part in parts]
    info = read_info(directory)
    check_shards(directory, shards, info.splits)
    _check_records(builder, parts)
    if not as_is:  # else columns stand alone, and one without rows is named, or dropped
        _check_first_record(directory, info, request, builder)
    files.restrict([directory / INFO_FILE, directory / FEATURES_FILE, *(directory / shard for shard in shards)])
    decoders = {STEPS: tfds.decode.SkipDecoding()} if as_is else None
    in_file_order = {"interleave_cycle_length": 1} if request.order == FILE_ORDER else {}
    selection = Selection(directory, info.file_format, parts_of(request.split, info.splits, request.even), 1)
    config = tfds.ReadConfig(add_tfds_id=True, try_autocache=False, **in_file_order)
    with source_errors(f'{people}: split "{request.split}" cannot be read'):
        if builder.info.file_format is tfds.core.FileFormat.ARRAY_RECORD:
            records = _decode_array_records(builder, selection, decoders)
            return RldsSource(records, people, _ID_FEATURE, files, dataset_of=selection.dataset_of)
        dataset = builder.as_dataset(split=split, shuffle_files=False, read_config=config, decoders=decoders)
    return RldsSource(dataset, people, _ID_FEATURE, files, partial(read_about, directory), selection.dataset_of)


def _decode_array_records(builder: Any, selection: Selection, decoders: Any) -> tf.data.Dataset:
    """The episodes of ArrayRecord files, file by file: their records are read here, and TFDS decodes them.

    TFDS 4.9.10 makes no `tf.data.Dataset` of such files (`as_dataset` raises NotImplementedError), only its own random-access data source.
    """

    def read_records() -> Iterator[tuple[bytes, bytes]]:
        return ((record.data, record.name.encode()) for record in selection.records(0, selection.count))

    def decode(record: tf.Tensor, name: tf.Tensor) -> dict[str, Any]:
        return {**builder.info.features.deserialize_example(record, decoders=decoders), _ID_FEATURE: name}

    text = tf.TensorSpec((), tf.string)
    records = tf.data.Dataset.from_generator(read_records, output_signature=(text, text))
    return records.apply(tf.data.experimental.assert_cardinality(selection.count)).map(decode)


def _class_names(kind: Any) -> Iterator[str]:
    """Full names of the feature classes that are loaded, TFDS' and the program's own, also former names of a class that has moved (`ALIASES`)."""
    for child in kind.__subclasses__():
        yield f"{child.__module__}.{child.__name__}"
        yield from vars(child).get("ALIASES", ())
        yield from _class_names(child)


def _check_shapes(builder: Any, people: str) -> None:
    """Refuses sizes at which TensorFlow 2.15 crashes when it parses a record."""
    with source_errors(f"{people}: features cannot be read"):
        stored = columns_of(builder.info.features.get_serialized_info(), people)
    for path, info in stored.items():
        sizes = [size for size in info.shape if size is not None]
        is_list = len(sizes) < len(info.shape)
        if math.prod(sizes) > _MOST_VALUES or (is_list and 0 in sizes):
            raise SourceError(f'{people}: feature "{path}" has the shape {info.shape}, which TensorFlow cannot read')


def _parts_of(builder: Any, request: Request, people: str) -> tuple[Any, list[Any]]:
    """The split for TFDS, and the files with what is read of each."""
    splits = ", ".join(sorted(builder.info.splits)) or "none"
    with source_errors(f'{people}: split "{request.split}" cannot be read', f"there are: {splits}"):
        split, even = request.split, request.even
        if even is not None:
            split = tfds.even_splits(split, even.count, drop_remainder=even.drop_remainder)[even.index]
        return split, list(builder.info.splits[split].file_instructions)


def _check_records(builder: Any, parts: list[Any]) -> None:
    """Checks the lengths of the records in all files that are on this machine."""
    if builder.info.file_format not in (None, tfds.core.FileFormat.TFRECORD):
        return  # only TFRecords say their lengths

    def check(part: Any) -> None:
        check_records(Path(part.filename), most=None if part.takes_all else part.skip + part.take)

    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        list(pool.map(check, (part for part in parts if "://" not in str(part.filename))))


def _check_first_record(directory: Path, info: DatasetInfo, request: Request, builder: Any) -> None:
    """Refuses features that the first record lacks, where TFDS would only say that components have other sizes."""
    if info.file_format not in (TFRECORD, ARRAY_RECORD):
        return
    stored = columns_of(builder.info.features.get_serialized_info(), str(directory))
    steps = {
        path: ArraySpec(tuple(leaf.shape)[1:], np.dtype(leaf.np_dtype))
        for path, leaf in stored.items()
        if path.startswith(f"{STEPS}/")
    }
    parts = parts_of(request.split, info.splits, request.even)[:1]
    record = None
    with suppress(SourceError, StorageError):  # reading the episodes raises it
        record = next(Selection(directory, info.file_format, parts, 1).records(0, 1), None)
    if record is not None:
        lists = read_lists(record.data, record.where)
        is_empty_episode = all(is_empty(values) for key, values in lists.items() if key.startswith(_STEP_KEYS))
        check_record(lists, steps, 0 if is_empty_episode else None, record.where, has_drop=False)


def _columns_are_stored_as_is(builder: Any) -> bool:
    features = builder.info.features
    steps = features[STEPS] if isinstance(features, tfds.features.FeaturesDict) and STEPS in features else None
    if not isinstance(steps, tfds.features.Dataset):
        return False
    raw = tf.nest.map_structure(lambda info: (info.shape, info.dtype), steps.feature.get_serialized_info())
    decoded = tf.nest.map_structure(lambda info: (info.shape, info.dtype), steps.feature.get_tensor_info())
    return raw == decoded and _is_stored_as_is(steps.feature)


def _is_stored_as_is(feature: Any) -> bool:
    below = feature.values() if isinstance(feature, tfds.features.FeaturesDict) else ()
    return type(feature) in _STORED_AS_IS and all(map(_is_stored_as_is, below))
