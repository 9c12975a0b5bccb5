"""Episodes on the page of an inspection: a gallery of those that the seed chose, then each with its player, its curves and how it ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from rlds2reverb.look.charts import PageContent, curves, list_names, section
from rlds2reverb.look.collector import Portrait
from rlds2reverb.look.html import NOTHING, Html, element, table, text, together
from rlds2reverb.look.pictures import Picture, choose_steps, data_uri, small_file
from rlds2reverb.prepare.findings import Findings
from rlds2reverb.text import counted, number, shortened, visible

_COARSE = 112
"""Pixels: narrower images are shown with their pixels, not smoothed."""


def portraits_of(content: PageContent, place: int) -> dict[str, Portrait]:
    collector = content.datasets[place].collector
    named = _example_ids(content.datasets[place].inspection.findings)
    bad = [episode.portrait for episode in collector.bad if episode.portrait.id in named]
    by_id: dict[str, Portrait] = {}
    for episode in [*collector.episodes.values(), *bad]:
        by_id.setdefault(episode.id, episode)  # that of a chosen one is the larger
    return dict(islice(by_id.items(), content.room.episodes))


def anchors_of(content: PageContent) -> list[dict[str, str]]:
    """For each dataset: an episode's id -> where on the page it is. Every episode that a problem names has its place."""
    anchors = []
    for place, dataset in enumerate(content.datasets):
        ids = dict.fromkeys([*portraits_of(content, place), *_example_ids(dataset.inspection.findings)])
        anchors.append({name: f"episode-{place}-{number}" for number, name in enumerate(ids)})
    return anchors


def _example_ids(findings: Findings) -> list[str]:
    return [example.episode for examples in findings.examples.values() for example in examples]


class Album:
    """Divides the page's room for images among its episodes, by the pixels that each has."""

    def __init__(self, content: PageContent) -> None:
        self._content = content
        portraits = [portraits_of(content, place) for place in range(len(content.datasets))]
        self.chosen = [
            [
                portrait
                for portrait in by_id.values()
                if portrait.id in {chosen.id for chosen in data.collector.episodes.values()}
            ]
            for by_id, data in zip(portraits, content.datasets)
        ]
        self.bad = [
            [portrait for name, portrait in by_id.items() if name not in {shown.id for shown in chosen}]
            for by_id, chosen in zip(portraits, self.chosen)
        ]
        images = (
            images for by_id in portraits for portrait in by_id.values() for _, images in portrait.frames.values()
        )
        self._pixels = sum(map(_pixels, images))

    def picture(self, image: Picture) -> str:
        """The address of an image; "" where it has no room."""
        uri = data_uri(small_file(image))
        return uri if self._content.takes_picture(uri) else ""

    def strip(self, steps: Sequence[int], images: Sequence[Picture]) -> list[tuple[int, str]]:
        """Steps and addresses of as many images as have room, evenly chosen."""
        left = self._content.room.picture_bytes - self._content.picture_bytes
        own = left * _pixels(images) // max(1, self._pixels)
        self._pixels -= _pixels(images)
        uris = [data_uri(small_file(image)) for image in images]
        for count in range(len(uris), 0, -1):
            kept = choose_steps(len(uris), count)
            if sum(len(uris[at]) for at in kept) <= own:
                return [(steps[at], uris[at]) for at in kept if self._content.takes_picture(uris[at])]
        return []


def _pixels(images: Sequence[Picture]) -> int:
    return sum(image.size for image in images)


def gallery_section(content: PageContent, album: Album, anchors: list[dict[str, str]]) -> Html:
    """The chosen episodes at a glance: a large image, the instruction, length and return; each leads to its episode."""
    parts = []
    for place, shown in enumerate(album.chosen):
        cards = (_card(portrait, album, anchors[place][portrait.id]) for portrait in shown)
        parts += [content.heading(place), element("div", *cards, class_="gallery") if shown else NOTHING]
        if not content.datasets[place].inspection.lengths:
            parts.append(element("p", "There are none."))
    intro = element("p", "Episodes that the seed chose; each leads to its images and curves.", class_="quiet")
    return section("gallery", "Episodes at a glance", *parts, intro)


def _card(portrait: Portrait, album: Album, anchor: str) -> Html:
    name = visible(portrait.instruction) or portrait.title
    picture = NOTHING
    if portrait.frames:
        steps, images = next(iter(portrait.frames.values()))
        middle = len(images) // 2
        if uri := album.picture(images[middle]):
            said = f"step {steps[middle]:,} of episode {shortened(portrait.title, 80)}"
            picture = element("img", src=uri, alt=said, class_=_coarse(images[middle]))
    words = element("span", _in_short(portrait), class_="quiet")
    return element("a", picture, element("strong", shortened(name, 120)), words, href=f"#{anchor}", class_="card")


def _in_short(portrait: Portrait) -> str:
    total = "" if portrait.total is None else f", return {number(portrait.total)}"
    return f"{counted(portrait.steps, 'step')}{total}"


def _coarse(image: Picture) -> str | bool:
    return "coarse" if image.shape[1] < _COARSE else False


def chosen_section(content: PageContent, album: Album, anchors: list[dict[str, str]]) -> Html:
    """The episodes of the gallery; the first is unfolded."""
    parts: list[str] = []
    for place, shown in enumerate(album.chosen):
        parts.append(content.heading(place))
        for at, portrait in enumerate(shown):
            parts.append(_episode(content, portrait, album, anchors[place][portrait.id], is_open=not at))
    return section("shown", "Single episodes", *parts)


