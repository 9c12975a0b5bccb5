"""What Minari itself makes of what we read and write. Run where Minari 0.5.4 is installed."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlds2reverb.conversion.convert import convert
from rlds2reverb.errors import ConfigError, InvalidEpisode, Rlds2ReverbError
from rlds2reverb.formats import open_destination, open_source
from rlds2reverb.formats.destination import Content
from rlds2reverb.formats.minari.spaces import describe_space
from rlds2reverb.formats.source import metadata_spec_of
from rlds2reverb.specs import flatten
from tests.support.raising import error_of

minari = pytest.importorskip("minari")
spaces: Any = pytest.importorskip("gymnasium.spaces")

NUMBERS = ("float32", "float64", "int8", "int32", "int64", "uint8", "uint16")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


def boxes() -> st.SearchStrategy[Any]:
    def box(dtype: str, shape: Any) -> Any:
        if dtype.startswith("float"):
            return spaces.Box(-np.inf, np.inf, tuple(shape), np.dtype(dtype).type)
        info = np.iinfo(dtype)
        return spaces.Box(info.min, info.max, tuple(shape), np.dtype(dtype).type)

    return st.builds(box, st.sampled_from(NUMBERS), st.lists(st.integers(1, 3), max_size=3))


def leaves() -> st.SearchStrategy[Any]:
    return st.one_of(
        boxes(),
        st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-5, 5)),
        st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 5), min_size=1, max_size=3)),
        st.builds(spaces.MultiBinary, st.integers(1, 4)),
        st.builds(lambda length: spaces.Text(length, min_length=1, charset="aü日 z"), st.integers(1, 5)),
        st.just(spaces.Box(0, 255, (32, 33, 3), np.uint8)),
        st.just(spaces.Box(0, 255, (33, 32), np.uint8)),
    )


def every_space() -> st.SearchStrategy[Any]:
    keys = st.sampled_from(["a", "b", "größe", "x y"])
    return st.recursive(
        leaves(),
        lambda below: st.one_of(
            st.dictionaries(keys, below, min_size=1, max_size=2).map(spaces.Dict),
            st.lists(below, min_size=1, max_size=2).map(lambda some: spaces.Tuple(tuple(some))),
        ),
        max_leaves=4,
    )


def stacked(space: Any, values: list[Any]) -> Any:
    """Rows of a space, as Minari's buffers have them."""
    if isinstance(space, spaces.Dict):
        return {key: stacked(below, [value[key] for value in values]) for key, below in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(stacked(below, [value[place] for value in values]) for place, below in enumerate(space.spaces))
    return values if isinstance(space, spaces.Text) else np.stack(values)


def created(name: str, observation: Any, action: Any, lengths: list[int], **options: Any) -> Any:
    from minari.data_collector import EpisodeBuffer

    observation.seed(3)
    action.seed(4)
    buffers = []
    kind = options.pop("data_format", "hdf5")
    for number, length in enumerate(lengths):
        nested = {"in": {"x": np.ones((length + 1, 2), np.float32), "n": np.arange(length + 1)}}
        ends = [at == length - 1 for at in range(length)]
        buffers.append(
            EpisodeBuffer(
                seed=(1 << 63) + number,
                observations=stacked(observation, [observation.sample() for _ in range(length + 1)]),
                actions=stacked(action, [action.sample() for _ in range(length)]),
                rewards=[0.5 * at for at in range(length)],
                terminations=ends if number % 2 else [False] * length,
                truncations=[False] * length if number % 2 else ends,
                infos={"at": np.arange(2 * length + 2).reshape(-1, 2), **(nested if kind == "hdf5" else {})},
            )
        )
    return minari.create_dataset_from_buffers(
        name,
        buffers,
        observation_space=observation,
        action_space=action,
        data_format=kind,
        **options,
    )


def converted(source_name: str, name: str, folder: Path, syncs: bool = False) -> Any:
    """Written by our sink; loaded by Minari."""
    source: Any = open_source(source_name)
    destination = open_destination(name)
    content = Content(source.name, flatten(source.spec()), flatten(metadata_spec_of(source)))
    lost = [loss.code for loss in destination.losses(content)]
    assert set(lost) <= {"moved"}, lost
    work = destination.path
    work.mkdir(parents=True)
    sink = destination.sink(work, content, None)
    for episode in source:
        assert episode.faults == ()
        assert list(sink.write(episode)) == []
        if syncs:
            state = sink.sync()
            sink.close()
            sink = destination.sink(work, content, state)
    sink.finish()
    sink.close()
    return minari.load_dataset(name.partition(":")[2].partition("?")[0])


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, list):
        return bool(one == other)
    return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())


