"""Views of sampled episodes are what a push with that view stores."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlds2reverb
from rlds2reverb.client import Client
from rlds2reverb.episode import Array, Episode
from rlds2reverb.errors import ConfigError, ViewError
from rlds2reverb.formats.source import spec_of
from rlds2reverb.learner.batch import Batch
from rlds2reverb.learner.options import SampleOptions, ViewSpec, check_count
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.specs import ArraySpec, ImageSpec, Nest, flatten, map_leaves
from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info
from rlds2reverb.views import view_from
from rlds2reverb.views.base import View
from rlds2reverb.views.requirements import Requirements
from rlds2reverb.views.slices import Slices
from rlds2reverb.views.trajectory import WholeEpisode, table_signature
from rlds2reverb.wire.messages import RateLimiter, TableInfo
from tests.support import strategies
from tests.support.learner.stored import STEPS, connected, episodes_of, server_of
from tests.support.pictures import png

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
    for row, other in zip(found, expected):
        for value, wanted in zip(row, other, strict=True):
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
        assert [batch.size for batch in sampler] == [4, 4, 3]  # 3 items, 0, 6 and 2
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


# Options that make no sense are refused by the name of the function that was called.

mix: Any = rlds2reverb.mix


def client() -> Any:  # of any type: mypy would find the wrong arguments
    return Client(MemoryTransport(MemoryServer("replay")))


@pytest.mark.parametrize(
    ("call", "where"),
    [
        (lambda: client().sample("replay", 10, nonsense=1), "Client.sample"),
        (lambda: client().writer("replay", nonsense=1), "Client.writer"),
        (lambda: mix([([], 1.0)], nonsense=1), "mix"),
    ],
)
def test_an_unknown_option_names_the_function(call: Any, where: str) -> None:
    with pytest.raises(TypeError, match=f"^{where}: got an unexpected keyword argument 'nonsense'"):
        call()


@pytest.mark.parametrize("count", [1, np.int64(4), np.uint8(2)])
def test_whole_numbers_of_any_kind_are_counts(count: Any) -> None:
    check_count("batch_size", count)


@pytest.mark.parametrize("count", [0, -1, True, 1.0, np.float32(2), "3", None])
def test_nothing_else_is(count: Any) -> None:
    with pytest.raises(ConfigError, match=r"^batch_size .*: expected a whole number of at least 1$"):
        check_count("batch_size", count)


@pytest.mark.parametrize("priorities", [[np.nan, 1.0], [np.inf, 1.0], [-np.inf, 1.0]])
def test_priorities_are_finite(priorities: Any) -> None:
    with pytest.raises(ConfigError, match="expected finite numbers"):
        client().update_priorities("replay", np.array([1, 2], np.uint64), priorities)


def test_heaps_take_negative_priorities() -> None:
    server = MemoryServer("replay")
    server.put("replay", 7, [np.zeros(1)])
    with Client(MemoryTransport(server)) as learner:
        learner.update_priorities("replay", [np.uint64(7)], -2.0)
    assert server.tables["replay"].items[7].priority == -2.0


# What is asked for at a time, where nobody says it: much of little items, little of what would be lost or come too late.

FLOATS, PIXELS, WORDS = np.dtype(np.float32), np.dtype(np.uint8), np.dtype(object)
SMALL: Nest = {"observation": ArraySpec((2, 17), FLOATS), "reward": ArraySpec((2,), FLOATS)}
LIMITER = RateLimiter(1.0, -1e9, 1e9, 1, 0, 0)
TABLE = TableInfo("replay", "uniform", "fifo", 100, 0, 0, LIMITER, SMALL, 0, 0, 0)


@pytest.mark.parametrize(
    ("batch_size", "signature", "expected"),
    [
        (1, SMALL, 16),
        (256, SMALL, 8),
        (256, {"image": ArraySpec((2, 84, 84, 4), PIXELS)}, 4),
        (16, {"episode": ArraySpec((None, 17), FLOATS)}, 16),
        (24, {"few": ArraySpec((2, 17), FLOATS)}, 10),
        (32, {"few": ArraySpec((2, 17), FLOATS)}, 8),
        (16, {"episode": ArraySpec((None, 84, 84, 4), PIXELS)}, 4),
        (256, {"words": ArraySpec((2,), WORDS)}, 8),
        (4_096, {"words": ArraySpec((2,), WORDS)}, 4),
        (1_000, {"six": ArraySpec((1_370,), FLOATS)}, 6),
        (10**9, {"nothing": ArraySpec((0,), FLOATS)}, 8),
        (256, None, 4),
    ],
)
def test_large_batches_are_fewer(batch_size: int, signature: Nest | None, expected: int) -> None:
    assert SampleOptions(batch_size).choose_prefetch(replace(TABLE, signature=signature)) == expected


@pytest.mark.parametrize("sampler", ["prioritized(0.8)", "max_heap", "min_heap", "fifo", "lifo"])
def test_where_order_or_priority_counts_there_are_few(sampler: str) -> None:
    assert SampleOptions(256).choose_prefetch(replace(TABLE, sampler=sampler)) == 4


def test_of_items_that_leave_with_their_samples_there_is_one() -> None:
    assert SampleOptions(256).choose_prefetch(replace(TABLE, max_times_sampled=1)) == 1


def test_what_is_said_counts() -> None:
    assert SampleOptions(256, prefetch=3).choose_prefetch(replace(TABLE, max_times_sampled=1)) == 3


# Items of different lengths as batches: lists or filled up, with text and encoded images.

FLOAT, TEXT = np.dtype(np.float32), np.dtype(object)
SIGNATURE = {
    "action": ArraySpec((None, 3), FLOAT),
    "observation": {"text": ArraySpec((None,), TEXT), "state": ArraySpec((None, 2), FLOAT)},
    "task": ArraySpec((), TEXT),
}


def item(actions: int) -> tuple[Array, ...]:
    """Observations have a row more than actions."""
    rng = np.random.default_rng(actions)
    return (
        rng.normal(size=(actions, 3)).astype(np.float32),
        rng.normal(size=(actions + 1, 2)).astype(np.float32),
        np.array([b"\x00%d" % row for row in range(actions + 1)], object),
        np.array(b"task\x00", object),
    )


def batch_of(lengths: list[int], signature: Any = SIGNATURE, **options: Any) -> Any:
    server = server_of(signature, [item(length) for length in lengths], sampler="fifo", max_times_sampled=1)
    with connected(server) as client:
        return next(client.sample("replay", len(lengths), samples=len(lengths), **options))


def test_items_that_differ_are_lists() -> None:
    data, info = batch_of([2, 5])
    for number, length in enumerate([2, 5]):
        action, state, text, task = item(length)
        assert data["action"][number].tobytes() == action.tobytes()
        assert data["observation"]["state"][number].tobytes() == state.tobytes()
        assert data["observation"]["text"][number].tolist() == text.tolist()
        assert data["task"][number] == task.item()
    assert (info.mask, info.masks, info.ends, info.start) == (None, None, None, None)


def test_filled_up_they_have_a_mask_per_column_and_one_for_all() -> None:
    data, info = batch_of([2, 5], ragged="pad")
    assert map_leaves(np.shape, data) == {
        "action": (2, 5, 3),
        "observation": {"state": (2, 6, 2), "text": (2, 6)},
        "task": (2,),
    }
    assert {name: mask.sum(1).tolist() for name, mask in info.masks.items()} == {
        "action": [2, 5],
        "observation/state": [3, 6],
        "observation/text": [3, 6],
    }
    assert info.mask.tolist() == info.masks["action"].tolist()
    assert info.ends.tolist() == [[False, True, False, False, False], [False, False, False, False, True]]
    assert data["observation"]["text"][0].tolist() == [*item(2)[2], b"", b"", b""]


@pytest.mark.parametrize("lengths", [[2, 5], [4, 4], [3]])
def test_pad_to_gives_every_batch_one_shape(lengths: list[int]) -> None:
    """Those whose items happen to be of one length, too: the signature says that they may differ."""
    data, info = batch_of(lengths, ragged="pad", pad_to=8)
    assert data["action"].shape == (len(lengths), 8, 3)
    assert data["observation"]["state"].shape == (len(lengths), 8, 2)
    assert info.mask.sum(1).tolist() == lengths
    assert data["task"].shape == (len(lengths),)


def test_items_of_one_length_have_a_mask_without_pad_to() -> None:
    assert batch_of([4, 4], ragged="pad").info.mask.all()


def test_without_a_signature_columns_go_by_number() -> None:
    data, info = batch_of([2, 5], None, ragged="pad")
    assert [column.shape for column in data] == [(2, 5, 3), (2, 6, 2), (2, 6), (2,)]
    assert set(info.masks) == {"0", "1", "2"}
    data, info = batch_of([4, 4], None, ragged="pad")
    assert info.mask is None
    _, info = batch_of([4, 4], None, ragged="pad", spec=SIGNATURE)
    assert info.mask.shape == (2, 4)


def test_one_sample_is_without_the_axis_of_a_batch() -> None:
    with connected(server_of(SIGNATURE, [item(3)])) as client:
        data, info = client.sample_one("replay")
    assert data["action"].tobytes() == item(3)[0].tobytes()
    assert data["task"] == b"task\x00"
    assert (int(info.key), info.mask) == (1, None)


IMAGES = {"image": ArraySpec.of_images(ImageSpec((2, None, 3), np.dtype(np.uint8), "png"), (None,))}


def images(*widths: int) -> tuple[list[Array], Array]:
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (2, width, 3), np.uint8) for width in widths]
    files = np.empty(len(pictures), object)
    files[:] = [png(picture) for picture in pictures]
    return pictures, files


def of_images(items: list[Array], signature: Any = IMAGES, **options: Any) -> Any:
    server = server_of(signature, [(value,) for value in items], sampler="fifo", max_times_sampled=1)
    with connected(server) as client:
        return next(client.sample("replay", len(items), samples=len(items), **options))


def test_encoded_images_are_decoded_and_then_filled_up() -> None:
    (a, b, c), files = images(4, 4, 4)
    data, info = of_images([files[:2], files[2:]], ragged="pad")
    assert np.array_equal(data["image"], [[a, b], [c, np.zeros_like(c)]])
    assert info.mask.tolist() == [[True, True], [True, False]]
    lists = of_images([files[:2], files[2:]]).data["image"]
    assert [array.shape for array in lists] == [(2, 2, 4, 3), (1, 2, 4, 3)]


def test_bytes_that_are_filled_up_decode_to_the_same() -> None:
    _, files = images(4, 4, 4)
    coded = of_images([files[:2], files[2:]], ragged="pad", decode=False).data["image"]
    assert coded.tolist() == [files[:2].tolist(), [files[2], b""]]


def test_images_that_differ_in_size_are_lists() -> None:
    (a, b), files = images(4, 5)
    data, _ = of_images([files[:1], files[1:]])
    assert np.array_equal(data["image"][0], [a])
    assert np.array_equal(data["image"][1], [b])
    single = {"image": ArraySpec.of_images(ImageSpec((2, None, 3), np.dtype(np.uint8), "png"))}
    data, _ = of_images([np.array(files[0], object), np.array(files[1], object)], single)
    assert [array.shape for array in data["image"]] == [(2, 4, 3), (2, 5, 3)]
    with pytest.raises(ConfigError, match="fills rows only"):
        of_images([files[:1], files[1:]], ragged="pad")


@pytest.mark.parametrize("options", [{"pad_to": 3}, {"ragged": "pad", "pad_to": 0}, {"ragged": "zeros"}])
def test_options_that_make_no_sense_are_refused_ragged(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        SampleOptions(**options)
