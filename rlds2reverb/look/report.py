"""The page of an inspection: one HTML file that needs nothing else, of one dataset or of two side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path

from rlds2reverb.episode import REWARD
from rlds2reverb.errors import ConfigError
from rlds2reverb.files import check_can_be_replaced, whole_or_none, writing
from rlds2reverb.inspection.inspection import InspectedOutput, Inspection
from rlds2reverb.look.accounts import SAID_TITLE, said_fields
from rlds2reverb.look.charts import (
    Dataset,
    PageContent,
    PageRoom,
    bars,
    heat_map,
    histogram_of,
    list_names,
    reaching_chart,
    section,
    statistics,
    time_chart,
)
from rlds2reverb.look.comparison import comparison_section
from rlds2reverb.look.episodes import Album, anchors_of, bad_section, chosen_section, gallery_section
from rlds2reverb.look.html import NOTHING, Html, asset, document, element, lines, table, text, together
from rlds2reverb.look.sketches import Texts
from rlds2reverb.look.summary import behaviour_section, column_anchor, constants_line, is_constant, summary_section
from rlds2reverb.numbers.distributions import Histogram
from rlds2reverb.numbers.sketch import Numbers
from rlds2reverb.prepare.problems import CODES
from rlds2reverb.text import counted, number, shortened, visible
from rlds2reverb.views import shorten_view

_TEXTS = 12


def episodes_section(content: PageContent) -> Html:
    inspections = [dataset.inspection for dataset in content.datasets]
    lengths = [histogram_of(inspection.lengths, True) for inspection in inspections]
    returns = [histogram_of(inspection.returns, False) for inspection in inspections]
    rewards = _ColumnPart(content, REWARD)
    figures = [
        content.charts.figure(
            bars(lengths, "steps", "episodes"), "Episode lengths", *_spans(content, lengths, "steps")
        ),
        content.charts.figure(bars(returns, "return", "episodes"), "Returns", *_spans(content, returns)),
        rewards.figure(0, "Rewards", "reward", rewards.left_out(1)),
    ]
    return section("episodes", "Episodes", _axes(content), element("div", *figures, class_="charts"))


def coverage_section(content: PageContent) -> Html:
    """The share of episodes that reach each time step, and the reward there."""
    inspections = [dataset.inspection for dataset in content.datasets]
    reached = reaching_chart([inspection.lengths for inspection in inspections])
    rewards = time_chart([dataset.collector.rewards for dataset in content.datasets])
    spread = "mean" if content.are_two else "mean, and the standard deviation around it"
    if rewards is None:
        are_there = any(dataset.collector.rewards.moments.counts.any() for dataset in content.datasets)
        spread = "no episode has rewards at two steps" if are_there else "no rewards that are numbers"
    figures = [
        content.charts.figure(reached, "Episodes that reach a step", "in percent of all episodes"),
        content.charts.figure(rewards, "Reward by step", spread),
    ]
    return section("coverage", "Coverage over time steps", element("div", *figures, class_="charts"))


def columns_section(content: PageContent) -> Html:
    shown_here = content.paths[: content.room.columns]
    left = content.room.dimensions
    sections: list[tuple[bool, Html]] = []
    constant: dict[str, Html] = {}
    for path in shown_here:
        column = _ColumnPart(content, path)
        html = column.html(left)
        if column.is_constant:
            constant[path] = html
        else:
            sections.append((column.is_narrow, html))
        left -= column.cost
    parts = [
        element("div", *(html for _, html in run), class_="charts" if is_narrow else "")
        for is_narrow, run in groupby(sections, key=itemgetter(0))
    ]
    if constant:
        head = element("summary", text(constants_line(content.datasets, list(constant)), 2_000))
        parts.append(element("details", head, element("div", *constant.values(), class_="charts")))
    if more := len(content.paths) - len(shown_here):
        parts.append(element("p", f"and {counted(more, 'more column')}, of which no values are shown"))
    fold = element("p", element("button", "Fold all", type="button", data_fold=""))
    return section("columns", "Columns", _axes(content), fold, *parts)


def _axes(content: PageContent) -> Html:
    if not content.are_two:
        return NOTHING
    words = " Both have the same axes; heights are percent of each dataset's values."
    return element("p", content.key(0), " ", content.key(1), words, class_="quiet")


_WIDE = 32
"""Most dimensions with a histogram each; more are a heat map."""


class _ColumnPart:
    def __init__(self, content: PageContent, path: str) -> None:
        self._content, self._path = content, path
        self._specs = [dataset.inspection.step_spec.get(path) for dataset in content.datasets]
        self._sketches = [dataset.collector.columns.get(path) for dataset in content.datasets]
        self._numbers = [sketch if isinstance(sketch, Numbers) else None for sketch in self._sketches]
        self._there = [numbers for numbers in self._numbers if numbers is not None]
        self.dimensions = max((numbers.dimensions for numbers in self._there), default=0)
        have_numbers = sum(spec is not None for spec in self._specs) == len(self._there)
        self.is_narrow = have_numbers and max((numbers.of for numbers in self._there), default=0) == 1
        self.is_constant = have_numbers and all(map(is_constant, self._there))
        self._is_wide = self.dimensions > _WIDE
        # room for histograms that it takes; a heat map is about as large as some
        self.cost = self.dimensions // 8 if self._is_wide else 0 if self.is_constant else self.dimensions

    def html(self, left: int) -> Html:
        """The column, to be folded by its name; `left` histograms have room."""
        texts = ", and ".join(str(spec) if spec is not None else "absent" for spec in dict.fromkeys(self._specs))
        title = together([element("code", self._path), " ", element("span", texts, class_="quiet")])
        parts = list(self._parts(left))
        if not parts:
            are_files = any(spec is not None and spec.image is not None for spec in self._specs)
            why = "encoded images: see the episodes above" if are_files else "its values are not shown"
            parts.append(element("p", why, class_="quiet"))
        named = {"id": column_anchor(self._content, self._path), "data_path": shortened(self._path)}
        return element("details", element("summary", title), *parts, class_="column", open=True, **named)

    def _parts(self, left: int) -> Iterator[Html]:
        if self.is_narrow and left > 0:
            yield self.figure(0, "", notes=self._notes())
            return
        if self.is_constant:
            yield element("p", "; ".join(["it never changes", *self._notes()]), class_="quiet")
        elif self._is_wide and left > 0:
            yield from self._heat_maps()
        elif self.dimensions:
            shown_here = max(0, min(self.dimensions, left))
            figures = []
            for at in range(shown_here):
                # two datasets of different shapes have different places in a row
                names = dict.fromkeys(numbers.dimension_name(at) for numbers in self._there if at < numbers.of)
                figures.append(self.figure(at, " and ".join(filter(None, names))))
            if notes := [*self._notes(), *self.left_out(shown_here)]:
                yield element("p", "; ".join(notes), class_="quiet")
            yield element("div", *figures, class_="charts small")
        for place, sketch in enumerate(self._sketches):
            if isinstance(sketch, Texts):
                yield _text_counts(self._content, place, sketch)

    def _heat_maps(self) -> Iterator[Html]:
        """A heat map for each dataset."""
        if notes := [*self._notes(), *self.left_out(self.dimensions)]:
            yield element("p", "; ".join(notes), class_="quiet")
        for place, numbers in enumerate(self._numbers):
            if numbers is None:
                yield element("p", _key(self._content, place), self._in_words(place, 0), class_="quiet")
                continue
            histograms = [numbers.histograms.histogram(at) for at in range(numbers.dimensions)]
            low, high = min(histogram.low for histogram in histograms), max(histogram.high for histogram in histograms)
            span = f"{counted(numbers.dimensions, 'dimension')} across, values from {number(low)} to {number(high)} upwards"
            caption = together([_key(self._content, place), span if low <= high else "no finite values"])
            yield self._content.charts.figure(heat_map(histograms, numbers.moments.means), "", caption, name=self._path)

    def figure(self, at: int, title: str, x: str = "", notes: Sequence[str] = ()) -> Html:
        """The chart of one dimension; captions say in words what it does not show."""
        there = [numbers if numbers is not None and at < numbers.dimensions else None for numbers in self._numbers]
        histograms = [None if numbers is None else numbers.histograms.histogram(at) for numbers in there]
        are_flags = all(numbers is None or numbers.is_flag for numbers in there)
        captions = [
            together([_key(self._content, place), self._in_words(place, at)]) for place in range(len(self._specs))
        ]
        chart = None if are_flags else bars(histograms, x)
        return self._content.charts.figure(chart, title, *captions, *notes, name=self._path)

    def left_out(self, shown_here: int) -> list[str]:
        of = max((numbers.of for numbers in self._there), default=0)
        return [f"the first {shown_here:,} of {of:,} dimensions"] if of > shown_here else []

    def _notes(self) -> list[str]:
        notes = []
        if any(numbers.is_image for numbers in self._there):
            notes.append("pixels of every channel, of a grid of about 32 by 32 in each image")
        passed_over = sum(numbers.passed_over for numbers in self._there)
        if passed_over:
            notes.append(f"{counted(passed_over, 'row')} of another shape or dtype passed over")
        return notes

    def _in_words(self, place: int, at: int) -> str:
        """The values of one dataset in a dimension, or why they are not known."""
        spec, sketch = self._specs[place], self._sketches[place]
        if spec is None:
            return "absent"
        if isinstance(sketch, Texts):
            return "texts"
        if sketch is None:
            return "encoded images" if spec.image is not None else "its values are not shown"
        if at < sketch.dimensions:
            return _in_words(sketch, at)
        return "not looked at" if at < sketch.of else "no such dimension"


def _in_words(numbers: Numbers, at: int) -> str:
    histogram = numbers.histograms.histogram(at)
    total, bad = histogram.total, int(numbers.not_finite[at])
    not_finite = f"; {bad:,} not finite" if bad else ""
    if not total:
        return f"no finite values{not_finite}"
    if numbers.is_flag:
        true = round(float(numbers.moments.means[at]) * total)
        return f"true in {true:,} of {counted(total, 'value')} ({true / total:.2%})"
    if histogram.low == histogram.high:
        return f"always {number(histogram.low)}, {counted(total, 'value')}{not_finite}"
    mean, deviation = float(numbers.moments.means[at]), float(numbers.moments.deviations[at])
    span = f"{number(histogram.low)} to {number(histogram.high)}"
    return f"{span}, mean {number(mean)}, standard deviation {number(deviation)}, {counted(total, 'value')}{not_finite}"


def _spans(content: PageContent, histograms: Sequence[Histogram], unit: str = "") -> list[Html]:
    spans = [
        "none that are finite"
        if not histogram.total
        else f"always {number(histogram.low)} {unit}"
        if histogram.low == histogram.high
        else f"{number(histogram.low)} to {number(histogram.high)} {unit}"
        for histogram in histograms
    ]
    return [together([_key(content, place), span.strip()]) for place, span in enumerate(spans)]


def _key(content: PageContent, place: int) -> Html:
    return together([content.key(place), " "]) if content.are_two else NOTHING


def _text_counts(content: PageContent, place: int, texts: Texts) -> Html:
    rows = [[shortened(visible(text), 160), f"{count:,}"] for count, text in texts.most_frequent(_TEXTS)]
    cells = [[element("code", text or "(empty)"), count] for text, count in rows]
    kept = "the most frequent of those that the seed chose" if texts.is_estimate else "the most frequent first"
    other = f"; {counted(texts.others, 'value')} that are no text" if texts.others else ""
    different = f"{'about ' if texts.is_estimate else ''}{counted(texts.distinct, 'different text')}"
    words = f" {different} in {counted(texts.total, 'value')}; {kept}{other}"
    return together([element("p", content.key(place), words, class_="quiet"), table([], cells, (1,))])


_TABLES = 8
_CONFIG_LINES = 300


def facts_section(content: PageContent) -> Html:
    fact_lists = [_facts(dataset.inspection) for dataset in content.datasets]
    rows = [[name, *(facts[name] for facts in fact_lists)] for name in fact_lists[0]]
    head = ["", *(content.key(place) for place in range(2))] if content.are_two else []
    said_lists = [said_fields(dataset.inspection) for dataset in content.datasets]
    names = list(dict.fromkeys(name for said in said_lists for name in said))[: content.room.leaves]
    said_rows = [[name, *(said.get(name, "") for said in said_lists)] for name in names]
    parts = [table(head, rows)]
    if said_rows:
        parts += [element("h3", SAID_TITLE[:1].upper() + SAID_TITLE[1:]), table(head, said_rows)]
    return section("what", "What it is", *parts)


def tables_section(content: PageContent) -> Html:
    leaves, parts = content.room.leaves, []
    for place, dataset in enumerate(content.datasets):
        outputs = dataset.inspection.outputs
        parts.append(content.heading(place))
        parts += [_table(name, output, leaves) for name, output in islice(outputs.items(), _TABLES)]
        if len(outputs) > _TABLES:
            parts.append(element("p", f"and {len(outputs) - _TABLES:,} more tables"))
        if dataset.config:
            config = element("pre", lines(dataset.config, min(_CONFIG_LINES, leaves)))
            parts.append(element("details", element("summary", "A server's config with these tables"), config))
        else:
            command = element("code", "rlds2reverb inspect SOURCE --server-config")
            parts.append(element("p", command, " prints the config of a server with these tables.", class_="quiet"))
    return section("tables", "Which table it needs", *parts)


def problems_section(content: PageContent, anchors: list[dict[str, str]]) -> Html:
    """All that is wrong; `anchors` are, for each dataset, an episode's id -> where the page shows it."""
    parts = [
        together([content.heading(place), *_problems(dataset.inspection, anchors[place])])
        for place, dataset in enumerate(content.datasets)
    ]
    return section("problems", "Problems", *parts)