def check_same(made: Any, back: Any) -> None:
    assert len(made) == len(back)
    for episode, other in zip(made, back):
        for field in ("observations", "actions", "rewards", "terminations", "truncations", "infos"):
            assert same(getattr(episode, field), getattr(other, field)), field
        assert episode.id == other.id
    kept = [
        {
            name: value for name, value in metadata.items() if not name.startswith("rewards_")
        }  # a buffer has no statistics
        for metadata in back.storage.get_episode_metadata(range(len(back)))
    ]
    assert list(made.storage.get_episode_metadata(range(len(made)))) == kept


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(every_space(), every_space(), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.booleans())
def test_minari_to_rows_to_minari_is_an_identity(
    observation: Any, action: Any, lengths: list[int], syncs: bool
) -> None:
    folder = Path(mkdtemp())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        made = created("made-v0", observation, action, lengths, jpeg_encoding=False)
        back = converted("minari:made-v0", "minari:back-v0?like=made-v0", folder, syncs)
        check_same(made, back)
        assert back.observation_space == made.observation_space
        assert back.action_space == made.action_space
        derived = converted("minari:made-v0", "minari:derived-v0", folder)
        check_same(made, derived)
        for episode in derived:
            assert derived.action_space.contains(row(derived.action_space, episode.actions, 0))
            assert derived.observation_space.contains(row(derived.observation_space, episode.observations, -1))


def row(space: Any, values: Any, at: int) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: row(below, values[key], at) for key, below in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(row(below, values[place], at) for place, below in enumerate(space.spaces))
    return values[at]


