"""Formats by scheme: what is opened, what is said when nothing can be, and help made of what the formats say."""

from __future__ import annotations

import gc
import json
import os
import pickle
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb import Episode
from rlds2reverb.errors import LedgerError
from rlds2reverb.extras import Lazily, how_to_install
from rlds2reverb.formats import open_source
from rlds2reverb.formats.buckets import canonical, path_of
from rlds2reverb.formats.identity import identity_of, with_identity
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.mix import MixedSource
from rlds2reverb.formats.registry import Form, Format, Reading, SourceFormats
from rlds2reverb.formats.source import Source, as_source
from rlds2reverb.specs import flatten
from tests.support import strategies
from tests.support.modules import CHECKOUT
from tests.support.raising import outcome_of
from tests.unit.formats.tfds.test_read import write


def needs(library: str) -> Callable[..., Any]:
    def open_it(_: str) -> None:
        raise ModuleNotFoundError(f"No module named '{library}'", name=library)

    return open_it


def reading(opener: Any, **more: Any) -> Reading:
    """What is opened here is no source."""
    return Reading(opener, **more)


PEN = Format(
    "pen",
    "pens",
    reading(lambda text: ("pen", text), forms=(Form("pen:COLOUR", "a pen"), Form("pen:#HEX", "ink"))),
    page="formats/pen.md",
)
BOX = Format(
    "box", "boxes", reading(lambda what: ("box", what), forms=(Form("box:SIZE", "a box", ("s", "xl")),)), extra="tfds"
)
NUMBER = Format(
    "number",
    "numbers",
    reading(lambda n: n + 1, takes=lambda it: type(it) is int, objects="an `int`", objects_are="the next"),
)


def formats_of(*formats: Format) -> SourceFormats:
    return SourceFormats("thing", "opening", LedgerError, own=lambda: formats)


ALL = formats_of(PEN, BOX, NUMBER)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pen:red", ("pen", "red")),
        ("pen:", ("pen", "")),
        ("pen", ("pen", "")),
        ("box:a:b@c?d=e:f", ("box", "a:b@c?d=e:f")),
    ],
)
def test_a_name_is_opened_by_its_scheme_with_what_stands_behind_the_first_colon(
    name: str, expected: tuple[str, str]
) -> None:
    assert ALL.open(name) == expected


SYNTAX = "expected SCHEME:NAME, where SCHEME is one of pen, box"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("pan:red:1@x", '; did you mean "pen:red:1@x"?'),
        ("BOX:s", '; did you mean "box:s"?'),
        ("xl@train", '; did you mean "box:xl@train"?'),
        ("spoon:x", ""),
        ("number:3", ""),
        ("/pen/box", ""),
        (":", ""),
        ("", ""),
    ],
)
def test_a_name_of_no_scheme_is_refused_and_what_was_meant_is_guessed(name: str, hint: str) -> None:
    with pytest.raises(LedgerError) as error:
        ALL.open(name)
    assert str(error.value) == f'thing "{name}": {SYNTAX}{hint}'


@given(st.text())
def test_any_text_is_opened_or_refused(name: str) -> None:
    found = outcome_of(LedgerError, lambda: ALL.open(name))
    if isinstance(found, LedgerError):
        assert str(found).startswith(f'thing "{name}": {SYNTAX}')
    else:
        scheme, text = found
        assert name in (scheme, f"{scheme}:{text}")


def test_an_object_belongs_to_the_format_that_takes_it() -> None:
    entry = ALL.taking(3)
    assert entry is not None
    assert entry[0] is NUMBER
    assert ALL.open_as(*entry, 3) == 4
    assert ALL.taking(True) is ALL.taking("pen:red") is ALL.taking(None) is None


def test_a_missing_library_is_told_with_the_extra_that_brings_it() -> None:
    box = Format("box", "boxes", reading(needs("h5py"), forms=(Form("box:SIZE", "a box"),)), extra="tfds")
    with pytest.raises(LedgerError) as error:
        formats_of(box).open("box:s")
    assert str(error.value) == f"opening boxes needs h5py; {how_to_install('tfds')}"


