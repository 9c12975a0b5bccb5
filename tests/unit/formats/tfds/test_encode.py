"""Records: what is written is what the reader of TFDS' files reads, for every dtype, shape and encoding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Array
from rlds2reverb.formats.tfds.columns import EpisodeFeatures
from rlds2reverb.formats.tfds.encode import encode_column, join_entries
from rlds2reverb.formats.tfds.example import varints
from rlds2reverb.formats.tfds.write import FeatureChoices, layout_of
from rlds2reverb.protobuf import packed_varints, varint
from rlds2reverb.specs import ArraySpec, column_spec
from tests.support import strategies
from tests.support.profiles import examples


def through(
    columns: dict[str, Array], specs: dict[str, ArraySpec], choices: FeatureChoices = FeatureChoices()
) -> dict[str, Array]:
    """Columns as they are read from the record that they are written to."""
    layout = layout_of(specs, {}, choices)
    record = join_entries(entry for column in layout.steps for entry in encode_column(column, columns[column.path]))
    return EpisodeFeatures.from_json(layout.tree, "features").read(record, "record")[0]


@examples(40)
@given(st.data())
def test_columns_come_back_to_the_bit(data: st.DataObject) -> None:
    described = data.draw(strategies.column_specs())
    rng, rows = np.random.default_rng(data.draw(st.integers(0, 99))), data.draw(st.integers(1, 4))
    columns = {
        path: strategies.array(rng, dtype, (rows, *shape))
        for path, (dtype, shape) in described.items()
        if dtype != object or 0 not in shape  # the loss `empty_texts`
    }
    columns["is_first"] = np.arange(rows) == 0  # so that rows are known where all others have no values
    specs = {path: column_spec(column) for path, column in columns.items()}
    found = through(columns, specs, FeatureChoices(data.draw(st.sampled_from(["bytes", "zlib"]))))
    assert found.keys() == columns.keys()
    for path, column in columns.items():
        assert found[path].dtype == column.dtype
        assert found[path].shape == column.shape
        assert found[path].tolist() == column.tolist() if column.dtype == object else same(found[path], column)


def same(one: Array, other: Array) -> bool:
    return one.tobytes() == other.tobytes()


@given(st.data())
def test_sizes_may_be_free(data: st.DataObject) -> None:
    dtype = data.draw(strategies.dtypes().filter(lambda dtype: dtype != object))
    shape = tuple(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    free = data.draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
    column = strategies.array(np.random.default_rng(3), dtype, (3, *shape))
    spec = ArraySpec(tuple(None if is_free else size for is_free, size in zip(free, shape)), dtype)
    assert same(through({"a": column}, {"a": spec})["a"], column)


@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_step_may_have_any_number_of_texts(length: int) -> None:
    column = strategies.array(np.random.default_rng(2), np.dtype(object), (4, length, 2))
    found = through({"a": column}, {"a": ArraySpec((None, 2), np.dtype(object))})["a"]
    assert found.shape == column.shape
    assert found.tolist() == column.tolist()


INTEGERS = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-3, 300), st.sampled_from([127, 128, 16383, 16384])
)


@given(st.lists(INTEGERS, min_size=1, max_size=40))
def test_integers_are_the_shortest_varints(values: list[int]) -> None:
    packed = packed_varints(np.array(values, np.int64))
    assert packed == b"".join(varint(value % (1 << 64)) for value in values)
    assert varints(packed, "here").astype(np.int64).tolist() == values


def test_long_lists_of_integers_are_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(-5, 1_000)
    whole = packed_varints(values)
    monkeypatch.setattr("rlds2reverb.protobuf._AT_ONCE", 7)
    assert packed_varints(values) == whole


@pytest.mark.parametrize("order", ["<", ">"])
def test_the_byte_order_in_memory_does_not_matter(order: str) -> None:
    for kind in ("f4", "f8", "i4", "u8", "c16"):
        column = np.arange(6).astype(f"{order}{kind}").reshape(3, 2)
        found = through({"a": column}, {"a": column_spec(column)})["a"]
        assert found.tolist() == column.tolist()


def test_arrays_that_are_not_in_order_in_memory_are_written_as_they_look() -> None:
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {
        "a": rng.normal(size=(2, 6)).T[::2],
        "b": np.broadcast_to(np.float32(3), (3, 2)),
        "c": rng.integers(0, 256, (3, 20, 17, 3), np.uint8)[..., ::-1],
    }
    found = through(columns, {path: column_spec(column) for path, column in columns.items()})
    for path, column in columns.items():
        np.testing.assert_array_equal(found[path], column)


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_pictures_come_back_to_the_bit(dtype: str, channels: int) -> None:
    column = strategies.array(np.random.default_rng(1), np.dtype(dtype), (2, 16, 19, channels))
    for images in ("png", "tensor"):
        found = through({"a": column}, {"a": column_spec(column)}, FeatureChoices(images=images))["a"]
        assert same(found, column)
