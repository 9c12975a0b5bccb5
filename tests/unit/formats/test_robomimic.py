"""robomimic's files, and MimicGen's and LIBERO's: against what was written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.specs import spec_texts

h5py = pytest.importorskip("h5py")
written = pytest.importorskip("tests.support.formats.robomimic")


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    def write(fill: Callable[[Any], object], options: str = "") -> Any:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.hdf5"
        with h5py.File(path, "w") as file:
            fill(file)
        return open_source(f"robomimic:{path}{options}")

    return write


def file_of(demos: dict[str, Any]) -> Callable[[Any], object]:
    return lambda file: written.write_file(file, demos)


def codes(source: Any) -> set[str]:
    return {remark.code for remark in source.notices}


def names(source: Any) -> list[str]:
    return [episode.where.partition("#")[2] for episode in source]


def test_demonstrations_come_by_number_with_the_last_next_observation(opened: Any) -> None:
    made = {f"demo_{number}": demo for number, demo in zip((10, 2, 0), written.demonstrations((3, 2, 4)).values())}
    source = opened(file_of(made))
    assert names(source) == ["demo_0", "demo_2", "demo_10"]
    for episode, name in zip(source, ("demo_0", "demo_2", "demo_10"), strict=True):
        demo = made[name]
        for key in ("robot0_eef_pos", "agentview_image", "agentview_depth"):
            whole = np.concatenate([demo[f"obs/{key}"], demo[f"next_obs/{key}"][-1:]])
            np.testing.assert_array_equal(episode.columns[f"observation/{key}"], whole)
            assert episode.columns[f"observation/{key}"].dtype == whole.dtype
        for key, path in {"actions": "action", "rewards": "reward", "states": "states", "dones": "dones"}.items():
            np.testing.assert_array_equal(episode.columns[path][:-1], demo[key])
            assert not episode.columns[path][-1].any()
        np.testing.assert_array_equal(episode.columns["action_dict/gripper"][:-1], demo["action_dict/gripper"])
        assert episode.metadata["episode_id"] == name.encode()
        assert episode.metadata["env_args"] == written.ENV_ARGS.encode()
        assert name.encode() in episode.metadata["model_file"]
        assert "is_terminal" not in episode.columns
    assert codes(source) == {"last_step", "done_means"}


def test_a_mask_chooses_demonstrations(opened: Any) -> None:
    def fill(file: Any) -> None:
        written.write_file(file, written.demonstrations((2, 2, 2)))
        file["mask/valid"] = [b"demo_2", b"demo_0", b"demo_7"]

    source = opened(fill, "?filter=valid")
    assert names(source) == ["demo_0", "demo_2"]
    assert "masked_names" in codes(source)
    assert [episode.id for episode in source] == [
        episode.id for episode in opened(fill) if episode.where.endswith(("0", "2"))
    ]
    with pytest.raises(SourceError, match='filter "train": there are: valid'):
        opened(fill, "?filter=train")


@pytest.mark.parametrize(("means", "wanted"), [("terminal", True), ("reward", True), ("nothing", None)])
def test_what_ends_mean(opened: Any, means: str, wanted: bool | None) -> None:
    one = next(iter(opened(file_of(written.demonstrations((3,))), f"?done_means={means}")))
    assert ("is_terminal" in one.columns) == (wanted is not None)
    if wanted:
        assert one.columns["is_terminal"].tolist() == [False, False, False, True]
        assert one.columns["discount"].tolist() == [1, 1, 0, 0]


def test_without_next_observations_the_last_one_is_repeated_or_marked(opened: Any) -> None:
    demos = {name: written.without(demo, "next_obs") for name, demo in written.demonstrations((3,)).items()}
    repeated = next(iter(opened(file_of(demos))))
    assert len(repeated) == 4
    np.testing.assert_array_equal(
        repeated.columns["observation/robot0_eef_pos"][2:4], demos["demo_0"]["obs/robot0_eef_pos"][[2, 2]]
    )
    assert len(next(iter(opened(file_of(demos), "?last_step=mark")))) == 3
    with pytest.raises(SourceError, match="no next observation"):
        opened(file_of(demos), "?last_step=next")


def test_what_a_demonstration_lacks_is_named(opened: Any) -> None:
    demos = written.demonstrations((2, 2, 2, 2))
    demos["demo_1"] = written.without(demos["demo_1"], "rewards", "action_dict")
    demos["demo_2"] = {**demos["demo_2"], "states": np.zeros((5, 9))}
    demos["demo_3"] = written.without(demos["demo_3"], "next_obs")
    faults = [dict(episode.faults) for episode in opened(file_of(demos))]
    assert faults[0] == {}
    assert "lacks what other demonstrations have: reward" in str(faults[1])
    assert "has 5 rows; expected 2" in faults[2]["states"]
    assert "no next_obs/" in str(faults[3])


def test_a_wrong_number_of_samples_is_named(opened: Any) -> None:
    def fill(file: Any) -> None:
        written.write_file(file, written.demonstrations((2, 2)))["demo_1"].attrs["num_samples"] = 9

    assert [dict(episode.faults) != {} for episode in opened(fill)] == [False, True]


@pytest.mark.parametrize("number", range(3))
def test_one_damaged_demonstration_is_a_bad_episode_with_its_own_name(opened: Any, number: int) -> None:
    demos = written.demonstrations((2, 2, 2))
    demos[f"demo_{number}"] = written.without(demos[f"demo_{number}"], "actions")

    def fill(file: Any) -> None:
        whole = {name: {**demo, "actions": demo.get("actions", np.zeros((2, 7)))} for name, demo in demos.items()}
        written.write_file(file, whole)
        del file[f"data/demo_{number}/actions"]

    source = opened(fill)
    assert names(source) == ["demo_0", "demo_1", "demo_2"]
    assert [bool(episode.faults) for episode in source] == [place == number for place in range(3)]
    assert list(source)[number].metadata["num_samples"] == 2
    assert names(opened(fill, "?where=num_samples>1")) == names(source)


def test_all_damaged_demonstrations_are_an_unreadable_file(opened: Any) -> None:
    with pytest.raises(SourceError, match="demo_0: no actions"):
        opened(lambda file: file.create_group("data/demo_0").create_group("obs"))


def test_other_values_are_other_data(opened: Any) -> None:
    demos = {
        name: written.without(demo, "next_obs", "action_dict")
        for name, demo in written.demonstrations([2] * 18).items()
    }
    ids = [[episode.id for episode in opened(file_of(demos))] for _ in range(2)]
    assert ids[0] == ids[1]
    for path in ("rewards", "actions"):
        demos["demo_8"][path][0] += 7
        ids.append([episode.id for episode in opened(file_of(demos))])
        assert [old_id != other for old_id, other in zip(*ids[-2:])].count(True) == 1


@pytest.mark.parametrize("path", ["obs/robot0_eef_pos", "obs/agentview_image", "actions"])
def test_other_rows_in_the_middle_are_other_data(opened: Any, path: str) -> None:
    demos = written.demonstrations((4, 3))
    before = [episode.id for episode in opened(file_of(demos))]
    demos["demo_1"][path][1] += 7
    after = [episode.id for episode in opened(file_of(demos))]
    assert [old_id == other for old_id, other in zip(before, after)] == [True, False]


def test_names_that_are_no_text_are_read(opened: Any) -> None:
    def fill(file: Any) -> None:
        data = written.write_file(file, written.demonstrations((2, 2)))
        for name in (b"demo_0/\x80", b"demo_1/\x80"):
            h5py.Group(data.id)[name] = np.zeros(2)

    assert [episode.faults for episode in opened(fill)] == [(), ()]


def test_ends_that_mean_something_else_have_other_names(opened: Any) -> None:
    demos = written.demonstrations((2, 3))
    nothing, terminal = (
        [episode.id for episode in opened(file_of(demos), f"?done_means={means}")] for means in ("nothing", "terminal")
    )
    assert not set(nothing) & set(terminal)


def test_metadata_are_what_all_demonstrations_have(opened: Any, tmp_path: Path) -> None:
    def fill(file: Any) -> None:
        data = written.write_file(file, written.demonstrations((2, 2)))
        data["demo_0"].attrs["only_here"] = 3
        for number, kind in enumerate((np.int32, np.float64)):
            data[f"demo_{number}"].attrs["weight"] = kind(2)
            data[f"demo_{number}"].attrs["parts"] = np.array(["part" * 100] * 4, object)
        data["demo_1"].attrs["ep_meta"] = "long" * 1000

    source = opened(fill)
    assert codes(source) == {"last_step", "done_means", "left_out"}
    for episode in source:
        assert episode.metadata.keys() == source.metadata_spec().keys()
        assert episode.metadata["weight"].dtype == source.metadata_spec()["weight"].dtype == np.float64
        assert episode.metadata["parts"].tolist() == [b"part" * 100] * 4
    assert len(list(source)[1].metadata["ep_meta"]) == 4000
    assert names(opened(fill, "?where=only_here>2")) == ["demo_0"]


def test_raw_demonstrations_are_refused_with_the_way_out(opened: Any) -> None:
    demos = {
        name: {key: demo[key] for key in ("actions", "states")} for name, demo in written.demonstrations((2,)).items()
    }
    with pytest.raises(SourceError, match=r"dataset_states_to_obs\.py"):
        opened(file_of(demos))
    with pytest.raises(SourceError, match="no group data"):
        opened(lambda file: file.create_group("other"))
    with pytest.raises(SourceError, match=r"no data/demo_0"):
        opened(lambda file: file.create_group("data"))


def test_states_of_other_sizes_are_free(opened: Any) -> None:
    def fill(file: Any) -> None:
        demos = written.demonstrations((2, 3))
        demos["demo_1"]["states"] = np.zeros((3, 11))
        written.write_file(file, demos)
        file["mask/one"] = [b"demo_1"]

    source = opened(fill)
    assert spec_texts(source.spec())["states"] == "float64[?]"
    assert all(not episode.faults for episode in source)
    chosen = opened(fill, "?filter=one")
    assert spec_texts(chosen.spec())["states"] == "float64[11]"
    assert [episode.id for episode in chosen] == [episode.id for episode in source][1:]


def test_mimicgen(opened: Any) -> None:
    demos = {name: written.of_mimicgen(demo) for name, demo in written.demonstrations((3, 4)).items()}
    source = opened(file_of(demos))
    one = next(iter(source))
    assert one.columns["datagen_info/object_poses/cube"].shape == (4, 4, 4)
    assert "reward" not in one.columns
    assert codes(source) == {"last_step", "left_out"}


def test_libero(opened: Any) -> None:
    def fill(file: Any) -> None:
        written.write_libero(file, (4, 3))

    source = opened(fill)
    assert codes(source) == {"align", "upside_down", "done_means"}
    standing = opened(fill, "?align=before")
    assert codes(standing) == {"observations_after", "upside_down", "done_means", "last_step"}
    turned = opened(fill, "?flip=yes")
    for episode, plain, upright in zip(source, standing, turned, strict=True):
        rows = len(plain) - 1
        assert len(episode) == rows
        np.testing.assert_array_equal(episode.columns["observation/ee_pos"], plain.columns["observation/ee_pos"][:-1])
        np.testing.assert_array_equal(episode.columns["robot_states"], plain.columns["robot_states"][:-1])
        for path in ("action", "reward", "states"):
            np.testing.assert_array_equal(episode.columns[path][:-1], plain.columns[path][1:-1])
        path = "observation/agentview_rgb"
        np.testing.assert_array_equal(upright.columns[path], episode.columns[path][:, ::-1])
        assert episode.metadata["language_instruction"] == b"open the drawer"
    assert not {episode.id for episode in source} & {episode.id for episode in standing}
    with pytest.raises(SourceError, match="align=before"):
        opened(fill, "?last_step=mark")


def test_demonstrations_are_chosen_by_what_is_said_of_them(opened: Any) -> None:
    source = opened(file_of(written.demonstrations((2, 5, 3))), "?where=num_samples>2")
    assert names(source) == ["demo_1", "demo_2"]


def told(source: Any, code: str) -> dict[str, str]:
    return {notice.path: notice.text for notice in source.notices if notice.code == code}


def test_a_column_that_only_some_demonstrations_have_is_told(opened: Any) -> None:
    demos = written.demonstrations((2, 3, 4, 5))
    for number in (1, 2, 3):
        length = len(demos[f"demo_{number}"]["actions"])
        demos[f"demo_{number}"] |= {"obs/object": np.ones((length, 2)), "next_obs/object": np.ones((length, 2))}
    source = opened(file_of(demos))
    assert "observation/object" not in spec_texts(source.spec())
    assert all(not episode.faults for episode in source)
    assert told(source, "left_out")["observation/object"].startswith("3 of 4 episodes looked at have it")
    chosen = opened(file_of(demos), "?episodes=1:")
    assert all(episode.columns["observation/object"].shape == (len(episode), 2) for episode in chosen)
    assert "left_out" not in codes(chosen)
    most = opened(file_of(demos), "?spec_from=most")
    assert [bool(episode.faults) for episode in most] == [True, False, False, False]
    assert "observation/object" in told(most, "mixed_specs")


@pytest.mark.parametrize("options", ["", "?sample=3"])
def test_a_demonstration_of_one_step_makes_no_column_of_what_has_one_row(opened: Any, options: str) -> None:
    demos = written.demonstrations((1, 6, 7))
    for demo in demos.values():
        demo["initial_state/robot/joints"] = np.ones((1, 9))
    source = opened(file_of(demos), options)
    assert "initial_state/robot/joints" not in spec_texts(source.spec())
    assert all(not episode.faults for episode in source)
    assert any("initial_state/robot/joints" in notice.text for notice in source.notices)


@pytest.mark.parametrize("odd", range(3))
def test_most_demonstrations_decide_on_sizes(opened: Any, odd: int) -> None:
    demos = written.demonstrations((2, 3, 4))
    demos[f"demo_{odd}"]["actions"] = np.zeros((odd + 2, 3))
    source = opened(file_of(demos))
    assert spec_texts(source.spec())["action"] == "float64[7]"
    assert f"float64[3] in 1 episode ({odd}), of 3 episodes looked at" in told(source, "mixed_specs")["action"]
    assert f"spec_from={odd}" in told(source, "mixed_specs")["action"]
    assert spec_texts(opened(file_of(demos), f"?spec_from={odd}").spec())["action"] == "float64[3]"
    with pytest.raises(SourceError, match=f"spec_from={odd + 3}: .*there are 3 episodes"):
        opened(file_of(demos), f"?spec_from={odd + 3}")


def test_isaac_lab(opened: Any) -> None:
    rng = np.random.default_rng(6)

    def demo(length: int, obs: dict[str, Any]) -> dict[str, Any]:
        return {
            **obs,
            "actions/arm": rng.random((length, 6)).astype(np.float32),
            "actions/gripper": rng.random((length, 1)).astype(np.float32),
            "initial_state/articulation/robot/joint_position": np.ones((1, 9), np.float32),
            "states/articulation/robot/joint_position": rng.random((length, 9)).astype(np.float32),
        }

    def fill(file: Any) -> None:
        data = file.create_group("data")
        data.attrs["env_args"] = '{"env_name": "Isaac-Lift", "type": 2}'
        for number, found in enumerate(demos):
            group = data.create_group(f"demo_{number}")
            for path, column in found.items():
                group[path] = column
            group.attrs.update({"num_samples": len(found["actions/arm"]), "success": True})

    for name in ("obs", "obs/policy"):
        demos = [demo(length, {name: rng.random((length, 4)).astype(np.float32)}) for length in (5, 8)]
        source = opened(fill)
        path = name.replace("obs", "observation")
        joints = "articulation/robot/joint_position"
        plain = {path, "action/arm", "action/gripper", f"states/{joints}", "is_first", "is_last"}
        assert set(spec_texts(source.spec())) == plain
        for episode, found in zip(source, demos, strict=True):
            length = len(found["actions/arm"])
            assert len(episode) == length + 1
            np.testing.assert_array_equal(episode.columns[path][:length], found[name])
            np.testing.assert_array_equal(episode.columns["action/gripper"][:length], found["actions/gripper"])
            np.testing.assert_array_equal(episode.columns[f"states/{joints}"][:length], found[f"states/{joints}"])
        assert f"initial_state/{joints}" in told(source, "left_out")[""]
        after = next(iter(opened(fill, "?align=after")))
        np.testing.assert_array_equal(after.columns[path], demos[0][name])
        np.testing.assert_array_equal(after.columns["action/arm"][:-1], demos[0]["actions/arm"][1:])
