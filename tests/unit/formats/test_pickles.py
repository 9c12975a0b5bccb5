"""Pickles of every protocol give what pickle gives; hostile ones an error, soon, and nothing else."""

from __future__ import annotations

import collections
import os
import pickle
import random
import re
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rlds2reverb.errors import SourceError
from rlds2reverb.formats.pickles import Inert, safe_loads, stable_repr
from tests.support import damage
from tests.support.profiles import examples
from tests.support.raising import error_of

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)
dtypes = (
    hnp.boolean_dtypes()
    | hnp.integer_dtypes(endianness="=")
    | hnp.unsigned_integer_dtypes(endianness="=")
    | hnp.floating_dtypes(endianness="=", sizes=(16, 32, 64))
    | hnp.complex_number_dtypes(endianness="=", sizes=(64, 128))
    | hnp.unicode_string_dtypes(endianness="=")
    | hnp.byte_string_dtypes()
)


@examples(50)
@given(plain, st.sampled_from(PROTOCOLS))
def test_plain_values_are_as_they_were(value: Any, protocol: int) -> None:
    assert safe_loads(pickle.dumps(value, protocol), "x") == value


@given(
    hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, min_side=0, max_side=4)), st.sampled_from(PROTOCOLS), st.booleans()
)
def test_arrays_and_scalars_are_as_they_were(array: Any, protocol: int, is_fortran: bool) -> None:
    array = np.asfortranarray(array) if is_fortran else array
    values = [array, *array.ravel()[:2]]
    for value, found in zip(values, safe_loads(pickle.dumps(values, protocol), "x")):
        assert type(found) is type(value)
        assert found.dtype == value.dtype
        assert found.shape == value.shape
        assert found.tobytes() == value.tobytes()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "value",
    [
        np.array([1, "x", None, {"a": np.arange(2)}], object),
        np.array([[b"a", b"bc"]], object),
        np.zeros(3, [("a", "f4"), ("b", "i2", (2,))]),
        collections.OrderedDict(a=1, b=[2]),
        {1, 2},
        frozenset("a"),
        bytearray(b"ab"),
        1 - 2j,
        np.dtype("f4"),
        np.float32,
        {(1, "a"): 2},
    ],
    ids=repr,
)
def test_other_values_are_as_they_were(value: Any, protocol: int) -> None:
    found = safe_loads(pickle.dumps(value, protocol), "x")
    assert type(found) is type(value)
    assert repr(found) == repr(pickle.loads(pickle.dumps(value, protocol)))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_byte_order_stays(protocol: int) -> None:
    found = safe_loads(pickle.dumps(np.arange(3, dtype=">i2"), protocol), "x")
    assert found.tolist() == [0, 1, 2]


def test_numpy_1_and_2_name_their_functions_otherwise() -> None:
    data = pickle.dumps(np.arange(3), 2)
    for old, new in ((b"numpy.core", b"numpy._core"), (b"numpy._core", b"numpy.core")):
        assert safe_loads(data.replace(old, new), "x").tolist() == [0, 1, 2]


def test_what_stands_behind_the_end_is_not_looked_at() -> None:
    assert safe_loads(pickle.dumps(5) + b"more", "x") == 5


