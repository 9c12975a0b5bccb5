"""Every error this package raises on purpose.

The tree says whose fault it is and whether trying again can help::

    Rlds2ReverbError
    ├── ConfigError          an argument or option makes no sense (the caller's fault)
    ├── SourceError          a dataset cannot be opened or read
    ├── StorageError         a bucket does not answer, refuses, or has another object than before; no fault of an episode
    ├── InvalidEpisode       an episode breaks the rules of validation; carries its problems
    ├── ViewError            a view cannot cut this episode or this spec
    ├── SpecError            a spec or a signature has two columns of one name
    ├── SpecMismatch         the table's signature is not that of the items; also a ValueError
    ├── DecodeError          a sample's encoded image is no image, or not of the size in its table
    ├── CapacityError        the table has no room for the push
    ├── ConversionError      what a conversion wrote is not what it read, or would lose something that must not be lost
    ├── LedgerError          the ledger file cannot be read or written, is not ours, or of another version
    ├── WriteError           a file cannot be written: the disk is full, say; also an OSError
    ├── WorkersLost          the workers of one task died again and again
    ├── WireError            bytes that are not Reverb's protocol, or a value it cannot carry
    └── TransportError       talking to the server failed; `retryable` says whether trying again may help
        ├── ServerUnreachable    no answer within the deadline
        ├── ServerRestarted      another server process answers than the one the push began with
        └── Stalled              nothing was confirmed for too long; says which limiter blocks

A message says where, what was expected, what came, and how to go on. An error that stopped a push has the push's account as `report`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

Report = TypeVar("Report")


class EpisodeProblem(Protocol):
    """One thing wrong with one episode; `rlds2reverb.Problem` is one. Its `str` is a line for people."""

    @property
    def code(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def detail(self) -> str: ...

    @property
    def is_advice(self) -> bool: ...

    @property
    def is_repairable(self) -> bool: ...


class Rlds2ReverbError(Exception):
    """Base of all errors raised on purpose by this package.

    Attributes:
      report: when the error stopped a push, what that push stored and what not (`rlds2reverb.PushReport`); when it stopped a conversion, a
        `rlds2reverb.ConvertReport`; else None. An exception that is not ours, such as KeyboardInterrupt, has it as well: see `report_of`.
    """

    report: Any = None  # its classes belong to the layers above


def keep_report(error: BaseException, report: object) -> None:
    """Gives an error the account of the push, or the conversion, that it stopped."""
    vars(error)["report"] = report


def report_of(error: BaseException, kind: type[Report]) -> Report | None:
    """The account of this class that the error carries, such as `PushReport`; None when the error stopped no such work."""
    report = getattr(error, "report", None)
    return report if isinstance(report, kind) else None


def reason_of(error: BaseException) -> str:
    """The error's class and message on one line; "interrupted" for Ctrl-C."""
    if not isinstance(error, (Exception, SystemExit)):
        return "interrupted"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


class ConfigError(Rlds2ReverbError):
    """An argument, an option or a combination of them makes no sense."""


class SourceError(Rlds2ReverbError):
    """A dataset cannot be opened or read, or is not in RLDS form."""


class StorageError(Rlds2ReverbError):
    """A bucket or a hub does not answer or refuses, or an object has changed since it was opened. Never stands for a damaged episode."""


class InvalidEpisode(Rlds2ReverbError):
    """An episode breaks the rules and the policy is to raise.

    Attributes:
      episode_id: the episode's id.
      problems: every problem found in it, in the order of the checks.
      title: its name in the message: the id, and the dataset's own beside it where there is one.
      is_tolerable: whether `allow` can let it pass; not where a format cannot hold it.
    """

    def __init__(
        self, episode_id: str, problems: Sequence[EpisodeProblem], title: str = "", is_tolerable: bool = True
    ) -> None:
        self.episode_id = episode_id
        self.problems = tuple(problems)
        self.title = title or episode_id
        self.is_tolerable = is_tolerable
        repairable = any(problem.is_repairable for problem in self.problems)
        listed = "; ".join(str(problem) for problem in self.problems)
        tolerated = f", or tolerate {_describe_tolerance(self.problems)}" if is_tolerable else ""
        super().__init__(
            f"episode {self.title}: {listed}. Nothing of this episode was stored; go on with "
            f'on_invalid="skip" or "quarantine" (--on-invalid){tolerated}'
            + ('; on_invalid="repair" mends what has one right answer' if repairable else "")
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.episode_id, self.problems, self.title, self.is_tolerable), vars(self)


