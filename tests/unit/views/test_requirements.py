"""RLlib's view requirements: states, columns that only a sampler or a policy makes, nested columns."""

from __future__ import annotations

import pickle
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlds2reverb
from rlds2reverb.episode import Array, Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.formats.source import spec_of
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.specs import Nest, flatten
from rlds2reverb.views.base import notices_of
from rlds2reverb.views.fragments import Fragments
from rlds2reverb.views.prioritized import Prioritized
from rlds2reverb.views.requirements import MADE_BY_POLICIES, Requirements, ViewRequirement
from tests.support import strategies
from tests.support.views.cutting import field_value


def recorded(rows: int, **columns: Array) -> Episode:
    """An episode with these columns beside a plain one's."""
    return strategies.episode(np.random.default_rng(rows), rows).with_columns(**columns)


def nested_episode(rows: int = 5) -> Episode:
    """An episode whose observation and action are nests; row t of every column holds numbers of its own."""
    flags = {
        "is_first": np.arange(rows) == 0,
        "is_last": np.arange(rows) == rows - 1,
        "is_terminal": np.zeros(rows, bool),
    }
    steps = np.arange(rows, dtype=np.float32)
    columns = {
        "observation/arm/joints": steps[:, None] + np.array([10, 20], np.float32),
        "observation/arm/grip": steps + 100,
        "observation/camera": steps + 200,
        "action/arm": steps + 300,
        "reward": steps + 400,
        "policy_info/logp": steps + 500,
    }
    return Episode({**columns, **flags}, {}, "nested")


def values(view: Any, episode: Episode) -> dict[str, Array]:
    """Path of a field -> its values of all items, stacked."""
    cut = view.cut(episode).in_order(list(flatten(view.signature(filled_spec(spec_of(episode))))))
    return {
        path: np.stack([field_value(cut, field, number) for number in range(len(cut.anchors))])
        for path, field in cut.fields.items()
    }


def signature(view: Any, episode: Episode) -> Nest:
    return view.signature(filled_spec(spec_of(episode)))


# States.

STATES = st.lists(st.floats(-4, 4, width=32), min_size=2, max_size=2)


@given(
    st.integers(2, 6), st.lists(st.integers(-4, 2), min_size=1, max_size=3, unique=True), st.integers(1, 3), STATES, st.booleans()
)  # fmt: skip
def test_before_the_first_step_stands_the_initial_state(
    rows: int, shift: list[int], repeat: int, initial: list[float], by_name: bool
) -> None:
    states = np.arange(1, 2 * rows + 1, dtype=np.float32).reshape(rows, 2)
    episode = recorded(rows, state_out_0=-states, state_out_1=states)
    required = {"state_in_1": {"data_col": "state_out_1", "shift": shift, "batch_repeat_value": repeat}}
    by_name &= min(shift) < 0  # else no requirement reads it, and the name is refused
    view = Requirements(required, initial_state={"state_out_1": initial} if by_name else [[9, 9, 9], initial])
    found = values(view, episode)["state_in_1"]
    for t in range(rows - 1):
        for place, offset in enumerate(shift):
            row = t // repeat * repeat + offset
            before, after = np.array(initial, np.float32), np.zeros(2, np.float32)
            expected = before if row < 0 else after if row >= rows - 1 else states[row]
            np.testing.assert_array_equal(found[t] if len(shift) == 1 else found[t][place], expected)


@pytest.mark.parametrize("shift", [-1, "-3:-1"])
def test_no_state_of_the_future_stands_before_the_first_step(shift: Any) -> None:
    episode = recorded(4, state_out_0=np.arange(1, 5, dtype=np.float32))
    view = Requirements({"state_in_0": {"data_col": "state_out_0", "shift": shift}, "state_out_0": {}})
    found = values(view, episode)
    np.testing.assert_array_equal(found["state_out_0"], [1, 2, 3])
    assert not found["state_in_0"][0].any()
    assert view.label.endswith(",zero=['state_out_0']")


