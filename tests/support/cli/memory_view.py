"""`rlds2reverb top` on a server in memory, as a program: arguments are those of the command.

TROUBLE=bug in the environment makes the help fail.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from rlds2reverb import cli
from rlds2reverb.cli import top
from rlds2reverb.testing import MemoryServer, MemoryTransport
from tests.support.cli.top_status import table


def fail_when_helped() -> None:
    """The help is a bug."""
    from rlds2reverb.cli.top import app

    def fail() -> Any:
        raise ZeroDivisionError("a bug")

    vars(app)["_help"] = fail


def grow(server: MemoryServer) -> None:
    """Inserts for ever."""
    for key in range(10**9):
        server.put("table 00", key)
        time.sleep(0.01)


def main() -> None:
    server = MemoryServer(*(table(f"table {number:02}", calls=(0, 0)) for number in range(40)))
    vars(top)["GrpcTransport"] = lambda *_: MemoryTransport(server)
    if os.environ.get("TROUBLE") == "bug":
        fail_when_helped()
    threading.Thread(target=grow, args=(server,), daemon=True).start()
    sys.argv = ["rlds2reverb", "top", *sys.argv[1:]]
    cli.main()


if __name__ == "__main__":
    main()
