"""Frames of every format become files that show them, however the source is read: raw frames, those of videos, and those of the dataset's own files."""

from __future__ import annotations

import numpy as np
import pytest

from rlds2reverb.encoding import Encoding
from rlds2reverb.formats.transform import Transform
from rlds2reverb.formats.transformed import transformed
from rlds2reverb.images import Size, decode_images, resize_images
from rlds2reverb.specs import flatten
from tests.contract.test_sources import SOURCES, kinds

pytest.importorskip("imagecodecs")
pytest.importorskip("simplejpeg")


@pytest.mark.parametrize("name", kinds(*SOURCES))
def test_png_files_of_every_format_show_its_frames(name: str) -> None:
    source = SOURCES[name]()
    specs = {} if source.episode_count == 0 else flatten(source.spec())
    paths = [path for path, spec in specs.items() if Encoding("png").problem(spec) is None]
    if not paths:
        pytest.skip("no frames")
    sizes = dict.fromkeys(paths[:1], "8x9")
    encoded = transformed(source, Transform(encode=dict.fromkeys(paths, "png"), resize=sizes))
    new_specs = flatten(encoded.spec())
    assert encoded.encodes == dict.fromkeys(paths, False)
    assert set(encoded.images()) == set(source.images()) - set(paths)
    assert encoded.episode_lengths() == source.episode_lengths()
    whole = list(encoded)
    for made, recorded in zip(whole, source, strict=True):
        assert made.id == recorded.id
        for path in paths:
            frames = recorded.columns[path]
            expected = resize_images(frames, Size.parse(sizes[path])) if path in sizes else frames
            np.testing.assert_array_equal(decode_images(made.columns[path], new_specs[path]), expected)
    if encoded.has_random_access:
        for number, made in encoded.at([0, len(whole) - 1]):
            assert {path: made.columns[path].tolist() for path in paths} == {
                path: whole[number].columns[path].tolist() for path in paths
            }
