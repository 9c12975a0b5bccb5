"""Which function makes the HTML of which class. A class that shall be shown gets a line here and a `_repr_html_` of its own."""

from __future__ import annotations

from typing import Any

from rlds2reverb.formats import Lazily
from rlds2reverb.notebook.markup import Html, guarded

_HERE = "rlds2reverb.notebook"

SHOWN = {
    "rlds2reverb.destinations.report.ConvertReport": Lazily(f"{_HERE}.accounts:convert_html"),
    "rlds2reverb.episodes.Episode": Lazily(f"{_HERE}.episode:episode_html"),
    "rlds2reverb.learner.batch.Batch": Lazily(f"{_HERE}.batch:batch_html"),
    "rlds2reverb.learner.batch.BatchInfo": Lazily(f"{_HERE}.batch:info_html"),
    "rlds2reverb.push.plan.PushPlan": Lazily(f"{_HERE}.tables:plan_html"),
    "rlds2reverb.push.plan.TablePlan": Lazily(f"{_HERE}.tables:table_plan_html"),
    "rlds2reverb.push.report.PushReport": Lazily(f"{_HERE}.accounts:push_html"),
    "rlds2reverb.reports.inspected.Inspection": Lazily(f"{_HERE}.inspections:inspection_html"),
    "rlds2reverb.validation.findings.Findings": Lazily(f"{_HERE}.inspections:findings_html"),
    "rlds2reverb.wire.messages.ServerInfo": Lazily(f"{_HERE}.tables:server_html"),
    "rlds2reverb.wire.messages.TableInfo": Lazily(f"{_HERE}.tables:table_html"),
}
"""Class -> what makes its HTML, loaded when the first one is shown. Subclasses are shown as their parents are."""


def shown(thing: Any) -> str:
    """The thing as HTML; what cannot be shown says why, and nothing is raised.

    Raises:
      LookupError: a class that has no line in `SHOWN`.
    """
    names = [f"{one.__module__}.{one.__qualname__}" for one in type(thing).__mro__]
    make = next((SHOWN[name] for name in names if name in SHOWN), None)
    if make is None:
        raise LookupError(f"{type(thing).__name__}: expected one of {', '.join(SHOWN)}")
    return Html(f"<div>{guarded(lambda: make(thing))}</div>")
