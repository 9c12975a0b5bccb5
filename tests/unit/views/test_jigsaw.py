"""Jigsaw puzzles: laid pixel by pixel, drawn evenly, of orders from a file or made far apart."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.formats.source import spec_of
from rlds2reverb.specs import ArraySpec
from rlds2reverb.views import jigsaw, view_from
from rlds2reverb.views.jigsaw import Jigsaw, read_tile_orders, tile_orders
from tests.support import reference, strategies
from tests.support.profiles import examples
from tests.support.views.cutting import ordered_items
from tests.support.views.every import slow_items


def images(rows: int, shape: tuple[int, ...] = (12, 12, 3), name: str = "e", filling: int = 0) -> Episode:
    """An episode of random images."""
    column = np.random.default_rng(filling).integers(0, 256, (rows, *shape), np.uint8)
    return Episode({"observation": column}, {}, name)


def classes(view: Jigsaw, episode: Episode) -> list[int]:
    """The class of each item."""
    return [int(number) for number in view.cut(episode).rows["target"][:, 0]]


@st.composite
def puzzles(draw: st.DrawFn) -> tuple[Jigsaw, Episode]:
    """A view, and an episode of images that are large enough for it."""
    side, channels = draw(st.integers(2, 4)), draw(st.sampled_from(["first", "last"]))
    view = Jigsaw(draw(st.integers(1, 24)), side * side, channels, draw(st.integers(0, 5)))
    specs = draw(strategies.image_specs(3 * side, channels))
    return view, draw(strategies.episodes(min_steps=1, max_steps=6, specs=specs))


@settings(max_examples=60, deadline=None)
@given(puzzles())
def test_puzzles_are_those_laid_pixel_by_pixel(both: tuple[Jigsaw, Episode]) -> None:
    view, episode = both
    found = ordered_items(view, episode)
    assert len(found) == len(episode) - 1  # no first frame is lost
    reference.assert_same_items(found, slow_items(view, episode))


def test_tiles_of_the_originals_images_are_26_pixels() -> None:
    spec = Jigsaw(channels="first").signature(spec_of(images(2, (3, 84, 84))))
    int64 = np.dtype(np.int64)
    wanted = {"context": ArraySpec((3, 78, 78), np.dtype(np.uint8)), "target": ArraySpec((1,), int64)}
    assert spec == {**wanted, "timestep": ArraySpec((), int64)}


@given(st.integers(1, 40), st.integers(1, 24), st.integers(0, 9))
def test_an_episode_walks_through_a_shuffled_list_of_all_classes(rows: int, number: int, seed: int) -> None:
    found = classes(Jigsaw(number, 4, seed=seed), images(rows))
    first = found[:number]
    assert len(set(first)) == len(first)
    assert set(first) <= set(range(number))
    assert found == [first[t % number] for t in range(rows - 1)]


def test_every_class_is_as_likely() -> None:
    drawn = [classes(Jigsaw(8, 4), images(4, name=f"e{number}")) for number in range(2000)]
    for step in np.array(drawn).T:
        counts = np.bincount(step, minlength=8)
        squares = float(((counts - 250) ** 2 / 250).sum())
        assert squares <= 7 + 5 * np.sqrt(2 * 7)  # of a chi-square, five standard deviations


def test_classes_depend_on_the_seed_and_the_name_only() -> None:
    names = [f"e{number}" for number in range(20)]
    one, other = Jigsaw(100, seed=1), Jigsaw(100, seed=2)
    found = [classes(one, images(9, name=name)) for name in names]
    assert found == [classes(one, images(9, (9, 15, 1), name, filling=1)) for name in names]
    assert len(set(map(tuple, found))) == 20
    assert all(classes(other, images(9, name=name)) != mine for name, mine in zip(names, found))


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"observation": np.zeros((3, 12), np.uint8)}, "observation uint8[12]"),
        ({"observation": np.zeros((3, 12, 12), np.uint8)}, "observation uint8[12, 12]"),
        ({"observation": np.zeros((3, 12, 12, 3), np.int64)}, "observation int64[12, 12, 3]"),
        ({"observation": np.zeros((3, 12, 12, 3), bool)}, "observation bool[12, 12, 3]"),
        (
            {"observation/a": np.zeros((3, 9, 9, 1), np.uint8), "observation/b": np.zeros(3, np.int32)},
            "observation/a uint8[9, 9, 1], observation/b int32[]",
        ),
    ],
)
def test_what_is_not_one_column_of_images_is_refused(columns: Any, found: str) -> None:
    episode = Episode(columns, {}, "e")
    message = re.escape(f"jigsaw: observation: expected one image column, [H, W, C] of uint8 or floats, found {found}")
    for use in (lambda: Jigsaw().signature(spec_of(episode)), lambda: Jigsaw().cut(episode)):
        with pytest.raises(ViewError, match=f"^{message}$"):
            use()
    with pytest.raises(ViewError, match=r"one image column, \[C, H, W\] of"):
        Jigsaw(channels="first").cut(episode)


def test_steps_without_an_observation_are_refused() -> None:
    with pytest.raises(ViewError, match="jigsaw: the steps lack observation"):
        Jigsaw().signature({"action": ArraySpec((), np.dtype(np.int32))})
    with pytest.raises(ViewError, match=r"jigsaw: observation: expected one image column, .* found none"):
        Jigsaw().cut(Episode({"action": np.zeros(3)}, {}, "e"))


@pytest.mark.parametrize(("tiles", "shape"), [(9, (8, 12, 3)), (9, (12, 8, 3)), (16, (11, 12, 3)), (9, (3, 84, 84))])
def test_images_that_are_too_small_are_refused(tiles: int, shape: tuple[int, ...]) -> None:
    least = 3 * round(tiles**0.5)
    message = f'at least {least} by {least} pixels for {tiles} tiles and channels="last", found uint8\\[{shape[0]},'
    view = Jigsaw(4, tiles)
    for use in (lambda: view.signature(spec_of(images(3, shape))), lambda: view.cut(images(3, shape))):
        with pytest.raises(ViewError, match=message):
            use()


def test_images_of_any_size_are_refused() -> None:
    spec = {"observation": ArraySpec((None, None, 3), np.dtype(np.uint8))}
    with pytest.raises(ViewError, match=r"expected images of a fixed size, .* found uint8\[\?, \?, 3\]"):
        Jigsaw().signature(spec)


# Orders of tiles.


def distances(orders: Any) -> Any:
    """Places at which two orders differ, for every pair."""
    found = np.count_nonzero(orders[:, None] != orders[None], axis=2)
    return found[np.triu_indices(len(orders), 1)]


@given(st.integers(1, 300), st.sampled_from([4, 9, 16, 25]), st.integers(-3, 3))
@examples(12, 60)
def test_made_orders_are_distinct_and_the_same_again(number: int, tiles: int, seed: int) -> None:
    number = min(number, 24) if tiles == 4 else number
    orders = tile_orders(number, tiles, seed)
    assert orders.shape == (number, tiles)
    assert np.array_equal(np.sort(orders, axis=1), np.tile(np.arange(tiles), (number, 1)))
    assert len(np.unique(orders, axis=0)) == number
    tile_orders.cache_clear()
    assert np.array_equal(tile_orders(number, tiles, seed), orders)
    assert np.array_equal(tile_orders(max(1, number // 2), tiles, seed), orders[: max(1, number // 2)])


def test_made_orders_differ_at_most_places() -> None:
    """The file of the original's 1000 orders has pairs that differ at two places only, and a mean of 8.005."""
    for seed in range(3):
        found = distances(tile_orders(1000, 9, seed))
        assert found.min() >= 4
        assert found.mean() > 8.005
    assert distances(tile_orders(9, 9, 0)).tolist() == [9] * 36
    assert len({str(tile_orders(9, 9, seed)) for seed in range(5)}) == 5


