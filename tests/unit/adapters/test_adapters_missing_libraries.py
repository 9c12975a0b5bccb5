"""An adapter without its library says what to install."""

from __future__ import annotations

import importlib
import sys

import pytest

from rlds2reverb.extras import how_to_install

ADAPTERS = [
    ("torch", "torch", "the adapter for PyTorch needs torch", "torch"),
    ("torchrl", "torch", "the adapter for TorchRL needs torch", "torchrl"),
    ("jax", "jax", "the adapter for JAX needs jax", "jax"),
    ("lerobot", "torch", "the adapter for LeRobot's policies needs torch", "lerobot"),
]


@pytest.mark.parametrize(("adapter", "library", "words", "extra"), ADAPTERS)
def test_it_says_what_to_install(
    adapter: str, library: str, words: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("rlds2reverb.adapters.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)  # importing it fails, wherever it is installed
    with pytest.raises(ModuleNotFoundError) as error:
        importlib.import_module(f"rlds2reverb.adapters.{adapter}")
    assert str(error.value) == f"{words}; {how_to_install(extra)}"
    assert "pip install" in str(error.value)
