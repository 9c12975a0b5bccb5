"""Plans, reports, inspections and tables as names and texts: the terminal prints them, a notebook makes cards of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb.prepare.policy import SKIP
from rlds2reverb.prepare.problems import CODES, INTOLERABLE
from rlds2reverb.specs import view_in
from rlds2reverb.text import (
    Remedy,
    Spelling,
    by_name,
    counted,
    duration,
    number,
    on_command_line,
    rate,
    shortened,
    size,
    visible,
)
from rlds2reverb.views import shorten_view

if TYPE_CHECKING:
    from rlds2reverb.conversion.report import ConvertReport
    from rlds2reverb.formats.source import LeftOut
    from rlds2reverb.inspection.inspection import Inspection
    from rlds2reverb.inspection.statistics import Range, Statistics
    from rlds2reverb.numbers.statistics import DatasetStatistics
    from rlds2reverb.prepare.findings import Findings
    from rlds2reverb.prepare.image_files import ImageColumn
    from rlds2reverb.prepare.problems import Problem
    from rlds2reverb.push.plan import PushPlan, TablePlan
    from rlds2reverb.push.report import PushReport
    from rlds2reverb.servers.journal import JournalEntry
    from rlds2reverb.wire.messages import TableInfo


def push_fields(report: PushReport) -> dict[str, str]:
    fields = {
        "source": report.source,
        "tables": f"{', '.join(report.tables)}  (view {shorten_view(report.view)})",
        **filtered_fields(report.filtered),
        "read": _episodes_and_steps(report.episodes_read, report.steps_read),
        "pushed": _episodes_and_steps(report.episodes_pushed, report.steps_pushed),
        "confirmed": confirmed(report),
        "speed": f"{rate(report.items_per_second)} items/s, {report.bytes / 1e6:,.1f} MB in {report.seconds:.2f} s",
    }
    optional = {
        "left out": report.episodes_left_out
        and f"{counted(report.episodes_left_out, 'episode')} of servers that are missing; run the same push again when they are back",
        "moved": report.items_moved
        and f"{counted(report.items_moved, 'item')} taken out of servers where they do not belong any more",
        "not stored": _not_stored(report),
        "rejected": _codes(report.rejected)
        and f"{_codes(report.rejected)}  ({counted(report.steps_rejected, 'step')})",
        "repaired": _codes(report.repaired),
        "advice": _codes(report.advice),
        "ends": report.ends_mended and f"{counted(report.ends_mended, 'last observation')} not as recorded",
        "ends late": report.ends_found_late
        and f"{counted(report.ends_found_late, 'episode')} stored whose end is not its own: notice ends_found_late",
        "filled": ", ".join(report.filled),
        "resumed": report.episodes_resumed and f"{counted(report.episodes_resumed, 'episode')} confirmed before",
        "deleted": report.episodes_deleted
        and f"{counted(report.episodes_deleted, 'episode')} deleted from the tables before, left out",
        "duplicates": report.episodes_duplicate
        and f"{counted(report.episodes_duplicate, 'episode')} equal to earlier ones, not stored",
        "items made": len(report.tables) > 1
        and f"{_codes(report.items_made)}{', those of resumed episodes included' if report.episodes_resumed else ''}",
        "no items": _codes(report.without_items, "episode"),
        "left over": _codes(report.left_over, "step")
        and f"{_codes(report.left_over, 'step')} at the end of the stream",
        "reconnects": report.reconnects or "",
        "workers": report.workers and _workers(report),
    }
    return {**fields, **{name: str(text) for name, text in optional.items() if text}}


def server_line(report: PushReport) -> str:
    parts = [
        counted(report.episodes_pushed, "episode"),
        confirmed(report),
        report.episodes_resumed and f"{counted(report.episodes_resumed, 'episode')} confirmed before",
        report.episodes_deleted and f"{counted(report.episodes_deleted, 'episode')} deleted before",
        report.episodes_unconfirmed and f"{counted(report.episodes_unconfirmed, 'episode')} not confirmed",
        report.episodes_duplicate and f"{counted(report.episodes_duplicate, 'duplicate')} not stored",
        report.episodes_left_out and f"{counted(report.episodes_left_out, 'episode')} left out",
    ]
    account = ", ".join(part for part in parts if part)
    return f"{account}  (missing: {report.stopped})" if report.stopped else account


def confirmed(report: PushReport) -> str:
    new = "" if report.items_new is None else f", {report.items_new:,} new"
    return f"{counted(report.items_confirmed, 'item')}{new}"


def _not_stored(report: PushReport) -> str:
    """What a stopped push may have stored in part or not at all, and what it never read."""
    if not report.stopped:
        unknown = report.episodes_unconfirmed  # of a server that was lost, and may be missing
        return f"{counted(unknown, 'episode')} sent and not confirmed" if unknown else ""
    unread = "the rest of the source" if report.episodes_unread is None else counted(report.episodes_unread, "episode")
    return f"{counted(report.episodes_unconfirmed, 'episode')} read and not confirmed, {unread} not read"


def plan_fields(plan: PushPlan) -> dict[str, str]:
    episodes = "" if plan.episodes is None else f"  ({counted(plan.episodes, 'episode')})"
    filled = {"filled": ", ".join(plan.filled)} if plan.filled else {}
    filters = filtered_fields(plan.source.filtered)
    if plan.options.chosen_map is not None:
        filters["map"] = plan.options.chosen_map.name
    return {"source": f"{plan.source.name}{episodes}", **filters, **plan.options.chosen_transform.lines(), **filled}


def table_plan(table: TablePlan) -> str:
    """The items that a push makes for a table, and the table's free capacity. Items that the table holds already need none."""
    room = f"{table.size:,} of at most {counted(table.max_size, 'item')}"
    if table.waits_when_full:
        room += "; when full, inserts wait for samples"
    else:
        room += f", so {table.free:,} more fit"
    return f"view {shorten_view(table.view)}; makes {table.items_in_words}; {room}"


