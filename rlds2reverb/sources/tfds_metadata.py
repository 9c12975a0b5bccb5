"""The JSON files of a TFDS directory, looked at before TFDS reads them.

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
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from rlds2reverb.errors import SourceError
from rlds2reverb.json_files import read_object
from rlds2reverb.tfds_files.info import EXPECTED, FEATURES_FILE, INFO_FILE
from rlds2reverb.wording import shortened

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
    """What a text means as JSON; [] unless it is an object or a list."""
    if not text.lstrip().startswith(("{", "[")):
        return []
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        return []
