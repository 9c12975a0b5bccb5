"""Outcomes on their way from a worker: whatever error a library raises there, the driver can read what is sent of it.

An error of this package or of Python is sent as it is. Of any other one, whose class may be known in the worker alone, and of one that
cannot be made again here, the driver gets the name, the text and the traceback, as the nearest class of this package or of Python.
"""

from __future__ import annotations

import builtins
import pickle
import traceback
from contextlib import suppress
from typing import Any, NamedTuple, cast

from rlds2reverb import errors
from rlds2reverb.scale.tasks import Outcome


class WorkerError(Exception):
    """An error as a worker met it: the cause of what the driver raises, with the worker's traceback as its text.

    It is raised itself for an error of a library that is of no kind that Python has.
    """


class SentError(NamedTuple):
    """An error as plain data.

    Attributes:
      name: of its class, with the module.
      text: what it says.
      trace: where in the worker.
      bases: names of its classes that are this package's or Python's, the nearest first.
      pickled: the error itself; b"" for one that the driver may not know.
    """

    name: str
    text: str
    trace: str
    bases: tuple[str, ...]
    pickled: bytes


def sendable(outcome: Outcome) -> Outcome:
    """The outcome with its error as a `SentError`."""
    if outcome.error is None:
        return outcome
    kind = type(outcome.error)
    summary = traceback.TracebackException.from_exception(outcome.error)
    bases = tuple(one.__name__ for one in kind.__mro__ if _is_known(one))
    pickled = _pickled(outcome.error) if _is_known(kind) else b""
    sent = SentError(f"{kind.__module__}.{kind.__qualname__}", str(summary), "".join(summary.format()), bases, pickled)
    return Outcome(outcome.value, cast("BaseException", sent))  # on its way only


def received(outcome: Outcome) -> Outcome:
    """The outcome of a worker with an error that can be raised, behind which the worker's traceback stands."""
    sent: object = outcome.error
    if not isinstance(sent, SentError):
        return outcome
    error = _made_again(sent)
    error.__cause__ = WorkerError(sent.trace)
    return Outcome(outcome.value, error)


def _is_known(kind: type) -> bool:
    """Whether the driver has this class of errors for certain: one of this package, or of Python."""
    return kind.__module__ == "builtins" or kind.__module__.startswith("rlds2reverb.")


def _pickled(error: BaseException) -> bytes:
    try:
        return pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return b""  # what it holds may be anything


def _made_again(sent: SentError) -> BaseException:
    try:
        error: Any = pickle.loads(sent.pickled)
    except Exception:  # there was none, or what it holds cannot be made here
        error = None
    if isinstance(error, BaseException):
        return error
    text = f"{sent.name}: {sent.text}"
    for name in sent.bases:
        base: Any = vars(errors).get(name) or vars(builtins).get(name)
        if base in (Exception, BaseException):
            break
        if base is None:
            continue
        with suppress(TypeError):  # it needs more than a text
            return base(text)  # type: ignore[no-any-return]
    return WorkerError(text)