@pytest.mark.parametrize(("extra", "library"), [(None, "h5py"), ("tfds", "rlds2reverb.formats.box")])
def test_what_no_extra_brings_is_a_bug_and_stays_one(extra: str | None, library: str) -> None:
    box = Format("box", "boxes", reading(needs(library), forms=(Form("box:SIZE", "a box"),)), extra=extra)
    with pytest.raises(ModuleNotFoundError, match=library):
        formats_of(box).open("box:s")


def test_rows_and_table_have_a_line_for_each_way_to_write_a_name() -> None:
    assert ALL.rows() == [("pen:COLOUR", "a pen"), ("pen:#HEX", "ink"), ("box:s, box:xl", "a box")]
    assert ALL.table().splitlines()[2:] == [
        "| `pen:COLOUR` | a pen |  | [pen](formats/pen.md) |",
        "| `pen:#HEX` | ink |  | [pen](formats/pen.md) |",
        "| `box:s`, `box:xl` | a box | `tfds` |  |",
        "| an `int` (Python) | the next |  |  |",
    ]
    assert ALL.objects == ("an int",)
    both = Format("both", "pairs", reading(str, forms=(Form("both:A|B", "two"),)))
    assert formats_of(both).table().splitlines()[2:] == [r"| `both:A\|B` | two |  |  |"]


def test_a_module_is_imported_when_its_function_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    lazily = Lazily("some_module_of_a_format:double")
    with pytest.raises(ModuleNotFoundError, match="some_module_of_a_format"):
        lazily(3)
    monkeypatch.setitem(sys.modules, "some_module_of_a_format", SimpleNamespace(double=lambda number: 2 * number))
    assert lazily(3) == 6


# Episodes from one number to another, of sources that pass over those before and of one that reads them.

EPISODES = [strategies.episode(np.random.default_rng(number), 3, episode_id=f"e{number}") for number in range(12)]


class Plain:
    """A source that offers no more than it must."""

    name, episode_count = "plain", len(EPISODES)

    def __iter__(self) -> Iterator[Episode]:
        return iter(EPISODES)

    def spec(self) -> Any:
        return EpisodeList(EPISODES).spec()


def ids(source: Any) -> list[str]:
    return [episode.id for episode in source]


@given(st.integers(0, 14), st.integers(0, 14), st.integers(1, 3), st.integers(0, 2), st.integers(0, 14))
def test_a_span_is_a_slice_of_the_whole(start: int, length: int, count: int, index: int, limit: int) -> None:
    stop, whole = start + length, [episode.id for episode in EPISODES]
    for source in (EpisodeList(EPISODES), as_source(Plain()), EpisodeList(EPISODES).first(12)):
        span = source.slice(start, stop)
        assert ids(span) == whole[start:stop]
        assert span.episode_count == len(whole[start:stop])
        if index < count:
            assert ids(span.shard(index, count)) == whole[start:stop][index::count]
    limited = EpisodeList(EPISODES).first(limit).slice(start, stop)
    assert ids(limited) == whole[:limit][start:stop]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=20).filter(any), st.data())
def test_spans_of_tfds_files_are_slices_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], data: st.DataObject
) -> None:
    source = open_source(f"tfds:{write(tmp_path_factory.mktemp('x'), train=lengths)}")
    whole = ids(source)
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    assert ids(source.slice(start, stop)) == whole[start:stop]


def test_files_of_tfds_are_closed_as_soon_as_they_are_read(tmp_path: Path) -> None:
    source = open_source(f"tfds:{write(tmp_path, train=[3] * 64)}")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        assert len(ids(source.slice(1, 190))) == 189
        gc.collect()


# A reward and a discount are numbers: files that keep them as [1] in each step are read as files that keep a number, names included.

STEPS = 5


def columns(is_array: bool) -> dict[str, Any]:
    """Flat columns of an episode, with a reward and a discount as numbers or as arrays of one."""
    rng = np.random.default_rng(0)
    shape = (STEPS, 1) if is_array else (STEPS,)
    return {
        "observations": rng.normal(size=(STEPS, 3)).astype(np.float32),
        "actions": rng.normal(size=(STEPS, 1)).astype(np.float32),
        "rewards": rng.normal(size=STEPS).astype(np.float32).reshape(shape),
        "discount": rng.uniform(size=STEPS).astype(np.float32).reshape(shape),
        "terminals": np.arange(STEPS) == STEPS - 1,
    }


