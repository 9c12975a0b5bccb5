"""Methods that take the options of a push, each as an argument of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from rlds2reverb.prepare.options import HELP
from rlds2reverb.push.options import PushOptions, option_fields

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_Self = TypeVar("_Self")


def takes(
    options: Callable[_Given, PushOptions],
) -> Callable[[Callable[[_Self, Any, PushOptions], _Result]], Callable[Concatenate[_Self, Any, _Given], _Result]]:
    """A method of (source, options) that is called with the options' fields as arguments; type checkers and `help` see them."""

    def decorate(
        method: Callable[[_Self, Any, PushOptions], _Result],
    ) -> Callable[Concatenate[_Self, Any, _Given], _Result]:
        taken = inspect.signature(options)

        @wraps(method)
        def called(self: _Self, source: Any, *given: _Given.args, **named: _Given.kwargs) -> _Result:
            try:
                taken.bind(*given, **named)
            except TypeError as error:  # without this it would name a class that the caller has not called
                raise TypeError(f"{method.__qualname__}: {error}") from None
            return method(self, source, options(*given, **named))

        own = inspect.signature(method)
        first = [one for name, one in own.parameters.items() if name != "options"]
        parameters = [*first, *taken.parameters.values()]
        vars(called)["__signature__"] = own.replace(parameters=parameters)
        called.__doc__ = f"{inspect.getdoc(method)}\n\n{_options_in_words()}"
        return cast("Callable[Concatenate[_Self, Any, _Given], _Result]", called)

    return decorate


def _options_in_words() -> str:
    lines = (f"  {one.name}: {one.metadata[HELP]} Default {one.default!r}." for one in option_fields())
    return "\n".join(("Options:", *lines))
