"""Episodes: read-only columns, honest lengths and sizes, and ids that depend on everything in them."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb import episode as identity
from rlds2reverb.episode import (
    STEP_FIELDS,
    Copies,
    Episode,
    KnownEpisodes,
    Notice,
    Occurrences,
    byte_view,
    columns_under,
    content_digest,
    copy_name,
    faults,
    is_content,
    is_copy,
    is_under,
    metadata_columns,
    metadata_path,
    metadata_specs,
    note,
    number_of,
    place_of,
    repeated_ids,
    with_metadata,
)
from rlds2reverb.prepare.findings import Findings
from rlds2reverb.specs import ArraySpec, column_spec
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
        wanted = [name] * 2 if name else [Episode(other_episode.columns).id for other_episode in (changed, fewer)]
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


# Remarks of two kinds: notes on how data are read, and advice on faults.


def test_only_advice_rejects_strictly_and_only_what_is_not_allowed() -> None:
    advice, other = Notice("lost_records", "3 are missing", 3), Notice("space", "odd", path="action")
    every = (note("last_step", "it is repeated"), advice, other)
    assert faults(every) == [advice, other]
    assert faults(every, ["space"]) == [advice]
    findings = Findings(notices=every)
    assert findings.codes() == []
    assert findings.codes(strict=True) == ["lost_records", "space"]
    assert findings.codes(strict=True, allow=["space", "lost_records"]) == []


def test_a_remark_reads_as_kind_code_column_and_text() -> None:
    assert note("last_step", "it is repeated").line == "note last_step: it is repeated"
    assert Notice("space", "odd", 1, "action").line == 'advice space: column "action": odd'
    assert note("last_step", "x").as_dict() == {
        "code": "last_step",
        "text": "x",
        "count": 1,
        "path": "",
        "is_note": True,
    }


# Metadata as columns of the steps: any value repeated in every row, or left out when no column can hold it.

ROWS = 4


def make_episode(metadata: dict[str, Any], rows: int = ROWS) -> Episode:
    return Episode(strategies.episode(np.random.default_rng(0), rows).columns, metadata, "e")


@given(strategies.dtypes(), strategies.shapes(), st.integers(0, 2**32 - 1))
def test_an_array_is_in_every_row_as_it_is(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> None:
    value = strategies.array(np.random.default_rng(seed), dtype, shape)
    (column,) = metadata_columns(make_episode({"a/b": value}), ["a/b"]).values()
    assert (column.dtype, column.shape) == (dtype, (ROWS, *shape))
    for row in column:
        np.testing.assert_array_equal(row, value)
    assert metadata_specs(make_episode({"a/b": value})) == {"a/b": column_spec(column)}
    assert column.base is not None or not column.size  # a view, not copies
    assert not column.flags.writeable


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("Hü", np.array([b"H\xc3\xbc"], object)),
        (b"\x00\x00", np.array([b"\x00\x00"], object)),
        (np.bytes_(b"x"), np.array([b"x"], object)),
        (np.str_("x"), np.array([b"x"], object)),
        (np.array(["a", "bc"]), np.array([[b"a", b"bc"]], object)),
        (np.array([b"a", b"bc"]), np.array([[b"a", b"bc"]], object)),
        (7, np.array([7])),
        (True, np.array([True])),
        (0.5, np.array([0.5])),
        (2j, np.array([2j])),
        (np.float32(0.5), np.array([0.5], np.float32)),
    ],
)
def test_plain_values_become_arrays(value: Any, wanted: np.ndarray) -> None:
    (column,) = metadata_columns(make_episode({"a": value}, 1), ["a"]).values()
    assert column.dtype == wanted.dtype
    assert column.tolist() == wanted.tolist()


@pytest.mark.parametrize("value", [None, [1, 2], {}, 1 << 90, "\ud800", np.array([b"a", None], object), object()])
def test_what_no_column_holds_is_left_out(value: Any) -> None:
    one = make_episode({"a": value, "b": 1})
    assert list(metadata_specs(one)) == ["b"]
    assert list(metadata_columns(one, ["a", "b"])) == ["metadata/b"]


def test_only_what_is_asked_for_becomes_columns() -> None:
    one = make_episode({"a": 1, "b": 2})
    assert with_metadata(one, {}) is one
    spec = ArraySpec((), np.dtype(int))
    found = with_metadata(one, {"b": spec, "absent": spec})
    assert found.columns.keys() - one.columns.keys() == {metadata_path("b")}
    assert (found.id, dict(found.metadata)) == (one.id, dict(one.metadata))


@settings(max_examples=30)
@given(st.integers(0, 5), st.integers(0, 5))
def test_rows_are_those_of_is_first_where_columns_differ(first: int, flags: int) -> None:
    columns = {"observation": np.zeros(first), "is_first": np.zeros(flags, bool)}
    (column,) = metadata_columns(Episode(columns, {"a": 1}, "e"), ["a"]).values()
    assert len(column) == (flags or first)


# Names by content: counted, looked up, and put together from parts as one reading would.

CONTENTS = st.lists(st.sampled_from("abcdef").map(lambda one: f"content:{one}"), max_size=30)


@given(names=CONTENTS, merged_at=st.integers(1, 8))
def test_occurrences_are_counted_however_often_the_names_are_merged(names: list[str], merged_at: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identity, "_MERGED_AT", merged_at)
        occurrences, seen = Occurrences(), Counter[str]()
        for name in names:
            seen[name] += 1
            assert occurrences.count(name) == seen[name]
    assert occurrences.copies == len(names) - len(seen)


@given(st.dictionaries(st.text(st.characters(), max_size=8), st.integers(0, 2**32 - 1)), st.text(max_size=8))
def test_known_episodes_are_a_dict_that_can_be_sent(rows: dict[str, int], other: str) -> None:
    known = pickle.loads(pickle.dumps(KnownEpisodes.of(rows.items())))
    assert len(known) == len(rows)
    assert {name: known.get(name) for name in rows} == rows
    assert (other in known) == (other in rows)
    assert known.get(f"{other}|none") is None


def test_a_number_that_two_names_share_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "number_of", lambda name: 42)
    known = KnownEpisodes.of([("a", 1), ("b", 2)])
    assert [known.get(name) for name in "abc"] == [1, 2, None]


@given(CONTENTS, st.data())
def test_parts_that_count_for_themselves_come_to_the_names_of_one_reading(
    names: list[str], draw: st.DataObject
) -> None:
    cuts = sorted(draw.draw(st.sets(st.integers(0, len(names)), max_size=4)))
    parts = {at: names[start:stop] for at, (start, stop) in enumerate(zip([0, *cuts], [*cuts, len(names)]))}
    stored = {copy_name(name, number) for part in parts.values() for name, number in counted(part)}
    copies = Copies()
    order = draw.draw(st.permutations(list(parts)))
    for at in order:
        copies.take(at, [(place, number_of(name)) for place, name in enumerate(parts[at])])
    for at, found in copies.numbered().items():
        for place, number in found.items():
            name = copy_name(parts[at][place], number)
            assert name not in stored
            stored.add(name)
    assert stored == {copy_name(name, number) for name, number in counted(names)}


def counted(names: list[str]) -> list[tuple[str, int]]:
    occurrences = Occurrences()
    return [(name, occurrences.count(name)) for name in names]


def test_ids_that_callers_gave_are_no_contents() -> None:
    assert (is_content("content:ab"), is_content("mine")) == (True, False)
    assert [is_copy(name) for name in ("content:ab", "content:ab#2", "mine#2")] == [False, True, False]
    numbers = np.array([number_of(name) for name in ("content:a", "content:a", "x", "y", "x")], np.uint64)
    assert repeated_ids(numbers).tolist() == [number_of("x")]
    copies = Copies()
    assert [copies.take(part, [(0, number_of("x"))]) for part in range(2)] == [[False], [False]]
    assert copies.numbered() == {}
