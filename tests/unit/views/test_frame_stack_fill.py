"""What stands where an episode has no row: first, zero or a number, a column or a requirement each its own."""

from __future__ import annotations

import json
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Array, Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.formats.source import spec_of
from rlds2reverb.views import view_from, view_of
from rlds2reverb.views.base import check_fit, checked_fill, pad
from rlds2reverb.views.frame_stack import FrameStack
from rlds2reverb.views.requirements import Requirements, ViewRequirement
from tests.support import reference, strategies
from tests.support.views.cases.requirements import requirement_items
from tests.support.views.cutting import ordered_items
from tests.support.views.every import slow_items
from tests.support.views.slow import in_order, made_up, stacked, value, zeros

NUMBERS = st.integers(-(2**70), 2**70) | st.floats(width=64) | st.sampled_from([0, 1, 0.5, -1, 255, 256, 65504, 7e4])


def fitting(dtype: np.dtype[Any]) -> st.SearchStrategy[Any]:
    """Fills that a column can hold."""
    words = ["first", "zero"]
    if dtype == object:
        return st.sampled_from(words)
    if dtype == bool:
        return st.sampled_from([*words, 0, 1])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return st.sampled_from([*words, 0, 7, int(info.min), int(info.max)])
    return st.sampled_from([*words, 0, 1, -3, 0.5, -0.25])


@given(strategies.dtypes(), strategies.shapes(), st.integers(0, 4), st.integers(0, 3), st.integers(0, 3), st.data())
def test_rows_before_and_after_are_filled(
    dtype: np.dtype[Any], shape: tuple[int, ...], rows: int, before: int, after: int, data: Any
) -> None:
    column: Array = strategies.array(np.random.default_rng(rows), dtype, (rows, *shape))
    fill = data.draw(fitting(dtype))
    head = made_up(column, fill) if rows or fill != "first" else zeros(column)
    tail = made_up(column, "zero" if fill == "first" else fill)
    wanted = [*[head] * before, *(value(column, row) for row in range(rows)), *[tail] * after]
    found = pad(column, before, after, fill)
    assert found.dtype == dtype
    reference.assert_same_items([[found]], [[stacked(wanted, column)]])


@given(strategies.dtypes(), NUMBERS)
def test_numbers_fit_a_column_when_they_come_back_from_it(dtype: np.dtype[Any], number: float) -> None:
    def holds() -> bool:
        if dtype == object:
            return False
        if dtype == bool:
            return number in (0, 1)
        if dtype.kind in "iu":
            return number == int(number) and np.iinfo(dtype).min <= int(number) <= np.iinfo(dtype).max
        largest = float((ml_dtypes if dtype == ml_dtypes.bfloat16 else np).finfo(dtype).max)
        return abs(number) <= largest

    if not np.isfinite(float(number)):
        with pytest.raises(ViewError, match=r"fill .*, expected one of first, zero, a number"):
            checked_fill("v", number)
        return
    fill = checked_fill("v", number)
    assert fill == number
    if dtype.kind in "fVc" and abs(number) > 6e4 and not holds():
        return  # what rounds down to the largest may fit
    if holds():
        check_fit("v", "x", fill, dtype)
        if dtype.kind in "biu":
            assert np.full(1, fill, dtype)[0] == number
    else:
        with pytest.raises(ViewError, match=r'^v: fill .* does not fit "x", which holds'):
            check_fit("v", "x", fill, dtype)


@pytest.mark.parametrize(
    ("dtype", "number"),
    [("float16", 7e4), ("float32", 1e39), ("float64", 10**400), ("complex64", 1e39), (ml_dtypes.bfloat16, 1e39)],
)
def test_numbers_that_floats_do_not_reach_are_refused(dtype: Any, number: Any) -> None:
    with pytest.raises(ViewError, match="does not fit"):
        check_fit("v", "x", number, np.dtype(dtype))


def test_whole_numbers_are_one_fill_however_they_are_written() -> None:
    ways: list[Any] = [2, 2.0, np.float32(2), np.int64(2)]
    assert {FrameStack(3, way).label for way in ways} == {"frame_stack:frames=3,fill=2"}
    assert {FrameStack(3, {"observation": way}).label for way in ways} == {"frame_stack:frames=3,fill=2"}
    first: list[Any] = ["first", {}, {"observation": "first"}]
    zeros: list[Any] = ["zero", 0, 0.0, {"observation": 0}]
    others: list[Any] = ["first", "zero", 1, {"observation/camera": 1}]
    assert [len({FrameStack(3, fill).label for fill in fills}) for fills in (first, zeros, others)] == [1, 1, 4]


