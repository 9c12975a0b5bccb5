"""A service, a proxy in front of it, and pushers in processes of their own: everything that can be killed, cut and held.

The world knows what it may expect: `floor` is how many items a checkpoint that succeeded has seen. No later start may
have fewer.
"""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import reverb
from replay_server.errors import CheckpointError
from replay_server.files import verify_record_files

import rlds2reverb
from tests.support.faults import tools
from tests.support.faults.proxy import UP, Proxy
from tests.support.forks import Forks, Running
from tests.support.processes import Process, wait_until

PUSH_SECONDS = 180
"""Bound of a push that is not killed."""

TABLE = "one"
MADE = "made:20:41:5"
EPISODES = tools.make_episodes(count=20, steps=41, seed=5)
ITEMS = tools.items_of(EPISODES)
PUSH_BYTES = 200_000
"""Less than a whole push of `MADE` sends."""


class World:
    """One service on one checkpoint folder. A context manager.

    Args:
      forks: starts the service.
      folder: for checkpoints and ledger.
      config: of the service beside its table and folder.

    Attributes:
      proxy: what pushers connect to.
      service: the running one, None while there is none.
      floor: items that every later start must have.
      kills: of pushers and of services.
    """

    def __init__(self, forks: Forks, folder: Path, **checkpoints: Any) -> None:
        self._forks = forks
        self.folder, self.ledger = folder / "checkpoints", folder / "ledger.db"
        self.config = {
            "tables": [{"name": TABLE, "sampler": "fifo", "max_times_sampled": 1, "max_size": 10 * len(ITEMS)}],
            "checkpoints": {"folder": str(self.folder), "every_seconds": None, **checkpoints},
        }
        self.proxy = Proxy(1)
        self.service: Running | None = None
        self.floor = 0
        self.kills = {"pusher": 0, "service": 0}
        self._pushers: list[Process] = []

    def __enter__(self) -> World:
        self.proxy.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for pusher in self._pushers:
            pusher.kill()
        if self.service is not None:
            self._forks.end(self.service, signal.SIGKILL)
        self.proxy.__exit__()

    @property
    def running(self) -> Running:
        """The service, which is there."""
        assert self.service is not None
        return self.service

    # The service.

    def start(self) -> Running:
        """Starts the service, and looks at what it restored."""
        self.service = self._forks.start(self.config)
        self.proxy.target = self.service.port
        assert self.service.sizes == (self.service.manifest or {TABLE: 0})
        assert self.service.sizes[TABLE] >= self.floor
        return self.service

    def kill_service(self) -> None:
        """As a crash does."""
        self.kills["service"] += 1
        self._forks.end(self.running, signal.SIGKILL)
        self.service = None

    def stop_service(self) -> None:
        """As an operator does; the last checkpoint holds everything."""
        self.floor = max(self.floor, self.stored())
        assert self._forks.end(self.running, signal.SIGTERM) == 0
        self.service = None

    def stored(self) -> int:
        """Items in the table."""
        with rlds2reverb.connect(self.running.address, timeout_seconds=60) as client:
            return client.server_info().tables[TABLE].current_size

    def checkpoint(self, by_client: bool) -> None:
        """Has a checkpoint written, as a learner does or through HTTP; it must succeed."""
        assert self.try_checkpoint(by_client)

    def try_checkpoint(self, by_client: bool) -> bool:
        """Asks for a checkpoint; whether it was written."""
        stored = self.stored()
        written = self._ask_reverb() if by_client else self._ask_service()
        if written:
            self.floor = max(self.floor, stored)
        return written

    def _ask_reverb(self) -> bool:
        kept = self._kept_from_clients()
        try:
            path = Path(reverb.Client(self.running.address).checkpoint())
        except (RuntimeError, IndexError):  # IndexError: what Reverb makes of a full disk
            return False
        # Reverb confirms a checkpoint, too, of which only the last block did not fit on the disk.
        for folder in (path, self.folder / "taken" / path.name):
            with suppress(FileNotFoundError):
                return _is_whole(folder)
        return self._kept_from_clients() > kept

    def _kept_from_clients(self) -> int:
        with urllib.request.urlopen(self.running.url + "/status.json", timeout=60) as answer:
            return int(json.load(answer)["checkpoints"]["from_clients"])

    def _ask_service(self) -> bool:
        request = urllib.request.Request(self.running.url + "/checkpoint", method="POST")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return int(answer.status) == 200
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
            print(error.read().decode())
            return False

    # Pushers.

    def push(self, with_ledger: bool = False) -> Process:
        """Starts a pusher of `EPISODES`, through the proxy."""
        ledger = str(self.ledger) if with_ledger else ""
        arguments = (self.proxy.address, TABLE, MADE, "raise", ledger)
        pusher = self._forks.module(self._forks.log.parent, "tests.support.faults.pusher", *arguments)
        self._pushers.append(pusher)
        return pusher

    def kill(self, pusher: Process) -> None:
        """Kills a pusher."""
        self.kills["pusher"] += 1
        pusher.kill()
        self._pushers.remove(pusher)

    def finish(self, pusher: Process) -> tuple[int, str]:
        """Waits for a pusher's end; its exit code and what it said of errors."""
        code, output, errors = pusher.result(PUSH_SECONDS)
        self._pushers.remove(pusher)
        if code == 0:
            json.loads(output)
        return code, errors

    def until_sent(self, pusher: Process, count: int) -> None:
        """Waits until `count` more bytes have gone up through the proxy, or the pusher has ended."""
        goal = self.proxy.forwarded[UP] + count
        wait_until(lambda: self.proxy.forwarded[UP] >= goal or pusher.poll() is not None, PUSH_SECONDS)

    def assert_complete(self, with_ledger: bool) -> None:
        """After one push that nothing disturbs: every item is there, once, with its values. Empties the table."""
        code, errors = self.finish(self.push(with_ledger))
        assert code == 0, errors
        taken = tools.take_keys_and_items(self.running.address, TABLE)
        assert len({key for key, _ in taken}) == len(taken)
        assert sorted(content for _, content in taken) == sorted(ITEMS)


def _is_whole(checkpoint: Path) -> bool:
    try:
        verify_record_files(checkpoint)
    except CheckpointError:
        if not checkpoint.exists():
            raise FileNotFoundError(checkpoint) from None
        return False
    return True
