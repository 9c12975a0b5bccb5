"""Every view of steps agrees with its slow reference on random columns: nested, text, empty, of any dtype and shape."""

from __future__ import annotations

import doctest
import importlib
import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.formats.source import spec_of
from rlds2reverb.views import chunk, frame_stack, goal, requirements, target_pair, transition, view_of
from rlds2reverb.views.base import StreamView, View
from rlds2reverb.views.chunk import Chunk
from rlds2reverb.views.frame_stack import FrameStack
from rlds2reverb.views.goal import Goal
from rlds2reverb.views.n_step import NStep
from rlds2reverb.views.requirements import Requirements
from rlds2reverb.views.slices import Slices
from rlds2reverb.views.target_pair import MODES, TargetPair
from rlds2reverb.views.transition import Transition
from tests.support import reference, strategies
from tests.support.raising import outcome_of
from tests.support.views.case import ViewCase
from tests.support.views.cases.goal import goal_rows
from tests.support.views.cutting import columns_of, field_value, ordered_items
from tests.support.views.every import CASES, case_of, items_in

EPISODES = strategies.episodes(min_steps=1, max_steps=12)
OF_STEPS = ("transition", "n_step", "frame_stack", "chunk", "slices", "target_pair", "goal")
WITH_CASES = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@WITH_CASES
@settings(max_examples=60)
@given(data=st.data())
def test_items_of_any_columns_are_those_of_the_reference(case: ViewCase, data: st.DataObject) -> None:
    view = data.draw(case.random)
    episodes = [data.draw(case.episodes(view, max_steps=12))]
    if isinstance(view, StreamView):
        specs = {path: (column.dtype, column.shape[1:]) for path, column in episodes[0].columns.items()}
        fields = {path: spec for path, spec in specs.items() if path.split("/")[0] in ("observation", "action")}
        episodes += data.draw(st.lists(strategies.episodes(1, 12, fields, "e"), max_size=3))
    reference.assert_same_items(items_in(view, episodes, columns_of(view, episodes[0])), case.items(view, episodes))


