"""`push_rlds_to_reverb` stores what TF-Agents' own observers store; right, too, where TF-Agents is wrong."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tf_agents")

import reverb
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils, rlds_to_reverb

import rlds2reverb
from rlds2reverb.errors import ConfigError, SpecMismatch, ViewError
from rlds2reverb.specs import ArraySpec, map_leaves
from rlds2reverb.tf_agents import convert_rlds_to_trajectories, push_rlds_to_reverb
from rlds2reverb.views.base import View
from rlds2reverb.views.trajectory import SequenceView, WholeEpisode, two_step
from tests.conformance.observing import (
    SIDES,
    Episodes,
    Options,
    Stream,
    Windows,
    all_steps,
    assert_same_outcome,
    compare,
    dataset,
    like,
    make_episodes,
    outcome,
    tables_of_both_sides,
)
from tests.support import reference, rlds_data
from tests.support.forks import Forks
from tests.support.profiles import DEEP, on_one_server


def outlook(current: Any, following: Any) -> Any:
    """A policy_info that tells what the function saw; the same in TensorFlow and numpy."""
    return {
        "change": following["observation"] - current["observation"],
        "next": (following["is_first"], following["reward"]),
        "here": current["action"],
    }


def nested_outlook(current: Any, following: Any) -> Any:
    return {"left": following["observation"]["camera"]["left"], "grip": current["action"][1]["grip"]}


INFO_FUNCTIONS = {"flat": outlook, "nested": nested_outlook}


@pytest.fixture(scope="module")
def address(forks: Forks) -> Iterator[str]:
    """A server with tables for both sides, and some more."""
    tables = [
        *tables_of_both_sides(),
        *(
            rlds_data.once(f"{spec}/with_info", rlds_data.trajectory_signature(like(spec), function))
            for spec, function in INFO_FUNCTIONS.items()
        ),
    ]
    flat = rlds_data.trajectory_signature(like("flat"))
    renamed = flat._replace(step_type=ArraySpec((None,), np.dtype(np.int32), "kind"))
    pairs = map_leaves(lambda leaf: replace(leaf, shape=(2, *leaf.shape[1:])), flat)
    tables += [rlds_data.once("bare"), rlds_data.once("renamed", renamed), rlds_data.once("pairs", pairs)]
    with forks.embedded(tables) as server:
        yield server.address


@pytest.fixture
def sampler(address: str) -> Any:
    client = reverb.Client(address)
    for table in client.server_info():
        client.reset(table)
    return client


@pytest.fixture
def client(address: str) -> Iterator[rlds2reverb.Client]:
    with rlds2reverb.connect(address) as connected:
        yield connected


LENGTHS = st.lists(st.integers(1, 12), max_size=5)
SEEDS = st.integers(0, 2**32 - 1)
FLAGS: dict[str, Options] = {
    "windows": Windows(),
    "padded windows": Windows(pad=True),
    "tiled windows": Windows(pad=True, tile=True),
    "episodes": Episodes(),
    "episodes with bypass": Episodes(bypass=True),
    "stream": Stream(),
    "stream that pads and tiles at a reset": Stream(pad=True, tile=True),
}
"""The flags of TF-Agents' observers in all combinations that they allow."""


@st.composite
def numbers(draw: st.DrawFn, flags: Options) -> Options:
    """The same flags with random numbers in the other options, but the tables."""
    priority = draw(st.sampled_from([1, 0.0, 0.25, 7]))
    if isinstance(flags, Episodes):
        return replace(flags, max_length=draw(st.integers(1, 14)), priority=priority)
    return replace(flags, length=draw(st.integers(1, 6)), stride=draw(st.integers(1, 6)), priority=priority)


