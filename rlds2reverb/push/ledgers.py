"""The ledgers of a push: one per output, all in one file, so that an output added later is filled without sending the others again."""

from __future__ import annotations

from contextlib import ExitStack

from rlds2reverb.push.ledger import Ledger
from rlds2reverb.push.names import ItemNames
from rlds2reverb.push.plan import PushPlan
from rlds2reverb.validation.policy import REPAIR


def open_ledgers(plan: PushPlan, stack: ExitStack) -> tuple[Ledger, ...]:
    """Opens them in the order of the outputs, to be closed by the stack; () for a push without a ledger.

    Raises:
      LedgerError: the file cannot be used.
    """
    path = plan.options.ledger
    if path is None:
        return ()
    mended = (REPAIR,) if plan.options.on_invalid == REPAIR else ()
    server = f"{plan.info.state_id:032x}"
    return tuple(
        stack.enter_context(
            Ledger(path, "|".join((ItemNames(one, plan.identity).identity, *mended, *one.tables)), server)
        )
        for one in plan.options.outputs
    )
