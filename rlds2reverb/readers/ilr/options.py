"""How the data is to be read, where more than one way makes sense; and a name for what is read so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import xxhash

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.alignment import REPEAT

TERMINAL, TRUNCATION = "terminal", "truncation"
DONE_MEANS = (TERMINAL, TRUNCATION)
KEEP, SPLIT, REFUSE = "keep", "split", "refuse"
GAPS = (KEEP, SPLIT, REFUSE)

_LOOKED_AT = 1 << 16


@dataclass(frozen=True)
class Options:
    """What to do where the data does not tell.

    Attributes:
      done_means: whether a step that is done leads to a terminal state; il-representations does not tell that from a time limit.
      last_step: what becomes of the last of as many observations as actions; see `native`.
      gaps: what becomes of a trajectory in which the observation after a step is not the next step's: it is kept as it is, cut there, or a
        bad episode.
    """

    done_means: str = TERMINAL
    gaps: str = KEEP
    last_step: str = REPEAT

    @property
    def label(self) -> str:
        """What of it is not the default."""
        return "".join(
            f"|{one}" for one in (self.done_means, self.gaps, self.last_step) if one not in (TERMINAL, KEEP, REPEAT)
        )


def fingerprint_of(paths: Iterable[Path], options: Options) -> str:
    """Names the contents of some files: by their sizes, and by what stands at their beginnings and ends.

    Raises:
      SourceError: a file cannot be read.
    """
    digest = xxhash.xxh3_128()
    for path in paths:
        try:
            with path.open("rb") as file:
                size = path.stat().st_size
                digest.update(f"{size}|".encode() + file.read(_LOOKED_AT))
                file.seek(max(0, size - _LOOKED_AT))
                digest.update(file.read(_LOOKED_AT))
        except (OSError, ValueError) as error:
            raise SourceError(f"{path}: cannot be read: {error}") from error
    return f"ilr:{digest.hexdigest()}{options.label}"
