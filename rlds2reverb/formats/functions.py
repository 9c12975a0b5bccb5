"""Functions of the user's that workers import: by the name "module:function", and known by a digest of their source text."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from rlds2reverb.errors import ConfigError
from rlds2reverb.text import shortened


def name_of_function(function: object, option: str) -> str:
    """The name by which a function is imported; raises ConfigError, which begins with the option, for one that has none."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if not callable(function) or not module or not name or module == "__main__" or "<" in name:
        raise ConfigError(
            f"{option} {shortened(repr(function))}: expected a function of a module, or its name module:function, which workers can import"
        )
    name = f"{module}:{name}"
    if import_function(name, option) != function:
        raise ConfigError(
            f"{option} {shortened(repr(function))}: {name} is another object, expected the function that workers import by this name"
        )
    return name


def import_function(name: str, option: str) -> Callable[..., Any]:
    """Imports a function by "module:function", also from the current folder; raises ConfigError if it cannot."""
    module_name, colon, path = name.partition(":")
    where = f"{option} {shortened(repr(name))}"
    if not colon or not module_name or not path:
        raise ConfigError(f"{where}: expected module:function")
    here = os.getcwd()  # noqa: PTH109 - as sys.path has it
    is_added = here not in sys.path and "" not in sys.path
    if is_added:  # a console script does not see the modules beside which it is started
        sys.path.append(here)
    try:
        thing: Any = importlib.import_module(module_name)
        for part in path.split("."):
            thing = getattr(thing, part)
    except Exception as error:
        raise ConfigError(f"{where}: cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        if is_added:
            sys.path.remove(here)
    if not callable(thing):
        raise ConfigError(f"{where}: expected a function, got {shortened(repr(thing))}")
    function: Callable[..., Any] = thing
    return function


def code_digest(function: Callable[..., Any]) -> str:
    """16 hex digits of a function's source text, of its bytecode where there is no text, and of the plain values that it closes over.

    Raises:
      ConfigError: an object with `__call__`, or a partial with objects that are printed as their places in memory.
    """
    if isinstance(function, functools.partial):
        text = repr((code_digest(function.func), function.args, sorted(function.keywords.items())))
        if " at 0x" in text:  # another one in every process
            raise ConfigError(
                f"{shortened(repr(function))}: expected plain values in a functools.partial: it is known by them"
            )
    elif not (inspect.isroutine(inspect.unwrap(function)) or inspect.isclass(function)):
        raise ConfigError(
            f"{shortened(repr(function))}: expected a function, or a functools.partial of one: an object has no source text to know it by"
        )
    else:
        try:
            text = inspect.getsource(function)
        except (OSError, TypeError):  # without source text
            code = getattr(function, "__code__", None)
            text = repr(None if code is None else (code.co_code, code.co_consts, code.co_names))
        cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
        plain = list(filter(_is_plain, cells))
        text += repr(plain) if plain else ""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _is_plain(value: object) -> bool:
    """Whether it is printed alike in every process."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, (bool, int, float, str, bytes))
