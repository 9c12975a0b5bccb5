"""Errors of TensorFlow and TFDS on one line; stand-ins have the texts that TensorFlow 2.15 gives."""

from __future__ import annotations

import pytest

from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats.rlds import one_line, source_errors


class OpError(Exception):
    """As TensorFlow's: the text apart, and more in str()."""

    def __init__(self, message: str) -> None:
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} [Op:IteratorGetNext] name: "


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OpError("{{function_node __wrapped__IteratorGetNext_device_/job:x}} corrupted record at 12 [Op:Iter] name: "),
            "corrupted record at 12",
        ),
        (
            OpError("{{function_node x}} Key: steps/a.  Can't parse serialized Example.\n\t [[{{node ParseExample}}]]"),
            "Key: steps/a.  Can't parse serialized Example.",
        ),
        (
            ValueError("Cannot reshape a tensor to shape [] for '{{node Parse/Reshape}} = Reshape[T=DT_INT64](a, b)'."),
            "Cannot reshape a tensor to shape []",
        ),
        (OpError("{{function_node x}} RuntimeError: the disk is gone\nTraceback (most recent call last):\n  File"),
         "RuntimeError: the disk is gone"),
        (OpError(""), "OpError"),
        (KeyError("content"), "KeyError: 'content'"),
        (AssertionError(), "AssertionError"),
        (ValueError("\n\n  a sentence\nand more"), "a sentence"),
        (FileNotFoundError(2, "No such file", "x.json"), "[Errno 2] No such file: 'x.json'"),
        (RecursionError("too deep"), "RecursionError: too deep"),
        (ValueError("x" * 1000), "x" * 300 + "..."),
    ],
)  # fmt: skip
def test_of_an_error_the_first_line_stays(error: Exception, said: str) -> None:
    assert one_line(error) == said


def test_every_error_becomes_the_sources() -> None:
    for error in (KeyError("x"), AssertionError(), RecursionError("x"), MemoryError(), ImportError("x"), OpError("x")):
        with pytest.raises(SourceError, match=r"^here: cannot be read: .*; do this$") as caught:
            with source_errors("here: cannot be read", "do this"):
                raise error
        assert caught.value.__cause__ is error


def test_a_sentence_that_ends_with_a_full_stop_goes_on_without_it() -> None:
    with pytest.raises(SourceError, match=r"^here: Dataset x not found; do this$"):
        with source_errors("here", "do this"):
            raise ValueError("Dataset x not found.")
    with pytest.raises(SourceError, match=r"^here: Dataset x not found\.$"), source_errors("here"):
        raise ValueError("Dataset x not found.")


@pytest.mark.parametrize("error", [SourceError("mine"), ConfigError("mine"), KeyboardInterrupt()])
def test_our_own_errors_and_interrupts_pass(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, source_errors("here"):
        raise error
    assert caught.value is error


def test_numbered_components_are_called_by_their_features() -> None:
    with pytest.raises(SourceError, match=r'here: different shapes in feature "b/c"\. And component 7$'):
        with source_errors("here", features=["a", "b/c"]):
            raise OpError("different shapes in component 1. And component 7")
