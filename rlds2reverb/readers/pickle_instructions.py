"""The instructions that a pickle is made of, run by the letter on a `Machine`.

Every instruction takes at least a byte of the pickle, and makes at most one small value beside the bytes that it copies out of it. Calls,
which may copy the same bytes again, have a budget; so have keys of one hash. So time and memory are bounded by the pickle's length. Source: Lib/pickletools.py.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Any

from rlds2reverb.readers.pickle_machine import Machine
from rlds2reverb.readers.pickle_values import Refused

_LONGEST_INTEGER = 1024
"""Most bytes, or digits, of a whole number."""


def run(data: bytes, inert: frozenset[str]) -> Any:
    """What a pickle holds.

    Raises:
      Refused: it asks for something that is not done.
      ValueError, TypeError, LookupError: it is damaged; so are those errors of Python that `safe_pickle` lists.
    """
    machine = Machine(data, inert)
    while (code := machine.code()) != _STOP:
        do = _INSTRUCTIONS.get(code)
        if do is None:
            raise ValueError(f"no instruction {code:#x} at byte {machine.at - 1:,}")
        do(machine)
    return machine.pop()


def _whole(text: str) -> Any:
    if text in ("00", "01"):
        return text == "01"
    if len(text) > _LONGEST_INTEGER:
        raise ValueError("a number of too many digits")
    return int(text.removesuffix("L"))


def _long(data: bytes) -> int:
    if len(data) > _LONGEST_INTEGER:
        raise ValueError("a number of too many bytes")
    return int.from_bytes(data, "little", signed=True)


def _quoted(text: str) -> str:
    if len(text) < 2 or text[0] != text[-1] or text[0] not in "'\"":
        raise ValueError("a text without quotes")
    decoded: Any = codecs.escape_decode(text[1:-1].encode("latin1"))[0]
    return str(decoded, "latin1")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _outside(machine: Machine) -> None:
    raise Refused("the pickle refers to something outside of it")


_STOP = ord(".")
_Instruction = Callable[[Machine], Any]
_INSTRUCTIONS: dict[int, _Instruction] = {
    # numbers, texts and other plain values
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("I"): lambda m: m.push(_whole(m.line())),
    ord("L"): lambda m: m.push(_whole(m.line())),
    ord("J"): lambda m: m.push(m.number("<i")),
    ord("K"): lambda m: m.push(m.number("<B")),
    ord("M"): lambda m: m.push(m.number("<H")),
    0x8A: lambda m: m.push(_long(m.sized("<B"))),
    0x8B: lambda m: m.push(_long(m.sized("<i"))),
    ord("F"): lambda m: m.push(float(m.line())),
    ord("G"): lambda m: m.push(m.number(">d")),
    ord("S"): lambda m: m.push(_quoted(m.line())),
    ord("T"): lambda m: m.push(m.sized("<i").decode("latin1")),
    ord("U"): lambda m: m.push(m.sized("<B").decode("latin1")),
    ord("V"): lambda m: m.push(m.line().encode("latin1").decode("raw_unicode_escape")),
    ord("X"): lambda m: m.push(_text(m.sized("<I"))),
    0x8C: lambda m: m.push(_text(m.sized("<B"))),
    0x8D: lambda m: m.push(_text(m.sized("<Q"))),
    ord("B"): lambda m: m.push(m.sized("<I")),
    ord("C"): lambda m: m.push(m.sized("<B")),
    0x8E: lambda m: m.push(m.sized("<Q")),
    0x96: lambda m: m.push(bytearray(m.sized("<Q"))),
    # containers
    ord("("): Machine.mark,
    ord(")"): lambda m: m.push(()),
    ord("t"): lambda m: m.push(tuple(m.since_mark())),
    0x85: lambda m: m.tuple_of(1),
    0x86: lambda m: m.tuple_of(2),
    0x87: lambda m: m.tuple_of(3),
    ord("]"): lambda m: m.push([]),
    ord("l"): lambda m: m.push(m.since_mark()),
    ord("a"): lambda m: m.append([m.pop()]),
    ord("e"): lambda m: m.append(m.since_mark()),
    ord("}"): lambda m: m.push({}),
    ord("d"): Machine.dictionary,
    ord("s"): lambda m: m.set_items([*reversed((m.pop(), m.pop()))]),
    ord("u"): lambda m: m.set_items(m.since_mark()),
    0x8F: lambda m: m.push(set()),
    0x90: Machine.add_items,
    0x91: Machine.frozen,
    # the stack and the memo
    ord("0"): Machine.drop,
    ord("1"): lambda m: m.since_mark(),
    ord("2"): Machine.twice,
    ord("p"): lambda m: m.remember(int(m.line())),
    ord("q"): lambda m: m.remember(m.number("<B")),
    ord("r"): lambda m: m.remember(m.number("<I")),
    0x94: Machine.memoize,
    ord("g"): lambda m: m.recall(int(m.line())),
    ord("h"): lambda m: m.recall(m.number("<B")),
    ord("j"): lambda m: m.recall(m.number("<I")),
    # objects
    ord("c"): lambda m: m.named(m.line(), m.line()),
    0x93: Machine.stack_named,
    ord("R"): Machine.call,
    0x81: lambda m: m.make(m.pop()),
    0x92: Machine.make_with_keywords,
    ord("o"): Machine.make_after_mark,
    ord("i"): Machine.make_named,
    ord("b"): Machine.build,
    # the outside
    ord("P"): _outside,
    ord("Q"): _outside,
    0x82: _outside,
    0x83: _outside,
    0x84: _outside,
    0x97: _outside,
    0x98: _outside,
    # about the pickle itself
    0x80: lambda m: m.take(1),
    0x95: lambda m: m.take(8),
}
