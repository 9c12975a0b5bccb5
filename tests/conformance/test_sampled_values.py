"""What our client samples is what Reverb's own clients sample, bit by bit, whoever wrote the items.

Every case writes the same items to three tables, which hand each out once and in order: one for our client, one for
`reverb.Client.sample`, one for `reverb.TrajectoryDataset`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlds2reverb
from rlds2reverb.episode import Array
from rlds2reverb.views.base import View
from rlds2reverb.views.n_step import NStep
from rlds2reverb.views.trajectory import SequenceView, WholeEpisode, two_step
from tests.support import strategies
from tests.support.forks import Embedded, Forks
from tests.support.profiles import on_one_server
from tests.support.wire import responses

reverb = pytest.importorskip("reverb")
tf = pytest.importorskip("tensorflow")

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
TABLES = ("ours", "client", "dataset")
# Reverb's writers take no bfloat16; pushes have it.
DTYPES = st.sampled_from([dtype for dtype in strategies.DTYPES if dtype.kind not in "c" and dtype != BFLOAT16])

Values = list[list[Array]]
"""Of every item, one array per column."""


@dataclass(frozen=True)
class Both:
    """One server: its address, and Reverb's own client."""

    address: str
    reverb: Any

    def empty(self) -> None:
        for table in TABLES:
            self.reverb.reset(table)

    def count(self) -> int:
        counts = {self.reverb.server_info()[table].current_size for table in TABLES}
        assert len(counts) == 1
        return int(counts.pop())


@pytest.fixture(scope="module")
def both(forks: Forks) -> Iterator[Both]:
    from replay_server import TableConfig

    once: dict[str, Any] = {"sampler": "fifo", "remover": "fifo", "max_times_sampled": 1, "max_size": 1_000_000}
    with forks.embedded([TableConfig(table, **once) for table in TABLES]) as running:
        assert isinstance(running, Embedded)
        yield Both(running.address, reverb.Client(running.address))


def by_ours(both: Both, count: int, batch_size: int, arena_bytes: int) -> tuple[Values, list[float]]:
    items: Values = []
    priorities: list[float] = []
    with rlds2reverb.connect(both.address) as client:
        for columns, info in client.sample(
            "ours", batch_size, samples=count, arena_bytes=arena_bytes, timeout_seconds=60
        ):
            items += [[value(column, number) for column in columns] for number in range(len(info.key))]
            priorities += info.priority.tolist()
    return items, priorities


def value(column: Sequence[Array] | Array, number: int) -> Array:
    """Of one item; texts stay objects."""
    return np.asarray(column[number], column.dtype if isinstance(column, np.ndarray) else None)


def by_client(both: Both, count: int) -> tuple[Values, list[float]]:
    samples = list(both.reverb.sample("client", count, emit_timesteps=False))
    return [list(sample.data) for sample in samples], [sample.info.priority for sample in samples]


def by_dataset(both: Both, like: Values) -> Values:
    """The items of a table whose columns have one dtype each, as `like` tells."""
    dtypes = [tf.string if column.dtype == object else tf.as_dtype(column.dtype) for column in like[0]]
    shapes = [tf.TensorShape(None) for _ in dtypes]
    dataset = reverb.TrajectoryDataset(
        both.address, "dataset", dtypes, shapes, 1, num_workers_per_iterator=1, max_samples=len(like)
    )
    return [[np.asarray(column.numpy(), column.dtype.as_numpy_dtype) for column in sample.data] for sample in dataset]


def bits(items: Values) -> Any:
    return [
        [(str(leaf.dtype), leaf.shape, leaf.tolist() if leaf.dtype == object else leaf.tobytes()) for leaf in item]
        for item in items
    ]


def assert_same(both: Both, batch_size: int, arena_bytes: int) -> int:
    """Empties the three tables; the number of items."""
    if not (count := both.count()):
        return 0
    ours, priorities = by_ours(both, count, batch_size, arena_bytes)
    assert bits(ours) == bits(by_dataset(both, ours))
    if not any(column.dtype == BFLOAT16 for item in ours for column in item):  # Client.sample cannot return it
        values, expected = by_client(both, count)
        assert bits(ours) == bits(values)
        assert priorities == expected
    return count


