"""`inspect` and `validate` by several workers tell what one pass tells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb import Episode
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.mix import NamedSource
from rlds2reverb.inspection.inspection import inspect_source
from rlds2reverb.inspection.workers import InspectJob, inspect_by_workers
from rlds2reverb.prepare.progress import Progress
from rlds2reverb.views import view_of
from tests.support import strategies
from tests.support.profiles import examples
from tests.support.workers_in_threads import InThreads
from tests.unit.prepare.test_endings import poisoned

VIEWS = {"pairs": view_of("two_step"), "steps": view_of("n_step:n=3")}


@st.composite
def datasets(draw: st.DrawFn) -> list[Episode]:
    """Good episodes and bad ones, of one row and of many; maybe several that end alike."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if draw(st.booleans()):
        return poisoned(rng, draw(st.integers(1, 20)))
    found = []
    for number in range(draw(st.integers(1, 20))):
        one = strategies.episode(rng, draw(st.integers(1, 6)), episode_id=f"e{number}")
        if draw(st.booleans()):
            one = one.with_columns(reward=one.columns["reward"] + np.float32(draw(st.sampled_from([0, 1, np.nan]))))
        found.append(one)
    return found


def without_means(told: dict[str, Any]) -> dict[str, Any]:
    ranges = {path: {**span, "mean": None} for path, span in told["ranges"].items()}
    return {**told, "ranges": ranges}


def means(told: dict[str, Any]) -> list[float]:
    return [np.nan if span["mean"] is None else span["mean"] for span in told["ranges"].values()]


def test_progress_never_goes_backwards_though_parts_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds2reverb.prepare.progress.PACE_SECONDS", -1.0)
    rng, told = np.random.default_rng(0), list[Progress]()
    wanted = InspectJob(
        NamedSource(EpisodeList([strategies.episode(rng, 4, episode_id=f"e{n}") for n in range(20)], "test"))
    )
    inspect_by_workers(wanted, lambda job: InThreads(job, 2, [0, 2, 4]), 4, told.append)
    episodes = [progress.episodes for progress in told]
    assert episodes == sorted(episodes)
    assert (told[-1].episodes, told[-1].steps) == (20, 80)


@examples(30)
@given(datasets(), st.integers(1, 3), st.integers(1, 6), st.frozensets(st.integers(0, 4)))
def test_an_inspection_is_that_of_one_pass(
    episodes: list[Episode], workers: int, most: int, lost: frozenset[int]
) -> None:
    wanted = InspectJob(NamedSource(EpisodeList(episodes, "test")), views=VIEWS)
    one = inspect_source(wanted.source.open(), VIEWS).as_dict()
    divided = inspect_by_workers(wanted, lambda job: InThreads(job, workers, lost), most).as_dict()
    assert without_means(divided) == without_means(one)
    np.testing.assert_allclose(means(divided), means(one), rtol=1e-12, atol=1e-12)


@examples(20)
@given(datasets(), st.integers(1, 3), st.integers(1, 6))
def test_findings_are_those_of_one_pass(episodes: list[Episode], workers: int, most: int) -> None:
    wanted = InspectJob(NamedSource(EpisodeList(episodes, "test")))
    one, divided = (
        inspect_source(wanted.source.open(), {}),
        inspect_by_workers(wanted, lambda job: InThreads(job, workers), most),
    )
    assert (divided.episodes, divided.findings) == (one.episodes, one.findings)


def test_views_of_streams_are_refused() -> None:
    wanted = InspectJob(NamedSource(EpisodeList([])), views={"replay": view_of("across_episodes")})
    with pytest.raises(ConfigError, match="items depend on the episodes before"):
        inspect_by_workers(wanted, lambda job: InThreads(job, 1))


def test_what_cannot_be_read_is_told() -> None:
    class Broken(EpisodeList):
        def read(self, start: int = 0, stop: int | None = None, is_known: object = None) -> Any:
            raise SourceError(f"broken at {start}")

    episodes = [strategies.episode(np.random.default_rng(0), 4, episode_id=f"e{number}") for number in range(6)]
    with pytest.raises(SourceError, match=r"broken at [024]"):
        inspect_by_workers(InspectJob(NamedSource(Broken(episodes))), lambda job: InThreads(job, 2), 2)


@examples(10)
@given(st.integers(1, 20), st.integers(1, 3), st.integers(1, 6), st.frozensets(st.integers(0, 4)))
def test_progress_counts_episodes_and_steps_over_all_workers(
    count: int, workers: int, most: int, lost: frozenset[int]
) -> None:
    rng = np.random.default_rng(count)
    episodes = [strategies.episode(rng, 2 + number % 3, episode_id=f"e{number}") for number in range(count)]
    told: list[Progress] = []
    wanted = InspectJob(NamedSource(EpisodeList(episodes, "test")))
    inspect_by_workers(wanted, lambda job: InThreads(job, workers, lost), most, told.append)
    assert {progress.episode_count for progress in told} == {count}
    assert (told[-1].episodes, told[-1].steps) == (count, sum(map(len, episodes)))
