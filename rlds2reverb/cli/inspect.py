"""`rlds2reverb inspect`: what is in a dataset, and which table it needs; with --html as a page, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlds2reverb.cli import output, progress
from rlds2reverb.cli.options import (
    choose_executor,
    choose_view,
    into_option,
    json_option,
    limit_option,
    making_options,
    open_dataset,
    option_words,
    quiet_option,
    read_pairs,
    repeat_option,
    scale_options,
    source_argument,
    view_option,
    views_of_tables,
    with_options,
)
from rlds2reverb.cli.sections import Command
from rlds2reverb.errors import ConfigError, SourceError, StorageError
from rlds2reverb.extras import Lazily, needing
from rlds2reverb.files import check_can_be_replaced
from rlds2reverb.formats.mix import NamedSource
from rlds2reverb.formats.options import is_mixture_file, is_url
from rlds2reverb.formats.registry import SOURCES
from rlds2reverb.inspection.inspection import Inspection, Watch, Watcher, inspect_source
from rlds2reverb.inspection.values import StatisticsChoice
from rlds2reverb.look.accounts import (
    CHOICE_HEADS,
    SAID_TITLE,
    STATISTICS_HEADS,
    choice_cells,
    choices_title,
    dimensions_text,
    example_text,
    image_text,
    inspection_fields,
    problem_heads,
    range_text,
    said_fields,
    statistics_cells,
    statistics_title,
    transform_fields,
    verdict,
    way_on,
)
from rlds2reverb.numbers.forms import check_form, form_of
from rlds2reverb.prepare.findings import Findings
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.text import counted, on_command_line, size, visible
from rlds2reverb.views import shorten_view
from rlds2reverb.views.base import spell_view

if TYPE_CHECKING:
    from rlds2reverb.formats.minari.listing import ListRequest
    from rlds2reverb.look.comparison import Comparison
    from rlds2reverb.views.base import View

# Loaded only for a page, or to compare.
_collector: Callable[[int, Inspection], Watcher] = Lazily("rlds2reverb.look.collector:Collector")
_page_of: Callable[[Any, int], bytes] = Lazily("rlds2reverb.look.report:page_of")
_dataset: Callable[[Inspection, str], Any] = Lazily("rlds2reverb.look.charts:Dataset")
_compared: Callable[[Inspection, Inspection], Comparison] = Lazily("rlds2reverb.look.comparison:compare_inspections")
_check_place: Callable[[Path], None] = Lazily("rlds2reverb.look.report:check_place")
_write_page: Callable[[Path, bytes], None] = Lazily("rlds2reverb.look.report:write_page")

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
        help="Compare it with another dataset, read with the same options, instead of showing it: what changed, what only one has, and how far means and spreads moved. With --html the page has both, on the same axes.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0, 2**63 - 1),
        help="With --html: chooses the episodes and texts that the page shows; 0 without it. The same data and seed give the same bytes.",
    ),
)

statistics_options = with_options(
    click.option(
        "--statistics",
        metavar="[FORM:]FILE",
        help="Write mean, spread, ends and quantiles of each dimension of the numeric columns, too, for a normaliser. FORM is rlds2reverb, lerobot, "
        "openpi, openvla or octo; without it, stats.json, norm_stats.json and dataset_statistics.json have their systems' forms. A file that is there "
        "is replaced. With --json they are printed, too.",
    ),
    click.option(
        "--statistics-of",
        type=click.Choice(["steps", "items"]),
        help="With --statistics: of the real steps (the default), or of the view's items without what is padded, such as chunks of relative actions.",
    ),
    click.option(
        "--statistics-names",
        multiple=True,
        metavar="KEY=PATH",
        help="With --statistics: the column of a key of the file, where it is not the usual one, such as state=observation/joints; may be repeated.",
    ),
    click.option(
        "--image-statistics",
        is_flag=True,
        help="With --statistics: of images, too, by channel; every pixel counts, which takes time.",
    ),
)


@click.command(
    "inspect",
    cls=Command,
    examples={
        "What is in a dataset, and which table it needs": "rlds2reverb inspect bundled:cartpole",
        "The config of a server with a table for it": "rlds2reverb inspect tfds:my_set --view n_step:n=5 --server-config > server.yaml",
        "Statistics for a normaliser, as openpi reads them": "rlds2reverb inspect tfds:my_set --statistics norm_stats.json",
        "A page with charts, images and problems": "rlds2reverb inspect tfds:my_set --html report.html",
    },
)
@source_argument
@view_option
@into_option
@making_options
@limit_option
@scale_options
@click.option(
    "--server-config",
    is_flag=True,
    help="Print a config for `rlds2reverb serve` instead: tables for all items and a tenth more, and the push that fills them. Needs the extra server-config.",
)
@click.option("--table", metavar="TABLE", help="What to call the table, in that config, too; replay without it.")
@html_options
@statistics_options
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

    With --against the differences of two datasets are shown, the largest first.

    A folder of a bucket, such as gs://BUCKET/FOLDER, is listed: the names of the datasets in it. `minari:` lists Minari's datasets on this machine
    and at $MINARI_REMOTE, `minari:D4RL/` those of a namespace, `minari:hf://farama-minari` those of a remote place.
    """
    if is_url(source):
        _print_datasets(source, as_json)
        return
    if (request := _list_request(source)) is not None:
        _print_minari(request, as_json)
        return
    if server_config:
        if as_json:
            raise ConfigError("--server-config prints YAML; leave out --json, or ask for one after the other")
        if given["against"] is not None:
            raise ConfigError("--server-config is of one dataset; leave out --against")
        _check_server_package()
    name = table or "replay"
    views = views_of_tables(into, table, view, view_config) or {name: choose_view(source, view, view_config)}
    # What is proposed below spells the view, and without this it would say two_step.
    if view is None and not into and view_config is None and is_mixture_file(source):
        view = spell_view(views[name])
    page, against, seed = given.pop("html"), given.pop("against"), given.pop("seed")
    if page is not None:
        _check_place(page)
    elif seed is not None:
        raise ConfigError("--seed is of the page; give --html FILE, too")
    statistics = _choose_statistics(given, against, views)
    statistics_choice = None if statistics is None else statistics[1]
    options = EpisodeOptions(encoded=encoded, transform=transform, **given)
    watch = None if page is None and against is None else partial(_collector, seed or 0)
    read = partial(
        inspect_dataset, views, limit, options, watch, choose_executor(workers, ray), quiet, statistics_choice
    )
    inspection = read(source)
    inspections = [inspection]
    if against is not None:
        inspections.append(read(against))
    of_view = ["--view", view or "two_step"] if view_config is None else ["--view-config", str(view_config)]
    of_tables = repeat_option("--into", into) or ["--table", name]
    source_options = {"encoded": encoded, "transform": transform, **given}
    making = option_words(source_options)
    part = [] if limit is None else ["--limit", str(limit)]
    chosen = [*of_tables, *([] if into else of_view), *making]
    if page is not None:
        try:
            _check_server_package()
        except ConfigError:  # the page does without
            configs = [""] * len(inspections)
        else:
            configs = [_config_text(inspection.source, chosen, inspection, limit) for inspection in inspections]
        written = _page_of(list(map(_dataset, inspections, configs)), seed or 0)
        _write_page(page, written)
        output.talk(f"wrote {page}: {len(written) / 1e6:.2f} MB")
    if statistics is not None and inspection.statistics is not None:
        path, choice = statistics
        inspection.statistics.write(path, choice.form, choice.names)
        output.talk(f"wrote {path}: statistics in the form of {choice.form}")
    if server_config:
        findings = inspection.findings
        for code in findings.codes():  # on stderr, where it is seen when stdout goes to a file
            example = findings.examples[code][0]
            many = counted(findings.episodes[code], "episode")
            output.talk(f"left out: {code}: {many}, such as {example.title}: {example.problem.detail}")
        click.echo(_config_text(source, chosen, inspection, limit), nl=False)
    elif against is not None:
        comparison = _compared(*inspections)
        if as_json:
            output.print_json(comparison)
            return
        _print_comparison(comparison)
        if page is None:
            cutting = repeat_option("--into", into) or ([] if view is None and view_config is None else of_view)
            given_too = [*cutting, *making, *part, "--html", "page.html"]
            output.propose(["rlds2reverb", "inspect", source, "--against", against, *given_too])
    elif as_json:
        output.print_json(inspection)
    else:
        _print(inspection)
        mended = inspection.findings.mending(inspection.episodes, options.conventions)
        if mended is not None and any(draft.items_per_table for draft in inspection.outputs.values()):
            push = ["rlds2reverb", "push", source, "--server", "localhost:8000", *of_tables]
            push += [] if view is None and view_config is None else of_view
            output.propose([*push, *part, *option_words({**source_options, **mended})])