def test_a_nested_state_begins_with_a_number_or_with_values_by_name() -> None:
    states = {"state_out_0/h": np.ones((3, 2), np.float32), "state_out_0/c": np.ones(3, np.float32)}
    episode = recorded(3, **states)
    required = {"state_in": {"data_col": "state_out_0", "shift": -1}}
    same = values(Requirements(required, initial_state=[0.5]), episode)
    np.testing.assert_array_equal(same["state_in/h"], [[0.5, 0.5], [1.0, 1.0]])
    np.testing.assert_array_equal(same["state_in/c"], [0.5, 1.0])
    apart = values(Requirements(required, initial_state=[{"h": [2, 3]}]), episode)
    np.testing.assert_array_equal(apart["state_in/h"], [[2, 3], [1, 1]])
    np.testing.assert_array_equal(apart["state_in/c"], [0, 1])
    one = values(Requirements({"h": {"data_col": "state_out_0/h", "shift": -1}}, initial_state=[0.5]), episode)
    np.testing.assert_array_equal(one["h"], [[0.5, 0.5], [1.0, 1.0]])


def test_the_label_says_which_initial_state_unless_it_is_zero() -> None:
    required = {"state_in_0": {"data_col": "state_out_0", "shift": -1}}
    plain = Requirements(required)
    for zeros in (None, [], [0], [0.0, 3], [np.zeros(4)], {"state_out_0": [0, 0]}):
        assert Requirements(required, initial_state=zeros).label == plain.label
    others = {Requirements(required, initial_state=[value]).label for value in (1, 2, [1, 2])}
    assert len({plain.label, *others}) == 4
    filled = Requirements({"state_in_0": {**required["state_in_0"], "fill": "zero"}})
    assert filled.label == 'requirements:{"state_in_0": ["state_out_0", [-1], 1, "zero"]},zero=[]'
    assert Requirements({"state_out_0": {}}).label == 'requirements:{"state_out_0": ["state_out_0", [0], 1]},zero=[]'
    view = Requirements(required, initial_state=[2])
    assert pickle.loads(pickle.dumps(view)).label == view.label
    assert "initial_state={'state_out_0': 2}" in repr(view)


@pytest.mark.parametrize(
    ("initial", "message"),
    [
        (3, "expected a list of one value per state, or a mapping"),
        ({1: 2}, "expected the names of columns"),
        (
            {"state_out_7": 2},
            'of "state_out_7": no requirement reads that column before the first step; they read state_out_0',
        ),
        (["much"], "expected finite numbers"),
        ([float("nan")], "expected finite numbers"),
        ([[[1, 2], [3]]], "expected a number or an array"),
    ],
)
def test_initial_states_that_make_no_sense_are_refused(initial: Any, message: str) -> None:
    with pytest.raises(ViewError, match=f"requirements: initial_state.*{message}"):
        Requirements({"state_in_0": {"data_col": "state_out_0", "shift": -1}}, initial_state=initial)


@pytest.mark.parametrize(
    ("state", "initial"),
    [(np.zeros((3, 2), np.float32), [1, 2, 3]), (np.zeros(3, np.int64), 0.5), (np.array([b""] * 3, object), 1)],
)
def test_initial_states_that_fit_no_row_are_refused(state: Array, initial: Any) -> None:
    episode = recorded(3, state_out_0=state)
    view = Requirements({"state_in_0": {"data_col": "state_out_0", "shift": -1}}, initial_state=[initial])
    for use in (lambda: signature(view, episode), lambda: view.cut(episode)):
        with pytest.raises(ViewError, match=r'requirements: initial_state of "state_out_0": expected a number or'):
            use()


def test_initial_states_beyond_the_dtype_and_of_a_leaf_that_is_not_there_are_refused() -> None:
    required = {"state_in": {"data_col": "state_out", "shift": -1}}
    episode = recorded(3, **{"state_out/h": np.ones((3, 2), np.float16)})
    with pytest.raises(ViewError, match=r'"state_out/h": 1000000.0 is beyond float16'):
        signature(Requirements(required, initial_state={"state_out": {"h": 1e6}}), episode)
    with pytest.raises(ViewError, match=r'"state_out/hx": the steps have state_out/h there.*did you mean'):
        signature(Requirements(required, initial_state={"state_out": {"hx": 1.0}}), episode)
    assert not signature(Requirements({"obs": {}, **required}, initial_state={"state_out/h": 1.0}), recorded(3)).get(
        "state_in"
    )


# What is made, and what is left out.


