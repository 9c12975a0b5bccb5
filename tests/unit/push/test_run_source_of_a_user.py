"""Any object with the methods of `Source` is one: what docs/formats/npz.md shows, as it stands there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.source import IsKnown, Source, spec_of
from tests.support.project import ROOT
from tests.support.push import in_memory

PAGE = ROOT / "docs" / "formats" / "npz.md"


def users_class() -> Any:
    code = next(
        block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "class MyBuffer" in block
    )
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    return names["MyBuffer"]


def buffer() -> Source:
    rng = np.random.default_rng(2)
    made = [{"states": rng.random((4, 3)), "moves": rng.integers(0, 2, 4)} for _ in range(5)]
    source: Source = users_class()(made)
    return source


def test_it_reads_shards_and_is_pushed() -> None:
    source = buffer()
    whole = [one.id for one in source]
    assert len(set(whole)) == source.episode_count == 5
    assert [one.id for one in source.shard(1, 2)] == whole[1::2]
    server = in_memory.Server()
    in_memory.push(server, source)
    assert len(server.items["replay"]) == 5 * 3


def test_open_source_hands_it_on() -> None:
    source = buffer()
    opened = open_source(source)
    assert opened.name == "my buffer"
    assert opened.episode_count == 5
    assert [one.id for one in opened] == [one.id for one in source]
    assert opened.spec() == source.spec()


class Indifferent(Source):
    """A source whose `read` pays no attention to `is_known`; it may ask for other names than it gives."""

    name = "indifferent"

    def __init__(self, asks_for: Callable[[str], str] | None = None) -> None:
        self._episodes = in_memory.episodes(6)
        self._asks_for = asks_for

    def spec(self) -> Any:
        return spec_of(self._episodes[0])

    def read(self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None) -> Iterator[Any]:
        for episode in self._episodes[start:stop]:
            if self._asks_for is not None and is_known is not None:
                is_known(self._asks_for(episode.id))
            yield episode


def test_a_read_that_does_not_ask_what_is_known_is_pushed_once(tmp_path: Path) -> None:
    server, source = in_memory.Server(), Indifferent()
    first, second = (in_memory.push(server, source, ledger=tmp_path / "ledger.db") for _ in range(2))
    assert (first.episodes_pushed, first.episodes_resumed) == (6, 0)
    assert (second.episodes_pushed, second.episodes_resumed) == (0, 6)
    assert len(server.items["replay"]) == first.items_confirmed


def test_a_read_that_asks_for_other_episodes_than_it_gives_is_refused() -> None:
    with pytest.raises(SourceError, match=r'gives episode ".*" where it asked is_known for "another'):
        in_memory.push(in_memory.Server(), Indifferent("another {}".format))
