"""An episode as a page: one file that requests nothing, with a player for its images and its curves."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from rlds2reverb.look.contents import Contents, Panel
from rlds2reverb.look.curves import HEIGHT, WIDTH, path_of, span_of
from rlds2reverb.look.html import Html, asset, document, element, text, together
from rlds2reverb.look.pictures import Picture, Pictures, choose_steps, data_uri, fit_picture, small_file, thumbnail_size
from rlds2reverb.text import at_index, counted

_STEPS, _PICTURES, _LEAST_PICTURES = 1000, 200, 24
"""By default: steps of the player; pictures of all image columns together, and of each one at least. They make the file large."""
_STRIP = 8
_MOST_SIDE = 320
"""Pixels: larger pictures are made smaller."""
_THUMB = 48
_LONGEST = 4_000
"""Characters of a value: `Contents` has cut them short."""


def page(contents: Contents, frames: int | None = None, fps: int = 10) -> str:
    """The page, as HTML, with at most `frames` steps in its player (by default as many as keep it at a few megabytes), `fps` per second.

    Raises:
      DecodeError: an image is damaged, or what decodes it is missing.
    """
    columns = len(contents.images)
    default = max(_LEAST_PICTURES, _PICTURES // columns) if columns else _STEPS
    steps = choose_steps(contents.steps, frames or default)
    data = {
        "steps": steps,
        "count": contents.steps,
        "fps": fps,
        "width": WIDTH,
        "pictures": [
            [_uri(pictures, pictures.picture(step), _MOST_SIDE) if step < len(pictures) else "" for step in steps]
            for pictures in contents.images
        ],
        "values": [
            [f"{curve.values[step]:.4g}" if step < len(curve.values) else "" for step in steps]
            for panel in contents.drawn
            for curve in panel.moving
        ],
    }
    body = element("main", *_body(contents, steps))
    return document(contents.title, asset("player.css"), asset("player.js"), ("data", data), body)


def _uri(pictures: Pictures, picture: Picture, side: int) -> str:
    """A picture in the size of the column's first one, or smaller."""
    return data_uri(small_file(fit_picture(picture, *thumbnail_size(pictures.size, side))))


def _body(contents: Contents, steps: Sequence[int]) -> Iterator[Html]:
    yield element("h1", text(contents.title, _LONGEST))
    yield element("p", element("code", text(contents.name, _LONGEST)), class_="name")
    if contents.caption:
        yield element("p", text(contents.caption, _LONGEST), class_="caption")
    yield _list(contents.facts)
    if steps and (contents.images or contents.drawn):
        last = len(steps) - 1
        slider = element("input", id="at", type="range", min=0, max=last, value=0, aria_label="step")
        step = element("output", at_index("step", steps[0], contents.steps), id="told")
        yield element("div", element("button", "Play", id="play", type="button"), slider, step, class_="player")
    if contents.images:
        figures = [_figure(pictures, steps) for pictures in contents.images]
        yield together([element("h2", "Images"), element("div", *figures, class_="images")])
    if contents.drawn and contents.steps:
        yield element("h2", f"Curves, step 0 to {contents.steps - 1:,}")
        yield from map(_panel, contents.drawn)
    if contents.constants:
        yield element("p", "Constant: ", element("span", text(contents.constants, _LONGEST * 4), class_="kind"))
    sections: list[tuple[str, Collection[tuple[str, str]]]] = [
        *((path, [("", line) for line in lines]) for path, lines in contents.other_texts.items()),
        ("Flags", contents.flags.items()),
        ("Not drawn", contents.others.items()),
        ("Metadata", contents.metadata.items()),
    ]
    for title, fields in sections:
        if fields:
            yield element("h2", title)
            yield _list(fields)
    for kind, count in contents.left_out.items():
        yield element("p", f"and {counted(count, f'more {kind}')}; --columns chooses which are shown")


def _list(fields: Iterable[tuple[str, str]]) -> Html:
    pairs = (together([element("dt", name), element("dd", text(value, _LONGEST))]) for name, value in fields)
    return element("dl", *pairs)


def _figure(pictures: Pictures, steps: Sequence[int]) -> Html:
    first = pictures.picture(0)
    thumbs = [
        element(
            "button",
            element("img", alt=f"step {steps[at]}", src=_uri(pictures, pictures.picture(steps[at]), _THUMB)),
            str(steps[at]),
            type="button",
            data_at=at,
        )
        for at in choose_steps(len(steps), _STRIP)
        if steps[at] < len(pictures)
    ]
    return element(
        "figure",
        element("figcaption", pictures.path, "  ", pictures.kind),
        element("img", alt=pictures.path, src=_uri(pictures, first, _MOST_SIDE)),
        element("div", *thumbs, class_="strip"),
    )


def _panel(panel: Panel) -> Html:
    span = span_of(panel.moving)
    labels = [
        element("span", curve.label, " ", element("span", class_="value"), class_=f"label t{number}")
        for number, curve in enumerate(panel.moving)
    ]
    paths = [
        element("path", class_=f"s{number}", d=path_of(curve, span))
        for number, curve in reversed(list(enumerate(panel.moving)))
        if span is not None
    ]
    cursor = element("line", class_="cursor", x1=0, x2=0, y1=0, y2=HEIGHT)
    drawing = element(
        "svg",
        *paths,
        cursor,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=panel.path,
    )
    title = element("p", panel.path, " ", element("span", panel.range_line, class_="kind"))
    return element("div", title, element("p", *labels), drawing, class_="panel")
