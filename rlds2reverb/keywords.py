"""Options of public functions. A dataclass describes them once; the rest follows from it.

| who reads it | what it sees |
| --- | --- |
| mypy, an editor | `**options: Unpack[PushKeywords]`: a TypedDict beside the dataclass `PushOptions`, held equal to it by a test |
| `help()`, `inspect.signature` | every option with its default and its type, by `takes_options` |
| the command line, docs/cli.md | `CommandOption` in the field's metadata; the kind of value follows from the field's type |

CONTRIBUTING.md has the steps to add an option.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from inspect import Parameter
from typing import Any, NamedTuple, TypeVar, get_type_hints

from rlds2reverb.errors import ConfigError
from rlds2reverb.text import did_you_mean, with_suggestion

_Options = TypeVar("_Options")
_Function = TypeVar("_Function", bound=Callable[..., Any])

_COMMAND = "command option"  # key of a field's metadata


@dataclass(frozen=True)
class CommandOption:
    """How an option looks on the command line, beside its name, default and type, which the field has.

    Attributes:
      help: one sentence.
      choices: the values it may have, if they are few.
      section: the heading below which the help of a command has it, one of `cli.sections.SECTIONS`; "" for a command's own.
      metavar: what its value is called in the help.
      completion: the function of `cli.suggestions` that completes its values.
      least: the smallest whole number.
      unit: of a positive number.
    """

    help: str
    choices: tuple[str, ...] = ()
    section: str = ""
    metavar: str | None = None
    completion: str | None = None
    least: int | None = None
    unit: str = ""


def command_option(text: str, choices: tuple[str, ...] = (), **more: Any) -> dict[str, CommandOption]:
    """Metadata of a field that is an option of the command line; arguments as of `CommandOption`."""
    return {_COMMAND: CommandOption(text, choices, **more)}


class Option(NamedTuple):
    """A field of a dataclass of options."""

    name: str
    type: Any
    default: Any
    command: CommandOption | None  # None for what only Python has


@cache
def options_of(kind: type) -> Mapping[str, Option]:
    """Name -> option, of every field of a dataclass. Cached: to resolve the types of a push's options takes milliseconds."""
    types: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        # Python 3.10 refuses the `_: KW_ONLY` of a dataclass, which is no type.
        annotations = {name: text for name, text in vars(base).get("__annotations__", {}).items() if name != "_"}
        types |= get_type_hints(
            type(base.__name__, (), {"__annotations__": annotations, "__module__": base.__module__})
        )
    return {
        field.name: Option(field.name, types[field.name], field.default, field.metadata.get(_COMMAND))
        for field in fields(kind)
    }


def command_options(kind: type) -> dict[str, tuple[Option, CommandOption]]:
    """Name -> option that the command line has, and how it shows it."""
    return {name: (option, option.command) for name, option in options_of(kind).items() if option.command is not None}


def takes_options(kind: type, without: Collection[str] = (), **defaults: Any) -> Callable[[_Function], _Function]:
    """Writes the options of the dataclass `kind` into the signature of a function that ends with `**options: Unpack[...]`.

    The function itself stays as it is, so a call costs nothing. Options with a help text are listed below its docstring.

    Args:
      kind: a dataclass; a field that the function names itself is left to it.
      without: fields that the function does not take.
      defaults: those that the function changes.
    """

    def decorate(function: _Function) -> _Function:
        # `Unpack` exists for type checkers only: Python 3.10 lacks it, and the parameter that needs it is replaced here anyway.
        signature = inspect.signature(function, locals={"Unpack": dict}, eval_str=True)
        own = {
            name: parameter
            for name, parameter in signature.parameters.items()
            if parameter.kind is not Parameter.VAR_KEYWORD
        }
        options = [
            option._replace(default=defaults.get(name, option.default))
            for name, option in options_of(kind).items()
            if name not in own and name not in without
        ]
        keywords = [
            Parameter(option.name, Parameter.KEYWORD_ONLY, default=option.default, annotation=option.type)
            for option in options
        ]
        vars(function)["__signature__"] = signature.replace(parameters=[*own.values(), *keywords])
        lines = [
            f"  {option.name}: {option.command.help} Default {option.default!r}."
            for option in options
            if option.command
        ]
        if lines:
            function.__doc__ = "\n".join([f"{inspect.getdoc(function)}\n", "Options:", *lines])
        return function

    return decorate


def make_options(kind: Callable[..., _Options], function: str, /, *values: Any, **named: Any) -> _Options:
    """Makes the options of the class `kind` for a function that takes their fields as arguments of its own.

    Raises:
      TypeError: an unknown or a missing argument; names the function.
      ConfigError: as the options do.
    """
    signature = inspect.signature(kind)
    try:
        signature.bind(*values, **named)  # before the call: a TypeError of the options' own checks is another matter
    except TypeError as error:  # without this it would name a class that the caller has not called
        raise TypeError(f"{function}: {with_suggestion(error, signature.parameters)}") from None
    return kind(*values, **named)


def refuse_unknown(where: str, options: Iterable[str], kind: type) -> None:
    """Raises ConfigError for options of a function `where` that are no fields of the dataclass `kind`."""
    names = [field.name for field in fields(kind)]
    if unknown := sorted(set(options) - set(names)):
        raise ConfigError(
            f"{where}: {', '.join(unknown)}: no such option; there are {', '.join(names)}{did_you_mean(unknown[0], names)}"
        )
