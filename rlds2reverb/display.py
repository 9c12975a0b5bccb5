"""What a notebook asks for: the `_repr_html_` of the classes that people hold. The HTML itself is made in `look.notebook`, which is loaded then."""

from __future__ import annotations

import importlib
from typing import Any


def as_html(thing: Any) -> str:
    """The thing as HTML for a notebook; small, and of what cannot be shown it says why."""
    made: str = importlib.import_module("rlds2reverb.look.notebook").shown(thing)
    return made
