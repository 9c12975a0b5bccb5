"""Make a small robot dataset that a policy can learn: an arm seen from above reaches the red disc, and not the blue one.

    python examples/make_reach.py DIR --episodes 240

writes `DIR/reach/1.0.0` in the form of TFDS, without TensorFlow. A step has

    observation/image   uint8[48, 48, 3]  the table from above: the red disc, the blue disc, the hand
    observation/state   float32[2]        where the hand is, from 0 to 1
    action              float32[3]        how far the hand moves, and whether it closes (1)

As in sets that people recorded, every operator waits before they begin, for 6 to 12 steps, and every fifth episode fails: it goes to the blue disc.
Where the discs are only the image shows. By RLDS' convention the last row holds the last observation, and no action.

All content is a function of (seed, episode number), so the same command makes equal files.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import rlds2reverb
from rlds2reverb.episode import Array

SIZE = 48
RED, BLUE, OPEN, CLOSED = (220, 40, 40), (40, 80, 220), (240, 240, 240), (90, 90, 90)
FASTEST = 0.05
"""Of the hand, per step."""
HOLDS = 3
"""Steps in which the hand closes and stays."""


def make_episode(seed: int, number: int) -> rlds2reverb.Episode:
    """Return episode `number`; every fifth fails."""
    rng = np.random.default_rng([seed, number])
    is_success = number % 5 != 4
    places = rng.uniform(0.15, 0.85, size=(3, 2))
    while min(np.linalg.norm(places[i] - places[j]) for i, j in ((0, 1), (0, 2), (1, 2))) < 0.3:
        places = rng.uniform(0.15, 0.85, size=(3, 2))
    hand, red, blue = places
    goal = red if is_success else blue
    actions = [np.zeros(3) for _ in range(rng.integers(6, 13))]
    states = [hand for _ in actions]
    while np.linalg.norm(goal - hand) > 0.02:
        way = goal - hand
        move = way * min(1.0, FASTEST / np.linalg.norm(way)) + rng.normal(0.0, 0.003, 2)
        states.append(hand)
        actions.append(np.array([*move, 0.0]))
        hand = hand + move
    states += [hand] * (HOLDS + 1)
    actions += [np.array([0.0, 0.0, 1.0])] * HOLDS + [np.zeros(3)]
    row, last = np.arange(len(states)), len(states) - 1
    is_closed = row > last - HOLDS
    return rlds2reverb.Episode(
        {
            "observation/image": np.stack([draw(state, red, blue, closed) for state, closed in zip(states, is_closed)]),
            "observation/state": np.array(states, np.float32),
            "action": np.array(actions, np.float32),
            "reward": (is_success & (row == last - 1)).astype(np.float32),
            "discount": (row < last - 1).astype(np.float32),
            "is_first": row == 0,
            "is_last": row == last,
            "is_terminal": row == last,
        },
        metadata={"episode_id": f"{seed}-{number}", "success": np.bool_(is_success)},
    )


def draw(hand: Array, red: Array, blue: Array, is_closed: bool) -> Array:
    """Return the image [SIZE, SIZE, 3] of a camera above the table, with soft edges."""
    across, down = np.meshgrid(*[(np.arange(SIZE) + 0.5) / SIZE] * 2)
    image = np.full((SIZE, SIZE, 3), 150.0)
    for place, radius, colour in ((red, 0.08, RED), (blue, 0.08, BLUE), (hand, 0.05, CLOSED if is_closed else OPEN)):
        distance = np.hypot(across - place[0], down - place[1])
        share = np.clip((radius - distance) * SIZE + 0.5, 0.0, 1.0)[..., None]
        image = image * (1 - share) + np.array(colour) * share
    return image.astype(np.uint8)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the dataset that the command line asks for."""
    parser = argparse.ArgumentParser(description="Make a small robot dataset that a policy can learn.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--episodes", type=int, default=240)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    episodes = [make_episode(options.seed, number) for number in range(options.episodes)]
    report = rlds2reverb.convert(episodes, f"tfds:{options.folder}/reach")
    print(f"{options.folder}/reach/1.0.0: {report.episodes_written} episodes, {report.steps_written} steps")


if __name__ == "__main__":
    main()
