"""Action chunks as the loaders of others make them, and what is refused; the contract of views is tested with all of them."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rlds2reverb.episode import Array, Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.formats.source import spec_of
from rlds2reverb.views import view_from, view_of
from rlds2reverb.views.base import View, not_in_items
from rlds2reverb.views.chunk import Chunk
from rlds2reverb.wire.insert import checked_span, item_fields
from tests.support import strategies
from tests.support.views.cutting import items_of


def robot(rows: int, width: int = 7, seed: int = 0) -> Episode:
    """An episode of a robot whose state has as many dimensions as its actions."""
    columns: strategies.Columns = {
        "observation/state": (np.dtype(np.float32), (width,)),
        "observation/image": (np.dtype(np.uint8), (20, 20, 3)),
        "action": (np.dtype(np.float32), (width,)),
    }
    return strategies.episode(np.random.default_rng(seed), rows, columns, episode_id=f"robot{seed}")


def items(view: View, episode: Episode) -> list[dict[str, Array]]:
    """Items by the paths of their fields."""
    cut = view.cut(episode)
    return [dict(zip(cut.fields, item)) for item in items_of(cut)]


# Octo and OpenVLA: every row has an action, observations are floored, actions past the goal step become neutral.


@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 6), st.lists(st.booleans(), min_size=3, max_size=3))
def test_chunks_are_those_of_octos_loader(rows: int, window: int, ahead: int, absolute: list[bool]) -> None:
    state, action = (np.random.default_rng(n).normal(size=(rows, 3)).astype(np.float32) for n in (1, 2))
    # RLDS' rows of it: the last observation once more, without an action.
    whole = Episode(
        {"observation/state": np.concatenate((state, state[-1:])), "action": np.concatenate((action, action[:1] * 0))}
    )
    offsets = list(range(1 - window, ahead))
    view = Chunk(window, offsets, ends="neutral", absolute=absolute, masks="octo", short="pad")
    found = items(view, whole)
    assert len(found) == rows
    for t, item in enumerate(found):
        for number in range(window):
            at = t - window + 1 + number
            np.testing.assert_array_equal(item["observation/state"][number], state[max(at, 0)])
            assert item["observation/pad_mask"][number] == item["observation/timestep_pad_mask"][number] == (at >= 0)
        for number, offset in enumerate(offsets):
            at = t + offset
            wanted = action[min(max(at, 0), rows - 1)]
            np.testing.assert_array_equal(
                item["action"][number], np.where(absolute, wanted, 0) if at > rows - 1 else wanted
            )
            assert item["action_pad_mask"][number] == (0 <= at < rows)


# openpi: DeltaActions subtracts the state in the dimensions of a mask.


def test_relative_actions_are_those_of_openpi() -> None:
    episode = robot(9)
    view = Chunk(None, 4, relative="observation/state", relative_mask=[True] * 6 + [False])
    assert view.relative_mask == "6:-1"
    for t, item in enumerate(items(view, episode)[:-4]):
        actions = episode.columns["action"][t : t + 4].copy()
        state = item["observation/state"]
        actions[..., :7] -= np.expand_dims(np.where([True] * 6 + [False], state, 0), -2)
        np.testing.assert_array_equal(item["action"], actions)


def test_nested_actions_have_bases_and_masks_of_their_own() -> None:
    columns = {
        "observation/arm": np.arange(8.0).reshape(4, 2),
        "action/arm": np.arange(12.0).reshape(4, 3),
        "action/grip": np.arange(4.0),
    }
    episode = Episode({**columns, "action/mode": np.arange(4)})
    view = view_of(
        "chunk:horizon=2,relative=action/arm:observation/arm+action/grip:first,relative_mask=action/arm:2:-1+action/grip:1"
    )
    item = items(view, episode)[1]
    assert item["action/arm"].tolist() == [[1, 1, 5], [4, 4, 8]]
    assert item["action/grip"].tolist() == [0, 1]
    assert item["action/mode"].tolist() == [1, 2]


# Frames.


def test_frames_are_stored_once_and_an_item_touches_no_later_ones() -> None:
    episode = robot(20)
    view = view_of("chunk:horizon=16,windows=observation/image:2+observation/state:9")
    cut = view.cut(episode)
    np.testing.assert_array_equal(cut.rows["observation/image"][1:], episode.columns["observation/image"])
    first, last = checked_span(cut, item_fields(cut))
    assert (last - first).tolist() == [1] * 19
    assert cut.row_count == 21


def test_a_single_frame_is_not_copied() -> None:
    episode = robot(6)
    for window in (1, None):
        rows = Chunk(window, 3).cut(episode).rows["observation/image"]
        assert np.shares_memory(rows, episode.columns["observation/image"])


def test_a_last_observation_of_its_own_is_real_and_a_repeated_one_is_padding() -> None:
    plain = robot(5)
    repeated = {
        path: np.concatenate((column[:-1], column[-2:-1]))
        for path, column in plain.columns.items()
        if path.startswith("observation/")
    }
    view = Chunk([0, 1], 2)
    assert items(view, plain)[-1]["observation_is_pad"].tolist() == [False, False]
    assert items(view, plain.with_columns(**repeated))[-1]["observation_is_pad"].tolist() == [False, True]


def test_what_a_view_reads_is_what_actions_are_relative_to() -> None:
    episode = robot(5).with_columns(proprio=np.zeros((5, 7)))
    assert "proprio" in not_in_items(Chunk(), spec_of(episode))
    assert "proprio" not in not_in_items(Chunk(relative="proprio"), spec_of(episode))


# Seconds.


@given(st.integers(1, 60), st.lists(st.integers(-9, 9), min_size=1, max_size=5))
def test_seconds_are_steps_as_in_lerobot(fps: int, steps: list[int]) -> None:
    by_seconds = Chunk([step / fps for step in steps], 3, fps=fps)
    assert by_seconds == Chunk(steps, 3)
    assert Chunk([step / fps for step in steps], 3).at_rate(fps) == by_seconds
    assert pickle.loads(pickle.dumps(by_seconds)) == by_seconds


def test_a_stride_in_seconds_is_one_in_steps() -> None:
    assert view_of("chunk:history=3,horizon=4,stride=0.2s,fps=10") == Chunk(3, 4, stride=2)
    assert Chunk(horizon=[0, 2, 4], stride=2) == Chunk(horizon=3, stride=2)
    assert Chunk(stride=2, history_stride=2) == Chunk(stride=2)
    assert view_from({"view": "chunk", "horizon": [0, 1], "windows": {"observation/image": None}}) == Chunk(
        horizon=2, windows="observation/image:none"
    )


def test_seconds_without_a_rate_are_refused_when_an_episode_comes() -> None:
    view = view_of("chunk:horizon=0s:0.1s")
    assert view.signature(spec_of(robot(5)))["action"].shape == (2, 7)
    with pytest.raises(ViewError, match="add fps=N"):
        view.cut(robot(5))


REFUSED = {
    "horizon=0": "horizon 0: expected a whole number of rows",
    "horizon=-4": "offsets such as",
    "history=a:b": r"history: expected steps \(2\) or seconds",
    "history=1:0.5": "expected steps only or seconds only",
    "history=2000000": "expected a whole number of rows",
    "horizon=0:9000000": "rows beside those of the episode",
    "stride=0": "stride 0: expected one step or more",
    "stride=0.15s,fps=10": r"0.15 s: expected a multiple of 0.1 s \(fps=10\) within 0.0001 s; the nearest is",
    "horizon=3,stride=0.1003s,fps=10": "expected a multiple",
    "fps=-1": "fps -1: expected a number",
    "windows=3": "expected PATH:VALUE",
    "windows=action:2+action:3": "action stands twice",
    "windows=action:0": "action '0': expected a whole number of rows",
    "ends=none": "expected one of repeat, zero, neutral",
    "masks=rlds": "expected one of lerobot, octo",
    "short=keep": "expected one of refuse, pad",
    "absolute=6": "expected with ends=neutral only",
    "relative_mask=6": "expected with relative only",
    "relative=first,relative_mask=x": "expected a bool for each dimension",
    "relative=first,relative_mask=0": "expected a bool for each dimension",
    "relative=": 'expected "first", or the path',
    "skip_first=-1": "from 0 on",
    "skip_last=true": "from 0 on",
}


@pytest.mark.parametrize("options", REFUSED)
def test_options_that_make_no_sense_are_refused(options: str) -> None:
    with pytest.raises(ViewError, match=f"{REFUSED[options]}"):
        view_of(f"chunk:{options}")


UNFIT: dict[str, str] = {
    "windows=observation/depth:2": 'windows: "observation/depth": expected a column of observations or actions, found action, obs',
    "ends=neutral,absolute=6": 'absolute: expected a mask of 7 dimensions, as "action" has them, got 6',
    "relative=first,relative_mask=6:-2": "relative_mask: expected a mask of 7 dimensions",
    "relative=first,relative_mask=action/arm:6": 'relative_mask: "action/arm": expected an action column, found action',
    "relative=state": 'relative: "state": expected "first" or a step column, found action',
    "relative=observation/image": 'relative: "observation/image": expected numbers of at least 7 dimensions',
    "relative=first,windows=action:none": 'relative=first: "action" has no window, so it is the first action itself',
}


@pytest.mark.parametrize("options", UNFIT)
def test_options_that_do_not_fit_the_steps_are_refused_by_signature_and_cut(options: str) -> None:
    view, episode = view_of(f"chunk:{options}"), robot(9)
    for refuse in (lambda: view.signature(spec_of(episode)), lambda: view.cut(episode)):
        with pytest.raises(ViewError, match=f"^chunk: {UNFIT[options]}"):
            refuse()


def test_relative_actions_are_floats_and_masks_have_names_of_their_own() -> None:
    whole = robot(5).with_columns(action=np.arange(5))
    with pytest.raises(ViewError, match='relative: "action": expected floats, got int64'):
        Chunk(relative="first").signature(spec_of(whole))
    taken = robot(5).with_columns(**{"observation/state_is_pad": np.zeros(5)})
    with pytest.raises(ViewError, match='a column "observation/state_is_pad", which is the name of a mask'):
        Chunk(windows="observation/state:2").signature(spec_of(taken))


def test_an_episode_shorter_than_the_horizon_is_refused_unless_it_is_padded() -> None:
    with pytest.raises(ViewError, match=r"horizon: expected at most 4, the actions of the episode, got 5; short=pad"):
        Chunk(horizon=5).cut(robot(5))
    assert len(items(Chunk(horizon=5, short="pad"), robot(5))) == len(items(Chunk(horizon=4), robot(5))) == 4
    assert items(Chunk(horizon=5), robot(1)) == []


def test_options_of_arrays_are_those_of_texts() -> None:
    options: list[Any] = [np.int64(2), np.array([0, 2]), {"observation/image": np.array([-1, 0])}, np.float64(1)]
    history, horizon, windows, stride = options
    kinds = Chunk(history, horizon, windows, stride=stride, fps=1)
    assert kinds == Chunk(2, "0:2", "observation/image:2")
    assert hash(kinds) == hash(Chunk(2, "0:2", "observation/image:-1:0"))
    masks: list[Any] = [np.array([1, 1, 0], bool), "1:1:-1", [2, -1], [True, True, False]]
    assert {Chunk(relative="first", relative_mask=mask).relative_mask for mask in masks} == {"2:-1"}


def png(pixels: Array) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def test_image_files_are_frames_however_small() -> None:
    """Their sizes differ from episode to episode, and a table has one layout."""
    layouts = []
    for noise in (0, 255):
        pixels = np.random.default_rng(0).integers(0, noise + 1, (4, 24, 24, 3)).astype(np.uint8)
        files = np.array([png(image) for image in pixels], object)
        cut = Chunk(history=2, horizon=3).cut(Episode({"observation/image": files, "action": np.zeros((4, 2), "f4")}))
        layouts.append({path: (field.column, field.windows, field.squeeze) for path, field in cut.fields.items()})
    assert layouts[0] == layouts[1]
