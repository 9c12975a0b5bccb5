"""The ledgers of a push: one per output, all in one file, so that an output added later is filled without sending the others again."""

from __future__ import annotations

from contextlib import ExitStack

from rlds2reverb.push.ledger import Ledger
from rlds2reverb.push.names import ItemNames
from rlds2reverb.push.plan import PushPlan
from rlds2reverb.validation.policy import REPAIR


def open_ledgers(plan: PushPlan, stack: ExitStack, name: str = "", is_away: bool = False) -> tuple[Ledger, ...]:
    """Opens them in the order of the outputs, to be closed by the stack; () for a push without a ledger.

    Args:
      plan: of the push to one server.
      stack: closes them.
      name: what the server is called; see `Ledger`.
      is_away: nobody knows the server's process, so nothing is proof that it has an episode.

    Raises:
      LedgerError: the file cannot be used.
    """
    path = plan.options.ledger
    if path is None:
        return ()
    mended = (REPAIR,) if plan.options.on_invalid == REPAIR else ()
    process = "" if is_away else f"{plan.info.state_id:032x}"
    pushes = ["|".join((ItemNames(one, plan.identity).identity, *mended, *one.tables)) for one in plan.options.outputs]
    return tuple(stack.enter_context(Ledger(path, push, process, name)) for push in pushes)