def bad_section(content: PageContent, album: Album, anchors: list[dict[str, str]]) -> Html:
    """The first episodes of every problem; nothing where there is none."""
    parts: list[str] = []
    for place, shown in enumerate(album.bad):
        is_there = {portrait.id for portrait in [*album.chosen[place], *shown]}
        articles = [_episode(content, portrait, album, anchors[place][portrait.id]) for portrait in shown]
        for name, anchor in anchors[place].items():
            if name not in is_there:
                words = element("p", "No more of it was kept than the problem says.", class_="quiet")
                articles.append(element("article", element("h3", name), words, class_="episode", id=anchor))
        parts += [content.heading(place), *articles] if articles else []
    return section("bad", "Episodes with problems", *parts) if parts else NOTHING


def _episode(content: PageContent, portrait: Portrait, album: Album, anchor: str, is_open: bool = False) -> Html:
    rows = [[element("code", path), visible(words)] for path, words in portrait.texts.items()]
    figures = list(_curves(content, portrait))
    strips = {path: album.strip(*frames) for path, frames in portrait.frames.items()}
    cameras = [_camera(portrait, path, strip, anchor, at) for at, (path, strip) in enumerate(strips.items()) if strip]
    without = [path for path, strip in strips.items() if not strip]
    watched = [_player(portrait, cameras)] if cameras or figures else []
    watched += [element("div", *figures, class_="charts small")] if figures else []
    parts = [
        element("p", visible(portrait.instruction), class_="instruction") if portrait.instruction else NOTHING,
        element("div", *watched, class_="watch filmed" if cameras else "watch") if watched else NOTHING,
        element("p", f"no room for its images on this page: {list_names(without)}", class_="quiet")
        if without
        else NOTHING,
        element("p", f"images are not shown: {portrait.untold}", class_="quiet") if portrait.untold else NOTHING,
        *_rest(portrait),
        *(_strip(path, strip, anchor, at) for at, (path, strip) in enumerate(strips.items()) if strip),
        table([], rows) if rows else NOTHING,
        _last_rows(portrait),
    ]
    head = element("summary", element("h3", shortened(portrait.title, 200)), " ", element("span", _in_short(portrait)))
    return element("details", head, *parts, class_="episode", id=anchor, open=is_open, data_steps=portrait.steps)


def _camera(portrait: Portrait, path: str, strip: list[tuple[int, str]], anchor: str, at: int) -> Html:
    blank = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="
    _, images = portrait.frames[path]
    height, width = images[0].shape[:2]
    size = {"width": width, "height": height, "class_": _coarse(images[0])}
    picture = element("img", src=blank, alt=f"image of {shortened(visible(path), 80)}", **size)
    return element("figure", picture, element("figcaption", path), data_strip=_strip_id(anchor, at))


def _strip_id(anchor: str, at: int) -> str:
    return f"{anchor}-strip-{at}"


def _strip(path: str, strip: list[tuple[int, str]], anchor: str, at: int) -> Html:
    """All images of a camera, small: what the player takes them from."""
    images = [element("img", src=uri, alt=f"step {step}", data_step=step) for step, uri in strip]
    name = together(["Film strip of ", element("code", path)])
    film = element("div", *images, class_="strip", id=_strip_id(anchor, at), tabindex=0, role="region", aria_label=path)
    return element("details", element("summary", name), film)


def _player(portrait: Portrait, cameras: Sequence[Html]) -> Html:
    """The images of one step, and a slider with a position for every step."""
    slider = element("input", type="range", min=0, max=max(0, portrait.steps - 1), value=0, aria_label="step")
    play = element("button", "Play", type="button")
    controls = element("div", slider, play, " ", element("output", class_="quiet"), class_="controls")
    images = element("div", *cameras, class_="cameras") if cameras else NOTHING
    return element("div", images, controls, class_="player")


def _curves(content: PageContent, portrait: Portrait) -> Iterator[Html]:
    for path, values in portrait.curves.items():
        count, of = values.shape[1], portrait.widths[path]
        name = path if count == of else f"{path}, the first {count} of {of:,} dimensions"
        yield content.charts.figure(curves(portrait.at, values), name)


def _rest(portrait: Portrait) -> Iterator[Html]:
    """What is not drawn, in a line each."""
    if portrait.constants:
        named = [f"{path} = {value}" if value else path for path, value in portrait.constants.items()]
        words = (
            f"{counted(portrait.constant_count, 'constant column')}: {list_names(named, count=portrait.constant_count)}"
        )
        yield element("p", text(words, 2_000), class_="quiet")
    if portrait.not_drawn:
        yield element("p", f"not drawn: {counted(portrait.not_drawn, 'more column')}", class_="quiet")


def _last_rows(portrait: Portrait) -> Html:
    rows = [[element("code", path), *values] for path, values in portrait.last_rows.items()]
    if not rows:
        return NOTHING
    steps = max(len(row) for row in rows) - 1
    head: Sequence[str] = ["the last rows", *(f"step {portrait.steps - steps + at}" for at in range(steps))]
    return element("details", element("summary", "How it ends"), table(head, rows, range(1, 1 + steps)))