def ends_section(content: PageContent) -> Html:
    ends = [dataset.inspection.ends for dataset in content.datasets]
    counts = {
        "all": [end.episodes for end in ends],
        "end terminal": [end.terminal for end in ends],
        "are truncated": [end.truncated for end in ends],
        "last row added for the last observation": [end.added for end in ends],
        "last row holds a transition": [end.real for end in ends],
        "last row not marked is_last": [end.unmarked for end in ends],
        "truncated, with discount 0 in the last row": [end.zero_discount for end in ends],
        "truncated, with discount 0 before the last row": [end.cut_by_discount for end in ends],
        "discount 1 in every row": [end.always_one for end in ends],
        "reward in the last row only": [end.rewarded_last for end in ends],
    }
    rows = [[name, *(f"{number:,}" for number in numbers)] for name, numbers in counts.items()]
    head = ["episodes of two steps and more", *(content.key(place) or "" for place in range(len(ends)))]
    styles = [
        element(
            "p", content.key(place), " " if content.are_two else None, dataset.inspection.ends.style or "No episodes."
        )
        for place, dataset in enumerate(content.datasets)
    ]
    return section("ends", "Discounts and terminal conventions", *styles, table(head, rows, range(1, 1 + len(ends))))


def _facts(inspection: Inspection) -> dict[str, str]:
    episodes, steps = counted(inspection.episodes, "episode"), counted(inspection.steps, "step")
    returns = inspection.return_statistics
    transform = "; ".join(f"{name}: {text}" for name, text in inspection.transform.lines().items())
    return {
        "source": inspection.source,
        "episodes and steps": f"{episodes}, {steps}",
        "a step": f"{counted(inspection.step_bytes, 'byte')}, {counted(len(inspection.step_spec), 'column')}",
        "episode length": statistics(inspection.episode_length),
        "return": statistics(returns)
        + (f", not finite {number(returns.not_finite)}" if returns is not None and returns.not_finite else ""),
        "ends": f"{inspection.ends.terminal:,} terminal, {inspection.ends.truncated:,} truncated",
        "filled": list_names(inspection.filled) or "nothing: all seven RLDS fields are there",
        "transform": transform or "none",
        "left out by it": list_names(inspection.left_out) or "nothing",
        "images": "; ".join(f"{image.path}: {image.image}" for image in inspection.images[:6]) or "none known as such",
    }


