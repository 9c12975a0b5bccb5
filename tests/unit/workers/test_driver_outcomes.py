"""An error of a worker arrives, whatever it is."""

from __future__ import annotations

import pickle
import threading
import urllib.error

import pytest

from rlds2reverb.errors import InvalidEpisode, SourceError, SpecMismatch
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.push.capacity import BudgetExceeded
from rlds2reverb.workers.driver import Outcome, WorkerError, make_sendable, receive_outcome


class OfALibrary(Exception):
    """An error that is no more than an error."""


class OfAUser(SourceError):
    """A kind of one of ours."""


class OfAnEpisode(InvalidEpisode):
    """A kind of one of ours that needs more than a text."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def sent(error: BaseException) -> BaseException:
    """What arrives of an error that was raised."""
    with pytest.raises(type(error)) as caught:
        raise error
    arrived = receive_outcome(pickle.loads(pickle.dumps(make_sendable(Outcome("value", caught.value)))))
    assert arrived.value == "value"
    assert arrived.error is not None
    return arrived.error


@pytest.mark.parametrize(
    "error",
    [
        SourceError("no such file"),
        BudgetExceeded("too few places"),
        InvalidEpisode("e1", [Problem("nan", "reward", "row 3")]),
        SpecMismatch("table a", ["x: int32, found int64"]),
        FileNotFoundError(2, "No such file", "a.npz"),
        KeyError("reward"),
        KeyboardInterrupt(),
    ],
)
def test_an_error_of_ours_or_of_python_arrives_as_it_is(error: BaseException) -> None:
    arrived = sent(error)
    assert (type(arrived), str(arrived), arrived.args) == (type(error), str(error), error.args)
    assert isinstance(arrived.__cause__, WorkerError)
    assert "in sent" in str(arrived.__cause__)


@pytest.mark.parametrize("code", [None, 0, 3, "done"])
def test_an_exit_arrives_as_an_error_of_the_source(code: object) -> None:
    arrived = sent(SystemExit(code))
    assert type(arrived) is SourceError
    assert f"called sys.exit({code!r}) in a worker" in str(arrived)
    assert "in sent" in str(arrived.__cause__)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OfAUser("bad"), SourceError),
        (urllib.error.URLError("bad"), OSError),
        (OfALibrary("bad"), WorkerError),
        (Unprintable(), WorkerError),
    ],
)
def test_any_other_error_arrives_as_the_nearest_kind_with_its_name(error: Exception, kind: type[Exception]) -> None:
    arrived = sent(error)
    assert type(arrived) is kind
    assert f"{type(error).__module__}.{type(error).__qualname__}: " in str(arrived)


def test_a_kind_that_needs_more_than_a_text_arrives_as_the_one_above() -> None:
    assert str(sent(OfAnEpisode("e1", []))).startswith(
        "tests.unit.workers.test_driver_outcomes.OfAnEpisode: episode e1"
    )


def test_an_error_of_ours_that_holds_what_cannot_be_sent_arrives_as_its_text() -> None:
    error = SourceError("bad")
    vars(error)["lock"] = threading.Lock()
    arrived = sent(error)
    assert (type(arrived), str(arrived)) == (SourceError, "rlds2reverb.errors.SourceError: bad")
