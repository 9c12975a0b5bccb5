"""A source with other columns: what a slow reference makes, episode by episode; bad episodes are never mended by chance."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Array, Episode
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.source import Source
from rlds2reverb.formats.transform import Transform, Transformed, transformed
from rlds2reverb.images import Size, resized
from rlds2reverb.prepare.conventions import Conventions
from rlds2reverb.prepare.policy import Standard
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.specs import ArraySpec, Nest, column_spec, flatten, map_leaves
from tests import strategies

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
        rename=draw(st.dictionaries(st.sampled_from([*COLUMNS, "action"]), st.sampled_from(["a", "observation/b"]))),
    )


def slowly(columns: dict[str, Array], transform: Transform) -> dict[str, Array]:
    """One operation after the other, as the documentation has them."""
    if transform.parts:
        reads = [part[1:] if part[0] == "/" else f"action/{part}" for part in transform.parts]
        rows = [[float(x) for path in reads for x in np.ravel(columns[path][t])] for t in range(len(columns["reward"]))]
        action = np.array(rows, np.float32).reshape(len(rows), -1)
        columns = {path: column for path, column in columns.items() if not path.startswith("action/")}
        columns["action"] = action
    if transform.select:
        always = ("reward", "discount", "is_first", "is_last", "is_terminal")
        columns = {path: one for path, one in columns.items() if named(path, (*transform.select, *always))}
    columns = {path: one for path, one in columns.items() if not named(path, transform.drop)}
    for path, text in transform.resize.items():
        columns[path] = resized(columns[path], Size.parse(text))
    for old, new in transform.rename.items():
        columns = {new + path[len(old) :] if named(path, [old]) else path: one for path, one in columns.items()}
    return columns


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
    wanted = slowly(dict(recorded.columns), transform)
    assert episode.columns.keys() == wanted.keys() == spec.keys()
    for path, column in episode.columns.items():
        assert column_spec(column) == spec[path]
        np.testing.assert_array_equal(column, wanted[path])
    assert (episode.id, episode.metadata, episode.faults) == (recorded.id, recorded.metadata, ())


def test_without_operations_on_columns_a_source_stays_what_it_is() -> None:
    plain = source()
    assert transformed(plain, Transform()) is plain
    assert transformed(plain, Transform(reward_last="shift")) is plain
    assert plain.left_out == ()


def test_names_counts_and_shards_are_those_of_the_source() -> None:
    plain = source()
    changed = transformed(plain, WHOLE)
    assert (changed.name, changed.episode_count) == (plain.name, plain.episode_count)
    assert [one.id for one in changed] == [one.id for one in plain] == [one.id for one in changed]
    for index in range(2):
        shard = changed.shard(index, 2)
        assert [one.id for one in shard] == [one.id for one in plain.shard(index, 2)]
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


def problems(bad: Episode, transform: Transform = WHOLE, like: Episode | None = None) -> list[Problem]:
    """What a push finds in an episode of a dataset whose spec is that of another one."""
    changed = transformed(source(like or robot(0), bad), transform)
    assert isinstance(changed, Transformed)
    *_, episode = changed
    return Standard.of(changed.spec(), Conventions()).examine(episode)[1]


def with_column(path: str, column: Array | None) -> Episode:
    recorded = robot(1)
    columns = {**recorded.columns, path: column}
    return recorded.with_only_columns({path: one for path, one in columns.items() if one is not None})


def test_a_good_episode_has_no_problems() -> None:
    assert problems(robot(1)) == []


@pytest.mark.parametrize(
    ("path", "column", "reason"),
    [
        ("action/arm", np.zeros((4, 4), np.float32), "expected rows of float32[3], got float32[4]"),
        ("action/arm", np.zeros((4, 3)), "expected rows of float32[3], got float64[3]"),
        ("action/arm", None, "expected it in every episode; found ['action/grip', 'action/mode', "),
        ("action/grip", np.zeros(3, bool), "expected columns of equal length, got action/grip 3, action/arm 4"),
        ("observation/image", np.zeros((4, 3, 4, 3), np.uint8), "expected rows of uint8[6, 5, 3], got uint8[3, 4, 3]"),
        ("observation/image", np.zeros((4, 6, 5, 3), np.float32), "expected rows of uint8[6, 5, 3], got float32"),
    ],
)
def test_what_the_transform_reads_must_be_as_the_spec_says(path: str, column: Array | None, reason: str) -> None:
    """Whatever would come out, even columns of the right shape, such as an image that has the wanted size already."""
    found = problems(with_column(path, column))
    assert (found[0].code, found[0].path) == ("untransformed", path)
    assert reason in found[0].detail
    made = "action" if path.startswith("action") else "observation/image"
    assert ("missing_column", made) in [(one.code, one.path) for one in found]


def test_two_errors_do_not_make_a_right_action() -> None:
    swapped = Transform(action="concat(arm, mode)")
    bad = with_column("action/arm", np.zeros((4, 1), np.float32)).columns
    bad = {**bad, "action/mode": np.zeros((4, 3), np.int32)}
    found = problems(robot(1).with_only_columns(bad), swapped)
    assert [one.path for one in found if one.code == "untransformed"] == ["action/arm", "action/mode"]


def test_an_integer_that_float32_does_not_hold_is_refused() -> None:
    exact = with_column("action/mode", np.full((4, 1), 2**24, np.int32))
    assert problems(exact, Transform(action="concat(mode)")) == []
    found = problems(with_column("action/mode", np.full((4, 1), 2**24 + 1, np.int32)), Transform(action="concat(mode)"))
    assert (found[0].code, found[0].path) == ("untransformed", "action/mode")
    assert "step 0 has 16777217: expected integers of at most 16,777,216" in found[0].detail


def test_images_without_pixels_are_refused_where_sizes_are_free() -> None:
    class Free(EpisodeList):
        def spec(self) -> Nest:
            flat = super().spec()
            return {**flat, "observation": {"image": ArraySpec((None, None, 3), np.dtype(np.uint8))}}

    episodes = [Episode({**robot(0).columns, "observation/image": np.zeros((4, *shape), np.uint8)}, id=f"{shape}")
                for shape in [(0, 5, 3), (9, 2, 3), (1, 1, 3)]]  # fmt: skip
    changed = transformed(Free(episodes), Transform(select=["*/image", "action"], resize={"observation/image": "2x2"}))
    empty, *good = changed
    assert empty.faults == (("observation/image", "images of 0x5 pixels cannot be resized"),)
    assert [one.columns["observation/image"].shape for one in good] == [(4, 2, 2, 3)] * 2


def test_what_is_only_taken_is_left_to_validation_under_its_new_name() -> None:
    found = problems(with_column("observation/state", np.zeros((4, 9), np.float32)))
    assert found == [Problem("shape", "proprio", "expected rows of [2], got [9]")]
    assert [one.code for one in problems(with_column("observation/state", None))] == ["missing_column"]
    assert problems(with_column("observation/words", np.zeros((2, 2)))) == []  # it is dropped


def test_a_column_that_the_dataset_does_not_have_is_neither_hidden_nor_taken_for_a_new_one() -> None:
    assert [(one.code, one.path) for one in problems(with_column("surplus", np.zeros(4)))] == [
        ("extra_column", "surplus")
    ]
    found = problems(with_column("proprio", np.zeros((4, 2), np.float32)))
    assert [(one.code, one.path) for one in found] == [("untransformed", "proprio")]


def test_an_episode_without_steps_is_one() -> None:
    empty = robot(1).with_only_columns({path: column[:0] for path, column in robot(1).columns.items()})
    assert [one.code for one in problems(empty)] == ["no_steps"]


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
