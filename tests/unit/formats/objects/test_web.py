"""Files on a web server are read as files on this machine, whatever the server cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from rlds2reverb.errors import ConfigError, SourceError, StorageError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.destination import place_named
from rlds2reverb.formats.objects import access, forget
from rlds2reverb.formats.paths import WrittenAnew
from tests.support.formats import ilr as ilr_data
from tests.support.web import Web, web

NAMES = [f"demos-{number:03d}.tar" for number in range(3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("web"), np.random.default_rng(4)
    for name in NAMES:
        ilr_data.shard(folder / name, [ilr_data.trajectory(rng, steps, size=40_000) for steps in (30, 2)])
    (folder / "my data").mkdir()
    (folder / "my data" / "a+b.tar").write_bytes((folder / NAMES[0]).read_bytes())
    return folder


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setattr(access, "_PAUSES", (0.01, 0.01))
    retry = {**access._RETRY, "max_retries": 1, "retry_timeout": timedelta(seconds=2)}
    monkeypatch.setattr(access, "_RETRY", retry)
    forget()
    with web(folder) as server:
        yield server
    forget()


def names(source: str) -> list[str]:
    episodes = list(open_source(source))
    assert not any(episode.faults for episode in episodes)
    return [episode.id for episode in episodes]


def test_shards_in_braces_are_those_of_the_disk(server: Web, folder: Path) -> None:
    on_disk = names(f"ilr:{folder}/demos-{{000..002}}.tar")
    assert names(f"ilr:{server.place}/demos-{{000..002}}.tar") == on_disk
    assert all(asked for method, _, asked in server.requests if method == "GET")
    assert len(on_disk) == 6
    assert names(f"ilr:{server.place}/demos-{{001,002}}.tar") == on_disk[2:]
    assert names(f"ilr:{server.place}/my%20data/a+b.tar") == on_disk[:2]


@pytest.mark.parametrize("etag", ['"first"', 'W/"weak"', None])
@pytest.mark.parametrize(("has_ranges", "has_head"), [(True, True), (True, False), (False, True)])
def test_a_server_may_lack_ranges_or_head(
    server: Web, folder: Path, etag: str | None, has_ranges: bool, has_head: bool
) -> None:
    server.etag, server.has_ranges, server.has_head = etag, has_ranges, has_head
    assert names(f"ilr:{server.place}/{NAMES[0]}") == names(f"ilr:{folder}/{NAMES[0]}")
    whole = [asked for method, _, asked in server.requests if method == "GET" and not asked]
    assert len(whole) == (not has_ranges), "all of it, once"


def test_a_server_that_tells_no_size_is_refused(server: Web) -> None:
    server.has_ranges = server.has_head = False
    with pytest.raises(StorageError, match="neither HEAD nor ranges"):
        open_source(f"ilr:{server.place}/{NAMES[0]}")


def test_redirects_are_followed(server: Web, folder: Path) -> None:
    server.redirects["latest.tar"] = f"/{NAMES[1]}"
    assert names(f"ilr:{server.place}/latest.tar") == names(f"ilr:{folder}/{NAMES[1]}")


@pytest.mark.parametrize("has_ranges", [True, False])
def test_an_answer_that_breaks_off_is_asked_for_again(server: Web, folder: Path, has_ranges: bool) -> None:
    server.has_ranges, server.cut = has_ranges, lambda number: number % 2 == 0
    assert names(f"ilr:{server.place}/{NAMES[0]}") == names(f"ilr:{folder}/{NAMES[0]}")


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_server_that_always_breaks_off_makes_no_bad_episode(server: Web, has_ranges: bool) -> None:
    server.has_ranges, server.cut = has_ranges, lambda number: True
    with pytest.raises(StorageError, match=r"000\.tar: no answer"):
        list(open_source(f"ilr:{server.place}/{NAMES[0]}"))


@pytest.mark.parametrize(("status", "why"), [(401, "refuses access"), (403, "refuses access"), (500, "no answer")])
def test_refusals_are_told(server: Web, status: int, why: str) -> None:
    server.statuses[NAMES[1]] = status
    with pytest.raises(StorageError, match=rf"demos-001\.tar: .*{why}"):
        open_source(f"ilr:{server.place}/demos-{{000..002}}.tar")


def test_a_shard_that_is_missing_is_named(server: Web) -> None:
    with pytest.raises(SourceError, match=r"1 of 4 shards not found: demos-003\.tar"):
        open_source(f"ilr:{server.place}/demos-{{000..003}}.tar")
    with pytest.raises(SourceError, match=r"demos-9\.tar: not found"):
        open_source(f"ilr:{server.place}/demos-9.tar")


@pytest.mark.parametrize("has_ranges", [True, False])
@pytest.mark.parametrize("etag", [True, False])
def test_a_file_that_is_replaced_while_it_is_read_is_told(server: Web, has_ranges: bool, etag: bool) -> None:
    server.has_ranges = has_ranges
    server.etag, server.changed = ('"1"', "") if etag else (None, "Mon, 30 Nov 2020 08:00:00 GMT")
    source = open_source(f"ilr:{server.place}/demos-{{000..001}}.tar")
    server.etag, server.changed = ('"2"', "") if etag else (None, "Mon, 30 Nov 2020 08:00:01 GMT")
    with pytest.raises((WrittenAnew, StorageError), match="was written anew"):
        list(source)


def test_a_server_lists_nothing_and_takes_nothing(server: Web) -> None:
    for name in (f"ilr:{server.place}/*.tar", f"lerobot:{server.place}/folder"):
        with pytest.raises((SourceError, StorageError), match=r"lists nothing|not found|expected"):
            list(open_source(name))
    with pytest.raises(ConfigError, match="is only read"):
        place_named(f"{server.place}/out.tar")


@pytest.mark.parametrize("name", ["https://host", "http://me:secret@host/demos.tar", "http://"])
def test_addresses_without_a_file_or_with_a_user_are_refused(name: str) -> None:
    with pytest.raises(SourceError, match=r"expected https?://HOST/FILE, without a user"):
        open_source(f"ilr:{name}")


def test_other_formats_of_single_files_are_read(server: Web, folder: Path) -> None:
    np.savez(folder / "d.npz", **ilr_data.joined([ilr_data.trajectory(np.random.default_rng(0), 5)]))
    assert names(f"ilr:{server.place}/d.npz") == names(f"ilr:{folder}/d.npz")
