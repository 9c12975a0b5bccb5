"""One of each thing that a notebook shows, made by the library itself, with names that are hostile where they come from outside."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

import rlds2reverb
from rlds2reverb.client import Client
from rlds2reverb.episode import Episode
from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info
from tests.support.strategies import episode

HOSTILE = '<script>alert("1")</script>&\u202e\x1b[31m\x00\ud800\u200b\n'
INTO = {"replay": "two_step", "returns": "n_step:n=3"}


def images(steps: int, height: int = 20, width: int = 30) -> Any:
    """[steps, height, width, 3] uint8."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack(
        [np.stack([rows * 3, columns * 5, rows * columns + step * 20], -1) for step in range(steps)]
    ).astype(np.uint8)


def hostile_episode() -> Episode:
    """Names, texts, metadata and faults that would be tags; values that are no numbers."""
    steps = 5
    return Episode(
        {
            HOSTILE: np.arange(steps),
            "observation/image": images(steps),
            "text": np.array([HOSTILE.encode("utf-8", "replace"), b"", "\u05d0", b"\xff", b"a" * 10_000], object),
            "nan": np.array([np.nan, np.inf, -np.inf, 0, 1]),
            "reward": np.full(steps, np.nan),
            "objects": np.array([{}, [1], None, 3, b""], object),
            "short": np.zeros((0, 3)),
            "complex": np.ones(steps, np.complex64),
            "moments": np.zeros(steps, "datetime64[s]"),
            "records": np.zeros(steps, [("a", "f4"), ("b", "O")]),
        },
        metadata={"episode_id": HOSTILE, HOSTILE: HOSTILE, "array": np.arange(1000), "nothing": None},
        id=HOSTILE,
        faults=((HOSTILE, HOSTILE),) * 9,
    )


@cache
def things() -> dict[str, Any]:
    """Class -> one of it."""
    name = HOSTILE.replace("\ud800", "")  # what is hashed for item keys is UTF-8
    source = [episode(np.random.default_rng(seed), 10, episode_id=f"{seed}{name}") for seed in range(5)]
    source[4] = source[4].with_columns(reward=np.full(10, np.nan, np.float32))
    inspection = rlds2reverb.inspect(source, INTO)
    tables = [
        table_info(name, max_size=1000, signature=output.signature) for name, output in inspection.outputs.items()
    ]
    with Client(MemoryTransport(MemoryServer(*tables))) as client:
        plan = client.plan(source, table=INTO, on_invalid="skip")
        report = client.push(source, table=INTO, on_invalid="skip")
        with client.sample("replay", 4, samples=4) as sampler:
            batch = next(sampler)
        info = client.server_info()
    converted = rlds2reverb.convert(source, f"ted:{Path(mkdtemp()) / 'out'}", on_invalid="skip")
    made = [hostile_episode(), inspection, inspection.findings, plan, plan.tables[0], report, batch, batch.info, info]
    made += [info.tables["replay"], converted]
    return {f"{type(thing).__module__}.{type(thing).__qualname__}": thing for thing in made}
