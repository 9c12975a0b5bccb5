"""Columns whose dtype is more than their values need; a column with one other value is never told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.formats.source import spec_of
from rlds2reverb.prepare.preparation import ColumnStats
from rlds2reverb.specs import flatten
from tests.support import strategies


def told(*columns: np.ndarray) -> list[str]:
    """Codes of a dataset of one column, one episode each."""
    episodes = [Episode({"observation": column}) for column in columns]
    holdings = ColumnStats.of(flatten(spec_of(episodes[0])))
    for episode in episodes:
        holdings = holdings.after(episode)
    return [remark.code for remark in holdings.notices]


def through_float32(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32).astype(np.float64)


class TestRoundedFloats:
    @given(st.integers(0, 2**32 - 1), st.integers(1, 5))
    def test_are_told_of_a_column_with_no_others(self, seed: int, count: int) -> None:
        rng = np.random.default_rng(seed)
        assert told(*(through_float32(rng, 20, 4) for _ in range(count))) == ["rounded_float64"]

    def test_are_told_with_how_many_and_what_to_do(self) -> None:
        columns = {"observation": through_float32(np.random.default_rng(0), 40, 3)}
        (remark,) = ColumnStats.of(flatten(spec_of(Episode(columns)))).after(Episode(columns)).notices
        assert (remark.path, remark.count > 40) == ("observation", True)
        assert "what wrote them has rounded them, as TFDS does unless" in remark.text

    @given(st.integers(0, 2**32 - 1), st.integers(0, 4), st.integers(0, 15))
    def test_are_not_told_where_one_value_is_none(self, seed: int, episode: int, row: int) -> None:
        rng = np.random.default_rng(seed)
        columns = [through_float32(rng, 20, 4) for _ in range(5)]
        columns[episode][row, 1] = 0.1
        assert told(*columns) == []

    @pytest.mark.parametrize(
        "column",
        [
            np.arange(90.0),
            np.arange(-400, 400) / 8,
            np.zeros(90),
            np.full(90, np.nan),
            np.full(90, np.inf),
            through_float32(np.random.default_rng(0), 3),
            through_float32(np.random.default_rng(0), 90, 0),
            through_float32(np.random.default_rng(0), 0, 4),
        ],
        ids=["counts", "eighths", "zeros", "not a number", "infinite", "few", "no values", "no rows"],
    )
    def test_are_not_told_of_numbers_that_may_be_so_by_themselves(self, column: np.ndarray) -> None:
        assert told(column) == []

    def test_are_told_beside_values_that_became_infinite(self) -> None:
        column = through_float32(np.random.default_rng(0), 40, 3)
        column[3] = np.inf
        assert told(column) == ["rounded_float64"]

    @pytest.mark.parametrize("value", [1e300, -1e300, 1e-300, 5e-324, np.finfo(np.float64).max])
    def test_are_not_told_beside_values_that_float32_has_not(self, value: float) -> None:
        column = through_float32(np.random.default_rng(0), 40, 2)
        column[3] = value
        with np.errstate(all="raise"):
            assert told(column) == []

    @settings(max_examples=40)
    @given(st.lists(strategies.episodes(min_steps=1), min_size=1, max_size=3))
    def test_are_not_told_of_any_other_data(self, episodes: list[Episode]) -> None:
        holdings = ColumnStats.of(flatten(spec_of(episodes[0])))
        for episode in episodes:
            holdings = holdings.after(episode)
        assert holdings.notices == ()

    def test_a_column_that_goes_or_changes_does_not_matter(self) -> None:
        column = through_float32(np.random.default_rng(0), 40, 2)
        holdings = ColumnStats.of(flatten(spec_of(Episode({"observation": column}))))
        holdings = holdings.after(Episode({"observation": column})).after(Episode({"action": column}))
        assert [remark.code for remark in holdings.notices] == ["rounded_float64"]
        for odd in (column.astype(np.int64), np.array([b"text"], object)):
            assert holdings.after(Episode({"observation": odd})).notices == ()

    def test_another_byte_order_is_the_same(self) -> None:
        assert told(through_float32(np.random.default_rng(0), 40, 2).astype(">f8")) == ["rounded_float64"]


class TestImagesOfFloats:
    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    @pytest.mark.parametrize("channels", [1, 3, 4])
    def test_are_told_where_bytes_hold_them(self, dtype: Any, channels: int) -> None:
        images = np.random.default_rng(0).integers(0, 256, (5, 9, 8, channels)).astype(dtype)
        assert told(images) == ["float_image"]

    @pytest.mark.parametrize(
        "change",
        [lambda x: x / 255, lambda x: x - 1, lambda x: x * 2, lambda x: np.minimum(x, 1), lambda x: x * np.nan],
    )
    def test_are_not_told_where_bytes_do_not(self, change: Any) -> None:
        images = np.random.default_rng(0).integers(0, 256, (5, 9, 8, 3)).astype(np.float32)
        assert told(images, change(images)[:1], images) in ([], ["float_image"])
        assert told(change(images)) == []

    @pytest.mark.parametrize("shape", [(5, 7, 8, 3), (5, 9, 8, 2), (5, 9, 8), (5, 2, 9, 8, 3)])
    def test_are_images_by_their_shape(self, shape: tuple[int, ...]) -> None:
        assert told(np.random.default_rng(0).integers(0, 256, shape).astype(np.float32)) == []

    def test_are_not_told_of_bytes(self) -> None:
        assert told(np.random.default_rng(0).integers(0, 256, (5, 9, 8, 3), np.uint8)) == []


def test_what_needs_no_look_costs_none() -> None:
    episode = Episode({"observation": np.zeros((3, 2), np.float32)})
    holdings = ColumnStats.of(flatten(spec_of(episode)))
    assert holdings.after(episode) is holdings