def _choose_statistics(
    given: dict[str, Any], against: str | None, views: Mapping[str, View]
) -> tuple[Path, StatisticsChoice] | None:
    """Takes the options of statistics out of `given`: the file, and of what they are; None without them."""
    file, of, images = given.pop("statistics"), given.pop("statistics_of"), given.pop("image_statistics")
    names = read_pairs(
        "--statistics-names", "KEY=PATH, such as state=observation/joints", given.pop("statistics_names")
    )
    if file is None:
        if of is not None or images or names:
            raise ConfigError(
                "--statistics-of, --statistics-names and --image-statistics are of statistics; give --statistics FILE, too"
            )
        return None
    if against is not None:
        raise ConfigError("--statistics are of one dataset; leave out --against")
    if of == "items" and len(views) != 1:
        raise ConfigError("--statistics-of items needs one view; leave out all --into but one")
    form, separator, name = file.partition(":")
    if separator and "/" not in form:
        check_form(form)
        path = Path(name)
    else:
        path = Path(file)
        form = form_of(path)
    check_can_be_replaced(path, f"--statistics {file}", ConfigError)
    return path, StatisticsChoice(images, of == "items", form, names)


def _print_datasets(folder: str, as_json: bool) -> None:
    from rlds2reverb.cli.documents import Datasets
    from rlds2reverb.formats.buckets import path_of

    try:
        names = list(SOURCES.below(path_of(folder)))
    except OSError as error:
        raise SourceError(f"{folder}: {error.strerror}") from error
    if as_json:
        output.print_json(Datasets(names))
        return
    for name in names:
        click.echo(name)
    output.talk(f"{folder}: {counted(len(names), 'dataset')}; inspect one by its name")


