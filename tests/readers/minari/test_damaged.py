"""Damaged files that Minari made: an error of ours, or a bad episode."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.sources import open_source
from tests.profiles import DEEP, SEED
from tests.readers.minari import made
from tests.sources.test_damaged import DAMAGES


@pytest.mark.parametrize(
    ("version", "name", "options"), [one for one in made.OWN if "kinds" in one[1] or one[0] < "0.5"]
)
def test_damaged_files_give_our_errors_or_bad_episodes(version: str, name: str, options: str, tmp_path: Path) -> None:
    folder = made.copied(version, name, tmp_path)
    files = sorted(path for path in (folder / "data").rglob("*") if path.is_file())
    draw = random.Random(SEED if DEEP else 2)
    for number in range(2_000 if DEEP else 12):
        path = draw.choice(files)
        whole = path.read_bytes()
        path.write_bytes(draw.choice(DAMAGES)(whole, draw))
        try:
            for episode in open_source(f"minari:{folder}{options}"):
                assert episode.faults or len(episode) > 0
        except SourceError:
            continue
        except Exception as error:
            raise AssertionError(f"case {number} of seed {SEED}, {path}: {type(error).__name__}") from error
        finally:
            path.write_bytes(whole)
