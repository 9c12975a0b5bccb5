"""Pickles of unknown origin: numpy's arrays, scalars and dtypes come out, anything else is refused by its name.

A pickle is a program that may call any function, and Python's own reader runs it. This package has a reader of its own
(`pickle_instructions`), which has no functions to call but the few that make numpy's values (`pickle_values`). Classes that a format allows
by name become `Inert` objects: what was pickled of them, and no code of theirs. Time and memory grow with the length of the pickle,
whatever it says: no size that it tells is believed before the bytes for it are there.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Any

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.pickle_instructions import run
from rlds2reverb.readers.pickle_trees import checked
from rlds2reverb.readers.pickle_values import Inert, Refused
from rlds2reverb.wording import shortened

__all__ = ["Inert", "safe_loads"]

_ERRORS = (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError, struct.error)
"""What the machine raises over a damaged pickle."""


def safe_loads(data: bytes, where: str, inert: Collection[str] = frozenset()) -> Any:
    """What a pickle holds, of any protocol. Arrays are read-only; the bytes behind the end of the pickle are ignored, as pickle does.

    Args:
      data: the pickle.
      where: what messages call it.
      inert: "module.name" of classes whose objects, and of functions whose results, become `Inert`.

    Raises:
      SourceError: it is damaged, refers to anything but numpy's values and these classes, or to itself; says what.
    """
    try:
        return checked(run(data, frozenset(inert)))
    except Refused as refused:
        raise SourceError(f"{where}: refused: {refused}") from refused
    except _ERRORS as error:
        raise SourceError(
            f"{where}: a damaged pickle: {type(error).__name__}: {shortened(' '.join(str(error).split()))}"
        ) from error