def _table(name: str, output: InspectedOutput, leaves: int) -> Html:
    words = [f"{counted(output.items_per_table, 'item')} of view {shorten_view(output.view)}"]
    if output.without_items:
        words.append(f"{counted(output.without_items, 'valid episode')} without items")
    if output.left_over:
        words.append(f"{counted(output.left_over, 'step')} left over at the end")
    if output.not_in_items:
        words.append(f"not in the items: {list_names(output.not_in_items)}")
    signature = output.trajectory_data_spec
    rows = [[element("code", path), element("code", text)] for path, text in islice(signature.items(), leaves)]
    more = len(signature) - leaves
    return together(
        [
            element("h3", "table ", element("code", name)),
            element("p", "; ".join(words)),
            element("p", "Its signature, the trajectory data spec:", class_="quiet"),
            table([], rows),
            element("p", f"and {more:,} more", class_="quiet") if more > 0 else NOTHING,
        ]
    )


def _problems(inspection: Inspection, anchors: Mapping[str, str]) -> Iterator[Html]:
    findings = inspection.findings
    if not findings.episodes:
        yield element("p", "No problems in any episode.", class_="good")
    for code in CODES:
        if code not in findings.episodes:
            continue
        kind = "advice" if CODES[code].is_advice else "bad"
        named = element("span", "advice" if kind == "advice" else "problem", class_=kind)
        count = counted(findings.episodes[code], "episode")
        yield element("h3", named, " ", element("code", code), f": {count}")
        yield element("p", CODES[code].meaning)
        examples = []
        for example in findings.examples[code]:
            anchor, path = anchors.get(example.episode), example.problem.path
            title = element("span", example.title) if anchor is None else element("a", example.title, href=f"#{anchor}")
            where = [": column ", element("code", path), ": "] if path else [": "]
            examples.append(element("li", title, *where, example.problem.detail))
        more = findings.more(code)
        yield element("ul", *examples, element("li", f"and {more:,} more") if more else None)
    if findings.notices:
        yield element("h3", "Of the dataset as a whole")
        yield element("ul", *(element("li", notice.line) for notice in findings.notices[:100]))


