"""Items of different lengths as batches: lists or filled up, with text and encoded images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.options import SampleOptions
from rlds2reverb.specs import ArraySpec, ImageSpec, map_leaves
from tests.support.learner.stored import connected, server_of
from tests.support.pictures import png

FLOAT, TEXT = np.dtype(np.float32), np.dtype(object)
SIGNATURE = {
    "action": ArraySpec((None, 3), FLOAT),
    "observation": {"text": ArraySpec((None,), TEXT), "state": ArraySpec((None, 2), FLOAT)},
    "task": ArraySpec((), TEXT),
}


def item(actions: int) -> tuple[Array, ...]:
    """Observations have a row more than actions."""
    rng = np.random.default_rng(actions)
    return (
        rng.normal(size=(actions, 3)).astype(np.float32),
        rng.normal(size=(actions + 1, 2)).astype(np.float32),
        np.array([b"\x00%d" % row for row in range(actions + 1)], object),
        np.array(b"task\x00", object),
    )


def batch_of(lengths: list[int], signature: Any = SIGNATURE, **options: Any) -> Any:
    server = server_of(signature, [item(one) for one in lengths], sampler="fifo", max_times_sampled=1)
    with connected(server) as client:
        return next(client.sample("replay", len(lengths), samples=len(lengths), **options))


def test_items_that_differ_are_lists() -> None:
    data, info = batch_of([2, 5])
    for number, length in enumerate([2, 5]):
        action, state, text, task = item(length)
        assert data["action"][number].tobytes() == action.tobytes()
        assert data["observation"]["state"][number].tobytes() == state.tobytes()
        assert data["observation"]["text"][number].tolist() == text.tolist()
        assert data["task"][number] == task.item()
    assert (info.mask, info.masks, info.ends, info.start) == (None, None, None, None)


def test_filled_up_they_have_a_mask_per_column_and_one_for_all() -> None:
    data, info = batch_of([2, 5], ragged="pad")
    assert map_leaves(np.shape, data) == {
        "action": (2, 5, 3),
        "observation": {"state": (2, 6, 2), "text": (2, 6)},
        "task": (2,),
    }
    assert {name: mask.sum(1).tolist() for name, mask in info.masks.items()} == {
        "action": [2, 5],
        "observation/state": [3, 6],
        "observation/text": [3, 6],
    }
    assert info.mask.tolist() == info.masks["action"].tolist()
    assert info.ends.tolist() == [[False, True, False, False, False], [False, False, False, False, True]]
    assert data["observation"]["text"][0].tolist() == [*item(2)[2], b"", b"", b""]


@pytest.mark.parametrize("lengths", [[2, 5], [4, 4], [3]])
def test_pad_to_gives_every_batch_one_shape(lengths: list[int]) -> None:
    """Those whose items happen to be of one length, too: the signature says that they may differ."""
    data, info = batch_of(lengths, ragged="pad", pad_to=8)
    assert data["action"].shape == (len(lengths), 8, 3)
    assert data["observation"]["state"].shape == (len(lengths), 8, 2)
    assert info.mask.sum(1).tolist() == lengths
    assert data["task"].shape == (len(lengths),)


def test_items_of_one_length_have_a_mask_without_pad_to() -> None:
    assert batch_of([4, 4], ragged="pad").info.mask.all()


def test_without_a_signature_columns_go_by_number() -> None:
    data, info = batch_of([2, 5], None, ragged="pad")
    assert [column.shape for column in data] == [(2, 5, 3), (2, 6, 2), (2, 6), (2,)]
    assert set(info.masks) == {"0", "1", "2"}
    data, info = batch_of([4, 4], None, ragged="pad")
    assert info.mask is None
    _, info = batch_of([4, 4], None, ragged="pad", spec=SIGNATURE)
    assert info.mask.shape == (2, 4)


def test_one_sample_is_without_the_axis_of_a_batch() -> None:
    with connected(server_of(SIGNATURE, [item(3)])) as client:
        data, info = client.sample_one("replay")
    assert data["action"].tobytes() == item(3)[0].tobytes()
    assert data["task"] == b"task\x00"
    assert (int(info.key), info.mask) == (1, None)


IMAGES = {"image": ArraySpec.of_images(ImageSpec((2, None, 3), np.dtype(np.uint8), "png"), (None,))}


def images(*widths: int) -> tuple[list[Array], Array]:
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (2, width, 3), np.uint8) for width in widths]
    files = np.empty(len(pictures), object)
    files[:] = [png(one) for one in pictures]
    return pictures, files


def of_images(items: list[Array], signature: Any = IMAGES, **options: Any) -> Any:
    server = server_of(signature, [(one,) for one in items], sampler="fifo", max_times_sampled=1)
    with connected(server) as client:
        return next(client.sample("replay", len(items), samples=len(items), **options))


def test_encoded_images_are_decoded_and_then_filled_up() -> None:
    (a, b, c), files = images(4, 4, 4)
    data, info = of_images([files[:2], files[2:]], ragged="pad")
    assert np.array_equal(data["image"], [[a, b], [c, np.zeros_like(c)]])
    assert info.mask.tolist() == [[True, True], [True, False]]
    lists = of_images([files[:2], files[2:]]).data["image"]
    assert [one.shape for one in lists] == [(2, 2, 4, 3), (1, 2, 4, 3)]


def test_bytes_that_are_filled_up_decode_to_the_same() -> None:
    _, files = images(4, 4, 4)
    coded = of_images([files[:2], files[2:]], ragged="pad", decode=False).data["image"]
    assert coded.tolist() == [files[:2].tolist(), [files[2], b""]]


def test_images_that_differ_in_size_are_lists() -> None:
    (a, b), files = images(4, 5)
    data, _ = of_images([files[:1], files[1:]])
    assert np.array_equal(data["image"][0], [a])
    assert np.array_equal(data["image"][1], [b])
    single = {"image": ArraySpec.of_images(ImageSpec((2, None, 3), np.dtype(np.uint8), "png"))}
    data, _ = of_images([np.array(files[0], object), np.array(files[1], object)], single)
    assert [one.shape for one in data["image"]] == [(2, 4, 3), (2, 5, 3)]
    with pytest.raises(ConfigError, match="fills rows only"):
        of_images([files[:1], files[1:]], ragged="pad")


@pytest.mark.parametrize("options", [{"pad_to": 3}, {"ragged": "pad", "pad_to": 0}, {"ragged": "zeros"}])
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        SampleOptions(**options)
