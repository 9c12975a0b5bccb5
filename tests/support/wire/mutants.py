"""Hypothesis strategies for what comes from outside: broken messages, and whole ones with any values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from rlds2reverb.wire.schema import MESSAGES, message_class

_INTEGERS = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}
_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    **{name: st.one_of(st.integers(0, 20), st.integers(low, high)) for name, (low, high) in _INTEGERS.items()},
    "bool": st.booleans(),
    "bytes": st.one_of(st.binary(max_size=20), st.just(b"\x00"), st.just(b"\x04\x0c\x00\x00\x00\x00")),
    "double": st.floats(),
    "float": st.floats(width=32),
    "string": st.one_of(st.sampled_from(["a", "b", "Trajectory", "class", "_x", "ª"]), st.text(max_size=5)),
}  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, valid: Sequence[bytes]) -> bytes:
    """A valid message after a few accidents: flipped bits, lost, doubled or foreign bytes."""
    data = bytearray(draw(st.sampled_from(list(valid))))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        kind = draw(st.sampled_from(["flip", "cut", "insert", "drop", "double"]))
        if kind == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del data[at:]
        elif kind == "insert":
            data[at:at] = draw(st.binary(max_size=6))
        elif kind == "drop":
            del data[at : at + draw(st.integers(1, 6))]
        else:
            data[at:at] = data[at : at + draw(st.integers(1, 20))]
    return bytes(data)


@st.composite
def messages(draw: st.DrawFn, name: str, depth: int = 6) -> Any:
    """A message of `wire.schema` with any values in its fields, hostile ones included."""
    message = message_class(name)()
    for declaration in MESSAGES[name]:
        *label, type_name, field, _, _ = declaration.split()
        if type_name not in _SCALARS and depth == 0:
            continue
        value = _SCALARS[type_name] if type_name in _SCALARS else messages(type_name, depth - 1)
        if label:
            getattr(message, field).extend(draw(st.lists(value, max_size=2)))
        elif not draw(st.booleans()):
            continue
        elif type_name in _SCALARS:
            setattr(message, field, draw(value))
        else:
            getattr(message, field).CopyFrom(draw(value))
            getattr(message, field).SetInParent()
    return message
