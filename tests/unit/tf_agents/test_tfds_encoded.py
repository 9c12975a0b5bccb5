"""TFDS datasets whose images stay encoded: TFDS's own `SkipDecoding` is the oracle, and TFDS's decoder of what comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.formats import open_source
from rlds2reverb.specs import flatten

tfds = pytest.importorskip("tensorflow_datasets")
pytest.importorskip("imagecodecs")
pytest.importorskip("simplejpeg")

from rlds2reverb.images import decode_images

LENGTHS = (4, 1, 3)
IMAGES = {
    "observation/front": ((8, 10, 3), np.uint8, "jpeg"),
    "observation/wrist/depth": ((5, 6, 1), np.uint16, "png"),
    "observation/far": ((4, 3, 1), np.float32, "png"),
    "observation/any": ((None, None, 3), np.uint8, None),
}


def pixels(rng: np.random.Generator, path: str) -> Any:
    shape, dtype, _ = IMAGES[path]
    known = tuple(size or 7 for size in shape)
    return rng.integers(0, 256, known, np.uint8).astype(dtype)


def feature(path: str) -> Any:
    shape, dtype, encoding = IMAGES[path]
    return tfds.features.Image(shape=shape, dtype=dtype, encoding_format=encoding)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tensorflow_datasets.rlds import rlds_base

    folder = tmp_path_factory.mktemp("tfds") / "cameras" / "1.0.0"
    folder.mkdir(parents=True)
    observation = {
        "front": feature("observation/front"),
        "wrist": {"depth": feature("observation/wrist/depth")},
        "far": feature("observation/far"),
        "any": feature("observation/any"),
        "film": tfds.features.Sequence(tfds.features.Image(shape=(3, 4, 3), encoding_format="png")),
    }
    config = rlds_base.DatasetConfig(
        name="cameras",
        observation_info=tfds.features.FeaturesDict(observation),
        action_info=np.int64,
        reward_info=np.float32,
        discount_info=np.float32,
    )
    identity = tfds.core.DatasetIdentity("cameras", tfds.core.Version("1.0.0"), str(folder), "")
    writer = tfds.core.SequentialWriter(rlds_base.build_info(config, identity), max_examples_per_shard=2)
    writer.initialize_splits(["train"])
    rng = np.random.default_rng(0)
    for rows in LENGTHS:
        writer.add_examples({"train": [{"steps": [step(rng, row, rows) for row in range(rows)]}]})
    writer.close_all()
    return folder


def step(rng: np.random.Generator, row: int, rows: int) -> dict[str, Any]:
    return {
        "observation": {
            "front": pixels(rng, "observation/front"),
            "wrist": {"depth": pixels(rng, "observation/wrist/depth")},
            "far": pixels(rng, "observation/far"),
            "any": pixels(rng, "observation/any"),
            "film": rng.integers(0, 256, (2, 3, 4, 3), np.uint8),
        },
        "action": row,
        "reward": np.float32(row),
        "discount": np.float32(1),
        "is_first": row == 0,
        "is_last": row == rows - 1,
        "is_terminal": False,
    }


def test_the_files_are_those_that_tfds_hands_out_undecoded(directory: Path) -> None:
    skip = tfds.decode.SkipDecoding()
    nested = {"front": skip, "wrist": {"depth": skip}, "far": skip, "any": skip}
    builder = tfds.builder_from_directory(str(directory))
    theirs = builder.as_dataset(split="train", decoders={"steps": {"observation": nested}})
    source = open_source(f"tfds:{directory}").with_encoded(("all",))
    for episode, wanted in zip(source, theirs, strict=True):
        rows = [flatten(row) for row in wanted["steps"].as_numpy_iterator()]
        for path in IMAGES:
            assert episode.columns[path].tolist() == [row[path] for row in rows]


def test_decoded_they_are_what_is_stored_without_the_option(directory: Path) -> None:
    plain = open_source(f"tfds:{directory}")
    kept = plain.with_encoded(("all",))
    leaves = flatten(kept.spec())
    assert {path for path, leaf in leaves.items() if leaf.image is not None} == {*IMAGES, "observation/film"}
    assert leaves["observation/film"].shape == (None,)
    for episode, decoded in zip(kept, plain, strict=True):
        assert episode.id == decoded.id
        for path, leaf in leaves.items():
            wanted, column = decoded.columns[path], episode.columns[path]
            found = column if leaf.image is None else decode_images(column, leaf)
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted)


def test_some_may_be_decoded_and_others_not_in_shards_too(directory: Path) -> None:
    source = open_source(f"tfds:{directory}").with_encoded(("observation/wrist",)).shard(1, 2)
    (episode,) = source
    kept = {path for path, column in episode.columns.items() if column.dtype == object}
    assert kept == {"observation/wrist/depth"} == {path for path, leaf in flatten(source.spec()).items() if leaf.image}
    assert set(source.images()) == {*IMAGES, "observation/film"} - kept
    assert len(source.with_encoded(("observation/front",)).images()) == 3


@pytest.mark.parametrize("encoded", ["all", ["observation/front", "observation/wrist"]])
def test_the_signature_of_a_servers_table_may_be_derived(directory: Path, encoded: Any) -> None:
    from replay_server.config import decode, table_configs

    signature = {"from_dataset": f"tfds:{directory}", "encoded": encoded}
    (table,) = table_configs(decode({"tables": [{"name": "replay", "signature": signature}]}, ""))
    leaves = flatten(table.signature)
    kept = {path for path, leaf in leaves.items() if leaf.image is not None}
    front, depth = "observation/front", "observation/wrist/depth"
    assert kept == ({*IMAGES, "observation/film"} if encoded == "all" else {front, depth})
    assert str(leaves[depth].image) == "jpeg or png of uint16[5, 6, 1]"
