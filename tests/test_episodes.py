"""Episodes: read-only columns, honest lengths and sizes, and ids that depend on everything in them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.episodes import STEP_FIELDS, Episode, byte_view, columns_under, content_digest
from tests import strategies


def one(column, path="a"):
    return content_digest({path: column})


def test_the_seven_step_fields_stand_in_tf_agents_order():
    assert STEP_FIELDS == ("observation", "action", "reward", "discount", "is_first", "is_last", "is_terminal")


@settings(max_examples=30)
@given(strategies.episodes())
def test_columns_and_metadata_cannot_be_changed(episode):
    for column in episode.steps.values():
        assert not column.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            column[...] = column
    with pytest.raises(TypeError):
        episode.steps["new"] = np.zeros(3)
    with pytest.raises(TypeError):
        episode.metadata["new"] = 1
    with pytest.raises(AttributeError):
        episode.id = "other"


def test_the_callers_array_stays_writable_and_is_not_copied():
    column = np.zeros(3)
    episode = Episode({"a": column})
    column[0] = 1
    assert episode.steps["a"][0] == 1


def test_the_callers_dicts_are_copied():
    steps, metadata = {"a": np.zeros(3)}, {"agent": "x"}
    episode = Episode(steps, metadata)
    steps["b"], metadata["agent"] = np.zeros(3), "y"
    assert list(episode.steps) == ["a"]
    assert dict(episode.metadata) == {"agent": "x"}


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([1, 2], 'column "a": expected a numpy array [T, ...], got list'),
        (np.float32(1), 'column "a": expected a numpy array [T, ...], got float32'),
        (np.array(1), 'column "a": expected a leading time axis, got a scalar array'),
        (np.array([b"x", 1], object), 'column "a": expected text (bytes or str) in a column of objects, got int'),
    ],
)
def test_what_is_no_column_is_refused(column, message):
    with pytest.raises(TypeError) as error:
        Episode({"a": column})
    assert str(error.value) == message


def test_the_length_is_that_of_the_first_column():
    assert len(Episode({"a": np.zeros((3, 2)), "b": np.zeros(4)})) == 3
    assert len(Episode({})) == 0


def test_the_repr_shows_id_dtypes_and_shapes():
    episode = Episode({"a": np.zeros((3, 2), np.float32), "b": np.array([b"x"], object)}, id="train#0")
    assert repr(episode) == "Episode('train#0', 3 steps, a: float32[3, 2], b: object[1])"


def test_bytes_count_the_text_itself():
    assert Episode({"a": np.zeros((3, 2), np.float32), "b": np.array([b"xy", b"", b"z"], object)}).nbytes == 24 + 3


def test_episodes_are_told_apart_by_identity():
    episode = Episode({"a": np.zeros(2)})
    same = episode
    assert episode == same
    assert episode != Episode({"a": np.zeros(2)})
    assert len({episode, same}) == 1


def test_copies_keep_id_and_metadata():
    episode = Episode({"a": np.zeros(3)}, {"agent": "x"})
    added = episode.with_columns(b=np.ones(3))
    assert list(added.steps) == ["a", "b"]
    replaced = episode.with_steps({"c": np.ones(2)})
    assert list(replaced.steps) == ["c"]
    for copy in (added, replaced):
        assert (copy.id, dict(copy.metadata)) == (episode.id, {"agent": "x"})
    assert list(episode.steps) == ["a"]


def test_an_id_of_ones_own_is_kept():
    assert Episode({"a": np.zeros(3)}, id="train#7").id == "train#7"


@settings(max_examples=30)
@given(strategies.episodes(), st.randoms(use_true_random=False))
def test_the_digest_is_the_same_for_equal_content_however_it_lies_in_memory(episode, random):
    paths = list(episode.steps)
    random.shuffle(paths)
    strided = {path: np.repeat(episode.steps[path], 2, axis=0)[::2] for path in paths}
    again = Episode(strided)
    assert again.id == episode.id
    assert again.id == f"content:{content_digest(episode.steps)}"
    assert len(again.id) == len("content:") + 32


@settings(max_examples=30)
@given(strategies.episodes(), st.data())
def test_the_digest_depends_on_every_column(episode, data):
    path = data.draw(st.sampled_from(sorted(episode.steps)))
    column = episode.steps[path]
    others = {name: kept for name, kept in episode.steps.items() if name != path}
    changed = [others, {**others, path: column[:-1]}, {**others, f"{path}x": column}, {**others, path: column[None]}]
    if column.size:
        other_value = column.copy()
        flat = other_value.reshape(-1)
        index = data.draw(st.integers(0, flat.size - 1))
        flat[index] = flat[index] + b"x" if column.dtype == object else flat[index] == 0
        changed.append({**others, path: other_value})
    digests = [content_digest(columns) for columns in (episode.steps, *changed)]
    assert len(set(digests)) == len(digests)


def test_the_digest_depends_on_dtype_and_shape():
    zeros = [np.zeros(4, dtype) for dtype in ("f4", ">f4", "i4", "u4", "V4", "M8[s]", [("x", "f4")], [("y", "f4")])]
    shapes = [np.zeros(shape, np.int8) for shape in ((4,), (2, 2), (4, 1), (0,), (0, 3), (2, 0))]
    digests = [one(column) for column in (*zeros, *shapes)]
    assert len(set(digests)) == len(digests)


def test_the_digest_sees_where_a_text_ends():
    texts = [[b"ab", b"c"], [b"a", b"bc"], [b"abc", b""], ["é", "a"], ["éa", ""]]
    digests = [one(np.array(pair, object)) for pair in texts]
    assert len(set(digests)) == len(digests)


def test_text_as_str_and_as_bytes_is_the_same_text():
    assert one(np.array(["é"], object)) == one(np.array(["é".encode()], object))


def test_a_byte_view_is_no_copy():
    column = np.arange(6, dtype="<u2").reshape(2, 3)
    view = byte_view(column)
    column[0, 1] = 0x0201
    assert view.tolist() == [0, 0, 1, 2, 2, 0, 3, 0, 4, 0, 5, 0]


def test_columns_under_a_name_are_its_own_and_those_below():
    columns = {path: np.zeros(1) for path in ("a", "a/x", "a/y/z", "ab", "b/a")}
    assert list(columns_under(columns, "a")) == ["a", "a/x", "a/y/z"]
    assert columns_under(columns, "c") == {}
