"""The page of an inspection: one HTML file that needs nothing else, of one dataset or of two side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path

from rlds2reverb.episode import REWARD
from rlds2reverb.errors import ConfigError
from rlds2reverb.files import can_be_replaced, unfinished_file, whole_or_none, writing
from rlds2reverb.inspection.inspection import InspectedOutput, Inspection
from rlds2reverb.look.charts import (
    Content,
    Dataset,
    Room,
    bars,
    curves,
    histogram_of,
    listed,
    reaching_chart,
    section,
    statistics,
    time_chart,
)
from rlds2reverb.look.collector import Portrait
from rlds2reverb.look.comparison import comparison_section
from rlds2reverb.look.html import NOTHING, Html, asset, document, element, lines, table, together
from rlds2reverb.look.pictures import data_uri, small_file
from rlds2reverb.look.sketches import Numbers, Texts
from rlds2reverb.look.statistics import Histogram
from rlds2reverb.prepare.problems import CODES, Findings
from rlds2reverb.text import counted, number, shortened, visible

_TEXTS = 12


def episodes_section(content: Content) -> Html:
    inspections = [one.inspection for one in content.datasets]
    lengths = [histogram_of(one.lengths, True) for one in inspections]
    returns = [histogram_of(one.returns, False) for one in inspections]
    rewards = _Column(content, REWARD)
    figures = [
        content.charts.figure(bars(lengths, "steps"), "Episode lengths", *_spans(content, lengths, "steps")),
        content.charts.figure(bars(returns, "return"), "Returns", *_spans(content, returns)),
        rewards.figure(0, "Rewards", "reward", rewards.left_out(1)),
    ]
    return section("episodes", "Episodes", _axes(content), element("div", *figures, class_="charts"))


def coverage_section(content: Content) -> Html:
    """The share of episodes that reach each time step, and the reward there."""
    inspections = [one.inspection for one in content.datasets]
    reached = reaching_chart([one.lengths for one in inspections])
    rewards = time_chart([one.collector.rewards for one in content.datasets])
    spread = "mean" if content.are_two else "mean, and the standard deviation around it"
    if rewards is None:
        are_there = any(one.collector.rewards.moments.counts.any() for one in content.datasets)
        spread = "no episode has rewards at two steps" if are_there else "no rewards that are numbers"
    figures = [
        content.charts.figure(reached, "Episodes that reach a step", "in percent of all episodes"),
        content.charts.figure(rewards, "Reward by step", spread),
    ]
    return section("coverage", "Coverage over time steps", element("div", *figures, class_="charts"))


def columns_section(content: Content) -> Html:
    paths = list(dict.fromkeys(path for one in content.datasets for path in one.inspection.step_spec))
    shown_here = paths[: content.room.columns]
    left = content.room.dimensions
    made: list[tuple[bool, Html]] = []
    for path in shown_here:
        column = _Column(content, path)
        made.append((column.is_narrow, column.html(left)))
        left -= column.dimensions
    parts = [
        element("div", *(html for _, html in run), class_="charts" if is_narrow else "")
        for is_narrow, run in groupby(made, key=itemgetter(0))
    ]
    if more := len(paths) - len(shown_here):
        parts.append(element("p", f"and {counted(more, 'more column')}, of which no values are shown"))
    return section("columns", "Columns", _axes(content), *parts)


def _axes(content: Content) -> Html:
    if not content.are_two:
        return NOTHING
    words = " Both have the same axes; heights are percent of each dataset's values."
    return element("p", content.key(0), " ", content.key(1), words, class_="quiet")


class _Column:
    def __init__(self, content: Content, path: str) -> None:
        self._content, self._path = content, path
        self._specs = [one.inspection.step_spec.get(path) for one in content.datasets]
        self._sketches = [one.collector.columns.get(path) for one in content.datasets]
        self._numbers = [one if isinstance(one, Numbers) else None for one in self._sketches]
        self._there = [one for one in self._numbers if one is not None]
        self.dimensions = max((one.dimensions for one in self._there), default=0)
        have_numbers = sum(spec is not None for spec in self._specs) == len(self._there)
        self.is_narrow = have_numbers and max((one.of for one in self._there), default=0) == 1

    def html(self, left: int) -> Html:
        texts = ", and ".join(str(spec) if spec is not None else "absent" for spec in dict.fromkeys(self._specs))
        title = together([element("code", self._path), " ", element("span", texts, class_="quiet")])
        if self.is_narrow and left > 0:
            return self.figure(0, title, notes=self._notes())
        parts: list[Html] = [element("h3", title)]
        if self.dimensions:
            shown_here = max(0, min(self.dimensions, left))
            figures = []
            for at in range(shown_here):
                # two datasets of different shapes have different places in a row
                names = dict.fromkeys(one.dimension_name(at) for one in self._there if at < one.of)
                figures.append(self.figure(at, " and ".join(filter(None, names))))
            if notes := [*self._notes(), *self.left_out(shown_here)]:
                parts.append(element("p", "; ".join(notes), class_="quiet"))
            parts.append(element("div", *figures, class_="charts small"))
        sketches = enumerate(self._sketches)
        parts += [_text_counts(self._content, place, one) for place, one in sketches if isinstance(one, Texts)]
        if len(parts) == 1:
            are_files = any(spec is not None and spec.image is not None for spec in self._specs)
            why = "encoded images: see the episodes below" if are_files else "its values are not shown"
            parts.append(element("p", why, class_="quiet"))
        return element("div", *parts, class_="column")

    def figure(self, at: int, title: str, x: str = "", notes: Sequence[str] = ()) -> Html:
        """The chart of one dimension; captions say in words what it does not show."""
        there = [one if one is not None and at < one.dimensions else None for one in self._numbers]
        histograms = [None if one is None else one.histograms.histogram(at) for one in there]
        are_flags = all(one is None or one.is_flag for one in there)
        captions = [
            together([_key(self._content, place), self._in_words(place, at)]) for place in range(len(self._specs))
        ]
        return self._content.charts.figure(None if are_flags else bars(histograms, x), title, *captions, *notes)

    def left_out(self, shown_here: int) -> list[str]:
        of = max((one.of for one in self._there), default=0)
        return [f"the first {shown_here:,} of {of:,} dimensions"] if of > shown_here else []

    def _notes(self) -> list[str]:
        notes = []
        if any(one.is_image for one in self._there):
            notes.append("pixels of every channel, of a grid of about 32 by 32 in each image")
        passed_over = sum(one.passed_over for one in self._there)
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
    found = numbers.histograms.histogram(at)
    total, bad = found.total, int(numbers.not_finite[at])
    not_finite = f"; {bad:,} not finite" if bad else ""
    if not total:
        return f"no finite values{not_finite}"
    if numbers.is_flag:
        true = round(float(numbers.moments.means[at]) * total)
        return f"true in {true:,} of {counted(total, 'value')} ({true / total:.2%})"
    if found.low == found.high:
        return f"always {number(found.low)}, {counted(total, 'value')}{not_finite}"
    mean, deviation = float(numbers.moments.means[at]), float(numbers.moments.deviations[at])
    span = f"{number(found.low)} to {number(found.high)}"
    return f"{span}, mean {number(mean)}, standard deviation {number(deviation)}, {counted(total, 'value')}{not_finite}"


def _spans(content: Content, histograms: Sequence[Histogram], unit: str = "") -> list[Html]:
    spans = [
        "none that are finite"
        if not one.total
        else f"always {number(one.low)} {unit}"
        if one.low == one.high
        else f"{number(one.low)} to {number(one.high)} {unit}"
        for one in histograms
    ]
    return [together([_key(content, place), span.strip()]) for place, span in enumerate(spans)]


def _key(content: Content, place: int) -> Html:
    return together([content.key(place), " "]) if content.are_two else NOTHING


def _text_counts(content: Content, place: int, found: Texts) -> Html:
    rows = [[shortened(visible(text), 160), f"{count:,}"] for count, text in found.most_frequent(_TEXTS)]
    cells = [[element("code", text or "(empty)"), count] for text, count in rows]
    kept = "the most frequent of those that the seed chose" if found.is_estimate else "the most frequent first"
    other = f"; {counted(found.others, 'value')} that are no text" if found.others else ""
    different = f"{'about ' if found.is_estimate else ''}{counted(found.distinct, 'different text')}"
    words = f" {different} in {counted(found.total, 'value')}; {kept}{other}"
    return together([element("p", content.key(place), words, class_="quiet"), table([], cells, (1,))])


_TABLES = 8
_CONFIG_LINES = 300


def facts_section(content: Content) -> Html:
    found = [_facts(one.inspection) for one in content.datasets]
    rows = [[name, *(facts[name] for facts in found)] for name in found[0]]
    head = ["", *(content.key(place) for place in range(2))] if content.are_two else []
    return section("what", "What it is", table(head, rows))


def tables_section(content: Content) -> Html:
    leaves, parts = content.room.leaves, []
    for place, one in enumerate(content.datasets):
        outputs = one.inspection.outputs
        parts.append(content.heading(place))
        parts += [_table(name, output, leaves) for name, output in islice(outputs.items(), _TABLES)]
        if len(outputs) > _TABLES:
            parts.append(element("p", f"and {len(outputs) - _TABLES:,} more tables"))
        if one.config:
            config = element("pre", lines(one.config, min(_CONFIG_LINES, leaves)))
            parts.append(element("details", element("summary", "A server's config with these tables"), config))
        else:
            command = element("code", "rlds2reverb inspect SOURCE --server-config")
            parts.append(element("p", command, " prints the config of a server with these tables.", class_="quiet"))
    return section("tables", "Which table it needs", *parts)


def problems_section(content: Content, anchors: list[dict[str, str]]) -> Html:
    """All that is wrong; `anchors` are, for each dataset, an episode's id -> where the page shows it."""
    parts = [
        together([content.heading(place), *_problems(one.inspection, anchors[place])])
        for place, one in enumerate(content.datasets)
    ]
    return section("problems", "Problems", *parts)


