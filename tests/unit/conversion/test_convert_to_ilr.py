"""Shards are laid out as il-representations', and give back what was written."""

from __future__ import annotations

import io
import itertools
import pickle
import pickletools
import shutil
import tarfile
from pathlib import Path
from typing import Any

import cramjam
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rlds2reverb.conversion.convert import convert, planned
from rlds2reverb.episode import Episode
from rlds2reverb.errors import ConfigError, InvalidEpisode, SourceError
from rlds2reverb.formats import open_destination, open_source
from rlds2reverb.formats.destination import Content
from rlds2reverb.formats.ilr.archives import make_member
from rlds2reverb.formats.ilr.pickles import pickle_value, row_pickles
from rlds2reverb.formats.ilr.write import divide
from rlds2reverb.formats.pickles import safe_loads
from rlds2reverb.specs import column_spec
from tests.support.conversion.two_runs import write_in_two_runs
from tests.support.formats import ilr as ilr_data
from tests.support.profiles import examples

OLD_CORE = "numpy.core.multiarray"


def members(path: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    data = path.read_bytes()
    packed = bytes(cramjam.zstd.decompress(data)) if path.name.endswith(".zst") else data
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        return [(member, tar.extractfile(member).read()) for member in tar]


def make_episode(
    rows: int, name: str = "", *, is_terminal: bool = True, action: Any = None, **metadata: Any
) -> Episode:
    at = np.arange(rows)
    columns = {
        "observation": np.arange(rows * 2, dtype=np.float32).reshape(rows, 2),
        "action": (at % 3 if action is None else action) * (at < rows - 1),
        "is_first": at == 0,
        "is_last": at == rows - 1,
        "is_terminal": (at == rows - 1) & is_terminal,
    }
    return Episode(columns, metadata, name)


@pytest.mark.parametrize("name", ["folder", "set.tar.zst", "set.tar"])
def test_the_archive_is_laid_out_as_il_representations_does(tmp_path: Path, name: str) -> None:
    convert([make_episode(3), make_episode(2)], f"ilr:{tmp_path / name}")
    path = tmp_path / name / "demos.tar.zst" if name == "folder" else tmp_path / name
    found = members(path)
    keys = ("acts", "dones", "frame", "next_obs", "obs")
    assert [member.name for member, _ in found] == [
        "_metadata.meta.pickle",
        *(f"frame_{step:03d}.{key}.pickle" for step in range(3) for key in keys),
    ]
    for member, data in found:
        assert (member.uname, member.gname, member.mode, member.type, member.pax_headers) == (
            "bigdata",
            "bigdata",
            0o444,
            b"0",
            {},
        )
        assert data.startswith(b"\x80\x04")
        names = [argument for code, argument, _ in pickletools.genops(data) if code.name == "SHORT_BINUNICODE"]
        assert not any("numpy._core" in str(argument) for argument in names)
    values = {member.name: safe_loads(data, "x") for member, data in found[1:]}
    assert [values[f"frame_{step:03d}.dones.pickle"] for step in range(3)] == [False, True, True]
    assert [values[f"frame_{step:03d}.frame.pickle"] for step in range(3)] == [0, 1, 2]
    assert values["frame_001.next_obs.pickle"].tolist() == [4, 5]
    assert type(values["frame_000.acts.pickle"]) is np.int64


def test_actions_are_counted_unless_they_are_told(tmp_path: Path) -> None:
    made_of = [make_episode(3), make_episode(4, action=np.array([0, 300, 2, 0]))]
    for options, wanted in (("", 301), ("?actions=5", 5)):
        convert(made_of, f"ilr:{tmp_path / 'a'}{options}", overwrite=True)
        (first, *_) = open_source(f"ilr:{tmp_path / 'a'}")
        assert first.metadata["action_space"] == b'{"n": %d, "type": "Discrete"}' % wanted


def test_the_description_is_of_the_episodes_and_the_options(tmp_path: Path) -> None:
    told: dict[str, Any] = {
        "benchmark_name": b"toy",
        "task_name": b"Toy-v0",
        "env_cfg": b'{"benchmark_name": "toy", "speed": 2, "task_name": "Toy-v0"}',
    }
    convert([make_episode(3, **told)], f"ilr:{tmp_path / 'a'}?color=GRAY,task=Other-v0")
    (read,) = open_source(f"ilr:{tmp_path / 'a'}")
    assert read.metadata["task_name"] == b"Other-v0"
    assert read.metadata["color_space"] == b"GRAY"
    assert b'"speed": 2' in read.metadata["env_cfg"]
    assert b'"low": -Infinity' in read.metadata["observation_space"]


def test_the_description_is_one_that_its_classes_inflate(tmp_path: Path) -> None:
    convert([make_episode(3)], f"ilr:{tmp_path / 'a.tar'}")
    data = members(tmp_path / "a.tar")[0][1]

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            known = {
                "_inflate_object": lambda kind, options: (kind, options),
                "ColorSpace": str,
                "Box": "Box",
                "Discrete": "Discrete",
            }
            return known[name] if name in known else getattr(__import__(module, fromlist=[name]), name)

    found = Unpickler(io.BytesIO(data)).load()
    assert found["action_space"] == ("Discrete", {"n": 2})
    kind, options = found["observation_space"]
    assert (kind, options["shape"], options["dtype"]) == ("Box", (2,), np.dtype(np.float32))
    assert options["low"].shape == (2,)
    assert found["color_space"] == "RGB"


@examples(12)
@given(
    seed=st.integers(0, 99),
    lengths=st.lists(st.integers(2, 5), min_size=1, max_size=3),
    dtype=st.sampled_from(["u1", "i8", "f4", "f8"]),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, max_side=3),
    compressed=st.booleans(),
)
def test_what_is_read_back_is_what_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    lengths: list[int],
    dtype: str,
    shape: tuple[int, ...],
    compressed: bool,
) -> None:
    rng = np.random.default_rng(seed)
    trajectories = [ilr_data.trajectory(rng, steps) for steps in lengths]
    for trajectory in trajectories:
        seen = rng.integers(0, 2, (len(trajectory["obs"]) + 1, *shape)).astype(dtype)
        trajectory["obs"], trajectory["next_obs"] = seen[:-1], seen[1:]
    folder = tmp_path_factory.mktemp("there")
    ilr_data.shard(folder / "demos.tar", trajectories)
    target = folder / ("back.tar.zst" if compressed else "back.tar")
    report = convert(f"ilr:{folder / 'demos.tar'}", f"ilr:{target}", verify=True)
    assert report.losses == ()
    assert report.verified == len(lengths)
    again = convert(f"ilr:{target}", f"ilr:{folder / 'again.tar'}", verify=True)
    assert again.losses == ()


