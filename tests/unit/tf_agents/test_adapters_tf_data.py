"""A table as a `tf.data.Dataset`: what the client samples, as tensors; iterators end well, however they end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import reverb
import tensorflow as tf
from replay_server import TableConfig

import rlds2reverb
from rlds2reverb import Client
from rlds2reverb.adapters.tf_data import as_dataset, without_lists
from rlds2reverb.errors import ConfigError, ServerUnreachable
from rlds2reverb.images import Size, resize_images
from rlds2reverb.learner.options import SliceSpec
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.specs import ArraySpec, flatten, named_tuple_type
from rlds2reverb.views import view_from
from rlds2reverb.views.trajectory import table_signature
from tests.support import pictures, strategies
from tests.support.forks import Embedded, Forks

FLOAT = np.dtype(np.float32)
PAIR = named_tuple_type("Pair", ("left", "right"))
EVERY_DTYPE = {dtype.name: ArraySpec((2, 3), dtype) for dtype in strategies.DTYPES if dtype.name != "bfloat16"}
"""Reverb's own client, which fills the tables here, does not take bfloat16."""
NESTED = {
    "pair": PAIR(ArraySpec((), np.dtype(np.int8)), [ArraySpec((2,), FLOAT)]),
    "empty": (),
    "of/none": ArraySpec((0,), FLOAT),
}
FREE = {
    "steps": ArraySpec((None, 2), FLOAT),
    "texts": ArraySpec((None,), np.dtype(object)),
    "one": ArraySpec((), FLOAT),
}
IMAGES = {"camera": ArraySpec.of_images(pictures.IMAGE, (2,)), "x": ArraySpec((2,), FLOAT)}
SPEC = filled_spec(rlds2reverb.open_source("bundled:cartpole").spec())
AHEAD = [f"ahead{number}" for number in range(3)]
ONCE: dict[str, Any] = {"sampler": "fifo", "max_times_sampled": 1}


@pytest.fixture(scope="module")
def tables(forks: Forks) -> Iterator[Embedded]:
    """Tables that hand out each item once and in order, and one that keeps its items."""
    configs = [
        *(TableConfig(name, **ONCE) for name in ("bare", "bare2", "later", "ours", "theirs", *AHEAD)),
        TableConfig("dtypes", EVERY_DTYPE, **ONCE),
        TableConfig("nested", NESTED, **ONCE),
        TableConfig("free", FREE, **ONCE),
        TableConfig("weighted", {"x": ArraySpec((2,), FLOAT)}, sampler="prioritized"),
        TableConfig("images", IMAGES, **ONCE),
        TableConfig("keep", {"x": ArraySpec((2,), FLOAT)}),
    ]
    with forks.embedded(configs) as server:
        yield server


@pytest.fixture
def ours(tables: Embedded) -> Iterator[Client]:
    with rlds2reverb.connect(tables.address) as client:
        for name in client.tables():
            client.reset(name)
        yield client


def insert(server: Embedded, table: str, items: list[Any], priority: float = 1.0) -> None:
    """Through Reverb's own client; an item is a nest of arrays, stored as one squeezed row."""
    with reverb.Client(server.address).trajectory_writer(1) as writer:
        for item in items:
            writer.append({"item": item})
            writer.create_item(
                table, priority, tf.nest.map_structure(lambda column: column[-1], writer.history["item"])
            )
            writer.flush()


def insert_steps(server: Embedded, table: str, lengths: list[int]) -> None:
    """Items of FREE with so many rows."""
    with reverb.Client(server.address).trajectory_writer(max(lengths)) as writer:
        for number, length in enumerate(lengths):
            for row in range(length):
                writer.append(
                    {"steps": np.full(2, 10 * number + row, FLOAT), "texts": b"%d" % row, "one": FLOAT.type(number)}
                )
            history = writer.history
            item = {"steps": history["steps"][-length:], "texts": history["texts"][-length:], "one": history["one"][-1]}
            writer.create_item(table, 1.0, item)
            writer.end_episode()


def just(count: int) -> dict[str, Any]:
    """So many samples and no more: a request that waits when a test ends would take what the next one stores."""
    return {"samples": count, "drop_last": True}


def arrays(nest: Any) -> list[np.ndarray]:
    return [leaf.numpy() for leaf in tf.nest.flatten(nest)]


