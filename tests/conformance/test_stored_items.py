"""What Reverb's own C++ sampler returns of pushed episodes is what the slow reference says, bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlds2reverb import Client, Episode
from rlds2reverb.formats.source import spec_of
from rlds2reverb.specs import flatten
from rlds2reverb.views.base import View
from rlds2reverb.views.trajectory import SequenceView, WholeEpisode, two_step
from tests.support import reference, strategies
from tests.support.forks import Embedded
from tests.support.profiles import on_one_server
from tests.support.rlds_data import StoredItem, take_all

reverb = pytest.importorskip("reverb")

FLOAT32 = np.dtype(np.float32)
TEXT = np.dtype(object)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
TABLES = ("one", "two")
PRIORITIES = st.floats(0, 1e6, allow_nan=False)


Push = Callable[..., dict[str, list[StoredItem]]]


@pytest.fixture(scope="module")
def sampler(server: Embedded) -> Any:
    return reverb.Client(server.address)


@pytest.fixture
def push_and_take(client: Client, sampler: Any) -> Push:
    """Pushes into empty tables, and empties them; too short episodes are passed over."""

    def run(episodes: list[Episode], view: View, tables: Sequence[str] = TABLES, **options: Any) -> Any:
        for table in TABLES:
            sampler.reset(table)
        report = client.push(episodes, tables, view, on_invalid="skip", **options)
        dtypes = [leaf.dtype for leaf in flatten(view.signature(spec_of(episodes[0]))).values()]
        stored = {table: take_all(sampler, table, dtypes) for table in tables}
        assert report.items_confirmed == sum(map(len, stored.values()))
        return stored

    return run


def views() -> st.SearchStrategy[View]:
    def sequence(length: int, stride: int, padding: int, priority: float) -> View:
        return SequenceView(length, stride, padding > 0, padding > 1, priority)

    sequences = st.builds(sequence, st.integers(1, 12), st.integers(1, 5), st.integers(0, 2), PRIORITIES)
    return st.one_of(st.builds(two_step, PRIORITIES), sequences, st.builds(WholeEpisode, priority=PRIORITIES))


@st.composite
def pushes(draw: st.DrawFn) -> tuple[list[Episode], View, int | None, int]:
    """Episodes of one spec, a view, a chunk length, and how many tables."""
    specs = draw(strategies.column_specs())
    episodes = draw(st.lists(strategies.episodes(2, 30, specs), min_size=1, max_size=3))
    episodes = [replace(episode, id=f"e{number}") for number, episode in enumerate(episodes)]
    return episodes, draw(views()), draw(st.none() | st.integers(1, 40)), draw(st.integers(1, 2))


def expected_items(episode: Episode, view: View) -> list[list[Any]]:
    """The items of one episode, step by step."""
    steps = reference.steps_of(reference.nested(episode.columns))
    rows = reference.trajectories(steps)
    if isinstance(view, WholeEpisode):
        return reference.episode_items(rows, view.max_length)
    assert isinstance(view, SequenceView)
    next_index = reference.next_step_type_index(steps)
    return reference.sequence_items(rows, next_index, view.length, view.stride, view.pad_end, view.tile_end)


def assert_stored(stored: list[StoredItem], episodes: list[Episode], view: View) -> None:
    expected = [item for episode in episodes for item in expected_items(episode, view)]
    reference.assert_same_items([item.columns for item in stored], expected)
    assert {item.priority for item in stored} <= {view.priority}  # type: ignore[attr-defined]


@given(pushes())
@on_one_server(150)
@example(([strategies.episode(np.random.default_rng(0), 3)], SequenceView(5, 2, True, True, 0.0), 1, 2))
def test_sampled_items_are_those_of_the_reference(
    push_and_take: Push, push: tuple[list[Episode], View, int | None, int]
) -> None:
    episodes, view, chunk_length, table_count = push
    stored = push_and_take(episodes, view, TABLES[:table_count], chunk_length=chunk_length)
    for items in stored.values():
        assert_stored(items, episodes, view)


@pytest.mark.parametrize("dtype", strategies.DTYPES, ids=str)
def test_every_dtype_comes_back_at_every_rank(push_and_take: Push, dtype: np.dtype[Any]) -> None:
    shapes: list[tuple[int, ...]] = [(), (0,), (3,), (2, 0), (2, 3), (1, 2, 3)]
    columns: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
    columns = {f"observation/s{number}": (dtype, shape) for number, shape in enumerate(shapes)}
    columns["action"] = (dtype, ())
    episode = strategies.episode(np.random.default_rng(1), 9, columns)
    views: tuple[View, ...] = (two_step(), SequenceView(4, 3, pad_end=True, tile_end=True), WholeEpisode())
    for view in views:
        stored = push_and_take([episode], view, ("one",), chunk_length=4)["one"]
        assert stored
        assert_stored(stored, [episode], view)


@pytest.mark.parametrize("chunk_length", [1, 2, 3, 7, 8, 9, 64])
def test_chunk_borders_do_not_show(push_and_take: Push, chunk_length: int) -> None:
    episode = strategies.episode(np.random.default_rng(2), 8, {"observation": (TEXT, ()), "action": (BFLOAT16, (2,))})
    views: tuple[View, ...] = (two_step(), SequenceView(8), WholeEpisode())
    for view in views:
        stored = push_and_take([episode], view, ("one",), chunk_length=chunk_length)["one"]
        assert_stored(stored, [episode], view)


def test_columns_that_compress_and_columns_that_do_not_come_back(push_and_take: Push) -> None:
    rng = np.random.default_rng(3)
    columns: strategies.Columns = {
        "observation/noise": (np.dtype(np.uint8), (64, 64)),
        "observation/flat": (FLOAT32, (1000,)),
        "action": (FLOAT32, (1,)),
    }
    episode = strategies.episode(rng, 20, columns)
    episode = episode.with_columns(**{"observation/flat": np.ones((20, 1000), np.float32)})
    stored = push_and_take([episode], two_step())["one"]
    assert_stored(stored, [episode], two_step())


def test_an_episode_over_many_requests_comes_back_in_order(push_and_take: Push) -> None:
    episode = strategies.episode(np.random.default_rng(4), 3000)
    stored = push_and_take([episode], two_step(), ("one",))["one"]
    assert_stored(stored, [episode], two_step())


def test_strided_big_endian_and_unicode_columns_come_back_plain(push_and_take: Push) -> None:
    rng = np.random.default_rng(5)
    episode = strategies.episode(rng, 6)
    wide = rng.normal(size=(12, 6)).astype(np.float32)
    plain = episode.with_columns(
        observation=wide[::2, ::-1], action=np.array([b"a", b"bb", b"", b"c", b"d", "ö".encode()], object)
    )
    odd = plain.with_columns(observation=wide.astype(">f4")[::2, ::-1], action=np.array(["a", "bb", "", "c", "d", "ö"]))
    assert odd.columns["observation"].dtype.byteorder == ">"
    stored = push_and_take([odd], two_step(), ("one",))["one"]
    assert_stored(stored, [plain], two_step())


def test_rows_of_two_tables_are_sent_once(client: Client, sampler: Any) -> None:
    episode = strategies.episode(
        np.random.default_rng(6), 20, {"observation": (FLOAT32, (5000,)), "action": (TEXT, ())}
    )
    alone = client.push([episode], "one")
    both = client.push([episode], TABLES, again=True)
    assert both.items_confirmed == 2 * alone.items_confirmed
    assert episode.nbytes < alone.bytes <= both.bytes < 1.05 * alone.bytes
    first, second = take_all(sampler, "one")[19:], take_all(sampler, "two")
    reference.assert_same_items([item.columns for item in first], [item.columns for item in second])
    assert not {item.key for item in first} & {item.key for item in second}


def key_by_hand(view: View, table: str, episode_id: str, anchor: int) -> int:
    """The documented key: SplitMix64 of the anchor, seeded by the push, the table and the episode."""
    from rlds2reverb.wire.insert import seed

    push = seed(f"{view.label}|as_recorded|as_recorded")
    mask = (1 << 64) - 1
    state = (seed(f"{push:x}", table, episode_id) + anchor * 0x9E3779B97F4A7C15) & mask
    state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & mask
    state = ((state ^ state >> 27) * 0x94D049BB133111EB) & mask
    return (state ^ state >> 31) | 1 << 63


@pytest.mark.parametrize("view", [two_step(), SequenceView(3, 2), WholeEpisode()], ids=lambda view: view.label)
def test_item_keys_are_a_function_of_view_table_episode_and_row(push_and_take: Push, view: View) -> None:
    episodes = [strategies.episode(np.random.default_rng(n), 5 + n, episode_id=f"e{n}") for n in range(3)]
    stored = push_and_take(episodes, view)
    for table, items in stored.items():
        anchors = [(e.id, anchor) for e in episodes for anchor in view.cut(e).anchors.tolist()]
        assert [item.key for item in items] == [key_by_hand(view, table, *anchor) for anchor in anchors]


def test_again_draws_new_keys(push_and_take: Push) -> None:
    episode = strategies.episode(np.random.default_rng(8), 10)
    keys = [
        {item.key for item in push_and_take([episode], two_step(), ("one",), **options)["one"]}
        for options in ({}, {}, {"again": True}, {"again": True})
    ]
    assert keys[0] == keys[1]
    assert all(len(key) == 9 for key in keys)
    assert len(keys[0] | keys[2] | keys[3]) == 27
