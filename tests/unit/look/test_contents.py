"""Each column is shown in the way that its values ask for; what there is no room for is counted."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlds2reverb import images
from rlds2reverb.episode import Episode
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.transform import Transform
from rlds2reverb.look import pictures
from rlds2reverb.look.contents import MOST_COLUMNS, MOST_CURVES, contents_at
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.prepare.problems import Problem
from tests.support.look.shown import HOSTILE, contents, episode
from tests.support.pictures import CAMERA, WRIST, Pictures, episodes


def test_every_column_is_shown_once() -> None:
    one = episode(columns={"complex": np.zeros(6, complex), "nothing": np.zeros((6, 0)), "labels": np.array(["a"] * 6)})
    shown = contents(one)
    assert [image.path for image in shown.images] == ["observation/camera"]
    assert [panel.path for panel in shown.panels] == ["observation/state", "action", "reward", "discount"]
    assert shown.texts == {"language": ('"reach for it"',), "labels": ('"a"',)}
    assert shown.flags == {"is_first": "at 0", "is_last": "at 5", "is_terminal": "at 5"}
    assert shown.others == {"complex": "complex128[]", "nothing": "float64[0]"}
    assert shown.left_out == {}


def test_the_header() -> None:
    shown = contents(episode(metadata={"seed": np.int64(7), "words": b"h\xc3\xa9", "many": np.arange(99)}))
    assert (shown.title, shown.name, shown.caption) == ("Episode 3 (index 0 to 8)", "data#3", '"reach for it"')
    assert dict(shown.facts) == {
        "length": "6 steps",
        "return": "5",
        "ends": "terminal; the last row holds an action or a reward",
    }
    assert shown.metadata == {"seed": "7", "words": '"h\xe9"', "many": "int64[99]: 0, 1, 2, 3, 4, 5, 6, 7, ..."}
    assert contents(count=None).title == "Episode 3"


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"is_terminal": np.zeros(6, bool)}, "truncated: the last row is not terminal"),
        ({"is_last": np.zeros(6, bool)}, "the last row is not marked is_last"),
        ({"action": np.zeros(6)}, "the last row was added for the last observation"),
        ({"is_terminal": np.zeros(6, int)}, "no is_terminal, so it counts as truncated"),
    ],
)
def test_how_it_ends(columns: Any, told: str) -> None:
    assert told in dict(contents(episode(columns=columns)).facts)["ends"]


def test_the_return_of_several_rewards_and_of_none() -> None:
    assert dict(contents(episode(columns={"reward": np.ones((6, 2))})).facts)["return"] == "6, 6"
    assert "return" not in dict(contents(episode(columns={"reward": np.zeros((6, 2, 2))})).facts)
    assert dict(contents(episode(columns={"reward": np.full(6, np.inf)})).facts)["return"] == "inf"


def test_problems_are_told_with_their_columns() -> None:
    problems = [Problem("nan", "a", "step 2 is NaN"), Problem("nan", "b", "step 3 is NaN")]
    facts = contents(problems=problems).facts
    assert facts[-2:] == (
        ("problem nan", 'column "a": step 2 is NaN'),
        ("problem nan", 'column "b": step 3 is NaN'),
    )
    assert contents(problems=problems * 500).facts[-1] == ("problems", "and 960 more")


def test_dimensions_are_cut_and_counted() -> None:
    wide = contents(episode(columns={"wide": np.zeros((6, 5, 4))})).panels[-1]
    assert (len(wide.curves), wide.dimensions) == (MOST_CURVES, 20)
    assert [curve.label for curve in wide.curves][3:5] == ["[0, 3]", "[1, 0]"]


@pytest.mark.parametrize(
    ("columns", "metadata", "caption"),
    [
        ({"observation/natural_language_instruction": np.array(["lift"] * 6)}, {}, '"lift"'),
        ({"task": np.array(["a", "a", "b", "b", "b", "b"])}, {}, '0 to 1: "a"; 2 to 5: "b"'),
        ({"language": np.zeros(6)}, {"language_instruction": b"pour"}, '"pour"'),
        ({"language": np.zeros(6)}, {"language_instruction": 7}, ""),
    ],
)
def test_the_instruction_is_the_caption(columns: Any, metadata: Any, caption: str) -> None:
    assert contents(episode(columns=columns, metadata=metadata)).caption == caption


def test_constant_columns_are_named_and_not_drawn() -> None:
    half = np.stack([np.arange(6), np.zeros(6), np.full(6, np.nan), [1, 1, 1, 1, 1, np.inf]], 1)
    shown = contents(episode(columns={"half": half, "wide": np.zeros((6, 20)), "two": np.tile([1, 2], (6, 1))}))
    assert shown.constants == (
        "discount = 1; half[1] = 0; half[2] = no finite value; wide = 0  (first 8 of 20 dimensions); two = [1, 2]"
    )
    assert [panel.path for panel in shown.drawn] == ["observation/state", "action", "reward", "half"]
    assert [curve.label for curve in shown.drawn[-1].moving] == ["[0]", "[3]"]
    many = contents(Episode({f"c{n}": np.tile([0, n % 2], (2, 1)) for n in range(99)}, id="e"))
    assert many.drawn == ()
    assert many.constants.startswith("c0 = 0; c1 = [0, 1]; ")


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint64, np.float16, ml_dtypes.bfloat16, ">f8"])
def test_numbers_of_any_dtype_are_drawn(dtype: Any) -> None:
    values = np.array([[0, 1], [1, 0], [1, 1]]).astype(dtype)
    (panel,) = contents(Episode({"x": values}, id="e")).panels
    assert [curve.values.tolist() for curve in panel.curves] == [[0, 1, 1], [1, 0, 1]]


def test_ten_thousand_columns() -> None:
    columns = {f"c{n}": np.zeros(2) for n in range(10_000)}
    shown = contents(Episode({**columns, **{f"t{n}": np.array(["a", "b"]) for n in range(50)}}, id="e"))
    assert len(shown.panels) == MOST_COLUMNS
    assert shown.left_out == {"number column": 9_960, "text column": 10}
    metadata = contents(episode(metadata={f"m{n}": n for n in range(1000)})).metadata
    assert list(metadata.items())[-1] == ("...", "and 960 more")


def test_columns_are_chosen_by_path_and_by_nest() -> None:
    shown = contents(chosen=("observation", "reward", "is_last"))
    assert [panel.path for panel in shown.panels] == ["observation/state", "reward"]
    assert (len(shown.images), dict(shown.texts), list(shown.flags)) == (1, {}, ["is_last"])
    with pytest.raises(ConfigError, match=r'--columns "obs": no such column.* there are observation/camera, '):
        contents(chosen=("obs",))


@pytest.mark.parametrize("rows", [0, 1])
def test_an_episode_that_is_too_short(rows: int) -> None:
    shown = contents(Episode({path: column[:rows] for path, column in episode().columns.items()}, id="e"))
    assert dict(shown.facts)["length"] == ("0 steps" if not rows else "1 step")
    assert shown.steps == rows


def test_an_episode_without_columns_and_with_unequal_ones() -> None:
    assert contents(Episode({}, id="e")).facts == (("length", "0 steps"), ("ends", "there is no step"))
    odd = contents(episode(columns={"reward": np.ones(3), "observation/camera": np.zeros((2, 9, 9, 3), np.uint8)}))
    assert {len(panel.curves[0].values) for panel in odd.panels} == {6, 3}


def test_hostile_text_cannot_move_the_cursor() -> None:
    text = np.empty(6, object)
    text[:] = HOSTILE.encode()
    shown = contents(
        episode(columns={"words": text}, metadata={HOSTILE: HOSTILE, "list": np.array([HOSTILE] * 20)}),
        [Problem("nan", HOSTILE, HOSTILE)],
    )
    told = [
        shown.title,
        shown.name,
        shown.caption,
        *map("".join, shown.facts),
        *shown.metadata,
        *shown.metadata.values(),
        *shown.texts["words"],
    ]
    assert all(line.isprintable() for line in told)


# From a source to what is shown: transforms, conventions, problems; images stay files until they are drawn.


def test_only_the_files_that_are_drawn_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[Any] = []

    def counted(files: Any, *arguments: Any) -> Any:
        decoded.append(len(files))
        return images.decode_images(files, *arguments)

    monkeypatch.setattr(pictures, "decode_images", counted)
    recorded = episodes((90, 80))
    shown = contents_at(Pictures(recorded), "1")
    assert [image.path for image in shown.images] == [CAMERA, WRIST]
    assert decoded == []
    assert (shown.images[0].picture(79) == recorded[1].columns[CAMERA][79]).all()
    assert sum(decoded) <= 2


def test_columns_are_transformed_first() -> None:
    shown = contents_at(
        EpisodeList([episode()]),
        "0",
        options=EpisodeOptions(transform=Transform(rename={"observation/state": "state"}, drop=("language",))),
    )
    assert "state" in [panel.path for panel in shown.panels]
    assert shown.texts == {}
    resized = contents_at(
        Pictures(episodes((4,))),
        "0",
        options=EpisodeOptions(transform=Transform(resize={CAMERA: "6x4"}, select=(CAMERA,))),
    )
    assert resized.images == ()  # too small for images by now


def test_a_good_episode_is_mended_as_a_push_would_and_a_bad_one_is_shown_as_it_is() -> None:
    late = episode(columns={"reward": np.array([0, 0, 0, 0, 0, 1.0])})

    def rewards(one: Any, **asked: Any) -> list[float]:
        return next(
            panel.curves[0].values.tolist()
            for panel in contents_at(EpisodeList([one]), "0", options=EpisodeOptions(**asked)).panels
            if panel.path == "reward"
        )

    assert rewards(late) == [0, 0, 0, 0, 0, 1]
    assert (
        rewards(late, last_reward="shift")
        == rewards(late, transform=Transform(reward_last="shift"))
        == [0, 0, 0, 0, 1, 0]
    )
    bad = late.with_columns(is_last=np.zeros(6, bool))
    assert rewards(bad, last_reward="shift") == [0, 0, 0, 0, 0, 1]


def test_problems_are_found() -> None:
    bad = episode().with_columns(action=np.full(6, np.nan, np.float32))
    assert "problem nan" in dict(contents_at(EpisodeList([bad]), "0").facts)


@pytest.mark.parametrize("number", range(4))
def test_a_shipped_dataset(number: int) -> None:
    source = open_source("bundled:half_cheetah")
    wanted = list(source)[number]
    for name in (str(number), str(number - 4), wanted.id, wanted.where):
        shown = contents_at(source, name)
        assert (shown.title, shown.name) == (f"Episode {number} (index 0 to 3)", wanted.where)
        reward = next(panel for panel in shown.panels if panel.path == "reward")
        np.testing.assert_array_equal(reward.curves[0].values, wanted.columns["reward"])


def test_what_is_not_there() -> None:
    with pytest.raises(SourceError, match="there are 4 episodes"):
        contents_at(open_source("bundled:half_cheetah"), "4")
    with pytest.raises(ConfigError, match="no such column"):
        contents_at(open_source("bundled:half_cheetah"), "0", ("actoin",))