def planned_servers(plan: PushPlan) -> dict[str, str]:
    """The tables of each server of a plan; {} for one server."""
    if len(plan.names) == 1:
        return {}
    return {
        address: "missing; its episodes are left out"
        if address in plan.missing
        else ", ".join(f"{table.name} {table.size:,} of {table.max_size:,}" for table in plan.server_tables[address])
        for address in plan.names
    }


def conversion_fields(report: ConvertReport) -> dict[str, str]:
    seconds, read = max(report.seconds, 1e-9), report.episodes_read - report.episodes_resumed
    resumed = f", {report.episodes_resumed:,} of them by runs before" if report.episodes_resumed else ""
    fields = {
        "source": report.source,
        "destination": report.path,
        **filtered_fields(report.filtered),
        "read": f"{_episodes_and_steps(report.episodes_read, report.steps_read)}{resumed}",
        "written": _episodes_and_steps(report.episodes_written, report.steps_written),
        "size": f"{report.bytes / 1e6:,.1f} MB of columns; {report.seconds:.2f} s, {rate(read / seconds)} episodes/s",
    }
    verified_by = f"; read by {' and '.join(report.verified_by)}" if report.verified_by else ""
    is_unfinished = bool(report.stopped and not report.verified_by)
    lossy = " except for the reported losses" if report.losses else ""
    optional = {
        "rejected": _codes(report.rejected)
        and f"{_codes(report.rejected)}  ({counted(report.steps_rejected, 'step')})",
        "repaired": _codes(report.repaired),
        "advice": _codes(report.advice),
        "ends": report.ends_mended and f"{counted(report.ends_mended, 'last observation')} not as recorded",
        "files kept": ", ".join(report.encoded),
        "lost": ", ".join(dict.fromkeys(loss.code for loss in report.losses)),
        "verified": ""
        if report.verified is None or is_unfinished
        else f"{counted(report.verified, 'episode')}, equal to the source{lossy}{verified_by}",
        "not verified": ""
        if report.verified is None or not is_unfinished
        else f"the comparison ended after {report.verified:,} of {counted(report.episodes_written, 'episode')}",
        "psnr": "; ".join(
            f"{path} {near.mean:.1f} dB, worst of {counted(near.frames, 'frame')} {near.least:.1f} dB"
            for path, near in report.psnr.items()
        ),
        "workers": report.workers and _workers(report),
        "stopped": report.stopped,
    }
    return {**fields, **{name: str(text) for name, text in optional.items() if text}}


