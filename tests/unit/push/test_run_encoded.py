"""Pushes of images that stay encoded: what is stored, under which keys, and what is refused before or on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlds2reverb import Episode
from rlds2reverb.errors import ConfigError, InvalidEpisode, SourceError, SpecMismatch
from rlds2reverb.images import decode_images
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.push.options import PushOptions
from rlds2reverb.push.report import PushReport
from rlds2reverb.specs import ArraySpec, Nest, map_leaves
from rlds2reverb.testing import table_info
from rlds2reverb.views.trajectory import table_signature, two_step
from tests.support.pictures import CAMERA, IMAGE, WRIST, Pictures, episodes, files, png
from tests.support.push import in_memory
from tests.support.push.in_memory import Server


def signature(*kept: str) -> Nest:
    return table_signature(two_step().signature(filled_spec(Pictures(episodes(), kept).spec())))


def push(server: Server, source: Any = None, **options: Any) -> PushReport:
    return in_memory.push(server, Pictures(episodes()) if source is None else source, **options)


def test_items_hold_the_files() -> None:
    server = Server({"replay": table_info(signature=signature(CAMERA))})
    report = push(server, encoded=CAMERA)
    stored = [
        file
        for item in server.items["replay"].values()
        for column in item
        for file in column.ravel().tolist()
        if column.dtype == object
    ]
    wanted = {file for episode in episodes() for file in files(episode.columns[CAMERA])}
    assert report.items_confirmed == 4 + 2 + 6
    assert set(stored) == wanted


@pytest.mark.parametrize("encoded", ["all", ("all",), [CAMERA, WRIST], "observation"])
def test_it_takes_one_path_several_or_all(encoded: Any) -> None:
    plan = in_memory.planned(
        Server({"replay": table_info(signature=signature(CAMERA, WRIST))}), Pictures(episodes()), encoded=encoded
    )
    assert plan.ready.identity == f"as_recorded|as_recorded|encoded={CAMERA},{WRIST}"


def test_items_of_a_table_that_takes_anything_differ_by_what_is_encoded() -> None:
    server = Server({"replay": table_info()})
    plain, kept = push(server), push(server, encoded="all")
    again = push(server, encoded=(WRIST, CAMERA))
    assert (plain.items_new, kept.items_new, again.items_new) == (12, 12, 0)


def test_a_table_of_text_takes_files_and_one_of_files_no_text() -> None:
    def as_text(leaf: ArraySpec) -> ArraySpec:
        return ArraySpec(leaf.shape, leaf.dtype)

    assert push(
        Server({"replay": table_info(signature=map_leaves(as_text, signature(CAMERA)))}), encoded=CAMERA
    ).items_confirmed
    text = [
        episode.with_only_columns({**episode.columns, CAMERA: files(episode.columns[CAMERA])}) for episode in episodes()
    ]
    with pytest.raises(
        SpecMismatch, match=r"items have string\[2\], table has string\[\?\] \(png of uint8\[9, 12, 3\]\)"
    ):
        push(Server({"replay": table_info(signature=signature(CAMERA))}), text)


def test_decoded_items_are_told_of_the_option() -> None:
    with pytest.raises(
        SpecMismatch,
        match=rf'encoded images in {CAMERA}: push with encoded="all" \(--encoded all\).* encode="png" \(--encode png\)',
    ):
        push(Server({"replay": table_info(signature=signature(CAMERA))}))


def test_encoded_items_of_other_images_are_refused() -> None:
    other = map_leaves(
        lambda leaf: (
            leaf if leaf.image is None else ArraySpec(leaf.shape, leaf.dtype, "encoded_image.png.uint8.9x13x3")
        ),
        signature(CAMERA),
    )
    with pytest.raises(
        SpecMismatch, match=r"items have .*png of uint8\[9, 12, 3\].* table has .*png of uint8\[9, 13, 3\]"
    ):
        push(Server({"replay": table_info(signature=other)}), encoded=CAMERA)


def test_frames_become_files_that_show_them() -> None:
    pytest.importorskip("imagecodecs")
    server = Server({"replay": table_info()})
    report = push(server, episodes(), encode=f"{CAMERA}:png")
    stored = [column for item in server.items["replay"].values() for column in item if column.dtype == object]
    shown = {image.tobytes() for column in stored for image in decode_images(column.ravel(), IMAGE)}
    assert shown == {image.tobytes() for episode in episodes() for image in episode.columns[CAMERA]}
    assert report.transform == {"encode": {CAMERA: "png"}}


def test_what_is_encoded_is_part_of_the_items_identity() -> None:
    pytest.importorskip("imagecodecs")
    ways: list[dict[str, Any]] = [
        {},
        {"encode": "png"},
        {"encode": "jpeg"},
        {"encode": "jpeg:quality=90"},
        {"encode": {CAMERA: "jpeg"}},
        {"encode": "jpeg", "transform": {"resize": {CAMERA: "8x8"}}},
        {"encode": ["png"], "encoded": CAMERA},
    ]
    server = Server({"replay": table_info()})
    assert [push(server, **way).items_new for way in ways] == [12] * len(ways)
    same: list[dict[str, Any]] = [
        {"transform": "encode=png"},
        {"encode": "jpeg:quality=95"},
        {"transform": {"encode": {CAMERA: "jpeg:subsampling=420"}}},
        {"encode": [f"{CAMERA}:jpeg"]},
        {"encode": "jpeg", "transform": f"resize={CAMERA}:8x8:area"},
    ]
    assert [push(server, **way).items_new for way in same] == [0] * len(same)


@pytest.mark.parametrize(
    ("encode", "message"),
    [
        ("webp", '"webp": expected jpeg:quality=95 or png, or PATH:'),
        (["png", "jpeg"], '"all" stands twice'),
        (3, "expected jpeg"),
        ([f"{CAMERA}:jpeg:quality=0"], 'got "quality=0"'),
        ({CAMERA: 95}, "95: expected png, jpeg"),
    ],
    ids=str,
)
def test_what_is_no_encoding_is_refused(encode: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PushOptions("t", encode=encode)


def test_one_encoding_may_stand_in_one_place_only() -> None:
    with pytest.raises(ConfigError, match="stands twice"):
        PushOptions("t", encode="png", transform="encode=png")


@pytest.mark.parametrize("encoded", ["", ("",), (CAMERA, 3), [None]])
def test_what_is_no_path_is_refused(encoded: Any) -> None:
    with pytest.raises(ConfigError, match=r"encoded \(--encoded\).*expected a path such as observation/image"):
        PushOptions("t", encoded=encoded)


def test_a_list_of_episodes_is_refused() -> None:
    with pytest.raises(SourceError, match="encoded: has no step columns"):
        push(Server(), episodes(), encoded="all")


BROKEN: dict[str, tuple[Any, str]] = {
    "empty": (b"", "got no such file"),
    "text": (b"pick up the spoon", "got no such file"),
    "cut short": (png(np.zeros((9, 12, 3), np.uint8))[:20], "got no such file"),
    "another size": (png(np.zeros((9, 13, 3), np.uint8)), "got 9 by 13 pixels"),
    "no bytes": (7, "got no such file"),
}


class Broken(Pictures):
    """The second episode's step 1 holds something else than an image of that size."""

    def __init__(self, value: object, kept: Any = ()) -> None:
        super().__init__(episodes(), kept)
        self._value = value

    def encoded(self, paths: Any) -> Broken:
        return Broken(self._value, paths)

    def __iter__(self) -> Any:
        for number, episode in enumerate(super().__iter__()):
            yield self._spoiled(episode) if number == 1 else episode

    def _spoiled(self, episode: Episode) -> Episode:
        column = episode.columns[CAMERA].copy()
        column[1] = self._value
        return episode.with_only_columns({**episode.columns, CAMERA: column})


