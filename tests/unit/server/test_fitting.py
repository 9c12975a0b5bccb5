"""A checkpoint made to fit another config: the right items stay, and inserts and samples go on by the new rules."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reverb

import rlds2reverb
from rlds2reverb.specs import view_in
from rlds2reverb.wire.messages import TableInfo
from tests.support.forks import Forks, Running

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

PRIORITIES = [5.0, 1.0, 7.0, 3.0, 2.0, 8.0, 6.0, 4.0]
ONCE = {"name": "t", "sampler": "fifo", "max_times_sampled": 1}
"""Hands out each item once, in order, so that everything can be read back."""


class Experiment:
    """Servers one after another on one folder of checkpoints."""

    def __init__(self, forks: Forks, folder: Path) -> None:
        self._forks, self.folder = forks, folder
        self._running: Running | None = None

    def start(self, *tables: dict[str, Any], **checkpoints: Any) -> Running:
        """Ends the one before, with a checkpoint, and starts the next."""
        self.end()
        section = {"folder": str(self.folder), "every_seconds": None, **checkpoints}
        self._running = self._forks.start({"tables": list(tables), "checkpoints": section})
        return self._running

    def end(self) -> None:
        ending, self._running = self._running, None
        if ending is not None:
            assert self._forks.end(ending) == 0


@pytest.fixture
def experiment(forks: Forks, tmp_path: Path) -> Iterator[Experiment]:
    made = Experiment(forks, tmp_path / "checkpoints")
    yield made
    made.end()


def in_time(work: Callable[[], Any]) -> Any:
    """The result of work that a limiter could stop for ever."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "blocked"
    return results[0]


def insert(running: Running, values: list[float], table: str = "t", priorities: list[float] | None = None) -> None:
    client = reverb.Client(running.address)
    for value, priority in zip(values, priorities or [1.0] * len(values), strict=True):
        in_time(partial(client.insert, [np.float32(value)], {table: priority}))


def sample(running: Running, count: int, table: str = "t") -> list[float]:
    client = reverb.Client(running.address)
    return [float(batch[0].data[0]) for batch in in_time(lambda: list(client.sample(table, count)))]


def table_of(running: Running, table: str = "t") -> TableInfo:
    with rlds2reverb.connect(running.address) as client:
        return client.server_info().tables[table]


def test_everything_stored_is_restored_as_it_was(experiment: Experiment) -> None:
    signature = {"a": "float32[3]", "text": "string[]", "b": {"c": "int64[2, 2]"}}
    table = {**ONCE, "signature": signature}
    rng = np.random.default_rng(3)
    stored: list[dict[str, Any]] = [
        {
            "a": rng.normal(size=3).astype(np.float32),
            "text": np.array(rng.bytes(int(n))),
            "b": {"c": rng.integers(0, 9, (2, 2))},
        }
        for n in range(1, 30)
    ]
    first = experiment.start(table, {"name": "empty"})
    with reverb.Client(first.address).trajectory_writer(1) as writer:
        for number, step in enumerate(stored):
            writer.append(step)
            history = writer.history
            trajectory = {"a": history["a"][-1], "text": history["text"][-1], "b": {"c": history["b"]["c"][-1]}}
            writer.create_item("t", float(number), trajectory)
            writer.flush()
    second = experiment.start(table, {"name": "empty"})
    assert (second.sizes, second.tables) == ({"t": len(stored), "empty": 0}, {"t": [], "empty": []})
    found = list(reverb.Client(second.address).sample("t", len(stored), emit_timesteps=False))
    for number, (item, step) in enumerate(zip(found, stored, strict=True)):
        assert item.info.priority == number
        assert np.array_equal(item.data[0], step["a"])
        assert np.array_equal(item.data[1], step["b"]["c"])
        assert item.data[2] == step["text"].item()
    assert experiment.start(table, {"name": "empty"}).sizes == {"t": 0, "empty": 0}


def test_a_new_table_starts_empty_and_one_no_longer_there_is_kept_aside(experiment: Experiment) -> None:
    first = experiment.start(ONCE, {**ONCE, "name": "old"})
    insert(first, [1, 2, 3])
    insert(first, [4, 5], "old")
    second = experiment.start(ONCE, {"name": "new"})
    assert (second.sizes, second.tables["old"], second.tables["new"]) == (
        {"t": 3, "new": 0},
        ["not_in_config"],
        ["new"],
    )
    [kept] = (experiment.folder / "set_aside").iterdir()
    assert sample(second, 3) == [1, 2, 3]
    insert(second, [6], "new")
    experiment.end()
    third = experiment.start({**ONCE, "name": "old"}, start_from=str(kept), folder=str(experiment.folder / "another"))
    assert third.sizes == {"old": 2}
    assert sample(third, 2, "old") == [4, 5]