def write_npz_file(folder: Path, values: Mapping[str, Any]) -> str:
    np.savez(folder / "rows.npz", **values)
    return f"npz:{folder / 'rows.npz'}"


def write_npz_folder(folder: Path, values: Mapping[str, Any]) -> str:
    np.savez(folder / "0.npz", **values)
    return f"npz:{folder}"


def write_npz_with_last_observation(folder: Path, values: Mapping[str, Any]) -> str:
    observations = values["observations"]
    np.savez(folder / "0.npz", **{**values, "observations": np.concatenate([observations, observations[-1:]])})
    return f"npz:{folder}"


def write_d4rl(folder: Path, values: Mapping[str, Any]) -> str:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "rows.hdf5", "w") as file:
        for key, column in values.items():
            file[key] = column
    return f"d4rl:{folder / 'rows.hdf5'}"


def write_robomimic(folder: Path, values: Mapping[str, Any]) -> str:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "demos.hdf5", "w") as file:
        demo = file.create_group("data/demo_0")
        demo.attrs["num_samples"] = STEPS
        demo["obs/state"] = demo["next_obs/state"] = values["observations"]
        for key in ("actions", "rewards", "discount"):
            demo[key] = values[key]
        demo["dones"] = values["terminals"]
    return f"robomimic:{folder / 'demos.hdf5'}"


WRITERS = (write_npz_file, write_npz_folder, write_npz_with_last_observation, write_d4rl, write_robomimic)


@pytest.mark.parametrize("write", WRITERS)
def test_arrays_of_one_number_are_read_as_numbers(
    write: Callable[[Path, Mapping[str, Any]], str], tmp_path: Path
) -> None:
    episodes, specs = [], []
    for is_array in (False, True):
        folder = tmp_path / str(is_array)
        folder.mkdir()
        source = open_source(write(folder, columns(is_array)))
        specs.append(flatten(source.spec()))
        episodes += list(source.episodes())
    numbers, arrays = episodes
    assert specs[0] == specs[1]
    assert specs[1]["reward"].shape == ()
    assert numbers.id == arrays.id
    for path, column in numbers.columns.items():
        assert arrays.columns[path].shape == column.shape
        assert arrays.columns[path].tobytes() == column.tobytes()
    assert arrays.columns["reward"][:STEPS].tolist() == columns(False)["rewards"].tolist()
    assert arrays.columns["action"].shape == (STEPS + 1 if len(numbers) > STEPS else STEPS, 1), (
        "an action stays an array"
    )


# What episodes call their dataset: one text for each place, whichever way it is spelled and whichever episodes are read.

CARTPOLE = CHECKOUT / "rlds2reverb" / "formats" / "datasets" / "cartpole" / "1.0.0"


def datasets(source: str | Source) -> set[str]:
    return {episode.dataset for episode in open_source(source)}


def tfds(folder: Path) -> Path:
    """The bundled dataset, with a second split of equal records."""
    version = folder / "cartpole" / "1.0.0"
    shutil.copytree(CARTPOLE, version)
    shutil.copy(version / "cartpole-train.tfrecord-00000", version / "cartpole-test.tfrecord-00000")
    info = json.loads((version / "dataset_info.json").read_text())
    info["splits"].append({**info["splits"][0], "name": "test"})
    (version / "dataset_info.json").write_text(json.dumps(info))
    return version


def npz(folder: Path, count: int = 2) -> Path:
    folder.mkdir(parents=True)
    for number in range(count):
        rows = np.arange(4.0) + number
        np.savez(folder / f"e{number}.npz", observations=rows, actions=rows, rewards=rows)
    return folder


