"""Labels: a view's items are found again by them, so their text is kept; and they say every option that changes an item."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from rlds2reverb.errors import ViewError
from rlds2reverb.views import FROM_CONFIG_ONLY, VIEWS, view_from, view_of
from rlds2reverb.views.base import identity, label_of
from rlds2reverb.views.jigsaw import Jigsaw
from rlds2reverb.views.n_step import NStep
from rlds2reverb.views.requirements import Requirements, ViewRequirement
from rlds2reverb.views.trajectory import SequenceView, two_step
from tests.unit.views.every import CASES, EVERY

LABELS = {text: label for case in CASES.values() for text, label in {**case.labels, **case.more_labels}.items()}
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


@pytest.mark.parametrize("text", LABELS)
def test_a_label_stays_what_item_keys_were_made_of(text: str) -> None:
    view = EVERY[text][1] if text in EVERY else view_of(text)
    assert view.label == LABELS[text]


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