def _list_request(source: str) -> ListRequest | None:
    """Which of Minari's datasets are to be listed; None where the source is a dataset."""
    scheme, _, text = source.partition(":")
    if scheme != "minari":
        return None
    from rlds2reverb.formats.minari.listing import ListRequest

    return ListRequest.of(text)


def _print_minari(request: ListRequest, as_json: bool) -> None:
    from rlds2reverb.formats.minari.listing import MinariList, hint_at_remote, list_at, list_local

    listed = [] if request.local is None else list(list_local(request.local, request.prefix))
    here, failure = len(listed), None
    if request.remote:
        try:
            listed += list_at(request.remote, request.prefix)
        except (SourceError, StorageError) as error:  # what is here is listed all the same
            failure = error
    names = list(map(request.name_of, listed))
    if as_json:
        output.print_json(MinariList(names, listed))
    else:
        rows: list[list[output.Part]] = (
            [["dataset", "episodes", "steps", "size", "Minari", "authors", "place"]] if listed else []
        )
        for name, dataset in zip(names, listed):
            counts = ["-" if count is None else f"{count:,}" for count in (dataset.episodes, dataset.steps)]
            told = visible(", ".join(dataset.authors)) or "-"
            rows.append(
                [
                    (visible(name), "name"),
                    *counts,
                    size(dataset.bytes),
                    visible(dataset.minari_version) or "-",
                    told,
                    visible(dataset.place),
                ]
            )
        output.print_columns(rows, has_heads=True)
    for name, dataset in zip(names, listed):
        if dataset.problem:
            output.talk(f"{name}: {dataset.problem}")
    if request.local is not None:
        output.talk(f"{request.local}: {_account_of_local(request, here)}")
        output.talk("inspect one by its name" if listed else hint_at_remote())
    if request.remote and failure is None:
        output.talk(
            f"{request.remote}: {counted(len(listed) - here, 'dataset')}, {size(sum(dataset.bytes for dataset in listed[here:]))}"
        )
    if failure is not None:
        raise failure


