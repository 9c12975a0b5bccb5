"""Views by name, and the contract that every registered view keeps."""

from __future__ import annotations

from dataclasses import fields, replace
from inspect import signature
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rlds2reverb import Episode
from rlds2reverb.cuts import Cut
from rlds2reverb.episode import Array, content_digest
from rlds2reverb.errors import ConfigError, ViewError
from rlds2reverb.formats.source import spec_of
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.specs import differences, flatten
from rlds2reverb.views import FROM_CONFIG_ONLY, VIEWS, read_view, shorten_view, view_from, view_of
from rlds2reverb.views.base import StreamView, View, identity, item_count_of, label_of, not_in_items, spell_view
from rlds2reverb.views.frame_stack import FrameStack
from rlds2reverb.views.jigsaw import Jigsaw
from rlds2reverb.views.n_step import NStep
from rlds2reverb.views.prioritized import Prioritized, by_return
from rlds2reverb.views.requirements import Requirements, ViewRequirement
from rlds2reverb.views.target_pair import TargetPair
from rlds2reverb.views.trajectory import SequenceView, WholeEpisode, name_of, table_signature, two_step
from tests.support import reference
from tests.support.pictures import CAMERA, HEIGHT, IMAGE, WIDTH, WRIST, Pictures, as_files, episodes
from tests.support.profiles import examples
from tests.support.raising import error_of, outcome_of
from tests.support.views.case import ViewCase
from tests.support.views.cutting import columns_of, items_of
from tests.support.views.every import CASES, EVERY, WITH_CASE, case_of, cuts_of, items_in


def accepted(view: View, episode: Episode) -> bool:
    """Whether the view takes such steps; n_step needs floats as reward and discount."""
    error = error_of(ViewError, lambda: view.signature(filled_spec(spec_of(episode))))
    assert error is None or "expected floats" in str(error)
    return error is None


@WITH_CASE
class TestContract:
    @settings(max_examples=15)
    @given(data=st.data())
    def test_rows_have_one_length_and_windows_stay_inside(
        self, case: ViewCase, view: View, data: st.DataObject
    ) -> None:
        episode = data.draw(case.episodes(view))
        assume(accepted(view, episode))
        cut = view.cut(episode)
        assert {len(column) for column in cut.rows.values()} == {cut.row_count}
        assert {field.column for field in cut.fields.values()} == set(cut.rows)
        for field in cut.fields.values():
            anchors = cut.anchors if field.anchors is None else field.anchors
            assert len(anchors) == len(cut.anchors)
            for window in field.windows:
                assert np.all(anchors + window.start >= 0)
                assert np.all(anchors + window.stop <= cut.row_count)

    def test_it_counts_items_without_an_episode_or_says_that_it_cannot(self, case: ViewCase, view: View) -> None:
        counts = [item_count_of(view, rows) for rows in range(1, 12)]
        if None in counts:
            assert isinstance(view, StreamView)
            assert set(counts) == {None}
            return
        assert counts == [len(view.cut(case.episode(view, rows)).anchors) for rows in range(1, 12)]
        most = item_count_of(view, None)
        assert item_count_of(view, 0) == 0 or most == 1
        assert most is None or max(count or 0 for count in counts) <= most

    @settings(max_examples=15)
    @given(data=st.data())
    def test_anchors_rise_and_each_has_a_priority(self, case: ViewCase, view: View, data: st.DataObject) -> None:
        episode = data.draw(case.episodes(view))
        assume(accepted(view, episode))
        cut = view.cut(episode)
        assert cut.anchors.dtype == np.int64
        assert cut.priorities.dtype == np.float64
        assert cut.anchors.shape == cut.priorities.shape == (len(cut.anchors),)
        assert np.all(np.diff(cut.anchors) > 0)

    @settings(max_examples=15)
    @given(data=st.data())
    def test_columns_and_items_are_those_of_the_signature(
        self, case: ViewCase, view: View, data: st.DataObject
    ) -> None:
        episode = data.draw(case.episodes(view))
        assume(accepted(view, episode))
        signature = flatten(view.signature(filled_spec(spec_of(episode))))
        cut = view.cut(episode).in_order(list(signature))
        assert list(cut.fields) == list(signature)
        for item in items_of(cut):
            for value, spec in zip(item, signature.values()):
                assert value.dtype == spec.dtype
                assert len(value.shape) == len(spec.shape)
                assert all(wanted in (None, size) for size, wanted in zip(value.shape, spec.shape))

    def test_its_tables_signature_takes_its_items(self, case: ViewCase, view: View) -> None:
        items = view.signature(filled_spec(spec_of(case.episode(view, 3))))
        table = table_signature(items)
        assert differences(items, table) == []
        assert type(table) is type(items)
        assert table_signature(table) == table

    @settings(max_examples=15)
    @given(data=st.data())
    def test_the_episode_is_left_as_it_is_and_cut_the_same_again(
        self, case: ViewCase, view: View, data: st.DataObject
    ) -> None:
        episode = data.draw(case.episodes(view))
        assume(accepted(view, episode))
        before = content_digest(episode.columns)
        first, second = view.cut(episode), view.cut(episode)
        assert content_digest(episode.columns) == before
        assert content_digest(first.rows) == content_digest(second.rows)
        reference.assert_same_items(items_of(first), items_of(second))
        assert first.anchors.tolist() == second.anchors.tolist()

    @pytest.mark.parametrize("missing", ["observation", "action", "reward", "discount"])
    def test_a_spec_that_lacks_what_the_view_reads_is_refused(self, case: ViewCase, view: View, missing: str) -> None:
        spec = filled_spec(spec_of(case.episode(view, 3)))
        before = flatten(view.signature(spec))
        del spec[missing]
        after = outcome_of(ViewError, lambda: flatten(view.signature(spec)))
        if isinstance(after, ViewError):
            assert missing in str(after)
        else:
            left = {path for path in before if path.split("/")[0] != missing}
            assert after.keys() == (before.keys() if missing in case.own_columns else left)


