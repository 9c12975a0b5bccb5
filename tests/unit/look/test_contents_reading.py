"""From a source to what is shown: transforms, conventions, problems; images stay files until they are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlds2reverb import images
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.transform import Transform
from rlds2reverb.look import pictures
from rlds2reverb.look.contents import contents_at
from rlds2reverb.prepare.conventions import Conventions
from tests.support.look.shown import episode
from tests.support.pictures import CAMERA, WRIST, Pictures, episodes


def test_only_the_files_that_are_drawn_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[Any] = []

    def counted(files: Any, *arguments: Any) -> Any:
        decoded.append(len(files))
        return images.decode_images(files, *arguments)

    monkeypatch.setattr(pictures, "decode_images", counted)
    recorded = episodes((90, 80))
    shown = contents_at(Pictures(recorded), "1")
    assert [one.path for one in shown.images] == [CAMERA, WRIST]
    assert decoded == []
    assert (shown.images[0].picture(79) == recorded[1].columns[CAMERA][79]).all()
    assert sum(decoded) <= 2


def test_columns_are_transformed_first() -> None:
    shown = contents_at(
        EpisodeList([episode()]), "0", transform=Transform(rename={"observation/state": "state"}, drop=("language",))
    )
    assert "state" in [panel.path for panel in shown.panels]
    assert shown.texts == {}
    resized = contents_at(Pictures(episodes((4,))), "0", transform=Transform(resize={CAMERA: "6x4"}, select=(CAMERA,)))
    assert resized.images == ()  # too small for images by now


def test_a_good_episode_is_mended_as_a_push_would_and_a_bad_one_is_shown_as_it_is() -> None:
    shift = Conventions(last_reward="shift")
    late = episode(columns={"reward": np.array([0, 0, 0, 0, 0, 1.0])})

    def rewards(one: Any, **asked: Any) -> list[float]:
        return next(
            panel.curves[0].values.tolist()
            for panel in contents_at(EpisodeList([one]), "0", **asked).panels
            if panel.path == "reward"
        )

    assert rewards(late) == [0, 0, 0, 0, 0, 1]
    assert (
        rewards(late, conventions=shift)
        == rewards(late, transform=Transform(reward_last="shift"))
        == [0, 0, 0, 0, 1, 0]
    )
    bad = late.with_columns(is_last=np.zeros(6, bool))
    assert rewards(bad, conventions=shift) == [0, 0, 0, 0, 0, 1]


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
