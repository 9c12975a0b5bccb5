"""`tf.train.Example`s and features.json trees made by hand, byte by byte, without TensorFlow."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.formats.tfds.columns import EpisodeFeatures
from rlds2reverb.formats.tfds.tfrecord import masked_checksum
from rlds2reverb.protobuf import bytes_field, varint

BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3

HOME = "tensorflow_datasets.core.features"


def texts(*values: bytes) -> bytes:
    """A feature of byte strings."""
    return bytes_field(BYTES_LIST, b"".join(bytes_field(1, value) for value in values))


def floats(*values: float) -> bytes:
    """A feature of packed floats."""
    return bytes_field(FLOAT_LIST, bytes_field(1, struct.pack(f"<{len(values)}f", *values)))


def single_floats(*values: float) -> bytes:
    """A feature of floats that are not packed."""
    return bytes_field(FLOAT_LIST, b"".join(b"\x0d" + struct.pack("<f", value) for value in values))


def integers(*values: int) -> bytes:
    """A feature of packed integers."""
    return bytes_field(INT64_LIST, bytes_field(1, b"".join(varint(value % (1 << 64)) for value in values)))


def single_integers(*values: int) -> bytes:
    """A feature of integers that are not packed."""
    return bytes_field(INT64_LIST, b"".join(b"\x08" + varint(value % (1 << 64)) for value in values))


def example(features: Mapping[str, bytes] | Iterable[tuple[str, bytes]]) -> bytes:
    """A record of features by key."""
    pairs = features.items() if isinstance(features, Mapping) else features
    entries = [bytes_field(1, bytes_field(1, key.encode()) + bytes_field(2, feature)) for key, feature in pairs]
    return bytes_field(1, b"".join(entries))


def framed(records: Sequence[bytes]) -> bytes:
    """The bytes of a TFRecord file."""
    return b"".join(_framed(record) for record in records)


def _framed(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    sums = [struct.pack("<I", masked_checksum(part)) for part in (length, record)]
    return length + sums[0] + record + sums[1]


def tfrecord(path: Path, records: Sequence[bytes]) -> Path:
    """A TFRecord file."""
    path.write_bytes(framed(records))
    return path


def node(name: str, key: str, **content: Any) -> dict[str, Any]:
    """A node of features.json; `name` is "module.Class"."""
    return {"pythonClassName": f"{HOME}.{name}", key: content}


def shape(*sizes: int) -> dict[str, Any]:
    return {"dimensions": [str(size) for size in sizes]} if sizes else {}


def tensor(dtype: str, *sizes: int, encoding: str = "none", **more: Any) -> dict[str, Any]:
    return node("tensor_feature.Tensor", "tensor", shape=shape(*sizes), dtype=dtype, encoding=encoding, **more)


def text() -> dict[str, Any]:
    return node("text_feature.Text", "text")


def image(*sizes: int, dtype: str = "uint8") -> dict[str, Any]:
    return node("image_feature.Image", "image", shape=shape(*sizes), dtype=dtype)


def sequence(feature: Any, length: int = -1) -> dict[str, Any]:
    return node("sequence_feature.Sequence", "sequence", feature=feature, length=str(length))


def dataset(feature: Any, length: int = -1) -> dict[str, Any]:
    return node("dataset_feature.Dataset", "sequence", feature=feature, length=str(length))


def together(features: Mapping[str, Any]) -> dict[str, Any]:
    return node("features_dict.FeaturesDict", "featuresDict", features=dict(features))


def episodes(steps: Mapping[str, Any], **metadata: Any) -> dict[str, Any]:
    """The features of episodes."""
    return together({"steps": dataset(together(steps)), **metadata})


def reader(steps: Mapping[str, Any], **metadata: Any) -> EpisodeFeatures:
    return EpisodeFeatures.from_json(episodes(steps, **metadata), "features.json")


def same(one: Any, other: Any) -> bool:
    """Whether two values of `EpisodeFeatures.read` are equal in kind, dtype, shape and content."""
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if not isinstance(one, (np.ndarray, np.generic)):
        return type(one) is type(other) and bool(one == other)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one.tolist() == other.tolist() if one.dtype == object else one.tobytes() == other.tobytes()