@pytest.mark.parametrize("name", [*OF_STEPS, "requirements"])
@settings(max_examples=15)
@given(data=st.data())
def test_an_episode_without_rows_gives_no_item(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    view = data.draw(case.random)
    whole = data.draw(case.episodes(view, max_steps=12))
    cut = view.cut(Episode({path: column[:0] for path, column in whole.columns.items()}, {}, "e"))
    assert len(cut.anchors) == len(cut.priorities) == 0
    assert {len(column) for column in cut.rows.values()} == {cut.row_count}
    assert set(cut.fields) == set(columns_of(view, whole))


@pytest.mark.parametrize("missing", ["observation", "action", "reward", "discount"])
@pytest.mark.parametrize(
    "view", [Transition(), NStep(), FrameStack(), TargetPair(), Goal()], ids=lambda view: view.label
)
def test_steps_that_lack_a_column_are_refused_by_name(view: View, missing: str) -> None:
    episode = strategies.episode(np.random.default_rng(0), 5)
    left = Episode({path: column for path, column in episode.columns.items() if path != missing}, {}, "e")
    cut = outcome_of(ViewError, lambda: view.cut(left))
    if isinstance(cut, ViewError):
        assert missing in str(cut)
    else:
        assert set(map(len, cut.rows.values())) == {5}
        assert missing not in cut.rows or missing in case_of(view).own_columns


def test_requirements_of_a_column_that_the_steps_lack_are_refused() -> None:
    view = Requirements({"x": {"data_col": "camera"}})
    episode = strategies.episode(np.random.default_rng(0), 5)
    with pytest.raises(ViewError, match='"x" reads "camera", which the steps lack'):
        view.signature(spec_of(episode))
    with pytest.raises(ViewError, match='the steps lack "camera"'):
        view.cut(episode)


def test_derived_columns_have_the_dtypes_of_the_signature() -> None:
    names = ("terminateds", "truncateds", "dones", "t")
    view = Requirements({name: {"shift": "-1:0"} for name in names})
    for terminal in (True, False):
        episode = strategies.episode(np.random.default_rng(0), 4, terminal=terminal)
        found = [dict(zip(columns_of(view, episode), item)) for item in ordered_items(view, episode)]
        assert [item["t"].tolist() for item in found] == [[-1, 0], [0, 1], [1, 2]]
        assert [item["terminateds"].tolist() for item in found] == [[False] * 2, [False] * 2, [False, terminal]]
        assert [item["truncateds"].tolist() for item in found] == [[False] * 2, [False] * 2, [False, not terminal]]
        assert [item["dones"].tolist() for item in found] == [[False] * 2, [False] * 2, [False, True]]
        signature = view.signature(spec_of(episode))
        assert all(item[name].dtype == signature[name].dtype for item in found for name in names)


@pytest.mark.parametrize("name", OF_STEPS)
def test_steps_that_are_no_dict_are_refused(name: str) -> None:
    with pytest.raises(ViewError, match="expected a dict of step fields, got list"):
        view_of(name).signature([])


# What is drawn.


@pytest.mark.parametrize("strategy", ["future", "uniform"])
def test_goals_are_uniform_over_their_rows(strategy: str) -> None:
    rows, draws = 9, 3000
    episode = strategies.episode(np.random.default_rng(0), rows, episode_id="e")
    drawn = np.array([goal_rows(Goal(strategy, seed), episode) for seed in range(draws)])  # [draws, T - 1]
    for t in range(rows - 1):
        lowest = t + 1 if strategy == "future" else 0
        counts = np.bincount(drawn[:, t], minlength=rows)
        assert counts[:lowest].sum() == 0
        wanted = draws / (rows - lowest)
        squares = float(((counts[lowest:] - wanted) ** 2 / wanted).sum())
        freedom = rows - lowest - 1
        assert squares <= freedom + 5 * np.sqrt(2 * freedom)  # of a chi-square, five standard deviations


@pytest.mark.parametrize("view", [Slices(3, 2, seed=1), Goal(seed=1)], ids=["slices", "goal"])
def test_what_is_drawn_depends_on_seed_and_name_only(view: View) -> None:
    def drawn(view: View, name: str, filling: int) -> list[int]:
        cut = view.cut(strategies.episode(np.random.default_rng(filling), 30, episode_id=name))
        return [
            cut.anchors.tolist(),
            *(field.anchors.tolist() for field in cut.fields.values() if field.anchors is not None),
        ]

    other = type(view)(**{**vars(view), "seed": 2})
    names = [f"e{number}" for number in range(20)]
    assert [drawn(view, name, 0) for name in names] == [drawn(view, name, 1) for name in names]
    assert sum(drawn(view, name, 0) == drawn(other, name, 0) for name in names) < 3
    assert len({str(drawn(view, name, 0)) for name in names}) > 10


# The docstrings.

MODULES = (
    "chunk",
    "frame_stack",
    "goal",
    "jigsaw",
    "n_step",
    "requirements",
    "slices",
    "target_pair",
    "transition",
)


@pytest.mark.parametrize("name", MODULES)
def test_the_example_of_the_docstring_runs(name: str) -> None:
    results = doctest.testmod(importlib.import_module(f"rlds2reverb.views.{name}"))
    assert results.attempted > 0
    assert results.failed == 0


def spelled(rows: int) -> Episode:
    """An episode whose observations, actions and rewards are the words of the docstrings: o0, a0, r0; "0" past the end."""
    row = np.arange(rows)

    def words(letter: str) -> Any:
        return np.array([f"{letter}{number}".encode() for number in row], object)

    columns = {"observation": words("o"), "action": words("a"), "reward": words("r"), "discount": np.ones(rows)}
    flags = {"is_first": row == 0, "is_last": row == rows - 1, "is_terminal": row == rows - 1}
    return Episode({**columns, **flags}, {}, "e")


def cells(view: View, episode: Episode) -> list[dict[str, str]]:
    """Field -> what a docstring writes for it, of every item."""

    def text(value: Any) -> str:
        plain = [
            scalar.decode() or "0" if isinstance(scalar, bytes) else str(scalar)
            for scalar in np.atleast_1d(value).tolist()
        ]
        return " ".join(plain)

    cut = view.cut(episode)
    return [
        {path: text(field_value(cut, field, number)) for path, field in cut.fields.items()}
        for number in range(len(cut.anchors))
    ]


def table(module: ModuleType) -> list[list[str]]:
    """Cells of the module's table, its head first."""
    lines = re.findall(r"^\| (.*) \|$", str(module.__doc__), re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines if not line.startswith("---")]


@pytest.mark.parametrize(
    ("module", "view", "rows"),
    [(transition, Transition(), 3), (frame_stack, FrameStack(3), 3), (chunk, Chunk(history=2, horizon=3), 4)],
)
def test_the_table_of_items_and_fields_is_true(module: ModuleType, view: View, rows: int) -> None:
    (_, *fields), *lines = [line for line in table(module) if len(line) == len(table(module)[0])]
    found = cells(view, spelled(rows))
    assert [line[1:] for line in lines] == [[item[field] for field in fields] for item in found]


def test_the_table_of_pairs_is_true() -> None:
    _, *lines = table(target_pair)
    assert [line[0] for line in lines] == list(MODES)
    for mode, *wanted in lines:
        items = cells(TargetPair(mode, 2), spelled(5))[:2]
        order = ("context", "extra_context", "target")
        assert wanted == [", ".join(f"{name} {item[name]}" for name in order if name in item) for item in items]


def test_the_table_of_requirements_is_true() -> None:
    import yaml

    _, *lines = table(requirements)
    written = {name: values for line in lines for name, values in yaml.safe_load(f"{{{line[0]}}}").items()}
    found = cells(Requirements(written), spelled(4))
    for name, line in zip(written, lines):
        assert line[1:] == [item[name] for item in found]


def test_the_table_of_goals_names_every_strategy() -> None:
    _, *lines = table(goal)
    assert [line[0] for line in lines] == list(goal.STRATEGIES)
    assert set(goal_rows(Goal("final"), spelled(6))) == {5}


def test_acmes_formula_holds_for_numbers_worked_by_hand() -> None:
    columns = {"reward": np.array([1.0, 2.0, 4.0, 0.0]), "discount": np.array([0.5, 0.25, 1.0, 0.0])}
    episode = spelled(4).with_columns(**columns)
    cut = NStep(n=2, gamma=0.5).cut(episode)
    assert cut.rows["reward"][:3].tolist() == [1 + 0.5 * 0.5 * 2, 2 + 0.5 * 0.25 * 4, 4]
    assert cut.rows["discount"][:3].tolist() == [0.5 * 0.5 * 0.25, 0.5 * 0.25 * 1, 1]


@given(EPISODES, st.integers(1, 15))
def test_pairs_are_as_many_as_steps_behind_the_offset(episode: Episode, offset: int) -> None:
    transitions = len(episode) - 1
    assert len(TargetPair("none", offset).cut(episode).anchors) == max(transitions - offset, 0)
    assert len(TargetPair("identity", offset).cut(episode).anchors) == transitions


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_returns_keep_the_dtype_of_the_rewards(kind: Any) -> None:
    episode = strategies.episode(np.random.default_rng(0), 6)
    episode = episode.with_columns(reward=episode.columns["reward"].astype(kind))
    assert NStep().cut(episode).rows["reward"].dtype == kind
    assert NStep().signature(spec_of(episode))["reward"].dtype == kind