@pytest.mark.parametrize("before", [{}, {"signature": "float64[]"}], ids=["none", "other"])
def test_a_table_with_another_signature_is_set_aside_or_refused(experiment: Experiment, before: dict[str, Any]) -> None:
    first = experiment.start({**ONCE, **before})
    write_one(first, np.float64(1))
    changed = {**ONCE, "signature": "float32[2]"}
    with pytest.raises(RuntimeError, match=r'(?s)CheckpointError: .*table "t": .*set checkpoints\.unfit_tables'):
        experiment.start(changed, unfit_tables="refuse")
    second = experiment.start(changed)
    assert (second.sizes, second.tables) == ({"t": 0}, {"t": ["other_signature"]})
    assert len(list((experiment.folder / "set_aside").iterdir())) == 1


def test_a_size_that_is_free_now_takes_the_items_and_bounds_are_those_of_the_config(experiment: Experiment) -> None:
    fixed, free = ({"dtype": "float32", "shape": [size], "name": "a", "minimum": 0, "maximum": 9} for size in (2, "?"))
    first = experiment.start({**ONCE, "signature": fixed})
    write_one(first, np.ones(2, np.float32))
    second = experiment.start({**ONCE, "signature": free})
    assert (second.sizes, second.tables) == ({"t": 1}, {"t": []})
    leaf = reverb.Client(second.address).server_info()["t"].signature
    assert (leaf.shape.as_list(), leaf.name, leaf.minimum, leaf.maximum) == ([None], "a", 0, 9)
    third = experiment.start({**ONCE, "signature": fixed})
    assert (third.sizes, third.tables) == ({"t": 0}, {"t": ["other_signature"]})


def test_a_table_for_another_view_is_another_and_one_that_does_not_say_fits_all(experiment: Experiment) -> None:
    def config(view: str | None) -> dict[str, Any]:
        leaf = {"dtype": "float32", "shape": ["?"], **({} if view is None else {"view": view})}
        return {**ONCE, "signature": leaf}

    write_one(experiment.start(config(None)), np.ones(2, np.float32))
    for view, changes in {"two_step": [], "n_step:n=3": ["other_signature"]}.items():
        found = experiment.start(config(view))
        assert (found.sizes, found.tables) == ({"t": int(not changes)}, {"t": changes})
    with rlds2reverb.connect(found.address) as client:
        assert view_in(client.tables()["t"].signature) == "n_step:n=3,gamma=0.99,style=acme"


def write_one(running: Running, value: Any) -> None:
    with reverb.Client(running.address).trajectory_writer(1) as writer:
        writer.append(value)
        writer.create_item("t", 1.0, writer.history[-1])
        writer.flush()


@pytest.mark.parametrize(
    ("remover", "kept"),
    {
        "fifo": [4, 5, 6, 7],
        "lifo": [0, 1, 2, 3],
        "min_heap": [0, 2, 5, 6],
        "max_heap": [1, 3, 4, 7],
        "uniform": None,
        "prioritized": None,
    }.items(),
)
def test_of_a_table_that_is_smaller_now_the_items_stay_that_its_remover_leaves(
    experiment: Experiment, remover: str, kept: list[float] | None
) -> None:
    """Items 0 to 7 with `PRIORITIES`."""
    table = {**ONCE, "remover": remover}
    first = experiment.start(table)
    insert(first, list(range(8)), "t", PRIORITIES)
    second = experiment.start({**table, "max_size": 4})
    assert (second.sizes, second.tables) == ({"t": 4}, {"t": ["trimmed"]})
    insert(second, [])
    found = sample(second, 4)
    assert found == (kept if kept is not None else sorted(set(found) & set(range(8))))
    insert(second, [9, 10, 11, 12])
    third = experiment.start({**table, "max_size": 4})
    assert (third.sizes, third.tables) == ({"t": 4}, {"t": []})
    assert sample(third, 4) == [9, 10, 11, 12]


def test_other_selectors_and_counts_take_effect(experiment: Experiment) -> None:
    first = experiment.start({"name": "t"})
    insert(first, list(range(8)), "t", PRIORITIES)
    second = experiment.start({"name": "t", "sampler": "max_heap", "remover": "lifo", "max_times_sampled": 2})
    found = table_of(second)
    assert (found.sampler, found.remover, found.max_times_sampled) == ("max_heap", "lifo", 2)
    assert sample(second, 4) == [5, 5, 2, 2]
    third = experiment.start({"name": "t", "sampler": {"kind": "prioritized", "exponent": 0.0}, "max_size": 6})
    assert Counter(sample(third, 40)).keys() <= {0, 1, 3, 4, 6, 7}
    assert (table_of(third).sampler, third.sizes) == ("prioritized(0)", {"t": 6})