MORE = {
    "action_dict/joint": np.arange(9.0),
    "discount": np.ones(9, np.float32),
    "language_instruction": np.array([b"lift the cup"] * 9, object),
    "policy_info/log_probability": np.arange(9.0),
    "td_error": np.arange(9.0),
}
"""Columns as robot data has them, beside those of every episode; of discounts that hide no flag."""


@pytest.mark.parametrize(
    "view",
    [
        *(view for _, view in EVERY.values()),
        view_of("fragments:new_obs=false,length=2"),
        Requirements({"obs": {}, "dones": {}, "said": {"data_col": "language_instruction"}}),
        Prioritized(two_step(), "td_error"),
    ],
    ids=lambda view: name_of(view)[:60],
)
def test_what_is_left_out_changes_no_item_and_all_else_does(view: View) -> None:
    episode = case_of(view).episode(view, 9)
    episode = episode.with_only_columns({**episode.columns, **MORE})
    out = not_in_items(view, spec_of(episode))
    for path, column in episode.columns.items():
        changed = replace(episode, columns={**episode.columns, path: other_values(column)})
        assert (told(view, changed) == told(view, episode)) == (path in out), path


def other_values(column: np.ndarray) -> np.ndarray:
    if column.dtype == object:
        return column + b"."
    return ~column if column.dtype == bool else column + column.dtype.type(1)


def told(view: View, episode: Episode) -> list[str]:
    """All that a view makes of an episode; of a stream of it, all that comes of so many that every row is in an item."""
    return [digest(cut) for cut in cuts_of(view, [episode] * (30 if isinstance(view, StreamView) else 1))]


def digest(cut: Cut) -> str:
    own = [field.anchors for field in cut.fields.values() if field.anchors is not None]
    arrays = (cut.anchors, cut.priorities, *own)
    return content_digest({**cut.rows, **{f"({number})": array for number, array in enumerate(arrays)}})


def contents(view: View) -> dict[tuple[int, int], str]:
    """(episode length, anchor) -> digest of the item, over short episodes."""
    found = {}
    for rows in range(1, 10):
        episode = case_of(view).episode(view, rows, rows)
        cut = view.cut(episode).in_order(columns_of(view, episode))
        for anchor, item in zip(cut.anchors.tolist(), items_of(cut)):
            found[rows, anchor] = content_digest(dict(zip(cut.fields, item)))
    return found


def labelled_views() -> list[Any]:
    """Every view of the suite, and more sequences: labels differ in one option each."""
    sequences = [
        SequenceView(length, stride, *padding)
        for length in (2, 3, 4)
        for stride in (1, 2)
        for padding in ((False, False), (True, False), (True, True))
    ]
    return [*(view for _, view in EVERY.values()), *sequences, SequenceView(2, priority=3), WholeEpisode(2, True)]