def _describe_tolerance(problems: Sequence[EpisodeProblem]) -> str:
    """How to tolerate these problems. Advice is a fault only with `strict`, so all of its codes are named."""
    codes = sorted({problem.code for problem in problems})
    if not codes or not all(problem.is_advice for problem in problems):
        return "a code with allow=(code,) (--allow CODE)"
    allowed = ", ".join(f'"{code}"' for code in codes) + ("," if len(codes) == 1 else "")
    return f"allow=({allowed}) ({' '.join(f'--allow {code}' for code in codes)}), or leave out strict (--strict)"


class ViewError(Rlds2ReverbError):
    """A view cannot cut this episode, or its options make no sense for it."""


class SpecError(Rlds2ReverbError):
    """A spec has two columns of one name. For a dataset it becomes a `SourceError`, for a config a `ConfigError`."""


_ANOTHER_TABLE_OR_VIEW = (
    "create the table with the items' signature (`rlds2reverb inspect SOURCE --view VIEW` prints that of a dataset), "
    "choose another view, or give the steps the table's columns, shapes and dtypes"
)


class SpecMismatch(Rlds2ReverbError, ValueError):
    """The table's signature differs from that of the items.

    Attributes:
      where: which table.
      differences: one line per leaf: path, expected, found.
      way_out: what to do about it.
    """

    def __init__(self, where: str, differences: Sequence[str], way_out: str = "") -> None:
        self.where = where
        self.differences = tuple(differences)
        self.way_out = way_out or _ANOTHER_TABLE_OR_VIEW
        lines = "\n  ".join(self.differences)
        super().__init__(f"{where}: signature and items differ:\n  {lines}\n{self.way_out}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.where, self.differences, self.way_out), vars(self)


class DecodeError(Rlds2ReverbError):
    """An encoded image in a sample cannot be decoded: damaged, no image, or of another size than in its table."""


class CapacityError(Rlds2ReverbError):
    """The push would evict items that it did not store itself: it does not fit into the table, or not beside the items there."""


class ConversionError(Rlds2ReverbError):
    """What a conversion wrote is not what it read; or, strictly, the format cannot hold all of it."""


class LedgerError(Rlds2ReverbError):
    """The ledger cannot be used: it cannot be read or written, is not our file, or of another version."""


class WriteError(Rlds2ReverbError, OSError):
    """A file of this run cannot be written, as on a full disk; also an `OSError`. The message names the file, and says what is lost.

    Attributes:
      errno: the system's number of the reason, such as `errno.ENOSPC`; None where there is none.
    """

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)  # one argument: with two, an OSError would begin with "[Errno 28]"
        if errno is not None:
            self.errno = errno

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.errno), vars(self)


class WorkersLost(Rlds2ReverbError):
    """The processes that worked on one part of a source were killed, or their machines were lost, at every attempt."""


class WireError(Rlds2ReverbError):
    """Bytes that are not Reverb's protocol, or a value that it cannot carry."""


class TransportError(Rlds2ReverbError):
    """Talking to the server failed.

    Attributes:
      retryable: whether the same call may succeed later without a change.
    """

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class ServerUnreachable(TransportError):
    """No server answered within the deadline, or none can: something else listens there."""

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message, retryable=retryable)


class ServerRestarted(TransportError):
    """The server process is another than the one with which the push began."""


class Stalled(TransportError):
    """Nothing was confirmed for too long; the message says who waits for what."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=True)
