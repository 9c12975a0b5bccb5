"""Whole episodes in Parquet files of RLlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source

pa = pytest.importorskip("pyarrow")
pytest.importorskip("msgpack")
import pyarrow.parquet as pq


def write_episode(folder: Path, observations: Any, actions: Any, rows: int, **buffer: Any) -> None:
    """An episode's state as msgpack, whose arrays are those of msgpack-numpy; `buffer` goes to the observations and actions."""
    import msgpack

    def encode(value: Any) -> Any:
        array = np.asarray(value)
        about = {b"nd": isinstance(value, np.ndarray), b"type": array.dtype.str, b"data": array.tobytes()}
        return {**about, b"kind": b"", b"shape": array.shape} if isinstance(value, np.ndarray) else about

    lookback = buffer.setdefault("lookback", 0)
    state = {
        "id_": "a",
        "t_started": 0,
        "is_terminated": True,
        "observations": {"data": observations, **buffer},
        "actions": {"data": actions, **buffer},
        "rewards": {"data": np.arange(lookback + rows, dtype=np.float32), **buffer},
        "infos": {"data": [{}] * (lookback + rows + 1), "lookback": lookback},
    }
    pq.write_table(
        pa.table({"item": pa.array([msgpack.packb(state, default=encode)], pa.binary())}), folder / "x.parquet"
    )


LARGE = (1 << 53) + 1


@pytest.mark.parametrize("lookback", [0, 1])
@pytest.mark.parametrize("finalized", [False, True])
def test_components_of_a_tuple_are_not_transposed_or_promoted(tmp_path: Path, finalized: bool, lookback: int) -> None:
    """Two steps and two components."""
    numbers = range(-lookback, 3)
    observations: Any = [(np.full(2, at, np.float32), np.int64(LARGE + at)) for at in numbers]
    actions: Any = [(np.int64(LARGE + at), np.int8(at)) for at in numbers][:-1]
    if finalized:
        observations, actions = ([np.stack(parts) for parts in zip(*rows)] for rows in (observations, actions))
    write_episode(tmp_path, observations, actions, 2, finalized=finalized, lookback=lookback)
    [episode] = open_source(f"rllib:{tmp_path}")
    assert not episode.faults
    columns = {path: (column.dtype.str, column.tolist()) for path, column in episode.columns.items()}
    assert columns["observation/0"] == ("<f4", [[0, 0], [1, 1], [2, 2]])
    assert columns["observation/1"] == ("<i8", [LARGE, LARGE + 1, LARGE + 2])
    assert columns["action/0"] == ("<i8", [LARGE, LARGE + 1, 0])
    assert columns["action/1"] == ("|i1", [0, 1, 0])


@pytest.mark.parametrize(
    ("space", "paths"),
    [
        ({"space": "tuple", "spaces": [None, None]}, {"action/0", "action/1"}),
        ({"space": "box"}, {"action"}),
        (None, {"action"}),
    ],
)
def test_lists_of_plain_numbers_are_what_their_space_says(tmp_path: Path, space: Any, paths: set[str]) -> None:
    write_episode(tmp_path, [np.zeros(1)] * 4, [[1, 2]] * 3, 3, finalized=False, space=space)
    [episode] = open_source(f"rllib:{tmp_path}")
    assert {path for path in episode.columns if path.startswith("action")} == paths


def test_plain_numbers_of_several_types_are_components(tmp_path: Path) -> None:
    write_episode(tmp_path, [np.zeros(1)] * 4, [[LARGE, 0.5]] * 3, 3, finalized=False)
    [episode] = open_source(f"rllib:{tmp_path}")
    assert episode.columns["action/0"].tolist() == [LARGE] * 3 + [0]


def test_an_empty_tuple_is_a_record_that_cannot_be_read(tmp_path: Path) -> None:
    write_episode(tmp_path, [np.zeros(1)] * 4, [], 3, finalized=True)
    with pytest.raises(SourceError, match="no records"):
        open_source(f"rllib:{tmp_path}")