@pytest.mark.parametrize("tables", [1, 2])
@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
@given(data=st.data(), spec=st.sampled_from(["flat", "mixed", "text"]), lengths=LENGTHS, seed=SEEDS)
@on_one_server(8)
def test_stored_items_are_those_of_tf_agents(
    sampler: Any, flags: Options, tables: int, data: st.DataObject, spec: str, lengths: list[int], seed: int
) -> None:
    options = replace(data.draw(numbers(flags)), tables=tables)
    ours, _ = compare(sampler, spec, make_episodes(spec, lengths, seed), options)
    assert all(not items for items in ours.stored[tables:])


ALIKE: list[tuple[list[int], Options]] = [
    ([3, 1, 5], Windows(tables=2)),
    ([1, 1], Windows(4, 2, pad=True, tile=True, priority=0.5)),
    ([4, 9, 2], Episodes(5, bypass=True)),
    ([4, 9, 2], Episodes(5)),
    ([2, 1, 4, 3], Stream(3, 2, tables=2)),
    ([], Windows()),
]


@pytest.mark.parametrize(
    ("spec", "lengths", "options"),
    [
        (spec, *case)
        for column, spec in enumerate(["flat", "mixed", "text", "hollow"])
        for row, case in enumerate(ALIKE)
        if DEEP or (row + column) % 2 == 0  # each spec with three of them, each of them with two specs
    ],
)
def test_stored_items_are_those_of_tf_agents_in_every_spec(
    sampler: Any, spec: str, lengths: list[int], options: Options
) -> None:
    compare(sampler, spec, make_episodes(spec, lengths), options)


@given(
    lengths=LENGTHS,
    seed=SEEDS,
    options=st.sampled_from(list(FLAGS.values())).flatmap(numbers),
    tables=st.integers(1, 2),
)
@on_one_server(30)
def test_nested_steps_are_stored_as_the_reference_says(
    sampler: Any, lengths: list[int], seed: int, options: Options, tables: int
) -> None:
    episodes = make_episodes("nested", lengths, seed)
    if isinstance(options, Episodes):
        options = replace(options, max_length=max(options.max_length, *lengths, 1))
    options = replace(options, tables=tables)
    names = [f"nested/ours/{number}" for number in range(1, tables + 1)]
    for table in names:
        sampler.reset(table)
    ours = outcome(push_rlds_to_reverb, dataset("nested", episodes), options.observer(sampler, names), names)
    steps = all_steps(episodes)
    assert (ours.returned, ours.error) == (len(steps), None)
    next_index = reference.next_step_type_index(steps) if steps else 0
    expected = options.items(reference.trajectories(steps), next_index)
    for items in ours.stored:
        reference.assert_same_items([item.columns for item in items], expected)
        assert {item.priority for item in items} <= {float(options.priority)}


def test_too_long_an_episode_raises_the_text_of_tf_agents_and_keeps_those_before(sampler: Any) -> None:
    ours, _ = compare(sampler, "flat", make_episodes("flat", [3, 4, 9, 2]), Episodes(5))
    assert ours.error is not None and ours.error[0] is ValueError
    assert "exceeds `max_sequence_length`" in ours.error[1]
    assert [len(item.columns[0]) for item in ours.stored[0]] == [3, 4]


def test_bypassed_episodes_are_counted_and_logged(sampler: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "rlds2reverb.tf_agents"):
        ours, _ = compare(sampler, "flat", make_episodes("flat", [3, 9, 2]), Episodes(5, bypass=True))
    assert ours.returned == 14
    assert [len(item.columns[0]) for item in ours.stored[0]] == [3, 2]
    assert [record.message for record in caplog.records if record.name == "rlds2reverb.tf_agents"] == [
        "An episode of 9 steps exceeds `max_sequence_length` and was not stored."
    ]


TOO_LONG = {"bypassed": ([3, 9], Episodes(5, bypass=True)), "an error": ([3, 9, 2], Episodes(5))}


