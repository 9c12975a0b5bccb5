"""Reverb's rules for one insert stream, replayed message by message: what it holds, what it stores, what it refuses."""

from __future__ import annotations

from collections.abc import Iterable

import grpc
import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import WireError
from rlds2reverb.views.base import Cut, Field
from rlds2reverb.wire import codec
from rlds2reverb.wire.messages import Chunk, Item


class Refused(Exception):
    """The server would end the stream with this status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code, self.details = code, details


class InsertStream:
    """One stream: chunks are held until a request with items that does not keep them."""

    def __init__(self) -> None:
        self.held: dict[int, Chunk] = {}

    def feed(self, message: bytes) -> list[tuple[Item, tuple[Array, ...]]]:
        """The items of one message with their values, in order."""
        request = codec.decode_insert_request(message)
        if not request.chunks and not request.items:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "a request with neither chunks nor items")
        self.held.update({chunk.key: chunk for chunk in request.chunks})
        try:
            stored = [(item, codec.item_values(item, self.held)) for item in request.items]
        except WireError as error:
            raise Refused(grpc.StatusCode.INTERNAL, str(error)) from error
        if not set(request.keep_chunk_keys) <= set(self.held):
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "kept chunks that the stream does not hold")
        if request.items:
            self.held = {key: self.held[key] for key in request.keep_chunk_keys}
        return stored

    def feed_all(self, messages: Iterable[bytes]) -> list[tuple[Item, tuple[Array, ...]]]:
        """The items of several messages."""
        return [stored for message in messages for stored in self.feed(message)]


def field_value(cut: Cut, field: Field, number: int) -> Array:
    """The slow, obvious value of one field of item `number`, as it comes back from the wire."""
    anchor = int((cut.anchors if field.anchors is None else field.anchors)[number])
    column = wire_form(cut.rows[field.column])
    rows = np.concatenate([column[anchor + window.start : anchor + window.stop] for window in field.windows])
    return rows.reshape(rows.shape[1:]) if field.squeeze else rows


def wire_form(column: Array) -> Array:
    """The column with the dtype it has after the wire: native byte order, text as object of bytes."""
    if column.dtype.kind in "OSU":
        out = np.empty(column.shape, object)
        for index in np.ndindex(column.shape):
            text = column[index]
            out[index] = text.encode() if isinstance(text, str) else bytes(text)
        return out
    return column.astype(column.dtype.newbyteorder("=")) if column.dtype.byteorder == ">" else column


def cut_values(cut: Cut, number: int) -> tuple[Array, ...]:
    """The values of the cut's item `number`."""
    return tuple(field_value(cut, field, number) for field in cut.fields.values())


def assert_same(found: Array, expected: Array) -> None:
    """Same dtype, shape and bits."""
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if expected.dtype.kind == "O":
        assert found.tolist() == expected.tolist()
    else:
        assert found.tobytes() == expected.tobytes()


def assert_all_same(found: tuple[Array, ...], expected: tuple[Array, ...]) -> None:
    """As many arrays, each the same."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        assert_same(one, other)
