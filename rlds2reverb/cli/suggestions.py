"""What the values of arguments and options may be, for completion. Loaded by a shell's question only.

Each function takes click's context and parameter, and the word so far; it gives whole words that begin with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import click
from click.shell_completion import CompletionItem

from rlds2reverb.cli import local_names
from rlds2reverb.cli.completion import patience
from rlds2reverb.destinations.registry import DESTINATIONS
from rlds2reverb.formats import Formats, Lazily
from rlds2reverb.sources.registry import SOURCES
from rlds2reverb.validation import CODES
from rlds2reverb.views.registry import VIEWS

Items = list[CompletionItem]

_table_names = Lazily("rlds2reverb.cli.connecting:table_names")  # gRPC, only where a server is asked
_CONNECTION = ("server", "allow_missing", "header", "tls_ca", "tls_cert", "tls_key")


def sources(context: click.Context, parameter: click.Parameter, word: str) -> Items:
    """Schemes; behind a scheme names of datasets that are here, or paths; behind "@" splits."""
    return [*_sources(word)]


def destinations(context: click.Context, parameter: click.Parameter, word: str) -> Items:
    """Schemes of what can be written; behind a scheme paths."""
    scheme, colon, rest = word.partition(":")
    if not colon:
        return [*_schemes(DESTINATIONS, scheme)]
    return [*_behind(f"{scheme}:", local_names.paths(rest), word)]


def views(context: click.Context, parameter: click.Parameter, word: str) -> Items:
    """Names of views; behind "NAME:" their options."""
    return [*_views("", word)]


def into(context: click.Context, parameter: click.Parameter, word: str) -> Items:
    """TABLE= for each table of the server; behind it views, or with "@" files of views."""
    table, equals, view = word.partition("=")
    if not equals:
        return [CompletionItem(f"{item.value}=") for item in tables(context, parameter, word)]
    if view.startswith("@"):
        return [*_behind(f"{table}=@", local_names.paths(view[1:]), word)]
    return [*_views(f"{table}=", view)]


def tables(context: click.Context, parameter: click.Parameter, word: str) -> Items:
    """Tables of the server that the line names, if it answers."""
    given = {name: context.params.get(name) for name in _CONNECTION}
    return [] if not given["server"] else [*_beginning(word, _tables(given))]


def codes(context: click.Context, parameter: click.Parameter, word: str) -> Items:
    """Problems that can be allowed."""
    return [CompletionItem(name, help=code.meaning) for name, code in CODES.items() if name.startswith(word)]


def _sources(word: str) -> Iterator[CompletionItem]:
    scheme, colon, rest = word.partition(":")
    if not colon:
        yield from _schemes(SOURCES, scheme)
    elif scheme == "mix":
        part = rest.rpartition("|")[2]
        start = word[: len(word) - len(part)]
        yield from (CompletionItem(f"{start}{item.value}", help=item.help) for item in _sources(part))
    elif "@" in rest and scheme in ("bundled", "tfds"):
        name = rest.partition("@")[0]
        yield from _behind(f"{scheme}:{name}@", local_names.splits(scheme, name), word)
    elif scheme == "reverb" and "/" in rest and ":" in rest.partition("/")[0]:
        address = rest.partition("/")[0]
        yield from _behind(f"reverb:{address}/", _tables({"server": address}), word)
    else:
        yield from _behind(f"{scheme}:", local_names.names(scheme, rest), word)


def _schemes(formats: Formats[Any], begun: str) -> Iterator[CompletionItem]:
    for one in formats:
        if one.forms and one.scheme.startswith(begun):
            yield CompletionItem(f"{one.scheme}:", help=one.forms[0].names)


def _views(start: str, word: str) -> Iterator[CompletionItem]:
    name, colon, options = word.partition(":")
    if not colon:
        yield from (CompletionItem(f"{start}{one}") for one in VIEWS if one.startswith(name))
    elif name in VIEWS:
        before, _, last = options.rpartition(",")
        given = {one.partition("=")[0] for one in before.split(",")}
        kept = f"{start}{word[: len(word) - len(last)]}"
        left = (option for option in inspect.signature(VIEWS[name]).parameters if option not in given)
        yield from (CompletionItem(f"{kept}{option}=") for option in left if option.startswith(last))


def _tables(given: dict[str, Any]) -> list[str]:
    """Names of the tables of a server, asked with a short deadline."""
    options = {"allow_missing": False, "header": (), **dict.fromkeys(("tls_ca", "tls_cert", "tls_key")), **given}
    names: list[str] = _table_names(options, patience() / 5)
    return names


def _behind(start: str, names: Iterable[str], word: str) -> Iterator[CompletionItem]:
    return _beginning(word, (f"{start}{name}" for name in names))


def _beginning(word: str, names: Iterable[str]) -> Iterator[CompletionItem]:
    """Those that go on from the word; none that would move the cursor of whoever looks for it."""
    return (CompletionItem(name) for name in names if name.startswith(word) and name.isprintable())
