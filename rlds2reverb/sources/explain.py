"""Errors of TensorFlow and TFDS as one line for people.

Over a broken file TFDS raises whatever its code happens to stumble over (KeyError, TypeError, AssertionError, protobuf's
ParseError, RecursionError, ...), and TensorFlow adds node names and tracebacks to a message. So where only their code
runs, every error is the source's, and only the first line of its text stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rlds2reverb.errors import Rlds2ReverbError, SourceError
from rlds2reverb.wording import shortened

_NODE = re.compile(r" for '\{\{node .*|\{\{[^{}]*\}\}\s*|\s*\[Op:\w*\].*")
_COMPONENT = re.compile(r"\bcomponent (\d+)")
_SAYS_ENOUGH = (OSError, ValueError, NotImplementedError)
"""Kinds of errors whose text is a sentence. For others ("'content'") the kind is told, too."""


@contextmanager
def source_errors(where: str, how_to_go_on: str = "", features: Sequence[str] = ()) -> Iterator[None]:
    """Turns what TensorFlow or TFDS raises inside into a `SourceError` of one line; put nothing else inside.

    Args:
      where: the sentence's beginning, "tfds:x: cannot be opened".
      how_to_go_on: its end.
      features: what TensorFlow, which numbers the leaves of an element, means by "component 0", "component 1", ...
    """
    try:
        yield
    except Rlds2ReverbError:
        raise
    except Exception as error:
        said = _COMPONENT.sub(lambda found: _feature(found, features), one_line(error))
        sentence = f"{where}: {said}"
        raise SourceError(f"{sentence.removesuffix('.')}; {how_to_go_on}" if how_to_go_on else sentence) from error


def one_line(error: Exception) -> str:
    """What an error says, on one line, without node names and without what TensorFlow appends."""
    message = getattr(error, "message", None)  # of TensorFlow's errors; str() would append the operation
    text = _NODE.sub("", message if isinstance(message, str) else str(error))
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if not isinstance(message, str) and not isinstance(error, _SAYS_ENOUGH):
        first = f"{type(error).__name__}: {first}".removesuffix(": ")
    return shortened(first or type(error).__name__)


def _feature(found: re.Match[str], features: Sequence[str]) -> str:
    number = int(found[1])
    return f'feature "{features[number]}"' if number < len(features) else found[0]
