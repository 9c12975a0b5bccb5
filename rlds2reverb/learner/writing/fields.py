"""Which fields a step may have."""

from __future__ import annotations

from difflib import get_close_matches

from rlds2reverb.episodes import STEP_FIELDS
from rlds2reverb.errors import ConfigError
from rlds2reverb.push.plan import PushPlan
from rlds2reverb.specs import flatten


def check_held(plan: PushPlan) -> None:
    """Refuses steps with a field of a name of its own that no item holds: it is misspelt, or written for nothing.

    Fields that every step may have (`STEP_FIELDS`) are passed over where the views take none of them.

    Raises:
      ConfigError: there is one.
    """
    lost = set.intersection(*(set(table.not_in_items) for table in plan.tables))
    held = {_field(path) for path in flatten(plan.step_spec) if path not in lost}
    unheld = sorted({_field(path) for path in lost} - held - {*STEP_FIELDS})
    if not unheld:
        return
    near = get_close_matches(unheld[0], STEP_FIELDS, 1)
    tables = ", ".join(f'"{table.name}"' for table in plan.tables)
    raise ConfigError(
        f'append: field "{unheld[0]}" is in no item of {tables}, and would be lost; {f"did you mean {near[0]}? If not, " if near else ""}'
        "leave it out, or choose a view that takes it"
    )


def _field(path: str) -> str:
    return path.partition("/")[0]
