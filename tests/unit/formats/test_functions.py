"""A function is known by its code and the values that it closes over, and by a name that is its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.functions import code_digest, import_function, name_of_function


def at_least(rows: int, episode: Any) -> bool:
    return len(episode) >= rows


def longer_than(rows: int) -> Callable[[Any], bool]:
    def keeps(episode: Any) -> bool:
        return len(episode) > rows

    return keeps


class Keeps:
    def __call__(self, episode: Any) -> bool:
        return True


long, longer = functools.partial(at_least, 5), functools.partial(at_least, 6)
above_5, above_6 = longer_than(5), longer_than(6)
for name in ("above_5", "above_6"):
    globals()[name].__qualname__ = name


@functools.lru_cache
def cached(episode: Any) -> bool:
    return True


def test_other_values_are_another_function() -> None:
    functions: tuple[Callable[..., Any], ...] = (
        at_least,
        long,
        longer,
        functools.partial(at_least, rows=5),
        above_5,
        above_6,
        cached,
        Keeps,
    )
    digests = [code_digest(function) for function in functions]
    assert len({*digests}) == len(functions)
    assert digests[1] == code_digest(import_function(f"{__name__}:long", "filter"))


def test_an_object_has_no_code() -> None:
    with pytest.raises(ConfigError, match=r"expected a function, or a functools\.partial of one"):
        code_digest(Keeps())
    with pytest.raises(ConfigError, match=r"expected plain values in a functools\.partial"):
        code_digest(functools.partial(at_least, Keeps()))
    one, other = (longer_than((5, Keeps())) for _ in range(2))  # type: ignore[arg-type]
    assert code_digest(one) == code_digest(other)


def test_a_name_must_be_the_functions_own() -> None:
    assert name_of_function(above_5, "filter") == f"{__name__}:above_5"
    decorated = functools.wraps(at_least)(lambda *args: False)
    with pytest.raises(ConfigError, match=r"filter .*:at_least is another object"):
        name_of_function(decorated, "filter")
