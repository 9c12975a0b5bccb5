"""Every dtype and shape that specs have, written by every destination: its own library reads the values, or the loss is told before."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlds2reverb.conversion.convert import planned
from rlds2reverb.episode import Array, Episode
from tests.support import strategies

DTYPES = (*strategies.DTYPES, *(np.dtype(kind) for kind in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)))
SHAPES = [(), (1,), (3,), (2, 2), (2, 3, 4), (0,), (0, 3), (3, 0), (2, 0, 3)]
IMAGES = [(20, 18, 3), (20, 18, 1), (20, 18, 4), (40, 36, 3), (40, 36)]

LIBRARIES = {
    "minari": [pytest.param("minari:{}/set-v0", id="minari")],
    "torchrl": [
        pytest.param("ted:{}/set", id="ted"),
        pytest.param("ted:{}/set.h5", id="h5"),
        pytest.param("ted:{}/set?layout=memmap", id="memmap"),
    ],
    "webdataset": [pytest.param("ilr:{}/set.tar?terminals=yes", id="ilr")],
    "lerobot": [pytest.param("lerobot:{}/set?fps=10,last_step=keep", id="lerobot")],
    "tensorflow_datasets": [pytest.param("tfds:{}/my_set", id="tfds", marks=pytest.mark.full)],
}
NAMES = [name for module, names in LIBRARIES.items() if find_spec(module) is not None for name in names]

pytestmark = [pytest.mark.timeout(300), pytest.mark.skipif(not NAMES, reason="no library is installed")]


def values(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    if dtype == np.uint64:  # LeRobot has no more; see test_write.py
        return rng.integers(0, 1 << 63, shape, np.uint64)
    if dtype == object:
        texts = np.empty(int(np.prod(shape)), object)
        texts[:] = [f"text {number} ü".encode() for number in range(texts.size)]
        return texts.reshape(shape)
    return strategies.array(rng, dtype, shape)


def episodes(cells: list[tuple[np.dtype[Any], tuple[int, ...]]]) -> list[Episode]:
    """Two episodes with a column for each cell below the observation, below the action, and beside them."""
    made = []
    for number in range(2):
        rng = np.random.default_rng(number)
        base = {"observation/state": (np.dtype("float32"), (2,)), "action/state": (np.dtype("float32"), (2,))}
        episode = strategies.episode(rng, 3 + number, base, terminal=bool(number))
        columns = dict(episode.columns)
        for dtype, shape in cells:
            name = f"{dtype.name}_{'x'.join(map(str, shape))}"
            for above in ("observation/", "action/", "own_"):
                column = values(rng, dtype, (3 + number, *shape))
                columns[above + name] = column
        made.append(Episode(columns))
    return made


CELLS = {
    "dtypes": [(dtype, shape) for dtype in DTYPES for shape in ((), (3,))],
    "shapes": [(np.dtype(kind), shape) for kind in ("f4", "u1", "O") for shape in SHAPES],
    "images": [(np.dtype(kind), shape) for kind in ("uint8", "uint16") for shape in IMAGES],
}


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("name", NAMES)
def test_its_own_library_reads_what_is_written(name: str, kind: str, tmp_path: Path) -> None:
    conversion = planned(episodes(CELLS[kind]), name.format(tmp_path), verify=True)
    told = {loss.path for loss in conversion.job.losses}
    report = conversion.run()
    assert report.verified == 2
    assert len(report.verified_by) == 2, "its library has not read it"
    later = {loss.path for loss in report.losses if loss.episodes is not None and loss.rows == "all"}
    assert later <= told, "a column that is left out is told before anything is written"
    whole = [path for path in conversion.job.content.columns if path not in told]
    assert any(path.startswith("observation/") for path in whole)
