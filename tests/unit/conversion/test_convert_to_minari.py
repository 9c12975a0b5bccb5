"""What is written of episodes, what of them is lost, and what a kill leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.conversion.convert import convert
from rlds2reverb.episode import Array, Episode
from rlds2reverb.errors import ConfigError, ConversionError, InvalidEpisode
from rlds2reverb.formats import open_destination, open_source
from rlds2reverb.formats.destination import Content
from rlds2reverb.formats.minari import write
from rlds2reverb.formats.minari.spaces import Texts, space_of
from rlds2reverb.formats.minari.write import places_of
from rlds2reverb.specs import ArraySpec, ImageSpec, column_spec
from tests.contract.destination_cases.data import episode
from tests.support.formats import minari as minari_data
from tests.support.processes import wait_until
from tests.support.project import ROOT

FLOAT = ArraySpec((2,), np.dtype(np.float32))


def content(**columns: ArraySpec) -> Content:
    flags = dict.fromkeys(("is_first", "is_last", "is_terminal"), ArraySpec((), np.dtype(bool)))
    return Content("own", {"observation": FLOAT, "action": FLOAT, **columns, **flags}, {})


def lost(one: Content, name: str = "minari:/none/own-v0") -> dict[str | None, str]:
    return {loss.path: loss.code for loss in open_destination(name).losses(one)}


@pytest.mark.parametrize(
    ("path", "spec", "code"),
    [
        ("reward", ArraySpec((), np.dtype(np.float64)), None),
        ("reward", ArraySpec((), np.dtype(np.int32)), "reward_dtype"),
        ("reward", ArraySpec((2,), np.dtype(np.float32)), "rewards"),
        ("discount", ArraySpec((), np.dtype(np.float32)), None),
        ("discount", ArraySpec((), np.dtype(np.float64)), "discount"),
        ("infos/at", FLOAT, None),
        ("language", ArraySpec((), np.dtype(object)), "moved"),
        ("observation", ArraySpec((2,), np.dtype(np.complex64)), ConfigError),
        ("action", ArraySpec((None,), np.dtype(np.float32)), ConfigError),
        ("infos/free", ArraySpec((None,), np.dtype(np.float32)), "dtype"),
    ],
)
def test_what_the_specs_tell_is_lost(path: str, spec: ArraySpec, code: Any) -> None:
    if code is ConfigError:
        with pytest.raises(ConfigError, match="Minari needs one"):
            lost(content(**{path: spec}))
    else:
        assert lost(content(**{path: spec})) == ({} if code is None else {path: code})


def test_metadata_that_attributes_do_not_hold() -> None:
    features = {
        "seed": ArraySpec((), np.dtype(np.int64)), "id": ArraySpec((), np.dtype(np.int64)), "task": ArraySpec((), np.dtype(object)),
        "scores": ArraySpec((3,), np.dtype(np.float64)), "texts": ArraySpec((2,), np.dtype(object)), "wave": ArraySpec((), np.dtype(complex)),
        "brain": ArraySpec((), np.dtype(ml_dtypes.bfloat16)), "free": ArraySpec((None,), np.dtype(np.int64)), "is_good": ArraySpec((), np.dtype(bool)),
    }  # fmt: skip
    one = Content("own", content().columns, features)
    assert lost(one) == {f"metadata/{name}": "metadata" for name in ("texts", "brain", "free")}


@pytest.mark.parametrize(
    "seed", [np.int64(-7), np.uint64(1 << 63), np.int32(5), 2.5, np.complex128(1 + 2j), np.eye(2), True, b"of 7"]
)
def test_a_feature_comes_back_as_it_was(tmp_path: Path, seed: Any) -> None:
    """`seed` as well, whatever its dtype."""
    told = {"seed": seed, "other": seed}
    losses, data = written(tmp_path, Episode(episode(0).columns, told), Episode(episode(1).columns, told))
    assert losses == [[], []]
    for read_episode in open_source(f"minari:{data}"):
        for name in told:
            assert np.array_equal(read_episode.metadata[name], seed)
            assert np.asarray(read_episode.metadata[name]).dtype == np.asarray(seed).dtype


def written(folder: Path, *episodes: Episode, options: str = "") -> tuple[list[list[str]], Path]:
    """The losses of each episode, and the folder."""
    columns = {path: column_spec(column) for path, column in episodes[0].columns.items()}
    one = Content("own", columns, {name: ArraySpec((), np.dtype(np.int64)) for name in episodes[0].metadata})
    sink = open_destination(f"minari:{folder}/own-v0{options}").sink(folder, one, None)
    losses = [[loss.code for loss in sink.write(each)] for each in episodes]
    sink.sync()
    sink.finish()
    sink.close()
    return losses, folder / "data"


def changed(**columns: Array) -> Episode:
    return episode(0).with_columns(**columns)


@pytest.mark.parametrize(
    ("one", "codes"),
    [
        (episode(0), []),
        (changed(action=np.ones((2, 2), np.float32)), ["last_row"]),
        (changed(reward=np.ones(2, np.float32)), ["last_row"]),
        (changed(discount=np.ones(2, np.float32)), ["discount"]),
        (changed(action=np.full((2, 2), -0.0, np.float32)), ["last_row"]),
        (changed(**{"infos/said": np.array([b"a\0b", b"c"], object)}), ["text"]),
        (changed(**{"infos/said": np.array([b"\xff", b"c"], object)}), ["text"]),
        (Episode(episode(0).columns, {"id": 7}), ["renumbered"]),
        (Episode(episode(0).columns, {"id": 0, "total_steps": 1}), []),
        (Episode(episode(0).columns, {"task": b"x" * 70_000}), ["metadata"]),
        (Episode(episode(0).columns, {"seed": b"None"}), ["metadata"]),
    ],
)
def test_what_is_lost_of_an_episode(tmp_path: Path, one: Episode, codes: list[str]) -> None:
    losses, _ = written(tmp_path, one)
    assert losses == [codes]


SHORT = st.binary(max_size=4)
TOO_LONG = st.just(b"x" * 60_000)


def is_held(name: str, text: bytes) -> bool:
    is_utf8 = text.decode("utf-8", "replace").encode() == text
    return is_utf8 and b"\0" not in text and len(text) < 60_000 and (name, text) != ("seed", b"None")


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries({"task": SHORT | TOO_LONG, "seed": SHORT | st.just(b"None")}), min_size=2, max_size=4
    )
)
def test_metadata_that_some_episodes_lose_are_compared_in_the_others(metadata: list[dict[str, bytes]]) -> None:
    with TemporaryDirectory() as folder:
        episodes = [episode(number, metadata=features) for number, features in enumerate(metadata)]
        report = convert(episodes, f"minari:{folder}/own-v0", verify=True)
    lost_in = Counter(
        f"metadata/{name}" for texts in metadata for name, text in texts.items() if not is_held(name, text)
    )
    assert report.verified == len(episodes)
    assert {loss.path: loss.episodes for loss in report.losses} == dict(lost_in)


def test_metadata_that_another_episode_loses_must_be_right_where_they_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [b"a", b"\xff", b"b"]
    monkeypatch.setattr(write, "_attribute", {b"a": "a", b"\xff": None, b"b": "c"}.get)
    episodes = [episode(number, metadata={"task": text}) for number, text in enumerate(texts)]
    with pytest.raises(ConversionError, match=r'episode 2, from episode 2: metadata "task": the values differ'):
        convert(episodes, f"minari:{tmp_path}/own-v0", verify=True)


def liked(folder: Path, observation: dict[str, Any], action: dict[str, Any] | None = None) -> str:
    """A destination with the spaces of a dataset that has these."""
    action = action or {"type": "Box", "dtype": "float32", "shape": [2], "low": [-9, -9], "high": [9, 9]}
    (folder / "data").mkdir(parents=True)
    spaces = {"observation_space": json.dumps(observation), "action_space": json.dumps(action)}
    (folder / "data" / "metadata.json").write_text(json.dumps({"data_format": "hdf5", **spaces}), encoding="utf-8")
    return f"minari:{folder}/own-v0?like={folder}"


def box(dtype: str, low: float, high: float, size: int = 2) -> dict[str, Any]:
    return {"type": "Box", "dtype": dtype, "shape": [size], "low": [low] * size, "high": [high] * size}


TEXT_SPACE = {"type": "Text", "min_length": 1, "max_length": 2, "charset": "abc"}
SPACES_AND_VALUES: list[tuple[str, dict[str, Any], list[Any], str]] = [
    ("float32", box("float32", -1, 1), [[0, 1], [-1, 1]], ""),
    ("float32", box("float64", -1, 1), [[0, 1], [-1, 1]], ""),
    (
        "float64",
        box("float32", -1, 1),
        [[0, 1], [-1, 1]],
        r'"observation" is Box float32\[2\]; the column is float64\[2\]',
    ),
    (
        "float32",
        box("float32", -1, 1),
        [[0, 1], [-1, 2]],
        r"step 1: expected -1.0 to 1.0, as the Box of like=.* came 2.0 at \[1\]",
    ),
    ("float32", box("float32", -1, 1), [[0, -1.5], [0, 0]], r"step 0: .* came -1.5 at \[1\]"),
    ("int64", box("int32", 0, 5), [[0, 0], [0, 0]], "is Box int32"),
    ("uint8", box("uint8", 0, 5), [[0, 5], [6, 0]], r"step 1: expected 0 to 5, .* came 6 at \[0\]"),
    ("int64", {"type": "Discrete", "start": 2, "n": 3}, [2, 4], ""),
    (
        "int32",
        {"type": "Discrete", "start": 2, "n": 3},
        [4, 5],
        "step 1: expected 2 to 4, as the Discrete of .* came 5",
    ),
    ("float32", {"type": "Discrete", "start": 0, "n": 3}, [0, 1], r"is Discrete int64\[\]; the column is float32"),
    ("int64", {"type": "MultiDiscrete", "dtype": "int64", "nvec": [2, 3]}, [[1, 2], [0, 0]], ""),
    (
        "int64",
        {"type": "MultiDiscrete", "dtype": "int64", "nvec": [2, 3]},
        [[1, 2], [1, 3]],
        "expected 0 to 2, .* came 3",
    ),
    ("int64", {"type": "MultiBinary", "n": 2}, [[1, 0], [0, 1]], ""),
    ("int8", {"type": "MultiBinary", "n": 2}, [[1, 0], [2, 1]], r"step 1: expected 0 or 1, .* came 2 at \[0\]"),
    ("int8", {"type": "MultiBinary", "n": 3}, [[1, 0], [0, 1]], r"is MultiBinary int8\[3\]; the column is int8\[2\]"),
    ("object", TEXT_SPACE, [b"a", b"bc"], ""),
    ("object", TEXT_SPACE, [b"abc", b"bc"], "step 0: expected 1 to 2 characters, .* came 3 of them"),
    ("object", TEXT_SPACE, [b"a", b"d"], "step 1: expected the characters of its Text, .* came 'd'"),
    ("float32", TEXT_SPACE, [0, 1], "is Text of 1 to 2 characters; the column is float32"),
]


@pytest.mark.parametrize(("dtype", "space", "values", "refused"), SPACES_AND_VALUES)
@pytest.mark.parametrize("keys", ["", "/a", "/_index_0"])
def test_spaces_of_another_dataset_hold_every_value(
    tmp_path: Path, dtype: str, space: dict[str, Any], values: list[Any], refused: str, keys: str
) -> None:
    column = np.array(values, dtype)
    spaces = {
        "": space,
        "/a": {"type": "Dict", "subspaces": {"a": space}},
        "/_index_0": {"type": "Tuple", "subspaces": [space]},
    }
    name = liked(tmp_path, spaces[keys])
    refused = refused.replace('"observation"', f'"observation{keys}"')
    own = changed(**{f"observation{keys}": column})
    if keys:
        own = Episode({path: column for path, column in own.columns.items() if path != "observation"}, {}, own.id)
    if refused:
        with pytest.raises((ConfigError, InvalidEpisode), match=refused + ".*([Ll]eave|without) like="):
            convert([own], name)
        assert not (tmp_path / "own-v0").exists()
    else:
        assert convert([own], name, verify=True).verified == 1


def test_the_episode_and_the_action_outside_the_spaces_are_named(tmp_path: Path) -> None:
    wide = box("float32", -9, 9, 3)
    name = liked(tmp_path, wide, box("float32", -9, 9))
    far = np.full((3, 2), 20, np.float32)
    far[0] = 0
    episodes = [episode(0), Episode({**episode(1).columns, "action": far}, {}, "second")]
    with pytest.raises(InvalidEpisode, match=r'episode second: unfit: column "action": step 1: expected -9\.0 to 9\.0'):
        convert(episodes, name)
    report = convert(episodes, name, on_invalid="skip", verify=True, restart=True)
    assert (report.episodes_written, report.verified, report.rejected) == (1, 1, {"unfit": 1})
    last_only = np.zeros((3, 2), np.float32)
    last_only[-1] = 20  # of the row that Minari does not have
    kept = [episodes[0], Episode({**episode(1).columns, "action": last_only}, {}, "second")]
    assert convert(kept, name, overwrite=True, restart=True).episodes_written == 2


def test_files_become_images_of_another_dataset_only(tmp_path: Path) -> None:
    files = ArraySpec.of_images(ImageSpec((40, 36, 3), np.dtype(np.uint8), "jpeg", is_accurate=True))
    pixels = ArraySpec((40, 36, 3), np.dtype(np.uint8), minimum=np.uint8(0), maximum=np.uint8(7))
    image = {"type": "Box", "dtype": "uint8", "shape": [40, 36, 3], "low": 0, "high": 255}
    action = {"observation/b": pixels}
    columns = {path: spec for path, spec in content().columns.items() if path != "observation"}

    def losses(folder: str, a: dict[str, Any], b: dict[str, Any]) -> Any:
        destination = open_destination(liked(tmp_path / folder, {"type": "Dict", "subspaces": {"a": a, "b": b}}))
        return destination.losses(Content("own", {**columns, "observation/a": files, **action}, {}))

    labels = {**image, "high": 7}
    assert losses("both", image, labels) == []
    with pytest.raises(ConfigError, match=r'"observation/a" is Box uint8.* the column is .*\. Take images=decoded'):
        losses("labels", labels, labels)
    with pytest.raises(ConfigError, match=r'"observation/b" is an image there .*Take images=decoded'):
        losses("images", image, image)


def test_the_layout_of_an_episode(tmp_path: Path) -> None:
    _, data = written(tmp_path, episode(0), episode(1))
    with h5py.File(data / "main_data.hdf5") as file:
        assert list(file) == ["episode_0", "episode_1"]
        rewards = file["episode_1/rewards"][()]
        statistics = {f"rewards_{name}": getattr(rewards, name)() for name in ("sum", "mean", "std", "max", "min")}
        assert dict(file["episode_1"].attrs) == {"id": 1, "total_steps": 2, **statistics}
        assert file["episode_1/terminations"][()].tolist() == [False, False]
        assert file["episode_1/truncations"][()].tolist() == [False, True]
        assert (file["episode_1/observations"].shape, file["episode_1/actions"].shape) == ((3, 3), (2, 2))
        assert dict(file["episode_1/infos"]) == {}
    told = json.loads((data / "metadata.json").read_text())
    assert (told["total_episodes"], told["total_steps"], told["dataset_id"]) == (2, 3, "own-v0")
    assert told["jpeg_encoding"] is False
    assert sorted(path.name for path in data.iterdir()) == ["main_data.hdf5", "metadata.json"]


@pytest.mark.parametrize(
    ("names", "places"),
    [
        (("x", "infos/x"), ("infos/x_2", "infos/x")),
        (("x", "infos/x/y"), ("infos/x_2", "infos/x/y")),
        (("x/y", "infos/x"), ("infos/x_2/y", "infos/x")),
        (("x", "x_2", "infos/x"), ("infos/x_2", "infos/x_2_2", "infos/x")),
    ],
)
def test_columns_that_would_have_one_place_have_two(names: tuple[str, ...], places: tuple[str, ...]) -> None:
    made, _ = places_of(content(**dict.fromkeys(names, FLOAT)))
    assert tuple(place.dataset for place in made if place.path in names) == places


@pytest.mark.parametrize("name", [".", "..", "infos/..", "", "a//b", "observation/.", "a\0b"])
def test_names_that_hdf5_has_not_are_left_out(tmp_path: Path, name: str) -> None:
    rows = np.ones((3, 2), np.float32)
    one = episode(1, {"observation/pos": rows[:, 0], name: rows}, {"": 1, "a\0b": 2, ".": np.int64(3)})
    report = convert([one], f"minari:{tmp_path / 'own-v0'}", verify=True)
    told = {(loss.code, loss.path) for loss in report.losses}
    assert {("name", name), ("name", "metadata/"), ("name", "metadata/a\0b")} <= told
    back = next(iter(open_source(f"minari:{report.path}")))
    assert back.metadata["."] == 3


@pytest.mark.parametrize(
    ("shape", "bounds", "low"),
    [
        ((), ([0], [3]), 0),
        ((2, 1), ([0, 1], [3, 4]), [[0], [1]]),
        ((2,), ([0], [3]), [0, 0]),
        ((2,), ([0, 1, 2], [3, 4, 5]), [-(1 << 15)] * 2),
        ((2,), ([], []), [-(1 << 15)] * 2),
        ((2,), (0, 1 << 20), [-(1 << 15)] * 2),
    ],
)
def test_bounds_as_a_server_tells_them(shape: tuple[int, ...], bounds: Any, low: Any) -> None:
    minimum, maximum = (np.array(bound, np.int64) for bound in bounds)
    kind = np.dtype(np.int64 if not shape else np.int16)
    made = space_of({"": ArraySpec(shape, kind, "", minimum, maximum)}, {}, "action")
    assert made["low" if shape else "start"] == low


def test_spaces_of_columns() -> None:
    byte = np.dtype(np.uint8)
    specs = {
        "a/_index_0": ArraySpec((), np.dtype(np.int64), minimum=-1, maximum=3),
        "a/_index_1": ArraySpec((), np.dtype(object)),
        "b": ArraySpec((2,), byte),
        "c/_index_1": ArraySpec((), np.dtype(bool)),
    }
    texts = Texts()
    texts.take(["ab", "a"])
    assert space_of(specs, {"observation/a/_index_1": texts}, "observation") == {
        "type": "Dict",
        "subspaces": {
            "a": {
                "type": "Tuple",
                "subspaces": [
                    {"type": "Discrete", "dtype": "int64", "start": -1, "n": 5},
                    {"type": "Text", "max_length": 2, "min_length": 1, "charset": "ab"},
                ],
            },
            "b": {"type": "Box", "dtype": "uint8", "shape": [2], "low": [0, 0], "high": [255, 255]},
            "c": {
                "type": "Dict",
                "subspaces": {"_index_1": {"type": "Box", "dtype": "bool", "shape": [], "low": False, "high": True}},
            },
        },
    }


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("minari:", "expected minari:ID"),
        ("minari:own?id=a b", "is none of Minari's"),
        ("minari:/tmp/x?id=", "expected a text"),
        ("minari:own", 'the id "own"'),
        ("minari:own-v0?images=all", "expected auto or decoded or files"),
        ("minari:own-v0?like=a/b-v0?id=x-v0", 'the option "like" stands in the path'),
        ("minari:/tmp/x?id=NS/own", "say it by id=, as in minari:/path?id=NAMESPACE/NAME-v0"),
    ],
)
def test_names_that_make_no_sense(name: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_destination(name)
    assert says in str(caught.value)


def test_an_id_with_a_namespace_is_given_to_a_folder(tmp_path: Path) -> None:
    name = f"minari:{tmp_path / 'own'}?id=NS/name-v0"
    assert open_destination(name).path == tmp_path / "own"
    convert([episode(0), episode(1)], name)
    told = json.loads((tmp_path / "own" / "data" / "metadata.json").read_text(encoding="utf-8"))
    assert told["dataset_id"] == "NS/name-v0"


def test_images_stay_files_where_all_of_them_are(tmp_path: Path) -> None:
    jpeg = ImageSpec((40, 40, 3), np.dtype(np.uint8), "jpeg", is_accurate=True)
    asked, usual = open_destination("minari:own-v0?images=files"), open_destination("minari:own-v0")

    def held(destination: Any, image: ImageSpec, **others: ArraySpec) -> list[str]:
        columns = {"observation": ArraySpec.of_images(image), **others}
        return list(destination.held_files(columns, {"observation": image}))

    assert held(asked, jpeg) == held(usual, jpeg) == ["observation"]
    assert not held(open_destination("minari:own-v0?images=decoded"), jpeg)
    for image in (replace(jpeg, format="png"), replace(jpeg, format=""), replace(jpeg, shape=(20, 40, 3))):
        assert not held(asked, image)
        assert not held(usual, image)
    of_tfds = replace(jpeg, is_accurate=False)
    assert (held(asked, of_tfds), held(usual, of_tfds)) == (["observation"], [])
    plain = ArraySpec((40, 40), np.dtype(np.uint8))
    assert held(asked, jpeg, action=plain) == ["observation"]
    assert not held(usual, jpeg, action=plain)
    with pytest.raises(ConfigError, match="Minari has all images one way"):
        asked.losses(content(observation=ArraySpec.of_images(jpeg), action=plain))


@pytest.mark.parametrize("kind", ["hdf5", "arrow", "parquet"])
def test_what_minari_made_comes_back(tmp_path: Path, kind: str) -> None:
    source = open_source(f"minari:{minari_data.dataset('0.5.4', f'kinds/{kind}-v0')}")
    report = convert(source, f"minari:{tmp_path}/back-v0", verify=True)
    assert (report.losses, report.verified) == ((), 3)


KILLED = """
import os, signal, sys
from rlds2reverb.conversion import convert as conversion
from rlds2reverb.conversion.convert import convert
from rlds2reverb.formats.minari import write
from tests.contract.destination_cases.data import episode
conversion.SYNC_SECONDS = 0.0
plain = write.write_whole
def writing(path, data):
    if path.name == sys.argv[2]:
        path.with_name(f".{path.name}.unfinished").write_bytes(data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    plain(path, data)
write.write_whole = writing
convert([episode(number) for number in range(4)], sys.argv[1])
"""


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
@pytest.mark.parametrize("where", ["0.hdf5", "1.hdf5", "metadata.json"])
def test_a_killed_conversion_goes_on(tmp_path: Path, where: str) -> None:
    name = f"minari:{tmp_path}/own-v0"
    finished = subprocess.run([sys.executable, "-c", KILLED, name, where], cwd=ROOT, check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    assert finished.returncode == -signal.SIGKILL
    assert not (tmp_path / "own-v0").exists()
    report = convert([episode(number) for number in range(4)], name, verify=True)
    assert report.verified == 4
    assert len(list(open_source(name))) == 4


def wait_until_after(begun: float) -> None:
    """Waits for the second after that one."""
    wait_until(lambda: int(time.time()) > int(begun))


def test_files_hold_no_time(tmp_path: Path) -> None:
    """Two conversions of one dataset, in different seconds, give the same bytes."""
    given, files = [episode(0), episode(1)], []
    for name in ("one", "other"):
        begun = time.time()
        convert(given, f"minari:{tmp_path / name}/own-v0")
        files.append((tmp_path / name / "own-v0" / "data" / "main_data.hdf5").read_bytes())
        wait_until_after(begun)
    assert files[0] == files[1]


ABOUT = {
    "env_spec": '{"id": "Own-v0", "entry_point": null}', "eval_env_spec": '{"id": "Own-v1", "entry_point": null}',
    "author": ["Ann", "Bea"], "author_email": ["ann@there"], "code_permalink": "there/code", "algorithm_name": "PPO", "description": "of two",
    "requirements": ["own>=1"], "ref_min_score": -1.5, "ref_max_score": 9.0, "num_episodes_average_score": 7, "of_our_own": {"rooms": [1, 2]},
}  # fmt: skip


def described(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "data" / "metadata.json").read_text())
    return found


def test_a_copy_says_of_itself_what_the_dataset_says(tmp_path: Path) -> None:
    first = minari_data.copied("0.5.4", "plain/two-v3", tmp_path)
    told = described(first) | ABOUT
    (first / "data" / "metadata.json").write_text(json.dumps(told))
    report = convert(
        f"minari:{first}?episodes=:1",
        f"minari:{tmp_path / 'other-v4'}",
        strict=True,
        transform={"drop": ["observation/b"]},
    )
    copy = described(tmp_path / "other-v4")
    assert {name: copy.get(name) for name in ABOUT} == ABOUT
    assert (copy["total_episodes"], copy["total_steps"]) == (1, report.steps_written - 1)
    assert copy["dataset_id"] == "other-v4"
    assert set(copy) == set(told)


def test_what_like_says_replaces_what_the_source_says(tmp_path: Path) -> None:
    first = minari_data.copied("0.5.4", "plain/two-v3", tmp_path)
    path = first / "data" / "metadata.json"
    path.write_text(json.dumps(described(first) | ABOUT | {"author": ["Cid"]}))
    liked = first.rename(tmp_path / "liked")
    second = minari_data.copied("0.5.4", "plain/two-v3", tmp_path)
    (second / "data" / "metadata.json").write_text(json.dumps(described(second) | ABOUT))
    convert(f"minari:{second}", f"minari:{tmp_path / 'other-v4'}?like={liked}", strict=True)
    assert described(tmp_path / "other-v4")["author"] == ["Cid"]
    assert described(tmp_path / "other-v4")["ref_max_score"] == 9.0


def test_attributes_of_older_versions_are_kept_too(tmp_path: Path) -> None:
    first = minari_data.copied("0.4.3", "two-own-v0", tmp_path)
    with h5py.File(first / "data" / "main_data.hdf5", "a") as file:
        file.attrs["author"], file.attrs["requirements"] = "Ann", ["own>=1", "other"]
        file.attrs["ref_max_score"] = np.float32(1.5)
    convert(f"minari:{first}", f"minari:{tmp_path / 'other-v4'}")
    copy = described(tmp_path / "other-v4")
    assert (copy["author"], copy["requirements"], copy["ref_max_score"]) == (["Ann"], ["own>=1", "other"], 1.5)


def test_what_another_system_has_no_place_for_is_lost(tmp_path: Path) -> None:
    first = minari_data.copied("0.5.4", "plain/two-v3", tmp_path)
    (first / "data" / "metadata.json").write_text(json.dumps(described(first) | ABOUT))
    with pytest.raises(ConversionError, match=r"dataset_metadata: .*dataset/eval_env_spec.*as a whole"):
        convert(f"minari:{first}", f"ted:{tmp_path / 'ted'}", strict=True, allow_loss=["metadata"])
    report = convert(f"minari:{first}", f"ted:{tmp_path / 'ted'}")
    facts = {loss.path for loss in report.losses if loss.code == "dataset_metadata"}
    assert facts >= {f"dataset/{name}" for name in ABOUT}


def test_a_mix_says_what_its_parts_say_alike(tmp_path: Path) -> None:
    folders = []
    for name, more in (("a", {}), ("b", {"author": ["Cid"]})):
        folders.append(minari_data.copied("0.5.4", "plain/two-v3", tmp_path).rename(tmp_path / name))
        (folders[-1] / "data" / "metadata.json").write_text(json.dumps(described(folders[-1]) | ABOUT | more))
    report = convert(f"mix:minari:{folders[0]}|minari:{folders[1]}", f"minari:{tmp_path / 'both-v0'}")
    copy = described(tmp_path / "both-v0")
    assert {name: copy.get(name) for name in ABOUT} == {**ABOUT, "author": None}
    assert [loss.path for loss in report.losses if loss.code == "dataset_metadata"] == ["dataset/author"]


def test_options_say_what_the_dataset_says_of_itself(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text('{"id": "Own-v0", "entry_point": null}')
    told = "author=Ann;Bea,author_email=ann@there,code_permalink=there/code,algorithm_name=PPO,description=of two%2C and more,"
    told += f"requirements=own>=1; other,ref_min_score=-1.5,ref_max_score=9,num_episodes_average_score=7,env_spec={tmp_path}/spec.json"
    convert([episode(0)], f"minari:{tmp_path / 'own-v0'}?{told}", strict=True)
    expected = {name: ABOUT[name] for name in ABOUT.keys() - {"eval_env_spec", "of_our_own", "requirements"}}
    copy = described(tmp_path / "own-v0")
    assert {name: copy.get(name) for name in expected} == {**expected, "description": "of two, and more"}
    assert copy["requirements"] == ["own>=1", "other"]


def test_facts_of_any_name_are_written_and_survive(tmp_path: Path) -> None:
    (tmp_path / "more.json").write_text('{"docs_url": "https://there/page", "rooms": [1, {"a": null}]}')
    told = {"docs_url": "https://there/page", "rooms": [1, {"a": None}]}
    convert([episode(0)], f"minari:{tmp_path / 'own-v0'}?facts={tmp_path}/more.json,author=Ann", strict=True)
    convert(
        f"minari:{tmp_path / 'own-v0'}",
        f"minari:{tmp_path / 'own-v1'}?facts=licence: MIT;docs_url:https://x/y",
        strict=True,
    )
    assert described(tmp_path / "own-v0").items() >= {**told, "author": ["Ann"]}.items()
    assert described(tmp_path / "own-v1").items() >= {**told, "docs_url": "https://x/y", "licence": "MIT"}.items()


def test_what_hdf5_alone_can_say_is_made_plain(tmp_path: Path) -> None:
    first = minari_data.copied("0.4.3", "two-own-v0", tmp_path)
    with h5py.File(first / "data" / "main_data.hdf5", "a") as file:
        file.attrs["phase"], file.attrs["phases"] = 1 + 2j, np.array([1j, 2], np.complex64)
        file.attrs["author"] = "Ann; Bea"
    convert(f"minari:{first}", f"minari:{tmp_path / 'other-v4'}")
    copy = described(tmp_path / "other-v4")
    assert (copy["phase"], copy["phases"], copy["author"]) == ("(1+2j)", ["1j", "(2+0j)"], ["Ann", "Bea"])


def test_an_option_wins_over_what_the_source_says(tmp_path: Path) -> None:
    convert([episode(0)], f"minari:{tmp_path / 'own-v0'}?author=Ann,description=first", strict=True)
    convert(f"minari:{tmp_path / 'own-v0'}", f"minari:{tmp_path / 'own-v1'}?author=Bea", strict=True)
    copy = described(tmp_path / "own-v1")
    assert (copy["author"], copy["description"]) == (["Bea"], "first")


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("author=Ann;;Bea", "expected one or more texts"),
        ("author=", "expected one or more texts"),
        ("ref_min_score=nan", "expected a number"),
        ("ref_max_score=many", "expected a number"),
        ("num_episodes_average_score=0", "at least 1"),
        ("env_spec=nowhere.json", "nowhere.json"),
        ("auhtor=Ann", 'did you mean "author=Ann"'),
        ("facts=", "expected one or more texts"),
        ("facts=licence", "expected NAME:TEXT"),
        ("facts=licence:MIT;licence:BSD", "one name stands there twice"),
        ("facts=nowhere.json", "nowhere.json"),
        ("facts=author:Ann", "an option of its own: author="),
        ("facts=auhtor:Ann", 'nearly the option "author="'),
        ("facts=total_steps:7", "follows from the episodes"),
    ],
)
def test_facts_that_make_no_sense_are_refused(tmp_path: Path, option: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        convert([episode(0)], f"minari:{tmp_path / 'own-v0'}?{option}")


def test_statistics_are_of_the_rewards_as_written(tmp_path: Path) -> None:
    convert([episode(0), episode(1)], f"minari:{tmp_path / 'own-v0'}")
    with h5py.File(tmp_path / "own-v0" / "data" / "main_data.hdf5", "a") as file:
        file["episode_0"].attrs["rewards_sum"] = 1e6
        kept = file["episode_1"].attrs["rewards_sum"] = file["episode_1"].attrs["rewards_sum"] * (1 + 1e-7)
    report = convert(f"minari:{tmp_path / 'own-v0'}", f"minari:{tmp_path / 'own-v1'}", verify=True)
    assert [(loss.code, loss.path, loss.episodes) for loss in report.losses] == [
        ("statistics", "metadata/rewards_sum", 1)
    ]
    with h5py.File(tmp_path / "own-v1" / "data" / "main_data.hdf5") as file:
        assert file["episode_0"].attrs["rewards_sum"] == file["episode_0/rewards"][()].sum()
        assert file["episode_1"].attrs["rewards_sum"] == kept


def test_spaces_stay_themselves_where_nothing_changes_their_columns(tmp_path: Path) -> None:
    episodes = [
        replace(item, columns={**item.columns, "action": np.ones((len(item), 2), np.int64)})
        for item in (episode(0), episode(1))
    ]
    convert(episodes, f"minari:{tmp_path / 'own-v0'}")
    declared = json.dumps({"type": "MultiDiscrete", "dtype": "int64", "nvec": [3, 4], "start": [0, 1]})
    path = tmp_path / "own-v0" / "data" / "metadata.json"
    path.write_text(json.dumps(described(tmp_path / "own-v0") | {"action_space": declared}))

    def space_after(**options: Any) -> Any:
        convert(f"minari:{tmp_path / 'own-v0'}", f"minari:{tmp_path / 'copy-v0'}", overwrite=True, **options)
        return described(tmp_path / "copy-v0")["action_space"]

    assert space_after(verify=True, strict=True) == declared
    assert json.loads(space_after(transform={"make": {"action": "concat(action[0:1], action[0:1])"}}))["type"] == "Box"
    assert json.loads(space_after(transform={"rename": {"action": "action/arm"}}))["subspaces"] == {
        "arm": json.loads(declared)
    }