@pytest.mark.parametrize(
    ("index", "expected"),
    [(3, 3), (np.int64(2), 2), (np.uint8(1), 1), ("2", 0), (True, 0), (1.5, 0), (np.arange(2), 0)],
)
def test_an_agent_has_the_index_of_its_metadata(index: Any, expected: int) -> None:
    view = Requirements({"agent_index": {}})
    episode = replace(recorded(3), metadata={"agent_index": index})
    assert values(view, episode)["agent_index"].tolist() == [expected] * 2
    own = replace(recorded(3, agent_index=np.full(3, 7)), metadata={"agent_index": index})
    assert values(view, own)["agent_index"].tolist() == [7] * 2


def test_numbers_of_the_episode_are_made_where_the_steps_have_none() -> None:
    episode = recorded(4)
    view = Requirements({name: {} for name in ("eps_id", "unroll_id", "agent_index", "env_id", "t")})
    found = values(view, episode)
    assert all(column.dtype == np.int64 for column in found.values())
    fragment = values(Fragments(length=3), episode)
    np.testing.assert_array_equal(found["eps_id"], fragment["eps_id"][0])
    np.testing.assert_array_equal(found["t"], [0, 1, 2])
    assert not any(found[name].any() for name in ("unroll_id", "agent_index", "env_id"))
    own = values(view, recorded(4, eps_id=np.full(4, 77, np.int32)))
    assert own["eps_id"].tolist() == [77] * 3
    assert own["eps_id"].dtype == np.int32


@given(st.sets(st.sampled_from(sorted(MADE_BY_POLICIES | {"state_in_0", "state_out_1"})), min_size=1))
def test_what_only_a_policy_makes_is_left_out_and_named(names: set[str]) -> None:
    episode = recorded(4)
    view = Requirements({name: {} for name in ("obs", "rewards", "terminateds", "truncateds", *sorted(names))})
    spec = filled_spec(spec_of(episode))
    assert view.left_out(spec) == Prioritized(view, "reward").left_out(spec) == tuple(sorted(names))
    assert {path.split("/")[0] for path in values(view, episode)} == {"obs", "rewards", "terminateds", "truncateds"}
    (notice,) = notices_of(view, spec)
    assert notice.is_note
    assert f"items have no {', '.join(sorted(names))}: " in notice.text
    full = recorded(4, **{name: np.arange(4) for name in names})
    assert view.left_out(filled_spec(spec_of(full))) == ()
    assert notices_of(view, filled_spec(spec_of(full))) == ()
    assert names <= values(view, full).keys()


def test_rllibs_own_requirements_and_optional_ones_may_be_absent() -> None:
    theirs = SimpleNamespace(data_col=None, shift=0, used_for_training=True)
    view = Requirements({"obs": theirs, "of_a_loss": theirs, "mine": {"optional": True}})
    episode = recorded(4)
    assert view.left_out(filled_spec(spec_of(episode))) == ("of_a_loss", "mine")
    kept: dict[str, Any] = {name: {} for name in ("obs", "rewards", "terminateds", "truncateds")}
    assert set(signature(view, episode)) == set(kept)
    assert view.label == Requirements({**kept, "of_a_loss": {}, "mine": {}}).label
    with pytest.raises(ViewError, match='"of_a_loss" reads "of_a_loss", which the steps lack'):
        signature(Requirements({"obs": {}, "of_a_loss": {}}), episode)


def test_rewards_and_ends_are_added_to_the_requirements_of_a_model_of_rllib() -> None:
    theirs = SimpleNamespace(data_col=None, shift=0, used_for_training=True)
    never = SimpleNamespace(data_col=None, shift=0, used_for_training=False)
    assert list(Requirements({"obs": theirs}).requirements) == ["obs", "rewards", "terminateds", "truncateds"]
    assert list(Requirements({"obs": theirs, "rewards": never}).requirements) == ["obs", "terminateds", "truncateds"]
    assert list(Requirements({"obs": {}}).requirements) == ["obs"]


def test_infos_have_a_last_row_as_observations_have() -> None:
    texts, numbers = np.array([b"a", b"b", b"c", b"d"], object), np.arange(4)
    episode = recorded(4, infos=texts)
    view = Requirements({"infos": {}, "next_infos": {"data_col": "infos", "shift": 1}})
    assert values(view, episode)["infos"].tolist() == [b"a", b"b", b"c"]
    assert values(view, episode)["next_infos"].tolist() == [b"b", b"c", b"d"]
    nested_view = Requirements({"ahead": {"data_col": "infos/x", "shift": "1:2"}})
    assert values(nested_view, recorded(4, **{"infos/x": numbers}))["ahead"].tolist() == [[1, 2], [2, 3], [3, 0]]


