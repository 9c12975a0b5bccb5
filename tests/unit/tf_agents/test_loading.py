"""`load` gives anything that `open_source` takes as an RLDS dataset, and TF-Agents' three functions take it, too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_agents")

import rlds2reverb
from rlds2reverb import convert_rlds_to_trajectories, create_trajectory_data_spec, push_rlds_to_reverb
from rlds2reverb.episode import Episode
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.tfds.info import FEATURES_FILE, INFO_FILE
from rlds2reverb.specs import flatten
from tests.support import reference, strategies
from tests.support.formats import tfds as make
from tests.support.rlds_data import dataset, episode, signature

NESTED = {
    "observation": {"b": ("uint8", (2, 2)), "a": ("O", ())},
    "action": {"left": ("int64", ()), "none": ("float32", (0,))},
}


def made(*lengths: int, **spec: Any) -> list[Any]:
    rng = np.random.default_rng(3)
    return [episode(rng, rows, **(spec or NESTED)) for rows in lengths]


def as_episodes(columns: list[Any]) -> list[Episode]:
    return [Episode(flatten(column)) for column in columns]


def rows_of(trajectories: Any) -> list[list[Any]]:
    return [
        [np.array(leaf, object if isinstance(leaf, bytes) else None) for leaf in reference.leaves(row)]
        for row in trajectories.as_numpy_iterator()
    ]


def assert_same_episodes(found: Any, wanted: Any) -> None:
    for read_episode, other in zip(found, wanted, strict=True):
        assert read_episode.columns.keys() == other.columns.keys()
        for path, column in read_episode.columns.items():
            assert column.dtype == other.columns[path].dtype
            np.testing.assert_array_equal(column, other.columns[path])


@settings(max_examples=5)
@given(data=st.data())
def test_a_list_of_episodes_comes_back_as_it_was(data: st.DataObject) -> None:
    spec = data.draw(strategies.column_specs())
    rng = np.random.default_rng(0)
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    episodes = [
        Episode({path: strategies.array(rng, dtype, (rows, *shape)) for path, (dtype, shape) in spec.items()})
        for rows in lengths
    ]
    loaded = open_source(rlds2reverb.load(episodes))
    assert_same_episodes(loaded, EpisodeList(episodes))
    assert [read_episode.id for read_episode in loaded] == [read_episode.id for read_episode in EpisodeList(episodes)]


def test_a_name_gives_the_dataset_with_its_metadata() -> None:
    loaded = rlds2reverb.load("bundled:cartpole@train[:3]")
    assert isinstance(loaded.element_spec["steps"], tf.data.DatasetSpec)
    assert loaded.cardinality() == 3
    source = list(open_source("bundled:cartpole@train[:3]"))
    assert_same_episodes(open_source(loaded), source)
    assert set(source[0].metadata) <= set(loaded.element_spec)


def test_an_rlds_dataset_is_itself_and_columns_become_steps() -> None:
    whole = dataset(made(3, 1))
    assert rlds2reverb.load(whole) is whole
    columns = made(3, 1)
    batched = tf.data.Dataset.from_generator(
        lambda: ({"steps": column} for column in columns), output_signature={"steps": signature(columns[0])}
    )
    for data in (batched, as_episodes(columns)):
        reference.assert_same_items(*(rows_of(convert_rlds_to_trajectories(dataset)) for dataset in (data, whole)))
        assert create_trajectory_data_spec(data) == create_trajectory_data_spec(whole)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "load": rlds2reverb.load,
    "spec": create_trajectory_data_spec,
    "convert": convert_rlds_to_trajectories,
    "push": lambda source: push_rlds_to_reverb(source, None),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("source", ["bundled:nothing", "nowhere", "bundled:cartpole@night", 5, None, ["text"]], ids=str)
def test_what_is_no_source_is_refused_as_by_open_source(function: Callable[[Any], Any], source: Any) -> None:
    with pytest.raises(SourceError) as wanted:
        open_source(source)
    with pytest.raises(SourceError) as found:
        function(source)
    assert str(found.value) == str(wanted.value)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_list_without_steps_has_no_spec(function: Callable[[Any], Any]) -> None:
    with pytest.raises(SourceError, match="no episode with steps, so there is no step spec"):
        function([])


def test_a_list_without_a_field_of_rlds_is_refused_with_the_text_of_tf_agents() -> None:
    (columns,) = made(3)
    del columns["discount"]
    functions: tuple[Callable[[Any], Any], ...] = (create_trajectory_data_spec, convert_rlds_to_trajectories)
    for function in functions:
        with pytest.raises(ValueError, match=r"Invalid RLDS step spec\. Features expected are"):
            function(as_episodes([columns]))


ODD: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a shape": (
        lambda steps: steps.update(reward=np.zeros((2, 3), np.float32)),
        r'"reward": expected float32\[\], got float32\[3\]',
    ),
    "a column more": (lambda steps: steps.update(x=np.zeros(2)), r'"x": expected none, got float64\[\]'),
    "a column less": (lambda steps: steps.pop("reward"), r'"reward": expected float32\[\], got none'),
    "a length": (
        lambda steps: steps.update(reward=np.zeros(5, np.float32)),
        "columns of unequal length: .*'reward': 5",
    ),
}


@pytest.mark.parametrize(("change", "message"), ODD.values(), ids=ODD)
def test_an_episode_unlike_the_first_is_named(change: Callable[[dict[str, Any]], Any], message: str) -> None:
    first, second = as_episodes(made(3, 2))
    steps = dict(second.columns)
    change(steps)
    with pytest.raises(SourceError, match=f"episodes, episode odd: .*{message}"):
        rlds2reverb.load([first, Episode(steps, id="odd")])


def test_an_episode_of_another_source_unlike_its_spec_is_named_while_reading() -> None:
    class Source:
        """As another package would write one."""

        name = "theirs"

        def spec(self) -> Any:
            return EpisodeList(as_episodes(made(2))).spec()

        def __iter__(self) -> Iterator[Episode]:
            yield from as_episodes(made(2))
            yield Episode({"reward": np.zeros(3)}, id="odd")

    read = iter(rlds2reverb.load(Source()))
    next(read)
    with pytest.raises(tf.errors.OpError, match=r'theirs, episode odd: .*"reward": expected float32'):
        next(read)


def test_ragged_metadata_is_named_and_tfds_reads_it(tmp_path: Path) -> None:
    ragged = make.sequence(make.sequence(make.tensor("int64")))
    (tmp_path / FEATURES_FILE).write_text(json.dumps(make.episodes({"is_first": make.tensor("bool")}, deep=ragged)))
    record = {
        "steps/is_first": make.integers(1, 0),
        "deep/ragged_flat_values": make.integers(7, 8, 9),
        "deep/ragged_row_lengths_0": make.integers(1, 2),
    }
    make.tfrecord(tmp_path / "x-train.tfrecord-00000-of-00001", [make.example(record)])
    splits = [{"name": "train", "shardLengths": ["1"], "numBytes": "1"}]
    (tmp_path / INFO_FILE).write_text(
        json.dumps({"name": "x", "version": "1.0.0", "fileFormat": "tfrecord", "splits": splits})
    )
    with pytest.raises(tf.errors.OpError, match='metadata "deep" is ragged, and tensors are not'):
        list(rlds2reverb.load(f"tfds:{tmp_path}"))
    (loaded,) = rlds2reverb.load(f"tfds:{tmp_path}?reader=tfds")
    assert loaded["deep"].to_list() == [[7], [8, 9]]
