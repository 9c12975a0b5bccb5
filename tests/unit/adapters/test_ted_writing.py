"""Steps in TED, in any pieces, become the episodes of a slow loop over each environment's steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.adapters.ted_writing import MASKS, TRAJECTORY_ID, TrajectoryRecorder, differ
from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError

Leaves = dict[str, Array]


def collect(
    rows: int, count: int, ends: Mapping[tuple[int, int], bool], has_ids: bool = False, jumps: Any = ()
) -> Leaves:
    """Steps [rows, count] of environments whose observations are unique numbers.

    Args:
      ends: (row, step) -> whether that end is terminal.
      jumps: (row, step) after which the next step is missing.
    """
    now, following = np.zeros((2, rows, count, 1), np.float32)
    done, terminated = np.zeros((2, rows, count, 1), bool)
    ids = np.zeros((rows, count), np.int64)
    for row in range(rows):
        number, trajectory = 1000.0 * row, 10 * row
        for step in range(count):
            now[row, step], following[row, step], ids[row, step] = number, number + 1, trajectory
            number += 1
            if (row, step) in ends:
                done[row, step], terminated[row, step] = True, ends[row, step]
                number, trajectory = number + 100, trajectory + 1
            elif (row, step) in jumps:
                number += 7
    leaves: Leaves = {
        "observation": now,
        "action": now[..., 0].astype(np.int64),
        "next/observation": following,
        "next/reward": now * 2,
        "next/done": done,
        "next/terminated": terminated,
        "next/truncated": done & ~terminated,
        "done": np.zeros_like(done),
    }
    return {**leaves, **({TRAJECTORY_ID: ids} if has_ids else {})}


def by_hand(leaves: Leaves) -> list[tuple[list[float], list[int], bool]]:
    """The observations, actions and terminal flag of each trajectory, step by step."""
    episodes = []
    rows, count = leaves["next/done"].shape[:2]
    for row in range(rows):
        observations, actions = list[float](), list[int]()
        for step in range(count):
            observation = float(leaves["observation"][row, step, 0])
            if actions and observations[-1] != observation:
                episodes.append((observations, actions, False))
                observations, actions = [], []
            observations = [*observations[:-1], observation] if observations else [observation]
            observations.append(float(leaves["next/observation"][row, step, 0]))
            actions.append(int(leaves["action"][row, step]))
            if leaves["next/done"][row, step, 0]:
                episodes.append((observations, actions, bool(leaves["next/terminated"][row, step, 0])))
                observations, actions = [], []
        if actions:
            episodes.append((observations, actions, False))
    return sorted(episodes)


def told(columns: Iterator[Leaves]) -> list[tuple[list[float], list[int], bool]]:
    return [
        (
            episode["observation"][:, 0].tolist(),
            episode["action"][:-1].tolist(),
            bool(episode["is_terminal"][-1]),
        )
        for episode in columns
    ]


def pieces(leaves: Leaves, cuts: list[int]) -> Iterator[Leaves]:
    """The steps in several batches, each in the same memory, which is overwritten afterwards, as by a collector."""
    bounds = [0, *sorted(cuts), leaves["next/done"].shape[1]]
    for start, stop in pairwise(bounds):
        if start < stop:
            memory = {key: leaf[:, start:stop].copy() for key, leaf in leaves.items()}
            yield memory
            for leaf in memory.values():
                leaf[...] = 77


@given(st.data(), st.integers(1, 3), st.integers(1, 12), st.booleans())
def test_episodes_are_those_of_a_slow_loop_however_steps_are_handed_over(
    data: st.DataObject, rows: int, count: int, has_ids: bool
) -> None:
    places = st.tuples(st.integers(0, rows - 1), st.integers(0, count - 1))
    ends = data.draw(st.dictionaries(places, st.booleans(), max_size=4))
    jumps = data.draw(st.sets(places, max_size=3))
    leaves = collect(rows, count, ends, has_ids, jumps)
    cuts = data.draw(st.lists(st.integers(1, max(1, count - 1)), max_size=3, unique=True))
    recorder, episodes = TrajectoryRecorder(), []
    for batch in pieces(leaves, cuts):
        episodes += told(recorder.take(batch))
    episodes += told(recorder.finish())
    assert sorted(episodes) == by_hand(leaves)
    assert recorder.cuts == len([place for place in jumps - ends.keys() if place[1] < count - 1])
    assert not recorder.unfinished


def test_a_trajectory_goes_on_in_another_row_by_its_id() -> None:
    whole = collect(1, 6, {}, has_ids=True)
    other = {key: leaf + (5000 if leaf.dtype != bool else 0) for key, leaf in whole.items()}
    first = {key: np.concatenate([leaf[:, :3], other[key][:, :3]]) for key, leaf in whole.items()}
    second = {key: np.concatenate([other[key][:, 3:], leaf[:, 3:]]) for key, leaf in whole.items()}
    recorder = TrajectoryRecorder()
    assert not told(recorder.take(first)) + told(recorder.take(second))
    assert recorder.unfinished == 2
    assert sorted(len(actions) for _, actions, _ in told(recorder.finish())) == [6, 6]


@pytest.mark.parametrize("has_ids", [True, False])
@pytest.mark.parametrize("mask", MASKS)
@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4), ends=st.sets(st.integers(0, 3)))
def test_padding_of_split_trajectories_is_left_out(
    mask: str, has_ids: bool, lengths: list[int], ends: set[int]
) -> None:
    """TorchRL pads with zeros, which are the id of a real trajectory, too."""
    done = {(row, length - 1): True for row, length in enumerate(lengths) if length and row in ends}
    leaves = collect(len(lengths), 5, done, has_ids)
    is_step = np.arange(5) < np.array(lengths)[:, np.newaxis]
    for leaf in leaves.values():
        leaf[~is_step] = 0
    rows = [{key: leaf[[row], :length] for key, leaf in leaves.items()} for row, length in enumerate(lengths) if length]
    recorder = TrajectoryRecorder()
    episodes = told(recorder.take({**leaves, mask: is_step[..., np.newaxis]})) + told(recorder.finish())
    assert sorted(episodes) == sorted(episode for row in rows for episode in by_hand(row))
    assert not recorder.cuts


def test_a_mask_that_is_no_padding_is_refused_or_a_column() -> None:
    leaves = collect(1, 3, {(0, 2): True})
    with pytest.raises(ConfigError, match="padding at the end of each row only"):
        list(TrajectoryRecorder().take({**leaves, "mask": np.array([[True, False, True]])}))
    with pytest.raises(ConfigError, match='"mask" has 2 rows; expected 1'):
        list(TrajectoryRecorder().take({**leaves, "mask": np.ones((2, 3), bool)}))
    (episode,) = TrajectoryRecorder().take({**leaves, "mask": np.ones((1, 3, 4), bool)})
    assert episode["mask"].shape == (4, 4)


def test_columns_are_those_of_a_dump() -> None:
    leaves = collect(1, 3, {(0, 2): True})
    leaves |= {
        "step_count": np.arange(3)[None, :, None],
        "next/step_count": np.arange(1, 4)[None, :, None],
        "log_prob": np.array([[0.1, 0.2, 0.3]]),
        "next/info": np.array([[5, 6, 7]]),
        "collector/mask": np.ones((1, 3), bool),
        "index": np.arange(3)[None],
    }
    (episode,) = TrajectoryRecorder().take(leaves)
    assert {path: column.shape for path, column in episode.items()} == {
        "observation": (4, 1),
        "action": (4,),
        "reward": (4,),
        "discount": (4,),
        "is_first": (4,),
        "is_last": (4,),
        "is_terminal": (4,),
        "step_count": (4, 1),
        "log_prob": (4,),
        "next/info": (4,),
    }
    assert episode["step_count"].ravel().tolist() == [0, 1, 2, 3]
    assert episode["log_prob"].tolist() == [0.1, 0.2, 0.3, 0]
    assert episode["next/info"].tolist() == [5, 6, 7, 0]
    assert episode["discount"].tolist() == [1, 1, 0, 0]
    assert episode["reward"].tolist() == [0, 2, 4, 0]


def test_a_long_trajectory_is_cut_and_loses_no_transition() -> None:
    recorder = TrajectoryRecorder(max_steps=4)
    episodes = []
    for batch in pieces(collect(1, 10, {}), [2, 4, 7]):
        episodes += told(recorder.take(batch))
    episodes += told(recorder.finish())
    assert [len(actions) for _, actions, _ in episodes] == [4, 6]
    assert [action for _, actions, _ in episodes for action in actions] == list(range(10))
    with pytest.raises(ConfigError, match=r"without an end takes .*max_steps"):
        list(TrajectoryRecorder(most_bytes=50).take(collect(1, 10, {})))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"action": None}, 'no key "action"'),
        ({"observation": None}, 'no key "observation"'),
        ({"next/observation": None}, 'no key "next/observation"'),
        ({"next/done": None, "next/terminated": None, "next/truncated": None}, "nothing says where a trajectory ends"),
        ({"next/terminated": None, "next/truncated": None}, "alone does not say"),
        ({"next/done": np.zeros((1, 3, 2, 1), bool)}, "expected one flag per step. Where each agent"),
        ({"action": np.zeros((1, 2), np.int64)}, "expected it to begin with"),
        ({TRAJECTORY_ID: np.zeros((1, 3, 2), np.int64)}, "expected one id"),
    ],
)
def test_what_cannot_be_episodes_is_refused(change: dict[str, Any], match: str) -> None:
    leaves = {**collect(1, 3, {}), **change}
    with pytest.raises(ConfigError, match=match):
        TrajectoryRecorder().take({key: leaf for key, leaf in leaves.items() if leaf is not None})


def test_other_steps_than_before_are_refused_and_nothing_is_taken() -> None:
    recorder = TrajectoryRecorder()
    assert not told(recorder.take(collect(1, 3, {})))
    changes: list[Leaves] = [{"action": np.zeros((1, 3), np.float32)}, {"extra": np.zeros((1, 3))}]
    for change in changes:
        with pytest.raises(ConfigError, match="differ from those before"):
            recorder.take({**collect(1, 3, {}), **change})
    assert told(recorder.finish()) == by_hand(collect(1, 3, {}))


def test_truncated_alone_says_how_a_trajectory_ended() -> None:
    leaves = collect(1, 4, {(0, 1): True, (0, 3): False})
    del leaves["next/terminated"]
    assert [terminal for *_, terminal in told(TrajectoryRecorder().take(leaves))] == [True, False]


def test_observations_are_compared_bit_by_bit() -> None:
    assert differ(np.array([[b"a"], [b"b"]], object), np.array([[b"a"], [b"c"]], object), 1).tolist() == [False, True]
    assert differ(np.zeros((2, 0)), np.zeros((2, 0)), 1).tolist() == [False, False]


def test_discarded_steps_are_counted() -> None:
    recorder = TrajectoryRecorder()
    assert not told(recorder.take(collect(2, 3, {})))
    assert recorder.discard() == 6
    assert not told(recorder.finish())
