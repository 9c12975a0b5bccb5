"""Extras in every view: the items are those without them, and each extra stands at the item's step or over its window."""

from __future__ import annotations

import doctest
import pickle
import re
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.cuts import Cut
from rlds2reverb.episode import STEP_FIELDS, Array, Episode, is_under, metadata_specs
from rlds2reverb.errors import ViewError
from rlds2reverb.formats.source import spec_of
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.specs import ArraySpec, differences, flatten, nested
from rlds2reverb.views import FROM_CONFIG_ONLY, VIEWS, view_from, view_of
from rlds2reverb.views import base as extras
from rlds2reverb.views.base import Extras, View, metadata_in_items, not_in_items, signature_of, wants_metadata
from rlds2reverb.views.prioritized import Prioritized
from rlds2reverb.views.requirements import Requirements
from rlds2reverb.views.slices import Slices
from rlds2reverb.views.trajectory import SequenceView, table_signature, two_step
from rlds2reverb.views.transition import Transition
from tests.support import reference, strategies
from tests.support.raising import outcome_of
from tests.support.views.cutting import items_of
from tests.support.views.every import EVERY, items_in
from tests.support.views.slow import Item, stacked, value, zeros

EVERY_VIEW = pytest.mark.parametrize("text", EVERY)
FLOAT64 = np.float64


def view_with(text: str, wanted: Any) -> View:
    """The view of the suite with these extras."""
    case, view = EVERY[text]
    return case.with_extras(view, wanted)


# What an item holds, row by row.


def column_of(episode: Episode, path: str) -> Array:
    """A step column, or a feature of the episode once per row."""
    if path in episode.columns:
        return episode.columns[path]
    feature = np.asarray(episode.metadata[path.removeprefix("metadata/")])
    return np.stack([feature] * len(episode)) if len(episode) else np.zeros((0, *feature.shape), feature.dtype)


def slow_extras(text: str, episodes: Sequence[Episode], paths: Sequence[str]) -> list[Item]:
    """The extras of every item, value by value."""
    case, view = EVERY[text]
    found = []
    for rows in case.rows_of_items(view, episodes):
        item: Item = {}
        for path in paths:
            column = column_of(episodes[0], path)
            values = [
                zeros(column) if row is None else value(column_of(episodes[number], path), row) for number, row in rows
            ]
            one = stacked(values, column) if case.is_window else values[0]
            item[f"{case.extras_field}/{path}"] = (
                one.astype(np.float32) if case.narrows and one.dtype == FLOAT64 else one
            )
        found.append(item)
    return found


# Random episodes and wishes.

FURTHER = ("language_instruction", "info/a", "info/b/c", "info/b/d", "td_error", "camera/0/depth")
FEATURES = ("language_instruction", "episode_metadata/episode_id", "episode_metadata/seed", "task")


