"""PNG and JPEG files -> arrays, to the bit as TensorFlow decodes them, in threads."""

from __future__ import annotations

from collections.abc import Sequence

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.tfds_files.features import ImageFeature


def decode_images(image: ImageFeature, files: Sequence[bytes], where: str) -> Array:
    """[n, height, width, channels] of n files.

    Raises:
      SourceError: a file that is damaged, of another kind or of another size than the others; or the libraries are missing.
    """
    raise SourceError(f"{where}: images are not read yet")