def pairs() -> st.SearchStrategy[tuple[Any, Any]]:
    """The space of a dataset, and the one that its copy is to get: of one kind mostly, with other bounds or another dtype."""
    floats, ints = st.sampled_from(["float32", "float64"]), st.sampled_from(["int8", "uint8", "int32", "int64"])
    high = st.integers(1, 6)
    texts = st.builds(
        lambda length, charset: spaces.Text(length, charset=charset), st.integers(1, 4), st.sampled_from(["ab", "abü"])
    )

    def box(dtype: str, high: int) -> Any:
        return spaces.Box(0, high, (2,), np.dtype(dtype).type)

    kinds = [
        st.builds(box, floats, high),
        st.builds(box, ints, high),
        st.builds(lambda n, start: spaces.Discrete(n, start=start), high, st.integers(-1, 1)),
        st.builds(lambda n: spaces.MultiDiscrete([n, n]), high),
        st.just(spaces.MultiBinary(2)),
        texts,
    ]
    alike = st.one_of([st.tuples(kind, kind) for kind in kinds])
    pair = st.one_of(alike, alike, st.tuples(st.one_of(kinds), st.one_of(kinds)))
    return st.one_of(
        pair,
        pair.map(lambda two: (spaces.Dict({"a": two[0]}), spaces.Dict({"a": two[1]}))),
        pair.map(lambda two: (spaces.Tuple((two[0],)), spaces.Tuple((two[1],)))),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(pairs(), pairs())
def test_what_is_written_like_another_dataset_lies_in_its_spaces(
    observations: tuple[Any, Any], actions: tuple[Any, Any]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", mkdtemp())
        made = created("made-v0", observations[0], actions[0], [3, 2], jpeg_encoding=False)
        created("liked-v0", observations[1], actions[1], [1], jpeg_encoding=False)
        lies_within = are_within(made, observations[1], actions[1])
        error = error_of(
            Rlds2ReverbError, lambda: convert("minari:made-v0", "minari:back-v0?like=liked-v0", verify=True)
        )
        assert (error is None) == lies_within
        if error is not None:
            assert isinstance(error, (ConfigError, InvalidEpisode)) and "like=" in str(error)
            return
        back = minari.load_dataset("back-v0")
        assert (back.observation_space, back.action_space) == (observations[1], actions[1])
        assert are_within(back, back.observation_space, back.action_space)


def are_within(dataset: Any, observation: Any, action: Any) -> bool:
    return all(
        space.contains(row(space, values, at))
        for episode in dataset
        for space, values, rows in (
            (observation, episode.observations, len(episode) + 1),
            (action, episode.actions, len(episode)),
        )
        for at in range(rows)
    )


@pytest.mark.parametrize("kind", ["hdf5", "arrow", "parquet"])
def test_every_kind_of_storage_becomes_hdf5(root: Path, kind: str) -> None:
    space = spaces.Dict(
        {"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Tuple((spaces.Discrete(3), spaces.Text(4)))}
    )
    made = created("ns/made-v0", space, spaces.Discrete(3, start=1), [3, 1, 2], data_format=kind)
    back = converted("minari:ns/made-v0", "minari:ns/back-v1", root)
    for episode, other in zip(made, back):
        for field in ("observations", "actions", "rewards", "terminations", "truncations"):
            assert same(getattr(episode, field), getattr(other, field)), field
        assert same(episode.infos["at"], other.infos["at"])
    assert set(minari.list_local_datasets()) == {"ns/made-v0", "ns/back-v1"}


def test_jpeg_files_are_kept_where_that_is_asked_for(root: Path) -> None:
    image = spaces.Box(0, 255, (40, 33, 3), np.uint8)
    made = created("made-v0", image, spaces.Discrete(3), [3, 2])
    source: Any = open_source("minari:made-v0")
    decoded = [episode.columns["observation"] for episode in source]
    for recorded, ours in zip(made, decoded):
        assert np.array_equal(recorded.observations, ours)
    encoded = source.encoded(["observation"])
    destination = open_destination("minari:back-v0?images=files")
    content = Content("made", flatten(encoded.spec()), {})
    assert list(destination.held_files(content.columns, source.images())) == ["observation"]
    assert not open_destination("minari:back-v0?images=decoded").held_files(content.columns, source.images())
    destination.path.mkdir()
    sink = destination.sink(destination.path, content, None)
    for episode in encoded:
        sink.write(episode)
    sink.sync()
    sink.finish()
    back = minari.load_dataset("back-v0")
    assert back.storage.jpeg_encoding
    check_observations(made, back)


def check_observations(made: Any, back: Any) -> None:
    for episode, other in zip(made, back):
        assert np.array_equal(episode.observations, other.observations)


def ids(options: str) -> list[int]:
    return [int(episode.metadata["id"]) for episode in open_source(f"minari:made-v0?{options}")]


@pytest.mark.parametrize("seed", range(5))
def test_samples_and_splits_are_those_of_minari(root: Path, seed: int) -> None:
    made = created("made-v0", spaces.Box(-1, 1, (2,)), spaces.Discrete(3), [1] * 23)
    for size in (1, 7, 23):
        made.set_seed(seed)
        assert ids(f"sample={size},seed={seed}") == sorted(episode.id for episode in made.sample_episodes(size))
    parts = minari.split_dataset(made, [10, 5, 1], seed=seed)
    for part, theirs in enumerate(parts):
        assert ids(f"split=10+5+1,part={part},seed={seed}") == sorted(theirs.episode_indices.tolist())
    assert ids(f"split=10+5+1,seed={seed}") == sorted(parts[0].episode_indices.tolist())
    half = minari.MinariDataset(made.storage, np.arange(4, 20))
    half.set_seed(seed)
    assert ids(f"episodes=4:20,sample=6,seed={seed}") == sorted(episode.id for episode in half.sample_episodes(6))
    theirs = minari.split_dataset(half, [3, 9], seed=seed)[1]
    assert ids(f"episodes=4:20,split=3+9,part=1,seed={seed}") == sorted(theirs.episode_indices.tolist())


def test_a_filtered_sample_is_that_of_minari(root: Path) -> None:
    made = created("made-v0", spaces.Box(-1, 1, (2,)), spaces.Discrete(3), [1, 3, 2, 3, 3, 1, 3, 2])
    kept = made.filter_episodes(lambda one: len(one) > 1)
    kept.set_seed(9)
    assert ids("where=total_steps>1,sample=4,seed=9") == sorted(episode.id for episode in kept.sample_episodes(4))


def test_spaces_may_be_those_of_another_dataset(root: Path) -> None:
    made = created("ns/made-v0", spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([3, 4]), [2])
    back = converted("minari:ns/made-v0", "minari:ns/back-v0?like=ns:made-v0", root)
    assert back.action_space == made.action_space
    created("other-v0", spaces.Box(-1, 1, (3,)), spaces.Discrete(3), [2])
    with pytest.raises(ConfigError, match='like=other-v0: "observation" is Box float32'):
        converted("minari:ns/made-v0", "minari:third-v0?like=other-v0", root)
    back = converted("minari:ns/made-v0", "minari:ns/third-v0?like=ns/made-v0", root)
    assert back.action_space == made.action_space


def test_metadata_that_minari_reads(root: Path) -> None:
    created("made-v0", spaces.Box(-1, 1, (2,)), spaces.Discrete(3), [2, 3])
    back = converted("minari:made-v0", "minari:back-v0", root)
    told = json.loads((root / "back-v0" / "data" / "metadata.json").read_text())
    assert told["total_episodes"] == back.total_episodes == 2
    assert told["total_steps"] == back.total_steps == 5
    assert [metadata["seed"] for metadata in back.storage.get_episode_metadata(range(2))] == [1 << 63, (1 << 63) + 1]
    back.update_dataset_from_buffer([])
    assert repr(back[0])


@given(every_space())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_spaces_are_told_as_gymnasium_prints_them(space: Any) -> None:
    assert describe_space(minari.serialization.serialize_space(space)) == repr(space)


def test_a_fact_of_any_name_is_read_by_minari(root: Path) -> None:
    created("made-v0", spaces.Box(-1, 1, (2,)), spaces.Discrete(3), [2]).storage.update_metadata(
        {"rooms": [1, {"a": None}]}
    )
    convert("minari:made-v0", "minari:back-v0?facts=docs_url:https://there/page", strict=True)
    told = minari.load_dataset("back-v0").storage.metadata
    assert (told["rooms"], told["docs_url"]) == ([1, {"a": None}], "https://there/page")
    shown = minari.utils.get_dataset_spec_dict(told)
    own = open_source("minari:back-v0").about.own
    assert [shown[f"Dataset {name} Space"].strip("`") for name in ("Observation", "Action")] == [
        own["observation_space"],
        own["action_space"],
    ]


def test_a_copy_recovers_its_environment(root: Path) -> None:
    gym: Any = pytest.importorskip("gymnasium")
    collector = minari.DataCollector(gym.make("CartPole-v1"))
    for seed in range(3):
        collector.reset(seed=seed)
        while not any(collector.step(collector.action_space.sample())[2:4]):
            pass
    made = collector.create_dataset(
        "cart/made-v0", algorithm_name="random", author="Ann", author_email="ann@there", code_permalink="there/code",
        description="of three", requirements=["gymnasium>=1"], ref_min_score=9.0, ref_max_score=500.0, num_episodes_average_score=5,
        eval_env=gym.make("CartPole-v1", max_episode_steps=100),
    )  # fmt: skip
    report = convert("minari:cart/made-v0?episodes=:2", "minari:cart/back-v0", strict=True, verify=True)
    back = minari.load_dataset("cart/back-v0")
    assert report.losses == ()
    assert back.recover_environment().spec == made.recover_environment().spec
    assert back.recover_environment(eval_env=True).spec.max_episode_steps == 100
    assert minari.get_normalized_score(back, np.array([500.0])) == 1
    ours, theirs = dict(back.storage.metadata), dict(made.storage.metadata)
    anew = {"dataset_id", "dataset_size", "jpeg_encoding", "total_episodes", "total_steps"}
    assert {name: ours[name] for name in theirs.keys() - anew} == {name: theirs[name] for name in theirs.keys() - anew}
    assert (back.total_episodes, back.total_steps) == (2, sum(map(len, list(made)[:2])))