@pytest.mark.parametrize(("lengths", "options"), TOO_LONG.values(), ids=TOO_LONG)
def test_an_observer_holds_nothing_of_a_too_long_episode(sampler: Any, lengths: list[int], options: Options) -> None:
    """TF-Agents' takes an empty writer for one with data, or stores the beginning; see docs/tf_agents.md."""
    after = make_episodes("flat", [4], seed=9)
    resets, stored = [], []
    for side, push in SIDES.items():
        observer = options.observer(sampler, [f"flat/{side}/1"])
        with contextlib.suppress(ValueError):
            push(dataset("flat", make_episodes("flat", lengths)), observer)
        try:
            resets.append(observer.reset())
        except ValueError as error:
            resets.append(str(error))
            observer.reset(write_cached_steps=False)
        for entry in convert_rlds_to_trajectories(dataset("flat", after)):
            observer(entry)
        observer.flush()
        stored.append([len(item.columns[0]) for item in rlds_data.take_all(sampler, f"flat/{side}/1")])
    assert (resets[0], stored[0]) == (None, [3, 4])
    assert (resets[1], stored[1]) == (
        ("trajectory must not be empty.", [3, 4]) if options.bypass else (None, [3, 5, 4])
    )


def test_a_push_mends_an_observer_that_bypassed_an_episode_before(sampler: Any) -> None:
    resets = []
    for side, push in SIDES.items():
        observer = Episodes(5, bypass=True).observer(sampler, [f"flat/{side}/1"])
        for entry in convert_rlds_to_trajectories(dataset("flat", make_episodes("flat", [9]))):
            observer(entry)
        push(dataset("flat", make_episodes("flat", [3])), observer)
        resets.append(observer.reset())
    assert resets == [None, None]


def test_an_updated_priority_is_used(sampler: Any) -> None:
    observer = Episodes().observer(sampler, ["flat/ours/1"])
    observer.update_priority(3.5)
    ours = outcome(push_rlds_to_reverb, dataset("flat", make_episodes("flat", [4])), observer, ["flat/ours/1"])
    assert [item.priority for item in ours.stored[0]] == [3.5]


# Flags.


@st.composite
def flagged_blocks(draw: st.DrawFn) -> list[Any]:
    """Episodes whose flags are good, or have a few mistakes, or are anything."""
    blocks = make_episodes("flat", draw(st.lists(st.integers(0, 6), min_size=1, max_size=4)), draw(SEEDS))
    for columns in blocks:
        rows = len(columns["reward"])
        for name in ("is_first", "is_last", "is_terminal"):
            flips = draw(st.sets(st.integers(0, rows - 1), max_size=1) if rows else st.just(set()))
            columns[name] = columns[name] ^ np.isin(np.arange(rows), list(flips)) if flips else columns[name]
    if draw(st.booleans()) and len(blocks) > 1:  # an episode over two blocks
        whole = rlds_data.episode(np.random.default_rng(5), 5)
        blocks += [reference.mapped(lambda column: column[:3], whole), reference.mapped(lambda c: c[3:], whole)]
    return blocks


def rows_before_the_bad_block(blocks: list[Any]) -> tuple[list[reference.Row], str | None]:
    """Rows of what is complete before the first block with a broken rule, and that rule's text."""
    steps = reference.pairs(all_steps(blocks))
    rows: list[reference.Row] = []
    for columns in blocks:
        count = len(columns["reward"])
        block, steps = steps[:count], steps[count:]
        for pair in block:
            if message := reference.broken_rule(*pair):
                ends = [number for number, row in enumerate(rows) if row[0] == reference.LAST]
                return rows[: ends[-1] + 1 if ends else 0], message
        rows += [reference.trajectory(*pair) for pair in block]
    return rows, None


def text_of_tf_agents(blocks: list[Any]) -> str | None:
    """What TF-Agents' conversion raises for these steps, if anything."""
    try:
        for _ in rlds_to_reverb.convert_rlds_to_trajectories(dataset("flat", blocks)):
            pass
    except tf.errors.InvalidArgumentError as error:
        return str(error)
    return None


