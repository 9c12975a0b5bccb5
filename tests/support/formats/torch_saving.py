"""Writes files as `torch.save` does, without torch: a ZIP archive of a pickle, whose tensors refer to storages beside it."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episode import Array

_STORAGES = {"float32": "FloatStorage", "int64": "LongStorage", "bool": "BoolStorage", "float64": "DoubleStorage"}


def _rebuild_tensor_v2(*_: Any) -> None: ...


class FloatStorage: ...


class LongStorage: ...


class BoolStorage: ...


class DoubleStorage: ...


class _Storage:
    def __init__(self, values: Array) -> None:
        self.values = values


class _Tensor:
    def __init__(self, values: Array, storage: _Storage, changes: Mapping[str, Any]) -> None:
        self.values, self.storage, self.changes = values, storage, changes

    def __reduce__(self) -> Any:
        strides = tuple(stride // self.values.itemsize for stride in self.values.strides)
        place = {"offset": 0, "size": self.values.shape, "stride": strides, **self.changes}
        return _rebuild_tensor_v2, (self.storage, place["offset"], place["size"], place["stride"], False, None)


class _Pickler(pickle.Pickler):
    def __init__(self, file: Any) -> None:
        super().__init__(file, 2)
        self.storages: list[Array] = []

    def persistent_id(self, thing: Any) -> Any:
        if not isinstance(thing, _Storage):
            return None
        self.storages.append(thing.values)
        kind = globals()[_STORAGES[str(thing.values.dtype)]]
        return "storage", kind, str(len(self.storages) - 1), "cpu", thing.values.size


def tensor(values: Array, **changes: Any) -> Any:
    """What becomes a tensor in the file; `offset`, `size` and `stride` as the file is to say them."""
    return _Tensor(values, _Storage(np.ascontiguousarray(values)), changes)


def save(path: Path, content: Any, pickled: bytes | None = None, **archive: Any) -> str:
    """Writes a file; returns the name of the source.

    Args:
      pickled: in place of the pickle of the content.
      archive: options of `zipfile.ZipFile`, and `byteorder`.
    """
    order = archive.pop("byteorder", b"little")
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    pickler.dump(content)
    data = stream.getvalue()
    here = f"c{__name__}\n".encode()
    data = data.replace(here + b"_rebuild_tensor_v2\n", b"ctorch._utils\n_rebuild_tensor_v2\n").replace(
        here, b"ctorch\n"
    )
    with zipfile.ZipFile(path, "w", **archive) as file:
        file.writestr("saved/data.pkl", data if pickled is None else pickled)
        file.writestr("saved/byteorder", order)
        for number, values in enumerate(pickler.storages):
            file.writestr(f"saved/data/{number}", values.tobytes())
    return f"ted:{path}"
