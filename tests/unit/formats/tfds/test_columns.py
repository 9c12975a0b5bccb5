"""Records made by hand -> columns and metadata: every storage, what is missing, and damage of every kind."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import SourceError
from rlds2reverb.formats.tfds.columns import EpisodeFeatures
from rlds2reverb.images import NotReadHere
from rlds2reverb.specs import ArraySpec, flatten
from tests.support.formats import tfds as make
from tests.support.raising import outcome_of


def column(feature: dict[str, Any], **stored: bytes) -> Any:
    """The step column `a` of a record with these lists, `KEY` for "steps/a" and `KEY_rest` for "steps/a/rest"."""
    keys = {"steps/" + key.replace("__", "/"): value for key, value in stored.items()}
    return make.reader({"a": feature}).read(make.example(keys), "here")[0]["a"]


def test_steps_are_cut_from_one_list() -> None:
    found = column(make.tensor("float32", 2, 2), a=make.floats(*range(12)))
    np.testing.assert_array_equal(found, np.arange(12, dtype=np.float32).reshape(3, 2, 2))


STORED = {
    "bool": (make.integers(0, 1, 2), [False, True, True]),
    "int8": (make.integers(-128, 127, 300), [-128, 127, 44]),
    "uint8": (make.integers(255, 0, -1), [255, 0, 255]),
    "uint64": (make.integers(-(1 << 63) + 5), [(1 << 63) + 5]),
    "int64": (make.single_integers(-1, 1 << 62), [-1, 1 << 62]),
    "float16": (make.floats(0.1, 1e9), [float(np.float16(0.1)), float("inf")]),
    "float64": (make.single_floats(0.1), [float(np.float32(0.1))]),
    "string": (make.texts(b"a", b"", b"\xff"), [b"a", b"", b"\xff"]),
}


@pytest.mark.parametrize("dtype", STORED)
def test_every_dtype_comes_back_as_it_was_stored(dtype: str) -> None:
    feature, values = STORED[dtype]
    found = column(make.tensor(dtype), a=feature)
    assert found.dtype == (object if dtype == "string" else np.dtype(dtype))
    assert found.tolist() == values


RAW = np.arange(6, dtype=np.uint32).reshape(2, 3)


def test_bytes_and_zlib_keep_one_item_per_byte_string() -> None:
    rows = [row.tobytes() for row in RAW]
    for encoding, stored in (("bytes", rows), ("zlib", [zlib.compress(row) for row in rows])):
        for sizes in ((3,), (-1,)):
            found = column(make.tensor("uint32", *sizes, encoding=encoding), a=make.texts(*stored))
            np.testing.assert_array_equal(found, RAW)
            assert found.dtype == np.uint32


def test_free_sizes_stand_beside_the_values() -> None:
    feature = make.tensor("uint32", -1, -1, encoding="zlib")
    stored = make.texts(*(zlib.compress(row.tobytes()) for row in RAW))
    found = column(feature, a__value=stored, a__shape=make.integers(3, 1, 3, 1))
    np.testing.assert_array_equal(found, RAW.reshape(2, 3, 1))


def test_sequences_in_steps_have_one_length_in_an_episode() -> None:
    feature = make.sequence(make.tensor("int16", 2))
    values = make.integers(*range(8))
    found = column(feature, a__ragged_flat_values=values, a__ragged_row_lengths_0=make.integers(2, 2))
    np.testing.assert_array_equal(found, np.arange(8).reshape(2, 2, 2))
    with pytest.raises(SourceError, match='here, feature "a": steps of different lengths'):
        column(feature, a__ragged_flat_values=values, a__ragged_row_lengths_0=make.integers(3, 1))
    for lengths in ((2, 1), (-1, 5), (2, 2, 2), (1 << 62, 1 << 62, 1 << 62, (1 << 62) + 4)):
        with pytest.raises(
            SourceError, match='here, feature "a": the lengths of its rows do not add up to its 4 items'
        ):
            column(feature, a__ragged_flat_values=values, a__ragged_row_lengths_0=make.integers(*lengths))


def test_sequences_of_known_length_are_read_too() -> None:
    lists = {"a__ragged_flat_values": make.integers(1, 2, 3, 4), "a__ragged_row_lengths_0": make.integers(2, 2)}
    assert column(make.sequence(make.tensor("int16"), 2), **lists).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(SourceError, match="a row of another length than 3"):
        column(make.sequence(make.tensor("int16"), 3), **lists)


def test_an_episode_without_steps_has_empty_columns() -> None:
    steps = {
        "a": make.tensor("int8", 2),
        "b": make.sequence(make.tensor("float32", 3)),
        "c": make.tensor("bool", -1, 2, encoding="zlib"),
        "d": make.image(-1, 4, 3),
        "e": make.text(),
    }
    for record in (b"", make.example({"steps/a": make.integers(), "steps/e": make.texts(), "steps/d": b""})):
        columns, _ = make.reader(steps).read(record, "here")
        shapes = {path: found.shape for path, found in columns.items()}
        assert shapes == {"a": (0, 2), "b": (0, 0, 3), "c": (0, 0, 2), "d": (0, 0, 4, 3), "e": (0,)}
        assert [str(found.dtype) for found in columns.values()] == ["int8", "float32", "bool", "uint8", "object"]


def test_columns_without_values_are_as_long_as_the_others() -> None:
    reader = make.reader({"a": make.tensor("int8", 0, 2), "b": make.tensor("int8")})
    columns, _ = reader.read(make.example({"steps/a": make.integers(), "steps/b": make.integers(1, 2, 3)}), "here")
    assert columns["a"].shape == (3, 0, 2)


def test_steps_of_a_known_number_have_that_number() -> None:
    tree = make.together({"steps": make.sequence(make.together({"a": make.tensor("int8")}), 2)})
    reader = EpisodeFeatures.from_json(tree, "x")
    assert reader.read(make.example({"steps/a": make.integers(1, 2)}), "here")[0]["a"].tolist() == [1, 2]
    with pytest.raises(SourceError, match="here: the columns of steps have different lengths, or others than expected"):
        reader.read(make.example({"steps/a": make.integers(1)}), "here")


def test_columns_of_different_lengths_are_named() -> None:
    reader = make.reader({"a": make.tensor("int8"), "b": make.tensor("int8")})
    with pytest.raises(SourceError, match=r"here: the columns of steps have different lengths.*: a: 2, b: 1"):
        reader.read(make.example({"steps/a": make.integers(1, 2), "steps/b": make.integers(1)}), "here")


LACKING = {
    "a tensor": (make.tensor("float32", 3), r'"wrist" \(float32\[3\] a step\)', "drop=wrist"),
    "a text": (make.text(), r'"wrist" \(string\[\] a step\)', "drop=wrist"),
    "an image": (make.image(4, 4, 3), r'"wrist" \(uint8\[4, 4, 3\] a step\)', "drop=wrist"),
    "a ragged list": (make.sequence(make.tensor("int64")), r'"wrist" \(int64\[\?\] a step\)', "drop=wrist"),
    "packed": (make.tensor("int8", -1, -1, encoding="zlib"), r'"wrist" \(int8\[\?, \?\] a step\)', "drop=wrist"),
    "a nest": (
        make.together({"a": make.tensor("bool"), "b": make.tensor("bool")}),
        r'"wrist/a" \(bool\[\] a step\), "wrist/b" \(bool\[\] a step\); expected 2 steps of them',
        "drop=wrist/a,wrist/b",
    ),
}
"""A step feature that no record has, how it is named, and the way around it."""


@pytest.mark.parametrize("kind", LACKING)
def test_a_feature_that_a_record_lacks_is_named_and_can_be_left_out(kind: str) -> None:
    feature, named, drop = LACKING[kind]
    reader = make.reader({"a": make.tensor("int8"), "wrist": feature})
    record = make.example({"steps/a": make.integers(1, 2)})
    with pytest.raises(SourceError, match=rf"^here: the record lacks . step features? that .*: {named}") as caught:
        reader.read(record, "here")
    assert str(caught.value).endswith(f"by a transform, {drop}")
    columns, _ = reader.without(drop.removeprefix("drop=").split(",")).read(record, "here")
    assert columns["a"].tolist() == [1, 2]


def test_what_stands_in_place_of_a_lacking_feature_is_told() -> None:
    reader = make.reader({"a": make.tensor("int8"), "wrist": make.tensor("int8"), "b": make.tensor("int8")})
    there = {"steps/a": make.integers(1), "steps/wrist_image": make.integers(1), "other": make.integers(1)}
    with pytest.raises(
        SourceError, match=r'"b" .*, "wrist" .*; expected 1 step of them, found instead "wrist_image"; use'
    ):
        reader.read(make.example(there), "here")
    with pytest.raises(SourceError, match=r'lacks 1 step feature .*: "b" .*, found instead "wrist_image"; use'):
        reader.without(["wrist"]).read(make.example(there), "here")


def test_a_record_of_other_features_is_no_episode_without_steps() -> None:
    reader = make.reader({"a": make.tensor("int8"), "is_last": make.tensor("bool")})
    with pytest.raises(
        SourceError, match=r'lacks 2 step features .* expected steps of them, found instead "x"; .* or remove them'
    ):
        reader.read(make.example({"steps/x": make.integers(1, 2)}), "here")
    columns, _ = reader.without(["a"]).read(make.example({"steps/a": make.integers()}), "here")
    assert columns["is_last"].shape == (0,)


def test_steps_are_not_counted_by_a_flag_that_is_not_there() -> None:
    reader = make.reader({"a": make.tensor("int8"), "is_last": make.tensor("bool")})
    assert reader.length_of(make.example({"steps/a": make.integers(1, 2)}), "here") is None
    assert reader.length_of(make.example({"steps/is_last": make.integers(0, 0, 1)}), "here") == 3


def test_names_may_hold_a_slash_but_not_mean_two_columns() -> None:
    reader = make.reader({"a/b": make.tensor("int8"), "a": make.together({"c": make.text(), "d": make.together({})})})
    record = make.example({"steps/a/b": make.integers(1), "steps/a/c": make.texts(b"x")})
    columns, _ = reader.read(record, "here")
    assert {path: found.tolist() for path, found in columns.items()} == {"a/b": [1], "a/c": [b"x"]}
    assert list(columns) == list(flatten(reader.steps_spec))
    with pytest.raises(SourceError, match='two columns are both named "a/b"'):
        make.reader({"a/b": make.text(), "a": make.together({"b": make.text()})})


METADATA = {
    "number": (make.tensor("int32"), {"m": make.integers(7)}, np.int32(7)),
    "text": (make.text(), {"m": make.texts(b"hi")}, b"hi"),
    "tensor": (make.tensor("float32", 2), {"m": make.floats(1, 2)}, np.array([1, 2], np.float32)),
    "free size": (
        make.tensor("int8", -1, 2),
        {"m": make.integers(*range(4))},
        np.arange(4, dtype=np.int8).reshape(2, 2),
    ),
    "free size, missing": (make.tensor("int8", -1, 2), {}, np.zeros((0, 2), np.int8)),
    "sequence": (make.sequence(make.text()), {"m": make.texts(b"a")}, np.array([b"a"], object)),
    "sequence, missing": (make.sequence(make.tensor("float32", 2)), {}, np.zeros((0, 2), np.float32)),
    "no integer": (make.tensor("int32", optional=True), {}, np.int32(-(1 << 31))),
    "no unsigned": (make.tensor("uint8", 2, optional=True), {}, np.zeros(2, np.uint8)),
    "no float": (make.tensor("float32", optional=True), {}, np.finfo(np.float32).min),
    "no double": (make.tensor("float64", optional=True), {"m": b""}, np.float64("-inf")),
    "no text": (make.tensor("string", optional=True), {}, b""),
    "no bool": (make.tensor("bool", optional=True), {}, np.bool_(False)),
}


@pytest.mark.parametrize("name", METADATA)
def test_what_an_episode_has_beside_its_steps(name: str) -> None:
    feature, stored, expected = METADATA[name]
    _, metadata = make.reader({"a": make.text()}, m=feature).read(make.example(stored), "here")
    assert make.same(metadata, {"m": expected})


def test_ragged_metadata_is_an_array_of_rows() -> None:
    reader = make.reader({"a": make.text()}, m=make.sequence(make.sequence(make.tensor("int8"))))
    stored = {"m/ragged_flat_values": make.integers(1, 2, 3), "m/ragged_row_lengths_0": make.integers(1, 2)}
    found = reader.read(make.example(stored), "here")[1]["m"]
    assert found.dtype == object
    assert [row.tolist() for row in found] == [[1], [2, 3]]


def test_a_missing_value_and_two_of_them_are_named() -> None:
    reader = make.reader({"a": make.text()}, m=make.tensor("int8"))
    with pytest.raises(
        SourceError,
        match=r'here, feature "m": is missing in the record, .* not optional: features.json declares it as int8',
    ):
        reader.read(b"", "here")
    for values in ((), (1, 2)):
        with pytest.raises(SourceError, match=f'here, feature "m": has {len(values)} values; expected one'):
            reader.read(make.example({"m": make.integers(*values)}), "here")


WRONG = {
    "part of a step": (make.tensor("int8", 2), {"a": make.integers(1, 2, 3)}, "has 3 values; expected a multiple of 2"),
    "values of no size": (make.tensor("int8", 0), {"a": make.integers(1)}, "has 1 values"),
    "another kind": (make.tensor("int8"), {"a": make.floats(1)}, "expected a list of integers, found floats"),
    "bytes": (
        make.tensor("int8", 2, encoding="bytes"),
        {"a": make.texts(b"12", b"1")},
        "an item of 1 bytes; expected 2",
    ),
    "part of an item": (make.tensor("int16", -1, encoding="bytes"), {"a": make.texts(b"123")}, "has 3 bytes"),
    "no zlib": (make.tensor("int8", 2, encoding="zlib"), {"a": make.texts(b"12")}, "cannot be decompressed"),
    "cut zlib": (
        make.tensor("int8", 2, encoding="zlib"),
        {"a": make.texts(zlib.compress(b"12")[:-2])},
        "an item that is cut",
    ),
    "shapes": (
        make.tensor("int8", -1, -1, encoding="bytes"),
        {"a__value": make.texts(b"1", b"12"), "a__shape": make.integers(1, 1, 1, 2)},
        r"items of different shapes, \(1, 1\) and \(1, 2\)",
    ),
    "number of shapes": (
        make.tensor("int8", -1, -1, encoding="bytes"),
        {"a__value": make.texts(b"1", b"1"), "a__shape": make.integers(1, 1)},
        "has 2 values and 1 shapes",
    ),
    "half a shape": (
        make.tensor("int8", -1, -1, encoding="bytes"),
        {"a__value": make.texts(b"1"), "a__shape": make.integers(1)},
        "shapes of 1 sizes in all; expected 2 each",
    ),
    "negative shape": (
        make.tensor("int8", -1, -1, encoding="bytes"),
        {"a__value": make.texts(b"1"), "a__shape": make.integers(-1, -1)},
        r"an item of the shape \(-1, -1\)",
    ),
    "another shape": (
        make.tensor("int8", -1, 2, -1, encoding="bytes"),
        {"a__value": make.texts(b"1"), "a__shape": make.integers(1, 1, 1)},
        r"an item of the shape \(1, 1, 1\); expected \(None, 2, None\)",
    ),
    "huge shape": (
        make.tensor("int8", -1, -1, encoding="zlib"),
        {"a__value": make.texts(b"1"), "a__shape": make.integers(1 << 40, 1 << 40)},
        "more than 2,147,483,648 bytes",
    ),
    "huge shape without values": (
        make.tensor("int8", -1, -1, encoding="bytes"),
        {"a__value": make.texts(b""), "a__shape": make.integers(0, 1 << 62)},
        "more than 2,147,483,648 bytes",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_the_features_is_named(name: str) -> None:
    feature, stored, said = WRONG[name]
    with pytest.raises(SourceError, match=f'here, feature "a": .*{said}'):
        column(feature, **stored)


def test_bombs_are_not_decompressed() -> None:
    bomb = zlib.compress(bytes(1 << 26))
    known = make.tensor("int8", 8, encoding="zlib")
    dynamic = make.tensor("uint8", -1, -1, encoding="zlib")
    free = make.tensor("int8", -1, encoding="zlib")
    second = {"a": make.texts(zlib.compress(b"1"), bomb)}
    huge = {"a__value": make.texts(zlib.compress(b"1")), "a__shape": make.integers(1 << 15, 1 << 15)}
    tracemalloc.start()
    for feature, stored in ((known, {"a": make.texts(bomb)}), (free, second), (dynamic, huge)):
        with pytest.raises(SourceError, match=r"when decompressed|too short for items"):
            column(feature, **stored)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 23


def test_what_stands_for_a_missing_value_is_small() -> None:
    reader = make.reader({"a": make.text()}, m=make.tensor("int8", 1 << 30, optional=True))
    with pytest.raises(SourceError, match=r'here, feature "m": is missing, .* more than 268,435,456 bytes'):
        reader.read(b"", "here")


def test_rows_without_values_of_a_huge_shape_are_refused() -> None:
    feature = make.sequence(make.tensor("float64", 1 << 31))
    stored = {"a__ragged_row_lengths_0": make.integers(*[0] * (1 << 18))}
    with pytest.raises(SourceError, match='feature "a": 262,144 rows without values'):
        column(feature, **stored)
    with pytest.raises(SourceError, match=r'feature "a": the sizes .* more values than any memory holds'):
        make.reader({"a": make.tensor("float64", 0, 1 << 31)})


@pytest.mark.parametrize("length", [1 << 30, -1])
def test_sizes_that_no_memory_holds_are_refused(length: int) -> None:
    feature = make.sequence(make.sequence(make.tensor("float64", 1 << 31), 1 << 30), length)
    with pytest.raises(SourceError, match=r'feature "m": the sizes .* more values than any memory holds'):
        make.reader({"a": make.text()}, m=feature)


TREE = make.episodes(
    {
        "plain": make.tensor("float32", 2),
        "whole": make.tensor("int16"),
        "bytes": make.tensor("int16", -1, encoding="bytes"),
        "zlib": make.tensor("int16", -1, -1, encoding="zlib"),
        "list": make.sequence(make.tensor("uint8")),
        "text": make.text(),
    },
    name=make.text(),
    number=make.tensor("int64"),
    rows=make.sequence(make.sequence(make.tensor("int8"))),
)
RECORD = make.example({
    "steps/plain": make.floats(1, 2, 3, 4),
    "steps/whole": make.integers(-5, 300),
    "steps/bytes": make.texts(b"1234", b"5678"),
    "steps/zlib/value": make.texts(zlib.compress(b"12"), zlib.compress(b"34")),
    "steps/zlib/shape": make.integers(1, 1, 1, 1),
    "steps/list/ragged_flat_values": make.integers(1, 2, 3, 4),
    "steps/list/ragged_row_lengths_0": make.integers(2, 2),
    "steps/text": make.texts(b"left", b"right"),
    "name": make.texts(b"first"),
    "number": make.integers(1 << 40),
    "rows/ragged_flat_values": make.integers(1, 2, 3),
    "rows/ragged_row_lengths_0": make.integers(1, 2),
})  # fmt: skip


def outcome(record: bytes) -> Any:
    return outcome_of(SourceError, lambda: EpisodeFeatures.from_json(TREE, "x").read(record, "file, record 3"))


def test_every_cut_and_every_flipped_byte_is_values_of_the_right_form_or_our_error() -> None:
    """A record without a checksum, as in parquet files."""
    reader = EpisodeFeatures.from_json(TREE, "x")
    specs = flatten(reader.steps_spec)
    damaged = [RECORD[:length] for length in range(len(RECORD))]
    for bits in (0x01, 0x80, 0xFF):
        damaged += [RECORD[:at] + bytes([RECORD[at] ^ bits]) + RECORD[at + 1 :] for at in range(len(RECORD))]
    for record in damaged:
        found = outcome(record)
        if isinstance(found, SourceError):
            assert str(found).startswith("file, record 3")
            continue
        assert {path: column.dtype for path, column in found[0].items()} == {
            path: spec.dtype for path, spec in specs.items()
        }
        assert len({len(column) for column in found[0].values()}) == 1


@given(st.lists(st.tuples(st.integers(0, len(RECORD) - 1), st.binary(max_size=12)), min_size=1, max_size=5))
def test_any_damage_is_values_or_our_error(damage: list[tuple[int, bytes]]) -> None:
    record = RECORD
    for place, data in damage:
        record = record[:place] + data + record[place + len(data) // 2 :]
    outcome(record)


NOT_READ = {
    "ragged": ({"a": make.sequence(make.sequence(make.text()))}, {}, 'step feature "a"'),
    "a dataset in steps": ({"a": make.dataset(make.text())}, {}, 'feature "steps/a": a dataset within a sequence'),
    "another dataset": ({"a": make.text()}, {"m": make.dataset(make.text())}, 'episode feature "m" is a dataset'),
    "free size": ({"a": make.tensor("int8", -1)}, {}, 'feature "a": a shape with free sizes'),
    "free sizes": ({"a": make.text()}, {"m": make.tensor("int8", -1, -1)}, 'feature "m": a shape with free sizes'),
    "bfloat16": ({"a": make.tensor("bfloat16")}, {}, 'feature "a": bfloat16 with encoding "none"'),
    "audio": ({"a": make.node("audio_feature.Audio", "audio")}, {}, 'feature "steps/a": its class .*Audio'),
}


@pytest.mark.parametrize("name", NOT_READ)
def test_what_only_tfds_reads_is_named(name: str) -> None:
    steps, metadata, said = NOT_READ[name]
    with pytest.raises(NotReadHere, match=f"features.json: {said}"):
        make.reader(steps, **metadata)


@pytest.mark.parametrize(
    "tree",
    [
        make.text(),
        make.together({}),
        make.together({"steps": make.text()}),
        make.together({"steps": make.dataset(make.text())}),
    ],
)
def test_what_is_not_rlds_is_refused(tree: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match="x: not RLDS"):
        EpisodeFeatures.from_json(tree, "x")


def test_specs_of_steps_and_metadata() -> None:
    reader = EpisodeFeatures.from_json(TREE, "x")
    assert flatten(reader.steps_spec)["zlib"] == ArraySpec((None, None), np.dtype(np.int16))
    assert flatten(reader.steps_spec)["list"] == ArraySpec((None,), np.dtype(np.uint8))
    assert flatten(reader.metadata_spec)["rows"] == ArraySpec((None, None), np.dtype(np.int8))
    assert list(flatten(reader.metadata_spec)) == ["name", "number", "rows"]


def test_images_can_stay_the_bytes_of_their_files() -> None:
    steps = {"a": make.image(2, 2, 3), "b": make.together({"c": make.sequence(make.image(-1, 4, 3))}), "d": make.text()}
    reader = make.reader(steps)
    assert reader.images == {
        "a": ArraySpec((2, 2, 3), np.dtype(np.uint8)),
        "b/c": ArraySpec((None, None, 4, 3), np.dtype(np.uint8)),
    }
    encoded = reader.encoded(["a", "b/c"])
    assert flatten(encoded.steps_spec)["a"] == ArraySpec((), np.dtype(object))
    assert flatten(encoded.steps_spec)["b/c"] == ArraySpec((None,), np.dtype(object))
    assert encoded.images == {}
    record = make.example({
        "steps/a": make.texts(b"one", b"two"),
        "steps/b/c/ragged_flat_values": make.texts(b"1", b"2"),
        "steps/b/c/ragged_row_lengths_0": make.integers(1, 1),
        "steps/d": make.texts(b"", b""),
    })  # fmt: skip
    columns, _ = encoded.read(record, "here")
    assert columns["a"].tolist() == [b"one", b"two"]
    assert columns["b/c"].tolist() == [[b"1"], [b"2"]]


def test_columns_do_not_hold_on_to_the_record() -> None:
    found = column(make.tensor("float32", 2), a=make.floats(*range(8)))
    assert found.base is None or found.base.base is None
    assert found.flags.aligned
    assert struct.pack("<8f", *range(8)) == found.tobytes()