def test_equal_episodes_make_equal_archives(tmp_path: Path) -> None:
    for name in ("a", "b"):
        convert([make_episode(3), make_episode(2)], f"ilr:{tmp_path / name}.tar.zst")
    assert (tmp_path / "a.tar.zst").read_bytes() == (tmp_path / "b.tar.zst").read_bytes()


@pytest.mark.parametrize("name", ["a.tar", "a.tar.zst"])
def test_what_was_written_behind_the_last_sync_is_cut_off(tmp_path: Path, name: str) -> None:
    made_of = [make_episode(rows, str(rows)) for rows in (3, 4, 5, 6)]
    content = Content("x", {path: column_spec(column) for path, column in made_of[0].columns.items()}, {})
    destination = open_destination(f"ilr:{tmp_path / name}")
    sink = destination.sink(tmp_path, content, None)
    sink.write(made_of[0])
    sink.write(made_of[1])
    state = sink.sync()
    sink.write(made_of[2])
    sink.sync()
    sink.close()
    sink = destination.sink(tmp_path, content, state)
    for episode in made_of[2:]:
        sink.write(episode)
    state = sink.sync()
    sink.finish()
    whole = members(tmp_path / name)
    sink = destination.sink(tmp_path, content, state)
    sink.finish()
    sink.close()
    assert [(member.name, data) for member, data in members(tmp_path / name)] == [
        (member.name, data) for member, data in whole
    ]
    assert [len(episode) for episode in open_source(f"ilr:{tmp_path / name}")] == [3, 4, 5, 6]


def test_an_archive_that_lost_bytes_is_not_written_on(tmp_path: Path) -> None:
    content = Content("x", {path: column_spec(column) for path, column in make_episode(3).columns.items()}, {})
    destination = open_destination(f"ilr:{tmp_path / 'a.tar'}")
    sink = destination.sink(tmp_path, content, None)
    sink.write(make_episode(3))
    state = sink.sync()
    sink.close()
    (tmp_path / "a.tar").write_bytes(b"")
    with pytest.raises(OSError, match="has fewer than"):
        destination.sink(tmp_path, content, state)


def lost(episodes: list[Episode], target: str) -> dict[str | None, str]:
    return {loss.path: loss.code for loss in convert(episodes, target).losses}


