"""Statistics are those of numpy over everything at once, however the values come, and quantiles are within what is said of them."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.numbers import statistics
from rlds2reverb.numbers.columns import QUANTILES
from rlds2reverb.numbers.statistics import DatasetStatistics, StatisticsBuilder
from rlds2reverb.specs import ArraySpec, column_spec
from tests.support.profiles import examples

COLUMNS = st.sampled_from(["f4", "f8", "i4", "u1", "?"]).flatmap(
    lambda dtype: arrays.arrays(
        dtype,
        st.sampled_from([(40, 3), (17,), (9, 2, 2)]),
        elements=(
            st.floats(-1e3, 1e3, width=32) | st.sampled_from([float("nan"), float("inf"), 2.0])
            if dtype[0] == "f"
            else None
        ),
    )
)


def built(parts: list[Array], kept: int, bins: int = 1 << 14) -> DatasetStatistics:
    """The statistics of a column "action" that comes in parts."""
    with mock.patch.multiple(statistics, KEPT_BYTES=kept, MOST_BINS=bins):
        builder = StatisticsBuilder({"action": column_spec(parts[0])})
    for part in parts:
        builder.add({"action": part}, len(part))
    return builder.build("it")


def check(found: DatasetStatistics, values: Array) -> None:
    """Against numpy, one dimension after the other."""
    column = found["action"]
    assert column.shape == values.shape[1:]
    for place in np.ndindex(column.shape):
        own = np.array([row[place] for row in values]).astype(np.float64)
        own = own[np.isfinite(own)]
        assert column.count[place] == len(own)
        assert column.not_finite[place] == len(values) - len(own)
        if not len(own):
            assert np.isnan(
                [column.mean[place], column.std[place], column.min[place], column.quantiles[0.5][place]]
            ).all()
            continue
        assert (column.min[place], column.max[place]) == (own.min(), own.max())
        np.testing.assert_allclose(column.mean[place], own.mean(), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(column.std[place], own.std(), rtol=1e-7, atol=1e-6)
        for share in QUANTILES:
            off = abs(column.quantiles[share][place] - np.quantile(own, share))
            assert off <= column.quantile_error[place] + 1e-9 * np.abs(own).max()
        assert column.quantile_error[place] <= np.ptp(own) / 3


@examples(150)
@given(COLUMNS, st.integers(1, 4), st.sampled_from([0, 100, 1 << 20]), st.sampled_from([64, 1 << 14]))
def test_they_are_those_of_numpy_within_what_is_said(values: Array, parts: int, kept: int, bins: int) -> None:
    found = built(np.array_split(values, parts), kept, bins)
    check(found, values)
    if kept == 1 << 20:
        assert (np.nan_to_num(found["action"].quantile_error) == 0).all()


@examples(100)
@given(COLUMNS, st.integers(1, 3))
def test_statistics_of_parts_merge_to_those_of_the_whole_also_from_files(
    tmp_path_factory: pytest.TempPathFactory, values: Array, at: int
) -> None:
    path = tmp_path_factory.mktemp("statistics") / "part.json"
    parts = [built([part], 1 << 20) for part in np.split(values, [at])]
    parts[0].write(path)
    merged = DatasetStatistics.merge([DatasetStatistics.read(path), *parts[1:]])
    check(merged, values)
    assert (merged.trajectories, merged.transitions) == (2, len(values))


@examples(50)
@given(COLUMNS, st.integers(1, 3), st.sampled_from([0, 200, 1 << 20]))
def test_builders_of_workers_join_to_one(values: Array, at: int, kept: int) -> None:
    with mock.patch.object(statistics, "KEPT_BYTES", kept):
        builders = [StatisticsBuilder({"action": column_spec(values)}) for _ in range(2)]
    for builder, part in zip(builders, np.split(values, [at])):
        builder.add({"action": part}, len(part))
    builders[0].add_part(builders[1])
    found, whole = builders[0].build()["action"], built([values], kept)["action"]
    check(DatasetStatistics({"action": found}), values)
    for share in QUANTILES:
        np.testing.assert_array_equal(found.quantiles[share], whole.quantiles[share])


@pytest.mark.parametrize("shape", [(12, 10, 3), (3, 12, 10)])
def test_images_are_told_by_channel_and_every_pixel_counts(shape: tuple[int, ...]) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, *shape)).astype(np.uint8)
    builder = StatisticsBuilder({"image": column_spec(images)}, images=True)
    builder.add({"image": images}, 5)
    found = builder.build()["image"]
    pixels = (images if shape[-1] == 3 else np.moveaxis(images, 1, -1)).reshape(-1, 3).astype(np.float64)
    np.testing.assert_allclose([found.mean, found.std], [pixels.mean(0), pixels.std(0)])
    np.testing.assert_array_equal(found.quantiles[0.1], np.quantile(pixels, 0.1, axis=0))
    assert found.is_image and (found.quantile_error == 0).all() and (found.count == 5 * 120).all()
    assert not StatisticsBuilder({"image": column_spec(images)}).numbers


def test_dimensions_that_do_not_suit_a_normaliser_are_told() -> None:
    actions = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    actions[:, 1] = 0.5
    actions[:, 2] = np.arange(1000) == 7
    found = built([actions], 1 << 20)
    assert [(notice.code, notice.path, notice.count) for notice in found.notices] == [
        ("constant_dimension", "action", 1),
        ("equal_quantiles", "action", 1),
    ]
    assert "[1]" in found.notices[0].text and "[2]" in found.notices[1].text
    assert (found["action"].mean[1], found["action"].std[1]) == (0.5, 0)


def test_a_column_too_wide_is_named() -> None:
    builder = StatisticsBuilder({"cloud": ArraySpec((20_000,), np.dtype("float32"))})
    assert [notice.path for notice in builder.build().notices] == ["cloud"]


def test_what_cannot_be_merged_is_refused_with_what_differs(tmp_path: Path) -> None:
    narrow, wide = built([np.zeros((3, 2))], 0), built([np.zeros((3, 4))], 0)
    with pytest.raises(ConfigError, match=r'column "action": .* expected shape \(2,\), found \(4,\)'):
        DatasetStatistics.merge([narrow, wide])
    with pytest.raises(ConfigError, match="differ in action, state"):
        DatasetStatistics.merge([narrow, DatasetStatistics({"state": wide["action"]})])
    with pytest.raises(ConfigError, match="at least one"):
        DatasetStatistics.merge([])
    narrow.write(tmp_path / "norm_stats.json")
    with pytest.raises(ConfigError, match="without counts"):
        DatasetStatistics.merge([narrow, DatasetStatistics.read(tmp_path / "norm_stats.json")])
    with pytest.raises(ConfigError, match="masks differ"):
        DatasetStatistics.merge([narrow, narrow.with_mask("action", [True, False])])
    with pytest.raises(ConfigError, match=r"2 bools of shape \(2,\)"):
        narrow.with_mask("action", [True])
    with pytest.raises(KeyError, match='did you mean "action"'):
        narrow["acton"]


def test_quantiles_of_files_without_histograms_are_bounded_by_the_parts(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = [rng.normal(size=(50, 2)), rng.normal(3, 2, size=(200, 2))]
    for number, part in enumerate(values):
        built([part], 1 << 20).write(tmp_path / str(number), "lerobot")
    found = DatasetStatistics.merge(DatasetStatistics.read(tmp_path / str(number)) for number in range(2))["action"]
    whole = np.concatenate(values)
    np.testing.assert_allclose([found.mean, found.std], [whole.mean(0), whole.std(0)])
    for share in QUANTILES:
        assert (np.abs(found.quantiles[share] - np.quantile(whole, share, axis=0)) <= found.quantile_error).all()
