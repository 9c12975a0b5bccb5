"""TFDS datasets that TFDS itself reads: those with a feature that `read` does not know. Their JSON files are checked first.

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
from pathlib import Path
from typing import Any

import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.errors import SourceError
from rlds2reverb.files import read_object
from rlds2reverb.formats.rlds import STEPS, RldsSource, source_errors
from rlds2reverb.formats.source import columns_of
from rlds2reverb.formats.tfds.info import EXPECTED, FEATURES_FILE, INFO_FILE
from rlds2reverb.formats.tfds.records import SKIP, check_records
from rlds2reverb.formats.tfds.splits import FILE_ORDER, Request
from rlds2reverb.text import shortened

_CLASS_KEYS = ("pythonClassName", "python_class_name")
_OLD_CLASS_KEY = "type"
_FILE_KEYS = ("names_file", "labels")


def check_metadata(directory: Path, known: Collection[str]) -> None:
    """Refuses a TFDS directory whose files name another feature class than the `known` ones.

    Args:
      directory: a version directory.
      known: full names of classes.

    Raises:
      SourceError: a file is missing, is not JSON or too large, or names an unknown class or a file to read; says which.
    """
    for name in (INFO_FILE, FEATURES_FILE):
        path = directory / name
        for part in _objects(read_object(path, EXPECTED)):
            _check_classes(path, part, known)
            _check_no_files(path, part)


def _check_classes(path: Path, part: dict[str, Any], known: Collection[str]) -> None:
    for name in _class_names(part):
        if name not in known:
            allowed = ", ".join(sorted({one.rpartition(".")[2] for one in known}))
            raise SourceError(
                f"{path}: feature class {shortened(json.dumps(name))} is unknown, and TFDS would import its module; "
                f"allowed are the classes of tfds.features ({allowed}), and of your own those that your program "
                "imported before"
            )


def _class_names(part: dict[str, Any]) -> Iterator[Any]:
    yield from (part[key] for key in _CLASS_KEYS if isinstance(part.get(key), str))
    if _OLD_CLASS_KEY in part and "content" in part:
        yield part[_OLD_CLASS_KEY] if isinstance(part[_OLD_CLASS_KEY], str) else json.dumps(part[_OLD_CLASS_KEY])


def _check_no_files(path: Path, part: dict[str, Any]) -> None:
    for key in _FILE_KEYS:
        if isinstance(part.get(key), str):
            raise SourceError(f'{path}: "{key}": {shortened(json.dumps(part[key]))} names a file to read: not accepted')


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every JSON object in a value, also in texts that are JSON themselves."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            waiting += _parsed(part)
        elif isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            yield part
            waiting += part.values()


def _parsed(text: str) -> list[Any]:
    """A text parsed as JSON; [] unless it is an object or a list."""
    if not text.lstrip().startswith(("{", "[")):
        return []
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        return []


# TFDS datasets read by TFDS itself: those with a feature that `tfds` does not read from the files.
#
# Episodes are the same either way; their names are not, for TFDS gives the columns that it decodes, and not the records. A dataset may come from anywhere. So what TFDS would import, and what
# TensorFlow would die of, is refused before either sees it.

_ID_FEATURE = "tfds_id"

_STORED_AS_IS = (tfds.features.FeaturesDict, tfds.features.Tensor, tfds.features.Scalar, tfds.features.Text)
"""Features that need no decoding: their steps are read as whole columns, which costs less."""

_MOST_VALUES = 1 << 31
"""Most values of one step's feature: a record has no more bytes than that, and TensorFlow dies of sizes whose product overflows."""

_FILES_AT_ONCE = 16
"""How many are looked into in parallel: where files are far away, each look is a wait."""