@pytest.mark.parametrize("fill", [True, None, [], "last", float("nan"), float("inf"), 1j, np.float32("nan")])
def test_what_is_no_fill_is_refused(fill: Any) -> None:
    message = "expected one of first, zero, a number"
    with pytest.raises(ViewError, match=f"^frame_stack: fill .*, {message}"):
        FrameStack(3, fill)
    with pytest.raises(ViewError, match=f'^frame_stack: "observation/a": fill .*, {message}'):
        FrameStack(3, {"observation/a": fill})
    if fill is not None:
        with pytest.raises(ViewError, match=f"^requirements: fill .*, {message}"):
            ViewRequirement(fill=fill)


# Stacked frames.


@st.composite
def stacks(draw: st.DrawFn) -> tuple[FrameStack, Episode]:
    """A view with fills for some columns and nests, and an episode that they fit."""
    episode = draw(strategies.episodes(min_steps=1, max_steps=9))
    observed = [path for path in episode.columns if path.split("/")[0] == "observation"]
    fill = {path: draw(fitting(episode.columns[path].dtype)) for path in observed if draw(st.booleans())}
    nests = {"/".join(path.split("/")[:depth]) for path in observed for depth in range(1, path.count("/") + 1)}
    fill |= {nest: draw(st.sampled_from(["first", "zero"])) for nest in sorted(nests) if draw(st.booleans())}
    return FrameStack(draw(st.integers(1, 5)), fill), episode


@given(stacks())
def test_stacks_are_filled_column_by_column(both: tuple[FrameStack, Episode]) -> None:
    view, episode = both
    reference.assert_same_items(ordered_items(view, episode), slow_items(view, episode))


def pictures(rows: int = 4) -> Episode:
    """An image, a position, a text."""
    columns: dict[str, np.ndarray] = {
        "observation/camera/left": np.full((rows, 2, 2), 200, np.uint8),
        "observation/camera/right": np.full((rows, 2, 2), 100, np.uint8),
        "observation/position": np.full(rows, 0.5, np.float32),
        "observation/text": np.array([b"a"] * rows, object),
    }
    plain = {name: np.ones(rows) for name in ("action", "reward", "discount")}
    return Episode({**columns, **plain}, {}, "e")


def test_the_longest_path_counts() -> None:
    fill: dict[str, Any] = {"observation": "zero", "observation/camera": 7, "observation/camera/left": "first"}
    text = (
        "view: frame_stack\nframes: 2\nfill: {observation: zero, observation/camera: 7, observation/camera/left: first}"
    )
    assert view_from(yaml.safe_load(text)) == FrameStack(2, fill)
    for turned in (fill, dict(reversed(fill.items()))):
        rows = FrameStack(2, turned).cut(pictures()).rows
        assert rows["observation/camera/left"][0].tolist() == [[200] * 2] * 2
        assert rows["observation/camera/right"][0].tolist() == [[7] * 2] * 2
        assert (rows["observation/position"][0], rows["observation/text"][0]) == (0, b"")


@pytest.mark.parametrize(
    ("fill", "message"),
    [
        (1, 'fill 1 does not fit "observation/text", which holds string'),
        ({"observation/camera": 256}, 'fill 256 does not fit "observation/camera/left", which holds uint8'),
        ({"observation/camera/right": 0.5}, 'fill 0.5 does not fit "observation/camera/right", which holds uint8'),
        ({"observation/cam": 0}, r'fill of "observation/cam", expected a path to some of \[.observation/camera/left'),
        ({"action": 0}, 'fill of "action", expected a path to some of'),
        ({"": 0}, 'fill of "", expected a path to some of'),
    ],
)
def test_fills_that_fit_no_column_are_refused_before_a_push_and_in_it(fill: Any, message: str) -> None:
    view = FrameStack(2, fill)
    for use in (lambda: view.signature(spec_of(pictures())), lambda: view.cut(pictures())):
        with pytest.raises(ViewError, match=f"^frame_stack: {message}"):
            use()


def test_a_number_is_a_fill_on_the_command_line() -> None:
    assert view_of("frame_stack:frames=2,fill=0.5") == FrameStack(2, 0.5)
    assert view_of("frame_stack:frames=2,fill=-1") == FrameStack(2, -1)


# Requirements.

SHIFTS = st.lists(st.integers(-4, 4), min_size=1, max_size=3, unique=True)


