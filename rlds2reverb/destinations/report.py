"""What a conversion did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rlds2reverb.destinations.losing import Lost
from rlds2reverb.display import as_html
from rlds2reverb.remarks import Remark


@dataclass(frozen=True)
class ConvertReport:
    """The account of a conversion, finished or stopped; over all its runs, where it was stopped and went on.

    `episodes_read == episodes_written + sum(rejected.values())` holds for a finished one.

    Attributes:
      source, destination: what went where.
      path: the folder or the file that was written.
      episodes_read, steps_read: taken from the source.
      episodes_written, steps_written: of these, written.
      episodes_resumed: of those read, by runs before this one.
      rejected: code -> episodes rejected; each counts once, under its first problem.
      steps_rejected: steps of the rejected episodes.
      advice: code -> episodes written although a learner may misread them.
      repaired: code -> episodes mended before they were written.
      ends_mended: episodes whose last row was left out, or got the observation before it (`last_observation`).
      losses: what the destination's format cannot hold.
      remarks: what the source says of the dataset as a whole.
      encoded: paths of image columns that were written as the bytes of their files.
      bytes: of the columns written, in memory.
      seconds: wall time of this run.
      verified: episodes that were read back and are as they should be; None where nobody looked.
      stopped: what ended the conversion, on one line; "" when it is finished.
      transform: what was done to the columns first: operation -> value, those that did something.
      episodes_kept: of those written, on disk for the next run of the same conversion; 0 for a finished one.
      workers: processes that read, judged and encoded episodes at a time, in this run; 0 for none but this one.
      parts_again: parts of the source that were begun anew, for their workers were lost.
    """

    source: str
    destination: str
    path: str = ""
    episodes_read: int = 0
    steps_read: int = 0
    episodes_written: int = 0
    steps_written: int = 0
    episodes_resumed: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    steps_rejected: int = 0
    advice: Mapping[str, int] = field(default_factory=dict)
    repaired: Mapping[str, int] = field(default_factory=dict)
    ends_mended: int = 0
    losses: tuple[Lost, ...] = ()
    remarks: tuple[Remark, ...] = ()
    encoded: tuple[str, ...] = ()
    bytes: int = 0
    seconds: float = 0.0
    verified: int | None = None
    stopped: str = ""
    transform: Mapping[str, Any] = field(default_factory=dict)
    episodes_kept: int = 0
    workers: int = 0
    parts_again: int = 0

    def _repr_html_(self) -> str:
        return as_html(self)

    @property
    def episodes_rejected(self) -> int:
        """All rejected episodes."""
        return sum(self.rejected.values())

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "episodes_rejected": self.episodes_rejected}