_LONGEST_DRAWING = 80_000


def items_section(content: PageContent) -> Html:
    """What items hold, on rows of an episode that is there."""
    parts = []
    for place, dataset in enumerate(content.datasets):
        drawings = dataset.collector.items
        parts.append(content.heading(place))
        for name, (svg, left_out) in islice(drawings.items(), _TABLES):
            title = ("table ", element("code", name))
            if len(svg) > _LONGEST_DRAWING:
                parts.append(element("p", *title, ": its items are too large to draw", class_="quiet"))
                continue
            parts += [element("h3", *title), element("div", Html(svg), class_="scroll")]
            if left_out:
                parts.append(element("p", left_out, class_="quiet"))
        if not drawings:
            parts.append(element("p", "No episode gave an item.", class_="quiet"))
    words = "Boxes are stored rows, lines of boxes stored columns; coloured bars are the rows that an item holds."
    return section("items", "The items", element("p", words, class_="quiet"), *parts)


MOST_BYTES = 3_000_000  # of a page

_PARTS = {
    "comparison": "How they differ",
    "gallery": "At a glance",
    "summary": "Summary",
    "shown": "Single episodes",
    "problems": "Problems",
    "bad": "With problems",
    "what": "Facts",
    "tables": "Table",
    "episodes": "Episodes",
    "coverage": "Coverage",
    "behaviour": "Actions",
    "columns": "Columns",
    "ends": "Conventions",
    "items": "Items",
}
"""Anchor -> text of the link to it."""


