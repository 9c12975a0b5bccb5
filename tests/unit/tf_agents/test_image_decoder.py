"""Encoded images decoded inside `tf.data`: the same bits as numpy, static shapes, nested data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.errors import DecodeError
from rlds2reverb.specs import ArraySpec, ImageSpec
from rlds2reverb.tf_agents.decoding import image_decoder
from tests.support.pictures import IMAGE, files, png

UINT8 = np.dtype(np.uint8)
SIGNATURE = {"camera": ArraySpec.of_images(IMAGE, (2,)), "text": ArraySpec((2,), np.dtype(object))}
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 9, 12, 3), np.uint8)
TENSOR_SPECS = {
    "camera": tf.TensorSpec((None,), tf.string, IMAGE.name),
    "text": tf.TensorSpec((None,), tf.string),
}


def data(shape: tuple[int, ...] = (3, 2), empty: int = 4) -> tuple[dict[str, Any], np.ndarray]:
    """A batch of files, and what they decode to; one row is of zeros."""
    pixels, encoded = PIXELS.copy(), files(PIXELS)
    pixels[empty], encoded[empty] = 0, b""
    batch = {"camera": tf.constant(encoded.tolist()), "text": tf.fill((6,), "x")}
    return {path: tf.reshape(value, shape) for path, value in batch.items()}, pixels.reshape(*shape, 9, 12, 3)


@pytest.mark.parametrize("signature", [SIGNATURE, TENSOR_SPECS])
@pytest.mark.parametrize("shape", [(3, 2), (6,), (1, 6, 1)])
def test_a_dataset_of_samples_is_decoded(signature: Any, shape: tuple[int, ...]) -> None:
    batch, pixels = data(shape)
    dataset = tf.data.Dataset.from_tensors((batch, {"key": tf.constant(7)})).map(image_decoder(signature))
    assert dataset.element_spec[0]["camera"] == tf.TensorSpec((*shape, 9, 12, 3), tf.uint8)
    ((found, info),) = dataset
    assert np.array_equal(found["camera"], pixels)
    assert found["text"].numpy().tolist() == batch["text"].numpy().tolist()
    assert info["key"] == 7


def test_data_without_sample_info_and_sizes_that_are_free() -> None:
    batch, pixels = data()
    free = {**SIGNATURE, "camera": ArraySpec.of_images(ImageSpec((None, 12, None), UINT8))}
    (found,) = tf.data.Dataset.from_tensors(batch).map(image_decoder(free))
    assert np.array_equal(found["camera"], pixels)


def test_jpeg_is_what_tfds_makes_of_it() -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    smooth = tf.image.resize(tf.random.stateless_uniform((4, 5, 3), (1, 2), 0, 255), (40, 50))
    file = tf.io.encode_jpeg(tf.cast(smooth, tf.uint8), quality=80)
    feature = tfds.features.Image(shape=(40, 50, 3), encoding_format="jpeg")
    decode = image_decoder({"x": ArraySpec.of_images(ImageSpec((40, 50, 3), UINT8, "jpeg"))})
    assert np.array_equal(decode({"x": file})["x"], feature.decode_example(file))


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
def test_other_pixels_than_bytes(dtype: Any) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    feature = tfds.features.Image(shape=(3, 4, 1), dtype=dtype, encoding_format="png")
    pixels = np.random.default_rng(0).integers(0, 60_000, (3, 4, 1)).astype(dtype)
    decode = image_decoder({"x": ArraySpec.of_images(ImageSpec((3, 4, 1), np.dtype(dtype), "png"))})
    found = decode({"x": tf.constant([feature.encode_example(pixels), b""])})["x"]
    assert found.dtype == dtype
    assert np.array_equal(found, [pixels, np.zeros_like(pixels)])


@pytest.mark.parametrize("file", [png(PIXELS[0])[:-40], b"pick up the spoon", png(np.zeros((9, 13, 3), np.uint8))])
def test_a_file_that_is_none_ends_the_iteration(file: bytes) -> None:
    batch = {"camera": tf.constant([[file, file]]), "text": tf.constant([["", ""]])}
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(tf.data.Dataset.from_tensors(batch).map(image_decoder(SIGNATURE)))


def test_no_image_tells_a_free_size() -> None:
    free = {"x": ArraySpec.of_images(ImageSpec((None, None, 3), UINT8))}
    with pytest.raises(tf.errors.InvalidArgumentError, match="no image tells its size"):
        image_decoder(free)({"x": tf.constant([b""])})


def test_a_signature_or_data_without_files_is_refused() -> None:
    with pytest.raises(DecodeError, match="expected a column of encoded images; there is none"):
        image_decoder({"text": SIGNATURE["text"]})
    with pytest.raises(DecodeError, match=r"expected encoded images in camera; found \['text'\]"):
        image_decoder(SIGNATURE)({"text": tf.constant([b""])})
    with pytest.raises(DecodeError, match="expected encoded images in camera"):
        image_decoder(SIGNATURE)({"camera": tf.zeros((2,)), "text": tf.constant([b""])})
