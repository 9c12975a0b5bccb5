"""Normalisers do what the formulas of LeRobot, openpi and OpenVLA say, and go back."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.batch import Batch, BatchInfo
from rlds2reverb.numbers.normalizer import MODES, Normalizer
from rlds2reverb.numbers.statistics import DatasetStatistics, StatisticsBuilder
from rlds2reverb.specs import column_spec
from tests.support.profiles import examples

RNG = np.random.default_rng(2)
ACTIONS = RNG.normal(2, 3, size=(500, 4)).astype(np.float32)
ACTIONS[:, 2] = 0.25
ACTIONS[:, 3] = np.arange(500) == 3  # q01 = q99
STATES = RNG.uniform(-5, 9, size=(500, 3))


def made() -> DatasetStatistics:
    columns: dict[str, Array] = {"action": ACTIONS, "observation/state": STATES, "reward": ACTIONS[:, 0]}
    builder = StatisticsBuilder({path: column_spec(column) for path, column in columns.items()})
    builder.add(columns, 500)
    return builder.build()


STATISTICS = made()


@examples(60)
@given(st.sampled_from(MODES), st.sampled_from([(), (5,), (2, 3)]), st.integers(0, 2**32 - 1))
def test_it_goes_both_ways(mode: str, leading: tuple[int, ...], seed: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 500, leading)
    nest = {"action": ACTIONS[rows], "observation": {"state": STATES[rows], "other": 1}, "reward": 2.0}
    normalizer = Normalizer(STATISTICS, mode)
    assert normalizer.columns == ("action", "observation/state")
    normal = normalizer(nest)
    assert (normal["action"].dtype, normal["observation"]["state"].dtype) == (np.float32, np.float64)
    assert np.isfinite(normal["action"]).all() and (normal["observation"]["other"], normal["reward"]) == (1, 2.0)
    back = normalizer.denormalize(normal)
    np.testing.assert_allclose(back["action"], nest["action"], atol=1e-5)
    np.testing.assert_allclose(back["observation"]["state"], nest["observation"]["state"], atol=1e-9)
    paths = normalizer.normalize({"observation/state": STATES[rows]})
    np.testing.assert_array_equal(paths["observation/state"], normal["observation"]["state"])


def test_the_formulas() -> None:
    x = STATES
    mean, std, low, high = x.mean(0), x.std(0), x.min(0), x.max(0)
    q01, q99 = np.quantile(x, [0.01, 0.99], axis=0)
    expected = {
        ("mean_std", False): (x - mean) / (std + 1e-8),
        ("mean_std", True): (x - mean) / (std + 1e-8),
        ("mean_std", 0.5): np.clip((x - mean) / (std + 1e-8), -0.5, 0.5),
        ("min_max", False): 2 * (x - low) / (high - low + 1e-8) - 1,
        ("quantiles", False): 2 * (x - q01) / (q99 - q01 + 1e-8) - 1,
        ("quantiles", True): np.clip(2 * (x - q01) / (q99 - q01 + 1e-8) - 1, -1, 1),
    }
    for (mode, clip), values in expected.items():
        normalizer = Normalizer(STATISTICS, mode, ["observation/state"], clip=clip)
        np.testing.assert_allclose(normalizer["observation/state"].normalize(x), values, atol=1e-12)


def test_one_value_becomes_0_and_comes_back_and_equal_quantiles_give_way_to_ends() -> None:
    for mode in MODES:
        normalizer = Normalizer(STATISTICS, mode)
        normal = normalizer({"action": ACTIONS})["action"]
        assert (normal[:, 2] == 0).all()
        assert (normalizer.denormalize({"action": normal + 1})["action"][:, 2] == 0.25).all()
        assert list(normalizer.by_ends) == (["action"] if mode == "quantiles" else [])
    assert normalizer.by_ends["action"].tolist() == [False, False, False, True]
    assert (normal[:, 3].min(), normal[:, 3].max()) == (-1, pytest.approx(1))


def test_masked_dimensions_stay() -> None:
    mask = [True, True, True, False]
    for normalizer in (
        Normalizer(STATISTICS, "quantiles", masks={"action": mask}, clip=True),
        Normalizer(STATISTICS.with_mask("action", mask), "quantiles", clip=True),
    ):
        shifted = ACTIONS + 10
        normal = normalizer({"action": shifted})["action"]
        assert (normal[:, 3] == shifted[:, 3]).all() and (np.abs(normal[:, :3]) <= 1).all()
        assert (normalizer.denormalize({"action": normal})["action"][:, 3] == shifted[:, 3]).all()


def test_a_file_will_do_and_tuples_keep_their_kind(tmp_path: Path) -> None:
    STATISTICS.write(tmp_path / "norm_stats.json")
    kind = namedtuple("kind", ["action", "reward"])
    normalizer = Normalizer(
        tmp_path / "norm_stats.json", {"action": "quantiles"}, masks={"action": [True] * 3 + [False]}
    )
    normal = normalizer(kind(ACTIONS, 1))
    assert type(normal) is kind and normal.reward == 1
    np.testing.assert_allclose(
        normal.action[:, 0], Normalizer(STATISTICS, "quantiles")["action"].normalize(ACTIONS)[:, 0]
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "min_mx"}, 'did you mean "min_max"'),
        ({"columns": ["acton"]}, 'did you mean "action"'),
        ({"masks": {"action": [True]}}, r"expected 4 bools of shape \(4,\), found bool of shape \(1,\)"),
        ({"masks": {"reward": [True]}}, '"reward" is none of'),
        ({"mode": {"action": "min_max"}, "columns": ["action"]}, "leave out columns"),
        ({"clip": -1}, "clip -1"),
        ({"epsilon": -1}, "epsilon -1"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Normalizer(STATISTICS, **options)


def test_statistics_that_lack_what_a_mode_needs_are_refused(tmp_path: Path) -> None:
    STATISTICS.write(tmp_path / "norm_stats.json")
    with pytest.raises(ConfigError, match="lack what mode min_max needs in 3 of 4 dimensions"):
        Normalizer(tmp_path / "norm_stats.json", "min_max")


def test_a_batch_is_normalised_below_its_data() -> None:
    normalizer = Normalizer(STATISTICS, "min_max")
    zeros = np.zeros(2)
    info = BatchInfo(zeros, zeros, zeros, zeros, zeros)
    batch = normalizer(Batch({"action": ACTIONS[:2], "other": ACTIONS[:2]}, info))
    assert isinstance(batch, Batch) and batch.info is info
    np.testing.assert_array_equal(batch.data["action"], normalizer["action"].normalize(ACTIONS[:2]))
    assert batch.data["other"] is not None


@pytest.mark.parametrize(("nest", "words"), [({"actions": ACTIONS}, "found actions"), (ACTIONS, r"PATH\].normalize")])
def test_a_nest_with_none_of_the_columns_is_refused(nest: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Normalizer(STATISTICS)(nest)


@pytest.mark.parametrize("shape", [(), (4,), (5,), (4, 1), (4, 3)])
def test_arrays_of_another_width_are_refused_not_broadcast(shape: tuple[int, ...]) -> None:
    normalizer = Normalizer(STATISTICS, columns=["observation/state", "action"])
    values = np.zeros(shape)
    path = "action" if shape[-1:] == (3,) else "observation/state"
    for change in (normalizer[path].normalize, normalizer[path].denormalize):
        with pytest.raises(ConfigError, match=rf'"{path}": statistics of another signature: expected .*\[\.\.\., \d\]'):
            change(values)
    with pytest.raises(ConfigError, match="another signature"):
        normalizer({"observation": {"state": np.zeros((4, 4))}})


def test_integers_become_float32() -> None:
    assert Normalizer(STATISTICS)["action"].normalize([[1, 2, 3, 4]]).dtype == np.float32


@pytest.mark.parametrize(("mean", "std"), [(1.0, 2.5e-6), (300.3, 0.5)])
def test_floats_of_16_bits_are_computed_in_32(mean: float, std: float) -> None:
    """The scale is infinite in float16, or the mean is not one of its numbers."""
    column = np.random.default_rng(3).normal(mean, std, (4_000, 1)).astype(np.float16)
    column[0] = column[0] + np.float16(0.001)
    builder = StatisticsBuilder({"action": column_spec(column)})
    builder.add({"action": column}, len(column))
    normalizer = Normalizer(builder.build())
    normal = normalizer({"action": column})["action"]
    expected = normalizer({"action": column.astype(np.float32)})["action"]
    assert normal.dtype == np.float16
    np.testing.assert_allclose(normal, expected.astype(np.float16))