@st.composite
def situations(draw: st.DrawFn, text: str, most: int = 3) -> tuple[list[Episode], list[str], list[str]]:
    """Episodes of one spec with further columns and metadata, what is wanted of them, and the paths that this means."""
    spec = st.tuples(strategies.dtypes(), strategies.shapes())
    case, view = EVERY[text]
    specs = case.specs(view)
    base = draw(strategies.column_specs() if specs is None else specs)
    further = draw(st.dictionaries(st.sampled_from(FURTHER), spec, max_size=4))
    features = draw(st.dictionaries(st.sampled_from(FEATURES), spec, max_size=3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    episodes = []
    for number in range(draw(st.integers(1, most))):
        one = draw(strategies.episodes(min_steps=1, max_steps=9, specs={**base, **further}))
        metadata = {path: strategies.array(rng, dtype, shape) for path, (dtype, shape) in features.items()}
        episodes.append(Episode(one.columns, metadata, f"e{number}"))
    there = [*further, *(f"metadata/{path}" for path in features)]
    if case.holds_all:
        there = [path for path in there if path not in further]
    nests = {"/".join(path.split("/")[:depth]) for path in there for depth in range(1, path.count("/") + 2)}
    wanted = draw(st.lists(st.sampled_from(sorted(nests)), max_size=3)) if nests else []
    meant = [path for path in there if any(is_under(path, name) for name in wanted)]
    if draw(st.booleans()):
        wanted.append("all")
        meant = [path for path in there if path in meant or path in further]
    return episodes, wanted, meant


def all_items(view: View, episodes: Sequence[Episode]) -> tuple[list[str], list[list[Array]]]:
    """The signature's columns, and the items of all episodes in that order."""
    order = list(flatten(signature(view, episodes[0])))
    return order, items_in(view, episodes, order)


def signature(view: View, episode: Episode) -> Any:
    return signature_of(view, filled_spec(spec_of(episode)), nested(metadata_specs(episode)))


@EVERY_VIEW
@settings(max_examples=12)
@given(data=st.data())
def test_items_are_those_without_extras_and_the_extras_of_the_reference(text: str, data: st.DataObject) -> None:
    plain = view_with(text, None)
    episodes, wanted, meant = data.draw(situations(text))
    view = view_with(text, wanted)
    order, found = all_items(view, episodes)
    plain_order, plain_items = all_items(plain, episodes)
    slow = slow_extras(text, episodes, meant)
    assert len(found) == len(plain_items) == len(slow)
    expected = [{**dict(zip(plain_order, item)), **more} for item, more in zip(plain_items, slow)]
    assert set(order) == set(plain_order) | {path for item in slow for path in item} or not found
    reference.assert_same_items(found, [[item[path] for path in order] for item in expected])


@EVERY_VIEW
@settings(max_examples=4)
@given(data=st.data())
def test_items_have_the_dtypes_and_shapes_of_the_signature(text: str, data: st.DataObject) -> None:
    episodes, wanted, _ = data.draw(situations(text))
    view = view_with(text, wanted)
    spec = signature(view, episodes[0])
    assert differences(spec, table_signature(spec)) == []
    leaves = flatten(spec)
    for item in all_items(view, episodes)[1]:
        for column, leaf in zip(item, leaves.values()):
            assert column.dtype == leaf.dtype
            assert differences(ArraySpec(column.shape, column.dtype), leaf) == []


@EVERY_VIEW
@settings(max_examples=4)
@given(data=st.data())
def test_anchors_priorities_and_steps_stay(text: str, data: st.DataObject) -> None:
    """So items have the places in their episodes that they have without extras; the label alone changes their keys."""
    episodes, wanted, meant = data.draw(situations(text))
    with_them, without = view_with(text, wanted).cut(episodes[0]), view_with(text, None).cut(episodes[0])
    for name in ("anchors", "priorities", "steps", "origin"):
        np.testing.assert_array_equal(getattr(with_them, name), getattr(without, name))
    assert with_them.row_count == without.row_count
    assert {len(column) for column in with_them.rows.values()} == {with_them.row_count}
    assert {field.column for field in with_them.fields.values()} == set(with_them.rows)
    assert len(with_them.fields) - len(without.fields) == len(meant)


@EVERY_VIEW
def test_all_of_nothing_adds_nothing(text: str) -> None:
    episode = plain_episode(text, {})
    view, plain = view_with(text, "all"), view_with(text, None)
    assert signature(view, episode) == signature(plain, episode)
    reference.assert_same_items(items_of(view.cut(episode)), items_of(plain.cut(episode)))


def plain_episode(text: str, further: dict[str, Array], metadata: dict[str, Any] | None = None) -> Episode:
    """Nine rows that every view takes."""
    case, view = EVERY[text]
    episode = case.episode(view, 9, episode_id="e")
    return Episode({**episode.columns, **further}, metadata or {}, "e")


# What is asked for.


def texts(values: Sequence[bytes]) -> Array:
    return np.array(values, object)


MORE: dict[str, Array] = {"language": texts([b"go"] * 9), "info/a": np.arange(9.0), "info/b": np.arange(9)}


@EVERY_VIEW
def test_a_path_that_leads_to_nothing_is_refused_with_what_there_is(text: str) -> None:
    episode = plain_episode(text, MORE, {"task": b"x"})
    there = "metadata/task" if EVERY[text][0].holds_all else "info/a, info/b, language, metadata/task"
    with pytest.raises(ViewError, match=rf'extras: "metadata/no": expected a step column .* found {there}$'):
        signature(view_with(text, ["metadata/no"]), episode)
    with pytest.raises(ViewError, match=r'extras: "lang": expected a step column'):
        signature(view_with(text, ["lang"]), episode)
    with pytest.raises(ViewError, match=r'extras: "metadata/no": expected a step column'):
        view_with(text, ["metadata/no"]).cut(episode)


@EVERY_VIEW
def test_messages_begin_with_the_name_that_the_view_was_made_by(text: str) -> None:
    """Also of `two_step`, which is a sequence, and stays one where it is compared, sent to a worker or stored."""
    episode, name = plain_episode(text, MORE), re.split("[:,]", text)[0]
    for extra in ("lang", "observation"):
        view = two_step(extras=[extra]) if name == "two_step" else view_with(text, [extra])
        for same in (view, pickle.loads(pickle.dumps(view))):
            with pytest.raises(ViewError, match=f'^{name}: extras: "{extra}"'):
                signature(same, episode)
    with pytest.raises(ViewError, match=r"^two_step: extras"):
        signature(two_step(extras="lang"), episode)
    with pytest.raises(ViewError, match=r"^sequence: extras"):
        signature(SequenceView(extras="lang"), episode)
    assert two_step(extras="lang") == SequenceView(extras="lang")
    assert two_step(extras="lang").label == SequenceView(extras="lang").label


@EVERY_VIEW
def test_what_the_items_hold_is_refused(text: str) -> None:
    episode = plain_episode(text, MORE)
    with pytest.raises(ViewError, match=r'extras: "observation" is in the items already; leave it out'):
        signature(view_with(text, ["observation"]), episode)


def test_slices_hold_every_step_column() -> None:
    with pytest.raises(ViewError, match='slices: extras: "language" is in the items already'):
        signature(Slices(extras="language"), plain_episode("slices", MORE))


def test_a_field_of_rlds_that_the_items_do_not_hold_can_be_asked_for() -> None:
    episode = plain_episode("goal", MORE)
    cut = view_of("goal:extras=reward+discount").cut(episode)
    np.testing.assert_array_equal(cut.field_rows("extras/reward"), episode.columns["reward"])
    assert "extras/discount" in cut.fields
    assert (
        set(view_of("transition:extras=all").cut(episode).fields) & {f"extras/{name}" for name in STEP_FIELDS} == set()
    )


@pytest.mark.parametrize("wanted", ["all", "info", "each"])
def test_twenty_thousand_columns_take_seconds(wanted: str) -> None:
    """Not minutes, as when each is compared with each."""
    columns = {f"info/c{number}": np.zeros(9) for number in range(20_000)}
    episode, began = plain_episode("transition", columns), time.process_time()
    view = Transition(extras=list(columns) if wanted == "each" else wanted)
    spec = filled_spec(spec_of(episode))
    assert len(view.signature(spec)["extras"]["info"]) == len(columns)
    assert not_in_items(view, spec) == ("discount", "is_first")
    assert {f"extras/{path}" for path in columns} <= view.cut(episode).fields.keys()
    assert time.process_time() - began < 30


def test_a_path_of_steps_and_of_metadata_is_refused() -> None:
    both = plain_episode("transition", {"metadata/task": np.arange(9)}, {"task": b"x", "seed": 1})
    for wanted in (["metadata"], ["metadata/task"], ["all", "metadata/seed"]):
        with pytest.raises(ViewError, match='"metadata" is a field of the steps, and of the episode, too; rename it'):
            signature(Transition(extras=wanted), both)
    assert signature(Transition(extras="all"), both)["extras"] == {"metadata": {"task": ArraySpec((), np.dtype(int))}}
    assert signature(Transition(extras="metadata/seed"), both)["extras"].keys() == {"metadata"}


def test_policy_info_of_the_steps_stays_beside_extras() -> None:
    episode = plain_episode("two_step", {**MORE, "policy_info/log_probability": np.arange(9.0)})
    info = signature(two_step(extras="language"), episode).policy_info
    assert set(flatten(info)) == {"log_probability", "language"}
    reference.assert_same_items(
        [[item[3] for item in all_items(two_step(extras="language"), [episode])[1]]],
        [[texts([b"go", b"go"])] * 8],
    )
    with pytest.raises(ViewError, match='extras: "policy_info" is in the items already'):
        signature(two_step(extras="policy_info"), episode)


@pytest.mark.parametrize(
    ("further", "message"),
    [
        ({"policy_info": np.arange(9)}, "that of the steps is no dict"),
        ({"policy_info/language": np.arange(9)}, "that of the steps has language already"),
    ],
)
def test_policy_info_with_which_extras_do_not_go_is_refused(further: dict[str, Array], message: str) -> None:
    with pytest.raises(ViewError, match=message):
        signature(two_step(extras="language"), plain_episode("two_step", {**MORE, **further}))


def test_items_that_have_a_field_extras_take_none() -> None:
    episode = plain_episode("slices", {**MORE, "extras/x": np.arange(9)}, {"task": b"x"})
    views: list[View] = [Slices(extras="metadata"), Requirements({"extras": {"data_col": "obs"}}, extras="language")]
    for view in views:
        with pytest.raises(ViewError, match='the items have a field "extras" already; rename it'):
            signature(view, episode)
    assert "x" in signature(Transition(extras="extras"), episode)["extras"]["extras"]


def test_a_requirement_of_a_step_field_called_extras_is_not_the_extra() -> None:
    episode = plain_episode("requirements", {"language": np.arange(9), "extras/language": np.arange(9) + 100})
    view = Requirements({"said": {"data_col": "extras"}}, extras="language")
    cut = view.cut(episode)
    assert cut.field_rows("extras/language").tolist()[:2] == [0, 1]
    assert cut.field_rows("said/language").tolist()[:2] == [100, 101]


# How it is written.


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, ()),
        ((), ()),
        ("all", ("all",)),
        ("a", ("a",)),
        ("b+a", ("a", "b")),
        (["b", "a", "b"], ("a", "b")),
        (["a/b", "a", "ab"], ("a", "ab")),
        (("all", "metadata/x"), ("all", "metadata/x")),
        (["a+b"], ("a+b",)),
    ],
)
def test_equal_wishes_are_equal(given: Any, wanted: tuple[str, ...]) -> None:
    assert Extras.of("v", given) == wanted
    assert Transition(extras=given) == Transition(extras=Extras(wanted))


