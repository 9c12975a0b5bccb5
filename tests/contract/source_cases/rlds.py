"""RLDS datasets of TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlds2reverb.formats import open_source
from tests.contract.source_cases import data
from tests.support import rlds_data


def rlds(change: Callable[[Any], Any] = lambda dataset: dataset, **options: Any) -> Any:
    pytest.importorskip("tensorflow")
    from rlds2reverb.formats.rlds import RldsSource

    numbered = [{"number": at, "key": f"key {at}".encode()} for at in range(data.EPISODES)]
    return RldsSource(change(rlds_data.dataset(data.columns(), metadata=numbered)), **options)


def in_columns() -> Any:
    tf = pytest.importorskip("tensorflow")
    made = [{name: column[:2] for name, column in episode.items()} for episode in data.columns()]
    steps = tf.nest.map_structure(lambda *columns: np.stack(columns), *made)
    return open_source(tf.data.Dataset.from_tensor_slices({"steps": steps}))


def without_the_third(dataset: Any) -> Any:
    return dataset.filter(lambda episode: episode["number"] != 2)


def without_metadata(dataset: Any) -> Any:
    return dataset.map(lambda episode: {"steps": episode["steps"]})


SOURCES = {
    "as it is": rlds,
    "of columns": in_columns,
    "with places": lambda: rlds(place_feature="key"),
    "filtered": lambda: rlds(without_the_third),
    "mapped": lambda: rlds(without_metadata),
    "a user's own shard": lambda: rlds(lambda dataset: dataset.shard(2, 1)),
}
PUSHED = ["as it is", "with places"]
