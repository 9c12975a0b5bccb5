"""Pictures as data URIs: PNG, or JPEG where that is the smaller file; needs the extra `images`."""

from __future__ import annotations

import base64
from dataclasses import dataclass

import numpy as np

from rlds2reverb.destinations.png import png_files
from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import needing
from rlds2reverb.showing.pictures import Picture, fitted

_QUALITY = 85


@dataclass(frozen=True)
class Encoder:
    """Encodes the pictures of a column.

    Attributes:
      height, width: of every picture, in pixels.
      is_jpeg: what kind of file they become.
    """

    height: int
    width: int
    is_jpeg: bool

    @staticmethod
    def of(first: Picture, most: int) -> Encoder:
        """For pictures like the first one; those with a side of more than `most` pixels are made smaller.

        Raises:
          ConfigError: a library is missing.
        """
        with needing("writing images to .html", "images", ConfigError):
            import imagecodecs  # noqa: F401
            import simplejpeg  # noqa: F401
        share = min(1.0, most / max(first.shape[:2]))
        height, width = (max(1, round(side * share)) for side in first.shape[:2])
        small = fitted(first, height, width)
        return Encoder(height, width, len(_jpeg(small)) < len(png_files(small[None])[0]))

    def uri(self, picture: Picture) -> str:
        """The picture, as the address of an image."""
        small = fitted(picture, self.height, self.width)
        data = _jpeg(small) if self.is_jpeg else png_files(small[None])[0]
        kind = "jpeg" if self.is_jpeg else "png"
        return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _jpeg(picture: Picture) -> bytes:
    import simplejpeg

    return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(picture), quality=_QUALITY, colorsubsampling="444"))