def open_by_tensorflow(directory: Path, request: Request, people: str) -> RldsSource:
    """Opens a version directory with TFDS.

    Args:
      directory: the version directory.
      request: split and options.
      people: what messages and reports call it.

    Raises:
      SourceError: no such split, a file is missing or damaged, it would import code, it is not in RLDS form, or an option
        is asked for that TFDS does not have.
    """
    if request.lost_records == SKIP:
        raise SourceError(f"{people}: lost_records=skip: TFDS cannot leave out lost records; leave the option out")
    with source_errors(f"{people}: cannot be opened", f"expected {EXPECTED}"):
        check_metadata(directory, _known_classes())
        builder = tfds.builder_from_directory(str(directory))
        as_is = _columns_are_stored_as_is(builder)
    _check_shapes(builder, people)
    split = _check_files(builder, request, people)
    decoders = {STEPS: tfds.decode.SkipDecoding()} if as_is else None
    with source_errors(f'{people}: split "{request.split}" cannot be read'):
        dataset = builder.as_dataset(
            split=split, shuffle_files=False, read_config=_read_config(request), decoders=decoders
        )
    return RldsSource(dataset, people, _ID_FEATURE)


def _read_config(request: Request) -> Any:
    in_file_order = {"interleave_cycle_length": 1} if request.order == FILE_ORDER else {}
    return tfds.ReadConfig(add_tfds_id=True, try_autocache=False, **in_file_order)


def _split(request: Request) -> Any:
    even = request.even
    if even is None:
        return request.split
    return tfds.even_splits(request.split, even.count, drop_remainder=even.drop_remainder)[even.index]


def _known_classes() -> set[str]:
    """Full names of the feature classes that are loaded: those of TFDS, and the program's own.

    A class that has moved is known by its former names (`ALIASES`), too.
    """
    return set(_names_below(tfds.features.FeatureConnector))


def _names_below(kind: Any) -> Iterator[str]:
    for child in kind.__subclasses__():
        yield f"{child.__module__}.{child.__name__}"
        yield from vars(child).get("ALIASES", ())
        yield from _names_below(child)


def _check_shapes(builder: Any, people: str) -> None:
    """Refuses sizes at which TensorFlow 2.15 crashes when it parses a record."""
    with source_errors(f"{people}: features cannot be read"):
        stored = columns_of(builder.info.features.get_serialized_info(), people)
    for path, info in stored.items():
        known = [size for size in info.shape if size is not None]
        is_list = len(known) < len(info.shape)
        if math.prod(known) > _MOST_VALUES or (is_list and 0 in known):
            raise SourceError(f'{people}: feature "{path}" has the shape {info.shape}, which TensorFlow cannot read')


def _check_files(builder: Any, request: Request, people: str) -> Any:
    """Looks at the records' lengths in all files of a split that are on this machine; returns the split for TFDS."""
    splits = ", ".join(sorted(builder.info.splits)) or "none"
    with source_errors(f'{people}: split "{request.split}" cannot be read', f"there are: {splits}"):
        split = _split(request)
        parts = list(builder.info.splits[split].file_instructions)
    if builder.info.file_format not in (None, tfds.core.FileFormat.TFRECORD):
        return split  # only what is read as TFRecords has their lengths
    local = [part for part in parts if "://" not in str(part.filename)]
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        list(pool.map(_check_part, local))
    return split


def _check_part(part: Any) -> None:
    check_records(Path(part.filename), most=None if part.takes_all else part.skip + part.take)


def _columns_are_stored_as_is(builder: Any) -> bool:
    features = builder.info.features
    steps = features[STEPS] if isinstance(features, tfds.features.FeaturesDict) and STEPS in features else None
    if not isinstance(steps, tfds.features.Dataset):
        return False
    raw = tf.nest.map_structure(lambda info: (info.shape, info.dtype), steps.feature.get_serialized_info())
    decoded = tf.nest.map_structure(lambda info: (info.shape, info.dtype), steps.feature.get_tensor_info())
    return raw == decoded and all(type(feature) in _STORED_AS_IS for feature in _features(steps.feature))


def _features(feature: Any) -> list[Any]:
    if isinstance(feature, tfds.features.FeaturesDict):
        return [feature, *(leaf for child in feature.values() for leaf in _features(child))]
    return [feature]
