"""Make RLDS datasets of the shapes that Open X-Embodiment has, with made-up content.

    python examples/make_open_x.py bridge DIR --episodes 20

writes `DIR/bridge/0.1.0` with the writer of TFDS itself. There are three shapes:

    name    TFDS name             cameras                     action                  numbers  language          discount
    bridge  bridge                1 of 480 x 640              four columns in a dict  float32  in observation    absent
    rt1     fractal20220817_data  1 of 256 x 320              six columns in a dict   float32  in observation    absent
    droid   droid                 3 of 180 x 320, one moving  [7], and a dict besides float64  three, per step   1.0

Names, shapes and dtypes of the features are those of the TFDS catalog (bridge, fractal20220817_data) and of DROID's
documentation. All three keep the convention of these sets: an episode has no extra last step, so the last action is
real; the last step has the reward 1, and is terminal.

Images look like a camera's: overlapping objects of all sizes, so that the spectrum falls with the frequency and has
edges in it; texture of the same kind; an arm and an object that move; a soft lens; sensor noise. A JPEG of TensorFlow's
quality 95 is 7 (180 x 320) to 14 (480 x 640) times smaller than its pixels. An RT-1 episode takes 1.38 MB; the catalog's
111.38 GiB for 87,212 episodes are 1.37 MB.

All content is a function of (shape, seed, episode number), so the same command makes equal files.
"""

import argparse
import contextlib
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from open_x_camera import film, motion
from open_x_shapes import SHAPES, Shape

SPLIT = "train"

Episode = dict[str, Any]
"""One TFDS example: `steps`, a list of rows (dicts), and what the episode has besides."""

INSTRUCTIONS = (
    "pick up the spoon and put it on the towel",
    "open the drawer",
    "move the green can near the apple",
    "put the carrot in the pot",
    "close the microwave",
    "fold the cloth from left to right",
)


def make_episode(shape: Shape, seed: int, number: int, steps: int, size: tuple[int, int]) -> Episode:
    """Return episode `number` of a dataset, of 3/4 to 5/4 of `steps` steps; every fifth of DROID has no language."""
    seeds = [seed, *shape.name.encode(), number]
    rng = np.random.default_rng(seeds)
    count = max(2, int(rng.integers(steps * 3 // 4, steps * 5 // 4 + 1)))
    moves = motion(rng, count)
    instruction = "" if shape.name == "droid" and number % 5 == 4 else INSTRUCTIONS[number % len(INSTRUCTIONS)]
    films = {
        name: film(np.random.default_rng([*seeds, place]), moves, size, moving)
        for place, (name, moving) in enumerate(shape.cameras.items(), 1)
    }
    rows = []
    for row in range(count):
        step = shape.step(moves, row, instruction)
        step["observation"] = {**step["observation"], **{name: next(images) for name, images in films.items()}}
        last = row == count - 1
        rows.append({**step, "reward": np.float32(last), "is_first": row == 0, "is_last": last, "is_terminal": last})
    return {"steps": rows, **shape.episode(number)}


def features(shape: Shape, size: tuple[int, int], encoding: str) -> tfds.features.FeaturesDict:
    """Return the features of a dataset whose images have this size and encoding (jpeg, png)."""
    image = tfds.features.Image(shape=(*size, 3), dtype=np.uint8, encoding_format=encoding)
    tree = shape.features(image)
    return tfds.features.FeaturesDict({**tree, "steps": tfds.features.Dataset(tree["steps"])})


def make(
    name: str,
    output: pathlib.Path,
    episodes: int,
    steps: int | None = None,
    size: tuple[int, int] | None = None,
    seed: int = 0,
    shards: int = 1,
    encoding: str = "jpeg",
) -> pathlib.Path:
    """Make a dataset; return its version directory.

    Args:
        name: key of `SHAPES`.
        output: directory that holds the datasets; made if missing.
        episodes: how many, at least 1. Fewer episodes are some of more.
        steps: of an episode, on average, at least 2; None for what the real dataset has.
        size: height and width of the images; None for those of the real dataset.
        seed: of all content.
        shards: files, at most as many as episodes.
        encoding: of the images, "jpeg" or "png".

    Raises:
        ValueError: episodes or steps are too few, shards are none or more than episodes, the seed is negative.
        FileExistsError: the version directory exists already.
    """
    shape = SHAPES[name]
    count, size = shape.steps if steps is None else steps, size or shape.image_size
    if episodes < 1 or count < 2 or not 1 <= shards <= episodes or seed < 0:
        raise ValueError(
            f"expected at least 1 episode, 2 steps, 1 shard for each episode at most, and a seed of at least 0; "
            f"got {episodes} episodes, {count} steps, {shards} shards, seed {seed}"
        )
    directory: pathlib.Path = output / shape.name / shape.version
    if directory.exists():
        raise FileExistsError(f"{directory} exists: remove it or choose another output directory")
    made = ((number, make_episode(shape, seed, number, count, size)) for number in range(episodes))
    with contextlib.redirect_stdout(sys.stderr):  # TFDS tells there what it does
        tfds.dataset_builders.store_as_tfds_dataset(
            name=shape.name,
            version=shape.version,
            features=features(shape, size, encoding),
            split_datasets={SPLIT: made},
            data_dir=output,
            description=f"Made up in the shape of {shape.name}.",
            download_config=tfds.download.DownloadConfig(try_download_gcs=False, num_shards=shards),
        )
    return directory


def image_size(text: str) -> tuple[int, int]:
    """Return (height, width) of "HEIGHTxWIDTH"; a ValueError for anything else, and for sizes below 8."""
    height, width = map(int, text.split("x"))
    if min(height, width) < 8:
        raise ValueError(f"expected at least 8x8, got {text}")
    return height, width


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the dataset that the command line asks for and print its directory."""
    parser = argparse.ArgumentParser(description="Make a dataset in the shape of one of Open X-Embodiment.")
    parser.add_argument("name", choices=sorted(SHAPES))
    parser.add_argument("output", type=pathlib.Path, metavar="DIR", help="directory to write datasets into")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--steps", type=int, help="of an episode, on average; by default as in the real dataset")
    parser.add_argument(
        "--size", type=image_size, metavar="HxW", help="of the images, at least 8x8; by default as in the real dataset"
    )
    parser.add_argument("--seed", type=int, default=0, help="of all content, at least 0")
    parser.add_argument("--shards", type=int, default=1, help="files")
    parser.add_argument("--encoding", choices=("jpeg", "png"), default="jpeg", help="of the images")
    options = parser.parse_args(arguments)
    tfds.disable_progress_bar()
    try:
        print(make(**vars(options)))
    except (ValueError, FileExistsError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