@given(blocks=flagged_blocks())
@on_one_server(35)
def test_bad_flags_raise_as_in_tf_agents_and_nothing_of_the_bad_episode_is_stored(
    sampler: Any, blocks: list[Any]
) -> None:
    rows, message = rows_before_the_bad_block(blocks)
    theirs = text_of_tf_agents(blocks)
    sampler.reset("flat/ours/1")
    observer = Windows().observer(sampler, ["flat/ours/1"])
    ours = outcome(push_rlds_to_reverb, dataset("flat", blocks), observer, ["flat/ours/1"])
    reference.assert_same_items([i.columns for i in ours.stored[0]], reference.sequence_items(rows, 3, 2))
    if message is None:
        assert theirs is None
        assert (ours.returned, ours.error) == (sum(len(columns["reward"]) for columns in blocks), None)
    else:
        assert theirs is not None and message in theirs
        assert ours.error is not None and ours.error[0] is tf.errors.InvalidArgumentError
        assert message in ours.error[1]


# policy_info.


def test_a_table_with_policy_info_takes_it(sampler: Any) -> None:
    for spec, function in INFO_FUNCTIONS.items():
        episodes = make_episodes(spec, [3, 1, 4, 2])
        steps = all_steps(episodes)
        observer = Windows(3, 2, pad=True, tile=True).observer(sampler, [f"{spec}/with_info"])
        ours = outcome(push_rlds_to_reverb, dataset(spec, episodes), observer, [f"{spec}/with_info"], function)
        assert (ours.returned, ours.error) == (10, None)
        info_leaves = len(reference.leaves(function(steps[0], steps[0])))
        next_index = reference.next_step_type_index(steps, info_leaves)
        rows = reference.trajectories(steps, function)
        expected = reference.sequence_items(rows, next_index, 3, 2, pad=True, tile=True)
        reference.assert_same_items([item.columns for item in ours.stored[0]], expected)


def test_a_table_without_policy_info_gets_the_extra_columns_as_from_tf_agents(sampler: Any) -> None:
    several: tuple[Options, ...] = (Windows(tables=2), Windows(4, 1, pad=True), Episodes())
    for options in several:
        ours, _ = compare(sampler, "flat", make_episodes("flat", [3, 1, 4, 2]), options, outlook)
        assert ours.returned == 10
        assert {len(item.columns) for item in ours.stored[0]} == {6 + 4}


def test_nested_steps_reach_policy_info_fn_without_policy_info_in_the_table(sampler: Any) -> None:
    episodes = make_episodes("nested", [3, 2])
    observer = Episodes().observer(sampler, ["nested/ours/1"])
    ours = outcome(push_rlds_to_reverb, dataset("nested", episodes), observer, ["nested/ours/1"], nested_outlook)
    rows = reference.trajectories(all_steps(episodes), nested_outlook)
    reference.assert_same_items([item.columns for item in ours.stored[0]], reference.episode_items(rows))


def test_policy_info_without_leaves_is_no_policy_info(sampler: Any) -> None:
    ours, _ = compare(sampler, "flat", make_episodes("flat", [3]), Windows(), lambda current, following: ())
    assert {len(item.columns) for item in ours.stored[0]} == {6}


@pytest.mark.parametrize("options", [Windows(), Episodes(), Stream()], ids=str)
def test_step_fields_that_no_trajectory_has_are_ignored(sampler: Any, options: Options) -> None:
    columns = make_episodes("flat", [4])[0]
    data = rlds_data.dataset([{**columns, "policy_info": {"logits": np.zeros(4)}, "extra": np.ones(4)}])
    for info_fn in (None, outlook):
        results = []
        for side, push in SIDES.items():
            names = [f"flat/{side}/1"]
            results.append(outcome(push, data, options.observer(sampler, names), names, info_fn))
        assert_same_outcome(*results)
        assert results[0].returned == 4