def ends_section(content: Content) -> Html:
    ends = [one.inspection.ends for one in content.datasets]
    counts = {
        "all": [one.episodes for one in ends],
        "end terminal": [one.terminal for one in ends],
        "are truncated": [one.truncated for one in ends],
        "last row added for the last observation": [one.added for one in ends],
        "last row holds a transition": [one.real for one in ends],
        "last row not marked is_last": [one.unmarked for one in ends],
        "truncated, with discount 0 in the last row": [one.zero_discount for one in ends],
        "truncated, with discount 0 before the last row": [one.cut_by_discount for one in ends],
        "discount 1 in every row": [one.always_one for one in ends],
        "reward in the last row only": [one.rewarded_last for one in ends],
    }
    rows = [[name, *(f"{number:,}" for number in numbers)] for name, numbers in counts.items()]
    head = ["episodes of two steps and more", *(content.key(place) or "" for place in range(len(ends)))]
    styles = [
        element("p", content.key(place), " " if content.are_two else None, one.inspection.ends.style or "No episodes.")
        for place, one in enumerate(content.datasets)
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
        "filled": listed(inspection.filled) or "nothing: all seven RLDS fields are there",
        "transform": transform or "none",
        "left out by it": listed(inspection.left_out) or "nothing",
        "images": "; ".join(f"{one.path}: {one.image}" for one in inspection.images[:6]) or "none known as such",
    }


