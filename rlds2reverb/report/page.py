"""Inspected datasets -> one HTML file that needs nothing else: style, script, charts and images are in it, and no request leaves it."""

from __future__ import annotations

from collections.abc import Sequence

from rlds2reverb.look.html import Html, asset, document, element, together
from rlds2reverb.report import about, shown_episodes, values
from rlds2reverb.report.content import Content, Dataset, Room
from rlds2reverb.wording import counted, shortened

MOST_BYTES = 3_000_000
"""Of a page."""

_PARTS = {
    "what": "What it is",
    "tables": "Table",
    "problems": "Problems",
    "episodes": "Episodes",
    "coverage": "Coverage",
    "columns": "Columns",
    "ends": "Conventions",
    "items": "Items",
    "shown": "Single episodes",
}
"""Anchor -> what leads to it."""


def page_of(datasets: Sequence[Dataset], seed: int, most_bytes: int = MOST_BYTES) -> bytes:
    """The page of one dataset, or of two side by side.

    Args:
      datasets: one or two, each with a collector that watched.
      seed: that chose what is shown, which the page tells.
      most_bytes: of the page. It shows less of wide datasets, and says so; its skeleton takes about 150 kB.
    """
    for one in datasets:
        one.collector.flush()
    room = Room()
    while len(page := _page(Content(datasets, room), seed)) > most_bytes and room.leaves:
        room = room.less()
    return page


def _page(content: Content, seed: int) -> bytes:
    title = " and ".join(shortened(one.inspection.source, 80) for one in content.datasets)
    body = _body(content, title, seed)  # first, for it makes the charts
    library = f"/*\n{asset('uPlot.LICENSE')}*/\n{asset('uPlot.iife.min.js')}\n"
    style, script = asset("uPlot.min.css") + asset("report.css"), library + asset("report.js")
    return document(f"{title} - rlds2reverb", style, script, ("charts", content.charts.made), body).encode()


def _body(content: Content, title: str, seed: int) -> Html:
    anchors = shown_episodes.anchors_of(content)
    parts = [
        about.facts(content),
        about.tables(content),
        about.problems(content, anchors),
        values.episodes(content),
        values.coverage(content),
        values.columns(content),
        about.ends(content),
        shown_episodes.items(content),
        shown_episodes.episodes(content, anchors),
    ]
    links = [element("a", text, href=f"#{anchor}") for anchor, text in _PARTS.items()]
    counts = [
        f"{counted(len(one.inspection.lengths), 'episode')}, {counted(sum(one.inspection.lengths), 'step')}"
        for one in content.datasets
    ]
    keys = [
        element("p", content.key(place), " " if content.are_two else None, text) for place, text in enumerate(counts)
    ]
    script_off = element(
        "noscript", element("p", "Charts and players need JavaScript; numbers stand below each chart.")
    )
    header = element("header", element("h1", title), *keys, element("nav", *links), script_off)
    words = f"Written by rlds2reverb inspect --html. Seed {seed} chose the episodes and texts that are shown."
    return together([header, element("main", *parts), element("footer", element("p", words))])
