"""Episodes: read-only columns, honest lengths and sizes, and ids that depend on everything in them."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.episode import STEP_FIELDS, Episode, byte_view, columns_under, content_digest, is_under, place_of
from tests.support import strategies


def one(column: np.ndarray, path: str = "a") -> str:
    return content_digest({path: column})


def test_the_seven_step_fields_stand_in_tf_agents_order() -> None:
    assert STEP_FIELDS == ("observation", "action", "reward", "discount", "is_first", "is_last", "is_terminal")


@settings(max_examples=30)
@given(strategies.episodes())
def test_columns_and_metadata_cannot_be_changed(episode: Episode) -> None:
    for column in episode.columns.values():
        assert not column.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            column[...] = column
    with pytest.raises(TypeError):
        cast("dict[str, Any]", episode.columns)["new"] = np.zeros(3)
    with pytest.raises(TypeError):
        cast("dict[str, Any]", episode.metadata)["new"] = 1
    with pytest.raises(AttributeError):
        cast(Any, episode).id = "other"


def test_the_callers_array_stays_writable_and_is_not_copied() -> None:
    column = np.zeros(3)
    episode = Episode({"a": column})
    column[0] = 1
    assert episode.columns["a"][0] == 1


def test_the_callers_dicts_are_copied() -> None:
    steps, metadata = {"a": np.zeros(3)}, {"agent": "x"}
    episode = Episode(steps, metadata)
    steps["b"], metadata["agent"] = np.zeros(3), "y"
    assert list(episode.columns) == ["a"]
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
def test_what_is_no_column_is_refused(column: Any, message: str) -> None:
    with pytest.raises(TypeError) as error:
        Episode({"a": column})
    assert str(error.value) == message


def test_the_length_is_that_of_the_first_column() -> None:
    assert len(Episode({"a": np.zeros((3, 2)), "b": np.zeros(4)})) == 3
    assert len(Episode({})) == 0


def test_the_repr_shows_id_dtypes_and_shapes() -> None:
    episode = Episode({"a": np.zeros((3, 2), np.float32), "b": np.array([b"x"], object)}, id="train#0")
    assert repr(episode) == "Episode('train#0', 3 steps, a: float32[3, 2], b: object[1])"


def test_bytes_count_the_text_itself() -> None:
    assert Episode({"a": np.zeros((3, 2), np.float32), "b": np.array([b"xy", b"", b"z"], object)}).nbytes == 24 + 3


def test_episodes_are_told_apart_by_identity() -> None:
    episode = Episode({"a": np.zeros(2)})
    same = episode
    assert episode == same
    assert episode != Episode({"a": np.zeros(2)})
    assert len({episode, same}) == 1


def test_copies_keep_a_given_id_and_metadata_and_are_named_by_their_own_content() -> None:
    columns = {"a": np.zeros(2), "b": np.ones(2)}
    for name in ("mine", ""):
        episode = Episode(columns, {"agent": "x"}, name)
        changed, fewer = episode.with_columns(a=np.ones(2)), episode.with_only_columns({"b": columns["b"]})
        assert dict(changed.metadata) == dict(fewer.metadata) == {"agent": "x"}
        assert set(fewer.columns) == {"b"}
        wanted = [name] * 2 if name else [Episode(one.columns).id for one in (changed, fewer)]
        assert [changed.id, fewer.id] == wanted
        assert episode.with_columns(a=np.zeros(2)).id == episode.id
        assert replace(episode, columns={}).id == episode.id


@pytest.mark.parametrize(
    ("metadata", "recorded"),
    [
        ({}, None),
        ({"agent": b"x"}, None),
        ({"episode_id": b"run 7"}, "run 7"),
        ({"episode_id": np.int64(7)}, "7"),
        ({"episode_id": np.array([7])}, "7"),
        ({"episode_id": np.array(b"seven", object)}, "seven"),
        ({"episode_metadata/episode_id": "größe"}, "größe"),
        ({"episode_metadata/episode_id": b"nested", "episode_id": b"own"}, "own"),
        ({"episode_id": np.arange(3)}, None),
        ({"episode_id": b""}, None),
        ({"episode_id": b"two\nlines"}, "'two\\nlines'"),
        ({"episode_id": b"\xff"}, "\\xff"),
        ({"episode_id": b"x" * 1000}, "x" * 200 + "..."),
        ({"not_episode_id": b"x"}, None),
    ],
)
def test_the_datasets_own_name_of_an_episode_is_one_line_of_its_metadata(
    metadata: dict[str, Any], recorded: str | None
) -> None:
    episode = Episode({"a": np.zeros(2)}, metadata, "train#1")
    assert episode.recorded_id == recorded
    assert episode.title == ("train#1" if recorded is None else f"train#1 (episode_id {recorded})")


def test_an_id_of_ones_own_is_kept() -> None:
    assert Episode({"a": np.zeros(3)}, id="train#7").id == "train#7"


@settings(max_examples=30)
@given(strategies.episodes(), st.randoms(use_true_random=False))
def test_the_digest_is_the_same_for_equal_content_however_it_lies_in_memory(episode: Episode, random: Random) -> None:
    paths = list(episode.columns)
    random.shuffle(paths)
    strided = {path: np.repeat(episode.columns[path], 2, axis=0)[::2] for path in paths}
    again = Episode(strided)
    assert again.id == episode.id
    assert again.id == f"content:{content_digest(episode.columns)}"
    assert len(again.id) == len("content:") + 32


@settings(max_examples=30)
@given(strategies.episodes(), st.data())
def test_the_digest_depends_on_every_column(episode: Episode, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(episode.columns)))
    column = episode.columns[path]
    others = {name: kept for name, kept in episode.columns.items() if name != path}
    changed = [others, {**others, path: column[:-1]}, {**others, f"{path}x": column}, {**others, path: column[None]}]
    if column.size:
        other_value = column.copy()
        flat = other_value.reshape(-1)
        index = data.draw(st.integers(0, flat.size - 1))
        flat[index] = flat[index] + b"x" if column.dtype == object else flat[index] == 0
        changed.append({**others, path: other_value})
    digests = [content_digest(columns) for columns in (episode.columns, *changed)]
    assert len(set(digests)) == len(digests)


def test_the_digest_depends_on_dtype_and_shape() -> None:
    dtypes: list[Any] = ["f4", ">f4", "i4", "u4", "V4", "M8[s]", [("x", "f4")], [("y", "f4")]]
    zeros = [np.zeros(4, dtype) for dtype in dtypes]
    shapes = [np.zeros(shape, np.int8) for shape in ((4,), (2, 2), (4, 1), (0,), (0, 3), (2, 0))]
    digests = [one(column) for column in (*zeros, *shapes)]
    assert len(set(digests)) == len(digests)


def test_the_digest_sees_where_a_text_ends() -> None:
    texts = [[b"ab", b"c"], [b"a", b"bc"], [b"abc", b""], ["é", "a"], ["éa", ""]]
    digests = [one(np.array(pair, object)) for pair in texts]
    assert len(set(digests)) == len(digests)


def test_text_as_str_and_as_bytes_is_the_same_text() -> None:
    assert one(np.array(["é"], object)) == one(np.array(["é".encode()], object))


def test_a_byte_view_is_no_copy() -> None:
    column = np.arange(6, dtype="<u2").reshape(2, 3)
    view = byte_view(column)
    column[0, 1] = 0x0201
    assert view.tolist() == [0, 0, 1, 2, 2, 0, 3, 0, 4, 0, 5, 0]


def test_columns_under_a_name_are_its_own_and_those_below() -> None:
    columns = {path: np.zeros(1) for path in ("a", "a/x", "a/y/z", "ab", "b/a")}
    assert list(columns_under(columns, "a")) == ["a", "a/x", "a/y/z"]
    assert columns_under(columns, "c") == {}


@pytest.mark.parametrize(("path", "under"), [("a", True), ("a/b", True), ("ab", False), ("b/a", False), ("", False)])
def test_a_path_is_under_its_own_name_and_those_above(path: str, under: bool) -> None:
    assert is_under(path, "a") is under


def test_the_place_of_an_array_is_that_of_the_very_array() -> None:
    first, equal = np.arange(3), np.arange(3)
    among = [first]
    assert [place_of(first, among), place_of(equal, among), place_of(equal, among)] == [0, 1, 1]
    assert len(among) == 2