def _table(name: str, one: InspectedOutput, leaves: int) -> Html:
    words = [f"{counted(one.items_per_table, 'item')} of view {one.view}"]
    if one.without_items:
        words.append(f"{counted(one.without_items, 'valid episode')} without items")
    if one.left_over:
        words.append(f"{counted(one.left_over, 'step')} left over at the end")
    if one.not_in_items:
        words.append(f"not in the items: {listed(one.not_in_items)}")
    signature = one.trajectory_data_spec
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
        for one in findings.examples[code]:
            anchor, path = anchors.get(one.episode), one.problem.path
            title = element("span", one.title) if anchor is None else element("a", one.title, href=f"#{anchor}")
            where = [": column ", element("code", path), ": "] if path else [": "]
            examples.append(element("li", title, *where, one.problem.detail))
        more = findings.more(code)
        yield element("ul", *examples, element("li", f"and {more:,} more") if more else None)
    if findings.notices:
        yield element("h3", "Of the dataset as a whole")
        yield element("ul", *(element("li", notice.line) for notice in findings.notices[:100]))


_LONGEST_DRAWING = 80_000


def items_section(content: Content) -> Html:
    """What items hold, on rows of an episode that is there."""
    parts = []
    for place, one in enumerate(content.datasets):
        drawings = one.collector.items
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


def single_episodes_section(content: Content, anchors: list[dict[str, str]]) -> Html:
    """Episodes that the seed chose, and those of the problems; see `anchors_of`."""
    parts: list[str] = []
    for place, one in enumerate(content.datasets):
        found = portraits_of(content, place)
        parts.append(content.heading(place))
        parts += [_episode(content, portrait, anchors[place][portrait.id]) for portrait in found.values()]
        for name, anchor in anchors[place].items():
            if name not in found:
                words = element("p", "No more of it was kept than the problem says.", class_="quiet")
                parts.append(element("article", element("h3", name), words, class_="episode", id=anchor))
        if not one.inspection.lengths:
            parts.append(element("p", "There are none."))
    intro = element("p", "Some that the seed chose, and the first ones of every problem.", class_="quiet")
    return section("shown", "Single episodes", intro, *parts)


def portraits_of(content: Content, place: int) -> dict[str, Portrait]:
    collector = content.datasets[place].collector
    named = _example_ids(content.datasets[place].inspection.findings)
    bad = [one.portrait for one in collector.bad if one.portrait.id in named]
    both = [*collector.episodes.values(), *bad]
    return {one.id: one for one in both[: content.room.episodes]}


def anchors_of(content: Content) -> list[dict[str, str]]:
    """For each dataset: an episode's id -> where on the page it is. Every episode that a problem names has its place."""
    found = []
    for place, one in enumerate(content.datasets):
        ids = dict.fromkeys([*portraits_of(content, place), *_example_ids(one.inspection.findings)])
        found.append({name: f"episode-{place}-{number}" for number, name in enumerate(ids)})
    return found


