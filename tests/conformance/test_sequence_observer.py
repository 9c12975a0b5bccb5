"""`ReverbTrajectorySequenceObserver`, whose windows cross borders: of episodes, of pushes, between pushes and calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("tf_agents")

import reverb
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils, rlds_to_reverb

from rlds2reverb.errors import ServerRestarted
from rlds2reverb.tf_agents import create_trajectory_data_spec, push_rlds_to_reverb
from rlds2reverb.tf_agents.observers import StreamCutter, left_where_it_ends, stream_from
from tests.conformance.observing import (
    SIDES,
    Outcome,
    Stream,
    all_steps,
    assert_same_outcome,
    dataset,
    make_episodes,
    tables_of_both_sides,
)
from tests.support import reference, rlds_data
from tests.support.forks import Embedded, Forks
from tests.support.profiles import on_one_server

SEEDS = st.integers(0, 2**32 - 1)
LENGTHS = st.lists(st.integers(1, 12), max_size=4)
SPECS = st.sampled_from(["flat", "mixed", "text"])
"""Not nested: there TF-Agents stores other things, on which `test_observers.py` has a word."""


@pytest.fixture(scope="module")
def server(forks: Forks) -> Iterator[Embedded]:
    with forks.embedded(tables_of_both_sides()) as running:
        yield running


@pytest.fixture
def client(server: Embedded) -> Any:
    found = reverb.Client(server.address)
    for table in found.server_info():
        found.reset(table)
    return found


@contextmanager
def calls_forbidden() -> Iterator[None]:
    """Within, the observer cannot be called step by step."""

    def forbidden(*_: Any) -> None:
        raise AssertionError("the observer was called")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reverb_utils.ReverbTrajectorySequenceObserver, "__call__", forbidden)
        yield


# What a user may do with an observer, in any order.


@dataclass(frozen=True)
class Push:
    lengths: list[int]
    seed: int = 0

    def on(self, observer: Any, spec: str, side: str) -> Any:
        with calls_forbidden() if side == "ours" else nullcontext():
            return SIDES[side](dataset(spec, make_episodes(spec, self.lengths, self.seed)), observer)


@dataclass(frozen=True)
class Call:
    steps: int
    seed: int = 0

    def on(self, observer: Any, spec: str, side: str) -> Any:
        episodes = make_episodes(spec, [3, 1, 20], self.seed)
        for entry in islice(rlds_to_reverb.convert_rlds_to_trajectories(dataset(spec, episodes)), self.steps):
            observer(entry)


@dataclass(frozen=True)
class Reset:
    write_cached_steps: bool

    def on(self, observer: Any, spec: str, side: str) -> Any:
        try:
            observer.reset(self.write_cached_steps)
        except ValueError as error:
            return str(error)
        return None


@dataclass(frozen=True)
class Reopen:
    def on(self, observer: Any, spec: str, side: str) -> Any:
        observer.close()
        observer.open()


def state(observer: Any) -> tuple[Any, ...]:
    """What an observer knows beside its writer, so that it compares with ==."""
    last = None if observer._last_trajectory is None else tf.nest.flatten(observer._last_trajectory)
    return observer._cached_steps, last and [tf.make_tensor_proto(leaf).SerializeToString() for leaf in last]


def run(client: Any, side: str, spec: str, options: Stream, script: list[Any]) -> tuple[list[Any], Outcome]:
    """What every action returned and left in the observer; the stored items."""
    tables = [f"{spec}/{side}/{number}" for number in (1, 2)]
    for table in tables:
        client.reset(table)
    observer = options.observer(client, tables)
    seen = [(action.on(observer, spec, side), state(observer)) for action in script]
    observer.flush()
    stored = [rlds_data.take_all(client, table) for table in tables]
    observer.close()
    return seen, Outcome(stored=stored)


def assert_same_story(client: Any, spec: str, options: Stream, script: list[Any]) -> Outcome:
    """Found to be the same with our push and with TF-Agents'; the stored items."""
    seen, ours = run(client, "ours", spec, options, script)
    expected, theirs = run(client, "theirs", spec, options, script)
    assert seen == expected
    assert_same_outcome(ours, theirs)
    assert all(not items for items in ours.stored[options.tables :])
    return ours


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    pad = draw(st.booleans())
    return Stream(
        draw(st.integers(1, 6)),
        draw(st.integers(1, 6)),
        pad,
        pad and draw(st.booleans()),
        draw(st.sampled_from([1, 0.0, 0.25, 7])),
        draw(st.integers(1, 2)),
    )


PUSHES = st.builds(Push, LENGTHS, SEEDS)
ACTIONS = st.one_of(
    PUSHES,
    PUSHES,
    st.builds(Call, st.integers(0, 24), SEEDS),
    st.builds(Reset, st.booleans()),
    st.just(Reopen()),
)


@given(spec=SPECS, options=streams(), pushes=st.lists(PUSHES, min_size=1, max_size=2))
@on_one_server(40)
@example("flat", Stream(4, 6, tables=2), [Push([5]), Push([9, 1, 3])])
@example("text", Stream(6, 5), [Push([1]), Push([2, 2, 12, 7])])
def test_one_or_two_pushes_store_what_the_observer_stores(
    client: Any, spec: str, options: Stream, pushes: list[Push]
) -> None:
    ours = assert_same_story(client, spec, options, pushes)
    rows = sum(sum(push.lengths) for push in pushes)
    assert len(ours.stored[0]) == len(range(0, rows - options.length + 1, options.stride))


