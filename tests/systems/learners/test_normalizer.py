"""Normalisers do with torch and JAX what they do with numpy."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch

from rlds2reverb.episode import Array
from rlds2reverb.numbers.normalizer import MODES, Normalizer
from rlds2reverb.numbers.statistics import StatisticsBuilder
from rlds2reverb.specs import column_spec

ACTIONS = np.random.default_rng(2).normal(2, 3, size=(500, 4)).astype(np.float32)
ACTIONS[:, 2] = 0.25


def by_numpy(mode: str) -> tuple[Normalizer, Array]:
    builder = StatisticsBuilder({"action": column_spec(ACTIONS)})
    builder.add({"action": ACTIONS}, 500)
    normalizer = Normalizer(builder.build(), mode, masks={"action": [True, True, True, False]}, clip=True)
    return normalizer, normalizer["action"].normalize(ACTIONS)


@pytest.mark.parametrize("mode", MODES)
def test_torch_is_as_numpy(mode: str) -> None:
    normalizer, expected = by_numpy(mode)
    tensor = torch.from_numpy(ACTIONS)
    normal = normalizer({"action": tensor})["action"]
    assert normal.dtype == torch.float32
    np.testing.assert_allclose(normal.numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(
        normalizer.denormalize({"action": normal})["action"].numpy(),
        normalizer["action"].denormalize(expected),
        atol=1e-5,
    )
    assert normalizer["action"].normalize(tensor.to(torch.bfloat16)).dtype == torch.bfloat16
    assert normalizer["action"].normalize(torch.ones(4, dtype=torch.int64)).dtype == torch.float32


@pytest.mark.parametrize("mode", MODES)
def test_jax_is_as_numpy_also_when_it_is_compiled(mode: str) -> None:
    normalizer, expected = by_numpy(mode)
    for normalize in (normalizer.normalize, jax.jit(normalizer.normalize)):
        normal = normalize({"action": jax.numpy.asarray(ACTIONS)})["action"]
        assert isinstance(normal, jax.Array) and normal.dtype == np.float32
        np.testing.assert_allclose(np.asarray(normal), expected, atol=1e-5)
    back = jax.jit(normalizer.denormalize)({"action": normal})["action"]
    np.testing.assert_allclose(np.asarray(back), normalizer["action"].denormalize(expected), atol=1e-4)