def receivers() -> set[threading.Thread]:
    return {
        thread
        for thread in threading.enumerate()
        if thread.name.startswith(("rlds2reverb-receive", "rlds2reverb-polled"))
    }


def test_every_dtype_comes_through_to_the_bit(tables: Embedded, ours: Client) -> None:
    rng = np.random.default_rng(0)
    items = [{name: strategies.array(rng, leaf.dtype, (2, 3)) for name, leaf in EVERY_DTYPE.items()} for _ in range(5)]
    insert(tables, "dtypes", items)
    dataset = as_dataset(ours, "dtypes", 5, **just(5))
    assert {name: (spec.shape, spec.dtype.as_numpy_dtype) for name, spec in dataset.element_spec[0].items()} == {
        name: ((5, 2, 3), leaf.dtype.type if name != "object" else object) for name, leaf in EVERY_DTYPE.items()
    }
    data, _ = next(iter(dataset))
    for name, found in data.items():
        expected = np.stack([item[name] for item in items])
        assert (
            found.numpy().tolist() == expected.tolist()
            if name == "object"
            else found.numpy().tobytes() == expected.tobytes()
        )


def test_the_structure_is_the_tables_with_tuples_for_lists_and_infos_have_reverbs_dtypes(
    tables: Embedded, ours: Client
) -> None:
    item = {"pair": PAIR(np.int8(-3), [np.ones(2, FLOAT)]), "empty": (), "of/none": np.ones(0, FLOAT)}
    insert(tables, "nested", [item] * 3, priority=2.5)
    dataset = as_dataset(tables.address, "nested", 3, **just(3))
    data, info = next(iter(dataset))
    assert dataset.element_spec[0]["pair"] == PAIR(tf.TensorSpec((3,), tf.int8), (tf.TensorSpec((3, 2), tf.float32),))
    assert dataset.element_spec[0]["of/none"] == tf.TensorSpec((3, 0), tf.float32)
    assert arrays(data["pair"])[0].tolist() == [-3] * 3
    assert [tensor.dtype for tensor in info[:5]] == [tf.uint64, tf.float64, tf.int64, tf.float64, tf.int32]
    assert info.key.shape == (3,)
    assert len(set(info.key.numpy().tolist())) == 3
    assert info.priority.numpy().tolist() == [2.5] * 3
    assert info.mask is None
    assert info.weight is None


def test_keys_are_those_that_priorities_are_updated_by(tables: Embedded, ours: Client) -> None:
    insert(tables, "keep", [{"x": np.ones(2, FLOAT)}])
    dataset = as_dataset(ours, "keep", 2)
    _, info = next(iter(dataset))
    ours.update_priorities("keep", info.key.numpy()[:1], 7.5)
    assert ours.sample_one("keep").info.priority == 7.5


class TestItemsThatDifferInRows:
    LENGTHS = (3, 1, 2, 2)

    @pytest.fixture(autouse=True)
    def _filled(self, tables: Embedded, ours: Client) -> None:
        insert_steps(tables, "free", list(self.LENGTHS))

    def test_are_padded_and_the_mask_tells_the_rows(self, ours: Client) -> None:
        dataset = as_dataset(ours, "free", 2, **just(4))
        (first, info), (second, no_padding) = dataset.take(2)
        assert dataset.element_spec[0]["steps"] == tf.TensorSpec((2, None, 2), tf.float32)
        assert first["steps"].numpy()[..., 0].tolist() == [[0, 1, 2], [10, 0, 0]]
        assert first["texts"].numpy().tolist() == [[b"0", b"1", b"2"], [b"0", b"", b""]]
        assert first["one"].numpy().tolist() == [0, 1]
        assert info.mask.numpy().tolist() == [[True] * 3, [True, False, False]]
        assert second["steps"].shape == (2, 2, 2)
        assert no_padding.mask.numpy().all()

    def test_are_ragged_tensors_where_that_is_asked_for(self, ours: Client) -> None:
        dataset = as_dataset(ours, "free", 4, ragged="list", **just(4))
        assert isinstance(dataset.element_spec[0]["steps"], tf.RaggedTensorSpec)
        data, info = next(iter(dataset))
        assert data["steps"].row_lengths().numpy().tolist() == list(self.LENGTHS)
        assert data["steps"].to_list()[2] == [[20, 20], [21, 21]]
        assert data["texts"].to_list()[1] == [b"0"]
        assert info.mask is None

    def test_rows_makes_shapes_static_and_is_held(self, ours: Client) -> None:
        dataset = as_dataset(ours, "free", 2, rows=3, **just(4))
        assert dataset.element_spec[0]["steps"].shape == (2, 3, 2)
        with pytest.raises(
            tf.errors.OpError, match=r'table "free", column "steps": expected items of 3 rows, as rows= says; got 1, 3'
        ):
            next(iter(dataset))