@pytest.mark.parametrize("reader", ["", pytest.param("?reader=tfds", marks=pytest.mark.full)])
def test_splits_of_tfds_and_folders_of_one_name_differ(tmp_path: Path, reader: str) -> None:
    here, there = tfds(tmp_path / "here"), tfds(tmp_path / "there")
    train, test = f"{here}@train", f"{here}@test"
    assert datasets(f"tfds:{here}{reader}") == {train}
    assert datasets(f"tfds:{here}@test{reader}") == {test}
    assert datasets(f"tfds:{there}{reader}") == {f"{there}@train"}
    assert datasets(f"tfds:{here}@train+test[:1]{reader}") == {train, test}
    for part in ("@train[:50%]", "@train[3:]"):
        assert datasets(f"tfds:{here}{part}{reader}") == {train}


@pytest.mark.parametrize("order", ["tfds", "file"])
def test_a_part_of_tfds_has_the_dataset_of_the_whole(tmp_path: Path, order: str) -> None:
    source = open_source(f"tfds:{tfds(tmp_path)}?order={order}")
    whole = {episode.dataset for episode in source}
    for part in (source.first(2), source.slice(3, 5), source.shard(1, 3)):
        assert {episode.dataset for episode in part} == whole
    assert {episode.dataset for _, episode in source.at([2, 4])} == whole
    assert {pickle.loads(pickle.dumps(episode)).dataset for episode in source} == whole


def test_spellings_and_choices_of_a_path_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = npz(tmp_path / "data" / "x")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    monkeypatch.chdir(tmp_path / "data")
    monkeypatch.setenv("HOME", str(tmp_path))
    spellings = ("x", "./x", "x/", f"{folder}", f"{folder}/", f"{folder}/../x", "~/data/x", f"{tmp_path}/link/x")
    for spelling in spellings:
        for option in ("", "?episodes=1:", "?last_step=repeat", "?episodes=0"):
            assert datasets(f"npz:{spelling}{option}") == {str(folder)}, spelling
    source = open_source("npz:x")
    for part in (source.first(1), source.shard(1, 2), source.without(["reward"])):
        assert {episode.dataset for episode in part} == {str(folder)}


def test_a_pattern_keeps_its_dataset_when_files_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = npz(tmp_path / "x", 1)
    monkeypatch.chdir(tmp_path)
    assert datasets("npz:x/e*.npz") == datasets(f"npz:{folder}/e*.npz") == {f"{folder}/e*.npz"}
    shutil.copy(folder / "e0.npz", folder / "e1.npz")
    assert datasets("npz:x/e*.npz") == {f"{folder}/e*.npz"}
    assert datasets("npz:x/e[1].npz") != datasets("npz:x/e[0].npz")


def test_several_paths_of_rllib_are_all_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"type": "SampleBatch", "obs": [[0.0]] * 2, "actions": [0, 1], "rewards": [0.0, 1.0], "eps_id": [1, 1]}
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "out.json").write_text(json.dumps({**row, "terminateds": [False, True]}) + "\n")
    monkeypatch.chdir(tmp_path)
    both = f"{tmp_path}/a;{tmp_path}/b"
    assert datasets("rllib:a") == datasets("rllib:a/") == {f"{tmp_path}/a"}
    assert datasets("rllib:a;b/") == datasets(f"rllib:{tmp_path}/a; {tmp_path}/./b") == {both}


def test_a_dataset_that_is_looked_up_by_name_lies_where_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = tfds(tmp_path)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert datasets("tfds:cartpole") == datasets("tfds:cartpole:1.0.0") == {f"{version}@train"}
    assert datasets("bundled:cartpole") == {f"{os.path.realpath(CARTPOLE)}@train"}


def test_ids_of_two_splits_are_two_episodes_and_parts_of_a_mix_have_their_own_place(tmp_path: Path) -> None:
    version = tfds(tmp_path)
    names = [f"tfds:{version}{split}[:1]" for split in ("@train", "@test")]
    identity = identity_of("id=seed")
    apart = [episode.id for name in names for episode in with_identity(open_source(name), identity)]
    mix = MixedSource([open_source(name) for name in names])
    assert sorted(episode.id for episode in with_identity(mix, identity)) == sorted(apart)
    assert len(set(apart)) == 2


def test_spellings_of_a_place_in_a_bucket_agree() -> None:
    spellings = ("s3://b/x/y", "s3://b/x/y/", "s3://b/x/./y", "s3://b/x/z/../y")
    assert {canonical(path_of(spelling)) for spelling in spellings} == {"s3://b/x/y"}