def test_a_table_with_policy_info_is_refused_without_the_function(sampler: Any) -> None:
    observer = Windows().observer(sampler, ["flat/with_info"])
    with pytest.raises(ValueError, match="signature spec should match") as caught:
        push_rlds_to_reverb(dataset("flat", make_episodes("flat", [3])), observer)
    assert isinstance(caught.value.__cause__, SpecMismatch)
    assert "policy_info/change" in str(caught.value.__cause__)
    assert sampler.server_info()["flat/with_info"].current_size == 0


# Observers in other states and of other kinds.


@pytest.mark.parametrize("options", [Windows(3), Episodes(), Stream(3, 2)], ids=str)
def test_steps_that_an_observer_holds_already_come_first(sampler: Any, options: Options) -> None:
    held, data = make_episodes("flat", [4], seed=9), make_episodes("flat", [2, 3])
    results = []
    for side, push in SIDES.items():
        observer = options.observer(sampler, [f"flat/{side}/1"])
        for entry in convert_rlds_to_trajectories(dataset("flat", held)).take(2):
            observer(entry)
        results.append(outcome(push, dataset("flat", data), observer, [f"flat/{side}/1"]))
    assert_same_outcome(*results)
    assert results[0].returned == 5
    rows = reference.trajectories(all_steps(held))[:2] + reference.trajectories(all_steps(data))
    reference.assert_same_items([i.columns for i in results[0].stored[0]], options.items(rows, 3))


def test_items_observed_before_the_push_come_before_it(sampler: Any) -> None:
    before, data = make_episodes("flat", [4], seed=9), make_episodes("flat", [3])
    observer = Windows().observer(sampler, ["flat/ours/1"])
    for entry in convert_rlds_to_trajectories(dataset("flat", before)):
        observer(entry)
    ours = outcome(push_rlds_to_reverb, dataset("flat", data), observer, ["flat/ours/1"])
    rows = reference.trajectories(all_steps([*before, *data]))
    reference.assert_same_items([i.columns for i in ours.stored[0]], reference.sequence_items(rows, 3, 2))


@pytest.mark.parametrize("options", [Windows(), Episodes(), Stream()], ids=str)
def test_a_closed_observer_raises_as_in_tf_agents(sampler: Any, options: Options) -> None:
    data = dataset("flat", make_episodes("flat", [3]))
    results = []
    for side, push in SIDES.items():
        observer = options.observer(sampler, [f"flat/{side}/1"])
        observer.close()
        results.append(outcome(push, data, observer, [f"flat/{side}/1"]))
    assert_same_outcome(*results)
    assert results[0].error == (ValueError, "Could not obtain writer from py_client.")
    assert results[0].stored == [[]]


@pytest.mark.parametrize("options", [Windows(tables=2), Episodes(tables=2), Stream(tables=2)], ids=str)
def test_a_table_named_twice_gets_every_item_twice(sampler: Any, options: Options) -> None:
    data = dataset("flat", make_episodes("flat", [3, 4]))
    results = []
    for side, push in SIDES.items():
        names = [f"flat/{side}/1"]
        results.append(outcome(push, data, options.observer(sampler, names * 2), names))
    assert_same_outcome(*results)
    reference.assert_same_items(*([item.columns for item in results[0].stored[0][at::2]] for at in (0, 1)))


class Recorder:
    """An observer of a kind that we do not know."""

    def __init__(self, signature: Any) -> None:
        self._signature = signature
        self.seen: list[Any] = []
        self.flushed_after: list[int] = []

    def get_table_signature(self) -> Any:
        return self._signature

    def __call__(self, entry: Any) -> None:
        self.seen.append(entry)

    def flush(self) -> None:
        self.flushed_after.append(len(self.seen))


class Callable_:
    """The least that an observer can be: no flush."""

    def __init__(self, recorder: Recorder) -> None:
        self.get_table_signature = recorder.get_table_signature
        self._recorder = recorder

    def __call__(self, entry: Any) -> None:
        self._recorder(entry)