class TestItemsThatAreCutOutOfEpisodes:
    LENGTHS = (7, 3)

    @pytest.fixture(autouse=True)
    def _filled(self, tables: Embedded, ours: Client) -> None:
        insert_steps(tables, "free", list(self.LENGTHS))

    def test_shapes_are_those_of_slices(self, ours: Client) -> None:
        asked = SliceSpec(5, per_episode=3, strict=False)
        dataset = as_dataset(ours, "free", 6, slices=asked, samples=2, drop_last=True)
        specs, infos = dataset.element_spec
        assert [specs[name] for name in ("steps", "texts", "one")] == [
            tf.TensorSpec([6, None, 2], tf.float32),  # one column may have a row more than the others
            tf.TensorSpec([6, None], tf.string),
            tf.TensorSpec([6], tf.float32),
        ]
        data, info = next(iter(dataset))
        start, mask = info.start.numpy(), info.mask.numpy()
        assert infos.start.dtype == tf.int64
        assert data["steps"].numpy()[:3, :, 0].tolist() == [list(range(first, first + 5)) for first in start[:3]]
        assert (data["steps"].numpy()[3:, :3, 0] == [10, 11, 12]).all()
        assert mask.tolist() == [[True] * 5] * 3 + [[True] * 3 + [False] * 2] * 3

    @pytest.mark.parametrize("ragged", ["pad", "list"])
    def test_rows_are_free_where_a_column_may_have_one_more(self, ours: Client, ragged: str) -> None:
        dataset = as_dataset(ours, "free", 2, slices=SliceSpec(2), ragged=ragged, **just(2))
        assert dataset.element_spec[0]["steps"].shape.as_list() == [2, None, 2]
        data, info = next(iter(dataset))
        steps = data["steps"] if ragged == "pad" else data["steps"].to_tensor()
        assert steps.shape == (2, 2, 2)
        assert info.mask.numpy().all()


class TestAView:
    """Of episodes of cartpole."""

    @pytest.mark.parametrize("view", ["sequence:length=4", "n_step:n=3", "episode", "transition"])
    def test_gives_what_the_sampler_gives(self, forks: Forks, view: str) -> None:
        signature = table_signature(view_from("episode").signature(SPEC))
        with (
            forks.embedded([TableConfig("episodes", signature)]) as server,
            rlds2reverb.connect(server.address) as client,
        ):
            client.push("bundled:cartpole@train[:1]", "episodes", view="episode")
            expected = client.sample("episodes", 2, view=view, samples=2, ragged="pad")
            dataset = as_dataset(client, "episodes", 2, view=view, samples=2)
            with expected:
                data, info = next(expected)
            found, infos = next(iter(dataset))
            assert [leaf.numpy().tolist() for leaf in tf.nest.flatten(found)] == [
                leaf.tolist() for leaf in tf.nest.flatten(without_lists(data))
            ]
            assert infos.start.numpy().tolist() == info.start.tolist()


class TestImportanceWeights:
    @pytest.fixture(autouse=True)
    def _filled(self, tables: Embedded, ours: Client) -> None:
        for priority in (1.0, 3.0):
            insert(tables, "weighted", [{"x": np.ones(2, FLOAT)}], priority)

    @pytest.mark.parametrize("options", [{}, {"ragged": "list"}])
    def test_are_those_of_the_formula(self, ours: Client, options: dict[str, Any]) -> None:
        dataset = as_dataset(ours, "weighted", 32, weights="unscaled", beta=0.5, **options)
        assert dataset.element_spec[1].weight == tf.TensorSpec((32,), tf.float32)
        _, info = next(iter(dataset))
        expected = (info.table_size.numpy() * info.probability.numpy()) ** -0.5
        np.testing.assert_allclose(info.weight.numpy(), expected, rtol=1e-6)
        assert len(set(info.weight.numpy().tolist())) == 2

    def test_an_error_of_theirs_is_in_tensorflows(self, ours: Client) -> None:
        with pytest.raises(tf.errors.OpError, match="beta -1"):
            next(iter(as_dataset(ours, "weighted", 2, weights="unscaled", beta=lambda batch: -1.0)))


