"""N-step returns of nested rewards and discounts, of any shapes: each leaf as if it were alone, summed step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.episode import Array, Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.formats.source import spec_of
from rlds2reverb.prepare.checks import find_problems
from rlds2reverb.prepare.conventions import Conventions
from rlds2reverb.prepare.standard import Standard, repair
from rlds2reverb.specs import ArraySpec, differences, flatten
from rlds2reverb.views import view_of
from rlds2reverb.views.n_step import NStep
from tests.support import strategies
from tests.support.views.cutting import columns_of, ordered_items
from tests.support.views.slow import Item

# Reward and discount of a step as nests of shapes, and as Acme broadcasts them; "" is a single one.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "single": ({"": ()}, {"": ()}),
    "rewards": ({"a": (), "b": ()}, {"": ()}),
    "discounts": ({"": ()}, {"a": (), "b": ()}),
    "both": ({"a": (), "b/c": (3,)}, {"a": (), "b/c": ()}),
    "vector of rewards": ({"": (2,)}, {"": ()}),
    "vector of discounts": ({"": ()}, {"": (2,)}),
    "broadcast": ({"": (1, 2)}, {"": (2, 1)}),
    "nest, broadcast": ({"a": (1, 2)}, {"": (2, 1)}),
    "axes": ({"a": (3,), "b": ()}, {"": (2, 3)}),
    "empty": ({"": (0,)}, {"": ()}),
}


def path_of(name: str, below: str) -> str:
    return f"{name}/{below}" if below else name


@st.composite
def episodes(draw: st.DrawFn, case: str) -> Episode:
    """Rewards and discounts of a case, each leaf of a float of its own."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = draw(st.integers(1, 9))
    plain = strategies.episode(rng, rows, terminal=draw(st.booleans()), episode_id="e")
    columns = {path: column for path, column in plain.columns.items() if path not in ("reward", "discount")}
    rewards, discounts = CASES[case]
    floats = st.sampled_from(["float16", "float32", "float64"])
    for below, shape in rewards.items():
        columns[path_of("reward", below)] = rng.normal(size=(rows, *shape)).astype(draw(floats))
    for below, shape in discounts.items():
        columns[path_of("discount", below)] = rng.uniform(size=(rows, *shape)).astype(draw(floats))
    return Episode(columns, {}, "e")


def slow_items(episode: Episode, case: str, view: NStep) -> list[Item]:
    """Reward and discount of every item, leaf by leaf, row by row, in float64."""
    transitions = len(episode) - 1
    spans = [(0, k) for k in range(1, min(view.n, transitions))] if view.early else []
    spans += [(t, min(view.n, transitions - t)) for t in range(transitions)]
    return [_slow_item(episode, case, view, t, k) for t, k in spans]


def _slow_item(episode: Episode, case: str, view: NStep, t: int, k: int) -> Item:
    rewards, discounts = CASES[case]
    item: Item = {}
    for below in rewards if "" not in rewards else discounts:
        reward = episode.columns[path_of("reward", below if "" not in rewards else "")]
        discount = episode.columns[path_of("discount", below if "" not in discounts else "")]
        scale = np.ones(discount.shape[1:])
        total: Any = 0.0
        for ahead in range(k):
            scale = scale * (view.gamma if ahead else 1)
            total = total + reward[t + ahead].astype(np.float64) * scale
            scale = scale * (discount[t + ahead].astype(np.float64) if view.style == "acme" else 1)
        scale = scale * (view.gamma if view.style == "torchrl" else 1)
        item[path_of("reward", below)] = np.asarray(total).astype(reward.dtype)
        item[path_of("discount", below)] = np.asarray(scale).astype(discount.dtype)
    return item


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=25)
@given(data=st.data())
def test_every_leaf_has_the_return_of_the_reference(case: str, data: st.DataObject) -> None:
    episode = data.draw(episodes(case))
    style = data.draw(st.sampled_from(["acme", "torchrl"]))
    view = NStep(data.draw(st.integers(1, 6)), data.draw(st.floats(0.1, 1)), style, data.draw(st.booleans()))
    order, wanted = columns_of(view, episode), slow_items(episode, case, view)
    found = [dict(zip(order, item)) for item in ordered_items(view, episode)]
    assert len(found) == len(wanted)
    for item, expected in zip(found, wanted):
        assert {path for path in item if path.split("/")[0] in ("reward", "discount")} == expected.keys()
        for path, leaf in expected.items():
            assert (item[path].dtype, item[path].shape) == (leaf.dtype, leaf.shape)
            np.testing.assert_allclose(item[path], leaf, rtol=1e-2 if leaf.dtype == np.float16 else 1e-5, atol=1e-3)
    signature = flatten(view.signature(spec_of(episode)))
    for item in found:
        for path, leaf in item.items():
            assert differences(ArraySpec(leaf.shape, leaf.dtype), signature[path]) == []


