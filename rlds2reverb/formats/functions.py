"""Functions of the user's that workers import: by the name "module:function", and known by a digest of their source text."""

from __future__ import annotations

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
    return f"{module}:{name}"


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
    """16 hex digits of a function's source text; of its bytecode where there is no text."""
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):  # without source text, or an object with __call__
        code = getattr(function, "__code__", None)
        text = repr(None if code is None else (code.co_code, code.co_consts, code.co_names))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