@pytest.mark.parametrize("decode", [True, False])
def test_encoded_images_are_decoded_or_left(tables: Embedded, ours: Client, decode: bool) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 2, pictures.HEIGHT, pictures.WIDTH, 3), np.uint8)
    items = [{"camera": pictures.files(pixel), "x": np.zeros(2, FLOAT)} for pixel in pixels]
    insert(tables, "images", items)
    dataset = as_dataset(ours, "images", 3, decode=decode, **just(3))
    data, _ = next(iter(dataset))
    if decode:
        assert dataset.element_spec[0]["camera"] == tf.TensorSpec((3, 2, pictures.HEIGHT, pictures.WIDTH, 3), tf.uint8)
        assert np.array_equal(data["camera"], pixels)
    else:
        assert data["camera"].numpy().tolist() == [item["camera"].tolist() for item in items]


def test_encoded_images_are_decoded_to_the_size_asked_for(tables: Embedded, ours: Client) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 2, pictures.HEIGHT, pictures.WIDTH, 3), np.uint8)
    items = [{"camera": pictures.files(pixel), "x": np.zeros(2, FLOAT)} for pixel in pixels]
    insert(tables, "images", items)
    dataset = as_dataset(ours, "images", 3, decode=(5, 7), **just(3))
    data, _ = next(iter(dataset))
    assert dataset.element_spec[0]["camera"] == tf.TensorSpec((3, 2, 5, 7, 3), tf.uint8)
    assert np.array_equal(
        data["camera"], resize_images(pixels.reshape(-1, *pixels.shape[2:]), Size(5, 7)).reshape(3, 2, 5, 7, 3)
    )


class TestBatches:
    @pytest.fixture(autouse=True)
    def _filled(self, tables: Embedded, ours: Client) -> None:
        insert(tables, "keep", [{"x": np.full(2, number, FLOAT)} for number in range(4)])

    @pytest.mark.parametrize(("options", "sizes", "static"), [({}, [4, 4, 2], None), ({"drop_last": True}, [4, 4], 4)])
    def test_the_last_one_may_be_short(self, ours: Client, options: Any, sizes: list[int], static: int | None) -> None:
        dataset = as_dataset(ours, "keep", 4, samples=10, **options)
        assert dataset.element_spec[0]["x"].shape[0] == static
        assert [data["x"].shape[0] for data, _ in dataset] == sizes

    def test_a_dataset_is_iterated_again_and_several_times_at_once(self, tables: Embedded) -> None:
        dataset = as_dataset(tables.address, "keep", 2, samples=6)
        one, two = iter(dataset), iter(dataset)
        assert [next(iterator)[0]["x"].shape for iterator in (one, two, one, two)] == [(2, 2)] * 4
        assert len(list(dataset)) == len(list(dataset)) == 3
        assert len(list(one)) == len(list(two)) == 1

    def test_an_iterator_that_is_deleted_closes_its_streams(self, ours: Client) -> None:
        before = receivers()
        iterator = iter(as_dataset(ours, "keep", 2).prefetch(2))
        next(iterator)
        opened = receivers() - before
        assert opened
        del iterator
        for thread in opened:
            thread.join(60)
        assert not any(thread.is_alive() for thread in opened)

    def test_loops_of_a_tf_function(self, ours: Client) -> None:
        dataset = as_dataset(ours, "keep", 2).take(5)

        @tf.function
        def total() -> Any:
            rows = tf.constant(0)
            for data, _ in dataset:
                rows += tf.shape(data["x"])[0]
            return rows

        assert total() == total() == 10

    def test_what_tf_data_does_to_batches(self, ours: Client) -> None:
        """Functions over elements, and elements put together, with what is None in them."""
        dataset = as_dataset(ours, "keep", 2).map(lambda data, info: (data["x"] * 2, info)).batch(3)
        data, info = next(iter(dataset))
        assert data.shape == (3, 2, 2)
        assert info.key.shape == (3, 2)


