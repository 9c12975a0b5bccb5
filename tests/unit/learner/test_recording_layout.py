"""Steps are taken apart by what was learnt of the first one; `specs.flatten` is the oracle."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import ConfigError, SpecError
from rlds2reverb.learner.recording import StepLayout
from rlds2reverb.specs import flatten, map_leaves

Pair = namedtuple("Pair", ["right", "left"])

leaves = st.integers(0, 99) | st.text("ab", max_size=2)
nests = st.recursive(
    leaves,
    lambda inner: (
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
        | st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=8,
)
steps = st.dictionaries(st.sampled_from(["observation", "action", "reward"]), nests, min_size=1)


def changed(nest: Any) -> Any:
    """A nest of the same kind with other leaves."""
    return map_leaves(lambda leaf: f"{leaf}!", nest)


@given(steps)
def test_values_are_those_of_flatten(step: Any) -> None:
    if not flatten(step):
        with pytest.raises(ConfigError, match="got none"):
            StepLayout(step)
        return
    layout = StepLayout(step)
    for one in (step, changed(step)):
        assert dict(zip(layout.paths, layout.values(one), strict=True)) == flatten(one)
        assert list(layout.paths) == list(flatten(one))


@given(steps, steps)
def test_a_step_of_other_columns_is_refused_by_name(step: Any, other: Any) -> None:
    if not flatten(step) or set(flatten(step)) == set(flatten(other)):
        return
    layout = StepLayout(step)
    if set(step) == set(other) and all(not isinstance(child, (dict, list, tuple)) for child in step.values()):
        return  # told by the column, which gets a container for a value
    differing = set(flatten(step)) ^ set(flatten(other))
    with pytest.raises(ConfigError, match="differs from the first one") as caught:
        layout.values(other)
    assert all(f'"{path}"' in str(caught.value) for path in differing)


@pytest.mark.parametrize("step", [None, 3, [1, 2], np.zeros(3)], ids=str)
def test_what_is_no_dict_is_refused(step: Any) -> None:
    with pytest.raises(ConfigError, match="expected a dict of the step's fields"):
        StepLayout(step)
    with pytest.raises(ConfigError, match="expected a dict of the step's fields"):
        StepLayout({"a": {"b": 1}}).values(step)


def test_other_containers_of_the_same_paths_are_refused() -> None:
    with pytest.raises(ConfigError, match="nested in another way"):
        StepLayout({"a": [1, 2]}).values({"a": {"0": 1, "1": 2}})


def test_a_name_with_a_slash_that_is_another_columns_path_is_refused() -> None:
    with pytest.raises(SpecError, match='two columns are both named "a/b"'):
        StepLayout({"a": {"b": 1}, "a/b": 2})
