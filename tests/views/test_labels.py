"""Labels: a view's items are found again by them, so their text is kept; and they say every option that changes an item."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from rlds2reverb.errors import ViewError
from rlds2reverb.views.jigsaw import Jigsaw
from rlds2reverb.views.labels import identity, label_of
from rlds2reverb.views.n_step import NStep
from rlds2reverb.views.registry import FROM_CONFIG_ONLY, VIEWS, view_from, view_of
from rlds2reverb.views.requirements import Requirements
from rlds2reverb.views.sequence import SequenceView, two_step
from rlds2reverb.views.view_requirement import ViewRequirement
from tests.views.test_registry import WRITTEN

LABELS = {
    "two_step": "sequence:length=2,stride=1,pad_end=False,tile_end=False",
    "sequence": "sequence:length=2,stride=1,pad_end=False,tile_end=False",
    "episode": "episode",
    "across_episodes": "across_episodes:length=2,stride=1",
    "transition": "transition",
    "n_step": "n_step:n=3,gamma=0.99,style=acme",
    "frame_stack": "frame_stack:frames=4,fill=first",
    "slices": "slices:length=32,per_episode=1,strict=True,seed=0",
    "target_pair": "target_pair:mode=none,offset=1",
    "jigsaw": "jigsaw:permutations=1000,tiles=9,channels=last,seed=0",
    "goal": "goal:strategy=future,seed=0",
    "fragments": "fragments:length=200,batch_mode=truncate_episodes,count_steps_by=env_steps,agents=None,new_obs=True",
    "sequence:length=2,stride=2": "sequence:length=2,stride=2,pad_end=False,tile_end=False",
    "sequence:length=3,stride=2,pad_end=true": "sequence:length=3,stride=2,pad_end=True,tile_end=False",
    "sequence:length=5,pad_end=true": "sequence:length=5,stride=1,pad_end=True,tile_end=False",
    "sequence:length=4,pad_end=true,tile_end=true": "sequence:length=4,stride=1,pad_end=True,tile_end=True",
    "sequence:length=4,stride=3,pad_end=true,tile_end=true": "sequence:length=4,stride=3,pad_end=True,tile_end=True",
    "sequence:length=7": "sequence:length=7,stride=1,pad_end=False,tile_end=False",
    "episode:max_length=6,skip_longer=true": "episode",
    "n_step:n=1,style=torchrl": "n_step:n=1,gamma=0.99,style=torchrl",
    "frame_stack:frames=1": "frame_stack:frames=1,fill=first",
    "n_step:n=4,early=true": "n_step:n=4,gamma=0.99,style=acme,early=True",
    "frame_stack:frames=3,fill=zero": "frame_stack:frames=3,fill=zero",
    "slices:length=3,per_episode=4": "slices:length=3,per_episode=4,strict=True,seed=0",
    "slices:length=4,per_episode=2,strict=false,seed=7": "slices:length=4,per_episode=2,strict=False,seed=7",
    "slices:length=3,per_episode=4,truncated=true": "slices:length=3,per_episode=4,strict=True,seed=0,truncated=True",
    "slices:length=4,per_episode=2,strict=false,truncated=true": "slices:length=4,per_episode=2,strict=False,seed=0,truncated=True",
    "target_pair:mode=identity": "target_pair:mode=identity,offset=0",
    "target_pair:mode=dynamics,offset=2": "target_pair:mode=dynamics,offset=2",
    "target_pair:mode=inverse_dynamics,offset=3": "target_pair:mode=inverse_dynamics,offset=3",
    "target_pair:mode=action_prediction": "target_pair:mode=action_prediction,offset=1",
    "jigsaw:permutations=24,tiles=4,channels=first,seed=3": "jigsaw:permutations=24,tiles=4,channels=first,seed=3",
    "goal:strategy=final": "goal:strategy=final,seed=0",
    "goal:strategy=uniform,seed=3": "goal:strategy=uniform,seed=3",
    "fragments:length=3": "fragments:length=3,batch_mode=truncate_episodes,count_steps_by=env_steps,agents=None,new_obs=True",
    "fragments:length=4,batch_mode=complete_episodes,new_obs=false": "fragments:length=4,batch_mode=complete_episodes,count_steps_by=env_steps,agents=None,new_obs=False",
    "fragments:length=5,count_steps_by=agent_steps,agents=2": "fragments:length=5,batch_mode=truncate_episodes,count_steps_by=agent_steps,agents=2,new_obs=True",
    "n_step:n=5,gamma=1": "n_step:n=5,gamma=1.0,style=acme",
    "n_step:gamma=0.5,style=torchrl": "n_step:n=3,gamma=0.5,style=torchrl",
    "frame_stack:fill=0": "frame_stack:frames=4,fill=zero",
    "frame_stack:frames=2,fill=-1.5": "frame_stack:frames=2,fill=-1.5",
    "goal:seed=-4": "goal:strategy=future,seed=-4",
    "target_pair:mode=identity,offset=3": "target_pair:mode=identity,offset=0",
    "fragments:new_obs=false,length=2": "fragments:length=2,batch_mode=truncate_episodes,count_steps_by=env_steps,agents=None,new_obs=False",
    "across_episodes:length=5,stride=3,priority=2": "across_episodes:length=5,stride=3",
    "episode:max_length=none,priority=reward": "episode",
    "jigsaw:permutations=7,tiles=4": "jigsaw:permutations=7,tiles=4,channels=last,seed=0",
}
"""What item keys are made of: a text that changes makes every item of its view another one."""

FROM_CONFIGS = {
    "{view: frame_stack, fill: {observation: 0}}": "frame_stack:frames=4,fill=zero",
    "{view: frame_stack, fill: {}}": "frame_stack:frames=4,fill=first",
    "{view: frame_stack, fill: {observation/b: first, observation/a: 0}}": (
        'frame_stack:frames=4,fill={"observation/a": "zero", "observation/b": "first"}'
    ),
    "{view: requirements, requirements: {a: {data_col: obs, shift: '0:2:2', fill: 0}, "
    "b: {data_col: t, fill: 3, batch_repeat_value: 2}}}": (
        'requirements:{"a": ["obs", [0, 2], 1, "zero"], "b": ["t", [0], 2, 3]},zero=[]'
    ),
    "{view: requirements, requirements: {obs: {}, prev_actions: {data_col: actions, used_for_training: false}}}": (
        """requirements:{"obs": ["obs", [0], 1]},zero=['actions']"""
    ),
}


def test_every_view_of_the_suite_is_here() -> None:
    assert set(WRITTEN) <= set(LABELS)


@pytest.mark.parametrize("text", LABELS)
def test_a_label_stays_what_item_keys_were_made_of(text: str) -> None:
    assert view_of(text).label == LABELS[text]


@pytest.mark.parametrize("config", FROM_CONFIGS)
def test_so_does_that_of_a_view_from_a_config(config: str) -> None:
    assert view_from(yaml.safe_load(config)).label == FROM_CONFIGS[config]


def test_orders_from_a_file_count_by_their_content(tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    file.write_text("0,1,2,3\n3,2,1,0\n")
    assert (
        Jigsaw(str(file), tiles=4).label
        == "jigsaw:permutations=393c1508709d28bc41ca5699be8a2607,tiles=4,channels=last,seed=0"
    )


def test_a_number_of_numpy_is_written_as_pythons() -> None:
    assert SequenceView(np.int64(3)).label == SequenceView(3).label  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name in VIEWS if name not in FROM_CONFIG_ONLY])
def test_a_priority_is_in_no_label(name: str) -> None:
    assert VIEWS[name](priority=3).label == VIEWS[name]().label


def test_a_field_whose_default_goes_unsaid_is_in_the_label_with_any_other_value() -> None:
    assert identity(NStep()) == {"n": 3, "gamma": 0.99, "style": "acme"}
    assert identity(replace(NStep(), early=True))["early"] is True


def test_values_can_be_written_in_another_way() -> None:
    assert label_of("pairs", two_step(), stride="one") == "pairs:length=2,stride=one,pad_end=False,tile_end=False"


@pytest.mark.parametrize("name", [field.name for field in fields(ViewRequirement)])
def test_a_requirements_label_says_what_changes_its_items(name: str) -> None:
    other = {"data_col": "t", "shift": 1, "batch_repeat_value": 2, "fill": 1}
    plain = Requirements({"obs": {}, "kept": {}, "prev_obs": {}})
    changed = {"obs": {}, "kept": {name: other.get(name, True)}, "prev_obs": {}}
    assert (Requirements(changed).label != plain.label) == (name in other)


def test_what_is_not_used_for_training_is_in_no_label() -> None:
    with pytest.raises(ViewError, match="no column is used for training"):
        Requirements({"obs": {"used_for_training": False}})
    assert Requirements({"obs": {}, "t": {"used_for_training": False}}).label == Requirements({"obs": {}}).label