def test_labels_are_equal_exactly_when_items_of_one_anchor_are() -> None:
    made = [(view.label, contents(view)) for view in labelled_views()]
    for (label, items), (other_label, other_items) in combinations(made, 2):
        agree = all(items[key] == other_items[key] for key in items.keys() & other_items.keys())
        if label == other_label:
            assert agree, label
        elif label.split(":")[0] == other_label.split(":")[0] == "sequence":
            assert not agree or items.keys() != other_items.keys(), (label, other_label)


class TestNames:
    @pytest.mark.parametrize(
        ("text", "view"),
        [
            ("two_step", two_step()),
            ("two_step:", two_step()),
            ("two_step:priority=0.5", two_step(0.5)),
            ("sequence", SequenceView()),
            ("sequence:length=8,stride=4", SequenceView(8, 4)),
            ("sequence:length=8,pad_end=TRUE,tile_end=False,", SequenceView(8, pad_end=True)),
            ("episode", WholeEpisode()),
            ("episode:max_length=none,skip_longer=true,priority=2", WholeEpisode(None, True, 2)),
            ("episode:max_length=7", WholeEpisode(7)),
            ("target_pair:mode=none", TargetPair()),
            ("target_pair:mode=identity", TargetPair("identity")),
            ("frame_stack:fill=0.5", FrameStack(fill=0.5)),
            ("two_step:extras=none", two_step()),
            ("two_step:extras=1+true", two_step(extras=["1", "true"])),
            ("two_step:extras=7", two_step(extras="7")),
        ],
    )
    def test_names_and_options_make_views(self, text: str, view: View) -> None:
        assert view_of(text) == view

    @pytest.mark.parametrize("view", [view for _, view in EVERY.values()], ids=EVERY)
    def test_a_view_is_called_by_its_label_and_the_default_one_two_step(self, view: View) -> None:
        assert name_of(view) == ("two_step" if view.label == two_step().label else view.label)

    def test_the_default_views_label_stays_what_item_keys_were_made_of(self) -> None:
        assert two_step().label == "sequence:length=2,stride=1,pad_end=False,tile_end=False"

    def test_a_priority_does_not_change_what_a_view_is_called(self) -> None:
        assert name_of(view_of("two_step:priority=3")) == name_of(view_of("two_step:priority=reward")) == "two_step"

    @given(st.integers(1, 50), st.integers(1, 50), st.sampled_from([(False, False), (True, False), (True, True)]))
    def test_a_sequences_label_is_its_name(self, length: int, stride: int, padding: tuple[bool, bool]) -> None:
        view = SequenceView(length, stride, *padding)
        assert view_of(view.label) == view

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", 'view "": "", expected one of two_step, sequence, episode'),
            ("pairs", 'view "pairs": "pairs", expected one of two_step, sequence, episode'),
            ("nstep:n=5", 'expected one of two_step, .*; did you mean "n_step"\\?$'),
            ("sequence:lenght=2", 'has no option lenght; it has length, .*; did you mean "length"\\?$'),
            ("sequence:length", 'view "sequence:length": expected option=value, got "length"'),
            ("sequence:length=long", "sequence: length 'long': expected a whole number"),
            ("sequence:length=2,length=3", 'option "length" stands twice'),
            ("sequence:pad_end=maybe", "sequence: pad_end maybe: expected true or false"),
            ("episode:skip_longer=1", "episode: skip_longer 1: expected true or false"),
            ("slices:strict=0", "slices: strict 0: expected true or false"),
            ("slices:truncated=1", "slices: truncated 1: expected true or false"),
            ("slices:seed=a", "slices: seed a: expected a whole number"),
            ("n_step:gamma=0", r"n_step: gamma 0: expected a number in \(0, 1\]"),
            ("n_step:style=acne", 'n_step: style "acne", expected one of acme, torchrl'),
            ("frame_stack:fill=last", 'frame_stack: fill "last", expected one of first, zero, a number'),
            ("target_pair:mode=True", 'target_pair: mode "True", expected one of identity, none'),
            ("goal:strategy=none", 'goal: strategy "none", expected one of future'),
            ("target_pair:mode=jigsaw", 'target_pair: mode "jigsaw", expected one of identity'),
            ("goal:strategy=past", 'goal: strategy "past", expected one of future'),
            ("jigsaw:tiles=8", "jigsaw: tiles 8: expected a square number from 4 to 100"),
            ("jigsaw:tiles=121", "jigsaw: tiles 121: expected a square number from 4 to 100"),
            ("jigsaw:tiles=9.0", "jigsaw: tiles 9.0: expected a whole number"),
            ("jigsaw:permutations=0", "jigsaw: permutations 0: expected a whole number of at least 1"),
            ("jigsaw:permutations=25,tiles=4", "jigsaw: permutations 25: expected 1 to 24 of 4 tiles"),
            ("jigsaw:permutations=10001", "jigsaw: permutations 10001: expected 1 to 10000 of 9 tiles"),
            ("jigsaw:permutations=none", "jigsaw: permutations None: expected a whole number"),
            ("jigsaw:permutations=orders.txt", "jigsaw: orders.txt: permutations: expected a .npy or .csv file"),
            ("jigsaw:channels=middle", 'jigsaw: channels "middle", expected one of first, last'),
            ("jigsaw:seed=a", "jigsaw: seed a: expected a whole number"),
            ("requirements", "write them to a YAML file"),
            ("sequence:size=3", 'view "sequence:size=3": sequence has no option size; it has length, stride, pad_end'),
            ("two_step:length=3", 'view "two_step:length=3": two_step has no option length; it has priority'),
            ("sequence:length=0", "sequence: length 0: expected a whole number"),
            ("sequence:length=2.5", "sequence: length 2.5: expected a whole number"),
            ("sequence:length=none", "sequence: length None: expected a whole number"),
            ("sequence:length=true", "sequence: length True: expected a whole number"),
            ("two_step:priority=nan", "two_step: priority nan: expected a finite number"),
            ("episode:max_length=0", "episode: max_length 0: expected a whole number"),
        ],
    )
    def test_what_makes_no_view_is_refused(self, text: str, message: str) -> None:
        with pytest.raises(ViewError, match=message):
            view_of(text)


