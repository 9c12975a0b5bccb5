"""gRPC does not survive a fork: said at once, in place of a hang or a crash.

A process that is forked from one that has used gRPC inherits its locks and its files, and none of its threads. Observed with
grpcio 1.74 and 1.85, with GRPC_ENABLE_FORK_SUPPORT unset, 1 and 0: some children work, some hang in their first call, some
crash, and one that used gRPC in the middle of a push took its parent with it. gRPC's own documentation (doc/fork_support.md)
promises it only where gRPC is first used after the fork; so does this module.
"""

from __future__ import annotations

import os

from rlds2reverb.errors import TransportError

_users: set[int] = set()
"""Processes that have used gRPC: this one, or the one that it was forked from. A fork copies it; that is how it tells."""


def check_not_forked() -> None:
    """Call it before gRPC is touched.

    Raises:
      TransportError: this process was forked from one that had used gRPC.
    """
    process = os.getpid()
    if not _users:
        _users.add(process)
    if process not in _users:
        raise TransportError(
            "this process was forked from one that had already connected to a server, which gRPC does not survive. Start "
            'it another way (multiprocessing.get_context("spawn") or "forkserver"), or fork before the first connection '
            "and connect in each child"
        )
