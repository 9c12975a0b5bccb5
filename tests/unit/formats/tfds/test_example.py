"""`tf.train.Example`: packed and single numbers, varints against a slow reference, damage of every kind."""

from __future__ import annotations

import struct
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import SourceError
from rlds2reverb.formats.tfds import example
from rlds2reverb.protobuf import bytes_field, varint
from tests.support.formats import tfds as make
from tests.support.raising import error_of, outcome_of

INTEGERS = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 300), st.booleans().map(int))
FLOATS = st.floats(width=32, allow_nan=False)


def only(feature: bytes) -> object:
    return example.read_lists(make.example({"a": feature}), "here")[b"a"]


@given(st.lists(INTEGERS))
def test_integers_are_read_packed_and_single(values: list[int]) -> None:
    for feature in (make.integers(*values), make.single_integers(*values)):
        assert example.integers(only(feature), "here").astype(np.int64).tolist() == values


@given(st.integers(0, 2000), st.integers(0, 2**32))
def test_short_and_long_lists_of_integers_are_read_alike(count: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(-(1 << 63), 1 << 63, count, np.int64, endpoint=False).tolist()
    assert example.integers(only(make.integers(*values)), "here").astype(np.int64).tolist() == values


@given(st.lists(FLOATS))
def test_floats_are_read_packed_and_single(values: list[float]) -> None:
    for feature in (make.floats(*values), make.single_floats(*values)):
        found = example.floats(only(feature), "here")
        assert found.dtype == np.float32
        assert found.flags.aligned
        assert found.flags.owndata
        assert found.tolist() == values


@given(st.lists(st.lists(INTEGERS), max_size=4), st.lists(st.lists(FLOATS), max_size=4))
def test_lists_in_several_pieces_are_read(numbers: list[list[int]], values: list[list[float]]) -> None:
    pieces = b"".join(bytes_field(1, b"".join(varint(number % (1 << 64)) for number in part)) for part in numbers)
    in_one_list = bytes_field(3, pieces + b"\x08\x07")
    expected = [*(number for part in numbers for number in part), 7]
    assert example.integers(only(in_one_list), "here").astype(np.int64).tolist() == expected
    in_several_lists = b"".join(make.floats(*part) for part in [*values, [1.5]])
    assert example.floats(only(in_several_lists), "here").tolist() == [
        *(value for part in values for value in part),
        1.5,
    ]


@given(st.lists(st.binary()))
def test_texts_are_read(values: list[bytes]) -> None:
    assert example.texts(only(make.texts(*values)), "here") == values


def slow_varints(data: bytes) -> list[int] | None:
    """None where a number is cut or too long."""
    found, value, place = [], 0, 0
    for byte in data:
        value |= (byte & 0x7F) << (7 * place)
        place += 1
        if place > 10:
            return None
        if byte < 0x80:
            found.append((value + (1 << 63)) % (1 << 64) - (1 << 63))
            value = place = 0
    return found if not place else None


@given(st.one_of(st.binary(), st.lists(st.sampled_from([b"\x00", b"\x7f", b"\x80", b"\xff"])).map(b"".join)))
def test_varints_are_those_of_a_slow_reader_and_damage_is_told(data: bytes) -> None:
    found = outcome_of(SourceError, lambda: example.varints(data, "here"))
    expected = slow_varints(data)
    if isinstance(found, SourceError):
        assert expected is None
    else:
        assert found.astype(np.int64).tolist() == expected


@given(st.binary())
def test_any_bytes_are_values_or_our_error(data: bytes) -> None:
    found = outcome_of(SourceError, lambda: example.read_lists(data, "here"))
    if isinstance(found, SourceError):
        assert "here: not a tf.train.Example" in str(found)


@given(st.sampled_from([1, 2, 3]), st.binary())
def test_any_list_is_values_or_our_error(field: int, data: bytes) -> None:
    feature = outcome_of(SourceError, lambda: only(bytes_field(field, data)))
    if isinstance(feature, SourceError):
        return
    for read in (example.integers, example.floats, example.texts):
        error = error_of(SourceError, partial(read, feature, "here"))
        assert error is None or str(error).startswith("here")


def test_of_two_entries_of_one_key_the_last_counts() -> None:
    record = make.example([("a", make.integers(1)), ("a", make.integers(2))])
    assert example.integers(example.read_lists(record, "here")[b"a"], "here").tolist() == [2]


def test_another_kind_of_list_is_told() -> None:
    with pytest.raises(SourceError, match="here: expected a list of floats, found integers"):
        example.floats(only(make.integers(1)), "here")
    with pytest.raises(SourceError, match="here: expected a list of integers, found byte strings"):
        example.integers(only(make.texts(b"a")), "here")
    with pytest.raises(SourceError, match="here: expected a list of byte strings, found floats"):
        example.texts(only(make.floats(1)), "here")


def test_a_feature_without_a_list_is_empty() -> None:
    assert example.is_empty(only(b""))
    assert not any(example.is_empty(only(feature)) for feature in (make.integers(), make.floats(), make.texts()))


def test_floats_whose_bytes_are_cut_are_told() -> None:
    cut = bytes_field(2, bytes_field(1, struct.pack("<f", 1.5)[:3]))
    with pytest.raises(SourceError, match="here: its list is damaged"):
        example.floats(only(cut), "here")