BATCH_SIZES = st.integers(1, 9)


@dataclass(frozen=True)
class Steps:
    """Steps of a stream: per column [T, ...]; how writers chunk them."""

    columns: dict[str, Array]
    chunk_length: int

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(len(self)):
            yield {name: values[number] for name, values in self.columns.items()}


@st.composite
def steps(draw: st.DrawFn) -> Steps:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(1, 20))
    kinds = draw(st.lists(st.tuples(DTYPES, strategies.shapes()), min_size=1, max_size=4))
    columns = {
        f"c{number}": strategies.array(rng, dtype, (count, *shape)) for number, (dtype, shape) in enumerate(kinds)
    }
    return Steps(columns, draw(st.integers(1, 7)))


@st.composite
def windows(draw: st.DrawFn, count: int) -> tuple[int, int]:
    """Rows [begin, end) of so many; end = -1 for the one row, squeezed."""
    begin = draw(st.integers(0, count - 1))
    return begin, draw(st.one_of(st.just(-1), st.integers(begin + 1, count)))


@given(st.data(), steps(), BATCH_SIZES, responses.ARENA_BYTES)
@on_one_server(60)
def test_trajectory_writer(both: Both, data: st.DataObject, stream: Steps, batch_size: int, arena_bytes: int) -> None:
    """Any window of any column, columns of unequal chunks."""
    both.empty()
    windows_of = [data.draw(windows(len(stream))) for _ in stream.columns]
    with both.reverb.trajectory_writer(len(stream) + 10) as writer:
        for name in stream.columns:
            length = data.draw(st.integers(1, stream.chunk_length))
            writer.configure((name,), num_keep_alive_refs=len(stream) + 10, max_chunk_length=length)
        for step in stream:
            writer.append(step)
        for number in range(data.draw(st.integers(1, 6))):
            chosen = (
                windows_of if data.draw(st.booleans()) else [data.draw(windows(len(stream))) for _ in stream.columns]
            )
            trajectory = {
                name: writer.history[name][begin]
                if end < 0
                else writer.history[name][begin - len(stream) : end - len(stream) or None]
                for name, (begin, end) in zip(stream.columns, chosen)
            }
            for table in TABLES:
                writer.create_item(table, float(number), trajectory)
        writer.flush()
    assert assert_same(both, batch_size, arena_bytes)


@given(
    steps(),
    st.integers(1, 6),
    BATCH_SIZES,
    responses.ARENA_BYTES,
    st.booleans(),
)
@on_one_server(45)
def test_structured_writer(
    both: Both, stream: Steps, length: int, batch_size: int, arena_bytes: int, squeeze: bool
) -> None:
    from reverb import structured_writer as patterns

    both.empty()
    structure = dict.fromkeys(stream.columns)
    names = list(stream.columns)

    def cut(reference: Any) -> Any:
        return {
            name: reference[name][-1] if squeeze and name == names[0] else reference[name][-length:] for name in names
        }

    pattern = patterns.pattern_from_transform(structure, cut)
    writer = both.reverb.structured_writer([patterns.create_config(pattern, table) for table in TABLES])
    for step in stream:
        writer.append(step)
    writer.flush()
    assert assert_same(both, batch_size, arena_bytes) >= len(stream) - (length - 1)


@given(
    steps(),
    st.integers(1, 8),
    st.booleans(),
    BATCH_SIZES,
    responses.ARENA_BYTES,
)
@on_one_server(60)
def test_legacy_writer(
    both: Both, stream: Steps, length: int, delta_encoded: bool, batch_size: int, arena_bytes: int
) -> None:
    """All columns in one chunk; whole numbers may be stored as differences."""
    both.empty()
    length = min(length, len(stream))
    with both.reverb.writer(len(stream), delta_encoded, min(stream.chunk_length, len(stream))) as writer:
        for number, step in enumerate(stream):
            writer.append(list(step.values()))
            if number + 1 >= length:
                for table in TABLES:
                    writer.create_item(table, length, number + 0.5)
        writer.flush()
    assert assert_same(both, batch_size, arena_bytes) == len(stream) - length + 1


