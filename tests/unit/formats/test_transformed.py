"""A source with other columns: what a slow reference makes, episode by episode; bad episodes are never mended by chance."""

from __future__ import annotations

import io
from collections import namedtuple
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rlds2reverb.encoding import Encoding, encode_images
from rlds2reverb.episode import Array, Episode
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats.filtered import filtered
from rlds2reverb.formats.filters import KeepRanges
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.source import Source
from rlds2reverb.formats.transform import Transform, transform_of
from rlds2reverb.formats.transformed import transformed
from rlds2reverb.images import Size, resize_images
from rlds2reverb.specs import ArraySpec, ImageSpec, Nest, column_spec, flatten, map_leaves
from tests.support import strategies

FLOAT32 = np.dtype(np.float32)
COLUMNS: strategies.Columns = {
    "observation/image": (np.dtype(np.uint8), (6, 5, 3)),
    "observation/state": (FLOAT32, (2,)),
    "observation/words": (np.dtype(object), ()),
    "action/arm": (FLOAT32, (3,)),
    "action/grip": (np.dtype(bool), ()),
    "action/mode": (np.dtype(np.int32), (1,)),
}
WHOLE = Transform(
    action="concat(grip, arm)",
    select=["observation", "action"],
    drop=["observation/words"],
    resize={"observation/image": "3x4"},
    rename={"observation/state": "proprio"},
)


def robot(number: int, rows: int = 4) -> Episode:
    episode = strategies.episode(np.random.default_rng(number), rows, COLUMNS, episode_id=f"robots#{number}")
    mode = episode.columns["action/mode"] % 1000  # as float32 holds it
    return replace(
        episode.with_only_columns({**episode.columns, "action/mode": mode}),
        metadata={"episode_metadata/episode_id": f"kitchen {number}".encode()},
    )


def source(*episodes: Episode) -> Source:
    return EpisodeList(episodes or [robot(number) for number in range(3)], "robots")


def with_column(path: str, column: Array | None) -> Episode:
    recorded = robot(1)
    columns = {**recorded.columns, path: column}
    return recorded.with_only_columns({path: values for path, values in columns.items() if values is not None})


def paths() -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from([*COLUMNS, "observation", "action", "*/i*", "reward"]), unique=True, max_size=3)


@st.composite
def transforms(draw: st.DrawFn) -> Transform:
    """Transforms of robots; some are refused."""
    parts = draw(st.lists(st.sampled_from(["arm", "grip", "mode", "/observation/state"]), unique=True, max_size=4))
    return Transform(
        select=draw(paths()),
        drop=draw(paths()),
        action=f"concat({', '.join(parts)})" if parts else "",
        resize=draw(st.dictionaries(st.just("observation/image"), st.sampled_from(["2x3", "7x9:lanczos3"]))),
        encode=draw(st.sampled_from([{}, {"observation/image": "png"}, {"observation/image": "jpeg:quality=70"}])),
        rename=draw(st.dictionaries(st.sampled_from([*COLUMNS, "action"]), st.sampled_from(["a", "observation/b"]))),
        make=dict(draw(st.lists(st.sampled_from(list(MADE.items())), max_size=2))),
        drop_first_rows=draw(st.integers(0, 2)),
        drop_last_rows=draw(st.integers(0, 1)),
    )


MADE = {
    "observation/image": "rotate_180(observation/image)",
    "observation/state": "concat(delta(action/arm), observation/state[1])",
    "mode": "action/mode[0]",
}


