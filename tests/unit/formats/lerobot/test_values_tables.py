"""Pieces of tables, and frames by time, against the slow obvious way."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from rlds2reverb.formats.lerobot import values
from rlds2reverb.formats.lerobot.values import TableRows
from rlds2reverb.formats.lerobot.videos import NoFrame, choose_frames
from rlds2reverb.formats.recordings import BrokenEpisode
from tests.support.profiles import examples

PATH = Path(mkdtemp()) / "rows.parquet"


@examples(40)
@given(
    st.integers(1, 60),
    st.integers(1, 60),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=6),
    st.integers(1, 200),
)
def test_any_pieces_in_any_order_are_those_of_the_table(
    rows: int, group: int, pieces: list[tuple[int, int]], batch_bytes: int
) -> None:
    parquet.write_table(pa.table({"a": range(rows), "b": [[n, n] for n in range(rows)]}), PATH, row_group_size=group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "_BATCH_BYTES", batch_bytes)
        read = TableRows(PATH, ["a"])
        for piece, other in pieces:
            start, stop = sorted((min(piece, rows), min(other, rows)))
            assert read.read(start, stop).column("a").to_pylist() == list(range(start, stop))
        with pytest.raises(BrokenEpisode, match=f"has {rows} rows"):
            read.read(0, rows + 1)
        read.close()


def nearest(times: list[float], wanted: float) -> int | None:
    """Of the frames until the first that is not before, the nearest; an earlier one where two are."""
    known = [at for at, time in enumerate(times) if not any(before >= wanted for before in times[:at])]
    found = min(known, key=lambda at: abs(times[at] - wanted), default=None)
    return found if found is not None and abs(times[found] - wanted) < 0.1 else None


@given(st.lists(st.integers(0, 30), unique=True, max_size=12), st.lists(st.floats(0, 3), max_size=12))
def test_frames_are_the_nearest_ones(ticks: list[int], seconds: list[float]) -> None:
    times = [tick / 10 for tick in sorted(ticks)]
    wanted = sorted(seconds)
    expected = [nearest(times, time) for time in wanted]
    shown: Any = iter([(time, at) for at, time in enumerate(times)])
    read = choose_frames(shown, np.array(wanted), 0.1)
    if None in expected:
        with pytest.raises(NoFrame) as missing:
            list(read)
        assert missing.value.args[0] == expected.index(None)
    else:
        assert [frame for _, frame in read] == expected


def test_an_episode_that_is_too_large_is_a_bad_one_and_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"x": np.random.default_rng(0).normal(size=50_000)}), path)
    monkeypatch.setattr(values, "MOST_BYTES", 100_000)
    monkeypatch.setattr(values, "_BATCH_BYTES", 10_000)
    rows = values.TableRows(path, ["x"])
    assert len(rows.read(0, 5_000).column("x")) == 5_000
    with pytest.raises(BrokenEpisode) as broken:
        rows.read(0, 40_000)
    assert "more than 100,000 bytes from row 0 to 40,000" in broken.value.why
    assert len(rows.read(40_000, 45_000).column("x")) == 5_000
    rows.close()