def test_an_observer_of_an_unknown_kind_is_called_once_a_step_and_flushed(sampler: Any) -> None:
    episodes = make_episodes("flat", [3, 2])
    recorder = Recorder(sampler.server_info()["flat/ours/1"].signature)
    assert push_rlds_to_reverb(dataset("flat", episodes), recorder, outlook) == 5
    assert recorder.flushed_after == [5]
    seen = [[np.asarray(leaf) for leaf in tf.nest.flatten(entry)] for entry in recorder.seen]
    reference.assert_same_items(seen, reference.trajectories(all_steps(episodes), outlook))


def test_an_observer_of_an_unknown_kind_sees_columns_without_values(sampler: Any) -> None:
    episodes = make_episodes("hollow", [3, 1])
    recorder = Recorder(sampler.server_info()["hollow/ours/1"].signature)
    assert push_rlds_to_reverb(dataset("hollow", episodes), recorder) == 4
    seen = [[np.asarray(leaf) for leaf in tf.nest.flatten(entry)] for entry in recorder.seen]
    reference.assert_same_items(seen, reference.trajectories(all_steps(episodes)))


def test_a_plain_callable_with_a_signature_is_an_observer(sampler: Any) -> None:
    recorder = Recorder(sampler.server_info()["flat/ours/1"].signature)
    assert push_rlds_to_reverb(dataset("flat", make_episodes("flat", [3])), Callable_(recorder)) == 3
    assert len(recorder.seen) == 3


def test_a_subclass_with_a_call_of_its_own_is_called(sampler: Any) -> None:
    class Doubled(reverb_utils.ReverbAddTrajectoryObserver):
        calls = 0

        def __call__(self, trajectory: Any) -> None:
            Doubled.calls += 1
            super().__call__(trajectory)

    observer = Doubled(sampler, "flat/ours/1", 2)
    ours = outcome(push_rlds_to_reverb, dataset("flat", make_episodes("flat", [3])), observer, ["flat/ours/1"])
    assert (Doubled.calls, len(ours.stored[0])) == (3, 2)


# Our own target.


@pytest.mark.parametrize(
    ("view", "options"),
    [
        ("two_step", Windows()),
        (two_step(2.5), Windows(priority=2.5)),
        ("sequence:length=3,stride=2,pad_end=true", Windows(3, 2, pad=True)),
        (SequenceView(4, 1, True, True), Windows(4, 1, pad=True, tile=True)),
        ("episode", Episodes()),
        (WholeEpisode(3, skip_longer=True), Episodes(3)),
        ("across_episodes:length=4,stride=3", Stream(4, 3)),
    ],
    ids=str,
)
@pytest.mark.parametrize("spec", ["flat", "nested"])
def test_a_target_stores_what_the_observer_of_the_same_options_stores(
    sampler: Any, client: rlds2reverb.Client, spec: str, view: str | View, options: Options
) -> None:
    episodes = make_episodes(spec, [3, 1, 5])
    tables = [f"{spec}/ours/1", f"{spec}/ours/2"]
    assert push_rlds_to_reverb(dataset(spec, episodes), client.target(tables, view)) == 9
    steps = all_steps(episodes)
    expected = options.items(reference.trajectories(steps), reference.next_step_type_index(steps))
    for table in tables:
        stored = rlds_data.take_all(sampler, table)
        reference.assert_same_items([item.columns for item in stored], expected)
        assert {item.priority for item in stored} == {options.priority}


def test_a_target_takes_policy_info(sampler: Any, client: rlds2reverb.Client) -> None:
    episodes = make_episodes("flat", [3, 2])
    push_rlds_to_reverb(dataset("flat", episodes), client.target("flat/with_info"), outlook)
    rows = reference.trajectories(all_steps(episodes), outlook)
    stored = rlds_data.take_all(sampler, "flat/with_info")
    reference.assert_same_items([item.columns for item in stored], reference.sequence_items(rows, 7, 2))