def test_whole_rounds_have_the_largest_mean_distance_there_is() -> None:
    orders = tile_orders(90, 9, 0)
    counts = np.stack([np.bincount(place, minlength=9) for place in orders.T])
    assert np.all(counts == 10)  # by convexity no other counts make fewer agreeing pairs


def test_orders_come_from_files(tmp_path: Path) -> None:
    orders = np.array([[3, 2, 1, 0], [0, 1, 2, 3], [1, 0, 3, 2]])
    np.save(tmp_path / "orders.npy", orders.astype(np.uint8))
    (tmp_path / "orders.csv").write_text("# from the top left\n3,2,1,0\n0, 1, 2, 3\n1,0,3,2\n")
    views = [
        view_from({"view": "jigsaw", "permutations": str(tmp_path / name), "tiles": 4})
        for name in ("orders.npy", "orders.csv")
    ]
    views.append(Jigsaw(tmp_path / "orders.npy", 4))
    assert len({view.label for view in views}) == 1
    for view in views:
        assert isinstance(view, Jigsaw)
        assert view.orders.dtype == np.int64
        assert view.orders.tolist() == orders.tolist()
    np.save(tmp_path / "orders.npy", orders[::-1])
    assert Jigsaw(tmp_path / "orders.npy", 4).label != views[0].label


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npy", np.zeros((2, 4)), r"expected whole numbers \[classes, 4\], got float64\[2, 4\]"),
        ("a.npy", np.zeros((2, 9), int), r"expected whole numbers \[classes, 4\], got int64\[2, 9\]"),
        ("a.npy", np.arange(4), r"expected whole numbers \[classes, 4\], got int64\[4\]"),
        ("a.npy", np.array([[0, 1, 2, 3], [1, 2, 3, 4]]), r"expected rows that hold each of 0 to 3 once, got \[1, 2, 3, 4\] in row 1"),
        ("a.npy", np.array([[0, 1, 2, 3], [1, 0, 2, 3], [0, 1, 2, 3]]), r"expected distinct rows, got \[0, 1, 2, 3\] in row 2 again"),
        ("a.npy", np.zeros((0, 4), int), "expected rows that hold each of 0 to 3 once, got no row"),
        ("a.npy", b"nonsense", "cannot be read: "),
        ("a.npy", b"", "cannot be read: "),
        ("a.npy", np.array([["a"]], object), "cannot be read: "),
        ("a.csv", b"0,1,1,3\n", r"expected rows that hold each of 0 to 3 once, got \[0, 1, 1, 3\] in row 0"),
        ("a.csv", b"0,1,2,three\n", "cannot be read: "),
        ("a.csv", b"\xff\xfe", "cannot be read: "),
        ("a.csv", b" \n", "cannot be read: it is empty"),
        ("a.csv", b"# nothing\n", "cannot be read: it is empty"),
        ("a.npy", None, "cannot be read: .*No such file"),
        ("a.npz", b"", "expected a .npy or .csv file, or a number"),
    ],
)  # fmt: skip
def test_files_that_hold_no_orders_are_refused(tmp_path: Path, name: str, content: Any, message: str) -> None:
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content, allow_pickle=True)
    with pytest.raises(ViewError, match=f"^{re.escape(str(path))}: permutations: {message}"):
        read_tile_orders(path, 4)
    with pytest.raises(ViewError, match=f"^jigsaw: {re.escape(str(path))}: permutations: {message}"):
        Jigsaw(str(path), 4)


def test_the_table_of_the_docstring_is_true(tmp_path: Path) -> None:
    np.save(tmp_path / "orders.npy", [[0, 1, 2, 3], [3, 0, 1, 2]])
    letters = np.kron([[0, 1], [2, 3]], np.ones((3, 3))).astype(np.uint8)[..., None]
    episode = Episode({"observation": np.stack([letters] * 3)}, {}, "e")
    found = (Jigsaw(tmp_path / "orders.npy", 4, seed=seed).cut(episode) for seed in range(20))
    cut = next(cut for cut in found if cut.rows["target"][:, 0].tolist() == [1, 0])
    for t in range(2):
        (a, b), (c, d) = np.array(list("ABCD"))[cut.rows["context"][t, :, :, 0]]
        line = f"| {t} | {a} {b} / {c} {d} | {cut.rows['target'][t, 0]} | {cut.rows['timestep'][t]} |"
        assert line in str(jigsaw.__doc__)
