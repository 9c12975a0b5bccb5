"""Places of files, with the call that Windows lacks and without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlds2reverb.readers import reading_at

CONTENT = bytes(range(200))


@pytest.mark.parametrize("is_windows", [False, True])
@pytest.mark.parametrize(("size", "offset"), [(10, 0), (10, 195), (10, 200), (0, 3), (300, 1)])
def test_bytes_are_those_of_the_place(
    size: int, offset: int, is_windows: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_windows:
        monkeypatch.setattr(reading_at, "_preadv", None)
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for _ in range(2):
            assert reading_at.bytes_at(descriptor, size, offset) == CONTENT[offset : offset + size]
    finally:
        os.close(descriptor)
