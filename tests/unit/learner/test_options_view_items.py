"""Views of sampled episodes are what a push with that view stores."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.client import Client
from rlds2reverb.episode import Array, Episode
from rlds2reverb.errors import ConfigError, ViewError
from rlds2reverb.formats.source import spec_of
from rlds2reverb.learner.batch import Batch
from rlds2reverb.learner.options import ViewSpec
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.specs import ArraySpec, flatten
from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info
from rlds2reverb.views import view_from
from rlds2reverb.views.base import View
from rlds2reverb.views.requirements import Requirements
from rlds2reverb.views.slices import Slices
from rlds2reverb.views.trajectory import WholeEpisode, table_signature
from tests.support import strategies
from tests.support.learner.stored import STEPS, connected, episodes_of, server_of

WHOLE_STEPS: View = Slices(length=1000, strict=False)
"""One item per episode, all step columns as recorded."""

WHOLE_EPISODES: View = WholeEpisode()

VIEWS = (
    "two_step",
    "sequence:length=3",
    "transition",
    "n_step:n=3",
    "frame_stack:frames=3",
    "target_pair",
    {"view": "requirements", "requirements": {"obs": {}, "new_obs": {"data_col": "obs", "shift": 1}}},
    {
        "view": "requirements",
        "requirements": {"t": {"shift": "-2:1"}, "dones": {}, "terminateds": {}, "truncateds": {}},
    },
)
"""Views that draw nothing."""


def requirements() -> st.SearchStrategy[dict[str, dict[str, Any]]]:
    """RLlib's shifts of what every step has."""
    shift = st.one_of(
        st.integers(-4, 4),
        st.lists(st.integers(-4, 4), min_size=1, max_size=3),
        st.tuples(st.integers(-4, 0), st.integers(0, 3)).map(lambda ends: f"{ends[0]}:{ends[1]}"),
    )
    column = st.sampled_from(
        ["obs", "new_obs", "actions", "rewards", "terminateds", "truncateds", "dones", "t", "discount"]
    )
    one = st.builds(
        lambda column, shift, repeat: {"data_col": column, "shift": shift, "batch_repeat_value": repeat},
        column,
        shift,
        st.integers(1, 3),
    )
    return st.dictionaries(st.sampled_from(["a", "b", "prev_actions", "prev_rewards"]), one, min_size=1, max_size=3)


def pushed(episodes: list[Episode], view: View) -> MemoryServer:
    """A server after a push with that view; it hands out items in the order in which they came, each once."""
    signature = table_signature(view.signature(filled_spec(spec_of(episodes[0]))))
    table = replace(table_info(signature=signature, sampler="fifo", max_size=10_000), max_times_sampled=1)
    server = MemoryServer(table)
    with Client(MemoryTransport(server)) as client:
        client.push(episodes, "replay", view=view, allow=["terminal_discount", "single_step", "no_items"])
    return server


def rows_of(batches: list[Batch]) -> list[list[Array]]:
    """One list of columns per item."""
    return [
        [np.asarray(column[number]) for column in flatten(data).values()]
        for data, info in batches
        for number in range(len(info.key))
    ]


def in_order(server: MemoryServer, **options: Any) -> list[Batch]:
    """Batches of the items in the order of insertion, each item once."""
    count = len(server.tables["replay"].items)
    with connected(server) as client:
        return list(client.sample("replay", 5, samples=count, **options))


