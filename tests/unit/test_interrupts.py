"""Ctrl-C that C code loses is raised at the next safe point."""

from __future__ import annotations

import signal
import sys
import threading
import weakref
from typing import Any

import pytest

from rlds2reverb.interrupts import held_interrupts, is_default, noted_interrupts, raise_lost_interrupt

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals come otherwise there")


@pytest.fixture(autouse=True)
def pythons_handler() -> Any:
    """As in a program of its own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


class Thing:
    """Something that a weak reference may refer to."""


def lose_interrupt() -> None:
    """SIGINT comes in a callback whose errors Python ignores."""
    thing = Thing()
    reference = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
    del thing
    assert reference() is None


def test_a_lost_interrupt_is_raised_at_the_safe_point_and_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), noted_interrupts():
        raise_lost_interrupt()
        lose_interrupt()
        with pytest.raises(KeyboardInterrupt):
            raise_lost_interrupt()
    assert capsys.readouterr().err == ""


def test_a_block_does_not_end_well_after_a_lost_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt), noted_interrupts(), noted_interrupts():
        lose_interrupt()


def test_an_error_that_c_code_makes_of_an_interrupt_is_an_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, noted_interrupts():
        lose_interrupt()
        raise OSError("cannot be read")
    assert isinstance(caught.value.__cause__, OSError)


def test_other_errors_and_other_lost_errors_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: lost.append(what.exc_type))
    with pytest.raises(OSError, match="cannot be read"), noted_interrupts():
        thing = Thing()
        reference = weakref.ref(thing, lambda _: 1 // 0)
        del thing
        assert reference() is None
        raise OSError("cannot be read")
    assert lost == [ZeroDivisionError]


def test_an_interrupt_is_raised_at_once_where_python_can() -> None:
    with pytest.raises(KeyboardInterrupt), noted_interrupts():
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it went on")


def test_the_first_interrupt_waits_for_a_block_that_has_to_end_and_the_second_does_not() -> None:
    with pytest.raises(KeyboardInterrupt), noted_interrupts():
        with held_interrupts():
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        raise_lost_interrupt()
        pytest.fail("it went on")


def test_a_later_block_knows_nothing_of_an_interrupt_before() -> None:
    with pytest.raises(KeyboardInterrupt), noted_interrupts():
        lose_interrupt()
    raise_lost_interrupt()
    with noted_interrupts():
        raise_lost_interrupt()


def test_a_handler_of_somebody_else_stays() -> None:
    seen: list[int] = []

    def handle(number: int, _: Any) -> None:
        seen.append(number)

    signal.signal(signal.SIGINT, handle)
    with noted_interrupts():
        assert signal.getsignal(signal.SIGINT) is handle
        assert not is_default(handle)
        signal.raise_signal(signal.SIGINT)
        raise_lost_interrupt()
    assert seen == [signal.SIGINT]
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_other_threads_go_on() -> None:
    ended: list[bool] = []

    def work() -> None:
        with noted_interrupts():
            raise_lost_interrupt()
        ended.append(True)

    with pytest.raises(KeyboardInterrupt), noted_interrupts():
        lose_interrupt()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert ended == [True]