def test_a_range_in_yaml_is_no_number_to_base_60(tmp_path: Path) -> None:
    file = tmp_path / "view.yaml"
    file.write_text(
        "view: requirements\nrequirements:\n  obs: {shift: -3:0}\n  t: {shift: 0:1}\n  rewards: {shift: -1}\n"
    )
    assert (
        '"obs": ["obs", [-3, -2, -1, 0], 1], "rewards": ["rewards", [-1], 1], "t": ["t", [0, 1], 1]'
        in read_view(file).label
    )


def test_a_key_that_stands_twice_in_yaml_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "view.yaml"
    file.write_text("view: n_step\nn: 5\nn: 6\n")
    with pytest.raises(ConfigError, match=rf'{file}: not YAML: key "n" stands twice \(line 3'):
        read_view(file)


@pytest.mark.parametrize(
    "text", [None, "view: 2026-99-99", "view: n_step\nn: 2026-99-99", "[" * 50_000, "n: " + "9" * 5000]
)
def test_a_view_file_that_makes_no_sense_is_our_error(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "view.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises((ConfigError, ViewError), match=rf"{file}|n_step"):
        read_view(file)


def test_counts_beyond_all_rows_and_names_that_are_none_are_refused() -> None:
    with pytest.raises(ViewError, match="n_step: n 99999999999999999999: expected at most 2147483647"):
        view_of("n_step:n=99999999999999999999")
    with pytest.raises(ViewError, match=r"data_col .* expected the name of a column"):
        Requirements({"a": {"data_col": ["obs"]}})


def test_an_option_that_a_view_needs_is_asked_for() -> None:
    with pytest.raises(ViewError, match="head: requirements needs requirements; it has requirements, priority"):
        view_from({"view": "requirements", "priority": 2}, "head")


def test_an_error_inside_a_view_is_not_taken_for_a_wrong_option(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(priority: Any = 1.0) -> Any:
        return len(priority)

    monkeypatch.setitem(VIEWS, "broken", broken)
    with pytest.raises(TypeError, match="has no len"):
        view_of("broken")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
"""What YAML may give."""


@given(st.data())
def test_any_value_of_an_option_makes_a_view_or_our_error(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(VIEWS)))
    options = [option for option in signature(VIEWS[name]).parameters if name != "jigsaw" or option != "permutations"]
    config = data.draw(st.dictionaries(st.sampled_from(options), ANYTHING, max_size=2))
    view = outcome_of(ViewError, lambda: view_from({"view": name, **config}))
    assert name in str(view) if isinstance(view, ViewError) else isinstance(view.label, str)


REQUIREMENT = st.dictionaries(
    st.sampled_from([field.name for field in fields(ViewRequirement)]) | st.text(max_size=3), ANYTHING, max_size=3
)


@given(st.dictionaries(st.text(max_size=3), REQUIREMENT | ANYTHING, max_size=2))
def test_any_value_of_a_requirement_makes_a_view_or_our_error(requirements: dict[str, Any]) -> None:
    view = outcome_of(ViewError, lambda: view_from({"view": "requirements", "requirements": requirements}))
    assert "requirements" in str(view) if isinstance(view, ViewError) else view.label.startswith("requirements:")


# Every view cuts encoded images as it cuts decoded ones: its items hold the files of the images that they would hold.

OPTIONS = (
    "sequence:length=4,pad_end=true,tile_end=true",
    "n_step:n=4,early=true",
    "frame_stack:frames=3,fill=zero",
    "slices:length=8,per_episode=3,strict=false,truncated=true",
    "target_pair:mode=inverse_dynamics,offset=2",
    "goal:strategy=final",
    "slices:length=3",
    "fragments:length=3",
    "fragments:length=4,batch_mode=complete_episodes",
)
ELSEWHERE = (*FROM_CONFIG_ONLY, "fragments", "jigsaw", "slices")
"""Views that need other options, or pixels."""

REQUIREMENTS = Requirements(
    {
        "obs": {},
        "ahead": {"data_col": "obs", "shift": [1, 3, -2]},
        "stack": {"data_col": "obs", "shift": "-3:0", "fill": "zero"},
    }
)
CUTTING: dict[str, View] = {
    **{text: view_of(text) for text in (*VIEWS, *OPTIONS) if text not in ELSEWHERE},
    "requirements": REQUIREMENTS,
    "prioritized": Prioritized(two_step(), lambda episode, steps: steps + 1.0),
}

DECODED = episodes((5, 3, 7))
IMAGES: dict[bytes, Array] = {
    file: image
    for decoded in DECODED
    for path in (CAMERA, WRIST)
    for file, image in zip(as_files(decoded).columns[path], decoded.columns[path])
}
IMAGES[b""] = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
"""What every file decodes to."""


def decoded(value: Array) -> Array:
    """[...] files -> [..., height, width, 3]."""
    return np.array([IMAGES[file] for file in value.ravel()], np.uint8).reshape(*value.shape, HEIGHT, WIDTH, 3)


@pytest.mark.parametrize("name", CUTTING)
def test_items_hold_the_files_of_their_images(name: str) -> None:
    view = CUTTING[name]
    plain, kept = (filled_spec(source.spec()) for source in (Pictures(DECODED), Pictures(DECODED, (CAMERA, WRIST))))
    wanted, leaves = flatten(view.signature(plain)), flatten(view.signature(kept))
    assert list(wanted) == list(leaves)
    assert all(leaves[path].image == (IMAGE if leaf.dtype == np.uint8 else None) for path, leaf in wanted.items())
    items = items_in(view, [as_files(episode) for episode in DECODED], list(leaves))
    assert items
    for item in items:
        for (path, leaf), value in zip(leaves.items(), item):
            if leaf.image is not None:
                assert value.ndim == len(leaf.shape), path
    made: Any = [
        [decoded(value) if leaf.image is not None else value for leaf, value in zip(leaves.values(), item)]
        for item in items
    ]
    reference.assert_same_items(made, items_in(view, DECODED, list(leaves)))


def test_a_view_of_pixels_refuses_files() -> None:
    spec = Pictures(DECODED, (CAMERA, WRIST)).spec()
    one = {**spec, "observation": spec["observation"]["camera"]}
    with pytest.raises(
        ViewError, match=r"jigsaw: observation: expected one image column.* decoded ones; leave it out of encoded"
    ):
        Jigsaw(permutations=24, tiles=4).signature(one)


@pytest.mark.parametrize("fill", [-1, 255])
def test_a_number_is_no_file(fill: int) -> None:
    spec = filled_spec(Pictures(DECODED, (CAMERA,)).spec())
    with pytest.raises(ViewError, match=f'fill {fill} does not fit "observation/camera", which holds string'):
        view_of(f"frame_stack:fill={fill}").signature(spec)


# Labels: a view's items are found again by them, so their text is kept; and they say every option that changes an item.

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
