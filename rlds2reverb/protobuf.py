"""Protobuf classes of messages that are described in a table, built at run time.

Descriptors built at run time work on every protobuf from 4.25 on, which generated modules do not. Each table has a
package name of our own, so nothing clashes with generated classes of TensorFlow or Reverb in the same process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "double": _Field.TYPE_DOUBLE,
    "float": _Field.TYPE_FLOAT,
    "int64": _Field.TYPE_INT64,
    "uint64": _Field.TYPE_UINT64,
    "int32": _Field.TYPE_INT32,
    "uint32": _Field.TYPE_UINT32,
    "bool": _Field.TYPE_BOOL,
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
}


def message_classes(package: str, messages: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The protobuf class of every message of a table.

    Args:
      package: a name of our own, such as "rlds2reverb.wire".
      messages: message -> its fields, each "[repeated] type name = number"; a capitalised type is a message of the table.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package.replace('.', '/')}.proto", package=package, syntax="proto3"
    )
    for name, declarations in messages.items():
        message = file.message_type.add(name=name)
        for declaration in declarations:
            _add_field(message, declaration, package)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


def _add_field(message: descriptor_pb2.DescriptorProto, declaration: str, package: str) -> None:
    words = declaration.replace("=", " ").split()
    label = _Field.LABEL_OPTIONAL
    if words[0] == "repeated":
        label = _Field.LABEL_REPEATED
        words = words[1:]
    type_name, name, number = words
    field = message.field.add(name=name, number=int(number), label=label)
    if type_name in _SCALARS:
        field.type = _SCALARS[type_name]
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{package}.{type_name}"
