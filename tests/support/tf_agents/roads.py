"""The two ways in which a TFDS dataset is read: from its files, and through TFDS where it has a feature that needs that."""

from __future__ import annotations

from typing import Any

import pytest

from rlds2reverb.formats.tfds import read
from rlds2reverb.images import NotReadHere

ROADS = ["files", "tfds"]


def through_tfds(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on every TFDS dataset is read through TFDS."""

    def refuse(*_: Any) -> Any:
        raise NotReadHere("not read from the files")

    monkeypatch.setattr(read, "_open_files", refuse)