@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "c", "d", "prev_rewards"]),
        st.tuples(st.sampled_from(["obs", "rewards", "t", "dones"]), SHIFTS, st.sampled_from([None, "first", "zero", 1, 0]), st.integers(1, 3)),
        min_size=1,
    ),
    st.integers(1, 8),
)  # fmt: skip
def test_every_requirement_has_its_own_fill(wanted: dict[str, Any], rows: int) -> None:
    row = np.arange(rows)
    flags = {"is_first": row == 0, "is_last": row == rows - 1, "is_terminal": row == rows - 1}
    columns = {"observation": row + 10, "action": row + 20, "reward": row + 30.5, "t": row, "dones": row == rows - 2}
    whole = Episode({**columns, **flags}, {}, "e")
    given = {
        name: {"data_col": column, "shift": shift, "batch_repeat_value": repeat, **({} if fill is None else {"fill": fill})}
        for name, (column, shift, fill, repeat) in wanted.items()
    }  # fmt: skip
    plain = {
        name: {"data_col": column, "offsets": shift, "repeat": repeat, "fill": "zero" if fill == 0 else fill}
        for name, (column, shift, fill, repeat) in wanted.items()
    }
    view = Requirements(given)
    found = ordered_items(
        view, Episode({path: whole.columns[path] for path in whole.columns if path not in ("t", "dones")}, {}, "e")
    )
    reference.assert_same_items(found, in_order(view, whole, requirement_items(whole, plain)))


def stored(**requirements: Any) -> list[str]:
    """The columns that are stored."""
    return sorted(Requirements(requirements).cut(strategies.episode(np.random.default_rng(0), 5)).rows)


def test_columns_are_stored_twice_only_where_fills_differ() -> None:
    back = {"data_col": "rewards", "shift": -1}
    assert stored(a=back, b=back) == ["rewards"]
    assert stored(a=back, b={**back, "fill": "first"}) == ["rewards"]
    assert stored(a={**back, "fill": "zero"}, b={**back, "fill": 0}) == ["rewards"]
    assert len(stored(a=back, b={**back, "fill": "zero"})) == 2
    assert len(stored(a=back, b={**back, "fill": "zero"}, c={**back, "fill": 2})) == 3
    now, after = {"data_col": "rewards", "fill": 5}, {"data_col": "rewards", "shift": 1}
    assert stored(a=back, b=now, c=after) == ["rewards"]  # b reads no row that is made up
    assert stored(a=now) == ["rewards"]
    assert stored(a={"data_col": "obs", "shift": 1, "fill": 0}, b={"data_col": "obs", "shift": -1}) == stored(
        a={"data_col": "obs"}
    )


def test_a_fill_is_part_of_the_label_only_when_there_is_one() -> None:
    label = Requirements({"a": {"data_col": "obs"}}).label
    assert json.loads(label.removeprefix("requirements:").rpartition(",zero")[0]) == {"a": ["obs", [0], 1]}
    labels = {Requirements({"a": {"data_col": "obs", "fill": fill}}).label for fill in ("first", "zero", 0, 1.5)}
    assert len({*labels, label}) == 4  # 0 is "zero"


@pytest.mark.parametrize("text", ["frame_stack:frames=1000000000", "sequence:length=1000000000,pad_end=true"])
def test_more_made_up_rows_than_anybody_means_are_refused(text: str) -> None:
    with pytest.raises(ViewError, match="rows beside those of the episode would be made up, expected at most 1048576"):
        view_of(text).cut(strategies.episode(np.random.default_rng(0), 5))


def test_so_are_shifts() -> None:
    episode = strategies.episode(np.random.default_rng(0), 5)
    for shift in ("-999999999:0", 99999999999999, [-99999999999]):
        with pytest.raises(ViewError, match="would be made up, expected at most"):
            Requirements({"obs": {"shift": shift}}).cut(episode)


def test_names_that_are_no_text_are_refused() -> None:
    with pytest.raises(ViewError, match="frame_stack: fill of 1, expected a path"):
        FrameStack(3, cast(Any, {1: "zero"}))
    with pytest.raises(ViewError, match="requirements: 1: expected the name of a column"):
        Requirements(cast(Any, {1: {}}))
    with pytest.raises(ViewError, match="unknown 1"):
        Requirements({"a": {1: 2}})


@pytest.mark.parametrize(
    ("column", "fill", "message"),
    [
        ("terminateds", 2, 'fill 2 does not fit "terminateds", which holds bool'),
        ("t", 0.5, 'fill 0.5 does not fit "t", which holds int64'),
        ("rewards", 1e39, r'fill 1e\+39 does not fit "rewards", which holds float32'),
    ],
)
def test_fills_of_requirements_that_do_not_fit_are_refused(column: str, fill: Any, message: str) -> None:
    view = Requirements({"x": {"data_col": column, "shift": -1, "fill": fill}})
    episode = strategies.episode(np.random.default_rng(0), 5)
    episode = episode.with_columns(reward=episode.columns["reward"].astype(np.float64))
    for use in (lambda: view.signature(spec_of(episode)), lambda: view.cut(episode)):
        with pytest.raises(ViewError, match=f'^requirements: "x": {message}'):
            use()