def test_what_shards_cannot_hold_is_told(tmp_path: Path) -> None:
    truncated = make_episode(3, is_terminal=False, seed=3)
    discounted = truncated.with_columns(discount=np.full(3, 0.9, np.float32), reward=np.array([0, 0, 1.0]))
    assert lost([discounted], f"ilr:{tmp_path / 'a'}") == {
        "metadata/seed": "metadata",
        "is_terminal": "ends",
        "discount": "discounts",
        "reward": "last_row",
    }
    odd = make_episode(3).with_columns(**{"a.b": np.zeros(3), "frame": np.zeros(3), "obs": np.zeros(3)})
    assert lost([odd], f"ilr:{tmp_path / 'b'}") == {"a.b": "names", "frame": "names", "obs": "names"}
    texts = np.full((3, 2), b"x", object)
    assert lost([make_episode(3).with_columns(texts=texts)], f"ilr:{tmp_path / 'c'}") == {"texts": "kinds"}
    assert lost([make_episode(3, task_name=b"a"), make_episode(3, task_name=b"b")], f"ilr:{tmp_path / 'd'}") == {
        "metadata/task_name": "metadata"
    }
    for odd_name in (b"\xff", np.int64(3)):
        assert lost([make_episode(3, task_name=odd_name)], f"ilr:{tmp_path / 'e'}") == {
            "metadata/task_name": "metadata"
        }
        shutil.rmtree(tmp_path / "e")


def test_terminals_keep_what_an_end_was(tmp_path: Path) -> None:
    both = [make_episode(3), make_episode(3, is_terminal=False)]
    assert lost(both, f"ilr:{tmp_path / 'a'}?terminals=yes") == {}
    assert [bool(episode.columns["is_terminal"][-1]) for episode in open_source(f"ilr:{tmp_path / 'a'}")] == [
        True,
        False,
    ]


def test_nothing_to_write_is_refused(tmp_path: Path) -> None:
    plain = {path: column for path, column in make_episode(3).columns.items() if path != "action"}
    with pytest.raises(ConfigError, match="needs an observation and an action"):
        planned([Episode(plain)], f"ilr:{tmp_path / 'a'}")
    with pytest.raises(SourceError, match=r"no episode is left.*single_step 1"):
        convert([make_episode(1)], f"ilr:{tmp_path / 'a'}", allow=("single_step",), on_invalid="skip")


@pytest.mark.parametrize("place", ["ilr", "ted"])
@pytest.mark.parametrize("workers", [None, 1])
def test_a_single_step_stops_the_conversion_also_if_it_is_allowed(
    place: str, workers: int | None, tmp_path: Path
) -> None:
    whole, single = make_episode(3), make_episode(1)
    convert([whole, single], f"tfds:{tmp_path}/from", allow=("single_step",))
    source, name = f"tfds:{tmp_path}/from/1.0.0", f"{place}:{tmp_path}/to"
    with pytest.raises(InvalidEpisode, match=r"single_step: .*at least 2 steps, got 1"):
        convert(source, name, allow=("single_step",), workers=workers)
    report = convert(source, name, allow=("single_step",), on_invalid="skip", workers=workers, verify=True)
    assert (report.episodes_written, report.verified, report.rejected) == (1, 1, {"single_step": 1})


@pytest.mark.parametrize(
    "name", ["ilr:", "ilr:?level=3", "ilr:a?level=20", "ilr:a?actions=0", "ilr:a?color=red", "ilr:a?terminals=2"]
)
def test_names_without_sense_are_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        open_destination(name)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
)


@given(values)
def test_pickles_are_those_of_pickle(value: Any) -> None:
    assert pickle.loads(pickle_value(value)) == value


@given(hnp.arrays(st.sampled_from(["u1", "i8", "f2", "?", "c16"]), hnp.array_shapes(min_dims=1, max_side=40)))
def test_pickles_of_rows_are_those_of_numpy(array: Any) -> None:
    for row, data in zip(array, row_pickles([value.tobytes() for value in array], array.dtype, array.shape[1:])):
        found = safe_loads(data, "x")
        assert type(found) is type(row)
        assert (found.dtype, found.shape, found.tobytes()) == (row.dtype, row.shape, row.tobytes())


def test_a_name_that_is_too_long_for_a_header_is_refused() -> None:
    with pytest.raises(ValueError, match="100 bytes"):
        make_member("x" * 101, b"")
    with pytest.raises(TypeError):
        pickle_value(object())


def test_shards_hold_whole_episodes_and_share_one_description(tmp_path: Path) -> None:
    episodes = [make_episode(rows, action=np.full(rows, rows)) for rows in (3, 4, 9, 2, 2, 40)]
    convert(episodes, f"ilr:{tmp_path / 'set'}?shard_frames=5", verify=True)
    shards = sorted((tmp_path / "set").iterdir())
    assert [shard.name for shard in shards] == [f"demos-00000{number}.tar.zst" for number in range(4)]
    frames = [[data for member, data in members(shard) if ".frame." in member.name] for shard in shards]
    assert [len(numbers) for numbers in frames] == [5, 8, 2, 39]
    assert all(safe_loads(numbers[0], "x") == 0 for numbers in frames)
    assert len({members(shard)[0][1] for shard in shards}) == 1
    read = open_source(f"ilr:{tmp_path / 'set'}/demos-{{000000..000003}}.tar.zst")
    for episode, written in zip(read, episodes, strict=True):
        assert episode.metadata["action_space"] == b'{"n": 41, "type": "Discrete"}'
        assert np.array_equal(episode.columns["observation"], written.columns["observation"])


