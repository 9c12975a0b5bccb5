"""`convert_rlds_to_trajectories` and `create_trajectory_data_spec` give what TF-Agents gives, and the right thing where it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlds2reverb.tf_agents.step_stream import MESSAGES
from tests.support.raising import outcome_of

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_agents")

from tf_agents.replay_buffers import rlds_to_reverb as theirs

from rlds2reverb import convert_rlds_to_trajectories, create_trajectory_data_spec
from rlds2reverb.tf_agents import conversion
from tests.support import reference
from tests.support.profiles import scaled
from tests.support.rlds_data import dataset, episode

SPECS: dict[str, dict[str, Any]] = {
    "flat": {"observation": ("float32", (3,)), "action": ("int64", ())},
    "text": {"observation": ("O", (2,)), "action": ("O", ()), "reward": ("float64", (2,))},
    "nested": {
        "observation": {"b": ("uint8", (2, 2)), "a": ("float32", ())},
        "action": [("int64", ()), ("float32", (2,))],
    },
}
TF_AGENTS = theirs.convert_rlds_to_trajectories
BLOCK = conversion._BLOCK_STEPS
Lengths = list[tuple[int, bool]]
LENGTHS = st.lists(st.tuples(st.integers(1, 8), st.booleans()), max_size=4)
Row = list[Any]


def pair_info(current: Any, following: Any) -> Any:
    """A policy_info that tells what the function saw; the same in TensorFlow and numpy."""
    return {"delta": following["observation"] - current["observation"], "last": following["is_last"]}


def nested_info(current: Any, following: Any) -> Any:
    return (current["observation"]["b"], following["is_first"], following["action"][1])


def make(lengths: Lengths, spec: str = "flat", seed: int = 3) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [episode(rng, rows, terminal, **SPECS[spec]) for rows, terminal in lengths]


def rows_of(trajectories: Any) -> list[Row]:
    return [[array(leaf) for leaf in reference.leaves(row)] for row in trajectories.as_numpy_iterator()]


def array(leaf: Any) -> Any:
    return np.array(leaf, object if isinstance(leaf, bytes) else None)


def expected(episodes: list[Any], function: Any = None) -> list[Row]:
    steps = [step for columns in episodes for step in reference.steps_of(columns)]
    return reference.trajectories(steps, function)


class Conversions:
    """Conversions of one dataset whose episodes are replaced: to build one takes a hundred times as long as to use it."""

    def __init__(self, spec: str) -> None:
        self._episodes: list[Any] = []
        self.rlds = dataset(self._episodes, make([(2, True)], spec)[0])
        self._built: dict[Any, Any] = {}

    def __call__(
        self, episodes: list[Any], function: Any = None, convert: Callable[..., Any] | None = None, **options: Any
    ) -> Any:
        """The converted dataset of these episodes; by our function, unless another is given."""
        self._episodes[:] = episodes
        key = (function, convert, *options.items())
        if key not in self._built:
            self._built[key] = (convert or convert_rlds_to_trajectories)(self.rlds, function, **options)
        return self._built[key]


@pytest.fixture(scope="module")
def conversions() -> Iterator[dict[str, Conversions]]:
    made = {spec: Conversions(spec) for spec in SPECS}
    yield made
    made.clear()


# Element by element.


@pytest.mark.parametrize(("spec", "function"), [("flat", None), ("flat", pair_info), ("text", None)])
@settings(max_examples=4)
@given(lengths=LENGTHS, seed=st.integers(0, 9))
@example([(3, True), (1, False), (1, True), (2, False)], 0)
def test_every_trajectory_is_that_of_tf_agents(
    conversions: dict[str, Conversions], spec: str, function: Any, lengths: Lengths, seed: int
) -> None:
    episodes = make(lengths, spec, seed)
    ours, others = (conversions[spec](episodes, function, convert) for convert in (None, TF_AGENTS))
    reference.assert_same_items(rows_of(ours), rows_of(others))


@pytest.mark.parametrize(
    ("spec", "function"), [("flat", pair_info), ("text", None), ("nested", None), ("nested", nested_info)]
)
@settings(max_examples=scaled(12))
@given(lengths=LENGTHS, seed=st.integers(0, 9))
@example([(1, True)], 0)
def test_every_trajectory_is_that_of_the_reference(
    conversions: dict[str, Conversions], spec: str, function: Any, lengths: Lengths, seed: int
) -> None:
    episodes = make(lengths, spec, seed)
    reference.assert_same_items(rows_of(conversions[spec](episodes, function)), expected(episodes, function))


@settings(max_examples=scaled(20))
@given(lengths=LENGTHS, batch=st.sampled_from([1, 3, 5000]))
@example([(5, True), (4, False)], 3)
def test_batches_hold_the_same_trajectories(conversions: dict[str, Conversions], lengths: Lengths, batch: int) -> None:
    episodes = make(lengths)
    batches = [
        reference.leaves(converted) for converted in conversions["flat"](episodes, batch_size=batch).as_numpy_iterator()
    ]
    steps = sum(rows for rows, _ in lengths)
    assert [len(columns[0]) for columns in batches] == [min(batch, steps - at) for at in range(0, steps, batch)]
    found = [list(row) for columns in batches for row in zip(*columns)]
    assert [[array(leaf).tolist() for leaf in row] for row in found] == [
        [leaf.tolist() for leaf in row] for row in expected(episodes)
    ]


def test_batches_have_the_dtypes_of_the_spec(conversions: dict[str, Conversions]) -> None:
    (batch,) = conversions["flat"](make([(5, True)]), batch_size=5000)
    spec = create_trajectory_data_spec(conversions["flat"].rlds)
    for leaf, wanted in zip(tf.nest.flatten(batch), tf.nest.flatten(spec), strict=True):
        assert (leaf.dtype, leaf.shape) == (wanted.dtype, (5, *wanted.shape))


@pytest.mark.parametrize(
    "lengths",
    [[BLOCK - 1], [BLOCK], [BLOCK + 1], [2 * BLOCK, 1], [BLOCK - 3, 3, 2], [BLOCK - 1, 1, 1], [BLOCK - 1, 2, BLOCK]],
    ids=lambda lengths: "+".join(map(str, lengths)),
)
def test_where_a_block_ends_does_not_show(conversions: dict[str, Conversions], lengths: list[int]) -> None:
    episodes = make([(rows, True) for rows in lengths])
    reference.assert_same_items(rows_of(conversions["flat"](episodes, pair_info)), expected(episodes, pair_info))


def test_episodes_without_steps_are_passed_over(conversions: dict[str, Conversions]) -> None:
    first, second = make([(3, True), (2, False)])
    empty = {name: column[:0] for name, column in first.items()}
    found = rows_of(conversions["flat"]([empty, first, empty, second, empty], pair_info))
    reference.assert_same_items(found, expected([first, second], pair_info))


# Columns without values. TensorFlow's own `unbatch` ends the process there.


@st.composite
def hollow_specs(draw: st.DrawFn) -> dict[str, Any]:
    """Specs of observation, action and reward, one of them at least without values."""
    dtypes = draw(st.permutations(["float32", "O", "int64", "bool"]))
    shapes = draw(
        st.lists(st.lists(st.sampled_from([0, 1, 3]), max_size=2).map(tuple), min_size=3, max_size=3).filter(
            lambda shapes: any(0 in shape for shape in shapes)
        )
    )
    return dict(zip(("observation", "action", "reward"), zip(dtypes, shapes)))


@settings(max_examples=4)
@given(spec=hollow_specs(), lengths=LENGTHS)
@example({"observation": ("float32", (0,))}, [(3, True)])
@example(
    {"observation": ("O", (0, 3)), "action": ("float32", (3, 0)), "reward": ("float64", (0,))}, [(2, True), (1, False)]
)
def test_columns_without_values_are_converted_as_by_tf_agents(spec: dict[str, Any], lengths: Lengths) -> None:
    rng = np.random.default_rng(len(lengths))
    episodes = [episode(rng, rows, terminal, **spec) for rows, terminal in lengths]
    rlds = dataset(episodes, episode(rng, 2, **spec))
    ours, others = convert_rlds_to_trajectories(rlds), TF_AGENTS(rlds)
    assert ours.element_spec == others.element_spec
    reference.assert_same_items(rows_of(ours), rows_of(others))
    assert create_trajectory_data_spec(rlds) == theirs.create_trajectory_data_spec(rlds)


def test_nested_columns_and_policy_info_without_values_are_converted() -> None:
    spec: dict[str, Any] = {
        "observation": {"none": ("float32", (2, 0)), "some": ("O", (2,))},
        "action": [("int64", (0,)), ("bool", ())],
    }
    rng = np.random.default_rng(1)
    episodes = [episode(rng, 3, **spec), episode(rng, 1, **spec)]

    def info(current: Any, following: Any) -> Any:
        return {"none": following["action"][0], "some": current["reward"]}

    rows = rows_of(convert_rlds_to_trajectories(dataset(episodes), info))
    reference.assert_same_items(rows, expected(episodes, info))


# Mistakes.


FLAGS = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=4)


@settings(max_examples=scaled(20))
@given(flags=FLAGS)
def test_random_flags_give_the_error_of_tf_agents(
    conversions: dict[str, Conversions], flags: list[tuple[bool, bool, bool]]
) -> None:
    episodes = make([(2, True), (len(flags), False)])
    first, last, terminal = (np.array(flag) for flag in zip(*flags))
    episodes[1].update(is_first=first, is_last=last, is_terminal=terminal)
    found: list[Any] = []
    for convert in (None, TF_AGENTS):
        try:
            found.append(rows_of(conversions["flat"](episodes, convert=convert)))
        except tf.errors.InvalidArgumentError as error:
            found.append([text for text in MESSAGES if text in str(error)])
    wanted = outcome_of(ValueError, lambda: expected(episodes))
    if isinstance(wanted, ValueError):
        assert found == [[str(wanted)]] * 2
    else:
        reference.assert_same_items(found[0], wanted)
        reference.assert_same_items(found[1], wanted)


@pytest.mark.parametrize("at", [BLOCK - 2, BLOCK - 1, BLOCK])
def test_a_mistake_at_the_border_of_two_blocks_is_found(conversions: dict[str, Conversions], at: int) -> None:
    (columns,) = make([(BLOCK + 3, True)])
    columns["is_first"] = columns["is_first"] | (np.arange(BLOCK + 3) == at)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Mid step should not be followed by a first step"):
        rows_of(conversions["flat"]([columns]))


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32"])
def test_a_discount_of_another_dtype_is_a_type_error_as_in_tf_agents(dtype: str) -> None:
    (columns,) = make([(2, True)])
    rlds = dataset([{**columns, "discount": columns["discount"].astype(dtype)}])
    with pytest.raises(TypeError):
        TF_AGENTS(rlds)
    with pytest.raises(TypeError, match=f"expected float32, .* got {dtype}"):
        convert_rlds_to_trajectories(rlds)


# An ordinary dataset.


def test_the_result_can_be_iterated_mapped_shuffled_and_repeated(conversions: dict[str, Conversions]) -> None:
    trajectories = conversions["flat"](make([(5, True), (3, False)]))
    assert len(rows_of(trajectories)) == len(rows_of(trajectories)) == 8
    rewards = trajectories.map(lambda row: row.reward).repeat(2).shuffle(16, seed=1).batch(4)
    found = np.concatenate(list(rewards.as_numpy_iterator()))
    wanted = [row[-2] for row in rows_of(trajectories)] * 2
    assert sorted(found.tolist()) == sorted(float(reward) for reward in wanted)


def test_nothing_is_read_before_the_first_trajectory_is_asked_for() -> None:
    episodes = make([(2, True)])
    read = []

    class Counted:
        def __iter__(self) -> Any:
            read.append(1)
            return iter(episodes)

    trajectories = convert_rlds_to_trajectories(dataset(Counted(), like=episodes[0]), pair_info)
    assert read == []
    assert len(rows_of(trajectories)) == 2
    assert read == [1]


def test_it_can_be_part_of_another_pipeline() -> None:
    """Inside a `flat_map`, so in the graph, one dataset of trajectories an episode."""
    episodes = make([(3, True), (4, False)])
    inner = dataset(episodes).flat_map(lambda one: convert_rlds_to_trajectories(tf.data.Dataset.from_tensors(one)))
    reference.assert_same_items(rows_of(inner), expected(episodes))


# What the steps may hold beside the seven fields.


def test_extra_features_are_left_out_but_reach_the_function_as_in_tf_agents() -> None:
    episodes = make([(3, True), (2, False)])
    for columns in episodes:
        columns["extra"] = np.arange(len(columns["reward"]), dtype=np.int16)
        columns["words"] = np.array([b"w%d" % n for n in range(len(columns["reward"]))], object)

    def info(current: Any, following: Any) -> Any:
        return {"here": current["extra"], "there": following["extra"], "words": following["words"]}

    rlds = dataset(episodes)
    ours = convert_rlds_to_trajectories(rlds, info)
    reference.assert_same_items(rows_of(ours), rows_of(TF_AGENTS(rlds, info)))
    assert not hasattr(next(iter(ours)), "extra")


def test_the_function_may_give_plain_numbers() -> None:
    rlds = dataset(make([(2, True)]))
    rows = list(convert_rlds_to_trajectories(rlds, lambda *_: (np.float32(2.5), 7)).as_numpy_iterator())
    assert [row.policy_info for row in rows] == [(2.5, 7), (2.5, 7)]


@pytest.mark.parametrize("size", [3, 0])
def test_steps_of_unknown_sizes_are_converted(size: int) -> None:
    """TF-Agents fails at the padding step here, whose unknown sizes it takes for 1."""
    rng = np.random.default_rng(3)
    episodes = [episode(rng, rows, observation=("float32", (size,))) for rows in (3, 2)]

    def loose(step: Any) -> Any:
        value = tf.numpy_function(lambda value: value, [step["observation"]], tf.float32)
        return {**step, "observation": tf.ensure_shape(value, [None])}

    rlds = dataset(episodes).map(lambda one: {"steps": one["steps"].map(loose)})
    assert create_trajectory_data_spec(rlds).observation.shape.as_list() == [None]
    reference.assert_same_items(rows_of(convert_rlds_to_trajectories(rlds)), expected(episodes))


# The spec.


@pytest.mark.parametrize("spec", SPECS)
def test_the_spec_is_that_of_tf_agents(conversions: dict[str, Conversions], spec: str) -> None:
    rlds = conversions[spec].rlds
    ours, wanted = create_trajectory_data_spec(rlds), theirs.create_trajectory_data_spec(rlds)
    assert ours == wanted
    assert repr(ours) == repr(wanted)  # names and bounds, too


@pytest.mark.parametrize(("spec", "function"), [("flat", None), ("flat", pair_info), ("nested", nested_info)])
def test_the_elements_have_the_spec(conversions: dict[str, Conversions], spec: str, function: Any) -> None:
    wanted = create_trajectory_data_spec(conversions[spec].rlds, function)
    found = conversions[spec]([], function).element_spec
    tf.nest.assert_same_structure(found, wanted)
    for leaf, other in zip(tf.nest.flatten(found), tf.nest.flatten(wanted), strict=True):
        assert (leaf.shape, leaf.dtype) == (other.shape, other.dtype)


def test_the_spec_can_have_policy_info(conversions: dict[str, Conversions]) -> None:
    info = create_trajectory_data_spec(conversions["flat"].rlds, pair_info).policy_info
    assert (info["delta"].shape, info["delta"].dtype) == ((3,), tf.float32)
    assert info["last"].dtype == tf.bool


@pytest.mark.parametrize("function", [create_trajectory_data_spec, convert_rlds_to_trajectories])
def test_data_that_is_not_rlds_is_refused_with_the_text_of_tf_agents(function: Callable[..., Any]) -> None:
    for rlds in (
        tf.data.Dataset.from_tensors({"episodes": 1}),
        dataset([{"observation": np.zeros(2), "is_first": np.ones(2, bool)}]),
    ):
        texts = []
        for convert in (function, getattr(theirs, function.__name__)):
            with pytest.raises(ValueError) as caught:
                convert(rlds)
            texts.append(str(caught.value))
        assert texts[0] == texts[1]
