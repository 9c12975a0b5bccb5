"""Images that stay encoded: `client.push(..., encoded="all")` of a TFDS dataset of 256x320 JPEG images against the same push decoded.

Sizes are held against those of the dataset's files. The table is filled by pushing the dataset several times, under new keys.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from replay_server import TableConfig

from benchmarks import sampling
from benchmarks.common import Goal, Result, Run, Side, Size, alternate, comparison, figure, timed
from benchmarks.memory import growth_per_item
from benchmarks.servers import BenchServer
from rlds2reverb import open_source
from rlds2reverb.conventions import filled_spec
from rlds2reverb.episodes import Array
from rlds2reverb.images import decode_columns
from rlds2reverb.sources.base import with_encoded
from rlds2reverb.specs import Nest
from rlds2reverb.views.registry import view_of
from rlds2reverb.views.trajectory import table_signature

FULL = Size(items=20_000, reference_items=2_000, repeats=3)
SHORT = Size(items=5_000, reference_items=1_000, repeats=1)

IMAGE = (256, 320, 3)
EPISODES, STEPS = 20, 50
"""Of the dataset: as long as those of Open X-Embodiment."""

ENCODED, DECODED = "encoded", "decoded"
PUSH_GOAL = Goal(5.0)
SIZE_GOAL = Goal(1.15, at_most=True)
BATCHES = 6


def run(size: Size) -> Iterator[Result]:
    """Steps per second of a push, bytes of memory and bytes sent for each byte of the dataset's files, samples per second."""
    with tempfile.TemporaryDirectory() as folder:
        directory = write_dataset(Path(folder))
        name = f"tfds:{directory}"
        files = sum(path.stat().st_size for path in directory.glob("*tfrecord*"))
        tables = [TableConfig(table, _signature(name, table)) for table in (ENCODED, DECODED)]
        with BenchServer(tables) as server:
            yield from _rates(server, name, size)
        with BenchServer(tables) as server:
            yield from _sizes(server, name, size, files)


def _rates(server: BenchServer, name: str, size: Size) -> Iterator[Result]:
    sides = [
        Side(ENCODED, lambda n: _push(server, name, ENCODED, n), -(-size.items // (EPISODES * STEPS))),
        Side(DECODED, lambda n: _push(server, name, DECODED, n), -(-size.reference_items // (EPISODES * STEPS))),
    ]
    yield comparison(
        "encoded/push", alternate(sides, size.repeats), ENCODED, DECODED, "steps/s", PUSH_GOAL, image=list(IMAGE)
    )
    signature = server.client.server_info().tables[ENCODED].signature
    after, before = "decoded after sampling", "stored decoded"
    sampled = [
        Side(after, lambda n: _sample_and_decode(server, signature, n), BATCHES),
        Side(before, lambda n: sampling.sample(server, DECODED, n), BATCHES),
    ]
    runs = alternate(sampled, size.repeats)
    yield comparison("encoded/sampling", runs, after, before, "samples/s", batch=sampling.BATCH)


def _sizes(server: BenchServer, name: str, size: Size, files: int) -> Iterator[Result]:
    steps, sent = EPISODES * STEPS, [0]
    times = -(-size.items // steps)

    def fill(server: BenchServer, table: str, times: int) -> int:
        sent[0] = sum(_report(server, name, table).bytes for _ in range(times))
        return times * steps

    encoded = growth_per_item(server, lambda one: fill(one, ENCODED, times))
    parameters = {"file_bytes_per_step": round(files / steps), "steps": times * steps, "view": "two_step"}
    ours = sent[0] / (times * files)
    decoded = growth_per_item(server, lambda one: fill(one, DECODED, 2))
    yield figure(
        "encoded/sent", ours, "of the files' bytes", SIZE_GOAL, decoded=round(sent[0] / (2 * files), 2), **parameters
    )
    yield figure(
        "encoded/memory",
        encoded * steps / files,
        "of the files' bytes",
        SIZE_GOAL,
        server_bytes_per_step=round(encoded),
        decoded_server_bytes_per_step=round(decoded),
        **parameters,
    )


def _report(server: BenchServer, name: str, table: str) -> Any:
    return server.client.push(name, table, again=True, encoded="all" if table == ENCODED else ())


def _push(server: BenchServer, name: str, table: str, times: int) -> Run:
    server.empty(table)
    with timed() as watch:
        steps = sum(_report(server, name, table).steps_pushed for _ in range(times))
    return watch.run(steps)


def _sample_and_decode(server: BenchServer, signature: Nest, batches: int) -> Run:
    """As `sampling.sample`, with every batch decoded by numpy."""
    import reverb

    dataset = reverb.TrajectoryDataset.from_table_signature(server.address, ENCODED, sampling.IN_FLIGHT)
    reader = dataset.batch(sampling.BATCH).as_numpy_iterator()
    next(reader)
    with timed() as watch:
        for _ in range(batches):
            decode_columns(next(reader).data, signature)
    del reader
    server.settle()
    return watch.run(batches * sampling.BATCH)


def _signature(name: str, table: str) -> Nest:
    source = with_encoded(open_source(name), ("all",) if table == ENCODED else ())
    return table_signature(view_of("two_step").signature(filled_spec(source.spec())))


def write_dataset(folder: Path) -> Path:
    """A dataset in TFDS format, by TFDS's own writer; its version directory."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.rlds import rlds_base

    directory = folder / "camera" / "1.0.0"
    directory.mkdir(parents=True)
    features = tfds.features
    config = rlds_base.DatasetConfig(
        name="camera",
        observation_info=features.FeaturesDict(
            {
                "image": features.Image(shape=IMAGE, encoding_format="jpeg"),
                "state": features.Tensor(shape=(7,), dtype=np.float32),
            }
        ),
        action_info=features.Tensor(shape=(7,), dtype=np.float32),
        reward_info=np.float32,
        discount_info=np.float32,
    )
    identity = tfds.core.DatasetIdentity("camera", tfds.core.Version("1.0.0"), str(directory), "")
    writer = tfds.core.SequentialWriter(rlds_base.build_info(config, identity), max_examples_per_shard=EPISODES)
    writer.initialize_splits(["train"])
    for number in range(EPISODES):
        writer.add_examples({"train": [{"steps": _steps(np.random.default_rng([2026, number]))}]})
    writer.close_all()
    return directory


def _steps(rng: np.random.Generator) -> list[dict[str, Any]]:
    return [
        {
            "observation": {"image": image, "state": rng.normal(size=7).astype(np.float32)},
            "action": rng.normal(size=7).astype(np.float32),
            "reward": np.float32(row == STEPS - 1),
            "discount": np.float32(1),
            "is_first": row == 0,
            "is_last": row == STEPS - 1,
            "is_terminal": row == STEPS - 1,
        }
        for row, image in enumerate(_film(rng))
    ]


def _film(rng: np.random.Generator) -> Iterator[Array]:
    """What a slowly moving camera sees: a scene whose spectrum falls as those of real ones do, and a sensor's noise."""
    height, width, channels = IMAGE
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(2 * width)[None])
    frequency[0, 0] = np.inf
    noise = rng.standard_normal((height, 2 * width, channels))
    scene = np.fft.irfft2(np.fft.rfft2(noise, axes=(0, 1)) / frequency[..., None] ** 1.5, (height, 2 * width), (0, 1))
    scene = 127 + 45 * scene / scene.std()
    for row in range(STEPS):
        yield np.clip(scene[:, row : row + width] + rng.normal(0, 1, IMAGE), 0, 255).astype(np.uint8)