def slowly(columns: dict[str, Array], transform: Transform) -> dict[str, Array]:
    """One operation after the other, as the documentation has them."""
    recorded = dict(columns)
    if "observation/image" in transform.make:
        columns["observation/image"] = np.array([image[::-1, ::-1] for image in recorded["observation/image"]])
    if "observation/state" in transform.make:
        arm, state = recorded["action/arm"], recorded["observation/state"]
        rows = [[*(arm[t + 1] - arm[t]), state[t][1]] for t in range(len(arm) - 1)]
        columns["observation/state"] = np.array([*rows, [0] * 4], np.float32)  # the last one is dropped
    if "mode" in transform.make:
        columns["mode"] = recorded["action/mode"].ravel()
    if transform.parts:
        reads = [part[1:] if part[0] == "/" else f"action/{part}" for part in transform.parts]
        rows = [
            [float(x) for path in reads for x in np.ravel(recorded[path][t])] for t in range(len(columns["reward"]))
        ]
        action = np.array(rows, np.float32).reshape(len(rows), -1)
        columns = {path: column for path, column in columns.items() if not path.startswith("action/")}
        columns["action"] = action
    if transform.select:
        always = ("reward", "discount", "is_first", "is_last", "is_terminal")
        columns = {path: column for path, column in columns.items() if named(path, (*transform.select, *always))}
    columns = {path: column for path, column in columns.items() if not named(path, transform.drop)}
    for path, text in transform.resize.items():
        columns[path] = resize_images(columns[path], Size.parse(text))
    for path, text in transform.encode.items():
        columns[path] = np.array([*map(pillow_file, columns[path], [text] * 9)], object)
    for old, new in transform.rename.items():
        columns = {new + path[len(old) :] if named(path, [old]) else path: column for path, column in columns.items()}
    first = transform.drop_first_rows
    last = max(transform.drop_last_rows, "observation/state" in transform.make)
    columns = {path: column[first : len(column) - last].copy() for path, column in columns.items()}
    columns["is_first"][:1] = columns["is_last"][-1:] = True
    return columns


