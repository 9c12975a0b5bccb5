"""The last action: as an option of a dataset's name it makes the episodes that the option of a push makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlds2reverb
from rlds2reverb.episode import FLAGS, Array, Episode, content_digest, gaps_around
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.filtered import filtered
from rlds2reverb.formats.filters import KeepRanges
from rlds2reverb.formats.last_step import LastStep, repeat_last_step, take_last_step
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.registry import SOURCES
from rlds2reverb.formats.transform import transform_of
from rlds2reverb.formats.transformed import transformed
from rlds2reverb.prepare.conventions import Conventions, fill_absent
from tests.support import strategies


def recorded(rows: int, number: int, is_added: bool = False) -> Episode:
    """An episode whose last row has an action, or none."""
    episode = strategies.episode(np.random.default_rng(number), rows, terminal=False, episode_id=f"e{number}")
    columns: dict[str, Array] = {**episode.columns, "action": 1 + np.arange(rows), "reward": np.ones(rows, np.float32)}
    for path in ("action", "reward"):
        columns[path][-1] *= not is_added
    return Episode(columns, {}, f"e{number}")


EPISODES = [recorded(5, 0), recorded(3, 1, is_added=True), recorded(1, 2)]


def test_episodes_are_those_of_the_option_and_those_that_change_have_names_of_their_own() -> None:
    source = LastStep(EpisodeList(EPISODES, "list"))
    repeat = Conventions(last_step="repeat")
    episodes = list(source)
    for episode, own in zip(episodes, EPISODES, strict=True):
        assert content_digest(episode.columns) == content_digest(repeat.apply(own).columns)
    assert [episode.id for episode in episodes] == ["e0|last_step=repeat", "e1", "e2|last_step=repeat"]
    assert (source.episode_lengths(), list(source.count_lengths())) == (None, [6, 3, 2])
    assert [(number, len(episode)) for number, episode in source.at([0, 2])] == [(0, 6), (2, 2)]
    known = list(source.read(0, 2, lambda name: name.startswith("e0|")))
    assert [hasattr(episode, "columns") for episode in known] == [False, True]


def test_the_row_before_a_gap_has_an_action_even_if_it_is_0() -> None:
    episode = recorded(6, 0)
    columns = {path: column.copy() for path, column in episode.columns.items()}
    columns["action"][2], columns["reward"][2] = 0, 0
    kept = filtered(EpisodeList([Episode(columns, {}, "e")], "list"), [KeepRanges.of({"e": [[0, 3], [4, 6]]})])
    longer = list(LastStep(kept))
    assert [(episode.id, len(episode)) for episode in longer] == [
        ("e[:3]|last_step=repeat", 4),
        ("e[4:]|last_step=repeat", 3),
    ]
    assert [gaps_around(episode.id) for episode in longer] == [(False, False), (True, False)]


def test_without_actions_the_rows_are_the_same() -> None:
    without = LastStep(EpisodeList(EPISODES, "list")).without(["action", "reward", "discount"])
    assert [len(episode) for episode in without] == [6, 3, 2]
    assert not without.spec().keys() & {"action", "reward", "discount"}


@pytest.mark.parametrize(
    ("name", "bare", "repeats"),
    [
        ("tfds:a/b@train[:3]?last_step=repeat", "tfds:a/b@train[:3]", True),
        ("tfds:a?order=file,last_step=mark", "tfds:a?order=file", False),
        ("minari:a?last_step=repeat,episodes=3", "minari:a?episodes=3", True),
        ("mix:tfds:a?last_step=repeat|tfds:b", "mix:tfds:a?last_step=repeat|tfds:b", False),
        ("mix:tfds:a|tfds:b?last_step=repeat", "mix:tfds:a|tfds:b?last_step=repeat", False),
        ("bundled:cartpole", "bundled:cartpole", False),
    ],
)
def test_the_option_of_a_name(name: str, bare: str, repeats: bool) -> None:
    assert take_last_step(name) == (bare, repeats)


def test_another_value_is_refused() -> None:
    with pytest.raises(SourceError, match="last_step"):
        open_source("bundled:cartpole?last_step=next")


def test_a_format_with_an_option_of_that_name_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with_option = [entry.scheme for entry, side in SOURCES.own_sides().items() if side.has_last_step]
    assert sorted(with_option) == ["d4rl", "ilr", "lerobot", "mix", "npz", "rllib", "robomimic", "ted"]
    opened: list[str] = []
    monkeypatch.setattr(type(SOURCES), "open", lambda _, name: opened.append(name))
    names = [f"{scheme}:a?last_step=repeat" for scheme in with_option]
    assert [open_source(name) for name in names] == [None] * len(names)  # as it is opened, and not wrapped
    assert opened == names


def test_the_option_of_a_mix_is_that_of_each_part_that_does_not_say_it_itself(tmp_path: Path) -> None:
    for number, rows in enumerate((4, 6)):
        episode = recorded(rows, number)
        flags = {name: episode.columns[name] for name in ("is_first", "is_last", "is_terminal")}
        np.savez(tmp_path / f"{number}.npz", observation=np.arange(rows), action=episode.columns["action"], **flags)
    first, second = (f"npz:{tmp_path}/{number}.npz" for number in range(2))
    for own, options in (("", "last_step=repeat"), ("?last_step=repeat", "seed=0"), ("", "seed=0,last_step=repeat")):
        mixed = open_source(f"mix:{first}{own}|{second}{own}|?{options}")
        alone = [episode for name in (first, second) for episode in open_source(f"{name}?last_step=repeat")]
        assert {episode.id: len(episode) for episode in mixed} == {episode.id: len(episode) for episode in alone}
    kept = open_source(f"mix:{first}?last_step=mark|{second}|?last_step=repeat")
    assert sorted(len(episode) for episode in kept) == sorted(
        len(episode)
        for name in (f"{first}?last_step=mark", f"{second}?last_step=repeat")
        for episode in open_source(name)
    )


def test_a_dataset_of_tfds_gives_every_action(tmp_path: Path) -> None:
    episodes = [recorded(rows, rows) for rows in (4, 6, 2)]
    rlds2reverb.convert(episodes, f"tfds:{tmp_path}/my_set")
    name = f"tfds:{tmp_path}/my_set/1.0.0"
    view, totals = "chunk:horizon=1", {}
    for text in (name, f"{name}?last_step=repeat"):
        batches = rlds2reverb.local(text, view=view, batch_size=100)
        totals[text] = sum(len(batch.data["action"]) for batch in batches)
    by_option = rlds2reverb.local(name, view=view, batch_size=100, last_step="repeat")
    assert [*totals.values()] == [9, 12]
    assert sum(len(batch.data["action"]) for batch in by_option) == 12
    split = open_source(f"{name}?last_step=repeat,split=train,val_share=0.000001")
    assert sorted(len(episode) for episode in split) == [3, 5, 7]


TRANSFORMS = [
    "make=action:concat(action[:2],gripper_invert(action[2]))",
    "make=action:gripper_invert(action[2])",
    "make=action:constant(1),drop=reward",
    "make=action:gripper_absolute(action[2])",
    "make=action:concat(action[:2],zeros(1))",
    "make=action:observation/state,drop_first_rows=1",
    "make=action:concat(delta(observation/state),action[2])",
    "make=observation/velocity:delta(observation/state)",
    "make=action:concat(delta(action[:2]),action[2])",
    "make=observation/jerk:delta(delta(observation/state))",
    "make=reward:scale(reward,2,-1)",
    "action=concat(/action,/observation/state)",
]


@pytest.mark.parametrize("text", ["", *TRANSFORMS])
@given(data=st.data())
def test_a_row_that_a_reader_adds_gives_the_transitions_of_recorded_rows(text: str, data: st.DataObject) -> None:
    """Whatever a transform makes of a last row, with that row and without it."""
    rows = data.draw(st.integers(4, 7))
    signs = st.lists(st.lists(st.sampled_from([-1, 0, 1]), min_size=3, max_size=3), min_size=rows, max_size=rows)
    action = np.array(data.draw(signs), np.float32)
    action[-1, 0] = 1  # no row of zeros, which would be one without an action
    columns: dict[str, Array] = {
        "observation/state": np.random.default_rng(rows).normal(size=(rows, 2)).astype(np.float32),
        "action": action,
        "reward": np.zeros(rows, np.float32),
        "is_first": np.arange(rows) == 0,
        "is_last": np.arange(rows) == rows - 1,
    }
    whole = Episode(columns, {}, "e")

    def transitions(episode: Episode) -> list[dict[str, list[object]]]:
        source = transformed(EpisodeList([episode], "list"), transform_of(text or {}))
        made_twice = []
        for longer in (*LastStep(source), *map(Conventions(last_step="repeat").apply, map(fill_absent, source))):
            values = {path: longer.columns[path][:-1].tolist() for path in longer.columns if path not in FLAGS}
            made_twice.append({**values, "rows": [len(longer)]})
        assert made_twice[0].items() <= made_twice[1].items()
        assert list(LastStep(source).count_lengths()) == [made_twice[0].pop("rows")[0]]
        return made_twice[:1]

    assert transitions(repeat_last_step(whole)) == transitions(whole)


def test_a_recorded_state_behind_the_last_action_is_a_next_one() -> None:
    episode = recorded(5, 0, is_added=True)
    state = np.arange(5, dtype=np.float32)
    source = EpisodeList([episode.with_columns(observation=state * state)], "list")
    (relabelled,) = LastStep(transformed(source, transform_of("make=action:delta(observation)")))
    assert relabelled.columns["action"].tolist() == [1, 3, 5, 7, 0]