def assert_same(found: list[list[Array]], expected: list[tuple[Array, ...]]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        for value, wanted in zip(one, other, strict=True):
            assert (value.dtype, value.shape) == (wanted.dtype, wanted.shape)
            assert value.tobytes() == wanted.tobytes() if value.dtype != object else value.tolist() == wanted.tolist()


@given(st.data(), st.sampled_from(VIEWS), st.booleans())
def test_items_are_those_that_a_push_stores(data: st.DataObject, config: Any, as_steps: bool) -> None:
    specs = {"observation": (np.dtype(np.float32), (2,)), "action": (np.dtype(np.float64), ())}
    episodes = [data.draw(strategies.episodes(2, 12, specs, f"e{number}")) for number in range(2)]
    view = view_from(config)
    whole = pushed(episodes, WHOLE_STEPS if as_steps else WHOLE_EPISODES)
    assert_same(rows_of(in_order(whole, view=view)), pushed(episodes, view).contents())


@given(st.data(), requirements(), st.booleans())
def test_requirements_of_sampled_episodes_are_those_of_a_push(
    data: st.DataObject, wanted: dict[str, dict[str, Any]], as_steps: bool
) -> None:
    episodes = [data.draw(strategies.episodes(2, 12, episode_id=f"e{number}")) for number in range(1)]
    view = Requirements(wanted)
    whole = pushed(episodes, WHOLE_STEPS if as_steps else WHOLE_EPISODES)
    assert_same(rows_of(in_order(whole, view=ViewSpec(view))), pushed(episodes, view).contents())


def test_the_structure_is_the_views_and_start_the_step() -> None:
    episode = strategies.episode(np.random.default_rng(0), 6)
    with connected(pushed([episode], WholeEpisode())) as client:
        data, info = client.sample("replay", 5, view="n_step:n=2", samples=1).next_batch() or pytest.fail("it ended")
    assert set(data) == set(view_from("n_step:n=2").signature(filled_spec(spec_of(episode))))
    assert info.start.tolist() == [0, 1, 2, 3, 4]
    assert set(info.key.tolist()) == {int(info.key[0])}


def test_some_items_of_each_episode_are_drawn_alike() -> None:
    episode = strategies.episode(np.random.default_rng(0), 9)
    server = pushed([episode], WholeEpisode())
    again = server_of(server.server_info().tables["replay"].signature, server.contents())
    with (
        connected(again) as client,
        client.sample("replay", 400, view=ViewSpec("transition", per_episode=2, seed=5)) as sampler,
    ):
        starts = Counter(start for _ in range(10) for start in next(sampler).info.start.tolist())
    assert set(starts) == set(range(8))
    assert max(abs(count - 500) for count in starts.values()) < 8 * 500**0.5


def test_batches_span_episodes() -> None:
    episodes = [strategies.episode(np.random.default_rng(rows), rows, episode_id=f"e{rows}") for rows in (4, 1, 7, 3)]
    with connected(pushed(episodes, WholeEpisode())) as client:
        sampler = client.sample("replay", 4, samples=4, view="two_step")
        assert [one.size for one in sampler] == [4, 4, 3]  # 3 items, 0, 6 and 2
        assert sampler.next_batch() is None


@pytest.mark.parametrize(
    ("signature", "items", "words"),
    [
        (None, [], "give spec"),
        ({"x": "anything"}, [], "give spec"),
        (STEPS, episodes_of([4]), "expected items of trajectories"),
        ({"step_type": ArraySpec((None,), np.dtype(np.int32))}, [], "trajectories without observation, action"),
        ({"is_first": ArraySpec((), np.dtype(bool)), "is_last": ArraySpec((), np.dtype(bool))}, [], "has no rows"),
    ],
)
def test_what_is_no_episode_is_refused(signature: Any, items: Any, words: str) -> None:
    named = signature is not None and "x" in signature
    options = {"spec": signature} if named else {}
    with (
        connected(server_of(None if named else signature, items)) as client,
        pytest.raises(ConfigError, match=words),
    ):
        next(client.sample("replay", view="two_step", **options))


def test_pieces_of_episodes_are_refused() -> None:
    episode = strategies.episode(np.random.default_rng(0), 6)
    with (
        connected(pushed([episode], view_from("two_step"))) as client,
        pytest.raises(ConfigError, match=r"is no whole episode.* sample a table that holds them \(view `episode`\)"),
    ):
        next(client.sample("replay", view="transition", samples=1))


@pytest.mark.parametrize(
    ("given_view", "error", "words"),
    [
        ("fragments:length=3", ConfigError, "items hold steps of several episodes"),
        ("across_episodes", ConfigError, "items hold steps of several episodes"),
        ("n_steps", ViewError, 'did you mean "n_step"'),
        (ViewSpec, ViewError, "expected a view's name"),
    ],
)
def test_views_that_cannot_be_are_refused(given_view: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        ViewSpec.of(given_view)


@pytest.mark.parametrize("options", [{"per_episode": 0}, {"seed": 0.5}])
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        ViewSpec("two_step", **options)
