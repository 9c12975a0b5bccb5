"""What is said of a dataset as a whole, not of one episode: by a source, which knows its files, or by validation, which saw many episodes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Remark:
    """One thing about a dataset that whoever uses it should know; nothing that keeps an episode from being read.

    Attributes:
      code: what kind of thing; a key of `validation.CODES` where a user may tolerate it by `allow`.
      text: what was found, where, and how to go on; one line.
      count: of what the text speaks of: records, say, or values.
      path: the step column, or "" for the dataset.
    """

    code: str
    text: str
    count: int = 1
    path: str = ""

    def __str__(self) -> str:
        where = f'column "{self.path}": ' if self.path else ""
        return f"{self.code}: {where}{self.text}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)