def pillow_file(pixels: Array, encoding: str) -> bytes:
    """A PNG of the pixels, by which files of PNG are compared; or the JPEG itself."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, encoding[:4].strip(":"), quality=70)
    return file.getvalue()


def shown(column: Array) -> Array:
    """PNG files have no one way of writing."""
    if column.dtype != object or not all(file.startswith(b"\x89PNG") for file in column):
        return column
    return np.stack([np.asarray(Image.open(io.BytesIO(file))) for file in column])


def named(path: str, patterns: Any) -> bool:
    below = path.startswith(tuple(f"{pattern}/" for pattern in patterns))
    return path in patterns or below or ("*/i*" in patterns and "/i" in path)


@given(transforms(), st.integers(2, 5))
def test_every_episode_is_what_the_operations_make_of_it_one_after_the_other(transform: Transform, rows: int) -> None:
    recorded = robot(7, rows)
    changed = transformed(source(recorded), transform)
    try:
        spec = flatten(changed.spec())
    except ConfigError:
        return
    (episode,) = changed
    dropped = sum(transform.dropped_rows)
    assert changed.count_lengths() == [len(episode)] == [max(rows - dropped, 0)]
    if rows <= dropped:
        assert [path for path, _ in episode.faults] == [""]
        return
    wanted = slowly(dict(recorded.columns), transform)
    assert episode.columns.keys() == wanted.keys() == spec.keys()
    for path, column in episode.columns.items():
        assert column_spec(column) == spec[path]
        np.testing.assert_array_equal(shown(column), shown(wanted[path]))
    assert (episode.id, episode.metadata, episode.faults) == (recorded.id, recorded.metadata, ())


@pytest.mark.parametrize(
    ("path", "recorded", "before"),
    [("proprio", "observation/state", "observation/state"), ("action", "action", "action")],
)
def test_columns_have_their_names_in_the_dataset_and_in_the_transform(path: str, recorded: str, before: str) -> None:
    changed = transformed(source(), WHOLE)
    assert (changed.recorded_paths(path), changed.path_to_encode(path)) == ((recorded,), before)


def pictures() -> Source:
    """Two cameras and a third one, of which the files can be kept."""
    cameras = [f"camera{number}" for number in range(3)]
    files = {
        camera: encode_images(np.full((2, 9, 8, 3), number, np.uint8), Encoding.of("png"))
        for number, camera in enumerate(cameras)
    }
    steps = {"is_first": np.array([True, False]), "is_last": np.array([False, True])}
    image = ImageSpec((9, 8, 3), np.dtype(np.uint8))

    class Cameras(EpisodeList):
        kept: tuple[str, ...] = ()

        def images(self) -> Any:
            return dict.fromkeys(cameras, image)

        def spec(self) -> Nest:
            return {**super().spec(), **{camera: ArraySpec.of_images(image) for camera in self.kept}}

        def encoded(self, paths: Any) -> Source:
            kept = {
                camera: files[camera] if camera in paths else np.full((2, 9, 8, 3), number, np.uint8)
                for number, camera in enumerate(cameras)
            }
            encoded = Cameras([Episode({**steps, **kept}, id=f"content:{name:032x}") for name in range(9)], "cameras")
            encoded.kept = tuple(paths)
            return encoded

    return Cameras([]).encoded([])


def test_the_files_of_a_chosen_camera_stay_as_they_are() -> None:
    pytest.importorskip("imagecodecs")
    both = {"first": "choose(camera0, camera1)", "second": "choose(camera1, camera0)"}
    changed = transformed(pictures(), Transform(make=both, drop=["camera0", "camera1"]))
    assert sorted(changed.images()) == ["camera2", "first", "second"]
    assert changed.recorded_paths("second") == ("camera1", "camera0")
    kept = changed.with_encoded(["all"])
    choices = [
        (decoded.columns["first"][0, 0, 0, 0], shown(files.columns["first"])[0, 0, 0, 0])
        for decoded, files in zip(changed, kept)
    ]
    assert set(choices) == {(0, 0), (1, 1)}
    with pytest.raises(
        SourceError, match=r'"second" is made of the images of "camera1", which would stay encoded: keep both'
    ):
        changed.with_encoded(["first"])


def test_files_are_only_offered_where_nothing_needs_their_pixels() -> None:
    pytest.importorskip("imagecodecs")
    turned = transformed(
        pictures(), Transform(make={"turned": "rotate_180(camera0)", "either": "choose(camera0, camera1)"})
    )
    assert sorted(turned.images()) == ["camera2"]
    kept = turned.with_encoded(["all"])
    assert str(flatten(kept.spec())["turned"]) == "uint8[9, 8, 3]"


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_an_episode_that_loses_all_its_rows_is_bad(rows: int) -> None:
    short = transformed(
        source(robot(1, rows), robot(2, 9)), Transform(drop_first_rows=1, make={"move": "delta(action/arm)"})
    )
    bad, good = short
    assert short.episode_lengths() in (None, [max(rows - 2, 0), 7])
    assert [len(bad), len(good)] == [max(rows - 2, 0), 7] == list(short.count_lengths())
    assert [path for path, _ in bad.faults] == ([""] if rows < 3 else [])
    assert good.columns["is_first"].tolist() == [True, *[False] * 6]
    assert good.columns["is_last"].tolist() == [*[False] * 6, True]


GRIPPERS = {
    "make=action:gripper_absolute(action)": "gripper_absolute",
    "make=action:concat(gripper_binarize(scale(action,0.5,0.5)),action)": "gripper_binarize",
    "make=action:delta(gripper_absolute(action))": "gripper_absolute",
    "make=observation/x:gripper_invert(gripper_absolute(action)),drop_first_rows=1": "gripper_absolute",
}


@pytest.mark.parametrize("text", GRIPPERS)
@given(
    st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), min_size=8, max_size=12),
    st.lists(st.integers(0, 12), min_size=2, max_size=6, unique=True).map(sorted),
)
def test_rows_that_filters_leave_are_those_of_the_whole_episode(
    text: str, values: list[float], edges: list[int]
) -> None:
    rows, transform = len(values), transform_of(text)
    columns: dict[str, Array] = {
        "observation/row": np.arange(rows),
        "action": np.array(values, np.float32)[:, None],
        "reward": np.ones(rows, np.float32),
        "is_first": np.arange(rows) == 0,
        "is_last": np.arange(rows) == rows - 1,
    }
    pairs = [(start, min(stop, rows)) for start, stop in zip(edges[::2], edges[1::2])]
    ranges = [[start, stop] for start, stop in pairs if stop - start > 3]
    if not ranges:
        return
    whole = Episode(columns, {}, "run")
    (reference,) = transformed(source(whole), transform)
    at = {int(row): place for place, row in enumerate(reference.columns["observation/row"])}
    kept = filtered(source(whole), [KeepRanges.of({"run": ranges})])
    for episode in transformed(kept, transform):
        assert not episode.faults
        assert len(episode) > 0
        places = [at[int(row)] for row in episode.columns["observation/row"]]
        for path in ("action", "observation/x"):
            if path in episode.columns:
                np.testing.assert_array_equal(episode.columns[path], reference.columns[path][places])


def test_a_gripper_of_rows_that_something_else_has_changed_is_refused() -> None:
    episode = robot(1, 9)
    kept = filtered(source(episode), [KeepRanges.of({episode.id: [[2, 7]]})])
    changed = transformed(kept, Transform(make={"action/arm": "scale(action/arm, 2)"}))
    (bad,) = transformed(changed, Transform(make={"move": "gripper_absolute(action/arm)"}))
    assert "gripper_absolute goes by all rows of an episode, and filters took some out" in bad.faults[0][1]
    (good,) = transformed(changed, Transform(make={"move": "gripper_invert(action/arm)"}))
    assert not good.faults


def test_infinite_numbers_are_left_to_validation() -> None:
    column = np.array([[1, 2, 3], [np.inf, -np.inf, np.nan]], np.float32)
    make = {
        "a": "scale(action/arm, 2)",
        "b": "delta(delta(action/arm))",
        "c": "rotation(action/arm, euler, xyzw)",
        "d": "rotation(action/arm, axis_angle, matrix)",
    }
    (made,) = transformed(source(with_column("action/arm", np.concatenate([column, column]))), Transform(make=make))
    assert made.faults == ()
    assert np.isinf(made.columns["a"][1]).any()


def test_without_operations_on_columns_a_source_stays_what_it_is() -> None:
    plain = source()
    assert transformed(plain, Transform()) is plain
    assert transformed(plain, Transform(reward_last="shift")) is plain
    assert plain.left_out == ()


def test_names_counts_and_shards_are_those_of_the_source() -> None:
    plain = source()
    changed = transformed(plain, WHOLE)
    assert (changed.name, changed.episode_count) == (plain.name, plain.episode_count)
    assert (
        [episode.id for episode in changed] == [episode.id for episode in plain] == [episode.id for episode in changed]
    )
    for index in range(2):
        shard = changed.shard(index, 2)
        assert [episode.id for episode in shard] == [episode.id for episode in plain.shard(index, 2)]
        assert flatten(shard.spec()) == flatten(changed.spec())
    assert changed.shard(0, 5).shard(0, 2).spec() == changed.spec()
    with pytest.raises(SourceError, match="shard 2 of 2"):
        changed.shard(2, 2)


def test_what_is_left_out_is_told() -> None:
    assert transformed(source(), WHOLE).left_out == ("action/mode", "observation/words")


def test_the_spec_is_checked_before_an_episode_is_read() -> None:
    class Unread(EpisodeList):
        def __iter__(self) -> Any:
            raise AssertionError("read")

    changed = transformed(Unread([robot(0)]), Transform(drop=["nothing"]))
    for look in (changed.spec, changed.__iter__):
        with pytest.raises(ConfigError, match='"nothing" is no column'):
            look()


Pair = namedtuple("Pair", "left right")


def test_lists_and_tuples_stay_what_they_are_while_they_are_whole() -> None:
    class Nested(EpisodeList):
        def spec(self) -> Nest:
            image = ArraySpec((4, 4, 3), np.dtype(np.uint8))
            return {"is_first": image, "is_last": image, "list": [image] * 11, "pair": Pair(image, (image, image))}

    def shapes(**options: Any) -> Nest:
        return map_leaves(lambda leaf: leaf.shape[0], transformed(Nested([]), Transform(**options)).spec())

    whole = shapes(resize={"list/10": "2x2", "pair/right/0": "3x3"})
    assert whole["list"] == [4] * 10 + [2]
    assert whole["pair"] == Pair(4, (3, 4))
    assert isinstance(whole["pair"], Pair)
    part = shapes(drop=["list/3", "pair/left"])
    assert list(part["list"]) == sorted(str(number) for number in range(11) if number != 3)
    assert part["pair"] == {"right": (4, 4)}


def test_a_damaged_file_that_is_to_be_made_anew_is_a_fault_of_its_episode() -> None:
    pytest.importorskip("imagecodecs")
    pictures = encode_images(np.zeros((4, 9, 8, 3), np.uint8), Encoding.of("png"))
    recorded = robot(1)
    good = recorded.with_only_columns({**recorded.columns, "observation/image": pictures})
    damaged = replace(
        good, columns={**good.columns, "observation/image": np.array([*pictures[:3], b"?"], object)}, id="2"
    )

    class Files(EpisodeList):
        def spec(self) -> Nest:
            image = ArraySpec.of_images(ImageSpec((9, 8, 3), np.dtype(np.uint8)))
            return {**super().spec(), "observation": {**super().spec()["observation"], "image": image}}

    image = {"observation/image": "8x8"}
    first, second = transformed(Files([good, damaged]), Transform(resize=image, encode="jpeg"))
    assert first.faults == ()
    assert [len(file) > 0 for file in first.columns["observation/image"]] == [True] * 4
    assert [path for path, _ in second.faults] == ["observation/image"]
    assert "image 3: " in second.faults[0][1]
