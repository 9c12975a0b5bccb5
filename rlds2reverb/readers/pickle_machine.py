"""A pickle's program, run by the letter and with nothing in reach: see `safe_pickle`.

Every instruction takes at least a byte of the pickle, and makes at most one small value beside the bytes that it copies out of it. So
time and memory are bounded by the pickle's length. Source of the instructions: Lib/pickletools.py.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable
from typing import Any

from rlds2reverb.readers.pickle_values import (
    KNOWN,
    RECONSTRUCTOR,
    Function,
    Inert,
    Refused,
    Unfinished,
    hashable,
)
from rlds2reverb.wording import shortened

_LONGEST_INTEGER = 1024
"""Most bytes, or digits, of a whole number."""

_OLD_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg"}


class Machine:
    """Runs one pickle.

    Args:
      data: the pickle.
      inert: names of classes that may occur.
    """

    def __init__(self, data: bytes, inert: frozenset[str]) -> None:
        self._data, self._at, self._inert = data, 0, inert
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._classes: dict[str, type[Inert]] = {}

    def run(self) -> Any:
        """What the pickle holds.

        Raises:
          Refused: it asks for something that is not done.
          ValueError, TypeError, LookupError: it is damaged; so are those errors of Python that `safe_pickle` lists.
        """
        data = self._data
        while True:
            code = data[self._at]
            self._at += 1
            if code == _STOP:
                return self._stack.pop()
            do = _INSTRUCTIONS.get(code)
            if do is None:
                raise ValueError(f"no instruction {code:#x} at byte {self._at - 1:,}")
            do(self)

    def take(self, size: int) -> bytes:
        """The next bytes."""
        found = self._data[self._at : self._at + size]
        if len(found) < size or size < 0:
            raise ValueError(f"ends after {len(self._data):,} bytes, within a value of {size:,}")
        self._at += size
        return found

    def number(self, layout: str) -> Any:
        """The next number, in struct's notation."""
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def line(self) -> str:
        """The next line; its bytes as characters."""
        end = self._data.index(b"\n", self._at)
        return self.take(end + 1 - self._at)[:-1].decode("latin1")

    def sized(self, layout: str) -> bytes:
        """Bytes with their number before them."""
        return self.take(self.number(layout))

    def push(self, value: Any) -> None:
        """Puts a value on the stack."""
        self._stack.append(value)

    def pop(self) -> Any:
        """Takes one from it, not from before the last mark."""
        if self._marks and len(self._stack) <= self._marks[-1]:
            raise IndexError("a mark where a value was expected")
        return self._stack.pop()

    def mark(self) -> None:
        """Begins a sequence."""
        self._marks.append(len(self._stack))

    def since_mark(self) -> list[Any]:
        """Ends it, and takes it."""
        start = self._marks.pop()
        found = self._stack[start:]
        del self._stack[start:]
        return found

    def remember(self, place: int) -> None:
        """Puts the top of the stack in the memo."""
        value = self._stack[-1]
        if isinstance(value, Unfinished):
            value.places.append(place)
        self._memo[place] = value

    def memoize(self) -> None:
        """The same, in the next place."""
        self.remember(len(self._memo))

    def recall(self, place: int) -> None:
        """Puts what the memo has on the stack."""
        self.push(self._memo[place])

    def tuple_of(self, count: int) -> None:
        """Makes a tuple of the last values."""
        made = [self.pop() for _ in range(count)]
        self.push(tuple(reversed(made)))

    def append(self, values: list[Any]) -> None:
        """Puts values into the list below them."""
        target = self._stack[-1]
        if type(target) is not list:
            raise TypeError(f"values for a {type(target).__name__}, which is no list")
        target.extend(values)

    def set_items(self, values: list[Any]) -> None:
        """Puts keys and values into the dictionary below them."""
        target = self._stack[-1]
        if not isinstance(target, dict):
            raise TypeError(f"items for a {type(target).__name__}, which is no dictionary")
        for key, value in zip(values[::2], values[1::2], strict=True):
            target[hashable(key)] = value

    def dictionary(self) -> None:
        """Makes one of the keys and values since the mark."""
        values = self.since_mark()
        self.push({})
        self.set_items(values)

    def add_items(self) -> None:
        """Puts members into the set below them."""
        values = self.since_mark()
        target = self._stack[-1]
        if type(target) is not set:
            raise TypeError(f"members for a {type(target).__name__}, which is no set")
        target.update(map(hashable, values))

    def named(self, module: Any, name: Any) -> None:
        """Puts what has this name on the stack."""
        if not isinstance(module, str) or not isinstance(name, str):
            raise TypeError("a name that is no text")
        self.push(self._known(f"{_OLD_MODULES.get(module, module)}.{name}"))

    def stack_named(self) -> None:
        """The same, with the name on the stack."""
        name, module = self.pop(), self.pop()
        self.named(module, name)

    def _known(self, name: str) -> Any:
        if name in KNOWN:
            return KNOWN[name]
        if name not in self._inert:
            raise Refused(
                f'the pickle refers to "{shortened(name)}"; only arrays and numbers of numpy are loaded, for anything else '
                "may run code. Write the data anew without it"
            )
        if name not in self._classes:
            self._classes[name] = type(name.rpartition(".")[2], (Inert,), {"class_name": name})
        return self._classes[name]

    def call(self) -> None:
        """Calls a function with a tuple of arguments."""
        arguments, function = self.pop(), self.pop()
        if not isinstance(arguments, tuple):
            raise TypeError("arguments that are no tuple")
        if function is RECONSTRUCTOR:
            function, arguments = arguments[0], ()
        self.push(self._called(function, arguments))

    @staticmethod
    def _called(function: Any, arguments: tuple[Any, ...]) -> Any:
        if isinstance(function, type) and issubclass(function, Inert):
            return function(arguments)
        if not isinstance(function, Function):
            raise Refused(f"the pickle calls a {type(function).__name__}")
        return function.call(*arguments)

    def make(self, arguments: Any) -> None:
        """Makes an object of a class."""
        kind = self.pop()
        if not (isinstance(kind, type) and issubclass(kind, Inert)) or not isinstance(arguments, tuple):
            raise Refused(f"the pickle makes an object of {getattr(kind, 'name', type(kind).__name__)}")
        self.push(kind(arguments))

    def make_with_keywords(self) -> None:
        """The same, with arguments by name, which come last."""
        keywords, arguments = self.pop(), self.pop()
        self.make((*arguments, keywords))

    def make_after_mark(self) -> None:
        """The same, of the class and the arguments since the mark."""
        kind, *arguments = self.since_mark()
        self.push(kind)
        self.make(tuple(arguments))

    def make_named(self) -> None:
        """The same, of a class by name."""
        arguments = tuple(self.since_mark())
        self.named(self.line(), self.line())
        self.make(arguments)

    def build(self) -> None:
        """Sets the state of the object below it."""
        state, target = self.pop(), self._stack[-1]
        if isinstance(target, Unfinished):
            self._stack[-1] = made = target.finished(state)
            for place in target.places:
                self._memo[place] = made
        elif isinstance(target, Inert):
            target.state = state
        else:
            raise Refused(f"the pickle sets the state of a {type(target).__name__}")


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
    0x91: lambda m: m.push(frozenset(map(hashable, m.since_mark()))),
    # the stack and the memo
    ord("0"): lambda m: m.pop() if not m._marks or m._marks[-1] < len(m._stack) else m._marks.pop(),
    ord("1"): lambda m: m.since_mark(),
    ord("2"): lambda m: m.push(m._stack[-1]),
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
