"""Keys of chunks in trajectories of one pattern. The columns of an item mostly have the same keys: of these only one is decoded."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.wire.sample.varints import WORD_BYTES, joined_bits

_NINTH_SHIFT = np.uint64(56)
_TOP_BIT = np.uint64(1 << 63)


class Keys(NamedTuple):
    """Where they are, in the bytes of a trajectory.

    Attributes:
      starts: [slices] int64, the first byte of each.
      ninths: [slices] int64, the ninth byte.
      ninth_bits: [slices] uint8, those of the ninth byte that are the key's; none of keys of eight bytes.
      top_bits: [distinct] uint64, what the tenth byte means, which is part of the pattern.
      firsts: [distinct] int64, the first slice of each key.
      like: [slices] int64, which of `firsts` has the same key.
    """

    starts: Array
    ninths: Array
    ninth_bits: Array
    top_bits: Array
    firsts: Array
    like: Array

    @classmethod
    def of(cls, keys: Array, places: Array) -> Keys | None:
        """Those of a trajectory; None when one is shorter than a key that was drawn at random from 64 bits.

        Args:
          keys: [slices] uint64.
          places: [slices, 2] int64, the first and the last byte of each.
        """
        starts, widths = places[:, 0], places[:, 1] - places[:, 0] + 1
        if widths.min() < WORD_BYTES:
            return None
        _, firsts, like = np.unique(keys, return_index=True, return_inverse=True)
        return cls(
            starts,
            starts + WORD_BYTES,  # of a key of eight bytes that is the tag after it
            np.where(widths > WORD_BYTES, 0x7F, 0).astype(np.uint8),
            keys[firsts] & _TOP_BIT,
            firsts,
            like,
        )

    def read(self, rows: Array) -> tuple[Array, Array]:
        """[n, size] uint8, trajectories -> [n] bool, whether the same keys are equal; [n, slices] uint64, the keys where they are."""
        count, size = rows.shape
        every_word: Array = np.ndarray((count, size - WORD_BYTES + 1), "<u8", rows, 0, (size, 1))
        words = every_word[:, self.starts]
        ninths = rows.take(self.ninths, axis=1) & self.ninth_bits
        own_words, own_ninths = words[:, self.firsts], ninths[:, self.firsts]
        alike: Array = ((own_words[:, self.like] == words) & (own_ninths[:, self.like] == ninths)).all(axis=1)
        keys = joined_bits(own_words.astype(np.uint64)) | (own_ninths.astype(np.uint64) << _NINTH_SHIFT) | self.top_bits
        return alike, keys[:, self.like]
