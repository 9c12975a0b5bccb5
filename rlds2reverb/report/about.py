"""The page's first parts: what the dataset is, which tables it needs, what is wrong with it, and how its episodes end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from rlds2reverb.look.html import NOTHING, Html, element, lines, table, together
from rlds2reverb.report.content import Content, Dataset, listed, section, statistics
from rlds2reverb.reports.inspected import InspectedOutput, Inspection, summary
from rlds2reverb.specs import spec_texts
from rlds2reverb.validation import CODES
from rlds2reverb.wording import counted

_TABLES = 8
_CONFIG_LINES = 300


def facts(content: Content) -> Html:
    """What each dataset is, in words."""
    told = [_facts(one.inspection) for one in content.datasets]
    rows = [[name, *(facts[name] for facts in told)] for name in told[0]]
    head = ["", *(content.key(place) for place in range(2))] if content.are_two else []
    return section("what", "What it is", table(head, rows), _specs_apart(content))


def tables(content: Content) -> Html:
    """What each table needs, and a config of a server that has them."""
    parts = [
        together([content.heading(place), _tables(one, content.room.leaves)])
        for place, one in enumerate(content.datasets)
    ]
    return section("tables", "Which table it needs", *parts)


def problems(content: Content, anchors: list[dict[str, str]]) -> Html:
    """All that is wrong.

    Args:
      content: the page.
      anchors: for each dataset, an episode's id -> where the page shows it.
    """
    parts = [
        together([content.heading(place), *_problems(one.inspection, anchors[place])])
        for place, one in enumerate(content.datasets)
    ]
    return section("problems", "Problems", *parts)


def ends(content: Content) -> Html:
    """How the episodes end, and what discounts say there."""
    told = [_ends(one.inspection) for one in content.datasets]
    rows = [[name, *(counts[name] for counts in told)] for name in told[0]]
    head = ["episodes of two steps and more", *(content.key(place) or "" for place in range(len(told)))]
    styles = [
        element("p", content.key(place), " " if content.are_two else None, one.inspection.ends.style or "No episodes.")
        for place, one in enumerate(content.datasets)
    ]
    counts = table(head, rows, range(1, 1 + len(told)))
    return section("ends", "Discounts and terminal conventions", *styles, counts)


def _facts(inspection: Inspection) -> dict[str, str]:
    episodes, steps = counted(len(inspection.lengths), "episode"), counted(sum(inspection.lengths), "step")
    transform = "; ".join(f"{name}: {text}" for name, text in inspection.transform.lines().items())
    return {
        "source": inspection.source,
        "episodes and steps": f"{episodes}, {steps}",
        "a step": f"{counted(inspection.step_bytes, 'byte')}, {counted(len(inspection.step_spec), 'column')}",
        "episode length": statistics(summary(inspection.lengths)),
        "return": statistics(inspection.return_summary())
        .replace(", not_finite 0", "")
        .replace("not_finite", "not finite"),
        "ends": f"{inspection.ends.terminal:,} terminal, {inspection.ends.truncated:,} truncated",
        "filled": listed(inspection.filled) or "nothing: all seven RLDS fields are there",
        "transform": transform or "none",
        "left out by it": listed(inspection.left_out) or "nothing",
        "images": "; ".join(f"{one.path}: {one.image}" for one in inspection.images[:6]) or "none known as such",
    }


def _specs_apart(content: Content) -> Html:
    """Columns of two datasets that are not the same."""
    if not content.are_two:
        return NOTHING
    one, other = ({path: str(leaf) for path, leaf in data.inspection.step_spec.items()} for data in content.datasets)
    apart = [path for path in dict.fromkeys(chain(one, other)) if one.get(path) != other.get(path)]
    if not apart:
        return element("p", "Both have the same columns, of the same dtypes and shapes.", class_="good")
    rows = [[path, one.get(path, "absent"), other.get(path, "absent")] for path in apart[: content.room.leaves]]
    head = ["column", content.key(0), content.key(1)]
    return together([element("h3", f"{counted(len(apart), 'column')} not the same"), table(head, rows)])


def _tables(dataset: Dataset, leaves: int) -> Html:
    outputs = dataset.inspection.outputs
    parts = [_table(name, one, leaves) for name, one in list(outputs.items())[:_TABLES]]
    if len(outputs) > _TABLES:
        parts.append(element("p", f"and {len(outputs) - _TABLES:,} more tables"))
    if dataset.config:
        config = element("pre", lines(dataset.config, min(_CONFIG_LINES, leaves)))
        parts.append(element("details", element("summary", "A server's config with these tables"), config))
    else:
        parts.append(element("p", *_HOW_TO_CONFIG, class_="quiet"))
    return together(parts)


_HOW_TO_CONFIG = (
    element("code", "rlds2reverb inspect SOURCE --server-config"),
    " prints the config of a server with these tables.",
)


def _table(name: str, one: InspectedOutput, leaves: int) -> Html:
    words = [f"{counted(one.items_per_table, 'item')} of view {one.view}"]
    if one.without_items:
        words.append(f"{counted(one.without_items, 'valid episode')} without items")
    if one.left_over:
        words.append(f"{counted(one.left_over, 'step')} left over at the end")
    if one.not_in_items:
        words.append(f"not in the items: {listed(one.not_in_items)}")
    signature = spec_texts(one.signature)
    return together(
        [
            element("h3", "table ", element("code", name)),
            element("p", "; ".join(words)),
            element("p", "Its signature, the trajectory data spec:", class_="quiet"),
            spec_table(signature, leaves),
        ]
    )


def spec_table(leaves: Mapping[str, str], most: int) -> Html:
    """Paths and their specs, at most so many."""
    rows = [[element("code", path), element("code", text)] for path, text in list(leaves.items())[:most]]
    more = element("p", f"and {len(leaves) - most:,} more", class_="quiet") if len(leaves) > most else NOTHING
    return together([table([], rows), more])


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
        examples = [
            element("li", _linked(one.title, anchors.get(one.episode)), _where(one.problem.path), one.problem.detail)
            for one in findings.examples[code]
        ]
        more = findings.more(code)
        yield element("ul", *examples, element("li", f"and {more:,} more") if more else None)
    if findings.remarks:
        yield element("h3", "Of the dataset as a whole")
        yield element("ul", *(element("li", remark.line) for remark in findings.remarks[:100]))


def _linked(title: str, anchor: str | None) -> Html:
    return element("span", title) if anchor is None else element("a", title, href=f"#{anchor}")


def _where(path: str) -> Html:
    return together([": column ", element("code", path), ": "]) if path else Html(": ")


def _ends(inspection: Inspection) -> dict[str, str]:
    found = inspection.ends
    counts = {
        "all": found.episodes,
        "end terminal": found.terminal,
        "are truncated": found.truncated,
        "last row added for the last observation": found.added,
        "last row holds a transition": found.real,
        "last row not marked is_last": found.unmarked,
        "truncated, with discount 0 in the last row": found.zero_discount,
        "truncated, with discount 0 before the last row": found.cut_by_discount,
        "discount 1 in every row": found.always_one,
        "reward in the last row only": found.rewarded_last,
    }
    return {name: f"{count:,}" for name, count in counts.items()}
