"""An episode as plain values, for --json: what the other ways of showing it show, with every value of the curves."""

from __future__ import annotations

from typing import Any

from rlds2reverb.showing.contents import Contents


def document(contents: Contents) -> dict[str, Any]:
    """The fields of `Contents` by name; of images only what they are. NaN and infinities stay in the curves' values."""
    return {
        "title": contents.title,
        "steps": contents.steps,
        "facts": [{"name": name, "text": text} for name, text in contents.facts],
        "metadata": dict(contents.metadata),
        "images": {one.path: {"kind": one.kind, "count": len(one)} for one in contents.images},
        "numbers": {
            one.path: {
                "kind": one.kind,
                "dimensions": one.dimensions,
                "curves": [{"label": curve.label, "values": curve.values.tolist()} for curve in one.curves],
            }
            for one in contents.panels
        },
        "texts": {path: list(lines) for path, lines in contents.texts.items()},
        "flags": dict(contents.flags),
        "others": dict(contents.others),
        "left_out": dict(contents.left_out),
    }