@pytest.mark.parametrize("given", ["", "a+", ["a", ""], [1], 3, True, {"a": 1}, [["a"]]])
def test_what_is_no_path_is_refused(given: Any) -> None:
    with pytest.raises(ViewError, match=r'transition: extras .*: expected "all", paths of step columns'):
        Transition(extras=given)


@pytest.mark.parametrize("name", sorted(set(VIEWS) - set(FROM_CONFIG_ONLY)))
def test_every_view_is_written_in_three_ways(name: str) -> None:
    of_text = view_of(f"{name}:extras=language+metadata/task")
    assert of_text == view_from({"view": name, "extras": ["metadata/task", "language"]})
    assert of_text == VIEWS[name](extras=["language", "metadata/task"])
    assert of_text.label.endswith("extras=language+metadata/task")
    assert VIEWS[name](extras=()).label == VIEWS[name]().label


LISTS = st.lists(st.text(alphabet='ab+,/"', min_size=1, max_size=4), max_size=3)


@given(LISTS, LISTS)
def test_labels_are_equal_exactly_when_wishes_are(one: list[str], other: list[str]) -> None:
    views = [Transition(extras=one), Transition(extras=other)]
    assert (views[0].label == views[1].label) == (views[0] == views[1])
    assert Requirements({"obs": {}}, extras=one).label.startswith(Requirements({"obs": {}}).label)


