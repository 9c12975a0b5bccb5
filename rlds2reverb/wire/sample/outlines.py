"""Responses with large chunks: where their parts lie. Chunks that are known already come again with every sample; these are not copied.

Source: as `entries`. What protobuf would not write so, and what is small, is left to protobuf.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import DecodeError

from rlds2reverb.errors import WireError
from rlds2reverb.wire.schema import message_class

_LARGE = 8192
"""Bytes of the first entry from which on a copy by protobuf costs more than this."""

_ENTRY, _INFO, _CHUNK, _END = 0x0A, 0x0A, 0x12, 0x18
"""Tags: of a response, and of an entry."""

_LENGTH_BITS = 28

_NO_INFO = message_class("SampleInfo")()


class _Unlike(Exception):
    """It is not what protobuf writes."""


class Outline:
    """A SampleEntry; its chunks are read when somebody asks for them.

    Attributes:
      info: SampleInfo message; an empty one when it has none.
      end_of_sequence: whether it is the last one of its sample.
    """

    def __init__(self, message: bytes, begin: int, end: int) -> None:
        self._message = message
        self._chunks: list[tuple[int, int]] = []
        self.info, self._has_info = _NO_INFO, False
        self.end_of_sequence = False
        while begin < end:
            tag = message[begin]
            if tag == _END and message[begin + 1] <= 1:
                self.end_of_sequence = message[begin + 1] == 1
                begin += 2
                continue
            start, begin = _span(message, begin + 1, end)
            if tag == _CHUNK:
                self._chunks.append((start, begin))
            elif tag == _INFO and not self._has_info:
                self.info, self._has_info = message_class("SampleInfo").FromString(message[start:begin]), True
            else:
                raise _Unlike
        if begin != end:
            raise _Unlike

    @property
    def data(self) -> Iterator[Any]:
        """The SampledChunk messages.

        Raises:
          WireError: one is none.
        """
        for begin, end in self._chunks:
            try:
                yield message_class("SampledChunk").FromString(self._message[begin:end])
            except DecodeError as error:
                raise WireError(f"SampledChunk: {end - begin} bytes that are no such message ({error})") from error

    def HasField(self, name: str) -> bool:  # noqa: N802 - as protobuf calls it
        """Whether it has an `info`, the only field that is asked for."""
        return name == "info" and self._has_info


def outlines(message: bytes) -> list[Outline] | None:
    """The entries of a response; None when protobuf is to read it.

    Raises:
      DecodeError: an entry's info is none.
    """
    found: list[Outline] = []
    at, size = 0, len(message)
    try:
        while at < size:
            if message[at] != _ENTRY:
                return None
            begin, at = _span(message, at + 1, size)
            if not found and at - begin < _LARGE:
                return None
            found.append(Outline(message, begin, at))
    except (_Unlike, IndexError):
        return None
    return found


def _span(message: bytes, at: int, limit: int) -> tuple[int, int]:
    """Where a field begins and ends whose length stands there."""
    length = shift = 0
    while (byte := message[at]) >= 0x80:
        length |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > _LENGTH_BITS:
            raise _Unlike
    begin = at + 1
    end = begin + (length | byte << shift)
    if end > limit:
        raise _Unlike
    return begin, end
