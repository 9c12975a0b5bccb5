"""The shipped transforms of Open X-Embodiment's sets: what a slow reference makes of drawn episodes, and what OpenVLA's own transforms made of them."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.transform import Transform, shipped_transforms, transform_of
from rlds2reverb.formats.transformed import transformed
from rlds2reverb.specs import flatten
from tests.support.open_x_sets import OPENVLA_NAMES, SETS, episode, recorded, standardised
from tests.support.project import ROOT

FACTS = json.loads((ROOT / "tests/data/open_x/openvla.json").read_text())
PREFIX = "observation/image_"


def apply(name: str, raw: Episode) -> dict[str, Any]:
    source = transformed(EpisodeList([raw], name), transform_of(f"open_x/{name}"))
    (made,) = source
    assert made.faults == ()
    assert made.columns.keys() == flatten(source.spec()).keys()
    assert (made.columns["is_first"][0], made.columns["is_last"][-1]) == (True, True)
    return dict(made.columns)


def test_every_set_has_its_transform() -> None:
    assert {name.removeprefix("open_x/") for name in shipped_transforms()} == SETS.keys() == FACTS.keys()


@pytest.mark.parametrize("name", SETS)
@given(rows=st.integers(3, 9), seed=st.integers(0, 99))
def test_a_set_becomes_what_the_reference_makes_of_it(name: str, rows: int, seed: int) -> None:
    columns, wanted = recorded(name, rows, seed), standardised(name, recorded(name, rows, seed))
    made = apply(name, episode(name, rows, seed))
    np.testing.assert_allclose(made["action"], np.array(wanted["action"]), atol=1e-5)  # an arc sine of float32
    np.testing.assert_allclose(made["observation/proprio"], np.array(wanted["proprio"]), atol=1e-6)
    assert made["action"].dtype == made["observation/proprio"].dtype == np.float32
    kept = slice(wanted["kept"].start, wanted["kept"].stop)
    assert {path.removeprefix(PREFIX) for path in made if path.startswith(PREFIX)} == wanted["images"].keys()
    images = {camera: columns[f"observation/{path}"][kept] for camera, path in wanted["images"].items()}
    if name == "droid" and not np.array_equal(made[f"{PREFIX}primary"], images["primary"]):
        images["primary"], images["secondary"] = images["secondary"], images["primary"]
    for camera, pixels in images.items():
        np.testing.assert_array_equal(made[PREFIX + camera], pixels)
    if name == "droid":
        choices = [columns[f"language_instruction{suffix}"].tolist() for suffix in ("", "_2", "_3")]
        assert made["language_instruction"].tolist() in choices
    else:
        assert made["language_instruction"].tolist() == wanted["instruction"]


@pytest.mark.parametrize("name", SETS)
def test_openvla_made_the_same(name: str) -> None:
    facts, made = FACTS[name], apply(name, episode(name))
    np.testing.assert_allclose(made["action"], np.array(facts["action"], np.float32), atol=2e-6)
    np.testing.assert_array_equal(made["observation/proprio"], np.array(facts["proprio"], np.float32))
    images = {path.removeprefix(PREFIX): int(made[path].sum()) for path in made if path.startswith(PREFIX)}
    if name == "droid":  # which outer camera is first, and which instruction is taken, each system draws for itself
        assert sorted(images.values()) == sorted(facts["images"].values())
    else:
        assert images == facts["images"]
        assert [text.decode() for text in made["language_instruction"]] == facts["instruction"]


def test_the_cameras_of_droid_are_drawn_for_each_episode_and_always_alike() -> None:
    primary = [recorded("droid", 3, seed)["observation/exterior_image_1_left"] for seed in range(40)]
    draws = [apply("droid", episode("droid", 3, seed))[f"{PREFIX}primary"] for seed in range(40)]
    swapped = [not np.array_equal(image, draw) for image, draw in zip(primary, draws)]
    assert 10 < sum(swapped) < 30
    again = [apply("droid", episode("droid", 3, seed))[f"{PREFIX}primary"] for seed in range(40)]
    np.testing.assert_array_equal(draws, again)


def test_names_of_tfds_and_of_openvla_are_understood() -> None:
    for name, theirs in {**OPENVLA_NAMES, "bridge_orig": "bridge_dataset", "bridge_oxe": "bridge"}.items():
        assert transform_of(f"open_x/{theirs}") == transform_of(f"open_x/{name}")
    assert transform_of("open_x/libero_10_no_noops") == transform_of("open_x/libero")


def test_a_set_that_there_is_not_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r'"open_x/brige_orig": no file, and no .*; did you mean "open_x/bridge_orig"'
    ):
        transform_of("open_x/brige_orig")


@pytest.mark.parametrize("name", SETS)
def test_the_page_says_what_the_file_does(name: str) -> None:
    made = transform_of(f"open_x/{name}").make
    action, proprio = (
        re.sub("(?:action|action_dict|observation|clip_function_input)/", "", made.get(path, "as recorded"))
        for path in ("action", "observation/proprio")
    )
    page = (ROOT / "docs/open_x.md").read_text()
    assert f"| `{name}` | {action if action == 'as recorded' else f'`{action}`'} | `{proprio}` |" in page


def test_more_may_be_asked_for_beside_a_set() -> None:
    both = transform_of(["open_x/toto", "resize=observation/image_primary:8x8"])
    assert both == Transform(
        **{**transform_of("open_x/toto").as_dict(), "resize": {"observation/image_primary": "8x8"}}
    )
    source = transformed(EpisodeList([episode("toto")], "toto"), both)
    assert flatten(source.spec())[f"{PREFIX}primary"].shape == (8, 8, 3)


def test_a_column_of_another_shape_or_that_is_missing_is_refused_before_an_episode_is_read() -> None:
    raw = episode("bridge_orig")
    fewer = raw.with_only_columns({path: column for path, column in raw.columns.items() if path != "observation/state"})
    narrow = raw.with_columns(action=raw.columns["action"][:, 0])
    for bad, message in (
        (fewer, '"observation/state" is no column of the steps; there are '),
        (narrow, r"action\[-1\]: expected at least 1 .* got float32\[\]"),
    ):
        with pytest.raises(ConfigError, match=f"transform: make: .*{message}"):
            transformed(EpisodeList([bad], "b"), transform_of("open_x/bridge_orig")).spec()
