"""Real Reverb servers of another Python, and signatures for their tables."""

from __future__ import annotations

import os
import pickle
import selectors
import subprocess
import tempfile
import time
from typing import Any

import numpy as np

import rlds2reverb
from rlds2reverb import open_source
from rlds2reverb.episode import Episode
from rlds2reverb.learner.batch import Batch, BatchInfo
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.specs import Nest
from rlds2reverb.views import view_from
from rlds2reverb.views.trajectory import table_signature
from tests.support.processes import eventually
from tests.support.project import ROOT

SERVER_PYTHON = "RLDS2REVERB_SERVER_PYTHON"
"""Environment variable: the Python that has Reverb."""

START_SECONDS = 120.0
ONCE: dict[str, Any] = {"sampler": "fifo", "remover": "fifo", "max_times_sampled": 1}
"""Hands out every item once, in the order of insertion."""


def batch_of(data: Any, count: int, **info: Any) -> Batch:
    """A batch of `count` samples, as if it had been sampled; `info` are further fields of its `BatchInfo`."""
    keys = np.arange(count, dtype=np.uint64) - np.uint64(1)  # the first one has all bits
    known = BatchInfo(keys, np.ones(count), np.ones(count, np.int64), np.ones(count), np.ones(count, np.int32))
    return Batch(data, known._replace(**info))


def numbers(count: int, start: int = 0) -> list[Episode]:
    """An episode whose transitions have the observations start, start + 1, ...: `count` of them."""
    rows = np.arange(start, start + count + 1)
    plain = {"observation": rows, "action": rows, "reward": rows.astype(np.float32), "discount": np.ones(count + 1)}
    flags = {"is_first": rows == start, "is_last": rows == start + count, "is_terminal": rows < start}
    return [Episode({**plain, **flags}, {}, f"{start} to {start + count}")]


def signature_of(dataset: Any, view: str) -> Nest:
    """The signature that a table needs for what a view makes of a dataset."""
    return table_signature(view_from(view).signature(filled_spec(open_source(dataset).spec())))


def store_numbers(address: str, table: str, count: int, start: int = 0) -> None:
    """Empties a table of the fixture `numbered`, and stores so many.

    A request that waits at the server when its stream is closed takes from what is stored next. Then it is done again.
    """
    with rlds2reverb.connect(address) as client:
        eventually(lambda: _store(client, table, numbers(count, start)))


def _store(client: rlds2reverb.Client, table: str, episodes: list[Episode]) -> None:
    client.reset(table)
    confirmed = client.push(episodes, table, view="transition").items_confirmed
    assert client.tables()[table].current_size == confirmed == len(episodes[0]) - 1


class Server:
    """A server in a process of its own; end it with `stop`.

    Args:
      python: the Python that has Reverb.
      tables: the arguments of `replay_server.TableConfig`, each; all but `rate_limiter`.

    Attributes:
      address: "localhost:PORT".
      pid: of the process.
    """

    def __init__(self, python: str, *tables: dict[str, Any]) -> None:
        self._errors = tempfile.TemporaryFile()  # not a pipe: nobody reads it while the server runs  # noqa: SIM115
        path = os.pathsep.join([str(ROOT), str(ROOT / "server"), os.environ.get("PYTHONPATH", "")])
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": path}
        self._process = subprocess.Popen(
            [python, "-m", "tests.systems.learners.serve"],
            cwd=ROOT,
            env={**os.environ, **quiet},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self.pid = self._process.pid
        try:
            self._send(pickle.dumps(tables))
            self.address = f"localhost:{self._port()}"
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends it as a crash would."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _send(self, request: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(len(request).to_bytes(8, "little") + request)
        self._process.stdin.flush()

    def _port(self) -> int:
        assert self._process.stdout is not None
        end = time.monotonic() + START_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, end - time.monotonic())):
                line = self._process.stdout.readline()
                if line.startswith(b"port "):
                    return int(line.split()[1])
                if not line:
                    break
        self._errors.seek(0)
        raise RuntimeError(f"no server within {START_SECONDS:g} s: {self._errors.read().decode(errors='replace')}")
