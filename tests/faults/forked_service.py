"""Replay servers by fork: TensorFlow is imported once, and every round has a fresh process within a tenth of a second.

Started as a program with the config's path. Reads a line for a new server, answers with its process id; the caller kills it. Each
server is inserted into by a thread of its own, so that checkpoints are written under load.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path


def main(path: Path) -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    import reverb.cc.checkpointing.checkpoint_pb2  # noqa: F401 - imported here, so that the servers need not
    from replay_server import config, fitting, logs, restore, service  # noqa: F401

    for _ in sys.stdin:
        child = os.fork()
        if not child:
            serve(path)
        print(child, flush=True)
        os.waitpid(child, 0)


def serve(path: Path) -> None:
    """The child; never returns."""
    from replay_server import config, logs, service

    code = 1
    try:
        read = config.load(path)
        logs.configure(read.log.format, read.log.level)
        running = service.ReplayService(read, config.table_configs(read))
        threading.Thread(target=insert, args=(running,), daemon=True).start()
        code = running.run()
    finally:
        os._exit(code)


def insert(running: object) -> None:
    """Pushes episodes for ever, from when the server is ready."""
    import numpy as np

    import rlds2reverb
    from tests import strategies

    while running.state != "ready":  # type: ignore[attr-defined]
        time.sleep(0.01)
    episodes = [strategies.episode(np.random.default_rng(seed), 60) for seed in range(5)]
    with rlds2reverb.connect(f"localhost:{running.config.grpc.port}") as client:  # type: ignore[attr-defined]
        while True:
            client.push(episodes, table="t", again=True, allow_eviction=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
