"""The tables of docs/benchmarks.md: what a run measured replaces its rows, and the rest stays."""

from __future__ import annotations

from benchmarks.tables import filled, merged

HEAD = "| benchmark | figure | goal |\n| --- | ---: | --- |"
CHUNKS = "| data | rows per chunk |\n| --- | ---: |"


def page(figures: str, chunks: str) -> str:
    return (
        f"before\n<!-- figures -->\n{HEAD}\n{figures}\n<!-- /figures -->\n"
        f"between\n<!-- chunks -->\n{CHUNKS}\n{chunks}\n<!-- /chunks -->\nafter\n"
    )


def test_rows_that_were_measured_are_replaced_in_their_place_and_the_rest_stays() -> None:
    old = page("| `a` | **1** | |\n| `b` | **2** | |", "| x | 1 |\n| x | 2 |")
    tables = {"figures": f"{HEAD}\n| `b` | **3** | |\n| `c` | **4** | |", "chunks": CHUNKS}
    expected = page("| `a` | **1** | |\n| `b` | **3** | |\n| `c` | **4** | |", "| x | 1 |\n| x | 2 |")
    assert filled(old, merged(old, tables)) == expected
    assert filled(expected, merged(expected, tables)) == expected


def test_chunks_are_measured_together() -> None:
    old = page("| `a` | **1** | |", "| x | 1 |\n| x | 2 (chosen) |")
    tables = {"figures": HEAD, "chunks": f"{CHUNKS}\n| x | 4 |"}
    assert filled(old, merged(old, tables)) == page("| `a` | **1** | |", "| x | 4 |")
