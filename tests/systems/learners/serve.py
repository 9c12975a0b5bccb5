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

    from replay_server.embedded import held_port
    from replay_server.library import start_server
    from replay_server.tables import TableConfig

    # Reverb makes a folder for checkpoints in any case, and leaves it.
    with tempfile.TemporaryDirectory() as unused, held_port(0) as port:
        _server = start_server([TableConfig(**table) for table in tables], port, unused)
    print(f"port {port}", flush=True)
    sys.stdin.buffer.read()
    os._exit(0)  # Reverb's own shutdown waits for open streams


if __name__ == "__main__":
    main()