def _workers(report: PushReport | ConvertReport) -> str:
    """Their number, and the parts that were begun again."""
    again = f", {counted(report.parts_again, 'part')} begun anew, for the worker was lost" if report.parts_again else ""
    return f"{report.workers:,} at a time{again}"


def inspection_fields(inspection: Inspection, spelling: Spelling = by_name) -> dict[str, str]:
    """What was inspected; `spelling` writes the options in it."""
    step_bytes, ends = counted(inspection.step_bytes, "byte"), inspection.ends
    total = size(inspection.step_bytes * inspection.steps)
    returns = inspection.return_statistics
    left_out = f"  (left out: {returns.not_finite:,} not finite)" if returns and returns.not_finite else ""
    style = f"  ({ends.describe(spelling)})" if ends.episodes else ""
    return {
        "source": inspection.source,
        **filtered_fields(inspection.filtered),
        "counts": f"{_episodes_and_steps(inspection.episodes, inspection.steps)}, {step_bytes} per step, {total} in all",
        "episode length": statistics(inspection.episode_length),
        "return": f"{statistics(returns)}{left_out}",
        "ends": f"{ends.terminal:,} terminal, {ends.truncated:,} truncated{style}",
        "filled": ", ".join(inspection.filled) or "nothing: all seven RLDS fields are there",
    }


_MOST_SAID = 160
"""Characters of a fact that are shown; the rest is in JSON."""


SAID_TITLE = "what the dataset says of itself"
"""What stands above `said_fields`."""


def said_fields(inspection: Inspection) -> dict[str, str]:
    """What the dataset says of itself, such as its authors; {} where it says nothing."""
    return {visible(name): shortened(_fact_text(value), _MOST_SAID) for name, value in inspection.about.said.items()}


def _fact_text(value: Any) -> str:
    """A fact on a line. Of an object, which may be written in a text, as Minari writes an EnvSpec, only members that say something."""
    if isinstance(value, str) and value.startswith("{"):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    if isinstance(value, Mapping):
        said = {name: child for name, child in value.items() if child not in (None, "", [], {}, False)}
        return ", ".join(f"{visible(name)} {_fact_text(child)}" for name, child in said.items())
    if isinstance(value, (list, tuple)):
        return "; ".join(map(_fact_text, value))
    return visible(" ".join(value.split()) if isinstance(value, str) else json.dumps(value, default=str))


def filtered_fields(filtered: Mapping[str, LeftOut]) -> dict[str, str]:
    """What each rule takes out; {} without rules."""
    return {rule: f"takes out {counts}" for rule, counts in filtered.items()}


def transform_fields(inspection: Inspection) -> dict[str, str]:
    """What the transform does to the columns, and the columns that it leaves out; {} for none."""
    lines = inspection.transform.lines()
    return {**lines, "left out": ", ".join(inspection.left_out)} if lines and inspection.left_out else lines


def statistics(numbers: Statistics | None) -> str:
    """min, median, mean and max on a line."""
    return "-" if numbers is None else "  ".join(f"{name} {number(value)}" for name, value in numbers.items())


def range_text(span: Range) -> str:
    """The range of a column's values; "" where it is not known."""
    if span.minimum is None:
        return ""
    bad = f", {span.not_finite:,} not finite" if span.not_finite else ""
    return f"{number(span.minimum)} to {number(span.maximum)}, mean {number(span.mean)}{bad}"


def dimensions_text(span: Range) -> str:
    """The range of each dimension of a vector; "" for anything else, and for a long one."""
    pairs = enumerate(zip(span.lows, span.highs))
    return "  ".join(f"[{at}]={number(low, 3)}..{number(high, 3)}" for at, (low, high) in pairs if low <= high)


