"""The page's last parts: items as drawings, and single episodes with curves, film strips and players."""

from __future__ import annotations

from collections.abc import Sequence

from rlds2reverb.look.html import NOTHING, Html, element, table, together
from rlds2reverb.look.pictures import data_uri, small_file
from rlds2reverb.report.charts import curves
from rlds2reverb.report.content import Content, section
from rlds2reverb.report.portraits import Portrait
from rlds2reverb.validation.findings import Findings
from rlds2reverb.wording import counted, number, shortened, visible

_TABLES = 8
_LONGEST_DRAWING = 80_000


def items(content: Content) -> Html:
    """What items hold, on rows of an episode that is there."""
    parts = []
    for place, one in enumerate(content.datasets):
        drawings = one.collector.items
        figures = [_drawing(name, *drawing) for name, drawing in list(drawings.items())[:_TABLES]]
        none = element("p", "No episode gave an item.", class_="quiet")
        parts.append(together([content.heading(place), *(figures or [none])]))
    words = "Boxes are stored rows, lines of boxes stored columns; coloured bars are the rows that an item holds."
    return section("items", "The items", element("p", words, class_="quiet"), *parts)


def episodes(content: Content, anchors: list[dict[str, str]]) -> Html:
    """Episodes: some that the seed chose, and those of the problems.

    Args:
      content: the page.
      anchors: of `anchors_of`.
    """
    parts: list[str] = []
    for place, one in enumerate(content.datasets):
        found = portraits_of(content, place)
        parts.append(content.heading(place))
        parts += [_episode(content, portrait, anchors[place][portrait.id]) for portrait in found.values()]
        parts += [_stub(anchor, name) for name, anchor in anchors[place].items() if name not in found]
        if not one.inspection.lengths:
            parts.append(element("p", "There are none."))
    words = "Some that the seed chose, and the first ones of every problem."
    return section("shown", "Single episodes", element("p", words, class_="quiet"), *parts)


def portraits_of(content: Content, place: int) -> dict[str, Portrait]:
    """A dataset's episodes that are shown, by id."""
    collector = content.datasets[place].collector
    told = _told(content.datasets[place].inspection.findings)
    bad = [one.portrait for one in collector.bad if one.portrait.id in told]
    both = [*collector.episodes.values(), *bad]
    return {one.id: one for one in both[: content.room.episodes]}


def anchors_of(content: Content) -> list[dict[str, str]]:
    """For each dataset: an episode's id -> where on the page it is. Every episode that a problem tells of has its place."""
    found = []
    for place, one in enumerate(content.datasets):
        ids = dict.fromkeys([*portraits_of(content, place), *_told(one.inspection.findings)])
        found.append({name: f"episode-{place}-{number}" for number, name in enumerate(ids)})
    return found


def _told(findings: Findings) -> list[str]:
    """Ids of the episodes that problems tell of."""
    return [example.episode for examples in findings.examples.values() for example in examples]


def _drawing(name: str, svg: str, left_out: str) -> Html:
    if len(svg) > _LONGEST_DRAWING:
        return element("p", "table ", element("code", name), ": its items are too large to draw", class_="quiet")
    caption = element("p", left_out, class_="quiet") if left_out else NOTHING
    return together(
        [element("h3", "table ", element("code", name)), element("div", Html(svg), class_="scroll"), caption]
    )


def _stub(anchor: str, name: str) -> Html:
    words = element("p", "No more of it was kept than the problem says.", class_="quiet")
    return element("article", element("h3", name), words, class_="episode", id=anchor)


def _episode(content: Content, portrait: Portrait, anchor: str) -> Html:
    total = "" if portrait.total is None else f", return {number(portrait.total)}"
    parts = [
        element("h3", shortened(portrait.title, 200)),
        element("p", f"{counted(portrait.steps, 'step')}{total}", class_="quiet"),
        *(_frames(content, portrait, path, anchor) for path in portrait.frames),
        element("p", f"images are not shown: {portrait.untold}", class_="quiet") if portrait.untold else NOTHING,
        _curves(content, portrait),
        _texts(portrait),
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
    figures = [
        content.charts.figure(curves(portrait.at, values), "", _name_of_curves(path, values.shape[1]))
        for path, values in portrait.curves.items()
    ]
    return element("div", *figures, class_="charts small") if figures else NOTHING


def _name_of_curves(path: str, lines: int) -> str:
    return path if lines == 1 else f"{path}, its first {lines} dimensions"


def _texts(portrait: Portrait) -> Html:
    rows = [[element("code", path), visible(text)] for path, text in portrait.texts.items()]
    return table([], rows) if rows else NOTHING


def _last_rows(portrait: Portrait) -> Html:
    """What flags and numbers say at the end."""
    rows = [[element("code", path), *values] for path, values in portrait.last_rows.items()]
    if not rows:
        return NOTHING
    steps = max(len(row) for row in rows) - 1
    head: Sequence[str] = ["the last rows", *(f"step {portrait.steps - steps + at}" for at in range(steps))]
    return element("details", element("summary", "How it ends"), table(head, rows, range(1, 1 + steps)))
