"""An episode as a page: one file that asks for nothing, with a player for its images and its curves. Every text is escaped.

A content security policy lets the page run its own script, take its own style and the pictures within it, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from rlds2reverb.showing.contents import Contents, Panel
from rlds2reverb.showing.curves import span_of
from rlds2reverb.showing.panels import range_line
from rlds2reverb.showing.pictures import Pictures, chosen_steps
from rlds2reverb.showing.svg import HEIGHT, WIDTH, path_of
from rlds2reverb.showing.uris import Encoder
from rlds2reverb.wording import counted, visible

_STEPS, _PICTURES, _LEAST_PICTURES = 1000, 200, 24
"""Without a wish: steps of the player; pictures of all image columns together, and of each one at least. They make the file large."""
_STRIP = 8
_MOST_SIDE = 320
"""Pixels: larger pictures are made smaller."""
_THUMB = 48

_HERE = Path(__file__).parent


def page(contents: Contents, frames: int | None = None, fps: int = 10) -> str:
    """The page, as HTML.

    Args:
      contents: what is in the episode.
      frames: steps of the player at most; without it as many as keep the file at a few megabytes.
      fps: pictures per second of the player.

    Raises:
      ConfigError: what encodes pictures is missing.
      DecodeError: an image is damaged, or what decodes it is missing.
    """
    style, script = (_HERE.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    steps = chosen_steps(contents.steps, frames or _frames(len(contents.images)))
    encoders = [Encoder.of(pictures.picture(0), _MOST_SIDE) for pictures in contents.images]
    data = {
        "steps": steps,
        "count": contents.steps,
        "fps": fps,
        "width": WIDTH,
        "pictures": [_uris(*pair, steps) for pair in zip(contents.images, encoders)],
        "values": [
            [f"{curve.values[step]:.4g}" if step < len(curve.values) else "" for step in steps]
            for panel in contents.panels
            for curve in panel.curves
        ],
    }
    policy = (
        "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    )
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(contents.title)}</title>\n<style>{style}</style>\n</head>\n<body>",
            *_body(contents, encoders, steps),
            f'<script type="application/json" id="data">{_json(data)}</script>',
            f"<script>{script}</script>\n</body>\n</html>\n",
        ]
    )


def _frames(columns: int) -> int:
    return max(_LEAST_PICTURES, _PICTURES // columns) if columns else _STEPS


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _json(data: Mapping[str, object]) -> str:
    """JSON that ends no script."""
    return json.dumps(data).replace("<", "\\u003c")


def _uris(pictures: Pictures, encoder: Encoder, steps: Sequence[int]) -> list[str]:
    """The pictures of the steps; "" where the column has no such row."""
    return [encoder.uri(pictures.picture(step)) if step < len(pictures) else "" for step in steps]


def _body(contents: Contents, encoders: Sequence[Encoder], steps: Sequence[int]) -> Iterator[str]:
    yield f"<h1>{escape(contents.title)}</h1>"
    yield from _list(contents.facts)
    yield from _section("Metadata", tuple(contents.metadata.items()))
    if steps and (contents.images or contents.panels):
        yield '<div class="player"><button id="play" type="button">Play</button>'
        yield f'<input id="at" type="range" min="0" max="{len(steps) - 1}" value="0" aria-label="step">'
        yield f'<output id="told">step {steps[0]} of {contents.steps}</output></div>'
    if contents.images:
        yield '<h2>Images</h2>\n<div class="images">'
        for pictures, encoder in zip(contents.images, encoders):
            yield from _figure(pictures, encoder, steps)
        yield "</div>"
    if contents.panels and contents.steps:
        yield f"<h2>Curves, step 0 to {contents.steps - 1:,}</h2>"
        for panel in contents.panels:
            yield from _panel(panel)
    yield from _rest(contents)


def _rest(contents: Contents) -> Iterator[str]:
    for path, told in contents.texts.items():
        yield from _section(visible(path), tuple(("", line) for line in told))
    yield from _section("Flags", tuple(contents.flags.items()))
    yield from _section("Not drawn", tuple(contents.others.items()))
    for kind, count in contents.left_out.items():
        yield f"<p>and {escape(counted(count, f'more {kind}'))}; --columns chooses which are shown</p>"


def _section(title: str, fields: Sequence[tuple[str, str]]) -> Iterator[str]:
    if fields:
        yield f"<h2>{escape(title)}</h2>"
        yield from _list(fields)


def _list(fields: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield "<dl>"
    for name, value in fields:
        yield f"<dt>{escape(visible(name))}</dt><dd>{escape(value)}</dd>"
    yield "</dl>"


def _figure(pictures: Pictures, encoder: Encoder, steps: Sequence[int]) -> Iterator[str]:
    name = escape(visible(pictures.path))
    yield f"<figure><figcaption>{name}  {escape(pictures.kind)}</figcaption>"
    yield f'<img alt="{name}" src="{encoder.uri(pictures.picture(0))}">'
    thumbs = Encoder.of(pictures.picture(0), _THUMB)
    yield '<div class="strip">'
    for at in chosen_steps(len(steps), _STRIP):
        step = steps[at]
        if step < len(pictures):
            image = f'<img alt="step {step}" src="{thumbs.uri(pictures.picture(step))}">'
            yield f'<button type="button" data-at="{at}">{image}{step}</button>'
    yield "</div></figure>"


def _panel(panel: Panel) -> Iterator[str]:
    span = span_of(panel.curves)
    yield f'<div class="panel"><p>{escape(visible(panel.path))} <span class="kind">{escape(range_line(panel))}</span></p><p>'
    for number, curve in enumerate(panel.curves):
        yield f'<span class="label t{number}">{curve.label} <span class="value"></span></span>'
    drawn = f'viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img"'
    yield f'</p><svg {drawn} aria-label="{escape(visible(panel.path))}">'
    if span is not None:
        for number, curve in reversed(list(enumerate(panel.curves))):
            yield f'<path class="s{number}" d="{path_of(curve, span)}"/>'
    yield f'<line class="cursor" x1="0" x2="0" y1="0" y2="{HEIGHT}"/></svg></div>'
