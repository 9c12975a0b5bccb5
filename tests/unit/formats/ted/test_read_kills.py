"""A kill while a buffer is completed never leaves one without its data."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rlds2reverb.episode import content_digest
from rlds2reverb.formats import open_destination, open_source
from tests.contract.destination_cases import data
from tests.support.formats.ted_writing import content_of


@pytest.mark.parametrize("name", ["buffer", "buffer.h5"])
def test_a_kill_while_columns_are_removed_changes_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    episodes = [data.episode(number) for number in range(3)]
    destination = open_destination(f"ted:{tmp_path / name}")
    content = content_of(episodes)
    work = tmp_path / "work"
    work.mkdir()
    sink = destination.sink(work, content, None)
    for episode in episodes:
        sink.write(episode)
    state = sink.sync()

    def half(folder: Path, **_: object) -> None:
        if folder.exists():
            for file in sorted(folder.iterdir())[1:]:
                file.unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", half)
        with pytest.raises(KeyboardInterrupt):
            sink.finish()
    again = destination.sink(work, content, state)
    again.finish()
    again.close()
    path = work / name if name.endswith(".h5") else work
    found = [content_digest(one.columns) for one in open_source(destination.source(path))]
    assert found == [content_digest(one.columns) for one in episodes]
    assert not [one for one in work.iterdir() if one.name.startswith(".")]


@pytest.mark.parametrize("name", ["buffer.h5", "buffer?layout=memmap"])
def test_columns_that_are_shorter_than_they_were_are_refused(name: str, tmp_path: Path) -> None:
    episodes = [data.episode(number) for number in range(3)]
    destination = open_destination(f"ted:{tmp_path / name}")
    content = content_of(episodes)
    work = tmp_path / "work"
    work.mkdir()
    sink = destination.sink(work, content, None)
    sink.write(episodes[0])
    state = sink.sync()
    sink.close()
    for one in work.iterdir():
        shutil.rmtree(one)
    with pytest.raises(OSError, match="begin anew"):
        destination.sink(work, content, state)