def _account_of_local(request: ListRequest, count: int) -> str:
    """How many datasets there are below the folder of all, or why there are none."""
    assert request.local is not None  # asked of this machine
    if not request.local.is_dir():
        return "a file, and no folder of datasets" if request.local.exists() else "no such folder; 0 datasets"
    words = counted(count, "dataset")
    if not request.prefix:
        return words
    from rlds2reverb.formats.minari.dataset import list_ids

    namespaces = sorted({name.rpartition("/")[0] for name in list_ids(request.local)} - {""})
    listed = f"; namespaces there: {visible(', '.join(namespaces)) or 'none'}" if not count else ""
    return f"{words} in {visible(request.prefix)}{listed}"


def inspect_dataset(
    views: Mapping[str, View],
    limit: int | None,
    options: EpisodeOptions,
    watch: Watch | None,
    execute: Callable[[Any], Any] | None,
    quiet: bool,
    statistics: StatisticsChoice | None,
    source: str,
) -> Inspection:
    """A source, read once: in this process, or by the workers of `execute`."""
    with progress.on_progress(quiet) as on_progress:
        if execute is None:
            return inspect_source(open_dataset(source), views, limit, options, on_progress, watch, statistics)
        from rlds2reverb.inspection import workers  # importing it takes a tenth of the time of a small dataset

        job = workers.InspectJob(NamedSource(source), views, limit, options, watch, statistics)
        return workers.inspect_by_workers(job, execute, on_progress=on_progress)


def _check_server_package() -> None:
    with needing("--server-config", "server-config", ConfigError):
        import replay_server.template  # noqa: F401


def _config_text(source: str, chosen: Sequence[str], inspection: Inspection, limit: int | None) -> str:
    """The push in the head of the config takes the episodes that were read, and leaves out the bad ones."""
    from replay_server.template import ImageDraft, TableDraft, config_text

    tables = {
        name: TableDraft(
            draft.view,
            draft.items_per_table,
            draft.signature,
            draft.by_priority,
        )
        for name, draft in inspection.outputs.items()
    }
    is_part = limit == inspection.episodes
    part = ["--limit", str(limit)] if is_part else []
    skip = ["--on-invalid", "skip"] if inspection.findings.codes() else []
    images = [
        ImageDraft(image.recorded, image.is_encoded, image.encoded_bytes, image.decoded_bytes)
        for image in inspection.images
    ]
    return config_text(source, [*chosen, *part, *skip], tables, limit if is_part else None, images, inspection.steps)


def _print(inspection: Inspection) -> None:
    output.print_fields(inspection_fields(inspection, on_command_line))
    if said := said_fields(inspection):
        _title(SAID_TITLE)
        output.print_fields(said, "  ")
    if transform := transform_fields(inspection):
        _title("transform, in this order")
        output.print_fields(transform, "  ")
    _title("step spec" + (" after it" if transform else ""))
    specs = inspection.step_spec.items()
    output.print_columns(
        [[(path, "name"), str(spec), range_text(inspection.ranges[path])] for path, spec in specs], "  "
    )
    per_dimension = {path: dimensions_text(inspection.ranges[path]) for path, _ in specs}
    if any(per_dimension.values()):
        _title("extremes of each dimension")
        output.print_fields({path: text for path, text in per_dimension.items() if text}, "  ")
    if inspection.images:
        _title("images")
        output.print_fields({path: image_text(image) for path, image in inspection.images_by_path.items()}, "  ")
    if cells := choice_cells(inspection):
        _title(choices_title(inspection))
        choices: list[list[output.Part]] = [[(path, "name"), *cells_of_choice] for path, *cells_of_choice in cells]
        output.print_columns([[*CHOICE_HEADS], *choices], "  ", has_heads=True)
    if inspection.statistics is not None:
        _title(statistics_title(inspection.statistics))
        rows: list[list[output.Part]] = [[*STATISTICS_HEADS]]
        rows += [[(path, "name"), *cells_of_row] for path, *cells_of_row in statistics_cells(inspection.statistics)]
        output.print_columns(rows, "  ", has_heads=True)
    for table, draft in inspection.outputs.items():
        items = counted(draft.items_per_table, "item")
        click.echo("")
        output.print_line(
            "table ",
            (table, "name"),
            f": {items} of view {shorten_view(draft.view)}, trajectory data spec (its signature)",
        )
        output.print_fields(draft.trajectory_data_spec, "  ")
        if draft.not_in_items:
            output.print_line(f"  not in the items: {', '.join(draft.not_in_items)}")
        if draft.without_items:
            output.print_line(f"  valid episodes that give it no item: {draft.without_items:,}")
        if draft.left_over:
            output.print_line(f"  left over at the end: {counted(draft.left_over, 'step')}")
    click.echo("")
    print_findings(inspection.findings, inspection.episodes)


