"""`rlds2reverb inspect`: what is in a dataset, and which table it needs; with --html as a page, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from rlds2reverb.cli import output, progress
from rlds2reverb.cli.options import (
    ANSWERS_H,
    chosen_executor,
    chosen_view,
    conventions_options,
    encoded_option,
    into_option,
    json_option,
    limit_option,
    opened,
    quiet_option,
    scale_options,
    source_argument,
    transform_option,
    view_option,
    views_of_tables,
    with_options,
)
from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import Lazily, needing
from rlds2reverb.formats.mix import NamedSource
from rlds2reverb.formats.registry import SOURCES
from rlds2reverb.formats.transform import AS_RECORDED
from rlds2reverb.inspection.inspection import InspectedOutput, Inspection, Watcher, inspect_source
from rlds2reverb.inspection.workers import Wanted, inspected
from rlds2reverb.look.accounts import image_text, inspection_fields, problem_heads, range_text, transform_fields
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.prepare.problems import Findings
from rlds2reverb.specs import spec_texts
from rlds2reverb.text import counted

_collector: Callable[[int, Inspection], Watcher] = Lazily("rlds2reverb.look.collector:Collector")
_page_of: Callable[[Any, int], bytes] = Lazily("rlds2reverb.look.report:page_of")
_dataset: Callable[[Inspection, str], Any] = Lazily("rlds2reverb.look.charts:Dataset")
_check_place: Callable[[Path], None] = Lazily("rlds2reverb.look.report:check_place")
_write_page: Callable[[Path, bytes], None] = Lazily("rlds2reverb.look.report:write_page")
"""Loaded only where a page is asked for."""

_LARGEST_SEED = 2**63 - 1

html_options = with_options(
    click.option(
        "--html",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write a page about the dataset, too: one file with charts, images and problems, under 3 MB, that needs no network. A file that is there is replaced.",
    ),
    click.option(
        "--against",
        metavar="SOURCE",
        help="With --html: put another dataset beside it, read with the same options; charts have both, on the same axes.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0, _LARGEST_SEED),
        help="With --html: chooses the episodes and texts that the page shows; 0 without it. The same data and seed give the same bytes.",
    ),
)


@dataclass(frozen=True)
class WantedPage:
    """The page that is asked for.

    Attributes:
      path: where it goes.
      others: names of the datasets to put beside it, at most one.
      seed: chooses what is shown.
    """

    path: Path
    others: tuple[str, ...]
    seed: int

    @property
    def watch(self) -> Callable[[Inspection], Watcher]:
        """Makes what collects for the page; it can be sent to workers."""
        return partial(_collector, self.seed)

    def write(self, found: Sequence[tuple[Inspection, str]]) -> None:
        """Writes the page of one dataset or two, each with the config of a server for it or "", and tells so on stderr."""
        page = _page_of([_dataset(inspection, config) for inspection, config in found], self.seed)
        _write_page(self.path, page)
        output.talk(f"wrote {self.path}: {len(page) / 1e6:.2f} MB")


def wanted_page(path: Path | None, against: str | None, seed: int | None) -> WantedPage | None:
    """What the options ask for; None for no page.

    Raises:
      ConfigError: the file cannot be written, or an option makes no sense without it.
    """
    if path is None:
        if against is not None or seed is not None:
            raise ConfigError(f"{'--seed' if against is None else '--against'} is of the page; give --html FILE, too")
        return None
    _check_place(path)
    return WantedPage(path, () if against is None else (against,), seed or 0)


@click.command("inspect", context_settings=ANSWERS_H, epilog=f"\b\nSOURCE is one of\n{SOURCES.help()}")
@source_argument
@view_option
@into_option
@conventions_options
@transform_option
@encoded_option
@limit_option
@scale_options
@click.option(
    "--server-config",
    is_flag=True,
    help="Print a config for `rlds2reverb serve` instead: tables for all items and a tenth more, and the push that fills them. Needs the extra server, so Python 3.10 or 3.11.",
)
@click.option("--table", help="What to call the table, in that config, too; replay without it.")
@html_options
@quiet_option
@json_option
def command(
    source: str,
    view: str | None,
    view_config: Path | None,
    into: tuple[str, ...],
    transform: tuple[str, ...],
    encoded: tuple[str, ...],
    limit: int | None,
    server_config: bool,
    table: str | None,
    quiet: bool,
    as_json: bool,
    workers: int | None,
    ray: str | None,
    **given: Any,
) -> None:
    """Show a dataset's step spec, the trajectory data spec of its items, what they leave out, counts, ranges and problems.

    Ranges of actions, rewards and discounts are those of transitions: a last row that was added for the last observation has none.
    """
    if server_config:
        _check_config(as_json)
    name = table or "replay"
    views = views_of_tables(into, table, view, view_config) or {name: chosen_view(view, view_config)}
    page = wanted_page(given.pop("html"), given.pop("against"), given.pop("seed"))
    watch = None if page is None else page.watch
    options = EpisodeOptions(encoded=encoded, transform=transform, **given)
    asked = Wanted(NamedSource(source), views, limit, options, watch)
    execute = chosen_executor(workers, ray)
    inspection = _inspected(source, asked, execute, quiet)
    chosen = _repeated("--into", into) or ["--table", name, *_as_options(view, view_config)]
    chosen += [*_repeated("--encoded", encoded), *_repeated("--transform", transform)]
    chosen += _conventions_as_options(given)
    if page is not None:
        others = [_inspected(one, replace(asked, source=NamedSource(one)), execute, quiet) for one in page.others]
        page.write([(one, _config_or_nothing(chosen, one, limit)) for one in (inspection, *others)])
    if server_config:
        _tell_left_out(inspection)
        click.echo(_config_text(source, chosen, inspection, limit), nl=False)
    elif as_json:
        output.print_json(inspection.as_dict())
    else:
        _print(inspection)


def _inspected(source: str, asked: Wanted, execute: Callable[[Any], Any] | None, quiet: bool) -> Inspection:
    """In this process, or by workers; progress is shown unless quiet."""
    with progress.on_progress(quiet) as on_progress:
        if execute is not None:
            return inspected(asked, execute, on_progress=on_progress)
        return inspect_source(opened(source), asked.views, asked.limit, asked.options, on_progress, asked.watch)


def _config_or_nothing(chosen: Sequence[str], inspection: Inspection, limit: int | None) -> str:
    """The config of a server with these tables; "" where what writes it is not installed."""
    try:
        _check_server_package()
    except ConfigError:
        return ""
    return _config_text(inspection.source, chosen, inspection, limit)


def _tell_left_out(inspection: Inspection) -> None:
    """Which bad episodes have no room in the config, on stderr, where it is seen when stdout goes to a file."""
    findings = inspection.findings
    for code in findings.codes():
        example = findings.examples[code][0]
        output.talk(
            f"left out: {code}: {counted(findings.episodes[code], 'episode')}, such as {example.title}: {example.problem.detail}"
        )


def _as_options(view: str | None, view_config: Path | None) -> list[str]:
    """How the view is written for a push."""
    return ["--view", view or "two_step"] if view_config is None else ["--view-config", str(view_config)]


def _conventions_as_options(conventions: Mapping[str, str]) -> list[str]:
    """How the conventions are written for a push, where they differ from what it does anyway."""
    chosen = {name: value for name, value in conventions.items() if value != AS_RECORDED}
    return [word for name, value in chosen.items() for word in (f"--{name.replace('_', '-')}", value)]


def _repeated(option: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _check_config(as_json: bool) -> None:
    """Refuses to print a config and JSON, and a config without what writes it."""
    if as_json:
        raise ConfigError("--server-config prints YAML; leave out --json, or ask for one after the other")
    _check_server_package()


def _check_server_package() -> None:
    """Misses what writes configs before the data is read."""
    with needing("--server-config", "server-config", ConfigError):
        import replay_server.template  # noqa: F401


def _config_text(source: str, chosen: Sequence[str], inspection: Inspection, limit: int | None) -> str:
    """The config. The push in its head takes what was looked at, and leaves out what is bad in it."""
    from replay_server.template import ImageDraft, TableDraft, config_text

    tables = {
        name: TableDraft(one.view, one.items_per_table, one.signature, one.by_priority)
        for name, one in inspection.outputs.items()
    }
    is_part = limit == len(inspection.lengths)
    part = ["--limit", str(limit)] if is_part else []
    skip = ["--on-invalid", "skip"] if inspection.findings.codes() else []
    images = [
        ImageDraft(one.recorded, one.is_encoded, one.encoded_bytes, one.decoded_bytes) for one in inspection.images
    ]
    return config_text(
        source, [*chosen, *part, *skip], tables, limit if is_part else None, images, sum(inspection.lengths)
    )


def _print(inspection: Inspection) -> None:
    output.print_fields(inspection_fields(inspection))
    if told := transform_fields(inspection):
        click.echo("\ntransform, in this order")
        output.print_fields(told, "  ")
    click.echo("\nstep spec" + (" after it" if told else ""))
    output.print_fields(
        {path: f"{spec!s:<16}  {range_text(inspection.ranges[path])}" for path, spec in inspection.step_spec.items()},
        "  ",
    )
    if inspection.images:
        click.echo("\nimages")
        output.print_fields({one.path: image_text(one) for one in inspection.images}, "  ")
    for name, one in inspection.outputs.items():
        _print_output(name, one)
    click.echo("")
    print_findings(inspection.findings)


def _print_output(table: str, one: InspectedOutput) -> None:
    items = counted(one.items_per_table, "item")
    click.echo("")
    output.print_line(f"table {table}: {items} of view {one.view}, trajectory data spec (its signature)")
    output.print_fields(spec_texts(one.signature), "  ")
    if one.not_in_items:
        output.print_line(f"  not in the items: {', '.join(one.not_in_items)}")
    if one.without_items:
        click.echo(f"  valid episodes that give it no item: {one.without_items:,}")
    if one.left_over:
        click.echo(f"  left over at the end: {counted(one.left_over, 'step')}")


def print_findings(findings: Findings) -> None:
    """Every problem found, with examples, and what is to be said of the whole dataset, on stdout."""
    if not findings.episodes:
        click.echo("no problems")
    for code, head, meaning in problem_heads(findings):
        click.echo(f"{head}: {meaning}")
        for example in findings.examples[code]:
            where = f'column "{example.problem.path}": ' if example.problem.path else ""
            output.print_line(f"  {example.title}: {where}{example.problem.detail}")
        if more := findings.more(code):
            click.echo(f"  and {more:,} more")
    output.print_lines([remark.line for remark in findings.notices])
