"""What an inspection found: counts, columns with their ranges, what tables need, and problems with examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from rlds2reverb.notebook.markup import (
    Html,
    card,
    fields,
    folded,
    guarded,
    joined,
    line,
    listed,
    quiet,
    rows,
    text,
)
from rlds2reverb.notebook.tables import remarks, signature_rows
from rlds2reverb.notebook.values import spec_text
from rlds2reverb.reports.inspected import summary
from rlds2reverb.validation.problems import CODES
from rlds2reverb.wording import counted, number

if TYPE_CHECKING:
    from rlds2reverb.reports.inspected import InspectedOutput, Inspection
    from rlds2reverb.reports.ranges import Range
    from rlds2reverb.validation.findings import Findings

_MOST_TABLES = 20
_MOST_CODES = 40


def inspection_html(inspection: Inspection) -> Html:
    """What is in a dataset, which tables it needs, and what is wrong with it."""
    outputs = islice(inspection.outputs.items(), _MOST_TABLES)
    parts: list[Callable[[], Html]] = [
        lambda: fields(_counts(inspection)),
        lambda: rows(("column", "a step", "values"), len(inspection.step_spec), _columns(inspection), "column"),
        *(partial(_output, *pair) for pair in outputs),
        lambda: _problems(inspection.findings),
    ]
    return card("Inspection", inspection.source, parts)


def findings_html(findings: Findings) -> Html:
    """What is wrong with episodes, with a few examples of each kind."""
    return card("Findings", counted(sum(findings.problems.values()), "problem"), (lambda: _problems(findings),))


def _counts(inspection: Inspection) -> dict[str, Callable[[], Html] | Html]:
    return {
        "episodes": text(f"{len(inspection.lengths):,}"),
        "steps": lambda: text(f"{sum(inspection.lengths):,}, {counted(inspection.step_bytes, 'byte')} each"),
        "episode length": lambda: _numbers(summary(inspection.lengths)),
        "return": lambda: _numbers(inspection.return_summary()),
        "ends": lambda: text(f"{inspection.ends.terminal:,} terminal, {inspection.ends.truncated:,} truncated"),
        "filled": lambda: listed(inspection.filled, len(inspection.filled)) if inspection.filled else Html(""),
        "transform": lambda: joined(
            [text(f"{name} {told}") for name, told in islice(inspection.transform.lines().items(), 20)], "; "
        ),
        "left out": lambda: listed(inspection.left_out, len(inspection.left_out)),
        "images": lambda: listed((one.path for one in inspection.images), len(inspection.images)),
    }


def _numbers(found: Mapping[str, float | None] | None) -> Html:
    """Such as "min 8, median 20, mean 22.3, max 58"; how many are not finite only where some are not."""
    told = [
        f"{name.replace('_', ' ')} {number(value)}"
        for name, value in (found or {}).items()
        if value != 0 or name != "not_finite"
    ]
    return text(", ".join(told)) if told else Html("")


def _columns(inspection: Inspection) -> Iterator[list[Html]]:
    for path, spec in inspection.step_spec.items():
        span = inspection.ranges.get(path)
        yield [text(path), spec_text(spec), guarded(partial(_span, span))]


def _span(span: Range | None) -> Html:
    if span is None or (span.minimum is None and not span.not_finite):
        return Html("")
    parts = (
        [] if span.minimum is None else [f"{number(span.minimum)} to {number(span.maximum)}, mean {number(span.mean)}"]
    )
    parts += [f"{span.not_finite:,} not finite"] if span.not_finite else []
    return text(", ".join(parts))


def _output(table: str, one: InspectedOutput) -> Html:
    """What one table needs and gets."""
    told = f"table {table}: {counted(one.items_per_table, 'item')} of view {one.view}"
    more = {
        "not in the items": listed(one.not_in_items, len(one.not_in_items)),
        "no item made of": text(counted(one.without_items, "valid episode")) if one.without_items else Html(""),
        "left over": text(counted(one.left_over, "step")) if one.left_over else Html(""),
    }
    return folded(text(told), joined([fields(more), guarded(lambda: signature_rows(one.signature))], ""))


def _problems(findings: Findings) -> Html:
    found = [code for code in CODES if code in findings.episodes]
    found += [code for code in findings.episodes if code not in CODES]
    kinds = [_kind(findings, code) for code in found[:_MOST_CODES]]
    more = [line(quiet(f"and {len(found) - _MOST_CODES:,} more kinds"))] if len(found) > _MOST_CODES else []
    return joined([*(kinds or [line(text("no problems"))]), *more, remarks(findings.remarks)], "")


def _kind(findings: Findings, code: str) -> Html:
    """One kind of problem: how often, what it means, and its examples."""
    meaning, kind = (
        (CODES[code].meaning, "advice" if CODES[code].is_advice else "problem") if code in CODES else ("", "problem")
    )
    examples = [
        line(
            joined(
                [text(one.title), text(f"{one.problem.path + ': ' if one.problem.path else ''}{one.problem.detail}")],
                ": ",
            )
        )
        for one in findings.examples.get(code, ())
    ]
    more = [line(quiet(f"and {findings.more(code):,} more"))] if findings.more(code) > 0 else []
    told = joined([text(f"{kind} {code}: {counted(findings.episodes[code], 'episode')}"), quiet(meaning)])
    return folded(told, joined([*examples, *more], ""))