@pytest.mark.parametrize("t", [5, np.int64(5), np.array(5)])
def test_time_begins_where_an_agent_entered(t: Any) -> None:
    episode = Episode(recorded(4).columns, {"t": t}, "late")
    view = Requirements({"t": {}, "before": {"data_col": "t", "shift": "-2:0"}})
    assert values(view, episode)["t"].tolist() == [5, 6, 7]
    assert values(view, episode)["before"].tolist() == [[4, 4, 5], [4, 5, 6], [5, 6, 7]]
    assert values(Fragments(length=3), episode)["t"].tolist() == [[5, 6, 7]]


@pytest.mark.parametrize("t", [-1, 0, b"5", 5.5, np.arange(2), True])
def test_other_metadata_of_that_name_says_nothing_of_time(t: Any) -> None:
    assert values(Requirements({"t": {}}), Episode(recorded(3).columns, {"t": t}, "e"))["t"].tolist() == [0, 1]


def test_items_without_a_column_are_refused() -> None:
    with pytest.raises(ViewError, match="the steps lack every column that is required"):
        signature(Requirements({"vf_preds": {}}), recorded(4))


def test_a_plan_and_an_inspection_tell_what_is_left_out() -> None:
    view = Requirements({"obs": {}, "rewards": {}, "vf_preds": {}, "infos": {}})
    inspection = rlds2reverb.inspect("bundled:cartpole@train[:1]", view=view)
    lines = [notice.line for notice in inspection.notices if notice.code == "fields_left_out"]
    assert lines == [
        "note fields_left_out: items have no vf_preds, infos: the steps hold nothing to make them of; "
        "a sampler, a policy or its loss adds them"
    ]


# Nested columns.


def test_a_path_is_that_column_and_a_nest_all_below_it() -> None:
    episode = nested_episode()
    steps = episode.columns
    view = Requirements(
        {
            "obs": {},
            "arm": {"data_col": "observation/arm"},
            "next_arm": {"data_col": "new_obs/arm/grip"},
            "joints": {"data_col": "obs/arm/joints", "shift": "-1:1"},
            "later": {"data_col": "observation/camera", "shift": 1},
            "prev_actions": {"data_col": "actions", "shift": -1},
            "arm_before": {"data_col": "actions/arm", "shift": -1},
            "logp": {"data_col": "policy_info/logp"},
        }
    )
    found = values(view, episode)
    joints, grip, camera = (steps[f"observation/{path}"] for path in ("arm/joints", "arm/grip", "camera"))
    expected = {
        "obs/arm/joints": joints[:-1],
        "obs/arm/grip": grip[:-1],
        "obs/camera": camera[:-1],
        "arm/joints": joints[:-1],
        "arm/grip": grip[:-1],
        "next_arm": grip[1:],
        "joints": np.stack([joints[[0, 0, 1, 2]], joints[:-1], joints[1:]], axis=1),
        "later": camera[1:],
        "prev_actions/arm": np.append(0, steps["action/arm"][:3]),
        "arm_before": np.append(0, steps["action/arm"][:3]),
        "logp": steps["policy_info/logp"][:-1],
    }
    assert found.keys() == expected.keys()
    for path, column in expected.items():
        np.testing.assert_array_equal(found[path], column, err_msg=path)
    spec = signature(view, episode)
    assert sorted(spec["arm"]) == ["grip", "joints"]
    assert spec["joints"].shape == (3, 2)


def test_names_with_slashes_make_nested_items() -> None:
    episode = nested_episode()
    view = Requirements({"observation/arm/grip": {}, "observation/camera": {"shift": 1}, "actions": {}})
    spec = signature(view, episode)
    assert sorted(spec) == ["actions", "observation"]
    assert sorted(spec["observation"]) == ["arm", "camera"]
    np.testing.assert_array_equal(
        values(view, episode)["observation/camera"], episode.columns["observation/camera"][1:]
    )


def test_the_observation_by_its_own_name_ends_with_the_final_one() -> None:
    episode = recorded(4)
    view = Requirements({"following": {"data_col": "observation", "shift": 1}})
    np.testing.assert_array_equal(values(view, episode)["following"], episode.columns["observation"][1:])
    assert view.label == Requirements({"following": {"data_col": "obs", "shift": 1}}).label
    assert '["observation", [0], 1]' in Requirements({"now": {"data_col": "observation"}}).label


