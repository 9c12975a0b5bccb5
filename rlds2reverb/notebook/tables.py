"""Tables: those of a server as it was when it was asked, and those that a push is planned for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

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
from rlds2reverb.notebook.values import spec_text
from rlds2reverb.specs import Nest, flatten, view_in
from rlds2reverb.wire.limiter import clause, insert_wait, sample_wait
from rlds2reverb.wording import counted

if TYPE_CHECKING:
    from rlds2reverb.push.plan import PushPlan, TablePlan
    from rlds2reverb.remarks import Remark
    from rlds2reverb.wire.messages import ServerInfo, TableInfo

_MOST_SIGNATURES = 20
_MOST_REMARKS = 20


def server_html(info: ServerInfo) -> Html:
    """All tables of a server, as they were when it was asked."""
    tables = [info.tables[name] for name in sorted(info.tables)]
    heads = ("table", "items", "selectors", "each sampled", "inserts", "samples")
    parts: list[Callable[[], Html]] = [lambda: rows(heads, len(tables), map(_row, tables), "table")]
    parts += [partial(_signature, one.name, one.signature) for one in tables[:_MOST_SIGNATURES]]
    return card("Reverb server", counted(len(tables), "table"), parts)


def table_html(table: TableInfo) -> Html:
    """One table, as it was when the server was asked."""
    parts = (
        lambda: fields(
            {
                "items": lambda: joined([_items(table), quiet(f"of {counted(table.episodes, 'episode')}")]),
                "selectors": lambda: text(f"sampler {table.sampler}, remover {table.remover}"),
                "each sampled": _times(table),
                "inserts": lambda: text(clause(insert_wait(table))),
                "samples": lambda: text(clause(sample_wait(table))),
            }
        ),
        lambda: _signature(table.name, table.signature, is_open=True),
    )
    return card("Table", table.name, parts)


def plan_html(plan: PushPlan) -> Html:
    """A push before anything is sent."""
    parts: list[Callable[[], Html]] = [
        lambda: fields(
            {
                "episodes": lambda: text(
                    "not known before they are read" if plan.episodes is None else f"{plan.episodes:,}"
                ),
                "filled": listed(plan.filled, len(plan.filled)) if plan.filled else Html(""),
                **{name: text(told) for name, told in plan.options.chosen_transform.lines().items()},
                **_servers_of(plan),
            }
        ),
        lambda: rows(
            ("table", "view", "items of the push", "items now", "more fit", "not in the items"),
            len(plan.tables),
            map(_planned, plan.tables),
            "table",
        ),
    ]
    parts += [partial(_signature, one.name, one.signature) for one in plan.tables[:_MOST_SIGNATURES]]
    parts += [lambda: remarks(plan.remarks), lambda: quiet("Nothing has been sent.")]
    return card("Plan of a push", plan.source.name, parts)


def table_plan_html(table: TablePlan) -> Html:
    """One table of a plan."""
    _, view, made, now, free, lacking = _planned(table)
    rest = {"view": view, "items of the push": made, "items now": now, "more fit": free, "not in the items": lacking}
    return card(
        "Table of a plan",
        table.name,
        (lambda: fields(rest), lambda: _signature(table.name, table.signature, is_open=True)),
    )


def remarks(found: Iterable[Remark]) -> Html:
    """What is said of a dataset as a whole, line by line."""
    shown = list(found)
    lines = [line(text(one.line)) for one in shown[:_MOST_REMARKS]]
    more = [line(quiet(f"and {len(shown) - _MOST_REMARKS:,} more"))] if len(shown) > _MOST_REMARKS else []
    return joined([*lines, *more], "")


def signature_rows(signature: Nest) -> Html:
    """The columns of a signature."""
    leaves = flatten(signature)
    return rows(("column", "dtype and shape"), len(leaves), _leaves(leaves), "column")


def _leaves(leaves: dict[str, Any]) -> Iterator[list[Html]]:
    for path, leaf in leaves.items():
        yield [text(path), spec_text(leaf)]


def _signature(name: str, signature: Nest | None, is_open: bool = False) -> Html:
    if signature is None:
        return line(quiet(f"table {name} has no signature: it takes anything"))
    view = view_in(signature)
    title = f"signature of {name}" + (f", for items of view {view}" if view else "")
    return folded(text(title), guarded(lambda: signature_rows(signature)), is_open)


def _items(table: TableInfo) -> Html:
    return text(f"{table.current_size:,} of {table.max_size:,}")


def _times(table: TableInfo) -> Html:
    limited = table.max_times_sampled > 0
    return text(f"at most {counted(table.max_times_sampled, 'time')}" if limited else "any number of times")


def _row(table: TableInfo) -> list[Html]:
    return [
        text(table.name),
        guarded(lambda: _items(table)),
        text(f"sampler {table.sampler}, remover {table.remover}"),
        guarded(lambda: _times(table)),
        guarded(lambda: text(clause(insert_wait(table)))),
        guarded(lambda: text(clause(sample_wait(table)))),
    ]


def _planned(table: TablePlan) -> list[Html]:
    return [
        text(table.name),
        text(table.view),
        guarded(lambda: text(table.items_in_words)),
        guarded(lambda: text(f"{table.size:,} of {table.max_size:,}")),
        guarded(
            lambda: text(f"{table.free:,}{'; when full, inserts wait for samples' if table.waits_when_full else ''}")
        ),
        listed(table.not_in_items, len(table.not_in_items)),
    ]


def _servers_of(plan: PushPlan) -> dict[str, Html]:
    """Of a plan for several servers, which of them there are."""
    addresses = tuple(plan.names) if len(plan.names) > 1 else ()
    missing = plan.missing if len(plan.names) > 1 else ()
    found = {"servers": listed(addresses, len(addresses)), "missing": listed(missing, len(missing))}
    return {name: told for name, told in found.items() if told}
