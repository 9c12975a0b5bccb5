"""Episodes from one number to another, of sources that pass over those before and of one that reads them."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb import Episode
from rlds2reverb.formats import open_source
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.source import as_source
from tests.support import strategies
from tests.unit.formats.tfds.test_read import write

EPISODES = [strategies.episode(np.random.default_rng(number), 3, episode_id=f"e{number}") for number in range(12)]


class Plain:
    """A source that offers no more than it must."""

    name, episode_count = "plain", len(EPISODES)

    def __iter__(self) -> Iterator[Episode]:
        return iter(EPISODES)

    def spec(self) -> Any:
        return EpisodeList(EPISODES).spec()


def ids(source: Any) -> list[str]:
    return [one.id for one in source]


@given(st.integers(0, 14), st.integers(0, 14), st.integers(1, 3), st.integers(0, 2), st.integers(0, 14))
def test_a_span_is_a_slice_of_the_whole(start: int, length: int, count: int, index: int, limit: int) -> None:
    stop, whole = start + length, [one.id for one in EPISODES]
    for source in (EpisodeList(EPISODES), as_source(Plain()), EpisodeList(EPISODES).first(12)):
        span = source.slice(start, stop)
        assert ids(span) == whole[start:stop]
        assert span.episode_count == len(whole[start:stop])
        if index < count:
            assert ids(span.shard(index, count)) == whole[start:stop][index::count]
    limited = EpisodeList(EPISODES).first(limit).slice(start, stop)
    assert ids(limited) == whole[:limit][start:stop]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=20).filter(any), st.data())
def test_spans_of_tfds_files_are_slices_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], data: st.DataObject
) -> None:
    source = open_source(f"tfds:{write(tmp_path_factory.mktemp('x'), train=lengths)}")
    whole = ids(source)
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    assert ids(source.slice(start, stop)) == whole[start:stop]


def test_files_of_tfds_are_closed_as_soon_as_they_are_read(tmp_path: Path) -> None:
    source = open_source(f"tfds:{write(tmp_path, train=[3] * 64)}")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        assert len(ids(source.slice(1, 190))) == 189
        gc.collect()
