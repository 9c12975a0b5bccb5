"""Buffers that TorchRL wrote are read as TorchRL itself loads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlds2reverb.episode import Episode
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.source import Source
from tests.support.formats import ted as ted_data

FORMS = ("memmap", "flat", "nested", "h5")
FILLS = ("part", "full", "ring", "columns_part", "columns_ring")
BOTH = pytest.mark.parametrize("version", ted_data.VERSIONS)


def opened(version: str, name: str, options: str = "") -> Source:
    return open_source(f"ted:{ted_data.folder(version) / name}{options}")


def codes(source: Any) -> set[str]:
    return {notice.code for notice in source.notices}


def by_id(source: Source) -> list[Episode]:
    return sorted(source, key=lambda one: (int(one.metadata["trajectory_id"]), len(one)))


def check(found: Episode, wanted: dict[str, Any]) -> None:
    assert not found.faults
    assert found.metadata["trajectory_id"] == wanted.pop("trajectory_id")
    for path, column in wanted.items():
        here = found.columns[path]
        if path == "observation/brain":
            assert here.dtype.name == "bfloat16"
            here = here.astype(np.float32)
        assert here.dtype == column.dtype, path
        np.testing.assert_array_equal(here, column, path)
    assert set(found.columns) == {*wanted, "discount", "is_first", "is_last"}


@BOTH
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_as_torchrl_holds_it(version: str, fill: str, form: str) -> None:
    reference = ted_data.expected(ted_data.VERSIONS[0], f"{fill}_{'h5' if form == 'h5' else 'memmap'}")
    if fill == "columns_part" and form in ("flat", "nested", "h5"):
        reference["start"], reference["stop"] = (
            ted_data.expected(ted_data.VERSIONS[0], f"{fill}_memmap")[key] for key in ("start", "stop")
        )
    wanted = ted_data.trajectories(reference)
    source = opened(version, f"{fill}_{form}")
    found = by_id(source)
    assert source.episode_count == len(found) == len(wanted)
    for episode, other in zip(found, wanted):
        check(episode, other)
    told = {"cut_start"} if "ring" in fill else set()
    assert codes(source) == told | ({"no_end"} if fill in ("full", "ring", "columns_ring") else set())


@BOTH
@pytest.mark.parametrize("form", FORMS)
def test_end_flags_part_what_has_no_ids(version: str, form: str) -> None:
    by_ids = [episode.columns for episode in opened(version, f"ring_{form}")]
    by_flags = [episode.columns for episode in opened(version, f"by_done_{form}")]
    assert [trajectory["action"].tolist() for trajectory in by_ids] == [flag["action"].tolist() for flag in by_flags]


@BOTH
@pytest.mark.parametrize("form", FORMS)
def test_incomplete_trajectories_are_left_out_on_request(version: str, form: str) -> None:
    whole = list(opened(version, f"ring_{form}"))
    kept = list(opened(version, f"ring_{form}", "?incomplete=drop"))
    assert [episode.columns["action"].tolist() for episode in kept] == [
        episode.columns["action"].tolist() for episode in whole[1:-1]
    ]


@BOTH
@pytest.mark.parametrize("form", ["memmap", "flat", "nested"])
def test_every_step_is_an_episode_on_request(version: str, form: str) -> None:
    steps = list(opened(version, f"ring_{form}", "?trajectories=rows"))
    assert len(steps) == 10
    assert {len(step) for step in steps} == {2}
    whole = np.concatenate([episode.columns["reward"][:-1] for episode in opened(version, f"ring_{form}")])
    np.testing.assert_array_equal([step.columns["reward"][0] for step in steps], whole)


@BOTH
def test_the_storage_folder_finds_its_writer_and_a_cursor_can_be_told(version: str) -> None:
    whole = [episode.columns["action"].tolist() for episode in opened(version, "ring_memmap")]
    assert [episode.columns["action"].tolist() for episode in opened(version, "ring_memmap/storage")] == whole
    assert [episode.columns["action"].tolist() for episode in opened(version, "ring_memmap", "?cursor=4")] == whole
    assert [episode.columns["action"].tolist() for episode in opened(version, "ring_memmap", "?cursor=0")] != whole
    with pytest.raises(SourceError, match="write cursor 11: expected at most 10"):
        opened(version, "ring_memmap", "?cursor=11")


@BOTH
def test_multi_step_is_told(version: str) -> None:
    source = opened(version, "multi_step")
    assert "next_differs" in codes(source)
    assert all(episode.faults for episode in opened(version, "multi_step", "?next=check"))
    assert not any(episode.faults for episode in opened(version, "ring_memmap", "?next=check"))
    kept = next(iter(opened(version, "multi_step", "?next=keep")))
    held = ted_data.expected(version, "multi_step")
    np.testing.assert_array_equal(
        kept.columns["next/observation/state"][:-1], held["next/observation/state"][: len(kept) - 1]
    )
    np.testing.assert_array_equal(kept.columns["gamma"][:-1], held["gamma"][: len(kept) - 1])


@BOTH
def test_items_that_are_trajectories_are_read_as_such(version: str) -> None:
    lengths = [len(episode) - 1 for episode in opened(version, "items")]
    assert lengths == [6, 6, 4, 2]
    assert [len(episode) - 1 for episode in opened(version, "items", "?items=steps")] == [1] * 18  # an id for each item


@BOTH
def test_a_mask_says_how_long_padded_trajectories_are(version: str) -> None:
    assert [len(episode) - 1 for episode in opened(version, "padded")] == [5, 3]


@BOTH
def test_values_that_are_no_tensors(version: str) -> None:
    first = next(iter(opened(version, "plain")))
    assert first.columns["said"].tolist() == ["step 0 ü".encode(), "step 1 ü".encode(), "step 2 ü".encode(), b""]
    assert first.metadata["robot"] == b"arm"
    assert first.metadata["trajectory_id"] == 0


@BOTH
def test_the_best_steps_stand_in_no_order(version: str) -> None:
    with pytest.raises(SourceError, match=r"MaxValueWriter.*trajectories=rows"):
        opened(version, "best")
    assert len(list(opened(version, "best", "?trajectories=rows"))) == 5


@BOTH
def test_a_pytree_is_read_once_its_leaves_are_named(version: str) -> None:
    with pytest.raises(SourceError, match="nothing says where trajectories end"):
        opened(version, "pytree")
    names = "?observation=0,action=1,reward=2.r,done=2.d.0,next_observation=2.d.1,done_means=terminal"
    found = list(opened(version, "pytree", names))
    wanted = list(opened(version, "part_memmap"))
    for episode, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(episode.columns["observation"], other.columns["observation/state"])
        for path in ("action", "reward"):
            np.testing.assert_array_equal(episode.columns[path], other.columns[path])
    assert found[0].columns["is_terminal"].tolist() == [False, False, False, True]


def test_an_ensemble_is_read_buffer_by_buffer() -> None:
    version = "v0.14.1"
    whole = list(opened(version, "ensemble"))
    parts = [list(opened(version, "ensemble", f"?buffer={number}")) for number in (0, 1)]
    assert [episode.columns["action"].tolist() for episode in whole] == [
        episode.columns["action"].tolist() for part in parts for episode in part
    ]
    assert [episode.columns["action"].tolist() for episode in opened(version, "ensemble/storage/1")] == [
        episode.columns["action"].tolist() for episode in parts[1]
    ]
    with pytest.raises(SourceError, match="buffer 2: there are 2"):
        opened(version, "ensemble", "?buffer=2")
    assert [episode.id for episode in opened(version, "ensemble", "?episodes=1:4")] == [
        episode.id for episode in whole[1:4]
    ]


@BOTH
def test_episodes_are_chosen_by_the_ids_of_trajectories(version: str) -> None:
    for form in FORMS:
        assert [
            int(episode.metadata["trajectory_id"])
            for episode in opened(version, f"ring_{form}", "?where=trajectory_id=2")
        ] == [2]
