"""Encoded images inside `tf.data`: elements of `ReverbReplayBuffer.as_dataset`, decoded to the same bits as by TFDS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb.errors import DecodeError
from rlds2reverb.specs import ArraySpec, ImageSpec, Nest, flatten

_PARALLEL = 8  # images of one element that are decoded at a time


def image_decoder(signature: Nest) -> Callable[..., Any]:
    """A function for `dataset.map` that decodes all encoded images of an element; everything else is unchanged.

    It takes (data, sample info), the elements of `ReverbReplayBuffer`'s datasets, or data alone, and returns the same structure.
    Data may have any leading axes, batched or not::

        dataset = buffer.as_dataset(sample_batch_size=64, num_steps=2)
        dataset = dataset.map(image_decoder(signature), num_parallel_calls=tf.data.AUTOTUNE)

    A damaged image, or one of another size, ends the iteration with a `tf.errors.InvalidArgumentError`. Rows of zeros, which
    hold empty text, become images of zeros. Where a size is free, all images of a tensor must have the same size.

    Args:
      signature: the table's: a nest of `ArraySpec` (`client.server_info().tables[...].signature`), or of `tf.TensorSpec`
        (`reverb.Client.server_info()`).

    Raises:
      DecodeError: the signature has no encoded image.
    """
    images = {path: image for path, leaf in flatten(signature).items() if (image := _image_of(leaf)) is not None}
    if not images:
        raise DecodeError(
            "signature: expected a column of encoded images; there is none, so there is nothing to decode"
        )

    def decode(data: Any, *info: Any) -> Any:
        columns = flatten(data)
        strange = [path for path in images if path not in columns or columns[path].dtype != tf.string]
        if strange:
            raise DecodeError(f"data: expected encoded images in {', '.join(strange)}; found {list(columns)}")
        decoded = [
            _decode_files(images[path], column) if path in images else column for path, column in columns.items()
        ]
        packed = tf.nest.pack_sequence_as(data, decoded)
        return (packed, *info) if info else packed

    decoder: Callable[..., Any] = tf.autograph.experimental.do_not_convert(decode)
    return decoder


def _image_of(leaf: Any) -> ImageSpec | None:
    if isinstance(leaf, ArraySpec):
        return leaf.image
    return ImageSpec.of_name(leaf.name or "") if leaf.dtype == tf.string else None


def _decode_files(image: ImageSpec, files: tf.Tensor) -> tf.Tensor:
    """[...] files -> [..., height, width, channels]."""
    flat = tf.reshape(files, [-1])
    if None not in image.shape:
        shape: Any = image.shape
    else:  # the first image tells the size
        present = tf.boolean_mask(flat, tf.strings.length(flat) > 0)
        with tf.control_dependencies([tf.debugging.assert_positive(tf.size(present), "no image tells its size")]):
            shape = tf.shape(_pixels(image, present[0]))
    zeros = tf.zeros(shape, image.dtype)

    def decode(file: tf.Tensor) -> tf.Tensor:
        pixels = tf.cond(tf.strings.length(file) > 0, lambda: _pixels(image, file), lambda: zeros)
        is_alike = tf.debugging.assert_equal(tf.shape(pixels), tf.shape(zeros), "image of another size")
        with tf.control_dependencies([is_alike]):
            return tf.ensure_shape(pixels, image.shape)

    # [n, height, width, channels]
    spec = tf.TensorSpec(image.shape, image.dtype)
    out = tf.map_fn(decode, flat, parallel_iterations=_PARALLEL, fn_output_signature=spec)
    shaped = tf.reshape(out, tf.concat([tf.shape(files), tf.shape(out)[1:]], 0))
    return tf.ensure_shape(shaped, files.shape.concatenate(image.shape))


def _pixels(image: ImageSpec, file: tf.Tensor) -> tf.Tensor:
    """As `tfds.features.Image` decodes: for JPEG the fast integer transform; float32 is the bytes of a PNG of four channels."""
    if image.dtype == np.float32:
        stored = tf.io.decode_image(file, channels=4, expand_animations=False)
        return tf.bitcast(stored, tf.float32)[..., tf.newaxis]
    return tf.io.decode_image(file, channels=image.shape[2] or 0, dtype=image.dtype, expand_animations=False)
