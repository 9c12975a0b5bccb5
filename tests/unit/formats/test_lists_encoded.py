"""Sources that keep images encoded, and those that cannot."""

from __future__ import annotations

import numpy as np
import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.specs import flatten
from tests.support.pictures import CAMERA, IMAGE, WRIST, Pictures, episodes

SOURCE = Pictures(episodes())


def encoded_columns(source: object) -> list[str]:
    return [path for path, leaf in flatten(source.spec()).items() if leaf.image is not None]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ((), []),
        ((CAMERA,), [CAMERA]),
        ((WRIST, CAMERA), [CAMERA, WRIST]),
        (("observation",), [CAMERA, WRIST]),
        (("all",), [CAMERA, WRIST]),
        (("all", WRIST), [CAMERA, WRIST]),
    ],
)
@pytest.mark.parametrize("part", [None, 2])
def test_the_columns_that_were_asked_for_hold_files(asked: tuple[str, ...], kept: list[str], part: int | None) -> None:
    source = SOURCE.first(part).with_encoded(asked)
    assert encoded_columns(source) == kept
    assert all(leaf.image in (None, IMAGE) for leaf in flatten(source.spec()).values())
    for episode, decoded in zip(source, SOURCE):
        assert episode.id == decoded.id
        assert {path for path, column in episode.columns.items() if column.dtype == object} == set(kept)
        assert all(file.startswith(b"\x89PNG") for path in kept for file in episode.columns[path])


@pytest.mark.parametrize("path", ["observation/state", "observation/cam", "camera", "all/observation", "observation/"])
def test_a_path_to_no_image_is_refused_with_what_there_is(path: str) -> None:
    with pytest.raises(SourceError) as caught:
        SOURCE.with_encoded((CAMERA, path))
    assert f'pictures: encoded "{path}": expected image columns, which are {CAMERA}, {WRIST}; or "all"' == str(
        caught.value
    )


@pytest.mark.parametrize("part", [None, 1])
def test_a_source_that_cannot_is_refused(part: int | None) -> None:
    source = EpisodeList(episodes()).first(part)
    assert source.images() == {}
    with pytest.raises(
        SourceError, match="encoded: has no step columns whose JPEG or PNG files can be kept as they are"
    ):
        source.with_encoded(("all",))
    assert source.with_encoded(()) is source


def test_a_shard_keeps_its_files() -> None:
    assert np.array_equal([len(one) for one in SOURCE.shard(1, 2).with_encoded(("all",))], [3])