def test_a_target_whose_view_cuts_no_trajectories_is_refused(client: rlds2reverb.Client) -> None:
    target = client.target("flat/ours/1", "transition")
    with pytest.raises(
        ViewError, match="view transition: push_rlds_to_reverb takes two_step, sequence, episode or across_episodes"
    ):
        push_rlds_to_reverb(dataset("flat", make_episodes("flat", [3])), target)


def test_a_target_of_an_unknown_table_names_those_there_are(client: rlds2reverb.Client) -> None:
    with pytest.raises(ConfigError, match='no table "nowhere"; it has bare, flat/ours/1'):
        push_rlds_to_reverb(dataset("flat", []), client.target("nowhere"))


# Tables with signatures of our own.


@pytest.mark.parametrize(
    ("table", "options"),
    [("pairs", Windows()), ("pairs", Windows(2, 3, pad=True)), ("pairs", Stream()), ("renamed", Episodes())],
    ids=str,
)
def test_a_signature_that_fits_leaf_by_leaf_is_taken_where_tf_agents_compares_to_the_letter(
    sampler: Any, table: str, options: Options
) -> None:
    episodes = make_episodes("flat", [3, 1, 4])
    theirs, ours = (
        outcome(push, dataset("flat", episodes), options.observer(sampler, [table]), [table])
        for push in (rlds_to_reverb.push_rlds_to_reverb, push_rlds_to_reverb)
    )
    assert theirs.error == (ValueError, "Replay buffer table signature spec should match RLDS data spec.")
    assert (ours.returned, ours.error) == (8, None)
    rows = reference.trajectories(all_steps(episodes))
    reference.assert_same_items([item.columns for item in ours.stored[0]], options.items(rows, 3))


@pytest.mark.parametrize("options", [Windows(3), Stream(1), Episodes(2)], ids=str)
def test_a_table_of_fixed_rows_refuses_an_observer_of_others_and_says_which_it_needs(
    sampler: Any, options: Options
) -> None:
    with pytest.raises(ValueError) as caught:
        push_rlds_to_reverb(dataset("flat", make_episodes("flat", [3])), options.observer(sampler, ["pairs"]))
    rows = options.length if isinstance(options, Windows) else "?"
    assert f"reward: items have float32[{rows}], table has float32[2]" in str(caught.value.__cause__)
    assert "signature=tensor_spec.add_outer_dim(create_trajectory_data_spec(" in str(caught.value.__cause__)
    assert sampler.server_info()["pairs"].current_size == 0


def test_a_table_of_fixed_rows_refuses_an_observer_of_an_unknown_kind(sampler: Any) -> None:
    recorder = Recorder(sampler.server_info()["pairs"].signature)
    with pytest.raises(ValueError, match="signature spec should match"):
        push_rlds_to_reverb(dataset("flat", make_episodes("flat", [3])), recorder)
    assert recorder.seen == []


# What every push keeps.


@pytest.mark.parametrize("options", [Windows(), Episodes()], ids=["windows", "episodes"])
def test_pushed_twice_is_stored_twice(sampler: Any, options: Options) -> None:
    data = dataset("flat", make_episodes("flat", [3, 4]))
    observer = options.observer(sampler, ["flat/ours/1"])
    assert [push_rlds_to_reverb(data, observer) for _ in range(2)] == [7, 7]
    stored = rlds_data.take_all(sampler, "flat/ours/1")
    half = len(stored) // 2
    assert len({item.key for item in stored}) == 2 * half > 0
    reference.assert_same_items([i.columns for i in stored[:half]], [i.columns for i in stored[half:]])


def test_everything_is_in_the_table_when_the_push_returns(sampler: Any) -> None:
    episodes = make_episodes("flat", [700] * 10)
    observer = Windows().observer(sampler, ["flat/ours/1", "flat/ours/2"])
    assert push_rlds_to_reverb(dataset("flat", episodes), observer) == 7000
    assert sampler.server_info()["flat/ours/1"].current_size == 6990


