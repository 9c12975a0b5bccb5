"""Episodes, plans, reports and servers as notebooks show them: functions from an object to HTML.

The HTML is small whatever the object holds, has no scripts, and requests nothing. It takes its colours from the notebook, be they
light or dark. The size of a card is bounded; and a notebook must not fail over what it shows, so what cannot be shown says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb.episode import IS_LAST, IS_TERMINAL, REWARD, Array
from rlds2reverb.errors import DecodeError, Rlds2ReverbError
from rlds2reverb.extras import Lazily
from rlds2reverb.images import image_size, kind_of
from rlds2reverb.look import html
from rlds2reverb.look.accounts import (
    CHOICE_HEADS,
    SAID_TITLE,
    choice_cells,
    choices_title,
    conversion_fields,
    image_text,
    inspection_fields,
    plan_fields,
    planned_servers,
    problem_heads,
    push_fields,
    range_text,
    said_fields,
    server_line,
    table_fields,
    table_plan,
    transform_fields,
)
from rlds2reverb.look.brief import brief
from rlds2reverb.look.curves import Curve, span_of, sparkline_of
from rlds2reverb.look.html import NOTHING, Html, element, together
from rlds2reverb.look.pictures import choose_steps, data_uri, fit_picture, pictures_of, small_file, thumbnail_size
from rlds2reverb.specs import ArraySpec, Nest, dtype_name, flatten, view_in
from rlds2reverb.text import at_index, counted, line_of, number
from rlds2reverb.views import shorten_view

if TYPE_CHECKING:
    from rlds2reverb.conversion.report import ConvertReport
    from rlds2reverb.episode import Episode, Notice
    from rlds2reverb.inspection.inspection import InspectedOutput, Inspection
    from rlds2reverb.inspection.statistics import Range
    from rlds2reverb.learner.batch import Batch, BatchInfo
    from rlds2reverb.prepare.findings import Findings
    from rlds2reverb.push.plan import PushPlan, TablePlan
    from rlds2reverb.push.report import PushReport
    from rlds2reverb.wire.messages import ServerInfo, TableInfo


MOST_CHARACTERS = 200  # of one text
MOST_ROWS = 40  # of one table
MOST_CARD = 200_000  # characters of a card, without its pictures
MOST_PICTURES = 300_000  # characters of all pictures of a card
MOST_STRIPS = 4
FRAMES = 8
PIXELS = 72  # of the longer side of a picture

_SMALL_FILE, _SMALL_SIDE = 8_000, 1_024
"""Bytes of a file that is shown as it is, and pixels of a side: a small file may claim a large picture, which a browser would make."""
_MOST_SIDE = 4_096  # a file of more pixels a side is not decoded

_MOST_NUMBERS, _MOST_TEXTS = 100_000, 1_000  # values of a column that are looked at
_VALUES = 4
_SPARKS, _SPARK_WIDTH, _SPARK_HEIGHT = 4, 96, 20  # dimensions of a column with a small curve, and its pixels
_MOST_LISTED = 20  # tables, codes, notices, faults, names of metadata

_LINE = "1px solid rgba(128,128,128,.35)"  # a grey that shows on white and on black
_CARD = f"display:inline-block;box-sizing:border-box;max-width:100%;overflow-x:auto;border:{_LINE};border-radius:6px;padding:.5em .8em;text-align:left;line-height:1.45"
_CELL = f"text-align:left;vertical-align:top;border:0;border-top:{_LINE};padding:.15em .8em .15em 0;overflow-wrap:break-word;white-space:normal;max-width:36em"
_NAME = f"{_CELL};opacity:.75;font-weight:normal"
_TABLE = "border-collapse:collapse;border:0;font-size:inherit;color:inherit;margin:.3em 0;background:none;width:auto;table-layout:auto"
_PICTURE = f"height:{PIXELS}px;max-width:{2 * PIXELS}px;image-rendering:pixelated;margin:1px;vertical-align:top"

Part = Callable[[], Html]

_columns_of: Any = Lazily("rlds2reverb.learner.batch:columns_of")  # only where there is a batch
_paths_of: Any = Lazily("rlds2reverb.learner.batch:paths_of")


def shown(thing: Any) -> str:
    """The thing as HTML; what cannot be shown says why. Subclasses are shown as their parents are.

    Raises:
      LookupError: a class that has no line in `SHOWN`.
    """
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(thing).__mro__]
    make = next((SHOWN[name] for name in names if name in SHOWN), None)
    if make is None:
        raise LookupError(f"{type(thing).__name__}: expected one of {', '.join(SHOWN)}")
    return element("div", guard(lambda: make(thing)))


def text(value: object) -> Html:
    """A text on one line, shortened, with a writing direction of its own."""
    return element("bdi", html.text(value, MOST_CHARACTERS))


def quiet(value: object) -> Html:
    """A text in a fainter colour."""
    return element("span", text(value), style="opacity:.7")


def line(*parts: Html) -> Html:
    return element("div", join_html(parts))


def join_html(parts: Iterable[Html], separator: str = " ") -> Html:
    """One after the other; the separator is text."""
    return Html(html.text(separator).join(parts))


def list_values(values: Iterable[object], count: int, most: int = 10) -> Html:
    """The first `most` of `count` texts, and the number of further ones."""
    first = Html(", ".join(text(value) for value in islice(values, most)))
    return join_html([first, quiet(f"and {count - most:,} more")]) if count > most else first


def guard(make: Part) -> Html:
    """What `make` returns; or, in its place, why it cannot be shown."""
    try:
        return make()
    except Exception as error:
        return quiet(f"cannot be shown: {type(error).__name__}: {line_of(error)}")


def fields(rows: Mapping[str, Part | Html | str]) -> Html:
    """A table of names and values; an empty value is left out, one that cannot be made says why."""
    values = {name: guard(value) if callable(value) else value for name, value in rows.items()}
    cells = [
        element(
            "tr",
            element("th", text(name), scope="row", style=_NAME),
            _cell(value if isinstance(value, Html) else text(value)),
        )
        for name, value in values.items()
        if value
    ]
    return element("table", *cells, style=_TABLE) if cells else NOTHING


def rows(heads: Sequence[str], count: int, cells_of_rows: Iterable[Sequence[Html]], noun: str) -> Html:
    """A table with a head; at most `MOST_ROWS` of `count` rows, and the number of further ones. No more cells are made than are shown; `noun` is what a row is: "column"."""
    head = element("tr", *(element("th", text(title), scope="col", style=_NAME) for title in heads))
    body = [element("tr", *map(_cell, cells)) for cells in islice(cells_of_rows, MOST_ROWS)]
    if count > MOST_ROWS:
        more = quiet(f"and {count - MOST_ROWS:,} more {noun}s")
        body.append(element("tr", element("td", more, colspan=len(heads), style=_CELL)))
    return element("table", element("thead", head), element("tbody", *body), style=_TABLE)


def _cell(content: Html) -> Html:
    return element("td", content, style=_CELL)


def fold(summary: Html, content: Html, is_open: bool = False) -> Html:
    return element("details", element("summary", summary, style="cursor:pointer"), content, open=is_open)


def card(kind: str, name: object, parts: Iterable[Part], pictures: Html = NOTHING) -> Html:
    """A box about one object: its kind ("Episode") and name, the parts up to `MOST_CARD` characters (it says so if parts are left out), and the pictures, which have a bound of their own."""
    kept = [element("div", element("strong", text(kind)), " ", text(name))]
    left = MOST_CARD - len(kept[0])
    for part in parts:
        html = guard(part)
        if len(html) > left:
            kept.append(line(quiet("and more, which is too long for a notebook")))
            break
        kept.append(html)
        left -= len(html)
    return element("div", *kept, pictures, style=_CARD)


def episode_html(episode: Episode) -> Html:
    columns = episode.columns
    parts = (
        lambda: fields(
            {
                "steps": f"{len(episode):,}",
                "return": lambda: _return(columns.get(REWARD)),
                "ends": lambda: _end(columns.get(IS_LAST), columns.get(IS_TERMINAL)),
                "bytes": lambda: text(
                    f"{sum(column.nbytes for column in columns.values() if column.dtype.kind != 'O'):,}"
                    f"{', and its texts' if any(column.dtype.kind == 'O' for column in columns.values()) else ''}"
                ),
                "metadata": lambda: _first_of(
                    len(episode.metadata),
                    (join_html([text(f"{name}:"), values_of(value)]) for name, value in episode.metadata.items()),
                ),
                "faults": lambda: _first_of(
                    len(episode.faults), (join_html([text(path), text(why)], ": ") for path, why in episode.faults)
                ),
            }
        ),
        lambda: rows(("column", "dtype and shape", "values"), len(columns), _columns(episode), "column"),
    )
    return card("Episode", episode.title, parts, guard(lambda: strips(columns, "step")))


def _columns(episode: Episode) -> Iterator[list[Html]]:
    for path, column in episode.columns.items():
        kind = _kind(column)
        if len(column) != len(episode):
            kind = join_html([kind, quiet(f"{counted(len(column), 'row')}, not {len(episode):,}")])
        values, spark = (guard(partial(make, column)) for make in (_values_or_size, _spark))
        yield [text(path), kind, join_html([values, spark]) if spark else values]


def _values_or_size(column: Array) -> Html:
    """Pictures stand below: of those in files, the size of the first one."""
    if not is_images(column):
        return values_of(column)
    if column.dtype.kind != "O":
        return quiet("pictures")
    return join_html([quiet("pictures, the first:"), values_of(column.flat[0])])


def _spark(column: Array) -> Html:
    """The first dimensions of a column of numbers, over the steps; nothing for those that stay the same, and for a column that is too large."""
    if column.dtype.kind not in "iuf" or not 0 < column.size <= _MOST_NUMBERS or is_images(column):
        return NOTHING
    rows = column.reshape(len(column), -1)[:, :_SPARKS].astype(np.float64)
    moving = [curve for curve in (Curve("", values) for values in rows.T) if not curve.is_still]
    span = span_of(moving)
    if span is None:
        return NOTHING
    paths = [
        element("path", d=sparkline_of(curve, span, _SPARK_WIDTH, _SPARK_HEIGHT), opacity=f"{1 / (1 + at):.2g}")
        for at, curve in enumerate(moving)
    ]
    return element(
        "svg",
        *paths,
        viewBox=f"0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}",
        style=f"width:{_SPARK_WIDTH}px;height:{_SPARK_HEIGHT}px;fill:none;stroke:currentColor;vertical-align:middle",
        role="img",
        aria_label="its values over the steps",
    )


def _return(reward: Array | None) -> Html:
    if reward is None or reward.ndim != 1 or reward.dtype.kind not in "fiu":
        return NOTHING
    if len(reward) > 10 * _MOST_NUMBERS:
        return quiet("too many rewards to add up here")
    return text(number(float(reward.sum(dtype=float))))


def _end(is_last: Array | None, is_terminal: Array | None) -> Html:
    if is_last is None or not len(is_last):
        return NOTHING
    if not is_last[-1]:
        return text("open: its last row is not marked is_last")
    is_over = is_terminal is not None and len(is_terminal) and is_terminal[-1]
    return text("terminal" if is_over else "truncated")


def _first_of(count: int, lines: Iterable[Html]) -> Html:
    return join_html([*islice(lines, _MOST_LISTED), *_more(count)], "; ")


def _more(count: int) -> list[Html]:
    return [quiet(f"and {count - _MOST_LISTED:,} more")] if count > _MOST_LISTED else []


def batch_html(batch: Batch) -> Html:
    paths = _paths_of(batch.data, None)
    leaves = dict(zip(flatten(paths), _columns_of(batch.data, paths)))
    parts = (
        lambda: _leaves(leaves, "column") if leaves else quiet("no columns"),
        lambda: fold(text("what the server told of the samples"), _samples(batch.info)),
    )
    arrays = {path: leaf for path, leaf in leaves.items() if isinstance(leaf, np.ndarray) and leaf.ndim}
    return card("Batch", counted(batch.size, "sample"), parts, guard(lambda: strips(arrays, "sample")))


def info_html(info: BatchInfo) -> Html:
    return card("BatchInfo", counted(int(info.key.size), "sample"), (lambda: _samples(info),))


def _samples(info: BatchInfo) -> Html:
    values: dict[str, Any] = {}
    for name, value in info._asdict().items():
        if isinstance(value, Mapping):  # masks by column
            values |= {f"{name} {path}": mask for path, mask in value.items()}
        elif value is not None:
            values[name] = value
    return _leaves(values, "field")


def _leaves(leaves: Mapping[str, Any], noun: str) -> Html:
    def make_rows() -> Iterator[list[Html]]:
        for path, leaf in leaves.items():
            if isinstance(leaf, list):  # of arrays, where samples differ in shape
                arrays: list[Array] = [np.asarray(value) for value in leaf[:MOST_ROWS]]
                kinds = ", ".join(dict.fromkeys(f"{array.dtype}{list(array.shape)}" for array in arrays))
                values = values_of(arrays[0]) if arrays else quiet("none")
                yield [text(path), text(f"{counted(len(leaf), 'array')}: {kinds}"), values]
            else:
                array = np.asarray(leaf)
                yield [text(path), guard(partial(_kind, array)), values_of(array)]

    return rows((noun, "dtype and shape", "values"), len(leaves), make_rows(), noun)


def _kind(array: Array) -> Html:
    """Dtype and shape: "float32[51, 4]"."""
    sizes = ", ".join(map(str, array.shape[:8])) + (", ..." if array.ndim > 8 else "")
    return text(f"{dtype_name(array.dtype)}[{sizes}]")


def values_of(value: Any) -> Html:
    """First values and their range; of a large array of its beginning only, and then it says so."""
    return guard(lambda: _values_of(value if isinstance(value, (bytes, str)) else np.asarray(value)))


def _values_of(value: Any) -> Html:
    if isinstance(value, (bytes, str)):
        return text(brief(value[:_MOST_NUMBERS], _VALUES).text())
    is_text = value.dtype.kind in "OSU"
    most = _MOST_TEXTS if is_text else _MOST_NUMBERS
    seen = value if value.size <= most else value.flat[:most]
    type_names = (
        {type(value).__name__ for value in seen.flat if not isinstance(value, (bytes, str))} if is_text else set()
    )
    if type_names:
        return join_html([text("objects that are no text:"), list_values(sorted(type_names), len(type_names), 3)])
    values = text(brief(seen, _VALUES).text())
    return values if seen is value else join_html([quiet(f"first {most:,} values:"), values])


def strips(columns: Mapping[str, Array], noun: str) -> Html:
    """Film strips of the first few image columns: a few small pictures each, as data URIs, within a bound of bytes.

    Args:
      columns: path -> [T, ...].
      noun: what a row is: "step".
    """
    image_paths = [path for path, column in columns.items() if is_images(column)]
    left, pictures = MOST_PICTURES, []
    for path in image_paths[:MOST_STRIPS]:
        strip = guard(partial(_strip, path, _first_of_each(columns[path]), noun))
        if len(strip) > left:
            strip = line(text(path), quiet("its pictures are too large for a notebook"))
        left -= len(strip)
        pictures.append(strip)
    if len(image_paths) > MOST_STRIPS:
        pictures.append(line(quiet(f"and {len(image_paths) - MOST_STRIPS:,} more image columns")))
    return together(pictures)


def is_images(column: Array) -> bool:
    """Whether rows are images, or several of them, such as those of two cameras."""
    return bool(column.size) and bool(kind_of(_first_of_each(column)))


def _first_of_each(column: Array) -> Array:
    """[T, ...] the first image of each row, where rows have further axes."""
    axes = 1 if column.dtype.kind == "O" else 4
    while column.ndim > axes and (axes == 1 or not kind_of(column)):
        column = column[:, 0]
    return column


def _strip(path: str, column: Array, noun: str) -> Html:
    try:
        frames = list(_frames(path, column))
    except Rlds2ReverbError as error:
        return line(text(path), quiet(f"its pictures cannot be shown: {error}"))
    of = [quiet(f"{len(frames)} of {len(column):,} {noun}s")] if len(frames) < len(column) else []
    pictures = [
        element(
            "img", src=data_uri(file), alt=f"{noun} {row:,}", title=at_index(noun, row, len(column)), style=_PICTURE
        )
        for row, file in frames
    ]
    return together([line(text(path), *of), *pictures])


def _frames(path: str, column: Array) -> Iterator[tuple[int, bytes]]:
    """A few rows, evenly over all, and a picture file of each; texts that hold no image are skipped. Raises `DecodeError`."""
    steps = choose_steps(len(column), FRAMES)
    pictures = pictures_of(path, column[steps])
    if pictures is None:
        return
    for at, row in enumerate(steps):
        if pictures.spec is not None:
            file = column[row]
            size = image_size(file) if isinstance(file, bytes) else None
            if size is None:
                continue
            if len(file) <= _SMALL_FILE and max(size) <= _SMALL_SIDE:
                yield row, file
                continue
            if max(size) > _MOST_SIDE:
                raise DecodeError(
                    f"one of {size[0]:,} x {size[1]:,} pixels; at most {_MOST_SIDE:,} a side are decoded here"
                )
        picture = pictures.picture(at)
        height, width = picture.shape[:2]
        yield row, small_file(fit_picture(picture, *thumbnail_size((height, width), PIXELS)))


def server_html(info: ServerInfo) -> Html:
    tables = [info.tables[name] for name in sorted(info.tables)]
    heads = ("table", "items", "selectors", "inserts", "samples")
    parts: list[Part] = [lambda: rows(heads, len(tables), map(_row, tables), "table")]
    parts += [partial(_signature, table.name, table.signature) for table in tables[:_MOST_LISTED]]
    return card("Reverb server", counted(len(tables), "table"), parts)


def _row(table: TableInfo) -> list[Html]:
    try:
        return [text(table.name), *map(text, table_fields(table).values())]
    except Exception as error:
        return [text(table.name), quiet(f"cannot be shown: {line_of(error)}")]


def table_html(table: TableInfo) -> Html:
    """One table, as it was when the server was asked."""
    parts = (lambda: fields(table_fields(table)), lambda: _signature(table.name, table.signature, is_open=True))
    return card("Table", table.name, parts)


def plan_html(plan: PushPlan) -> Html:
    parts: list[Part] = [
        lambda: fields({**plan_fields(plan), **planned_servers(plan)}),
        lambda: rows(("table", "what the push finds there"), len(plan.tables), map(_plan_row, plan.tables), "table"),
    ]
    parts += [partial(_signature, table.name, table.signature) for table in plan.tables[:_MOST_LISTED]]
    parts += [lambda: notices(plan.notices), lambda: quiet("Nothing has been sent.")]
    return card("Plan of a push", plan.source.name, parts)


def _plan_row(table: TablePlan) -> list[Html]:
    lacking = [quiet(f"not in the items: {', '.join(table.not_in_items)}")] if table.not_in_items else []
    return [text(table.name), guard(lambda: join_html([text(table_plan(table)), *lacking]))]


def table_plan_html(table: TablePlan) -> Html:
    parts = (lambda: line(_plan_row(table)[1]), lambda: _signature(table.name, table.signature, is_open=True))
    return card("Table of a plan", table.name, parts)


def _signature(name: str, signature: Nest | None, is_open: bool = False) -> Html:
    if signature is None:
        return line(quiet(f"table {name} has no signature: it takes anything"))
    view = shorten_view(view_in(signature))
    title = f"signature of {name}" + (f", for items of view {view}" if view else "")
    return fold(text(title), guard(lambda: _spec_rows(signature)), is_open)


def _spec_rows(signature: Nest) -> Html:
    leaves = flatten(signature)
    cells = ([text(path), _kind_of(leaf)] for path, leaf in leaves.items())
    return rows(("column", "dtype and shape"), len(leaves), cells, "column")


def _kind_of(leaf: Any) -> Html:
    return text(leaf if isinstance(leaf, ArraySpec) else type(leaf).__name__)


def notices(messages: Iterable[Notice]) -> Html:
    every = list(messages)
    return together([*(line(text(message.line)) for message in every[:_MOST_LISTED]), *map(line, _more(len(every)))])


def inspection_html(inspection: Inspection) -> Html:
    parts: list[Part] = [
        lambda: fields({**inspection_fields(inspection), **transform_fields(inspection)}),
        lambda: _said(inspection),
        lambda: rows(("column", "a step", "values"), len(inspection.step_spec), _inspection_rows(inspection), "column"),
        lambda: fields({image.path: image_text(image) for image in inspection.images[:_MOST_LISTED]}),
        lambda: _image_choices(inspection),
        *(partial(_output, *pair) for pair in islice(inspection.outputs.items(), _MOST_LISTED)),
        lambda: _problems(inspection.findings),
    ]
    return card("Inspection", inspection.source, parts)


def _said(inspection: Inspection) -> Html:
    said = said_fields(inspection)
    return fold(text(SAID_TITLE), fields(dict(islice(said.items(), _MOST_LISTED)))) if said else NOTHING


def _image_choices(inspection: Inspection) -> Html:
    cells = choice_cells(inspection)
    if not cells:
        return NOTHING
    shown = ([text(cell) for cell in row] for row in cells)
    return fold(text(choices_title(inspection)), rows(CHOICE_HEADS, len(cells), shown, "way"))


def _inspection_rows(inspection: Inspection) -> Iterator[list[Html]]:
    for path, spec in inspection.step_spec.items():
        span = inspection.ranges.get(path)
        yield [text(path), _kind_of(spec), NOTHING if span is None else guard(partial(_span, span))]


def _span(span: Range) -> Html:
    return text(range_text(span) or (f"{span.not_finite:,} not finite" if span.not_finite else ""))


def _output(table: str, output: InspectedOutput) -> Html:
    title = f"table {table}: {counted(output.items_per_table, 'item')} of view {shorten_view(output.view)}"
    more = {
        "not in the items": list_values(output.not_in_items, len(output.not_in_items)),
        "no item made of": counted(output.without_items, "valid episode") if output.without_items else "",
        "left over": counted(output.left_over, "step") if output.left_over else "",
    }
    return fold(text(title), together([fields(more), guard(lambda: _spec_rows(output.signature))]))


def findings_html(findings: Findings) -> Html:
    return card("Findings", counted(sum(findings.problems.values()), "problem"), (lambda: _problems(findings),))


def _problems(findings: Findings) -> Html:
    kinds = []
    for code, head, meaning in islice(problem_heads(findings), MOST_ROWS):
        examples = []
        for example in findings.examples.get(code, ()):
            where = f"{example.problem.path}: " if example.problem.path else ""
            examples.append(
                element("div", join_html([text(example.title), text(f"{where}{example.problem.detail}")], ": "))
            )
        if (more := findings.more(code)) > 0:
            examples.append(line(quiet(f"and {more:,} more")))
        kinds.append(fold(join_html([text(head), quiet(meaning)]), together(examples)))
    more = len(findings.episodes) - MOST_ROWS
    more_kinds = line(quiet(f"and {more:,} more kinds")) if more > 0 else NOTHING
    return together([*(kinds or [line(text("no problems"))]), more_kinds, notices(findings.notices)])


def push_html(report: PushReport) -> Html:
    servers = report.servers
    cells = ([text(address), guard(partial(_about_server, server))] for address, server in servers.items())
    parts = (
        lambda: _stopped(report.stopped),
        lambda: fields(push_fields(report)),
        lambda: rows(("server", "its part"), len(servers), cells, "server") if servers else NOTHING,
        lambda: notices(report.notices),
    )
    return card("Push", report.source, parts)


def convert_html(report: ConvertReport) -> Html:
    losses = report.losses
    parts = (
        lambda: _stopped(report.stopped),
        lambda: fields(conversion_fields(report)),
        lambda: together(
            [
                *(
                    line(text(f"lost: {loss.path + ': ' if loss.path else ''}{loss.text}"))
                    for loss in losses[:_MOST_LISTED]
                ),
                *map(line, _more(len(losses))),
            ]
        ),
        lambda: notices(report.notices),
    )
    return card("Conversion", f"{report.source} to {report.destination}", parts)


def _about_server(report: PushReport) -> Html:
    return text(server_line(report))


def _stopped(why: str) -> Html:
    return line(text("Stopped:"), text(why)) if why else NOTHING


SHOWN: Mapping[str, Callable[[Any], Html]] = {
    "rlds2reverb.conversion.report.ConvertReport": convert_html,
    "rlds2reverb.episode.Episode": episode_html,
    "rlds2reverb.learner.batch.Batch": batch_html,
    "rlds2reverb.learner.batch.BatchInfo": info_html,
    "rlds2reverb.push.plan.PushPlan": plan_html,
    "rlds2reverb.push.plan.TablePlan": table_plan_html,
    "rlds2reverb.push.report.PushReport": push_html,
    "rlds2reverb.inspection.inspection.Inspection": inspection_html,
    "rlds2reverb.prepare.findings.Findings": findings_html,
    "rlds2reverb.wire.messages.ServerInfo": server_html,
    "rlds2reverb.wire.messages.TableInfo": table_html,
}
"""Class -> what makes its HTML. A class that notebooks show has a line here and a `_repr_html_` of its own."""