class Kept:
    """A class that is named."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __reduce__(self) -> Any:
        return Kept, self.arguments, {"state": 1}


CALLED: list[str] = []


def call(name: str) -> None:
    CALLED.append(name)


class Recorded:
    """Writes down that code of its pickle has run."""

    def __reduce__(self) -> Any:
        return call, ("run",)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_code_in_a_pickle_is_never_run(protocol: int) -> None:
    data = pickle.dumps({"a": np.arange(3), "b": Recorded()}, protocol)
    with pytest.raises(SourceError, match="x: refused: the pickle refers to"):
        safe_loads(data, "x")
    assert CALLED == []
    pickle.loads(data)
    assert CALLED == ["run"]
    CALLED.clear()


class Slotless(tuple):
    """Made by NEWOBJ."""

    __slots__ = ()


NAME = f"{Kept.__module__}.Kept"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_named_class_gives_what_was_pickled_of_it(protocol: int) -> None:
    data = pickle.dumps([Kept(1, "a"), Kept], protocol)
    made, kind = safe_loads(data, "x", {NAME})
    assert isinstance(made, Inert)
    assert (made.class_name, made.arguments, made.state) == (NAME, (1, "a"), {"state": 1})
    assert issubclass(kind, Inert)
    with pytest.raises(SourceError, match=f'x: refused: the pickle refers to "{NAME}"'):
        safe_loads(data, "x")


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_an_object_of_a_named_class_has_what_it_was_made_with(protocol: int) -> None:
    name = f"{Slotless.__module__}.Slotless"
    assert safe_loads(pickle.dumps(Slotless((1, 2)), protocol), "x", {name}).arguments == ((1, 2),)


class Hostile:
    """Calls something."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "function",
    [
        (os.system, "true"),
        (eval, "1"),
        (getattr, 1, "real"),
        (np.load, "x"),
        (np.ndarray, (10**9,)),
        (np.frombuffer, b"12"),
        (bytearray, 1 << 40),
        (bytes, 1 << 40),
        (open, "x"),
        (map, print, [1]),
        (type, "x", (), {}),
        (Inert,),
    ],
    ids=lambda call: call[0].__name__,
)
def test_no_function_is_called(function: Any, protocol: int) -> None:
    with pytest.raises(SourceError, match="x: "):
        safe_loads(pickle.dumps(Hostile(*function), protocol), "x", {NAME})


GLOBAL = {
    "reconstruct": b"cnumpy.core.multiarray\n_reconstruct\n",
    "ndarray": b"cnumpy\nndarray\n",
    "dtype": b"cnumpy\ndtype\n",
}
EMPTY = GLOBAL["reconstruct"] + b"(" + GLOBAL["ndarray"] + b"(K\0tC\x01btR"
BYTES = GLOBAL["dtype"] + b"(X\x02\0\0\0u1K\0K\x01tR(K\x03X\x01\0\0\0|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
OBJECTS = BYTES.replace(b"u1", b"O8")


def number(value: int) -> bytes:
    return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)


def array_with(shape: bytes, dtype: bytes, contents: bytes) -> bytes:
    return EMPTY + b"(K\x01(" + shape + b"t" + dtype + b"\x89" + contents + b"tb."


