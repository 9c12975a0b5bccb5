"""A real Reverb server for tests that run where Reverb is not installed; runs in the Python that has it.

python -m tests.systems.learners.serve reads tables from standard input (8 bytes of length, then a pickled list of the arguments of
`TableConfig`), tells its port, and ends when its standard input is closed: it cannot outlive its parent.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile


def main() -> None:
    size = int.from_bytes(sys.stdin.buffer.read(8), "little")
    tables = pickle.loads(sys.stdin.buffer.read(size))

    import reverb
    from replay_server.tables import TableConfig, reverb_table

    with tempfile.TemporaryDirectory() as unused:  # Reverb makes a folder for checkpoints in any case, and leaves it
        checkpointer = reverb.platform.checkpointers_lib.DefaultCheckpointer(unused)
        server = reverb.Server([reverb_table(TableConfig(**one)) for one in tables], checkpointer=checkpointer)
    print(f"port {server.port}", flush=True)
    sys.stdin.buffer.read()
    os._exit(0)  # Reverb's own shutdown waits for open streams


if __name__ == "__main__":
    main()
