"""What the tests of pushes share."""

from __future__ import annotations

import pytest

from rlds2reverb.push.sender import Sender
from rlds2reverb.wire.insert import Request


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request is confirmed before the next is sent."""
    send = Sender.send

    def send_and_wait(sender: Sender, request: Request) -> None:
        send(sender, request)
        sender.drain()

    monkeypatch.setattr(Sender, "send", send_and_wait)
