"""Any RLDS `tf.data.Dataset` as a source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.specs import flatten
from tests.support.rlds_data import dataset, episode

tf = pytest.importorskip("tensorflow")

from rlds2reverb.formats.rlds import RldsSource

NESTED = {"observation": {"camera": ("uint8", (2, 2)), "text": ("O", ())}, "action": [("int64", ()), ("float32", (2,))]}


def columns_of(lengths: list[int], **specs: Any) -> list[Any]:
    rng = np.random.default_rng(5)
    return [episode(rng, rows, **specs) for rows in lengths]


def test_episodes_have_their_columns_bit_by_bit() -> None:
    made = columns_of([3, 1, 600], **NESTED)
    read = list(RldsSource(dataset(made)))
    assert [len(read_episode) for read_episode in read] == [3, 1, 600]
    for read_episode, wanted in zip(read, made):
        assert set(read_episode.columns) == set(flatten(wanted))
        for path, column in flatten(wanted).items():
            assert read_episode.columns[path].dtype == column.dtype
            np.testing.assert_array_equal(read_episode.columns[path], column)


def test_the_spec_is_read_off_without_reading_data() -> None:
    spec = flatten(RldsSource(dataset(columns_of([2], **NESTED))).spec())
    assert str(spec["observation/camera"]) == "uint8[2, 2]"
    assert str(spec["observation/text"]) == "string[]"
    assert str(spec["action/1"]) == "float32[2]"
    assert list(spec)[:2] == ["action/0", "action/1"]


def test_episodes_are_named_in_messages_as_the_dataset_names_them() -> None:
    named = [{"episode_id": b"run 0", "agent": 1}, {"episode_id": b"run 1", "agent": 2}]
    read = list(RldsSource(dataset(columns_of([2, 2]), metadata=named), "mine"))
    assert [read_episode.title for read_episode in read] == ["mine#0 (episode_id run 0)", "mine#1 (episode_id run 1)"]


def test_an_episode_without_steps_is_an_empty_episode() -> None:
    made = columns_of([2])
    empty = {name: column[:0] for name, column in made[0].items()}
    read = list(RldsSource(dataset([made[0], empty, made[0]])))
    assert [len(read_episode) for read_episode in read] == [2, 0, 2]
    assert read[1].columns["observation"].shape == (0, 3)


def test_steps_may_come_as_columns() -> None:
    made = columns_of([4, 4])
    stacked = tf.nest.map_structure(lambda *columns: np.stack(columns), *made)
    source = RldsSource(tf.data.Dataset.from_tensor_slices({"steps": stacked}))
    assert [str(leaf) for leaf in flatten(source.spec()).values()] == [
        str(leaf) for leaf in flatten(RldsSource(dataset(made)).spec()).values()
    ]
    for read_episode, wanted in zip(source, made):
        np.testing.assert_array_equal(read_episode.columns["observation"], wanted["observation"])


def test_episode_features_become_metadata() -> None:
    source = RldsSource(dataset(columns_of([2, 3]), metadata=[{"seed": 7, "who": b"a"}, {"seed": 8, "who": b"b"}]))
    assert [(read_episode.metadata["seed"], read_episode.metadata["who"]) for read_episode in source] == [
        (7, b"a"),
        (8, b"b"),
    ]


def test_ids_are_stable_and_depend_on_the_content() -> None:
    made = columns_of([2, 2, 3])
    first, again = ([read_episode.id for read_episode in RldsSource(dataset(made))] for _ in range(2))
    assert first == again
    other = columns_of([2, 2, 3])
    other[1]["reward"] = other[1]["reward"] + 1
    changed = [read_episode.id for read_episode in RldsSource(dataset(other))]
    assert [a == b for a, b in zip(first, changed)] == [True, False, True]
    assert [read_episode.where for read_episode in RldsSource(dataset(made), "data")] == [f"data#{n}" for n in range(3)]


def test_equal_episodes_have_one_id() -> None:
    made = columns_of([2]) * 3
    assert len({read_episode.id for read_episode in RldsSource(dataset(made))}) == 1


def test_shards_share_out_the_episodes() -> None:
    made = columns_of([1, 2, 3, 4, 5])
    source = RldsSource(dataset(made), "data")
    shards = [source.shard(index, 2) for index in range(2)]
    assert [[len(read_episode) for read_episode in shard] for shard in shards] == [[1, 3, 5], [2, 4]]
    whole = [read_episode.id for read_episode in source]
    assert [[read_episode.id for read_episode in shard] for shard in shards] == [whole[::2], whole[1::2]]
    with pytest.raises(SourceError, match="shard 2 of 2"):
        source.shard(2, 2)


def test_those_after_the_first_have_the_names_that_they_have_in_the_whole() -> None:
    source = RldsSource(dataset(columns_of([1, 2, 3, 4, 5])), "data")
    whole = [read_episode.id for read_episode in source]
    assert [read_episode.id for read_episode in source.episodes(3)] == whole[3:]
    assert [read_episode.id for read_episode in source.episodes(1, 3)] == whole[1:3]
    assert [read_episode.id for read_episode in source.shard(1, 2).episodes(1)] == [whole[3]]


def test_a_step_of_another_shape_is_named_by_its_episode() -> None:
    def steps() -> Iterator[Any]:
        yield {"x": [1.0, 2.0]}
        yield {"x": [1.0]}

    spec = {"x": tf.TensorSpec((None,), tf.float32)}
    ragged = tf.data.Dataset.range(1).map(
        lambda _: {"steps": tf.data.Dataset.from_generator(steps, output_signature=spec)}
    )
    with pytest.raises(SourceError, match="odd, episode 0: cannot be read"):
        list(RldsSource(ragged, name="odd"))


def test_an_error_in_the_middle_keeps_the_episodes_before_it() -> None:
    made = columns_of([2, 2])

    def elements() -> Iterator[Any]:
        yield made[0]
        raise RuntimeError("the disk is gone")

    class Endless:
        def __iter__(self) -> Iterator[Any]:
            return elements()

    source = RldsSource(dataset(Endless(), like=made[0]), name="broken")
    episodes = iter(source)
    assert len(next(episodes)) == 2
    with pytest.raises(SourceError, match="broken, episode 1: cannot be read"):
        next(episodes)


def test_at_most_a_few_episodes_are_read_ahead() -> None:
    made = columns_of([2])
    read = 0

    class Counted:
        def __iter__(self) -> Iterator[Any]:
            nonlocal read
            for _ in range(50):
                read += 1
                yield made[0]

    source = iter(RldsSource(dataset(Counted(), like=made[0])))
    for taken in range(1, 20):
        next(source)
        assert read <= taken + 3


@pytest.mark.parametrize(
    ("element", "said"),
    [
        ({"episodes": 1}, 'needs a feature "steps"; found'),
        (3, 'needs a feature "steps"; found'),
        ({"steps": tf.data.Dataset.range(2)}, "a step must be a dict"),
    ],
)
def test_what_is_not_rlds_is_refused(element: Any, said: str) -> None:
    with pytest.raises(SourceError, match=said):
        RldsSource(tf.data.Dataset.range(1).map(lambda _: element))


def of_steps(features: Any) -> Any:
    """One episode with these step features."""
    return tf.data.Dataset.range(1).map(lambda _: {"steps": tf.data.Dataset.from_tensor_slices(features)})


def of_unknown_rank() -> Any:
    steps = of_steps({"a": np.zeros((2, 3))})

    def forget(step: Any) -> Any:
        return {"deep": {"points": tf.py_function(lambda value: value, [step["a"]], tf.float64)}}

    return steps.map(lambda episode: {"steps": episode["steps"].map(forget)})


UNPLAIN: dict[str, tuple[Any, str]] = {
    "ragged": (
        lambda: of_steps({"deep": {"points": tf.ragged.constant([[1.0], [2.0, 3.0]])}}),
        'step feature "deep/points" is a RaggedTensorSpec; only plain tensors can be stored: pad it .*to_tensor',
    ),
    "sparse": (
        lambda: of_steps({"deep": {"points": tf.sparse.from_dense([[1.0, 0.0], [0.0, 2.0]])}}),
        'step feature "deep/points" is a SparseTensorSpec; .*: make it dense .*tf.sparse.to_dense',
    ),
    "a dataset": (
        lambda: of_steps({"a": np.zeros(2)}).map(
            lambda episode: {"steps": episode["steps"].map(lambda _: {"deep": tf.data.Dataset.range(2)})}
        ),
        'step feature "deep" is a DatasetSpec; only plain tensors can be stored: leave it out with a map',
    ),
    "of unknown rank": (of_unknown_rank, 'step feature "deep/points" has unknown rank; set its shape with a map'),
    "without a time axis": (
        lambda: tf.data.Dataset.from_tensors({"steps": {"a": np.zeros(3), "deep": {"points": 1.0}}}),
        r'step feature "deep/points" has no time axis: columns of steps must have the shape \[T, ...\]',
    ),
}


@pytest.mark.parametrize("kind", UNPLAIN)
def test_a_feature_that_cannot_be_stored_is_refused_by_its_name(kind: str) -> None:
    make, said = UNPLAIN[kind]
    source = RldsSource(make(), name="odd")
    for use in (source.spec, lambda: list(source)):
        with pytest.raises(SourceError, match=f"^odd: {said}") as caught:
            use()
        assert "\n" not in str(caught.value)


def test_a_dataset_beside_the_steps_is_refused_by_its_name() -> None:
    source = RldsSource(
        of_steps({"a": np.zeros(2)}).map(lambda one: {**one, "more": {"data": tf.data.Dataset.range(2)}})
    )
    with pytest.raises(SourceError, match='dataset: episode feature "more/data" is a dataset; leave it out'):
        list(source)


def test_what_varies_from_step_to_step_is_named() -> None:
    def steps() -> Iterator[Any]:
        yield {"a": 1.0, "deep": {"points": [1.0, 2.0]}}
        yield {"a": 1.0, "deep": {"points": [1.0]}}

    spec = {"a": tf.TensorSpec((), tf.float32), "deep": {"points": tf.TensorSpec((None,), tf.float32)}}
    varying = tf.data.Dataset.range(3).map(
        lambda _: {"steps": tf.data.Dataset.from_generator(steps, output_signature=spec)}
    )
    source = RldsSource(varying, name="odd")
    with pytest.raises(
        SourceError, match=r'^odd, episode 0: cannot be read: [^{]*different shapes.* feature "deep/points"'
    ):
        list(source)
    with pytest.raises(SourceError, match=r"^odd\[1/2\], episode 1: cannot be read"):
        list(source.shard(1, 2))


def test_a_key_with_a_slash_must_not_collide() -> None:
    steps = {"a/b": np.zeros(2), "a": {"b": np.zeros(2)}}
    rlds = tf.data.Dataset.range(1).map(lambda _: {"steps": tf.data.Dataset.from_tensor_slices(steps)})
    with pytest.raises(SourceError, match='both named "a/b"'):
        RldsSource(rlds).spec()


def test_a_dataset_is_a_source_as_it_is() -> None:
    source = open_source(dataset(columns_of([2, 3])))
    assert [len(read_episode) for read_episode in source] == [2, 3]
