"""What all views share."""

from __future__ import annotations

import doctest
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest

from rlds2reverb import views
from rlds2reverb.errors import ViewError
from rlds2reverb.views import trajectory as sequence
from rlds2reverb.views.base import check_options, need, propose_names, renaming


@pytest.mark.parametrize(
    ("priority", "counts", "message"),
    [
        (1.0, {"length": 0}, "v: length 0: expected a whole number of at least 1"),
        (1.0, {"length": 2, "stride": -1}, "v: stride -1: expected"),
        (1.0, {"length": 2.0}, "v: length 2.0: expected"),
        (1.0, {"length": True}, "v: length True: expected"),
        (1.0, {"length": None}, "v: length None: expected"),
        (-0.5, {}, "v: priority -0.5: expected a finite number of at least 0"),
        (float("nan"), {}, "v: priority nan: expected"),
        (float("inf"), {}, "v: priority inf: expected"),
        (None, {}, "v: priority None: expected"),
        (True, {}, "v: priority True: expected"),
        ("1", {}, "v: priority 1: expected"),
    ],
)
def test_options_that_make_no_sense_are_refused(priority: Any, counts: dict[str, Any], message: str) -> None:
    with pytest.raises(ViewError, match=message):
        check_options("v", priority, **counts)


def test_plain_and_numpy_numbers_are_options() -> None:
    check_options("v", 0, length=1, stride=cast(Any, np.int64(3)))
    check_options("v", cast(Any, np.float32(0.5)))


@pytest.mark.parametrize("module", [sequence, views], ids=lambda module: module.__name__)
def test_the_examples_of_the_docstrings_run(module: ModuleType) -> None:
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0


OF_OPENPI = {  # what its scripts for LIBERO and DROID call their features -> new names
    ("actions", "image", "wrist_image", "state", "timestamp", "is_first"): {
        "actions": "action",
        "image": "observation/image",
        "wrist_image": "observation/wrist_image",
        "state": "observation/state",
    },
    ("actions", "joint_position", "gripper_position", "task", "next.success"): {
        "actions": "action",
        "joint_position": "observation/joint_position",
        "gripper_position": "observation/gripper_position",
    },
}
NAMED = {
    **OF_OPENPI,
    ("act", "obs", "state"): {"act": "action", "obs": "observation"},
    ("actions", "observation"): {"actions": "action"},
    ("action", "state"): {"state": "observation/state"},
    ("action", "observation", "actions"): {},
    ("actions", "timestamp"): {},
    ("state", "torque"): {},
    ("actions", "a:b"): {},
}


@pytest.mark.parametrize(("fields", "names"), NAMED.items())
def test_other_names_of_observations_and_actions_are_proposed(fields: tuple[str, ...], names: dict[str, str]) -> None:
    assert propose_names(fields) == names


def test_the_proposal_stands_in_the_error_as_a_command_line_takes_it() -> None:
    text = "rename=actions:action,state:observation/state"
    with pytest.raises(ViewError, match=f"; if these are their other names, add --transform {text}$"):
        need("v", {"actions": {}, "state": {}}, "observation", "action")
    assert text == renaming({"actions": "action", "state": "observation/state"})
