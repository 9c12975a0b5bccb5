"""An episode that is appended step by step is stored as `client.push` stores it: the same items under the same keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb import Episode, PushReport
from rlds2reverb.errors import Rlds2ReverbError
from rlds2reverb.push.options import PushOptions
from rlds2reverb.push.plan import plan_push
from rlds2reverb.push.run import Push
from rlds2reverb.testing import MemoryTransport
from tests.support import strategies
from tests.support.learner.loops import steps_of, write, write_as_loop, writer
from tests.support.push.in_memory import Server, table_info
from tests.support.raising import outcome_of

VIEWS = [
    "two_step",
    "sequence:length=3,stride=2",
    "episode",
    "across_episodes:length=4",
    "transition",
    "n_step:n=3,gamma=0.9",
    "slices:length=4",
    "fragments:length=4",
    "frame_stack:frames=2",
    "goal",
    "target_pair",
]
FLAGS = ("is_first", "is_last", "is_terminal")


def pushed(episodes: list[Episode], tables: Any, **options: Any) -> Any:
    """What a push stores, and its account; or its error."""
    server = Server({name: table_info(name) for name in tables})
    transport = MemoryTransport(server)

    def push() -> Any:
        plan = plan_push(episodes, PushOptions(tables, **options), lambda: {"memory": transport.server_info()})
        return Push({"memory": transport}, plan).run()

    report = outcome_of(Rlds2ReverbError, push)
    return server.items, report


def written(episodes: list[Episode], tables: Any, how: Any = write, **options: Any) -> Any:
    """What a writer stores, and its account; or its error."""
    server = Server({name: table_info(name) for name in tables})

    def run() -> Any:
        with writer(server, tables, **options) as to:
            for episode in episodes:
                how(to, episode, episode.id)
        return to.report()

    report = outcome_of(Rlds2ReverbError, run)
    return server.items, report


def assert_same(ours: Any, theirs: Any) -> None:
    assert ours.keys() == theirs.keys()
    for name, items in ours.items():
        assert list(items) == list(theirs[name])
        for key, values in items.items():
            for value, other in zip(values, theirs[name][key], strict=True):
                assert (value.dtype, value.shape) == (other.dtype, other.shape)
                np.testing.assert_array_equal(value, other)


def same_columns(specs: Any, count: int, seed: int) -> list[Episode]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, 9, count)
    return [strategies.episode(rng, int(steps), specs, bool(n % 2), f"episode-{n}") for n, steps in enumerate(lengths)]


@settings(max_examples=40)
@given(strategies.column_specs(), st.integers(1, 4), st.integers(0, 99), st.sampled_from(VIEWS), st.booleans())
def test_items_keys_and_account_are_those_of_a_push(
    specs: Any, count: int, seed: int, view: str, has_flags: bool
) -> None:
    episodes = same_columns(specs, count, seed)
    left_out = () if has_flags else FLAGS
    tables = {"replay": view, "other": "two_step"}
    theirs, report = pushed(episodes, tables)
    ours, account = written(episodes, tables, lambda to, episode, name: write(to, episode, name, left_out))
    if isinstance(report, Rlds2ReverbError):
        assert type(account) is type(report)
        return
    assert_same(ours, theirs)
    told = [
        (said.episodes_pushed, said.steps_pushed, said.items_confirmed, said.items_made, said.left_over, said.advice)
        for said in (account, report)
    ]
    assert told[0] == told[1]


@settings(max_examples=20)
@given(strategies.column_specs(), st.integers(1, 4), st.integers(0, 99), st.sampled_from(VIEWS), st.booleans())
def test_so_are_those_of_whole_episodes(specs: Any, count: int, seed: int, view: str, has_flags: bool) -> None:
    def write_whole(to: Any, episode: Episode, name: str | None) -> None:
        columns = {path: column for path, column in episode.columns.items() if has_flags or path not in FLAGS}
        terminal = None if has_flags else bool(episode.columns["is_terminal"][-1])
        to.write_episode(columns, terminal=terminal, id=name, metadata=episode.metadata)

    episodes = same_columns(specs, count, seed)
    theirs, report = pushed(episodes, {"replay": view})
    ours, account = written(episodes, {"replay": view}, write_whole)
    if isinstance(report, Rlds2ReverbError):
        assert type(account) is type(report)
    else:
        assert_same(ours, theirs)


@settings(max_examples=30)
@given(
    strategies.column_specs(),
    st.integers(0, 99),
    st.sampled_from(["two_step", "episode", "transition"]),
    st.booleans(),
    st.integers(1, 9),
)
def test_whole_episodes_are_cut_as_those_of_single_steps(
    specs: Any, seed: int, view: str, has_flags: bool, max_steps: int
) -> None:
    left_out = () if has_flags else FLAGS

    def write_steps(to: Any, episode: Episode, _: str | None) -> None:
        *steps, last = steps_of(episode, *left_out)
        for step in steps:
            to.append(step)
        to.end_episode(last, terminal=bool(episode.columns["is_terminal"][-1]))

    def write_whole(to: Any, episode: Episode, _: str | None) -> None:
        columns = {path: column for path, column in episode.columns.items() if path not in left_out}
        to.write_episode(columns, terminal=None if has_flags else bool(episode.columns["is_terminal"][-1]))

    episodes = same_columns(specs, 3, seed)
    tables, options = {"replay": view}, {"name": "loop", "max_steps": max_steps}
    expected, report = written(episodes, tables, write_steps, **options)
    parts, account = written(episodes, tables, write_whole, **options)
    if isinstance(report, Rlds2ReverbError):
        assert type(account) is type(report)
        return
    assert account.episodes_pushed == report.episodes_pushed == sum(-(-(len(e) - 1) // max_steps) for e in episodes)
    # Only the names of the episodes differ, and with them the keys.
    assert_same(*({name: dict(enumerate(items.values())) for name, items in t.items()} for t in (parts, expected)))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"terminal_discount": "transition"},
        {"last_reward": "shift", "allow": ["first_reward_lost"]},
        {"last_observation": "drop"},
        {"last_step": "repeat"},
        {"transform": "drop=reward"},
        {"chunk_length": 3},
    ],
    ids=str,
)
def test_so_are_those_of_a_loop_that_gives_only_what_an_environment_tells(view: str, options: Any) -> None:
    episodes = same_columns(None, 5, 7)
    plain = [
        Episode(
            {
                **{path: column for path, column in episode.columns.items() if path != "discount"},
                "action": np.concatenate((episode.columns["action"][:-1], np.zeros((1, 6), np.float32))),
            },
            id=episode.id,
        )
        for episode in episodes
    ]
    theirs, report = pushed(plain, {"replay": view}, **options)
    ours, account = written(episodes, {"replay": view}, write_as_loop, **options)
    assert isinstance(report, PushReport), report
    assert isinstance(account, PushReport), account
    assert_same(ours, theirs)
    assert len(ours["replay"]) >= 5


@pytest.mark.parametrize("view", ["two_step", "frame_stack:frames=2", "episode"])
def test_so_are_frames_that_become_files(view: str) -> None:
    pytest.importorskip("imagecodecs")
    columns: strategies.Columns = {
        "observation/image": (np.dtype(np.uint8), (9, 12, 3)),
        "action": (np.dtype(np.float32), (2,)),
    }
    episodes = [strategies.episode(np.random.default_rng(n), 4, columns, episode_id=f"e{n}") for n in range(3)]
    options: dict[str, Any] = {"encode": "jpeg:quality=80", "transform": "resize=observation/image:8x8"}
    theirs, report = pushed(episodes, {"replay": view}, **options)
    ours, account = written(episodes, {"replay": view}, **options)
    assert isinstance(report, PushReport), report
    assert isinstance(account, PushReport), account
    assert_same(ours, theirs)
    files = [column for item in ours["replay"].values() for column in item if column.dtype == object]
    assert all(file[:3] in (b"", b"\xff\xd8\xff") for column in files for file in column.ravel())
    assert files