def image_text(column: ImageColumn) -> str:
    """Bytes of a step of an image column."""
    decoded = "unknown" if column.decoded_bytes is None else f"{column.decoded_bytes:,}"
    ways = f"{decoded} bytes per step decoded, {column.encoded_bytes:,} encoded"
    return f"{ways} (as stored)" if column.is_encoded else f"{ways} (with --encoded {column.recorded})"


CHOICE_HEADS = ("column", "a push with", "bytes per step", "all steps", "decoded", "at half size")
"""Of the table of `choice_cells`."""


def choice_cells(inspection: Inspection) -> list[list[str]]:
    """What each way of storing each column of images takes: the cells below `CHOICE_HEADS`."""

    def per_second(images: float | None) -> str:
        return "-" if images is None else f"{rate(images)}/s"

    return [
        [
            path,
            choice.option or ("pixels" if choice.decoded_per_second is None else "files, as here"),
            f"{choice.step_bytes:,.0f}",
            size(choice.step_bytes * inspection.steps),
            per_second(choice.decoded_per_second),
            per_second(choice.half_size_per_second),
        ]
        for path, choices in inspection.image_choices.items()
        for choice in choices
    ]


def choices_title(inspection: Inspection) -> str:
    """What stands above the table of `choice_cells`."""
    frames = max((choice.frames for choices in inspection.image_choices.values() for choice in choices), default=0)
    return f"images in a table, measured now on {counted(frames, 'frame')} of one episode, decoded by one core"


STATISTICS_HEADS = ("column", "mean", "std", "min", "q01", "q50", "q99", "max", "values")
"""Of the table of `statistics_cells`."""

_MOST_DIMENSIONS = 32


def statistics_title(statistics: DatasetStatistics) -> str:
    """What stands above the table of `statistics_cells`."""
    transitions, trajectories = (
        counted(statistics.transitions, "transition"),
        counted(statistics.trajectories, "episode"),
    )
    return f"statistics of {transitions} of {trajectories}"


def statistics_cells(statistics: DatasetStatistics) -> Iterator[list[str]]:
    """The cells below `STATISTICS_HEADS`: a row for each of the first 32 dimensions of each column."""

    def text(number: float) -> str:
        return "-" if math.isnan(number) else f"{number:.4g}"

    for path, column in statistics.items():
        quantiles = [column.quantiles[share] for share in (0.01, 0.5, 0.99)]
        numbers = (column.mean, column.std, column.min, *quantiles, column.max)
        for place in islice(np.ndindex(column.mean.shape), _MOST_DIMENSIONS):
            name = f"{path}[{', '.join(map(str, place))}]" if place else path
            yield [name, *(text(float(values[place])) for values in numbers), f"{int(column.count[place]):,}"]
        if column.mean.size > _MOST_DIMENSIONS:
            more = f"{path}: {column.mean.size - _MOST_DIMENSIONS:,} more dimensions are in the file"
            yield [more, *[""] * (len(STATISTICS_HEADS) - 1)]


def problem_heads(findings: Findings) -> Iterator[tuple[str, str, str]]:
    """Each code that was found, in the order of `CODES`: the code, "problem CODE: 3 episodes", and its meaning."""
    unknown = (code for code in findings.episodes if code not in CODES)
    for code in (*(code for code in CODES if code in findings.episodes), *unknown):
        meaning = CODES[code].meaning if code in CODES else ""
        kind = "advice" if code in CODES and CODES[code].is_advice else "problem"
        yield code, f"{kind} {code}: {counted(findings.episodes[code], 'episode')}", meaning


def verdict(findings: Findings, episodes: int, rejecting: Sequence[str], allow: Sequence[str] = ()) -> str:
    """One sentence on a dataset: how many of its episodes are rejected, and why; else what else was found."""
    names = ", ".join(rejecting)
    if bad := findings.bad_episodes(rejecting):
        return f"{bad:,} of {counted(episodes, 'episode')} {'has' if bad == 1 else 'have'} problems: {names}"
    if rejecting:
        return f"the dataset has problems: {names}"
    harmless = findings.codes(strict=True)
    allowed = ", ".join(code for code in harmless if code in allow)
    advice = ", ".join(code for code in harmless if code not in allow)
    besides = f" but those that are allowed: {allowed}" if allowed else ""
    return f"no problems in {counted(episodes, 'episode')}{besides}{f'; advice: {advice}' if advice else ''}"


