"""Options that several commands share, and the sources that they name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field
from pathlib import Path
from typing import Any

import click

from rlds2reverb.cli import without_collecting
from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import Lazily
from rlds2reverb.formats import open_source
from rlds2reverb.formats.source import Source
from rlds2reverb.prepare.options import CHOICES, EPISODE_OPTIONS, HELP, EpisodeOptions
from rlds2reverb.push.options import option_fields
from rlds2reverb.views import read_view, view_of
from rlds2reverb.views.base import View


def opened(name: str) -> Source:
    with without_collecting():  # the modules of its format are loaded here
        return open_source(name)


Command = Callable[..., Any]

_executor_of: Callable[[int | None, str | None], Callable[[Any], Any]] = Lazily(
    "rlds2reverb.workers.processes:executor_of"
)


def with_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(function: Command) -> Command:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


class _Seconds(click.ParamType):  # type: ignore[type-arg]
    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            self.fail(f"{value}: expected a positive number of seconds", param, ctx)
        return seconds


SECONDS = _Seconds()


def suggested(what: str) -> Any:
    """Completion by a function of `suggestions`, which is loaded when a shell asks."""
    return Lazily(f"rlds2reverb.cli.suggestions:{what}")


source_argument = click.argument("source", metavar="SOURCE", shell_complete=suggested("sources"))

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
        shell_complete=suggested("views"),
        help="How episodes become items: two_step (the default), sequence:length=8,stride=4, n_step:n=5, ...; see rlds2reverb help views.",
    ),
    click.option(
        "--view-config",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="The same from a YAML file: view: NAME, and its options.",
    ),
)


def chosen_view(view: str | None, view_config: Path | None) -> View:
    if view is not None and view_config is not None:
        raise ConfigError("--view and --view-config: give one of them")
    return view_of("two_step" if view is None else view) if view_config is None else read_view(view_config)


into_option = click.option(
    "--into",
    multiple=True,
    metavar="TABLE=VIEW",
    shell_complete=suggested("into"),
    help="A table and a view of its own, in place of --table and --view. Repeat it to fill several tables by several views "
    "from one pass; rows are stored once. VIEW may be @FILE, as for --view-config.",
)


def views_of_tables(into: Sequence[str], *others: object) -> dict[str, View]:
    """Table -> view, as --into names them; {} without it. `others` are --table, --view and --view-config, which do not go with it."""
    if into and any(others):
        raise ConfigError("--into names tables with their views; leave out --table, --view and --view-config")
    views: dict[str, View] = {}
    for text in into:
        table, separator, view = text.partition("=")
        if not (table and separator and view):
            raise ConfigError(f'--into "{text}": expected TABLE=VIEW')
        if table in views:
            raise ConfigError(f'--into: table "{table}" stands twice')
        views[table] = read_view(Path(view[1:])) if view.startswith("@") else view_of(view)
    return views


_KINDS: dict[str, dict[str, Any]] = {
    "bool": {"is_flag": True},
    "str | Path | None": {"type": click.Path(dir_okay=False, path_type=Path)},
    "Sequence[str]": {"multiple": True, "metavar": "CODE"},
    "TransformLike": {"multiple": True, "metavar": "TEXT|FILE"},
    "str | Sequence[str]": {"multiple": True, "metavar": "PATH"},
    "str | None": {"metavar": "ADDRESS"},
    "IdentityLike": {"metavar": "TEXT"},
    "int | None": {"type": click.IntRange(min=1)},
    "float": {"type": SECONDS, "show_default": True},
}
"""Type of an option's field -> what click makes of it; a str has choices."""


def _push_option(field: Field[Any]) -> Callable[[Command], Command]:
    """A field of `PushOptions` with the same name, default and help."""
    spelled, text, choices = f"--{field.name.replace('_', '-')}", field.metadata[HELP], field.metadata[CHOICES]
    if choices:
        kind: dict[str, Any] = {"type": click.Choice(choices), "show_default": True}
    elif field.default is True:
        spelled, kind = f"{spelled}/--no-{spelled[2:]}", {"show_default": True}
    else:
        kind = _KINDS[str(field.type)]
    text = f"{text.removesuffix('.')}; may be repeated." if kind.get("multiple") else text
    completed = {"shell_complete": suggested("codes")} if field.name == "allow" else {}
    return click.option(spelled, field.name, default=field.default, help=text, **kind, **completed)


def push_options(*names: str) -> Callable[[Command], Command]:
    return with_options(*(_push_option(field) for field in option_fields() if not names or field.name in names))


judging_options = push_options("allow", "strict")

conventions_options = push_options("terminal_discount", "last_reward", "last_observation")

transform_option = push_options("transform")

# All that says how episodes are made, which every command takes that reads them: an option that is new is theirs as well.
_OF_BAD_EPISODES = ("on_invalid", "quarantine", "allow", "strict")
making_options = push_options(*(name for name in EPISODE_OPTIONS if name not in _OF_BAD_EPISODES))


def option_words(given: Mapping[str, Any]) -> list[str]:
    """Options of episodes as the command line has them, without those that have their defaults."""
    words: list[str] = []
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, tuple):
            words += repeated(option, value)
        elif value != getattr(EpisodeOptions, name):
            words += [option] if value is True else [option, str(value)]
    return words


def repeated(option: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


scale_options = push_options("workers", "ray")


def chosen_executor(workers: int | None, ray: str | None) -> Callable[[Any], Any] | None:
    """What runs the parts of a source; None for this process."""
    return None if workers is None and ray is None else _executor_of(workers, ray)


limit_option = click.option("--limit", type=click.IntRange(min=1), help="Read at most so many episodes.")