@given(spec=SPECS, options=streams(), script=st.lists(ACTIONS, min_size=2, max_size=6))
@on_one_server(40)
@example("flat", Stream(5, 3, pad=True, tile=True), [Push([7, 2]), Reset(True), Push([3])])
@example("flat", Stream(5, 3, pad=True), [Push([2, 1]), Reset(True), Push([6])])
@example("mixed", Stream(4, 2), [Call(7), Push([3, 2]), Reset(True), Call(2), Push([1, 1]), Call(9)])
def test_pushes_calls_and_resets_follow_one_another_as_with_tf_agents(
    client: Any, spec: str, options: Stream, script: list[Any]
) -> None:
    assert_same_story(client, spec, options, script)


def test_short_episodes_under_a_long_window(client: Any) -> None:
    """Many episodes per part, and many parts per push."""
    ours = assert_same_story(client, "flat", Stream(30, 7), [Push([1, 2, 3] * 40), Push([5] * 50), Call(8)])
    assert len(ours.stored[0]) == len(range(0, 240 + 250 + 8 - 29, 7))


# Where the two differ, on purpose or because the observer cannot be spared.


def test_after_bad_data_the_stream_goes_on_after_the_last_good_episode(client: Any) -> None:
    before, good, after = (make_episodes("flat", [4, 3, 2, 6], seed)[:2] for seed in (1, 2, 3))
    bad = {**good[0], "is_terminal": np.ones(4, bool)}
    observer = Stream(5, 2).observer(client, ["flat/ours/1"])
    with calls_forbidden():
        push_rlds_to_reverb(dataset("flat", before), observer)
        with pytest.raises(tf.errors.InvalidArgumentError, match="Terminal step must be the last"):
            push_rlds_to_reverb(dataset("flat", [*good, bad]), observer)
        push_rlds_to_reverb(dataset("flat", after), observer)
    rows = [row for part in (before, good, after) for row in reference.trajectories(all_steps(part))]
    stored = rlds_data.take_all(client, "flat/ours/1")
    reference.assert_same_items([item.columns for item in stored], Stream(5, 2).items(rows, 3))


def test_when_the_connection_fails_the_observer_stays_as_it_was(client: Any) -> None:
    data = dataset("flat", make_episodes("flat", [4]))
    observer = Stream(3).observer(client, ["flat/ours/1"])
    push_rlds_to_reverb(data, observer)
    spec, before = create_trajectory_data_spec(data), state(observer)
    stream = stream_from(observer, spec)
    assert stream is not None
    cutter = StreamCutter(stream)
    with pytest.raises(ServerRestarted), left_where_it_ends(observer, cutter, spec):
        cutter.stream = replace(stream, count=stream.count + 5)
        raise ServerRestarted("gone")
    assert state(observer) == before


def test_trajectories_of_another_structure_in_the_writer_are_left_to_the_observer(client: Any) -> None:
    """It raises at the first window over both kinds; one after the other is fine."""
    data = dataset("flat", make_episodes("flat", [4]))
    texts = []
    for side, push in SIDES.items():
        observer = Stream(3).observer(client, [f"flat/{side}/1"])
        push(data, observer, lambda current, following: {"reward": following["reward"]})
        with pytest.raises(ValueError, match="cannot contain any None") as caught:
            push(data, observer)
        texts.append(str(caught.value).split("<")[0])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("leaf", [tf.TensorSpec((2,), tf.bfloat16), tf.TensorSpec((None, 3))], ids=str)
def test_what_the_writer_cannot_hold_is_left_to_the_observer(leaf: tf.TensorSpec) -> None:
    assert stream_from(None, {"observation": leaf}) is None


@pytest.mark.parametrize("length", [1, 3])
def test_a_stream_is_taken_up_from_the_writer(client: Any, length: int) -> None:
    data = dataset("text", make_episodes("text", [4]))
    observer = Stream(length).observer(client, ["text/ours/1"])
    spec = create_trajectory_data_spec(data)
    fresh = stream_from(observer, spec)
    assert fresh is not None and (fresh.count, fresh.last_rows) == (0, {})
    push_rlds_to_reverb(data, observer)
    stream = stream_from(observer, spec)
    assert stream is not None and stream.count == 4
    rows = reference.trajectories(all_steps(make_episodes("text", [4])))
    reference.assert_same_items([list(stream.last_rows.values())], [reference.stack(rows[-length:])])


def test_the_class_itself_only(client: Any) -> None:
    class Doubled(reverb_utils.ReverbTrajectorySequenceObserver):
        calls = 0

        def __call__(self, trajectory: Any) -> None:
            Doubled.calls += 1
            super().__call__(trajectory)

    push_rlds_to_reverb(dataset("flat", make_episodes("flat", [3, 2])), Doubled(client, "flat/ours/1", 2))
    assert Doubled.calls == 5
