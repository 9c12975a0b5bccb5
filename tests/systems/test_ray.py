"""Pushes by a Ray cluster of its own: several nodes on this machine, one of which is removed in the middle."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ray = pytest.importorskip("ray")

from ray.cluster_utils import Cluster

from rlds2reverb import Progress, PushReport
from rlds2reverb.errors import ConfigError, InvalidEpisode, report_of
