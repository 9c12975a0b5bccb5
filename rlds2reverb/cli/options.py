"""Options that several commands share, and the sources that they name."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import click

from rlds2reverb.cli import without_collecting
from rlds2reverb.cli.sections import FieldOption
from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import Lazily
from rlds2reverb.formats import open_source
from rlds2reverb.formats.source import Source
from rlds2reverb.keywords import CommandOption, Option, command_options
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.prepare.preparation import view_for
from rlds2reverb.push.options import PushOptions
from rlds2reverb.views import read_view, view_from, view_of
from rlds2reverb.views.base import View


def open_dataset(name: str) -> Source:
    with without_collecting():  # the modules of its format are loaded here
        return open_source(name)


Command = Callable[..., Any]

_executor_for: Callable[[int | None, str | None], Callable[[Any], Any]] = Lazily(
    "rlds2reverb.workers.processes:choose_executor"
)


def with_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(function: Command) -> Command:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


class PositiveNumber(click.ParamType):  # type: ignore[type-arg]
    """A number above 0; `unit` is what it counts."""

    def __init__(self, unit: str = "") -> None:
        self.name = unit or "number"
        self._expected = f"a positive number{unit and f' of {unit}'}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            self.fail(f"{value}: expected {self._expected}", param, ctx)
        return number


SECONDS = PositiveNumber("seconds")


def suggest(what: str) -> Any:
    """Completion by a function of `suggestions`, which is loaded when a shell asks."""
    return Lazily(f"rlds2reverb.cli.suggestions:{what}")


source_argument = click.argument("source", metavar="SOURCE", shell_complete=suggest("sources"))

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")

quiet_option = click.option(
    "--quiet",
    is_flag=True,
    help="Show no progress. Without it, what takes long has a bar on a terminal, else a line every ten seconds.",
)

view_option = with_options(
    click.option(
        "--view",
        metavar="VIEW",
        shell_complete=suggest("views"),
        help="How episodes become items: two_step (the default), sequence:length=8,stride=4, n_step:n=5, ...; see rlds2reverb help views.",
    ),
    click.option(
        "--view-config",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="The same from a YAML file: view: NAME, and its options.",
    ),
)


def choose_view(source: str, view: str | None, view_config: Path | None) -> View:
    if view is not None and view_config is not None:
        raise ConfigError("--view and --view-config: give one of them")
    if view_config is not None:
        return read_view(view_config)
    chosen = view_for(source, view)
    return view_from(chosen) if isinstance(chosen, (str, Mapping)) else chosen


into_option = click.option(
    "--into",
    multiple=True,
    metavar="TABLE=VIEW",
    shell_complete=suggest("into"),
    help="A table and a view of its own, in place of --table and --view. Repeat it to fill several tables by several views "
    "from one pass; rows are stored once. VIEW may be @FILE, as for --view-config.",
)


def views_of_tables(into: Sequence[str], *others: object) -> dict[str, View]:
    """Table -> view, as --into names them; {} without it. `others` are --table, --view and --view-config, which do not go with it."""
    if into and any(others):
        raise ConfigError("--into names tables with their views; leave out --table, --view and --view-config")
    return {
        table: read_view(Path(view[1:])) if view.startswith("@") else view_of(view)
        for table, view in read_pairs("--into", "TABLE=VIEW", into).items()
    }


def read_pairs(option: str, expected: str, texts: Sequence[str]) -> dict[str, str]:
    """Key -> value of an option KEY=VALUE that is repeated. Raises ConfigError for a part that is missing, and a key that stands twice."""
    values: dict[str, str] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if not key or not value:
            raise ConfigError(f'{option} "{text}": expected {expected}')
        if key in values:
            raise ConfigError(f'{option}: "{key}" stands twice')
        values[key] = value
    return values


def _click_option(option: Option, command: CommandOption) -> Callable[[Command], Command]:
    """Makes an option of the command line of a field: same name, default and help; the kind of its value follows from its type."""
    spelled, help_text = f"--{option.name.replace('_', '-')}", command.help
    kinds = get_args(option.type) if get_origin(option.type) in (Union, UnionType) else (option.type,)
    value: dict[str, Any] = {"metavar": command.metavar}
    if command.choices:
        value = {"type": click.Choice(command.choices), "show_default": True}
    elif bool in kinds:
        value = {"is_flag": True}
        if option.default:
            spelled, value = f"{spelled}/--no-{spelled[2:]}", {"show_default": True}
    # A sequence before a path: a transform is a path, a mapping or several of these, and the option is repeated.
    elif any(get_origin(kind) is Sequence for kind in kinds):
        value["multiple"] = True
        help_text = f"{help_text.removesuffix('.')}; may be repeated."
    elif Path in kinds:
        value = {"type": click.Path(dir_okay=False, path_type=Path)}
    elif int in kinds:
        value = {"type": click.IntRange(min=command.least)}
    elif float in kinds:
        value = {"type": PositiveNumber(command.unit), "show_default": option.default is not None}
    if command.completion:
        value["shell_complete"] = suggest(command.completion)
    return click.option(
        spelled, option.name, cls=FieldOption, section=command.section, default=option.default, help=help_text, **value
    )


def options_from(kind: type, *names: str, without: Collection[str] = ()) -> Callable[[Command], Command]:
    """Makes the options of a command that are fields of the dataclass `kind`: those of these names, by default all."""
    chosen = command_options(kind)
    return with_options(*(_click_option(*chosen[name]) for name in names or chosen if name not in without))


judging_options = options_from(EpisodeOptions, "allow", "strict")

# All that says how episodes are made, which every command takes that reads them: an option that is new is theirs as well.
making_options = options_from(EpisodeOptions, without=("on_invalid", "quarantine", "allow", "strict"))


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Writes options of episodes as the command line has them, without those that have their defaults."""
    words: list[str] = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, tuple):
            words += repeat_option(option, value)
        elif value != getattr(EpisodeOptions, name):
            words += [option] if value is True else [option, str(value)]
    return words


def repeat_option(option: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


scale_options = options_from(PushOptions, "workers", "ray")


def choose_executor(workers: int | None, ray: str | None) -> Callable[[Any], Any] | None:
    """Returns what runs the parts of a source; None for this process."""
    return None if workers is None and ray is None else _executor_for(workers, ray)


limit_option = click.option("--limit", type=click.IntRange(min=1), help="Read at most so many episodes.")
