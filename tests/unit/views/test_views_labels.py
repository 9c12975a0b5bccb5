"""Labels: a view's items are found again by them, so their text is kept; and they say every option that changes an item."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import ViewError
from rlds2reverb.views import FROM_CONFIG_ONLY, VIEWS, shorten_view, view_from, view_of
from rlds2reverb.views.base import StreamView, View, identity, label_of, spell_view
from rlds2reverb.views.jigsaw import Jigsaw
from rlds2reverb.views.n_step import NStep
from rlds2reverb.views.prioritized import Prioritized, by_return
from rlds2reverb.views.requirements import Requirements, ViewRequirement
from rlds2reverb.views.trajectory import SequenceView, name_of, two_step
from tests.support.profiles import examples
from tests.support.views.every import CASES, EVERY

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


# Words and numbers that the parser could mistake for each other.
_NAMES = st.sampled_from(["language", "info/b", "metadata/task", "all", "7", "true", "none", "a=b", "with space", "é"])


@st.composite
def any_views(draw: st.DrawFn) -> View:
    """A registered view with any options, extras and priority."""
    case = draw(st.sampled_from([CASES[name] for name in VIEWS if name not in FROM_CONFIG_ONLY]))
    view: Any = draw(case.random)
    extras = draw(st.lists(_NAMES, max_size=2))
    priority = draw(st.one_of(st.just(1.0), st.integers(0, 9), st.floats(0, 1e300)))
    extended: Any = case.with_extras(view, extras)
    view = replace(extended, priority=priority)
    by = draw(st.none() | _NAMES)
    return view if by is None or isinstance(view, StreamView) else Prioritized(replace(view, priority=1.0), by)


@given(any_views())
@examples(300)
def test_a_view_is_spelled_as_the_parser_reads_it(view: Any) -> None:
    text = spell_view(view)
    if text == view.label:
        return
    if isinstance(view, Prioritized) and view.by in ("7", "true", "none"):  # words that the parser takes for values
        view = view.view
    assert view_of(text) == view


@given(any_views())
@examples(200)
def test_a_stored_name_is_shown_without_its_defaults_and_means_the_same(view: Any) -> None:
    name = name_of(view)
    shown = shorten_view(name)
    assert len(shown) <= len(name)
    if shown != name and not shown.endswith(("offset=0", "extras=none")):  # labels that the parser never read back
        assert view_of(shown).label == view.label
    if shown != name:
        assert shorten_view(f"{name}, two_step") == f"{shown}, two_step"


@pytest.mark.parametrize(
    ("view", "text"),
    [
        (two_step(extras="language"), "two_step:extras=language"),
        (SequenceView(), "two_step"),
        (SequenceView(8, priority=2.5), "sequence:length=8,priority=2.5"),
        (SequenceView(6, pad_end=True), "sequence:length=6,pad_end=true"),
        (Prioritized(NStep(5), "td_error"), "n_step:n=5,priority=td_error"),
        (Prioritized(NStep(5), by_return), "n_step:n=5"),
        (two_step(extras=["a,b"]), 'sequence:length=2,stride=1,pad_end=False,tile_end=False,extras=["a,b"]'),
    ],
)
def test_only_options_that_are_not_the_defaults_are_spelled(view: View, text: str) -> None:
    assert spell_view(view) == text


def test_requirements_are_called_by_their_label() -> None:
    view = Requirements({"obs": {}, "actions": {}}, extras="language")
    assert spell_view(view) == shorten_view(name_of(view)) == view.label
    assert spell_view(Prioritized(view, "td_error")) == view.label


@pytest.mark.parametrize(
    "text", ["", "two_step", "jigsaw:permutations=/dev/random,tiles=9", "a user's own", "n_step:m=3"]
)
def test_names_of_others_are_shown_as_they_are(text: str) -> None:
    assert shorten_view(text) == text.replace(",tiles=9", "")