LIMITERS: dict[str, dict[str, Any]] = {
    "min_size": {"kind": "min_size", "min_size": 2},
    "other min_size": {"kind": "min_size", "min_size": 3},
    "ratio": {"kind": "sample_to_insert_ratio", "samples_per_insert": 2, "error_buffer": 4, "min_size": 2},
    "other ratio": {"kind": "sample_to_insert_ratio", "samples_per_insert": 0.5, "error_buffer": 3, "min_size": 1},
    "queue": {"kind": "queue", "size": 6},
    "longer queue": {"kind": "queue", "size": 9},
    "stack": {"kind": "stack", "size": 6},
}


def limited(name: str) -> dict[str, Any]:
    limiter = LIMITERS[name]
    own = limiter["kind"] in ("queue", "stack")
    return {"name": "t", "rate_limiter": limiter, **({} if own else {"sampler": "fifo", "max_size": 50})}


@pytest.mark.parametrize("after", LIMITERS)
@pytest.mark.parametrize("before", ["min_size", "ratio", "queue"])
def test_inserts_and_samples_go_on_after_a_change_of_the_limiter(
    experiment: Experiment, before: str, after: str
) -> None:
    first = experiment.start(limited(before))
    insert(first, [0, 1, 2])
    sample(first, 2)
    insert(first, [3, 4])
    second = experiment.start(limited(after))
    size = 3 if before == "queue" else 5
    assert second.sizes == {"t": size}
    if after in ("queue", "longer queue", "stack"):
        goes_through_once(second, size, LIMITERS[after]["size"], list(range(5 - size, 5)), after == "stack")
        return
    samples, inserts = {"ratio": (2, 1), "other ratio": (1, 2)}.get(after, (1, 1))
    for _ in range(8):
        sample(second, samples)
        insert(second, [9.0] * inserts)
    assert table_of(second).current_size == size + 8 * inserts


def goes_through_once(running: Running, held: int, size: int, values: list[float], is_stack: bool) -> None:
    """A queue or stack takes as many items as it has room for, and then hands out all of them."""
    more = [float(10 + n) for n in range(size - held)]
    insert(running, more)
    expected = values + more
    assert sample(running, size) == (expected[::-1] if is_stack else expected)
    assert table_of(running).current_size == 0
    insert(running, [float(n) for n in range(size)])


def test_the_counts_of_an_unchanged_limiter_go_on(experiment: Experiment) -> None:
    """Two samples are left of the ratio before the restart, and two after it."""
    limiter = {"kind": "sample_to_insert_ratio", "samples_per_insert": 1, "error_buffer": 3, "min_size": 2}
    table = {"name": "t", "rate_limiter": limiter}
    first = experiment.start(table)
    insert(first, [0, 1, 2, 3])
    sample(first, 3)
    second = experiment.start(table)
    assert second.tables == {"t": []}
    sample(second, 2)
    blocked = threading.Thread(target=lambda: list(reverb.Client(second.address).sample("t", 1)), daemon=True)
    blocked.start()
    insert(second, [4])
    blocked.join(20)
    assert not blocked.is_alive()


def prefilled(**then: Any) -> dict[str, Any]:
    return {
        "name": "t",
        "sampler": "fifo",
        "rate_limiter": {"kind": "prefill", "items": 5, "then": {"kind": "min_size", **then}},
    }


RATIO = {"kind": "sample_to_insert_ratio", "samples_per_insert": 1, "error_buffer": 2, "min_size": 1}


def test_a_prefill_ends_with_the_restart_that_finds_it_done(experiment: Experiment) -> None:
    table = prefilled(**RATIO)
    first = experiment.start(table)
    insert(first, [0, 1, 2, 3])
    assert table_of(first).rate_limiter.min_size_to_sample == 5
    second = experiment.start(table)
    assert (second.sizes, second.tables) == ({"t": 4}, {"t": []})
    assert table_of(second).rate_limiter.min_size_to_sample == 5
    insert(second, list(range(4, 40)))  # the push never waits
    third = experiment.start(table)
    assert (third.sizes, third.tables) == ({"t": 40}, {"t": ["prefill_done"]})
    limiter = table_of(third).rate_limiter
    assert (limiter.min_size_to_sample, limiter.samples_per_insert, limiter.max_diff) == (1, 1.0, 3.0)
    for number in range(6):
        insert(third, [number])
        sample(third, 1)


def test_a_prefill_that_is_done_stays_done_when_items_go(experiment: Experiment) -> None:
    table = {**prefilled(**RATIO), "max_times_sampled": 1}
    insert(experiment.start(table), list(range(6)))
    second = experiment.start(table)
    sample(second, 2)
    third = experiment.start(table)
    assert third.sizes == {"t": 4}
    assert table_of(third).rate_limiter.min_size_to_sample == 1
    insert(third, [7])
    sample(third, 1)