def _example_ids(findings: Findings) -> list[str]:
    return [example.episode for examples in findings.examples.values() for example in examples]


def _episode(content: Content, portrait: Portrait, anchor: str) -> Html:
    total = "" if portrait.total is None else f", return {number(portrait.total)}"
    texts = [[element("code", path), visible(text)] for path, text in portrait.texts.items()]
    parts = [
        element("h3", shortened(portrait.title, 200)),
        element("p", f"{counted(portrait.steps, 'step')}{total}", class_="quiet"),
        *(_frames(content, portrait, path, anchor) for path in portrait.frames),
        element("p", f"images are not shown: {portrait.untold}", class_="quiet") if portrait.untold else NOTHING,
        _curves(content, portrait),
        table([], texts) if texts else NOTHING,
        _last_rows(portrait),
    ]
    return element("article", *parts, class_="episode", id=anchor)


def _frames(content: Content, portrait: Portrait, path: str, anchor: str) -> Html:
    """A film strip; with a player above it where there are enough images."""
    steps, images = portrait.frames[path]
    strip = [
        element("img", src=uri, alt=f"step {step}", data_step=step)
        for step, uri in zip(steps, map(data_uri, map(small_file, images)))
        if content.takes_picture(uri)
    ]
    if not strip:
        return element("p", element("code", path), ": no room for its images on this page", class_="quiet")
    name = f"{anchor}-strip-{content.players}"
    content.players += 1
    film = element("div", *strip, class_="strip", id=name)
    player = _player(path, name, len(strip), portrait.steps) if len(strip) > 1 else NOTHING
    return together([element("h4", element("code", path)), player, film])


def _player(path: str, strip: str, frames: int, steps: int) -> Html:
    named = f"image of {shortened(visible(path), 80)}"
    slider = element("input", type="range", min=0, max=frames - 1, value=0, aria_label=named)
    controls = element(
        "div",
        slider,
        element("button", "Play", type="button"),
        " ",
        element("output", class_="quiet"),
        class_="controls",
    )
    blank = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="
    picture = element("img", src=blank, alt=named)
    return element("div", picture, controls, class_="player", data_strip=strip, data_steps=steps - 1)


def _curves(content: Content, portrait: Portrait) -> Html:
    figures = []
    for path, values in portrait.curves.items():
        count = values.shape[1]
        name = path if count == 1 else f"{path}, its first {count} dimensions"
        figures.append(content.charts.figure(curves(portrait.at, values), "", name))
    return element("div", *figures, class_="charts small") if figures else NOTHING


def _last_rows(portrait: Portrait) -> Html:
    rows = [[element("code", path), *values] for path, values in portrait.last_rows.items()]
    if not rows:
        return NOTHING
    steps = max(len(row) for row in rows) - 1
    head: Sequence[str] = ["the last rows", *(f"step {portrait.steps - steps + at}" for at in range(steps))]
    return element("details", element("summary", "How it ends"), table(head, rows, range(1, 1 + steps)))


MOST_BYTES = 3_000_000  # of a page

_PARTS = {
    "comparison": "How they differ",
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
"""Anchor -> text of the link to it."""


def page_of(datasets: Sequence[Dataset], seed: int, most_bytes: int = MOST_BYTES) -> bytes:
    """The page of one dataset, or of two side by side.

    Args:
      datasets: one or two, each with a collector that watched.
      seed: that chose what is shown; the page states it.
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
    anchors = anchors_of(content)
    parts = [
        comparison_section(content) if content.are_two else NOTHING,
        facts_section(content),
        tables_section(content),
        problems_section(content, anchors),
        episodes_section(content),
        coverage_section(content),
        columns_section(content),
        ends_section(content),
        items_section(content),
        single_episodes_section(content, anchors),
    ]
    shown = {anchor: text for anchor, text in _PARTS.items() if content.are_two or anchor != "comparison"}
    links = [element("a", text, href=f"#{anchor}") for anchor, text in shown.items()]
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


def check_place(path: Path) -> None:
    """Raises `ConfigError` where no file can be written, before anything is read."""
    if str(path) == "-":
        raise ConfigError("--html -: a page does not go to stdout; name a file")
    if not can_be_replaced(path) or not can_be_replaced(unfinished_file(path)):
        raise ConfigError(
            f"--html {path}: no file can be written there; its folder must exist, and let you write in it. "
            "A file that is there is replaced, but no folder, device or pipe"
        )


def write_page(path: Path, page: bytes) -> None:
    """Writes the file, in place of an earlier one. Raises `WriteError` if it cannot be written."""
    way_out = "no page is left there, and one from before stays. Make room or name another file, and run the same again"
    with writing(f"--html {path}", way_out), whole_or_none(path) as unfinished:
        unfinished.write_bytes(page)
