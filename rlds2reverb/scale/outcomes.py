"""Outcomes on their way from a worker: whatever error a library raises, something of it arrives."""

from __future__ import annotations

import pickle
import traceback

from rlds2reverb.scale.tasks import Outcome


class WorkerError(Exception):
    """An error as a worker met it; its text is the worker's traceback."""


def sendable(outcome: Outcome) -> Outcome:
    """The outcome, with an error that can be pickled, and where it comes from."""
    error = outcome.error
    if error is None or isinstance(error, KeyboardInterrupt):
        return outcome
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # what a foreign error needs to be made again, only trying tells
        return outcome._replace(error=WorkerError(trace))
    return outcome._replace(trace=trace)


def raised(outcome: Outcome) -> BaseException:
    """The error of an outcome that has arrived, with the worker's traceback behind it."""
    assert outcome.error is not None  # the caller has looked
    if outcome.trace:
        outcome.error.__cause__ = WorkerError(outcome.trace)
    return outcome.error