def page_of(datasets: Sequence[Dataset], seed: int, most_bytes: int = MOST_BYTES) -> bytes:
    """The page of one dataset, or of two side by side.

    Args:
      datasets: one or two, each with a collector that watched.
      seed: that chose what is shown; the page states it.
      most_bytes: of the page. It shows less of wide datasets, and says so; its skeleton takes about 150 kB.
    """
    for dataset in datasets:
        dataset.collector.flush()
    room = PageRoom()
    while len(page := _page(PageContent(datasets, room), seed)) > most_bytes and room.leaves:
        room = room.less()
    return page


def _page(content: PageContent, seed: int) -> bytes:
    title = " and ".join(shortened(dataset.inspection.source, 80) for dataset in content.datasets)
    body = _body(content, title, seed)  # first, for it makes the charts
    library = f"/*\n{asset('uPlot.LICENSE')}*/\n{asset('uPlot.iife.min.js')}\n"
    # one module: what `probe.js` exports, the report's own script has beside it
    style, script = asset("uPlot.min.css") + asset("report.css"), library + asset("probe.js") + asset("report.js")
    return document(f"{title} - rlds2reverb", style, script, ("charts", content.charts.made), body).encode()


def _body(content: PageContent, title: str, seed: int) -> Html:
    album, anchors = Album(content), anchors_of(content)
    parts = {
        "comparison": comparison_section(content) if content.are_two else NOTHING,
        "gallery": gallery_section(content, album, anchors),
        "summary": summary_section(content),
        "shown": chosen_section(content, album, anchors),
        "problems": problems_section(content, anchors),
        "bad": bad_section(content, album, anchors),
        "what": facts_section(content),
        "tables": tables_section(content),
        "episodes": episodes_section(content),
        "coverage": coverage_section(content),
        "behaviour": behaviour_section(content),
        "columns": columns_section(content),
        "ends": ends_section(content),
        "items": items_section(content),
    }
    links = [element("a", name, href=f"#{anchor}") for anchor, name in _PARTS.items() if parts[anchor]]
    counts = [
        f"{counted(len(dataset.inspection.lengths), 'episode')}, {counted(sum(dataset.inspection.lengths), 'step')}"
        for dataset in content.datasets
    ]
    keys = [
        element("p", content.key(place), " " if content.are_two else None, text) for place, text in enumerate(counts)
    ]
    script_off = element(
        "noscript", element("p", "Charts and players need JavaScript; numbers stand below each chart.")
    )
    header = element("header", element("h1", title), *keys, script_off)
    contents = element("nav", element("div", *links), aria_label="parts of the page")
    words = f"Written by rlds2reverb inspect --html. Seed {seed} chose the episodes and texts that are shown."
    return together([header, contents, element("main", *parts.values()), element("footer", element("p", words))])


def check_place(path: Path) -> None:
    """Raises `ConfigError` where no file can be written, before anything is read."""
    if str(path) == "-":
        raise ConfigError("--html -: a page does not go to stdout; name a file")
    check_can_be_replaced(path, f"--html {path}", ConfigError)


def write_page(path: Path, page: bytes) -> None:
    """Writes the file, in place of an earlier one. Raises `WriteError` if it cannot be written."""
    way_out = "no page is left there, and one from before stays. Make room or name another file, and run the same again"
    with writing(f"--html {path}", way_out), whole_or_none(path) as unfinished:
        unfinished.write_bytes(page)
