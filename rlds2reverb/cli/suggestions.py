"""Completion of arguments and options; loaded only when a shell asks.

Each function for an option takes click's context and parameter, and the word so far; it gives whole words that begin with it. Names of
datasets come from folders: nothing of a dataset is read but its list of splits.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from rlds2reverb.cli import COMMANDS, TOPICS
from rlds2reverb.cli.completion import patience
from rlds2reverb.extras import Lazily
from rlds2reverb.formats import plugins
from rlds2reverb.formats.minari.dataset import datasets_root
from rlds2reverb.formats.registry import DESTINATIONS, SOURCES, Formats
from rlds2reverb.formats.tfds import BUNDLED, bundled_path
from rlds2reverb.formats.tfds.names import data_folders
from rlds2reverb.formats.transform import OPTIONS, shipped_transforms
from rlds2reverb.prepare.problems import CODES
from rlds2reverb.views import VIEWS

MOST = 1000  # names; a folder of a million files must not keep a shell waiting
_DEPTH = 4  # levels of folders below the root that may have Minari's ids: namespaces, and the dataset


def names(scheme: str, begun: str) -> Iterator[str]:
    """Names of local datasets, or paths, behind a scheme and a colon."""
    is_path = begun.startswith(("/", ".", "~"))
    if scheme == "bundled":
        yield from BUNDLED
    elif scheme == "minari" and not is_path:
        yield from islice(_ids(datasets_root(), "", _DEPTH), MOST)
    elif scheme == "tfds" and not is_path:
        yield from islice((name for folder in data_folders() for name in _list_prepared(folder)), MOST)
    elif is_path or _is_known(scheme):
        yield from paths(begun)


def _is_known(scheme: str) -> bool:
    # Formats of other packages by the name alone: a shell waits for the answer.
    return scheme in plugins.names() or SOURCES.find(f"{scheme}:") is not None


def splits(scheme: str, name: str) -> Iterator[str]:
    """Splits of a dataset, from its dataset_info.json."""
    entry = None if scheme in plugins.names() else SOURCES.find(f"{scheme}:")
    if scheme == "bundled":
        folder = bundled_path(name)
    elif entry is not None and (place := entry[1].place) is not None:
        folder = place(name)
    else:
        return
    description = json.loads((folder / "dataset_info.json").read_text(encoding="utf-8"))
    yield from (str(split["name"]) for split in description["splits"])


def paths(begun: str) -> Iterator[str]:
    """Paths that continue what was typed; folders end in "/"."""
    folder, slash, last = begun.rpartition("/")
    typed = f"{folder}{slash}"
    for entry in islice(_entries(Path(typed or ".").expanduser()), MOST):
        if entry.name.startswith(last) and (last.startswith(".") or not entry.name.startswith(".")):
            yield f"{typed}{entry.name}{'/' if entry.is_dir() else ''}"


def _ids(folder: Path, before: str, depth: int) -> Iterator[str]:
    for entry in _entries(folder):
        if not entry.is_dir(follow_symlinks=False):
            continue
        if Path(entry.path, "data").is_dir():
            yield f"{before}{entry.name}"
        elif depth > 1:
            yield from _ids(Path(entry.path), f"{before}{entry.name}/", depth - 1)


def _list_prepared(folder: Path) -> Iterator[str]:
    """Names of the datasets in a data folder of TFDS: NAME, or NAME/CONFIG."""
    for dataset in _folders(folder):
        inner = [*_folders(Path(dataset.path))]
        if any(_is_version(entry) for entry in inner):
            yield dataset.name
        for config in inner:
            if not _is_version(config) and any(map(_is_version, _folders(Path(config.path)))):
                yield f"{dataset.name}/{config.name}"


def _is_version(entry: os.DirEntry[str]) -> bool:
    return Path(entry.path, "dataset_info.json").is_file()


def _folders(folder: Path) -> Iterator[os.DirEntry[str]]:
    return (entry for entry in _entries(folder) if entry.is_dir())


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of a folder, sorted by name; [] where it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            return sorted(islice(entries, 100 * MOST), key=lambda entry: entry.name)
    except OSError:
        return []


Items = list[CompletionItem]

_table_names = Lazily("rlds2reverb.cli.connecting:table_names")  # gRPC, only where a server is asked
_CONNECTION = ("server", "allow_missing", "header", "tls_ca", "tls_cert", "tls_key")


def sources(context: click.Context, parameter: click.Parameter, word: str) -> Items:
    return [*_sources(word)]


def destinations(context: click.Context, parameter: click.Parameter, word: str) -> Items:
    scheme, colon, text = word.partition(":")
    if not colon:
        return [*_schemes(DESTINATIONS, scheme)]
    return [*_behind(f"{scheme}:", paths(text), word)]


def views(context: click.Context, parameter: click.Parameter, word: str) -> Items:
    return [*_views("", word)]


def into(context: click.Context, parameter: click.Parameter, word: str) -> Items:
    """TABLE= for each table of the server; behind it views, or with "@" files."""
    table, equals, view = word.partition("=")
    if not equals:
        return [CompletionItem(f"{item.value}=") for item in tables(context, parameter, word)]
    if view.startswith("@"):
        return [*_behind(f"{table}=@", paths(view[1:]), word)]
    return [*_views(f"{table}=", view)]


def tables(context: click.Context, parameter: click.Parameter, word: str) -> Items:
    """Tables of the server that the line names, if it answers."""
    connection = {name: context.params.get(name) for name in _CONNECTION}
    return [] if not connection["server"] else [*_beginning(word, _tables(connection))]


def codes(context: click.Context, parameter: click.Parameter, word: str) -> Items:
    return [CompletionItem(name, help=code.meaning) for name, code in CODES.items() if name.startswith(word)]


def transforms(context: click.Context, parameter: click.Parameter, word: str) -> Items:
    """Operations, shipped transforms and files."""
    operations = [f"{operation}=" for operation in OPTIONS]
    return [*_beginning(word, [*operations, *shipped_transforms(), *paths(word)])]


def topics(context: click.Context, parameter: click.Parameter, word: str) -> Items:
    """What `rlds2reverb help` takes: topics, and commands."""
    return [CompletionItem(name, help=text) for name, text in {**TOPICS, **COMMANDS}.items() if name.startswith(word)]


def _sources(word: str) -> Iterator[CompletionItem]:
    scheme, colon, text = word.partition(":")
    if not colon:
        yield from _schemes(SOURCES, scheme)
    elif scheme == "mix":
        part = text.rpartition("|")[2]
        start = word[: len(word) - len(part)]
        yield from (CompletionItem(f"{start}{item.value}", help=item.help) for item in _sources(part))
    elif "@" in text and scheme in ("bundled", "tfds"):
        name = text.partition("@")[0]
        yield from _behind(f"{scheme}:{name}@", splits(scheme, name), word)
    elif scheme == "reverb" and "/" in text and ":" in text.partition("/")[0]:
        address = text.partition("/")[0]
        yield from _behind(f"reverb:{address}/", _tables({"server": address}), word)
    else:
        yield from _behind(f"{scheme}:", names(scheme, text), word)


def _schemes(formats: Formats[Any], begun: str) -> Iterator[CompletionItem]:
    # Without formats of other packages: a shell waits for the answer, and their modules may be slow to import.
    for format_, side in formats.own_sides().items():
        if side.forms and format_.scheme.startswith(begun):
            yield CompletionItem(f"{format_.scheme}:", help=side.forms[0].names)


def _views(start: str, word: str) -> Iterator[CompletionItem]:
    name, colon, options = word.partition(":")
    if not colon:
        yield from (CompletionItem(f"{start}{view}") for view in VIEWS if view.startswith(name))
    elif name in VIEWS:
        before, _, last = options.rpartition(",")
        before_options = {option.partition("=")[0] for option in before.split(",")}
        kept = f"{start}{word[: len(word) - len(last)]}"
        left = (option for option in inspect.signature(VIEWS[name]).parameters if option not in before_options)
        yield from (CompletionItem(f"{kept}{option}=") for option in left if option.startswith(last))


def _tables(connection: dict[str, Any]) -> list[str]:
    """Names of the tables of a server, with a short deadline."""
    options = {"allow_missing": False, "header": (), **dict.fromkeys(("tls_ca", "tls_cert", "tls_key")), **connection}
    names: list[str] = _table_names(options, patience() / 5)
    return names


def _behind(start: str, names: Iterable[str], word: str) -> Iterator[CompletionItem]:
    return _beginning(word, (f"{start}{name}" for name in names))


def _beginning(word: str, names: Iterable[str]) -> Iterator[CompletionItem]:
    """Names that begin with the word, and would move no cursor."""
    return (CompletionItem(name) for name in names if name.startswith(word) and name.isprintable())