def test_a_nest_and_a_column_below_it_with_other_fills_are_stored_apart() -> None:
    episode = nested_episode(3)
    back = {"data_col": "observation", "shift": -1}
    view = Requirements({"all": back, "blank": {**back, "data_col": "observation/camera", "fill": "zero"}})
    found = values(view, episode)
    np.testing.assert_array_equal(found["all/camera"], [200, 200])
    np.testing.assert_array_equal(found["blank"], [0, 200])
    shared = Requirements({"all": back, "same": {**back, "data_col": "observation/camera"}})
    assert len(shared.cut(episode).rows) == 3


@pytest.mark.parametrize(
    ("required", "message"),
    [
        ({"a": {}, "a/b": {}}, '"a/b" lies below "a"'),
        ({"a//b": {}}, 'expected names with "/" between them'),
        ({"/": {}}, 'expected names with "/" between them'),
    ],
)
def test_names_that_are_no_nest_are_refused(required: dict[str, Any], message: str) -> None:
    with pytest.raises(ViewError, match=f"requirements: .*{message}"):
        Requirements(required)


@pytest.mark.parametrize("path", ["observation/leg", "observation/arm/grip/more", "obs/leg", "arm"])
def test_paths_that_the_steps_lack_are_refused(path: str) -> None:
    with pytest.raises(ViewError, match=f'"x" reads "{path}", which the steps lack'):
        signature(Requirements({"x": {"data_col": path}}), nested_episode())


def test_a_slip_of_the_pen_is_told() -> None:
    with pytest.raises(ViewError, match=r'did you mean "rewards"'):
        signature(Requirements({"x": {"data_col": "rewrads"}}), recorded(3))


# One view requirement: the rows that its shift names, as a list says them, and what it is made from.

SMALL = st.integers(-50, 50)


@given(SMALL, SMALL, st.integers(1, 5))
def test_a_range_is_the_list_of_its_rows_the_last_included(first: int, last: int, step: int) -> None:
    text = f"{first}:{last}:{step}"
    rows = list(range(first, last + 1, step))
    if rows:
        assert ViewRequirement(shift=text).offsets == ViewRequirement(shift=rows).offsets == tuple(rows)
    else:
        with pytest.raises(ViewError, match="names no row"):
            ViewRequirement(shift=text)


@given(SMALL)
def test_one_row_can_be_written_in_four_ways(row: int) -> None:
    ways: tuple[Any, ...] = (row, [row], f"{row}:{row}", np.array([row]))
    assert {ViewRequirement(shift=way).offsets for way in ways} == {(row,)}


@pytest.mark.parametrize("shift", ["", "1", "1:", "0:4:0", "a:b", True, 1.5, [1.5], None, {}])
def test_what_names_no_rows_is_refused(shift: Any) -> None:
    with pytest.raises(ViewError, match="requirements: shift"):
        ViewRequirement(shift=shift)


def test_a_range_beyond_all_memory_is_refused() -> None:
    with pytest.raises(ViewError, match="would be made up"):
        ViewRequirement(shift="0:99999999999")


def test_it_is_made_from_itself_a_mapping_or_an_object_that_has_its_fields() -> None:
    requirement = ViewRequirement("obs", "-3:0")
    for value in (requirement, {"data_col": "obs", "shift": "-3:0"}):
        assert ViewRequirement.of("frames", value) == requirement
    rllibs = SimpleNamespace(data_col="obs", shift="-3:0", space=object(), index=3, something_else=1)
    assert ViewRequirement.of("frames", rllibs) == replace(requirement, optional=True)


@pytest.mark.parametrize("value", [None, 1, "no"])
@pytest.mark.parametrize("name", ["optional", "used_for_training", "used_for_compute_actions"])
def test_flags_are_true_or_false(name: str, value: Any) -> None:
    with pytest.raises(ViewError, match=rf"requirements: {name} .*: expected true or false"):
        ViewRequirement.of("obs", {name: value})


def test_without_a_data_column_it_reads_the_one_of_its_name() -> None:
    assert ViewRequirement().column_for("obs") == "obs"
    assert ViewRequirement("rewards").column_for("obs") == "rewards"