def test_a_priority_goes_with_extras() -> None:
    view = view_of("transition:extras=language+metadata/task,priority=info/a")
    assert view == Prioritized(Transition(extras=["language", "metadata/task"]), "info/a")
    episode = plain_episode("transition", MORE, {"task": b"x"})
    assert wants_metadata([view])
    assert set(flatten(signature(view, episode)["extras"])) == {"language", "metadata/task"}
    assert view.cut(episode).priorities.tolist() == list(range(8))
    assert not_in_items(view, spec_of(episode)) == ("discount", "info/b", "is_first")


def test_the_metadata_of_all_views_is_known() -> None:
    spec = {"task": ArraySpec((), np.dtype(object)), "seed": {"a": ArraySpec((), np.dtype(int))}}
    views: list[View] = [Transition(extras="metadata/seed"), two_step(extras="all"), EVERY["requirements"][1]]
    assert list(metadata_in_items(views, spec)) == ["seed/a"]
    assert not wants_metadata(views[1:])


class Own:
    """A view of a user, whose `signature` knows nothing of metadata; its attribute `extras` is something else."""

    label = "own"
    extras = ("metadata/task",)

    def signature(self, step_spec: Any) -> Any:
        return step_spec

    def reads(self, step_spec: Any) -> tuple[str, ...]:
        return ()

    def cut(self, episode: Episode) -> Cut:
        raise NotImplementedError


def test_a_view_of_another_kind_is_asked_as_ever() -> None:
    own: Any = Own()  # its signature is not that of a `View`
    assert signature_of(own, {"a": 1}, {"task": 1}) == {"a": 1}
    assert not wants_metadata([own])


def test_the_examples_of_the_docstring_run() -> None:
    results = doctest.testmod(extras)
    assert results.attempted > 0
    assert results.failed == 0


@given(
    st.lists(
        st.sampled_from([*FURTHER, "observation", "reward", "discount", "metadata/task", "all", "info"]), max_size=3
    )
)
def test_what_is_left_out_is_what_the_items_do_not_hold(wanted: list[str]) -> None:
    episode = plain_episode("transition", MORE, {"task": b"x"})
    view = Transition(extras=wanted)
    if isinstance(outcome_of(ViewError, lambda: signature(view, episode)), ViewError):
        return
    held = {path.removeprefix("extras/") for path in view.cut(episode).fields}
    made = {"reward", "is_last", "is_terminal"}
    assert set(not_in_items(view, spec_of(episode))) == set(episode.columns) - held - made
