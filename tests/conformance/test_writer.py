"""What a writer stores on a real server is what its loop went through, and what `client.push` stores of the same episodes."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reverb

import rlds2reverb
from rlds2reverb import Client
from rlds2reverb.specs import flatten
from tests.support.faults import tools
from tests.support.forks import Embedded, Forks
from tests.support.learner.loops import steps_of, write, write_as_loop

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

EPISODES = tools.make_episodes(count=6, steps=40, seed=5)


def taken(server: Embedded, table: str = "one") -> list[tuple[int, tools.Content]]:
    return tools.take_keys_and_items(server.address, table)


def test_items_are_those_of_the_loop(server: Embedded, client: Client) -> None:
    with client.writer("one") as writer:
        for episode in EPISODES:
            write(writer, episode)
    assert [content for _, content in taken(server)] == tools.items_of(EPISODES)
    report = writer.report()
    assert (report.episodes_pushed, report.items_new) == (6, 6 * 39)


@pytest.mark.parametrize(
    "view", ["two_step", "sequence:length=5,stride=2", "episode", "transition", "fragments:length=7"]
)
def test_keys_and_bytes_are_those_of_a_push(server: Embedded, client: Client, view: str) -> None:
    client.push(EPISODES, "one", view)
    expected = taken(server)
    with client.writer("one", view) as writer:
        for episode in EPISODES:
            write(writer, episode, episode.id)
    assert taken(server) == expected


def test_what_reverbs_own_client_samples_is_what_was_observed(server: Embedded, client: Client) -> None:
    with client.writer({"one": "transition", "two": "two_step"}) as writer:
        for number in range(3):
            writer.append(observation={"position": np.full(2, number, np.float32)}, action=np.int64(number), reward=0.5)
        writer.end_episode(observation={"position": np.full(2, 3, np.float32)}, terminal=True)
    other = reverb.Client(server.address)
    transitions = [sample.data for sample in other.sample("one", 3, emit_timesteps=False)]
    both = [sorted(float(value[0]) for value in data if value.shape == (2,)) for data in transitions]
    assert both == [[0, 1], [1, 2], [2, 3]]
    pairs = [sample.data for sample in other.sample("two", 3, emit_timesteps=False)]
    assert [pair[2].tolist() for pair in pairs] == [[0, 1], [1, 2], [2, 0]]


def test_several_actors_write_to_one_table_from_threads_of_one_client(server: Embedded, client: Client) -> None:
    def act(number: int) -> None:
        with client.writer("one", name=f"actor-{number}") as writer:
            for episode in tools.make_episodes(4, 30, seed=number):
                write_as_loop(writer, episode)

    threads = [threading.Thread(target=act, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = taken(server)
    expected = [
        tools.items_of([plain(episode)]) for number in range(4) for episode in tools.make_episodes(4, 30, seed=number)
    ]
    assert sorted(content for _, content in stored) == sorted(item for items in expected for item in items)
    assert len({key for key, _ in stored}) == len(stored)


def plain(episode: rlds2reverb.Episode) -> rlds2reverb.Episode:
    """As a loop records it: nothing is known of the last action."""
    action = episode.columns["action"].copy()
    action[-1] = 0
    return episode.with_columns(action=action)


def test_and_from_processes_with_a_client_each(forks: Forks, server: Embedded, client: Client, tmp_path: Path) -> None:
    actors = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        actors.append(
            forks.module(folder, "tests.support.faults.actor", server.address, "one", f"actor-{number}", "5", "30")
        )
    reports: list[dict[str, Any]] = []
    for actor in actors:
        with actor:
            code, output, errors = actor.result()
        assert code == 0, errors
        reports.append(json.loads(output))
    assert [report["items_new"] is None or report["episodes_pushed"] == 5 for report in reports] == [True, True]
    stored = taken(server)
    assert len({key for key, _ in stored}) == len(stored) == 2 * 5 * 29


def test_images_and_text_are_stored_to_the_byte(server: Embedded, client: Client) -> None:
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (4, 16, 16, 3), np.uint8)
    with client.writer("one", "episode") as writer:
        for image in images[:-1]:
            writer.append(observation={"image": image, "task": "stack"}, action=np.zeros(2, np.float32), reward=1.0)
        writer.end_episode(observation={"image": images[-1], "task": "stack"}, terminal=False)
    (sample,) = reverb.Client(server.address).sample("one", 1, emit_timesteps=False)
    columns = [np.asarray(column) for column in sample.data]
    (stored,) = [column for column in columns if column.ndim == 4]
    np.testing.assert_array_equal(stored, images)
    assert [b"stack"] * 4 in [column.tolist() for column in columns]


def test_what_is_flushed_can_be_sampled_by_our_client(server: Embedded, client: Client) -> None:
    with client.writer("keep") as writer:
        for episode in EPISODES:
            write(writer, episode)
        writer.flush()
        sampled = client.sample_one("keep", timeout_seconds=30)
        writer.append(next(steps_of(EPISODES[0])))
        assert writer.discard_episode() == 1
    contents = set(tools.items_of(EPISODES))
    assert tuple(np.asarray(value).tobytes() for value in flatten(sampled.data).values()) in contents