@pytest.mark.parametrize("kind", BROKEN)
def test_an_episode_with_a_file_that_is_none_is_rejected(kind: str) -> None:
    value, came = BROKEN[kind]
    server = Server({"replay": table_info(signature=signature(CAMERA))})
    with pytest.raises(
        InvalidEpisode,
        match=rf'image: column "{CAMERA}": expected files of png of uint8\[9, 12, 3\], {came}; step 1 differs',
    ):
        push(server, Broken(value), encoded=CAMERA)
    report = push(server, Broken(value), encoded=CAMERA, on_invalid="skip")
    assert (report.rejected, len(server.items["replay"])) == ({"image": 1}, 4 + 6)


def test_a_ledger_tells_encoded_pushes_from_others(tmp_path: Any) -> None:
    server, ledger = Server({"replay": table_info()}), tmp_path / "push.db"
    push(server, ledger=ledger)
    assert push(server, ledger=ledger, encoded="all").episodes_resumed == 0
    assert push(server, ledger=ledger, encoded="all").episodes_resumed == 3


def test_the_spec_of_the_items_knows_the_image() -> None:
    plan = in_memory.planned(Server(), Pictures(episodes()), encoded=CAMERA)
    assert plan.tables[0].signature.observation["camera"].image == IMAGE
    assert plan.as_dict()["tables"]["replay"]["signature"][CAMERA] == "string[2] (png of uint8[9, 12, 3])"
