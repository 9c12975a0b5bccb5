"""For tests with LeRobot itself: a real server, started by the Python that has Reverb; nothing is downloaded."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before huggingface_hub is imported

from tests.systems.learners.conftest import start_server

__all__ = ["start_server"]
