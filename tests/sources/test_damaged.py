"""Damaged files of every format: an error of ours, or a bad episode; never a traceback, and never a hang.

A case of `tests/sources/cases` takes part by `write(folder) -> name of the source`.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.sources import open_source
from tests.profiles import DEEP, SEED
from tests.raising import outcome_of
from tests.sources.test_contract import CASES

WRITTEN = {scheme: case for scheme, case in CASES.items() if hasattr(case, "write")}


def truncated(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def flipped(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8, 64))):
        if changed:
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def overwritten(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + draw.choice((b"\0", b"\xff", b"[", b'"')) * draw.randrange(1, 40) + data[at + 8 :]


def emptied(data: bytes, draw: random.Random) -> bytes:
    return b""


DAMAGED_FILES = 10_000 if DEEP else 40

DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (truncated, flipped, flipped, overwritten, emptied)


@pytest.fixture(scope="module", params=list(WRITTEN))
def dataset(request: pytest.FixtureRequest) -> Any:
    folder = Path(tempfile.mkdtemp())
    yield folder, WRITTEN[request.param].write(folder)
    shutil.rmtree(folder)


def test_damaged_files_give_our_errors_or_bad_episodes(dataset: Any) -> None:
    folder, name = dataset
    assert all(not episode.faults for episode in open_source(name))
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    draw = random.Random(SEED if DEEP else 1)
    for number in range(DAMAGED_FILES):
        path = draw.choice(files)
        whole = path.read_bytes()
        path.write_bytes(draw.choice(DAMAGES)(whole, draw))
        try:
            found = outcome_of(SourceError, lambda: list(open_source(name)))
        finally:
            path.write_bytes(whole)
        assert str(found) if isinstance(found, SourceError) else all(len(episode) >= 0 for episode in found), (
            f"case {number} of seed {SEED}, {path}"
        )