def test_everything_before_an_error_is_in_the_table_when_it_is_raised(sampler: Any) -> None:
    episodes = make_episodes("flat", [700] * 5)
    episodes[4]["is_last"] = np.zeros(700, bool)
    episodes[4]["is_terminal"] = np.ones(700, bool)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Terminal step must be the last.*step 0 of its episode"):
        push_rlds_to_reverb(dataset("flat", episodes), Windows().observer(sampler, ["flat/ours/1"]))
    assert sampler.server_info()["flat/ours/1"].current_size == 4 * 699


# Specs.


@pytest.mark.parametrize("dtype", ["float64", "int32", "float16"])
def test_a_discount_of_another_dtype_is_a_type_error_as_in_tf_agents(sampler: Any, dtype: str) -> None:
    columns = make_episodes("flat", [3])[0]
    data = rlds_data.dataset([{**columns, "discount": columns["discount"].astype(dtype)}])
    observer = Windows().observer(sampler, ["flat/ours/1"])
    with pytest.raises(TypeError):
        rlds_to_reverb.push_rlds_to_reverb(data, observer)
    with pytest.raises(TypeError, match=f"RLDS discount: expected float32, .* got {dtype}; cast it"):
        push_rlds_to_reverb(data, observer)
    assert sampler.server_info()["flat/ours/1"].current_size == 0


@pytest.mark.parametrize(
    ("table", "lines"),
    [
        ("bare", ["the table has no signature"]),
        (
            "mixed/ours/1",
            [
                "observation: items have float32[?, 3], table has uint8[?, 2, 3]",
                "action: items have float32[?, 2], table has int64[?]",
                "reward: items have float32[?], table has float64[?, 2]",
            ],
        ),
        (
            "nested/ours/1",
            [
                "observation: items have float32[?, 3], table has no such column",
                "action: items have float32[?, 2], table has no such column",
                "observation/a: table has float32[?], items have no such column",
                "observation/camera/left: table has uint8[?, 2, 2], items have no such column",
                "observation/camera/right: table has uint8[?, 2, 2], items have no such column",
                "action/0: table has float32[?, 2], items have no such column",
                "action/1/grip: table has int32[?], items have no such column",
            ],
        ),
    ],
)
def test_another_signature_is_refused_with_the_text_of_tf_agents_and_the_cause_leaf_by_leaf(
    sampler: Any, table: str, lines: list[str]
) -> None:
    data = dataset("flat", make_episodes("flat", [3]))
    texts = []
    for push in (push_rlds_to_reverb, rlds_to_reverb.push_rlds_to_reverb):
        with pytest.raises(ValueError) as caught:
            push(data, Windows().observer(sampler, [table]))
        texts.append(str(caught.value))
        if push is push_rlds_to_reverb:
            assert isinstance(caught.value.__cause__, SpecMismatch)
            assert list(caught.value.__cause__.differences) == lines
    assert texts == ["Replay buffer table signature spec should match RLDS data spec."] * 2
    assert sampler.server_info()[table].current_size == 0


@pytest.mark.parametrize("table", ["bare", "mixed/ours/1"])
def test_a_target_with_another_signature_is_refused(client: rlds2reverb.Client, table: str) -> None:
    with pytest.raises(ValueError, match="signature spec should match RLDS data spec") as caught:
        push_rlds_to_reverb(dataset("flat", make_episodes("flat", [3])), client.target(table))
    assert isinstance(caught.value.__cause__, SpecMismatch)


def test_a_table_of_another_window_length_refuses_a_target(client: rlds2reverb.Client) -> None:
    data = dataset("flat", make_episodes("flat", [3]))
    assert push_rlds_to_reverb(data, client.target("pairs")) == 3
    with pytest.raises(ValueError) as caught:
        push_rlds_to_reverb(data, client.target("pairs", "sequence:length=3"))
    assert "observation: items have float32[3, 3], table has float32[2, 3]" in str(caught.value.__cause__)