@pytest.mark.parametrize("options", ["shard_frames=4", "shards=4"])
def test_shards_go_on_from_any_state(tmp_path: Path, options: str) -> None:
    """What was begun after the state was saved is written anew, to the byte."""
    episodes = [make_episode(rows) for rows in (3, 4, 9, 2, 2)]
    destination = open_destination(f"ilr:{tmp_path / 'set'}?{options}")
    specs = {path: column_spec(values) for path, values in episodes[0].columns.items()}
    content = Content("x", specs, {}, episodes=open_source(episodes))

    def write(folder: Path, stop: int, behind: int) -> dict[str, bytes]:
        write_in_two_runs(destination, content, folder, episodes, stop, behind)
        return {path.name: tarred(path) for path in folder.iterdir()}

    def tarred(path: Path) -> bytes:
        return bytes(cramjam.zstd.decompress(path.read_bytes()))

    whole = write(tmp_path / "whole", 5, 0)
    assert len(whole) == 4
    for stop in range(5):
        for behind in range(5 - stop):
            assert write(tmp_path / f"{stop}_{behind}", stop, behind) == whole


@pytest.mark.parametrize("option", ["shards", "shard_frames"])
def test_several_shards_are_refused_for_one_archive(tmp_path: Path, option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option}: several shards lie in a folder"):
        open_destination(f"ilr:{tmp_path / 'set.tar'}?{option}=5")
    with pytest.raises(ConfigError, match="each says where a shard ends"):
        open_destination(f"ilr:{tmp_path / 'set'}?shards=2,shard_frames=5")


def test_braces_name_no_destination(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"braces name shards to read; .*ilr:FOLDER\?shards=4"):
        open_destination(f"ilr:{tmp_path}/demos-{{000..003}}.tar.zst")


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 12))
def test_parts_are_as_equal_as_the_order_of_episodes_allows(lengths: list[int], parts: int) -> None:
    parts = min(parts, len(lengths))
    edges = [0, *divide(lengths, parts), len(lengths)]
    assert len(edges) == parts + 1
    assert all(start < end for start, end in itertools.pairwise(edges)), "none is empty"
    for part, end in enumerate(edges[1:-1], 1):  # each end is the nearest to its share, or as near as there is room
        away = abs(sum(lengths[:end]) - sum(lengths) * part / parts)
        others = range(edges[part - 1] + 1, len(lengths) - (parts - part) + 1)
        assert away <= min(abs(sum(lengths[:other]) - sum(lengths) * part / parts) for other in others)


@pytest.mark.parametrize("shards", [1, 2, 3, 6])
def test_so_many_shards_are_written(tmp_path: Path, shards: int) -> None:
    episodes = [make_episode(rows) for rows in (3, 4, 9, 2, 2, 40)]
    convert(episodes, f"ilr:{tmp_path / 'set'}?shards={shards}", verify=True)
    written = sorted((tmp_path / "set").iterdir())
    assert [shard.name for shard in written] == [f"demos-00000{number}.tar.zst" for number in range(shards)]
    lengths = [[len(episode) for episode in open_source(f"ilr:{shard}")] for shard in written]
    assert list(itertools.chain.from_iterable(lengths)) == [3, 4, 9, 2, 2, 40]
    # The same of a source that says nothing of its lengths, or of their number, before it is read.
    convert(f"ilr:{tmp_path / 'set'}", f"ilr:{tmp_path / 'again'}?shards={shards}")
    again = sorted((tmp_path / "again").iterdir())
    assert [[len(episode) for episode in open_source(f"ilr:{shard}")] for shard in again] == lengths


def test_more_shards_than_episodes_are_refused(tmp_path: Path) -> None:
    episodes = [make_episode(rows) for rows in (3, 4)]
    convert(episodes, f"ilr:{tmp_path / 'two'}")
    for source in (episodes, f"ilr:{tmp_path / 'two'}"):  # known before it is read, or not
        with pytest.raises(
            ConfigError, match=r"shards=3: .* has 2 episodes, and no shard may be empty; expected at most 2"
        ):
            convert(source, f"ilr:{tmp_path / 'set'}?shards=3")
        assert not (tmp_path / "set").exists()
