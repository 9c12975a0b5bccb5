"""RLDS -> TED -> RLDS and TED -> RLDS -> TED change nothing but what is told."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Episode, is_under, metadata_specs
from rlds2reverb.formats import open_destination, open_source
from rlds2reverb.formats.destination import Content, Loss
from rlds2reverb.specs import column_spec
from tests.support import strategies
from tests.support.formats.ted_writing import LAYOUTS, write
from tests.support.profiles import examples

FEW = examples(12, deep=200)


@pytest.fixture(autouse=True, scope="module")
def no_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


COLUMNS = strategies.column_specs()
MORE = st.sampled_from(["extra", "camera/left", "next/extra"]).flatmap(
    lambda path: st.tuples(strategies.dtypes(), strategies.shapes()).map(lambda spec: {path: spec})
)


@st.composite
def datasets(draw: st.DrawFn) -> list[Episode]:
    specs = {**draw(COLUMNS), **draw(st.one_of(st.just({}), MORE))}
    return [draw(strategies.episodes(2, 6, specs, f"episode {number}")) for number in range(draw(st.integers(1, 11)))]


def lost(losses: Sequence[Loss], path: str) -> bool:
    return any(loss.path is not None and is_under(path, loss.path) for loss in losses)


@FEW
@given(datasets(), st.sampled_from(sorted(LAYOUTS)))
def test_what_is_not_told_as_lost_comes_back(episodes: list[Episode], layout: str) -> None:
    observed = [
        path for path, values in episodes[0].columns.items() if path.startswith("observation") and _holds(values)
    ]
    if not observed:
        return
    with tempfile.TemporaryDirectory() as folder:
        name, of_all, of_each = write(Path(folder), episodes, LAYOUTS[layout])
        found = list(open_source(name))
        assert len(found) == len(episodes)
        for episode, other, losses in zip(episodes, found, of_each):
            assert not other.faults
            for path, column in episode.columns.items():
                if not lost([*of_all, *losses], path):
                    here = other.columns[path]
                    assert here.dtype == column.dtype, path
                    assert here.shape == column.shape, path
                    assert here.tobytes() == column.tobytes(), path


def _holds(column: Any) -> bool:
    return column.dtype.kind not in "Oc" and column.size > 0


@FEW
@given(datasets(), st.sampled_from(sorted(LAYOUTS)), st.sampled_from(["memmap", "h5"]))
def test_what_was_ted_is_the_same_ted_again(episodes: list[Episode], first: str, layout: str) -> None:
    if not any(path.startswith("observation") and _holds(column) for path, column in episodes[0].columns.items()):
        return
    with tempfile.TemporaryDirectory() as folder:
        one, two, three = (Path(folder) / name for name in ("one", "two", "three"))
        name, *_ = write(one, episodes, LAYOUTS[first])
        again, *_ = write(two, list(open_source(name)), LAYOUTS[layout])
        last, *_ = write(three, list(open_source(again)), LAYOUTS[layout])
        assert files(two) == files(three)
        for was, now in zip(open_source(again), open_source(last)):
            assert {path: column.tobytes() for path, column in was.columns.items()} == {
                path: column.tobytes() for path, column in now.columns.items()
            }


def files(folder: Path) -> dict[str, Any]:
    """Every file of a buffer; of H5, every dataset."""
    made: dict[str, Any] = {}
    for path in sorted(entry for entry in folder.rglob("*") if entry.is_file()):
        if path.suffix != ".h5":
            made[str(path.relative_to(folder))] = path.read_bytes()
            continue
        with h5py.File(path) as file:
            file.visititems(
                lambda key, held: made.update(
                    {key: (held.dtype.str, held[()].tobytes())} if isinstance(held, h5py.Dataset) else {}
                )
            )
    return made


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_stands_at_the_root_only_stays_there(layout: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    columns: strategies.Columns = {
        "observation": (np.dtype("float32"), (2,)),
        "action": (np.dtype("int64"), ()),
        "log_prob": (np.dtype("float64"), ()),
    }
    episodes = [strategies.episode(rng, rows, columns) for rows in (3, 5)]
    name, of_all, _ = write(tmp_path / "one", episodes, f"{LAYOUTS[layout]},steps=log_prob")
    assert of_all == []
    if layout == "memmap":
        assert not (tmp_path / "one" / "buffer" / "storage" / "next" / "log_prob.memmap").exists()
    found = list(open_source(name))
    for episode, other in zip(episodes, found):
        assert other.columns["log_prob"].tolist() == [*episode.columns["log_prob"][:-1].tolist(), 0.0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_metadata_is_told_as_lost(layout: str, tmp_path: Path) -> None:
    episode = strategies.episode(np.random.default_rng(0), 3)
    one = Episode(episode.columns, {"task": b"pick"})
    content = Content(
        "a test", {path: column_spec(column) for path, column in one.columns.items()}, metadata_specs(one)
    )
    destination = open_destination(f"ted:{tmp_path / 'x'}{LAYOUTS[layout]}")
    assert [(loss.code, loss.path) for loss in destination.losses(content)] == [("metadata", "metadata/task")]
    shutil.rmtree(tmp_path / "x", ignore_errors=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbers_of_the_shape_1_are_told(layout: str, tmp_path: Path) -> None:
    one = strategies.episode(np.random.default_rng(0), 4)
    ones = one.with_columns(reward=np.ones((4, 1), np.float32), discount=np.ones((4, 1)), other=np.ones((4, 1)))
    name, losses, _ = write(tmp_path, [ones], f"{LAYOUTS[layout]},steps=other")
    assert [(loss.code, loss.path) for loss in losses] == [("shape", "discount"), ("shape", "reward")]
    back = next(iter(open_source(name))).columns
    assert (back["reward"].shape, back["discount"].shape, back["other"].shape) == ((4,), (4,), (4, 1))
