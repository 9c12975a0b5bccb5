"""Any object with the methods of `Source` is one: what docs/formats/npz.md shows, as it stands there."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from rlds2reverb.formats import open_source
from rlds2reverb.formats.source import Source
from tests.project import ROOT
from tests.unit.push import in_memory

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