@given(
    steps(),
    BATCH_SIZES,
    responses.ARENA_BYTES,
)
@on_one_server(20)
def test_client_insert(both: Both, stream: Steps, batch_size: int, arena_bytes: int) -> None:
    both.empty()
    for number, step in enumerate(stream):
        both.reverb.insert(list(step.values()), dict.fromkeys(TABLES, number / 4))
    assert assert_same(both, batch_size, arena_bytes) == len(stream)


VIEWS = st.one_of(
    st.builds(two_step),
    st.builds(SequenceView, st.integers(1, 12), st.integers(1, 5), st.just(True), st.booleans()),
    st.builds(WholeEpisode),
    st.builds(NStep, st.integers(1, 4)),
)


@given(st.data(), VIEWS, st.none() | st.integers(1, 9), BATCH_SIZES, responses.ARENA_BYTES)
@on_one_server(60)
def test_pushes(
    both: Both, data: st.DataObject, view: View, chunk_length: int | None, batch_size: int, arena_bytes: int
) -> None:
    """All columns of an episode's rows in one chunk, and what views compute."""
    both.empty()
    specs = data.draw(strategies.column_specs())
    episodes = data.draw(st.lists(strategies.episodes(2, 20, specs), min_size=1, max_size=3))
    named = [replace(episode, id=f"e{number}") for number, episode in enumerate(episodes)]
    with rlds2reverb.connect(both.address) as client:
        client.push(named, TABLES, view, chunk_length=chunk_length, on_invalid="skip")
    assert_same(both, batch_size, arena_bytes)


@pytest.mark.parametrize("arena_bytes", [1, 1 << 20])
def test_tf_agents_observers(both: Both, arena_bytes: int) -> None:
    pytest.importorskip("tf_agents")
    from tf_agents.replay_buffers import reverb_utils
    from tf_agents.trajectories import trajectory

    observers: list[Callable[[], Any]] = [
        lambda: reverb_utils.ReverbAddTrajectoryObserver(both.reverb, list(TABLES), sequence_length=3, stride_length=2),
        lambda: reverb_utils.ReverbAddTrajectoryObserver(
            both.reverb, list(TABLES), sequence_length=5, pad_end_of_episodes=True
        ),
        lambda: reverb_utils.ReverbAddEpisodeObserver(both.reverb, list(TABLES), max_sequence_length=50),
    ]
    rng = np.random.default_rng(5)
    for made in observers:
        both.empty()
        observer = made()
        for length in (4, 9, 12):
            for number in range(length):
                step_type = np.int32(0 if number == 0 else 2 if number == length - 1 else 1)
                following = np.int32(0 if number == length - 1 else 2 if number == length - 2 else 1)
                observation = {"a": rng.normal(size=3).astype(np.float32), "b": np.uint8(number)}
                reward, discount = np.float32(rng.normal()), np.float32(1)
                observer(
                    trajectory.Trajectory(step_type, observation, np.int64(number), (), following, reward, discount)
                )
        observer.close()
        assert assert_same(both, 4, arena_bytes) > 2


def test_items_of_many_megabytes(both: Both) -> None:
    """One item, its entries in several responses."""
    both.empty()
    columns = {"image": strategies.array(np.random.default_rng(1), np.dtype(np.uint8), (60, 200, 1000))}
    with both.reverb.trajectory_writer(60) as writer:
        writer.configure(("image",), num_keep_alive_refs=60, max_chunk_length=5)
        for step in Steps(columns, 5):
            writer.append(step)
        for table in TABLES:
            writer.create_item(table, 1.0, {"image": writer.history["image"][:]})
            writer.create_item(table, 1.0, {"image": writer.history["image"][-57:-10]})
        writer.flush()
    assert assert_same(both, 2, 4 << 20) == 2