class TestATableThatGivesNothing:
    SPEC = ArraySpec((2,), FLOAT)
    ONE = np.ones(2, FLOAT)

    def test_a_waiting_iterator_is_deleted(self, tables: Embedded, ours: Client) -> None:
        before = receivers()
        insert(tables, "bare", [self.ONE])
        iterator = iter(as_dataset(ours, "bare", 1, spec=self.SPEC).prefetch(2))
        next(iterator)  # all there is: TensorFlow's thread waits for the next one
        opened = receivers() - before
        assert opened
        del iterator
        for thread in opened:
            thread.join(60)
        assert not any(thread.is_alive() for thread in opened)

    def test_an_iterator_that_has_what_it_takes_ends(self, tables: Embedded, ours: Client) -> None:
        insert(tables, "bare2", [self.ONE] * 2)
        assert len(list(as_dataset(ours, "bare2", 1, spec=self.SPEC).take(2))) == 2

    @pytest.mark.parametrize(
        ("number", "reading"),
        enumerate(
            [
                lambda dataset: dataset.prefetch(2),
                lambda dataset: dataset.map(lambda data, _: data, num_parallel_calls=2),
                lambda dataset: dataset.prefetch(1).batch(1).prefetch(2),
            ]
        ),
        ids=["prefetch", "parallel map", "prefetches"],
    )
    def test_a_thread_of_tensorflows_that_reads_ahead_ends(
        self, tables: Embedded, ours: Client, number: int, reading: Any
    ) -> None:
        """Here TensorFlow waits for its own thread, and cancels nothing that the thread may wait for but other such threads."""
        insert(tables, f"ahead{number}", [self.ONE])
        dataset = reading(as_dataset(ours, f"ahead{number}", 1, spec=self.SPEC)).take(1)

        @tf.function
        def counted() -> Any:
            return dataset.reduce(0, lambda count, *_: count + 1)

        assert len(list(dataset)) == 1
        insert(tables, f"ahead{number}", [self.ONE] * 3)  # some go to requests of the first iterator
        assert counted() == 1

    def test_items_that_come_later_are_read(self, tables: Embedded, ours: Client) -> None:
        iterator = iter(as_dataset(ours, "later", 1, spec=self.SPEC).take(2))
        for _ in range(2):
            insert(tables, "later", [self.ONE])
            assert np.array_equal(next(iterator)[0], [self.ONE])

    def test_it_ends_where_that_was_asked_for(self, ours: Client) -> None:
        assert list(as_dataset(ours, "keep", 2, end_after_seconds=0.01)) == []

    def test_our_error_is_in_tensorflows(self, ours: Client) -> None:
        with pytest.raises(tf.errors.OpError, match=r'Stalled: .*table "keep": sampling waits for 1 more insert'):
            next(iter(as_dataset(ours, "keep", 2, timeout_seconds=0.1)))


class TestTablesWithoutSignature:
    def test_need_a_spec(self, ours: Client) -> None:
        with pytest.raises(
            ConfigError, match=r'table "bare": it has no signature, so the dtypes and shapes of its items .* give spec='
        ):
            as_dataset(ours, "bare")

    @pytest.mark.parametrize("name", ["ours", "theirs"])
    def test_take_one_of_ours_or_of_tensorflows(self, tables: Embedded, ours: Client, name: str) -> None:
        insert(tables, name, [{"a": np.ones(2, FLOAT), "b": np.int64(3)}] * 2)
        spec: Any = {"b": ArraySpec((), np.dtype(np.int64)), "a": ArraySpec((2,), FLOAT)}
        if name == "theirs":
            spec = {key: tf.TensorSpec(leaf.shape, leaf.dtype) for key, leaf in spec.items()}
        data, _ = next(iter(as_dataset(ours, name, 2, spec=spec, **just(2))))
        assert data["b"].numpy().tolist() == [3, 3]
        assert list(flatten(data)) == ["a", "b"]


def test_what_makes_no_sense_is_told_before_anything_is_sampled(ours: Client, tables: Embedded) -> None:
    with pytest.raises(ConfigError, match='no table "gone"; it has'):
        as_dataset(tables.address, "gone")
    with pytest.raises(ConfigError, match="batch_size 0"):
        as_dataset(ours, "keep", 0)
    with pytest.raises(ServerUnreachable):
        as_dataset("localhost:1", "keep")
