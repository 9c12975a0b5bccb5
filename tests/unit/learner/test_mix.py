"""Mixes: which part each sample is of, in which order the parts give theirs, and where a mix stands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb import Batch, BatchInfo, Client, Episode, Mix, local, mix
from rlds2reverb.errors import ConfigError, SpecMismatch, Stalled
from rlds2reverb.learner.batch import columns_of, paths_of
from rlds2reverb.learner.joining import Feed, Iterated, Repeated
from rlds2reverb.learner.mix import MixOptions, PartChoices
from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info
from tests.support import strategies
from tests.support.learner.reading import next_of, source_of


def of_lengths(*lengths: int, first: int = 0, columns: Any = None) -> list[Episode]:
    return [
        strategies.episode(np.random.default_rng(first + number), rows, columns) for number, rows in enumerate(lengths)
    ]


def batch_of(*values: float, first_key: int = 0, dtype: Any = np.float32, **info: Any) -> Batch:
    count = len(values)
    ones = np.ones(count)
    keys = np.arange(first_key, first_key + count).astype(np.uint64)
    known = BatchInfo(keys, ones, ones.astype(np.int64), ones, ones.astype(np.int32))
    return Batch({"x": np.array(values, dtype)}, known._replace(**info))


def columns(batch: Batch, made: Any) -> list[Any]:
    return columns_of(batch.data, paths_of(batch.data, made.structure))


def assert_same(one: Batch, other: Batch, made: Any) -> None:
    for mine, theirs in zip(columns(one, made), columns(other, made), strict=True):
        pairs = zip(mine, theirs, strict=True) if isinstance(mine, list) else [(mine, theirs)]
        for a, b in pairs:
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype
    for mine, theirs in zip(one.info, other.info, strict=True):
        np.testing.assert_array_equal(mine, theirs)


# By items.


def slow_mix(parts: list[list[int]], seed: int, nominal_length: int) -> Iterator[tuple[int, int]]:
    """il-representations' InterleavedDataset, in its own words: one sample after the other."""
    random, iterators = np.random.RandomState(seed), [iter(part) for part in parts]
    for _ in range(nominal_length):
        chosen = random.randint(len(parts))
        try:
            yield chosen, next(iterators[chosen])
        except StopIteration:
            iterators[chosen] = iter(parts[chosen])
            yield chosen, next(iterators[chosen])