HOSTILE = {
    "a shape without the bytes for it": array_with(number(1 << 60), BYTES, b"C\x01a"),
    "a shape whose size is 0 and whose length is absurd": array_with(number(1 << 60) + b"K\0", BYTES, b"C\0"),
    "a shape below 0": array_with(number(-1), BYTES, b"C\x01a"),
    "a shape of texts": array_with(b"X\x01\0\0\0a", BYTES, b"C\x01a"),
    "a shape of many sizes": array_with(b"K\x01" * 200, BYTES, b"C\x01a"),
    "objects without as many": array_with(b"K\xff", OBJECTS, b"](K\x01e"),
    "objects given as bytes": array_with(b"K\x01", OBJECTS, b"C\x08" + bytes(8)),
    "an array within itself": b"\x80\x02" + EMPTY + b"q\0(K\x01(K\x01t" + OBJECTS + b"\x89](h\0etb.",
    "an array that is never filled": EMPTY + b".",
    "an array made of ndarray": GLOBAL["ndarray"] + b"(" + number(1 << 40) + b"tR.",
    "an object of ndarray": GLOBAL["ndarray"] + b")\x81.",
    "a state for a function": GLOBAL["dtype"] + b"}b.",
    "another dtype": GLOBAL["dtype"] + b"(X\x02\0\0\0M8K\0K\x01tR.",
    "a dtype of a nest": GLOBAL["dtype"] + b"(]tR.",
    "a list in itself": b"]q\0h\0a.",
    "a dictionary in itself": b"}q\0K\x01h\0s.",
    "lists within lists": b"]" + b"](" * 100_000 + b"e" * 100_000 + b".",
    "tuples doubled": b"K\x01" + b"2\x86" * 200 + b".",
    "a deep chain of shared lists": b"]("
    + b"".join(
        b"](" * 50 + (b"h" + bytes([at - 1]) if at else b"") + b"e" * 50 + b"q" + bytes([at]) for at in range(50)
    )
    + b"e.",
    "a list as a key": b"}]K\x01s.",
    "a length that is not there": b"\x8e" + struct.pack("<Q", 1 << 62) + b"x.",
    "a length below 0": b"T" + struct.pack("<i", -5) + b"x.",
    "a text that is not there": b"X" + struct.pack("<I", 1 << 31) + b"x.",
    "a place in the memo that is not there": b"h\x05.",
    "something outside": b"Pabc\n.",
    "an extension": b"\x82\x01.",
    "a buffer outside": b"\x97.",
    "no end": b"K\x01",
    "nothing": b"",
    "nothing on the stack": b".",
    "a mark that is not there": b"t.",
    "items for a list": b"](K\x01K\x02u.",
    "an odd number of items": b"}(K\x01u.",
    "another instruction": b"\xff.",
    "a function as a value": GLOBAL["dtype"] + b".",
    "a class in a set": b"(" + GLOBAL["dtype"] + b"\x91.",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_pickle_is_refused(kind: str) -> None:
    with pytest.raises(SourceError, match=r"^x: (refused|a damaged pickle): "):
        safe_loads(HOSTILE[kind], "x")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_keys_of_datasets_are_taken_however_many(protocol: int) -> None:
    value: Any = {
        **dict.fromkeys(range(-3000, 3000), 1),
        **{at << 40: 1 for at in range(3_000)},
        **{(at % 7, -(at % 3), at): 1 for at in range(3_000)},
        **{at / 8: 1 for at in range(3_000)},
        **{f"key {at}": 1 for at in range(3_000)},
        None: 1,
        (("a", 1), b"b", None, True): 1,
    }
    assert safe_loads(pickle.dumps(value, protocol), "x") == value
    assert safe_loads(pickle.dumps([set(value), frozenset(value)], protocol), "x") == [set(value), frozenset(value)]
    many = [{1.5: at, (1, 2): at} for at in range(3_000)]
    assert safe_loads(pickle.dumps(many, protocol), "x") == many


def test_values_that_are_shared_stay_so() -> None:
    shared = [1]
    found = safe_loads(pickle.dumps([shared] * 1000), "x")
    assert found == [shared] * 1000
    assert found[0] is found[-1]


def test_texts_of_values_are_those_of_python() -> None:
    value = {"a": [1, (2,), ()], (3, "b"): {4}, "c": [frozenset(), set(), {"x": None}, {"é"}, frozenset({1.5})]}
    assert stable_repr(value) == repr(value)
    endless: list[Any] = []
    endless.append(endless)
    assert stable_repr(endless) == "[[...]]"


def test_texts_of_sets_are_the_same_in_every_process() -> None:
    code = "from rlds2reverb.formats.pickles import stable_repr; print(stable_repr({'x': [set('abcdefgh'), frozenset('ab')]}))"
    texts = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in ("1", "2")
    }
    assert texts == {b"{'x': [{'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'}, frozenset({'a', 'b'})]}\n"}


FAR_OUT = re.compile(rb"r..(.[^\0]|[^\0-\x0f].)|p\d{6}", re.DOTALL)
"""Such a place in the memo takes much memory with older releases of CPython (its issue 115952)."""


@pytest.mark.parametrize("part", damage.PARTS)
def test_damaged_pickles_give_values_or_our_error(part: int) -> None:
    whole = [
        pickle.dumps({"a": np.arange(9.0), "b": [np.float32(1), "x", {1: (2, b"3")}], "c": Kept(1)}, protocol)
        for protocol in PROTOCOLS
    ]

    def job(name: str, draw: random.Random) -> None:
        data = bytearray(draw.choice(whole))
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(len(data))] = draw.choice((draw.randrange(256), ord(draw.choice("(.)tRb0]}"))))
        cut = data[: draw.randrange(len(data)) + 1] if draw.random() < 0.2 else data
        if FAR_OUT.search(cut):
            return
        error = error_of(SourceError, lambda: safe_loads(bytes(cut), "x", {NAME}))
        assert error is None or str(error).startswith("x: "), name

    damage.each_case("pickles", part, few=1_000, deep=100_000, job=job)
