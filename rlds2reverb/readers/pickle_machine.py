"""What a pickle's instructions do: to a stack, a memo, and nothing else. See `pickle_instructions` and `safe_pickle`."""

from __future__ import annotations

import struct
from typing import Any

from rlds2reverb.readers.pickle_values import (
    KNOWN,
    RECONSTRUCTOR,
    Function,
    Hashes,
    Inert,
    Refused,
    Unfinished,
    has_own_hash,
)
from rlds2reverb.wording import shortened

_OLD_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg"}


_MOST_TIMES, _FREE, _OF_A_MEMBER = 16, 1 << 20, 8
"""How many bytes calls may copy: so many times the pickle's length, and some more; and for how many a member of a list counts. Each call of a
real pickle copies its own part once."""


class Machine:
    """The state of reading one pickle.

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
        self._hashes: dict[int, tuple[Any, Hashes]] = {}
        self._left = _MOST_TIMES * len(data) + _FREE

    def code(self) -> int:
        """The next instruction."""
        self._at += 1
        return self._data[self._at - 1]

    @property
    def at(self) -> int:
        """How many bytes were read."""
        return self._at

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

    def drop(self) -> None:
        """Drops the last value, or the mark behind it."""
        if self._marks and len(self._stack) == self._marks[-1]:
            self._marks.pop()
        else:
            self.pop()

    def twice(self) -> None:
        """Puts the last value there once more."""
        self.push(self._stack[-1])

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
            target[self._key(target, key)] = value

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
        target.update(self._key(target, value) for value in values)

    def frozen(self) -> None:
        """Makes a frozen set of the members since the mark."""
        self.push(frozenset(map(Hashes().take, self.since_mark())))

    def _key(self, container: Any, key: Any) -> Any:
        """A key or a member for a container; see `Hashes.take`."""
        if has_own_hash(key):
            return key
        _, hashes = self._hashes.setdefault(id(container), (container, Hashes()))
        return hashes.take(key)

    def _spend(self, values: Any) -> None:
        """Counts what a call copies: the pickle may give the same bytes to any number of calls."""
        self._left -= sum(len(one) for one in values if isinstance(one, (bytes, bytearray, str)))
        self._left -= sum(_OF_A_MEMBER * len(one) for one in values if isinstance(one, (list, tuple)))
        if self._left < 0:
            raise Refused(f"the pickle makes more than {_MOST_TIMES} times as much as it holds")

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

    def _called(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        if isinstance(function, type) and issubclass(function, Inert):
            return function(arguments)
        if not isinstance(function, Function):
            raise Refused(f"the pickle calls a {type(function).__name__}")
        self._spend(arguments)
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
            self._spend(state if isinstance(state, tuple) else ())
            self._stack[-1] = made = target.finished(state)
            for place in target.places:
                self._memo[place] = made
        elif isinstance(target, Inert):
            target.state = state
        else:
            raise Refused(f"the pickle sets the state of a {type(target).__name__}")