def way_on(findings: Findings, rejecting: Sequence[str], allow: Sequence[str] = ()) -> str:
    """How a push or a conversion continues in spite of these codes; "" where nothing does that."""
    ways = []
    if findings.bad_episodes(rejecting):
        ways.append(Remedy("{}, which leaves these episodes out", (("on_invalid", SKIP),)))
    if rejecting and not set(rejecting).intersection((*INTOLERABLE, "no_items")):
        codes = dict.fromkeys((*allow, *rejecting))
        options = " ".join("{}" for _ in codes)
        ways.append(Remedy(f"{options}, which takes all as it is", tuple(("allow", code) for code in codes)))
    return f"push or convert with {', or with '.join(way.render(on_command_line) for way in ways)}" if ways else ""


def example_text(problem: Problem) -> str:
    """Where it is wrong and how. The remedy is left out: it is shown once for all examples of a code."""
    return f'column "{problem.path}": {problem.fact}' if problem.path else problem.fact


def table_fields(table: TableInfo, has_waits: bool = True) -> dict[str, str]:
    """A table of a server at the time of the request, with what its rate limiter lets through unless `has_waits` is False."""
    from rlds2reverb.wire.messages import insert_wait, sample_wait, sentence  # not for an inspection

    limit = (
        f"at most {counted(table.max_times_sampled, 'time')}" if table.max_times_sampled > 0 else "any number of times"
    )
    waits = {"inserts": sentence(insert_wait(table)), "samples": sentence(sample_wait(table))} if has_waits else {}
    return {
        "items": f"{table.current_size:,} of {table.max_size:,}, {counted(table.episodes, 'episode')}",
        "selectors": f"sampler {table.sampler}, remover {table.remover}, each item sampled {limit}",
        **waits,
    }


def next_command(tables: Iterable[TableInfo], server: str) -> list[str]:
    """What to do next with the tables of a server: sample one, where nobody waits and no item leaves; else fill one.

    Args:
      server: what `--server` takes.
    """
    from rlds2reverb.wire.messages import sample_wait

    tables = sorted(tables, key=lambda table: table.name)
    ready = [table for table in tables if table.current_size and not sample_wait(table).blocks]
    if staying := [table for table in ready if table.max_times_sampled <= 0]:
        return ["rlds2reverb", "sample", "--server", server, "--table", staying[0].name]
    if ready:  # samples would take items that a learner is to get
        return ["rlds2reverb", "top", "--server", server]
    view = shorten_view(view_in(tables[0].signature))
    cut = [] if view in ("", "two_step") or "..." in view else ["--view", view]
    return ["rlds2reverb", "push", "SOURCE", "--server", server, "--table", tables[0].name, *cut]


def _episodes_and_steps(episodes: int, steps: int) -> str:
    return f"{counted(episodes, 'episode')}, {counted(steps, 'step')}"


def _codes(counts: Mapping[str, int], noun: str = "") -> str:
    return ", ".join(f"{code} {counted(count, noun) if noun else f'{count:,}'}" for code, count in counts.items())


def journal_cells(entry: JournalEntry, state: str, now: float) -> tuple[str, ...]:
    """Its id, when, what, state, tables, episodes, items, new items, who, and from what: an entry of a journal on a line."""
    words = state if entry.ended is None or not entry.stopped else f"{state}: {shortened(entry.stopped, 60)}"
    known = f", {entry.episodes_known:,} known" if entry.episodes_known else ""
    who = f"{entry.user}@{entry.host}" + (f" ({shortened(entry.note, 60)})" if entry.note else "")
    return (
        entry.id,
        f"{duration(now - entry.began)} ago",
        entry.kind,
        words,
        ", ".join(entry.tables),
        f"{entry.episodes:,}{known}" if entry.ended is not None else "-",
        f"{entry.items:,}" if entry.ended is not None else "-",
        "-" if entry.items_new is None else f"{entry.items_new:,}",
        who,
        visible(entry.source),
    )
