"""SIGKILL while checkpoints are sent to a bucket: what is there is whole, or does not exist for a start."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from replay_server.choosing import find_start
from replay_server.uploads import FETCHED, Fetching, look

from rlds2reverb.formats import objects
from rlds2reverb.formats.buckets import BucketPath
from tests.support.buckets import Faults, Request, Storage, environment
from tests.support.forks import Forks
from tests.support.processes import wait_until
from tests.support.profiles import drawn
from tests.support.server_running import Server
from tests.unit.server.test_service import config_of, insert

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(600)]

KILLS = drawn(6, 60)
MOST_REQUESTS = 30
"""That change the bucket, until a kill; sending a checkpoint and removing one takes some ten."""


def test_kills_while_checkpoints_are_sent_leave_none_that_is_half_there(
    forks: Forks, storage: Storage, cloud: Faults, tmp_path: Path
) -> None:
    storage.create("killed")
    place = BucketPath(f"s3://killed/{tmp_path.name}")
    variables = {name: value for name, value in environment(cloud.url, tmp_path).items() if value is not None}
    # Kept for long, so that none is rotated away while a busy machine sends it.
    config = config_of(tmp_path, every_seconds=0.3, skip_unchanged=False, keep=50, upload=str(place), upload_keep=2)
    rng = np.random.default_rng(23)
    newest, unfinished = 0, 0
    for _ in range(KILLS):
        left, reached = int(rng.integers(1, MOST_REQUESTS)), threading.Event()

        def count(_: Request, reached: threading.Event = reached) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                reached.set()

        with Server(forks, tmp_path, config, **variables) as server:
            server.until_ready()
            insert(server.address, 3, newest)
            cloud.before_write = count
            wait_until(reached.is_set, reason=lambda: server.log[-2000:])
            server.stop(signal.SIGKILL)
        cloud.before_write = lambda _: None
        objects.forget()
        there = look(place)
        assert there.broken == ()
        unfinished += len(there.unfinished)
        numbers = [checkpoint.number for checkpoint in there.whole]
        assert numbers == sorted(numbers, reverse=True)
        assert len(numbers) <= 3  # one more than are kept, until the oldest is removed
        if numbers:
            found = find_start(str(place), Fetching(tmp_path / FETCHED))
            assert (found.number, found.unloaded) == (numbers[0], ())
            assert found.number >= newest
            newest = found.number
    assert newest > 0
    with Server(
        forks, tmp_path, {**config, "checkpoints": {**config["checkpoints"], "every_seconds": None}}, **variables
    ) as server:
        server.until_ready()
        assert server.stop() == 0
    objects.forget()
    there = look(place)
    assert (len(there.whole), there.unfinished) == (2, ())
    assert there.whole[0].number > newest
    assert unfinished > 0  # kills met them half sent
