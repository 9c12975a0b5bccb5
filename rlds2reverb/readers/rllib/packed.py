"""Packed values: base64 of an LZ4 frame of a pickle, as RLlib compresses columns.

Source: rllib/utils/compression.py. Some versions wrote the text of a Python `bytes`, b'...', which is taken as well.
"""

from __future__ import annotations

import binascii
import struct
from typing import Any

import cramjam
import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.pickles import safe_loads
from rlds2reverb.readers.recordings import BrokenEpisode

PACKED = b"BCJNG"
"""Stands in a line that holds a packed value, however JSON has it."""
_STARTS = ("BCJNG", "b'BCJNG", 'b"BCJNG')
_LARGEST = 1 << 31
"""Bytes that a packed value may have; RLlib's files are of 64 MiB."""
_BOUND_OF_LZ4 = 255
_HAS_SIZE = 0x08
_HEADER = 15


def is_packed(text: Any) -> bool:
    """Whether a value is a packed one: the base64 of an LZ4 frame's magic number begins it."""
    return isinstance(text, str) and text.startswith(_STARTS)


def unpacked(text: str, where: str, path: str) -> Any:
    """What was packed.

    Args:
      text: as in the file.
      where: the file and the place; for messages.
      path: of the column.

    Raises:
      BrokenEpisode: it is damaged, too large, or its pickle has more than values of numpy.
    """
    plain = text[2:-1] if text[:2] in ("b'", 'b"') else text
    try:
        frame = _decoded(plain)
        _check_size(frame)
        return safe_loads(bytes(cramjam.lz4.decompress(frame)), where)
    except SourceError as error:
        raise BrokenEpisode(path, str(error)) from error
    except (ValueError, cramjam.DecompressionError, MemoryError) as error:
        raise BrokenEpisode(path, f"{where}: a packed value cannot be unpacked: {error}") from error


def _decoded(text: str) -> bytes:
    """The bytes of a base64 text. Python's own strict decoding takes several times as long; what it would refuse, the length shows."""
    found = binascii.a2b_base64(text)
    if len(found) != len(text) // 4 * 3 - text[-2:].count("=") or len(text) % 4:
        raise ValueError("no base64")
    return found


def _check_size(frame: bytes) -> None:
    """Refuses a frame that would not fit, before anything is asked for."""
    bound = len(frame) * _BOUND_OF_LZ4
    if len(frame) >= _HEADER and frame[4] & _HAS_SIZE:
        (told,) = struct.unpack_from("<Q", frame, 6)
        if told > bound:
            raise ValueError(f"{told:,} bytes are told, which {len(frame):,} cannot hold")
        bound = told
    if bound > _LARGEST:
        raise ValueError(f"{bound:,} bytes; expected at most {_LARGEST:,}")


def is_nest(value: Any) -> bool:
    """Whether an unpacked value is a nest of columns, not one column."""
    return isinstance(value, (dict, tuple)) and not isinstance(value, np.ndarray)
