"""Windows over a stream of episodes: agreement with the slow, obvious way, and with TF-Agents' observer on a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import ConfigError, ViewError
from rlds2reverb.push.options import PushOptions
from rlds2reverb.views.trajectory import AcrossEpisodes, RowStream
from tests.support import reference, strategies
from tests.support.views.cutting import Streamed, columns_of, items_of, observed_rows

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


@given(LENGTHS, st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_items_are_the_windows_of_the_joined_rows(lengths: list[int], length: int, stride: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    episodes = [strategies.episode(rng, rows) for rows in lengths]
    view = AcrossEpisodes(length, stride)
    cut = Streamed(view.stream())
    found = [item for one in episodes for item in items_of(cut(one).in_order(columns_of(view, one)))]
    rows = [row for one in episodes for row in observed_rows(one)[0]]
    starts = range(0, len(rows) - length + 1, stride)
    reference.assert_same_items(found, [reference.stack(rows[start : start + length]) for start in starts])


@given(LENGTHS, st.integers(0, 6), st.integers(1, 6), st.integers(1, 5))
def test_a_stream_goes_on_from_its_count_and_last_rows(lengths: list[int], stop: int, length: int, stride: int) -> None:
    view = AcrossEpisodes(length, stride)
    episodes = [strategies.episode(np.random.default_rng(number), rows) for number, rows in enumerate(lengths)]
    one, other = Streamed(view.stream()), Streamed(view.stream())
    expected = [item for episode in episodes for item in items_of(one(episode))]
    found = [item for episode in episodes[:stop] for item in items_of(other(episode))]
    stream = other.stream
    assert isinstance(stream, RowStream)
    assert stream.count == sum(lengths[:stop])
    assert {len(column) for column in stream.last_rows.values()} <= {min(length, stream.count)}
    kept = {path: column[len(column) - min(len(column), length - 1) :] for path, column in stream.last_rows.items()}
    for last_rows in (kept, stream.last_rows):
        resumed = Streamed(RowStream(view, stream.count, last_rows))
        rest = [item for episode in episodes[stop:] for item in items_of(resumed(episode))]
        reference.assert_same_items(found + rest, expected)


def test_every_stream_begins_anew() -> None:
    view, one = AcrossEpisodes(4), strategies.episode(np.random.default_rng(0), 3)
    for _ in range(2):
        cut = Streamed(view.stream())
        assert [len(cut(one).anchors) for _ in range(3)] == [0, 3, 3]


@pytest.mark.parametrize("options", [{"length": 0}, {"stride": 0}, {"length": True}, {"priority": -1}])
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ViewError, match="across_episodes"):
        AcrossEpisodes(**options)


def test_a_ledger_is_refused_because_items_depend_on_more_than_their_episode(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run the whole push again"):
        PushOptions("t", AcrossEpisodes(), ledger=tmp_path / "ledger.db")