def worked(reward: Any, discount: Any, rows: int = 4) -> Episode:
    """The same reward and discount at every step, as nested dicts of arrays; terminal."""
    columns = {}
    for name, nest in (("reward", reward), ("discount", discount)):
        for below, value in nest.items() if isinstance(nest, dict) else [("", nest)]:
            column = np.repeat(np.asarray(value, np.float64)[None], rows, axis=0)
            if name == "discount":
                column[-2:] = 0
            columns[path_of(name, below)] = column
    plain = strategies.episode(np.random.default_rng(0), rows).columns
    others = {path: column for path, column in plain.items() if path not in ("reward", "discount")}
    return Episode({**others, **columns}, {}, "e")


def earned(episode: Episode) -> list[dict[str, Any]]:
    view = NStep(2, 1.0, early=True)
    order = columns_of(view, episode)
    return [
        {path: leaf.tolist() for path, leaf in zip(order, item) if path.split("/")[0] in ("reward", "discount")}
        for item in ordered_items(view, episode)
    ]


def test_numbers_worked_by_hand() -> None:
    """Three transitions, discounts 0.5 0.5 0 (or 0.25 for b): one early item, two of two steps, one of one step."""
    assert earned(worked({"a": 1.0, "b": 2.0}, 0.5)) == [
        {"reward/a": 1.0, "reward/b": 2.0, "discount/a": 0.5, "discount/b": 0.5},
        {"reward/a": 1.5, "reward/b": 3.0, "discount/a": 0.25, "discount/b": 0.25},
        {"reward/a": 1.5, "reward/b": 3.0, "discount/a": 0.0, "discount/b": 0.0},
        {"reward/a": 1.0, "reward/b": 2.0, "discount/a": 0.0, "discount/b": 0.0},
    ]
    assert earned(worked(1.0, {"a": 0.5, "b": 0.25}))[:2] == [
        {"reward/a": 1.0, "reward/b": 1.0, "discount/a": 0.5, "discount/b": 0.25},
        {"reward/a": 1.5, "reward/b": 1.25, "discount/a": 0.25, "discount/b": 0.0625},
    ]
    assert earned(worked([[1.0, 2.0]], [[0.5], [0.25]]))[1] == {
        "reward": [[1.5, 3.0], [1.25, 2.5]],
        "discount": [[0.25], [0.0625]],
    }


FLOAT = ArraySpec((), np.dtype(np.float32))


def spec(reward: Any, discount: Any) -> dict[str, Any]:
    return {"observation": FLOAT, "action": FLOAT, "reward": reward, "discount": discount}


@pytest.mark.parametrize(
    ("reward", "discount", "message"),
    [
        (ArraySpec((), np.dtype(int)), FLOAT, r"n_step: reward: expected floats, found reward int64\[\]"),
        ({"a": FLOAT, "b": ArraySpec((), np.dtype(object))}, FLOAT, r"reward: expected floats, found reward/a float32"),
        ({}, FLOAT, "reward: expected floats, found none"),
        (FLOAT, ArraySpec((), np.dtype(bool)), r"discount: expected floats, found discount bool"),
        ({"a": FLOAT}, {"b": FLOAT}, r"rewards \['a'\] and discounts \['b'\]: expected the same paths"),
        (ArraySpec((2,), FLOAT.dtype), ArraySpec((3,), FLOAT.dtype), "expected shapes that broadcast"),
        (ArraySpec((None,), FLOAT.dtype), ArraySpec((3,), FLOAT.dtype), "expected shapes that broadcast"),
    ],
)
def test_what_does_not_go_together_is_refused(reward: Any, discount: Any, message: str) -> None:
    with pytest.raises(ViewError, match=message):
        NStep().signature(spec(reward, discount))


def test_the_nest_of_the_signature_is_that_of_the_data() -> None:
    vector = ArraySpec((None,), FLOAT.dtype)
    found = NStep().signature(spec((FLOAT, vector), FLOAT))
    assert found["reward"] == (FLOAT, vector)
    assert found["discount"] == (FLOAT, FLOAT)
    assert NStep().signature(spec(FLOAT, [FLOAT, FLOAT]))["reward"] == [FLOAT, FLOAT]


def test_nested_discounts_are_checked_mended_and_cut() -> None:
    episode = worked({"a": 1.0, "b": 2.0}, {"a": 0.5, "b": 1.0})
    late = {
        path: np.where(np.arange(4) == 2, 0.5, column) for path, column in episode.columns.items() if "disc" in path
    }
    wrong = episode.with_columns(**late)
    problems = [problem for problem in find_problems(wrong) if problem.code == "terminal_discount"]
    assert [problem.path for problem in problems] == ["discount/a", "discount/b"]
    standard = Standard.of(spec_of(episode), Conventions(terminal_discount="transition"))
    for mended in (repair(wrong, problems), standard.normalise(wrong)):
        assert [problem.code for problem in find_problems(mended)] == ["last_reward"] * 2
        assert earned(mended) == earned(episode)
    outside: Array = np.array([0.5, 1.5, 0.0, 0.0])
    assert [(problem.code, problem.path) for problem in find_problems(episode.with_columns(**{"discount/b": outside}))][
        :1
    ] == [("discount_range", "discount/b")]


def test_extras_of_structured_rewards_stand_beside_them() -> None:
    episode = worked({"a": 1.0}, 0.5).with_columns(td_error=np.arange(4))
    assert view_of("n_step:n=2,extras=all").cut(episode).field_rows("extras/td_error").tolist() == [0, 1, 2, 3]