@given(
    st.lists(st.lists(st.integers(2, 6), min_size=1, max_size=3), min_size=1, max_size=4),
    st.integers(0, 2**32 - 1),
    st.integers(1, 40),
    st.integers(1, 9),
)
@settings(max_examples=30, deadline=None)
def test_by_items_it_is_the_interleaved_dataset(lengths: list[list[int]], seed: int, samples: int, size: int) -> None:
    sources = [of_lengths(*own, first=100 * number) for number, own in enumerate(lengths)]
    keys = [[int(key) for batch in local(source) for key in batch.info.key] for source in sources]
    made = mix([(local(source, batch_size=3), 1) for source in sources], size, seed=seed, samples=samples)
    batches = list(made)
    found = [(int(part), int(key)) for batch in batches for part, key in zip(source_of(batch), batch.info.key)]
    assert found == list(slow_mix(keys, seed, samples))
    assert [batch.size for batch in batches] == [size] * (samples // size) + [samples % size] * (samples % size > 0)


def test_values_stand_beside_their_keys() -> None:
    sources = [of_lengths(4, 5), of_lengths(7, first=50)]
    known = {
        int(key): [column[row] for column in columns(batch, part)]
        for source in sources
        for part in [local(source)]
        for batch in part
        for row, key in enumerate(batch.info.key)
    }
    made = mix([(local(source), 1) for source in sources], 16, samples=100)
    for batch in made:
        for row, key in enumerate(batch.info.key):
            for column, value in zip(columns(batch, made), known[int(key)], strict=True):
                np.testing.assert_array_equal(column[row], value)


def test_weights_are_shares() -> None:
    made = mix(
        [(local(of_lengths(9)), 3), (local(of_lengths(9, first=5)), 0), (local(of_lengths(9, first=9)), 1)], 4000
    )
    shares = np.bincount(source_of(next_of(made)), minlength=3) / 4000
    assert shares[1] == 0
    assert abs(shares[0] - 0.75) < 0.035  # five standard deviations


@given(st.integers(0, 9), st.lists(st.integers(0, 5), min_size=1, max_size=5), st.booleans())
def test_choices_in_one_go_are_those_one_by_one(seed: int, counts: list[int], equal: bool) -> None:
    weights = [1.0, 1.0, 1.0] if equal else [1.0, 2.0, 0.5]
    whole, parts = PartChoices(seed, weights), PartChoices(seed, weights)
    total = sum(counts)
    expected = whole.take(total).tolist()
    assert [int(number) for count in counts for number in parts.take(count)] == expected
    parts.go_to(counts[0])
    assert parts.take(total - counts[0]).tolist() == expected[counts[0] :]


def test_an_empty_part_is_an_error_in_words() -> None:
    bad = of_lengths(5)[0].with_columns(is_last=np.zeros(5, bool))
    empty = local([bad], on_invalid="skip")
    with pytest.raises(ConfigError, match=r"part 1 \(episodes\) is empty"):
        mix([(local(of_lengths(4)), 1), (empty, 1)], 50).next_batch()


def test_items_of_other_shapes_are_a_list_or_padded() -> None:
    sources = [of_lengths(4, 4, 4), of_lengths(6, 2, first=9)]
    (batch,) = mix([(local(source, "episode"), 1) for source in sources], 8, samples=8)
    rows = {len(rows_of_item) for rows_of_item in columns(batch, local(sources[0], "episode"))[0]}
    assert rows == {4, 6, 2}
    (padded,) = mix([(local(source, "episode"), 1) for source in sources], 8, samples=8, ragged="pad")
    column = columns(padded, local(sources[0], "episode"))[0]
    assert column.shape[:2] == (8, 6)
    assert padded.info.mask is not None
    assert set(padded.info.mask.sum(axis=1)) == {4, 6, 2}
    with pytest.raises(ConfigError, match='give ragged="pad" to mix'):
        mix([(local(sources[1], "episode", ragged="pad"), 1)], 8).next_batch()


# By batches.


def test_by_batches_each_drawn_part_gives_an_equal_share() -> None:
    sources = [of_lengths(9), of_lengths(9, first=5), of_lengths(9, first=9)]
    keys = [[int(key) for batch in local(source) for key in batch.info.key] * 50 for source in sources]
    made = mix([(local(source), 1) for source in sources], 12, by="batch", draws=4, seed=3, samples=240)
    random, taken = np.random.RandomState(3), [0, 0, 0]
    drawn_twice = 0
    for batch in made:
        parts = np.repeat(random.randint(3, size=4), 3)
        assert source_of(batch).tolist() == parts.tolist()
        drawn_twice += len(set(parts)) < 3
        for part, key in zip(parts, batch.info.key):
            assert key == keys[part][taken[part]]
            taken[part] += 1
    assert drawn_twice
    assert sum(taken) == 240


def test_all_parts_can_be_taken_each_once_whatever_their_weights() -> None:
    sources = [of_lengths(9), of_lengths(9, first=5)]
    made = mix(
        [(local(source), weight) for source, weight in zip(sources, (1, 0))], 6, by="batch", sample_from_all=True
    )
    batch = next_of(made)
    assert source_of(batch).tolist() == [0, 0, 0, 1, 1, 1]


def test_runs_can_be_stacked() -> None:
    sources = [of_lengths(9), of_lengths(9, first=5)]
    flat = next_of(mix([(local(source), 1) for source in sources], 6, by="batch", draws=3))
    made = mix([(local(source), 1) for source in sources], 6, by="batch", draws=3, stacked=True)
    stacked = next_of(made)
    for column, other in zip(columns(flat, made), columns(stacked, made)):
        assert other.shape == (3, 2, *column.shape[1:])
        np.testing.assert_array_equal(other.reshape(column.shape), column)
    assert stacked.info.key.shape == source_of(stacked).shape == (3, 2)
    ragged = mix([(local(of_lengths(3, 4, 5, 6), "episode"), 1)], 4, by="batch", draws=2, stacked=True)
    with pytest.raises(ConfigError, match="several shapes, which cannot be stacked"):
        ragged.next_batch()


def test_stacked_batches_can_be_filled_up_and_know_their_size_and_ends() -> None:
    options: dict[str, Any] = {"by": "batch", "draws": 2, "ragged": "pad"}
    flat, stacked = (
        next_of(mix([(local(of_lengths(3, 4, 5, 6), "episode"), 1)], 4, stacked=stacked, **options))
        for stacked in (False, True)
    )
    assert flat.size == stacked.size == 4
    assert flat.info.masks is not None
    assert stacked.info.masks is not None
    assert set(flat.info.masks) == set(stacked.info.masks)
    for mask, other in [(flat.info.mask, stacked.info.mask), (flat.info.ends, stacked.info.ends)] + [
        (flat.info.masks[name], stacked.info.masks[name]) for name in flat.info.masks
    ]:
        assert mask is not None
        assert other is not None
        assert other.shape == (2, 2, *mask.shape[1:])
        np.testing.assert_array_equal(other.reshape(mask.shape), mask)
    assert flat.info.ends is not None
    assert flat.info.ends.sum(axis=1).tolist() == [1] * 4


# What is refused.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 0}, "batch_size 0"),
        ({"seed": -1}, "seed -1"),
        ({"samples": 0}, "samples 0"),
        ({"by": "row"}, "by 'row'"),
        ({"ragged": "x"}, "ragged 'x'"),
        ({"draws": 2}, 'of by="batch"'),
        ({"stacked": True}, 'of by="batch"'),
        ({"by": "batch", "batch_size": 7}, "batch_size 7 cannot be divided by the 2 parts"),
        ({"by": "batch", "draws": 0}, "draws 0"),
        ({"by": "batch", "draws": 2, "sample_from_all": True}, "leave out draws"),
        ({"by": "batch", "batch_size": 4, "samples": 6}, "a multiple of 4"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        mix([(local(of_lengths(4)), 1), (local(of_lengths(4)), 1)], **options)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([1, -1], "weight -1 of part 1"),
        ([float("nan"), 1], "weight nan of part 0"),
        ([1, float("inf")], "weight inf"),
        ([0, 0], "add up to 0"),
        ([1, "2"], "weight '2'"),
        ([1, True], "weight True"),
        ([1e308, 1e308], "no finite number"),
        ([1, 10**400], "expected a finite number"),
    ],
)
def test_weights_that_make_no_sense_are_refused(weights: list[Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        mix([(local(of_lengths(4)), weight) for weight in weights])


def test_there_is_one_weight_per_part() -> None:
    feeds = [Feed(number, Repeated([batch_of(1)]), "x") for number in range(2)]
    for weights in ([1.0], [1.0, 1.0, 1.0]):
        with pytest.raises(ConfigError, match=f"{len(weights)} weights for 2 parts"):
            Mix(feeds, weights, MixOptions())


def test_parts_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one part"):
        mix({})
    with pytest.raises(ConfigError, match="a pair of a part and its weight, got Local"):
        mix([local(of_lengths(4))])  # type: ignore[list-item]
    part = local(of_lengths(4))
    with pytest.raises(ConfigError, match="named twice"):
        mix([(part, 1), (part, 2)])


def test_items_that_differ_are_refused_leaf_by_leaf() -> None:
    float64 = np.dtype(np.float64)
    other = of_lengths(4, columns={"observation": (float64, (17,)), "action": (np.dtype(np.float32), (2,))})
    with pytest.raises(SpecMismatch) as told:
        mix([(local(of_lengths(4)), 1), (local(other), 1)])
    assert len(told.value.differences) == 2
    assert "observation" in told.value.differences[0]
    assert "action" in told.value.differences[1]
    with pytest.raises(SpecMismatch, match="x: items have float64"):
        mix([(iter([batch_of(1)]), 1), (iter([batch_of(2, dtype=np.float64)]), 1)], 9).next_batch()


# Other parts.


def served(source: list[Episode], **options: Any) -> Client:
    info = table_info("replay", local(source).structure, max_size=10_000, **options)
    client = Client(MemoryTransport(MemoryServer(info)))
    client.push(source, "replay")
    return client


def test_tables_and_sources_make_one_batch() -> None:
    online, demos = of_lengths(9, 9), of_lengths(9, first=70)
    keys = [{int(key) for batch in local(source) for key in batch.info.key} for source in (online, demos)]
    with served(online) as client, mix({client.sample("replay", 8): 1, local(demos): 1}, 16, seed=1) as made:
        for _ in range(10):
            batch = next_of(made)
            for part, key in zip(source_of(batch), batch.info.key):
                assert int(key) in keys[part]
            assert set(batch.info.table_size[source_of(batch) == 0]) == {16}
    with served(online) as client, mix([((client, "replay"), 1), (demos, 1)], 16) as made:
        assert made.name == "mix of table replay, episodes"
        assert next(iter(made)).size == 16


def test_a_table_that_ends_ends_the_mix_with_what_came_before() -> None:
    with served(of_lengths(9)) as client:
        made = mix({client.sample("replay", 8, samples=20): 1, local(of_lengths(9, first=5)): 1}, 16, seed=2)
        parts = np.concatenate([source_of(batch) for batch in made])
    choices = np.random.RandomState(2).randint(2, size=len(parts) + 1)
    assert parts.tolist() == choices[:-1].tolist()
    assert (parts == 0).sum() == 20
    assert choices[-1] == 0
    assert made.next_batch() is None


def test_batches_that_are_there_come_again_and_iterators_end() -> None:
    again = next_of(mix([([batch_of(1, 2, 3), batch_of(4)], 1)], 10))
    assert again.data["x"].tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
    once = mix([(iter([batch_of(1, 2, 3), batch_of(4)]), 1)], 10)
    assert [batch.data["x"].tolist() for batch in once] == [[1, 2, 3, 4]]


def test_a_weight_that_only_some_parts_tell_is_1_of_the_others() -> None:
    weighted = batch_of(1, 2, weight=np.array([0.25, 0.5], np.float32))
    batch = next_of(mix([([weighted], 1), ([batch_of(3)], 1)], 8, samples=8))
    assert batch.info.weight is not None
    assert batch.info.weight.dtype == np.float32
    assert {*zip(batch.data["x"].tolist(), batch.info.weight.tolist())} == {(1, 0.25), (2, 0.5), (3, 1)}
    batch = next_of(mix([([batch_of(3)], 1)], 8))
    assert batch.info.weight is None


def rows_of(*lengths: int, **info: Any) -> Batch:
    """Items of so many rows, each full of its length."""
    batch = batch_of(*lengths, **info)
    values = [np.full(length, length) for length in lengths]
    return batch._replace(data={"x": values if len(set(lengths)) > 1 else np.stack(values)})


@pytest.mark.parametrize("ragged", ["list", "pad"])
@pytest.mark.parametrize("lengths", [(3, 3), (2, 5), (2, 1)])
def test_all_rows_of_a_part_without_a_mask_are_there(lengths: tuple[int, ...], ragged: str) -> None:
    """Rows that were filled up in the other part, and those that an item does not have, are not."""
    filled = rows_of(3, 3, mask=np.array([[True, True, False], [True, False, False]]))
    batch = next_of(mix([([filled], 1), ([rows_of(*lengths)], 1)], 40, ragged=ragged))
    mask = batch.info.mask
    assert mask is not None
    assert mask.shape == (40, max(3, *lengths))
    taken = [0, 0]
    for part, rows in zip(source_of(batch), mask):
        number = taken[part] = taken[part] + 1
        wanted = (2 if number % 2 else 1) if part == 0 else lengths[(number - 1) % 2]
        assert rows.tolist() == [row < wanted for row in range(len(rows))]
    assert batch.info.ends is not None
    assert (batch.info.ends.sum(axis=1) == 1).all()


def test_a_part_that_stacks_is_refused_in_words() -> None:
    info: Any = batch_of(1, 2, 3, 4).info
    fields: list[Any] = [None if field is None else field.reshape(2, 2) for field in info]
    stacked = Batch({"x": np.ones((2, 2))}, BatchInfo(*fields))
    with pytest.raises(ConfigError, match="part 0 stacks its samples"):
        mix([([stacked], 1)], 2).next_batch()


def test_a_mix_can_be_part_of_a_mix() -> None:
    inner = mix([(local(of_lengths(5)), 1), (local(of_lengths(5, first=3)), 1)], 4, seed=1)
    outer = mix([(inner, 1), (local(of_lengths(5, first=9)), 2)], 30, seed=2)
    batch = next_of(outer)
    assert set(source_of(batch)) == {0, 1}


class Stalling(Iterated):
    """Stalls before every batch but the first."""

    def __init__(self, *batches: Batch) -> None:
        super().__init__(iter(batches))
        self.stalls = False

    def next_batch(self) -> Batch | None:
        self.stalls = not self.stalls
        if not self.stalls:
            raise Stalled("no batch came")
        return super().next_batch()


def all_of(made: Mix) -> tuple[list[float], int]:
    """Values up to the end, and how often an error came between."""
    found: list[float] = []
    errors = 0
    while True:
        try:
            batch = made.next_batch()
        except Stalled:
            errors += 1
            continue
        if batch is None:
            return found, errors
        found += batch.data["x"].tolist()


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("size", [1, 5, 12])
def test_after_an_error_of_a_part_nothing_is_missing(size: int, nested: bool) -> None:
    """Neither what other parts gave, nor the choices, nor what an inner mix had."""

    def values(kind: Any) -> tuple[list[float], int]:
        parts: list[tuple[Any, float]] = [
            (kind(*(batch_of(*range(first, first + 3)) for first in range(start, start + 30, 3))), 1)
            for start in (0, 100)
        ]
        made = mix([(mix(parts, 4, seed=5), 1), ([batch_of(-1), batch_of(-2)], 1)] if nested else parts, size, seed=3)
        return all_of(made)

    whole, errors = values(lambda *batches: iter(batches))
    assert errors == 0
    found, errors = values(Stalling)
    assert found == whole
    assert errors > 5


def test_within_a_batch_there_is_no_state_but_it_can_be_restored() -> None:
    def make(kind: Any) -> Mix:
        inner = mix([(local(of_lengths(5)), 1), (local(of_lengths(5, first=3)), 1)], 4, seed=1)
        stalling = kind(*(next_of(local(of_lengths(9, first=number), batch_size=2)) for number in range(20)))
        return mix([(mix([(inner, 1), (stalling, 1)], 8, seed=6), 1)], 8, seed=2)

    made = make(Stalling)
    first = made.state()
    with pytest.raises(Stalled):
        for _ in range(9):
            made.next_batch()
    with pytest.raises(ConfigError, match="the batch is not complete"):
        made.state()
    made.restore(first, anew=True)
    assert made.state() == first


# Where it stands.


def drawn_mix(draw: Any) -> Any:
    """How to make one and the same mix again."""
    counts = draw(st.lists(st.lists(st.integers(2, 6), min_size=1, max_size=3), min_size=1, max_size=3))
    each = [
        {
            "shuffle": draw(st.sampled_from([0, 3, 20])),
            "seed": draw(st.integers(0, 3)),
            "batch_size": draw(st.integers(1, 5)),
        }
        for _ in counts
    ]
    weights = [draw(st.sampled_from([1, 2, 0.5])) for _ in counts]
    by_batch = draw(st.booleans())
    options: dict[str, Any] = {"batch_size": draw(st.integers(1, 9)), "seed": draw(st.integers(0, 9))}
    if by_batch:
        options |= {"by": "batch", "draws": 2, "batch_size": 6}
    nested = draw(st.booleans())

    def make() -> Mix:
        parts: list[tuple[Any, float]] = [
            (local(of_lengths(*own, first=30 * number), **said), weight)
            for number, (own, said, weight) in enumerate(zip(counts, each, weights))
        ]
        if nested:
            parts = [(mix(parts, 4, seed=7), 1), (local(of_lengths(4, first=200)), 1)]
        return mix(parts, **options)

    return make


@given(st.data())
@settings(max_examples=10, deadline=None)
def test_restored_at_every_position_it_gives_the_same_tail(data: st.DataObject) -> None:
    make = drawn_mix(data.draw)
    made, states, batches = make(), [], []
    for _ in range(5):
        states.append(json.loads(json.dumps(made.state())))
        batches.append(next_of(made))
    for position, state in enumerate(states):
        restored = make()
        if data.draw(st.booleans()):
            restored.next_batch()
        restored.restore(state)
        assert restored.state() == state
        for wanted in batches[position:]:
            assert_same(next_of(restored), wanted, restored)


def test_another_process_goes_on_with_the_same(tmp_path: Path) -> None:
    code = (
        "import json, sys, rlds2reverb as r\n"
        "parts = [(r.local('bundled:cartpole@train[:9]', shuffle=50), 2), (r.local('bundled:cartpole@train[9:12]'), 1)]\n"
        "made = r.mix(parts, 16, seed=4, samples=800)\n"
    )
    names: dict[str, Any] = {}
    exec(code, names)
    made = names["made"]
    for _ in range(7):
        made.next_batch()
    state = tmp_path / "state.json"
    state.write_text(json.dumps(made.state()))
    rest = "made.restore(json.load(open(sys.argv[1])))\nprint([int(key) for batch in made for key in batch.info.key])\n"
    done = subprocess.run(
        [sys.executable, "-c", code + rest, str(state)], capture_output=True, text=True, check=True, timeout=120
    )
    assert json.loads(done.stdout) == [int(key) for batch in made for key in batch.info.key]


def made_of(*seeds: int, weights: tuple[float, ...] = (1, 1), **options: Any) -> Mix:
    parts = [local(of_lengths(5, 5, first=10 * number), seed=seed) for number, seed in enumerate(seeds)]
    return mix(list(zip(parts, weights)), **{"batch_size": 6, **options})


REFUSED: list[tuple[Mix, str]] = [
    (made_of(0, 0, seed=1), "seed was 0, is 1"),
    (made_of(0, 0, weights=(1, 2)), "weights was"),
    (made_of(0, 0, by="batch"), "by was 'item', is 'batch'"),
    (made_of(0), "parts was"),
    (made_of(0, 1), r"part 1 \(episodes\): restore: a state of another local: seed was 0, is 1"),
]


@pytest.mark.parametrize(("other", "said"), REFUSED)
def test_a_state_of_another_mix_is_refused_with_the_reason(other: Mix, said: str) -> None:
    made = made_of(0, 0)
    made.next_batch()
    with pytest.raises(ConfigError, match=said):
        other.restore(made.state())


def test_what_cannot_be_restored_leaves_the_mix_as_it_was() -> None:
    made, other = made_of(0, 0), made_of(0, 0)
    made.next_batch()
    state = made.state()
    state["parts"][1]["at"]["ids"] = "0"
    before = other.state()
    with pytest.raises(ConfigError, match="other data"):
        other.restore(state)
    assert other.state() == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 9}, "version 9"),
        ({"format": "rlds2reverb.local"}, 'a state of "rlds2reverb.local"'),
        ({"chosen": -1}, "chosen is -1"),
        ({"given": "x"}, "given is 'x'"),
        ({"parts": None}, "no list of 2 parts"),
        ({"parts": [1, 2]}, r"part 0 \(episodes\): the state has no part like it"),
        ({"parts": [{"name": "x", "at": {}}, {}]}, "part 0 was x, is episodes"),
        ({"parts": [{"name": "episodes", "at": None}] * 2}, "of another kind of part"),
        ({"parts": [{"name": "episodes", "at": {}}] * 2}, "expected what state"),
    ],
)
def test_a_damaged_state_is_refused(change: dict[str, Any], said: str) -> None:
    made = made_of(0, 0)
    with pytest.raises(ConfigError, match=said):
        made.restore({**made.state(), **change})


def test_tables_cannot_be_restored_unless_asked_and_all_else_is() -> None:
    demos = of_lengths(9, first=5)

    def make(client: Client) -> Mix:
        return mix({client.sample("replay", 8): 1, local(demos): 1}, 16, seed=1)

    with served(of_lengths(9)) as client, make(client) as made, make(client) as other:
        made.next_batch()
        state = json.loads(json.dumps(made.state()))
        with pytest.raises(ConfigError, match=r"part 0 \(replay\): its next samples cannot be repeated.*anew=True"):
            other.restore(state)
        other.restore(state, anew=True)
        one, two = next_of(made), next_of(other)
        np.testing.assert_array_equal(source_of(one), source_of(two))
        of_demos = source_of(one) == 1
        np.testing.assert_array_equal(one.info.key[of_demos], two.info.key[of_demos])
