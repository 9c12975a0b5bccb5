"""Views of steps and transitions agree with the slow, obvious way, and with the documented examples of their peers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.errors import ConfigError, ViewError
from rlds2reverb.formats.source import spec_of
from rlds2reverb.views import read_view, view_from
from rlds2reverb.views.base import View
from rlds2reverb.views.frame_stack import FrameStack
from rlds2reverb.views.goal import Goal
from rlds2reverb.views.n_step import NStep
from rlds2reverb.views.requirements import Requirements, ViewRequirement
from rlds2reverb.views.slices import Slices
from rlds2reverb.views.target_pair import MODES, TargetPair
from rlds2reverb.views.transition import Transition
from tests.support.views.cutting import field_value

ROWS = st.integers(1, 14)
SEEDS = st.integers(0, 2**32 - 1)


def numbered(rows: int, seed: int = 0, terminal: bool = True) -> Episode:
    """Observations 0, 1, 2, ...; actions 100, 101, ...; random rewards and discounts; the last row is terminal or not."""
    rng = np.random.default_rng(seed)
    row = np.arange(rows)
    last = row == rows - 1
    return Episode(
        {
            "observation": row.astype(np.int64),
            "action": row + 100,
            "reward": rng.normal(size=rows),
            "discount": rng.uniform(0.5, 1, rows),
            "is_first": row == 0,
            "is_last": last,
            "is_terminal": last & terminal,
        },
        {},
        f"episode {seed}",
    )


def items(view: View, episode: Episode) -> list[dict[str, Any]]:
    """Field -> plain value of every item."""
    cut = view.cut(episode)
    return [
        {path: field_value(cut, field, number).tolist() for path, field in cut.fields.items()}
        for number in range(len(cut.anchors))
    ]


@given(ROWS, st.booleans())
def test_a_transition_has_root_and_next(rows: int, terminal: bool) -> None:
    episode = numbered(rows, terminal=terminal)
    found = items(Transition(), episode)
    assert len(found) == rows - 1
    for t, item in enumerate(found):
        ends = t == rows - 2
        assert item == {
            "observation": t,
            "action": t + 100,
            "next/observation": t + 1,
            "next/reward": [episode.columns["reward"][t]],
            "next/done": [ends],
            "next/terminated": [ends and terminal],
            "next/truncated": [ends and not terminal],
        }


@given(ROWS, SEEDS, st.integers(1, 16), st.floats(0.1, 1), st.sampled_from(["acme", "torchrl"]))
def test_n_steps_are_summed_one_by_one(rows: int, seed: int, n: int, gamma: float, style: str) -> None:
    episode = numbered(rows, seed)
    rewards, discounts = episode.columns["reward"], episode.columns["discount"]
    found = items(NStep(n, gamma, style), episode)
    assert len(found) == rows - 1
    for t, item in enumerate(found):
        k = min(n, rows - 1 - t)
        total, scale = 0.0, 1.0
        for i in range(k):
            if i:
                scale *= gamma
            total += scale * rewards[t + i]
            scale *= discounts[t + i] if style == "acme" else 1.0
        if style == "torchrl":
            scale *= gamma
        assert (item["observation"], item["action"]) == (t, t + 100)
        assert (item["next_observation"], item["steps"]) == (t + k, k)
        assert item["reward"] == pytest.approx(total)
        assert item["discount"] == pytest.approx(scale)


def test_the_next_steps_are_those_of_torchrls_example() -> None:
    found = items(NStep(n=4, style="torchrl"), numbered(11))
    assert [item["next_observation"] for item in found] == [4, 5, 6, 7, 8, 9, 10, 10, 10, 10]


@given(ROWS, st.integers(1, 6), st.sampled_from(["first", "zero"]))
def test_a_stack_looks_back_over_the_first_row(rows: int, frames: int, fill: Any) -> None:
    episode = numbered(rows)
    shifted = Episode(
        {**episode.columns, "observation": episode.columns["observation"] + 1}, {}, "e"
    )  # no zero of its own
    missing = 1 if fill == "first" else 0
    found = items(FrameStack(frames, fill), shifted)
    assert len(found) == rows - 1
    for t, item in enumerate(found):
        for name, now in (("observation", t), ("next_observation", t + 1)):
            assert item[name] == [row + 1 if row >= 0 else missing for row in range(now - frames + 1, now + 1)]
        assert item["action"] == t + 100


def test_a_stack_stores_no_frame_twice() -> None:
    cut = FrameStack(4).cut(numbered(50))
    assert cut.row_count == 50 + 3
    assert list(cut.rows).count("observation") == 1


@given(ROWS, st.integers(1, 9), st.integers(1, 9), st.booleans(), st.integers(0, 5))
def test_slices_are_distinct_whole_and_the_same_again(
    rows: int, length: int, many: int, strict: bool, seed: int
) -> None:
    view, episode = Slices(length, many, strict, seed), numbered(rows)
    found = [item["observation"] for item in items(view, episode)]
    assert found == [item["observation"] for item in items(view, episode)]
    if rows < length:
        assert found == ([] if strict else [list(range(rows))])
        return
    starts = [item[0] for item in found]
    assert len(starts) == min(many, rows - length + 1)
    assert starts == sorted(set(starts))
    assert found == [list(range(start, start + length)) for start in starts]


@given(ROWS, st.integers(1, 9), st.integers(1, 9), st.booleans(), st.integers(0, 5))
def test_a_slice_says_where_it_ends_from_rows_nearby(
    rows: int, length: int, many: int, strict: bool, seed: int
) -> None:
    episode = numbered(rows)
    plain, cut = (Slices(length, many, strict, seed, ends).cut(episode) for ends in (False, True))
    assert cut.anchors.tolist() == plain.anchors.tolist()
    assert cut.row_count == rows  # no row is added
    own = cut.fields["truncated"].anchors
    assert own is not None
    assert np.all(abs(own - cut.anchors) < length)  # so an item needs no chunks far from its own
    for number in range(len(cut.anchors)):
        flags = field_value(cut, cut.fields["truncated"], number)
        assert flags.tolist() == [False] * (min(rows, length) - 1) + [True]


def test_a_field_that_the_steps_have_is_not_replaced() -> None:
    view = Slices(2, truncated=True)
    for name in ("truncated", "truncated/why"):
        episode = numbered(4).with_only_columns({**numbered(4).columns, name: np.zeros(4, bool)})
        for use in (lambda one=episode: view.cut(one), lambda one=episode: view.signature(spec_of(one))):
            with pytest.raises(ViewError, match='truncated: expected steps without a field "truncated", found'):
                use()


def test_every_start_of_a_slice_is_as_likely() -> None:
    counts = Counter(int(Slices(4, 1, seed=seed).cut(numbered(10)).anchors[0]) for seed in range(2100))
    assert sorted(counts) == list(range(7))
    assert all(220 < count < 380 for count in counts.values())  # 300 expected, standard deviation 16


@given(st.integers(1, 12), st.integers(1, 5), st.sampled_from(MODES))
def test_pairs_are_those_of_a_ring_buffer(rows: int, offset: int, mode: str) -> None:
    wanted: list[dict[str, Any]] = []
    ring: list[int] = []
    for t in range(rows - 1):  # the final observation is never used
        now, actions = t, [a + 100 for a in range(t - offset, t)]
        ring.append(t)
        if mode == "identity":
            wanted.append({"context": now, "target": now, "timestep": t})
        elif len(ring) > offset:
            before = ring[-1 - offset]
            pairs: dict[str, dict[str, Any]] = {
                "none": {"context": before, "target": now},
                "dynamics": {"context": before, "extra_context": actions, "target": now},
                "inverse_dynamics": {"context": before, "extra_context": now, "target": actions},
                "action_prediction": {"context": before, "target": actions},
            }
            wanted.append({**pairs[mode], "timestep": t})
    assert items(TargetPair(mode, offset), numbered(rows)) == wanted


@given(ROWS, st.sampled_from(["future", "final", "uniform"]), st.integers(0, 50))
def test_goals_are_rows_of_the_episode(rows: int, strategy: str, seed: int) -> None:
    found = items(Goal(strategy, seed), numbered(rows))
    assert found == items(Goal(strategy, seed), numbered(rows))
    assert len(found) == rows - 1
    for t, item in enumerate(found):
        goal = item["goal"]
        assert {"future": t < goal < rows, "final": goal == rows - 1, "uniform": 0 <= goal < rows}[strategy]
        assert (item["observation"], item["next_observation"]) == (t, t + 1)
        assert (item["reward"], item["reached"]) == (0.0 if goal == t + 1 else -1.0, goal == t + 1)


def test_goals_differ_with_the_seed_and_the_episode() -> None:
    goals = {
        tuple(item["goal"] for item in items(Goal(seed=seed), numbered(12, n))) for seed in range(5) for n in range(5)
    }
    assert len(goals) == 25


# RLlib's view requirements.


def rllib(requirements: dict[str, Any], rows: int) -> list[dict[str, Any]]:
    return items(Requirements(requirements), numbered(rows))


def test_the_documented_example_of_shifts() -> None:
    episode = Episode({**numbered(4).columns, "reward": np.array([1.0, 2.0, 3.0, 9.0])}, {}, "e")
    view = Requirements(
        {
            "prev_rewards": {"data_col": "rewards", "shift": -1},
            "next_actions": {"data_col": "actions", "shift": 1},
            "pair": {"data_col": "obs", "shift": [-1, 0]},
            "new_obs": ViewRequirement("obs", 1),
        }
    )
    found = items(view, episode)
    assert [item["prev_rewards"] for item in found] == [0, 1, 2]
    assert [item["next_actions"] for item in found] == [101, 102, 0]
    assert [item["pair"] for item in found] == [[0, 0], [0, 1], [1, 2]]
    assert [item["new_obs"] for item in found] == [1, 2, 3]


@given(
    st.integers(2, 12),
    st.lists(st.integers(-5, 5), min_size=1, max_size=4),
    st.sampled_from(["obs", "actions", "rewards", "t", "terminateds", "other"]),
    st.integers(1, 4),
    st.booleans(),
)
def test_rows_are_picked_one_by_one(rows: int, shift: list[int], column: str, repeat: int, zeros: bool) -> None:
    episode = numbered(rows)
    episode = Episode({**episode.columns, "other": episode.columns["action"] * 2}, {}, "e")
    requirements: dict[str, Any] = {"x": {"data_col": column, "shift": shift, "batch_repeat_value": repeat}}
    if zeros:
        requirements["prev_actions"] = {"data_col": "actions", "shift": -1}
    columns = {
        "obs": episode.columns["observation"].tolist(),
        "actions": episode.columns["action"].tolist()[:-1],
        "rewards": episode.columns["reward"].astype(np.float32).tolist()[:-1],
        "t": list(range(rows - 1)),
        "terminateds": [False] * (rows - 2) + [True],
        "other": episode.columns["other"].tolist()[:-1],
    }
    values = columns[column]

    def pick(row: int) -> Any:
        if row < 0:
            return 0 if zeros and column == "actions" else -1 if column == "t" else values[0]
        return values[row] if row < len(values) else 0

    found = [item["x"] for item in items(Requirements(requirements), episode)]
    wanted = [[pick(t // repeat * repeat + offset) for offset in shift] for t in range(rows - 1)]
    assert found == [row[0] if len(shift) == 1 else row for row in wanted]


def test_a_repeated_range_is_that_of_the_documentation() -> None:
    found = rllib({"x": {"data_col": "obs", "shift": "-3:-1", "batch_repeat_value": 10}}, 31)
    assert [found[t]["x"] for t in (10, 19, 20)] == [[7, 8, 9], [7, 8, 9], [17, 18, 19]]


def test_a_range_from_zero_works_and_one_row_is_squeezed() -> None:
    found = rllib({"ahead": {"data_col": "obs", "shift": "0:2"}, "one": {"data_col": "obs", "shift": "1:1"}}, 4)
    assert [item["ahead"] for item in found] == [[0, 1, 2], [1, 2, 3], [2, 3, 0]]
    assert [item["one"] for item in found] == [1, 2, 3]


class Theirs:
    """A requirement as an object of another library has it."""

    data_col, shift, space, index, batch_repeat_value = "rewards", -1, object(), None, 1
    used_for_compute_actions, used_for_training = True, True


def test_requirements_come_as_objects_mappings_and_yaml(tmp_path: Path) -> None:
    path = tmp_path / "view.yaml"
    path.write_text(
        "view: requirements\nrequirements:\n  x: {data_col: rewards, shift: -1}\n  y: {used_for_training: false}\n"
        "  rewards: {}\n  terminateds: {}\n  truncateds: {}\n"
    )
    plain: dict[str, Any] = {"rewards": {}, "terminateds": {}, "truncateds": {}}
    of_mappings = Requirements({"x": {"data_col": "rewards", "shift": -1}, **plain})
    made = [Requirements({"x": Theirs()}), of_mappings, read_view(path)]
    assert len({view.label for view in made}) == 1


@pytest.mark.parametrize(
    ("requirements", "message"),
    [
        ({}, "no column is used for training"),
        ({"x": {"used_for_training": False}}, "no column is used for training"),
        ({"x": {"shift": "a:b"}}, 'shift "a:b", expected an int'),
        ({"x": {"shift": []}}, "names no row"),
        ({"x": {"shift": "3:1"}}, "names no row"),
        ({"x": {"shift": 1.5}}, "shift 1.5, expected"),
        ({"x": {"shfit": 1}}, '"x": unknown shfit'),
        ({"x": 3}, "expected the fields of a ViewRequirement"),
        ({"x": {"batch_repeat_value": 0}}, "batch_repeat_value 0"),
        ([], "expected a mapping"),
    ],
)
def test_requirements_that_make_no_sense_are_refused(requirements: Any, message: str) -> None:
    with pytest.raises(ViewError, match=message):
        Requirements(requirements)


@pytest.mark.parametrize(
    ("text", "message"),
    [("[1]", "expected a view's name"), ("view: 3", "expected a view's name"), ("view: nope", '"nope", expected one of'),
     ("view: n_step\nm: 3", "has no option m; it has n, gamma")],
)  # fmt: skip
def test_a_file_that_names_no_view_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "view.yaml"
    path.write_text(text)
    with pytest.raises(ViewError, match=message):
        read_view(path)


def test_a_file_that_is_no_yaml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "view.yaml"
    path.write_text("a: [")
    with pytest.raises(ConfigError, match=r"view\.yaml: not YAML"):
        read_view(path)


def test_a_view_from_a_mapping_has_its_options() -> None:
    assert view_from({"view": "n_step", "n": 5, "gamma": 0.9}) == NStep(5, 0.9)
    assert view_from("frame_stack:frames=2") == FrameStack(2)