def _print_comparison(comparison: Comparison) -> None:
    """The verdict first; then the two datasets, what changed, what only one has, and what is the same."""
    from rlds2reverb.look.comparison import DIFFERENCE, HEADS, NOT_COMPARED, ROWS, rows_of, signatures_text, specs_of

    head, colon, explanation = comparison.verdict.partition(": ")
    output.print_line((head, "good" if comparison.same else "advice"), colon, explanation)
    if comparison.caution:
        output.print_line(comparison.caution)
    click.echo("")
    output.print_line(("A", "a"), f"  {comparison.a}", hang=3)
    output.print_line(("B", "b"), f"  {comparison.b}", hang=3)
    click.echo("")
    names: list[output.Part] = ["", ("A", "a"), ("B", "b")]
    facts: list[list[output.Part]] = [[(name, "name"), a, b] for name, a, b in comparison.facts]
    output.print_columns([names, *facts], has_heads=True)
    output.print_line(signatures_text(comparison))
    _title(ROWS[0].lower() + ROWS[1:])
    rows: list[list[output.Part]] = [[(text, {"A": "a", "B": "b"}.get(text[-1], "name")) for text in HEADS]]
    rows += [[(cells[0], "name"), *cells[1:]] for _, _, cells in rows_of(comparison)]
    output.print_columns(rows, "  ", has_heads=True)
    output.print_line(("  " + DIFFERENCE, "aside"), hang=2)
    if specs := specs_of(comparison):
        _title("another dtype or shape")
        output.print_columns([[("column", "name"), ("A", "a"), ("B", "b")], *specs], "  ", has_heads=True)
    for kind, columns in (("a", comparison.of_state("only_a")), ("b", comparison.of_state("only_b"))):
        if columns:
            _title(f"only in {kind.upper()}", kind)
            output.print_fields({path: column.spec_a or column.spec_b for path, column in columns.items()}, "  ")
    for title, columns in (
        (NOT_COMPARED, comparison.of_state("not_compared")),
        ("the same", comparison.of_state("same")),
    ):
        if columns:
            _title(title)
            output.print_line("  " + ", ".join(map(visible, columns)), hang=2)


def _title(text: str, kind: str = "name") -> None:
    click.echo("")
    output.print_line((text, kind))


def print_findings(
    findings: Findings, episodes: int, strict: bool = False, allow: Sequence[str] = (), verbose: bool = False
) -> None:
    """The verdict first; then each code with an example and its remedy, and what is to be said of the dataset."""
    rejecting = findings.codes(strict, allow)
    told = verdict(findings, episodes, rejecting, allow)
    head, colon, explanation = told.partition(": ") if rejecting else told.partition("; ")
    output.print_line((head, "problem" if rejecting else "good"), colon, explanation)
    for code, title, meaning in problem_heads(findings):
        kind, _, counts = title.partition(f" {code}: ")
        output.print_line((f"{kind} {code}", kind), f": {counts}: {meaning}")
        examples = findings.examples[code][: None if verbose else 1]
        for example in examples:
            output.print_line("  ", (example.title, "name"), f": {example_text(example.problem)}")
        if more := findings.problems[code] - len(examples):
            output.print_line(f"  and {more:,} more")
        if remedy := findings.remedy(code):
            output.print_line("  ", ("remedy", "good"), f": {remedy.render(on_command_line)}")
    output.print_notices(findings.notices)
    if way := way_on(findings, rejecting, allow):
        output.print_line(("To continue anyway", "good"), f": {way}")
