"""Which side of a split an episode is on: a function of what it did, and of nothing else."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb import Episode
from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.filtered import Filtered
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.splits import Split, take_split
from rlds2reverb.prepare.conventions import Conventions
from tests.support import strategies

MANY = [strategies.episode(np.random.default_rng(number), 2, episode_id=f"e{number}") for number in range(2000)]


def sides(episodes: list[Episode], **options: Any) -> list[bool]:
    split = Split("val", **options)
    return [split.judge(episode) for episode in episodes]


def names(source: Any) -> list[str]:
    return [episode.id for episode in source]


@given(st.floats(0.01, 0.99))
def test_the_sides_share_out_all_episodes_about_as_asked_for(share: float) -> None:
    val = sides(MANY, val_share=share)
    assert [not is_val for is_val in val] == [Split("train", share).judge(episode) for episode in MANY]
    spread = math.sqrt(share * (1 - share) / len(MANY))
    assert abs(sum(val) / len(MANY) - share) < 5 * spread


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_a_larger_share_moves_episodes_from_train_to_val_only(one: float, other: float) -> None:
    small, large = sides(MANY, val_share=min(one, other)), sides(MANY, val_share=max(one, other))
    assert all(is_large for is_small, is_large in zip(small, large) if is_small)


def stored_otherwise(episode: Episode, rng: np.random.Generator) -> Episode:
    """The same actions, as some other format keeps them; everything else is another."""
    action = episode.columns["action"]
    last = rng.normal(size=action.shape[1:])
    stored = np.concatenate([action[:-1], [last]]).astype("f4" if rng.integers(2) else "f8")
    parts = {"action/b": stored[:, :2], "action/a": stored[:, 2:3], "action/c": stored[:, 3]}
    whole = {"action/b": action[:, :2], "action/a": action[:, 2], "action/c": action[:, 3:]}
    columns = parts if rng.integers(2) else {f"action/{name}": whole[f"action/{name}"] for name in "cab"}
    return Episode(
        {**columns, "observation/other": rng.normal(size=(len(action), 3)), "is_first": np.arange(len(action)) == 0},
        {"more": 1},
        f"other {rng.integers(1 << 40)}",
    )


@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_dtypes_names_nesting_the_last_row_and_all_else_do_not_count(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    columns = {"action": (np.dtype(np.float32), (4,))}
    episode = strategies.episode(rng, rows, columns)
    others = [stored_otherwise(episode, rng) for _ in range(6)]
    for share in (0.2, 0.4, 0.6, 0.8):
        assert len({Split("val", share).judge(other) for other in others}) == 1


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.booleans())
def test_with_real_last_actions_an_episode_is_on_the_side_of_what_is_made_of_it(
    seed: int, rows: int, is_added: bool
) -> None:
    episode = strategies.episode(np.random.default_rng(seed), rows)
    action, reward = (episode.columns[path].copy() for path in ("action", "reward"))
    action[-1] = reward[-1] = 0 if is_added else 1
    episode = episode.with_columns(action=action, reward=reward)
    made = Conventions(last_step="repeat").apply(episode)
    assert len(made) == rows + (not is_added)
    for share in (0.2, 0.4, 0.6, 0.8):
        sides = {
            Split("val", share, is_last_real=is_real).judge(whole)
            for whole, is_real in ((episode, True), (made, True), (made, False))
        }
        assert len(sides) == 1
    assert {"action", "reward"} <= {*Split("val", is_last_real=True).columns(EpisodeList([episode]))}


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int8, np.int64, ml_dtypes.bfloat16])
def test_small_numbers_are_the_same_in_every_dtype(dtype: Any) -> None:
    for number in range(32):
        action = np.random.default_rng(number).integers(-9, 9, 5)
        plain, other = (Episode({"action": column}) for column in (action.astype(np.float32), action.astype(dtype)))
        assert sides([plain], val_share=0.5) == sides([other], val_share=0.5)
    odd: list[Array] = [np.array([0.0, np.nan, 1, 2], np.float32), np.array([-0.0, -np.nan, 1, 3], np.float64)]
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        assert len(set(sides([Episode({"action": column}) for column in odd], val_share=share))) == 1


def test_without_actions_the_observations_decide_and_without_numbers_nothing_does() -> None:
    def state(number: int) -> Array:
        return np.random.default_rng(number).normal(size=(3, 2))

    first: Array = np.array([True, False, False])
    last: Array = first[::-1]
    images: dict[str, Array] = {"is_first": first, "is_last": last}
    images["observation/image"] = np.zeros((3, 4, 4, 3), np.uint8)
    states = [Episode({**images, "observation/state": state(number)}, id=str(number)) for number in range(64)]
    assert 10 < sum(sides(states, val_share=0.5)) < 54
    with pytest.raises(SourceError, match=r"expected numbers in action, actions, observation, .*split_by=PATH"):
        Filtered(EpisodeList([Episode(images)]), [Split("val")]).read().__next__()


@pytest.mark.parametrize("is_column", [False, True])
def test_a_task_is_on_one_side_whatever_its_type(is_column: bool) -> None:
    def episode(number: int, value: Any) -> Episode:
        columns = strategies.episode(np.random.default_rng(number), 2).columns
        column = np.array([value, value]) if not isinstance(value, bytes) else np.array([value, value], object)
        return Episode(
            {**columns, "task": column} if is_column else columns, {} if is_column else {"task": value}, f"{number}"
        )

    numbers = [episode(number, number % 20) for number in range(200)]
    val = sides(numbers, val_share=0.3, by="task")
    assert len({(number % 20, is_val) for number, is_val in enumerate(val)}) == 20
    assert 0 < sum(val) < len(val)
    kinds: tuple[Any, ...] = (np.float32, np.int8, lambda number: str(number).encode())
    for kind in kinds:
        assert sides([episode(number, kind(number % 20)) for number in range(200)], val_share=0.3, by="task") == val
    assert sides(numbers, val_share=0.3, by="metadata/task") == val


def test_what_has_no_one_value_is_refused_by_name() -> None:
    columns = strategies.episode(np.random.default_rng(0), 2).columns
    two = Episode({**columns, "task": np.array([1, 2])}, id="the second")
    one = Episode({**columns, "task": np.array([1, 1])}, id="the first")
    with pytest.raises(
        SourceError, match=r"the second: split_by .*expected one text or number that all its rows share"
    ):
        names(Filtered(EpisodeList([one, two]), [Split("val", by="task")]))
    with pytest.raises(SourceError, match=r'split_by .* "tisk": expected metadata .*did you mean "task"'):
        names(Filtered(EpisodeList([one, two]), [Split("val", by="tisk")]))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"part": "test"}, "expected train or val; a split that TFDS has stored is a part of the name"),
        ({"part": "vall"}, 'did you mean "val"'),
        ({"part": "val", "val_share": 0}, "expected a number between 0 and 1"),
        ({"part": "val", "val_share": True}, "expected a number between 0 and 1"),
        ({"part": "val", "val_share": float("nan")}, "expected a number between 0 and 1"),
        ({"part": "val", "by": 3}, "expected the path of metadata or of a column"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Split(**options)


@pytest.mark.parametrize(
    ("name", "bare", "split"),
    [
        ("tfds:a@test", "tfds:a@test", None),
        ("tfds:a@test?split=val", "tfds:a@test", Split("val")),
        ("minari:a?split=80+20,part=1", "minari:a?split=80+20,part=1", None),
        ("npz:a?episodes=:9,split=train,val_share=0.2", "npz:a?episodes=:9", Split("train", 0.2)),
        ("npz:a?split=val,split_by=a%2Cb,episodes=:9", "npz:a?episodes=:9", Split("val", by="a,b")),
        ("mix:npz:a?split=val|npz:b", "mix:npz:a?split=val|npz:b", None),
        ("mix:npz:a?split=val|npz:b?split=val", "mix:npz:a?split=val|npz:b?split=val", None),
        ("mix:npz:a|npz:b|?split=val", "mix:npz:a|npz:b", Split("val")),
        ("mix:npz:a|npz:b|?seed=3,split=val", "mix:npz:a|npz:b|?seed=3", Split("val")),
    ],
)
def test_a_name_says_it(name: str, bare: str, split: Split | None) -> None:
    assert take_split(name) == (bare, split)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("split=test", "expected train or val"),
        ("split_by=task", 'option "split_by" goes with split=train or split=val'),
        ("split=val,val_share=2", "expected a number between 0 and 1"),
        ("split=val,val_share=x", "expected a number between 0 and 1"),
        ("split=val,split=train", 'option "split" is given twice'),
    ],
)
def test_a_name_that_makes_no_sense_is_refused(options: str, problem: str) -> None:
    with pytest.raises(SourceError, match=problem):
        open_source(f"bundled:cartpole?{options}")


def test_a_named_split_is_a_dataset_whose_parts_are_the_whole() -> None:
    whole = names(open_source("bundled:cartpole"))
    train, val = (open_source(f"bundled:cartpole?split={part},val_share=0.3") for part in ("train", "val"))
    assert names(train) == [name for name in whole if name not in names(val)]
    assert sorted(names(train) + names(val)) == sorted(whole)
    assert (train.episode_count or 0) + (val.episode_count or 0) == len(whole)
    assert train.name == "bundled:cartpole?split=train,val_share=0.3"
    mixed = open_source("mix:bundled:cartpole?split=train,val_share=0.3|bundled:cartpole?split=val,val_share=0.3")
    assert sorted(names(mixed)) == sorted(whole)
