"""`python -m benchmarks.tables FILE`: the JSON lines of a run, written into the tables of docs/benchmarks.md.

Rows of what the run did not measure stay.
"""

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
_HEAD = 2  # lines of a table before its rows

SCALE = "scale"
"""Benchmarks whose names begin so are on a page of their own, see `scale_tables`."""


def sections(results: Sequence[Result]) -> dict[str, str]:
    """Marker in the page -> the table that belongs there. Results without a goal are only in the JSON lines."""
    results = [result for result in results if not result["benchmark"].startswith(SCALE)]
    judged = [result for result in results if result["goal"] is not None]
    return {
        "comparisons": "\n".join(comparisons(judged)),
        "figures": "\n".join(figures(judged)),
        "chunks": "\n".join(_chunks(results)),
        "machine": machine(results),
    }


def _with_text(text: str, found: re.Match[str]) -> str:
    return f"{found[1]}{text}\n{found[2]}"


def filled(page: str, tables: Mapping[str, str]) -> str:
    """The page with every text between its markers `<!-- NAME -->` and `<!-- /NAME -->` replaced."""
    for name, table in tables.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        page, count = pattern.subn(partial(_with_text, table), page)
        if count != 1:
            raise SystemExit(f"expected one pair of markers <!-- {name} -->, found {count}")
    return page


def comparisons(results: Sequence[Result]) -> Iterator[str]:
    """The lines of the table of those results that are comparisons."""
    yield "| benchmark | a | b | a, per s | b, per s | a / b | goal |"
    yield "| --- | --- | --- | ---: | ---: | ---: | --- |"
    for result in results:
        if "ratio" in result:
            yield (
                f"| `{result['benchmark']}` | {result['a']} | {result['b']} | {result['rate_a']:,.0f} | {result['rate_b']:,.0f} "
                f"| **{result['ratio']:.3g}** ({_spread(result)}) | {_goal(result)} |"
            )


def figures(results: Sequence[Result]) -> Iterator[str]:
    """The lines of the table of those that are figures."""
    yield "| benchmark | figure | goal |"
    yield "| --- | ---: | --- |"
    for result in results:
        if "ratio" not in result and not result["benchmark"].startswith(_CHUNKS):
            yield f"| `{result['benchmark']}` | **{result['value']:.3g}** {result['unit']} | {_goal(result)} |"


def _chunks(results: Sequence[Result]) -> Iterator[str]:
    yield "| data | rows per chunk | pushed, items/s | server bytes per item | sampled, items/s |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for result in results:
        if result["benchmark"].startswith(_CHUNKS):
            _, kind, rows = result["benchmark"].split("/")
            more = result["parameters"]
            chosen = " (chosen)" if more["chosen"] else ""
            yield (
                f"| {kind} | {rows}{chosen} | {result['value']:,.0f} | {more['server_bytes_per_item']:,} "
                f"| {more['samples_per_second']:,} |"
            )


def machine(results: Sequence[Result]) -> str:
    """Where they were measured, in a sentence or two."""
    where = results[0]["machine"]
    shares = [result["machine"]["others_share"] for result in results if "others_share" in result["machine"]]
    versions = ", ".join(f"{name} {where[name]}" for name in ("dm-reverb", "tensorflow", "tf-agents", "grpcio"))
    text = f"{where['cores']} cores of a shared virtual machine, Python {where['python']}, {versions}."
    if shares:
        text += (
            f" In the last run, of {len(results)} figures, other programs used {min(shares):.0%} to {max(shares):.0%} of the machine "
            "during a benchmark."
        )
    return text


def _spread(one: Result) -> str:
    return f"{min(one['ratios']):.3g} to {max(one['ratios']):.3g}"


def _goal(one: Result) -> str:
    if one["goal"] is None:
        return ""
    return f"{'≤' if one['goal_is'] == 'at most' else '≥'} {one['goal']:g}: {'met' if one['met'] else 'missed'}"


def merged(page: str, tables: Mapping[str, str]) -> dict[str, str]:
    """The tables with the page's rows of what the run did not measure: by their first cell, but chunks, which are measured together."""
    whole = dict(tables)
    for name in tables.keys() - {"machine"}:
        found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", page, re.DOTALL)
        old, new = found[1].splitlines() if found else [], tables[name].splitlines()
        if name == "chunks":
            whole[name] = "\n".join(new if len(new) > _HEAD else old)
        else:
            whole[name] = "\n".join({line.split("|")[1]: line for line in [*old, *new]}.values())
    return whole


if __name__ == "__main__":
    lines = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    page = PAGE.read_text()
    PAGE.write_text(filled(page, merged(page, sections(lines))))
    for line in lines:
        print(f"{line['benchmark']}: {measured(line):g}", file=sys.stderr)
