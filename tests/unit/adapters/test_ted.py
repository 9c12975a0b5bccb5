"""Items of our views as TorchRL's transitions, beside a slow reading of the episodes themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlds2reverb.adapters.ted import NEXT, Transitions, flatten_valid, mark_ends, transitions_of
from rlds2reverb.episode import Episode
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.batch import Batch, BatchInfo, pad_columns
from rlds2reverb.specs import flatten, map_with_path
from rlds2reverb.views import view_from
from tests.systems.peers.episodes import items, random_episode, random_episodes

VIEWS = [
    "transition",
    "two_step",
    "sequence:length=4",
    "sequence:length=4,stride=3,pad_end=true",
    "sequence:length=3,pad_end=true,tile_end=true",
    "slices:length=3,per_episode=4",
    "slices:length=5,per_episode=2,truncated=true",
    "slices:length=6,strict=false",
    "episode",
]

Row = tuple[Any, ...]


def batch_of(view: Any, episodes: list[Episode]) -> Batch:
    """All items of the episodes, as `ragged="pad"` gives them."""
    made = [item for episode in episodes for item in items(view, episode)]
    columns: list[Any] = []
    for path in made[0]:
        values = [item[path] for item in made]
        columns.append(np.stack(values) if len({value.shape for value in values}) == 1 else values)
    columns, mask, _ = pad_columns(columns, list(made[0]), [False] * len(columns), None)
    by_path = dict(zip(made[0], columns))
    return Batch(nested(by_path), info(len(made))._replace(mask=mask))


def nested(by_path: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for path, column in by_path.items():
        *parents, name = path.split("/")
        place = out
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = column
    return out


def expected(episodes: list[Episode]) -> dict[bytes, Row]:
    """By observation, which is unique: action, reward, next observation, terminated, truncated."""
    rows: dict[bytes, Row] = {}
    for episode in episodes:
        steps = episode.columns
        for t in range(len(episode) - 1):
            ends, terminal = bool(steps["is_last"][t + 1]), bool(steps["is_terminal"][t + 1])
            rows[steps["observation"][t].tobytes()] = (
                steps["action"][t].tobytes(),
                float(steps["reward"][t]),
                steps["observation"][t + 1].tobytes(),
                ends and terminal,
                ends and not terminal,
            )
    return rows


def rows_of(made: Transitions) -> list[tuple[bytes, Row]]:
    """Observation -> the rest, of each valid transition."""
    flat: dict[str, Any] = flatten(map_with_path(lambda _, leaf: flatten_valid(made, leaf), made.columns))
    for name in ("next/reward", "next/done", "next/terminated", "next/truncated", "done", "terminated", "truncated"):
        assert flat[name].shape == (made.valid.sum(), 1)
    for name in ("done", "terminated", "truncated"):
        assert not flat[name].any()
    ends = flat["next/terminated"] | flat["next/truncated"]
    np.testing.assert_array_equal(flat["next/done"], ends)
    parts = (flat["action"], flat["next/reward"], flat["next/observation"])
    return [
        (
            flat["observation"][n].tobytes(),
            (
                parts[0][n].tobytes(),
                float(parts[1][n, 0]),
                parts[2][n].tobytes(),
                bool(flat["next/terminated"][n, 0]),
                bool(flat["next/truncated"][n, 0]),
            ),
        )
        for n in range(int(made.valid.sum()))
    ]


def with_discounts(episode: Episode, terminal: bool, zero_before_the_end: bool) -> Episode:
    discount = np.ones(len(episode), np.float32)
    discount[-2:] = [not (terminal and zero_before_the_end), not terminal]
    return Episode({**episode.columns, "discount": discount}, {}, episode.id)


@pytest.mark.parametrize("text", VIEWS)
@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("zero_before_the_end", [True, False])
def test_every_transition_is_one_of_the_episodes(text: str, terminal: bool, zero_before_the_end: bool) -> None:
    """Whichever row has the discount of 0 that says terminal to those who read trajectories."""
    episodes = [with_discounts(episode, terminal, zero_before_the_end) for episode in random_episodes(terminal)]
    wanted, made = expected(episodes), transitions_of(batch_of(view_from(text), episodes))
    found = rows_of(made)
    assert found
    for observation, rest in found:
        assert wanted[observation] == rest
    if text in ("transition", "two_step", "episode"):  # these have every transition, once
        assert sorted(observation for observation, _ in found) == sorted(wanted)
    assert made.is_single == (text in ("transition", "two_step"))


@pytest.mark.parametrize("text", VIEWS)
def test_the_last_transition_of_an_item_is_marked_and_no_other(text: str) -> None:
    made = transitions_of(batch_of(view_from(text), random_episodes()))
    marked = mark_ends(made)
    before, after = made.columns[NEXT], marked.columns[NEXT]
    for number, valid in enumerate(made.valid):
        last = np.flatnonzero(valid)[-1:]
        for name in ("truncated", "done"):
            wanted = before[name][number].copy()
            wanted[last] = True
            np.testing.assert_array_equal(after[name][number], wanted)
    np.testing.assert_array_equal(before["terminated"], after["terminated"])


def test_a_batch_over_the_borders_of_episodes_has_no_transition_from_a_last_row() -> None:
    kinds = np.array([[0, 1, 2, 0, 1]], np.int32)  # FIRST MID LAST FIRST MID
    rows = np.arange(5.0)[None]
    fields = {"step_type": kinds, "next_step_type": np.roll(kinds, -1), "observation": rows, "action": rows}
    made = transitions_of(Batch({**fields, "reward": rows, "discount": np.ones((1, 5))}, info(1)))
    assert made.valid.tolist() == [[True, True, False, True]]
    assert flatten_valid(made, made.columns[NEXT]["observation"]).tolist() == [1, 2, 4]
    assert flatten_valid(made, made.columns[NEXT]["truncated"])[:, 0].tolist() == [False, True, False]


def info(count: int) -> BatchInfo:
    ones = np.ones(count)
    return BatchInfo(np.arange(count, dtype=np.uint64), ones, ones, ones, ones)


def test_nests_and_further_columns_are_kept() -> None:
    episode = random_episode(5)
    steps = {name: column[None] for name, column in episode.columns.items()}
    data = {**steps, "observation": {"a": steps["observation"], "b": (steps["reward"],)}, "note": steps["reward"]}
    data["reward"] = {"x": steps["reward"], "y": steps["action"]}
    made = transitions_of(Batch(data, info(1))).columns
    assert made[NEXT]["observation"]["b"][0].tolist() == steps["reward"][:, 1:].tolist()
    assert made[NEXT]["reward"]["y"].shape == (1, 4, 3, 1)
    assert made["note"].tolist() == steps["reward"][:, :-1].tolist()
    assert not {"is_first", "is_last", "is_terminal", "reward"} & made.keys()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([np.ones((2, 2))], "without names; give the table a signature"),
        ({"context": np.ones(2)}, "items have the columns context; expected those of the view transition"),
        ({"next": {"observation": np.ones(2)}}, "items have no next/reward, next/done"),
        ({"step_type": np.ones((2, 2), np.int32), "observation": np.ones((2, 2))}, 'no column "discount"'),
        ({"step_type": np.ones((2, 2), np.int32), "discount": np.ones((2, 2))}, 'no column "observation"'),
        ({"step_type": np.ones((2, 1), np.int32), "discount": np.ones((2, 1))}, r"rows \[1\]; a transition needs two"),
        ({"step_type": np.ones(2, np.int32), "discount": np.ones(2)}, r"rows \[\]; a transition needs two"),
        (
            {"step_type": np.ones((2, 2), np.int32), "discount": np.ones((2, 2)), "reward": np.ones((2, 3))},
            r'"reward" is \[2, 3\]: expected \[2, 2\] rows',
        ),
        ({"is_last": [np.ones(2, bool)], "is_terminal": [np.ones(2, bool)]}, 'ragged="pad"'),
    ],
)
def test_other_items_are_refused_in_words(data: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        transitions_of(Batch(data, info(2)))
