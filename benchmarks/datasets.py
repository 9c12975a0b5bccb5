"""TFDS datasets on disk for benchmarks, made once and kept in `.benchmarks` of the checkout (`make clean` removes it).

A folder's name has a digest of the code that made it, so changed code makes new data.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import data
from rlds2reverb.formats.tfds import bundled_path
from rlds2reverb.formats.tfds.tfrecord import masked_checksum, tfrecords

KEPT = Path(__file__).parent.parent / ".benchmarks"

SHARDS = 4
"""Files of a dataset: with several, `tf.data` reads in parallel."""

_DISTINCT_STEPS = 4_000
"""Steps that short episodes are made of; longer data repeats them, under other names."""


def long_episodes(steps: int) -> Path:
    """Half-cheetah, 1,001 steps per episode, at least so many steps in all: the bundled files over and over."""
    return kept(f"long-{steps}", lambda folder: _repeat(bundled_path("half_cheetah"), folder, steps // 1_001 + 1))


def short_episodes(steps: int, length: int) -> Path:
    """The same features in episodes of `length` steps, written by TFDS."""
    distinct = kept(f"distinct-{length}", lambda folder: _write_short(folder, length))
    return kept(f"short-{length}-{steps}", lambda folder: _repeat(distinct, folder, -(-steps // length)))


def open_x(name: str, episodes: int, **options: Any) -> Path:
    """A dataset of one of Open X-Embodiment's shapes, made by `examples/make_open_x.py`; its arguments."""
    words = [f"{key}{value}" for key, value in sorted(options.items())]

    def make(folder: Path) -> None:
        script = data.example("make_open_x")
        made = script.make(name, folder / "made", episodes, shards=SHARDS, **options)
        for path in made.iterdir():
            path.rename(folder / path.name)
        shutil.rmtree(folder / "made")

    return kept("-".join([name, str(episodes), *words]), make)


def record_bytes(dataset: Path) -> int:
    """Size of a dataset's record files."""
    return sum(path.stat().st_size for path in dataset.glob("*.tfrecord-*"))


def kept(name: str, make: Callable[[Path], None], *code_files: Path) -> Path:
    """The folder of this name, made in another one first, so that there is never half of it. `code_files`: further code that it is made by."""
    code = [Path(__file__), *sorted(data.EXAMPLES.glob("*open_x*.py")), *code_files]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in code)).hexdigest()[:12]
    folder = KEPT / f"{name}-{digest}"
    if not folder.exists():
        KEPT.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT) as temporary:
            made = Path(temporary) / "made"
            made.mkdir()
            make(made)
            with contextlib.suppress(OSError):  # another process was first
                made.rename(folder)
    return folder


def _repeat(recorded: Path, folder: Path, episodes: int) -> None:
    """At least so many episodes in `SHARDS` files: those of the one file of a dataset, again and again.

    Every record is an episode of its own: a field that no reader of `tf.train.Example` knows has its number.
    """
    info = json.loads((recorded / "dataset_info.json").read_text())
    (split,) = info["splits"]
    (one,) = recorded.glob("*.tfrecord-*")
    count = int(split["shardLengths"][0])
    copies = -(-episodes // (count * SHARDS))
    split["shardLengths"] = [str(copies * count)] * SHARDS
    split["numBytes"] = str(copies * SHARDS * (int(split["numBytes"]) + 9 * count))
    split["filepathTemplate"] = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    (folder / "dataset_info.json").write_text(json.dumps(info))
    shutil.copy(recorded / "features.json", folder)
    names = [folder / f"{info['name']}-{split['name']}.tfrecord-{n:05d}-of-{SHARDS:05d}" for n in range(SHARDS)]
    records = list(tfrecords(one, 0, count))
    numbers = itertools.count()
    for name in names:
        with name.open("wb") as file:
            for _ in range(copies):
                file.writelines(_framed(record + _number(next(numbers))) for record in records)


def _number(number: int) -> bytes:
    """Field 15 of a message, a fixed64."""
    return b"\x79" + struct.pack("<Q", number)


def _framed(record: bytes) -> bytes:
    """A record as a file of TFRecords has it."""
    length = struct.pack("<Q", len(record))
    checksums = (struct.pack("<I", masked_checksum(part)) for part in (length, record))
    return length + next(checksums) + record + next(checksums)


def _write_short(folder: Path, length: int) -> None:
    import tensorflow_datasets as tfds

    features = tfds.builder_from_directory(bundled_path("half_cheetah")).info.features
    columns = [
        {name: column[start : start + length] for name, column in episode.items()}
        for episode in data.half_cheetah()
        for start in range(0, data.STEPS - length + 1, length)
    ][: _DISTINCT_STEPS // length]
    tfds.disable_progress_bar()
    with contextlib.redirect_stdout(sys.stderr):  # TFDS tells there what it does
        builder = tfds.dataset_builders.store_as_tfds_dataset(
            name="short",
            version="1.0.0",
            features=tfds.features.FeaturesDict({"steps": features["steps"]}),
            split_datasets={"train": enumerate(map(_example, columns))},
            data_dir=folder / "made",
            download_config=tfds.download.DownloadConfig(try_download_gcs=False, num_shards=1),
        )
    for path in Path(builder.data_dir).iterdir():
        path.rename(folder / path.name)
    shutil.rmtree(folder / "made")


def _example(columns: dict[str, Any]) -> dict[str, Any]:
    count = len(columns["reward"])
    flags = {"is_first": [t == 0 for t in range(count)], "is_last": [t == count - 1 for t in range(count)]}
    columns = {**columns, **flags}
    return {"steps": [{name: column[t] for name, column in columns.items()} for t in range(count)]}
