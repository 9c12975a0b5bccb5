"""`python -m benchmarks.tables FILE`: the JSON lines of a run, as the tables of docs/benchmarks.md, written into it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.common import Result, measured

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"

_CHUNKS = "chunk_length/"

SCALE = "scale"
"""Benchmarks whose names begin so are on a page of their own, see `scale_tables`."""


def sections(results: Sequence[Result]) -> dict[str, str]:
    """Marker in the page -> the table that belongs there."""
    results = [one for one in results if not one["benchmark"].startswith(SCALE)]
    return {
        "comparisons": "\n".join(comparisons(results)),
        "figures": "\n".join(figures(results)),
        "chunks": "\n".join(_chunks(results)),
        "machine": machine(results),
    }


def _with_text(text: str, found: re.Match[str]) -> str:
    return f"{found[1]}{text}\n{found[2]}"


def filled(page: str, tables: Mapping[str, str]) -> str:
    """The page with every table between its markers `<!-- NAME -->` and `<!-- /NAME -->` replaced."""
    for name, table in tables.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        page, count = pattern.subn(partial(_with_text, table), page)
        if count != 1:
            raise SystemExit(f"expected one pair of markers <!-- {name} -->, found {count}")
    return page


def comparisons(results: Sequence[Result]) -> Iterator[str]:
    """The lines of the table of those results that are comparisons."""
    yield "| benchmark | a | b | a, per s | b, per s | a / b | goal | processor µs, a : b | things, a : b |"
    yield "| --- | --- | --- | ---: | ---: | ---: | --- | --- | --- |"
    for one in results:
        if "ratio" in one:
            yield (
                f"| `{one['benchmark']}` | {one['a']} | {one['b']} | {one['rate_a']:,.0f} | {one['rate_b']:,.0f} "
                f"| **{one['ratio']:.3g}** ({_spread(one)}) | {_goal(one)} | {one['processor_us_a']:.3g} : "
                f"{one['processor_us_b']:.3g} | {one['items_a']:,} : {one['items_b']:,} {one['unit'].split('/')[0]} |"
            )


def figures(results: Sequence[Result]) -> Iterator[str]:
    """The lines of the table of those that are figures."""
    yield "| benchmark | figure | goal | besides |"
    yield "| --- | ---: | --- | --- |"
    for one in results:
        if "ratio" not in one and not one["benchmark"].startswith(_CHUNKS):
            besides = ", ".join(
                f"{name.replace('_', ' ')} {_plain(value)}" for name, value in one["parameters"].items()
            )
            yield f"| `{one['benchmark']}` | **{one['value']:.3g}** {one['unit']} | {_goal(one)} | {besides} |"


def _chunks(results: Sequence[Result]) -> Iterator[str]:
    yield "| data | rows per chunk | pushed, items/s | server bytes per item | sampled, items/s |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for one in results:
        if one["benchmark"].startswith(_CHUNKS):
            _, kind, rows = one["benchmark"].split("/")
            more = one["parameters"]
            chosen = " (chosen)" if more["chosen"] else ""
            yield (
                f"| {kind} | {rows}{chosen} | {one['value']:,.0f} | {more['server_bytes_per_item']:,} "
                f"| {more['samples_per_second']:,} |"
            )


def machine(results: Sequence[Result]) -> str:
    """Where they were measured, in a sentence or two."""
    where = results[0]["machine"]
    shares = [one["machine"]["others_share"] for one in results if "others_share" in one["machine"]]
    versions = ", ".join(f"{name} {where[name]}" for name in ("dm-reverb", "tensorflow", "tf-agents", "grpcio"))
    text = f"{where['cores']} cores of a shared virtual machine, Python {where['python']}, {versions}."
    if shares:
        text += f" Other programs used {min(shares):.0%} to {max(shares):.0%} of the machine during a benchmark."
    return text


def _spread(one: Result) -> str:
    return f"{min(one['ratios']):.3g} to {max(one['ratios']):.3g}"


def _goal(one: Result) -> str:
    if one["goal"] is None:
        return ""
    return f"{'≤' if one['goal_is'] == 'at most' else '≥'} {one['goal']:g}: {'met' if one['met'] else 'missed'}"


def _plain(value: object) -> str:
    return f"{value:,}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value).lower()


if __name__ == "__main__":
    lines = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    PAGE.write_text(filled(PAGE.read_text(), sections(lines)))
    for line in lines:
        print(f"{line['benchmark']}: {measured(line):g}", file=sys.stderr)
