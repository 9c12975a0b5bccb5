"""Classes of messages that a table describes."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pool

from rlds2reverb.protobuf import message_classes

TABLE = {
    "Point": ("int64 x = 1", "double y = 3"),
    "Line": ("repeated Point points = 2", "string name = 15", "repeated bytes tags = 16"),
}


def test_messages_are_read_and_written_as_declared() -> None:
    classes = message_classes("rlds2reverb.test_protobuf", TABLE)
    point = classes["Point"](x=5, y=0.5)
    assert point.SerializeToString() == bytes.fromhex("080519000000000000e03f")
    line = classes["Line"](points=[point], name="a", tags=[b"b", b""])
    assert classes["Line"].FromString(line.SerializeToString()) == line
    assert line.SerializeToString()[:2] == bytes([2 << 3 | 2, 11])


def test_two_tables_may_have_one_package() -> None:
    one = message_classes("rlds2reverb.test_protobuf", TABLE)
    other = message_classes("rlds2reverb.test_protobuf", {"Point": ("string x = 1",)})
    assert one["Point"](x=1).SerializeToString() != other["Point"](x="1").SerializeToString()
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("rlds2reverb.test_protobuf.Point")
