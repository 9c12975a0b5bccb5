"""What outlives a process: every release reads what earlier ones have written, and refuses what later ones, or no release, have.

Files of earlier releases are in tests/data/versions. A refusal names the file, both versions and the release that is needed, and changes no
file. docs/versions.md lists every format.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cramjam import snappy
from replay_server import history, uploads
from replay_server.errors import CheckpointError, CheckpointNewer
from replay_server.folder_lock import decode_owner
from replay_server.history import HISTORY, History, HistoryFile
from replay_server.restore import choose
from replay_server.store import CheckpointStore, Manifest, decode_manifest

import rlds2reverb
from rlds2reverb.errors import ConfigError, WireError
from rlds2reverb.formats import open_source
from rlds2reverb.servers import episodes, journal
from rlds2reverb.servers.episodes import read_deletions
from rlds2reverb.servers.own_tables import write_records
from rlds2reverb.testing import MemoryTransport
from rlds2reverb.versions import FormatVersion
from rlds2reverb.wire.messages import DELETED
from tests.support import modules, stored_formats
from tests.support.project import ROOT
from tests.support.push import in_memory
from tests.support.releases import EXPECTED, FOLDER, plain, set_member
from tests.support.servers.own import server_with_own_tables
from tests.support.stored_formats import FORMATS, STATES, UNMARKED, StoredFormat

RELEASES = sorted(path.name for path in FOLDER.iterdir())
READERS = {**{name: form.read for name, form in FORMATS.items()}, **STATES, **UNMARKED}

pytestmark = pytest.mark.server


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of the files of the newest release, or of the one that the test names."""
    return Path(shutil.copytree(FOLDER / getattr(request, "param", RELEASES[-1]), tmp_path / "release"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def check_refused(form: StoredFormat, folder: Path) -> str:
    """The error of a reading that must fail, and leave every file as it is."""
    before = contents(folder)
    assert form.error is not None
    with pytest.raises(form.error) as raised:
        form.read(folder)
    after = contents(folder)
    assert {name: after.get(name) for name in before} == before
    return str(raised.value)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("folder", RELEASES, indirect=True)
def test_what_a_release_has_written_is_read(folder: Path, name: str) -> None:
    expected = json.loads((folder / EXPECTED).read_bytes())
    if name not in expected:
        pytest.skip("that release did not write it")
    assert without_new_members(plain(READERS[name](folder)), expected[name]) == expected[name]


def without_new_members(read: Any, expected: Any) -> Any:
    """What was read, without members that a later release has added."""
    if isinstance(read, dict) and isinstance(expected, dict):
        return {name: without_new_members(value, expected[name]) for name, value in read.items() if name in expected}
    if isinstance(read, list) and isinstance(expected, list) and len(read) == len(expected):
        return [without_new_members(*pair) for pair in zip(read, expected)]
    return read


@pytest.mark.parametrize("name", FORMATS)
def test_a_newer_version_is_refused_by_name_and_left_alone(folder: Path, name: str) -> None:
    form = FORMATS[name]
    path = form.path(folder)
    form.set_version(path, form.version.version + 1, "9.8.7")
    before = contents(folder)
    with pytest.raises(form.error or CheckpointNewer) as raised:
        form.read(folder)
    said, after = str(raised.value), contents(folder)
    assert {file: after.get(file) for file in before} == before
    assert path.name in said
    assert f"{form.version.what} of version {form.version.version + 1}, written by rlds2reverb 9.8.7" in said
    assert f"this rlds2reverb {rlds2reverb.__version__} reads version" in said
    assert "use 9.8.7 or a newer one" in said


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.error is not None])
@pytest.mark.parametrize("version", [0, -1, None, "2", True, 1.5, [1]])
def test_what_is_no_version_is_refused(folder: Path, name: str, version: Any) -> None:
    form = FORMATS[name]
    if name == "ledger" and type(version) is not int:
        pytest.skip("SQLite has whole numbers alone there")
    for path in folder.glob(form.file):  # else the older of two is read
        form.set_version(path, version, "")
    assert f"is no version of {form.version.what}" in check_refused(form, folder)


@pytest.mark.parametrize("name", FORMATS)
def test_a_version_older_than_any_that_is_read_is_refused(folder: Path, name: str) -> None:
    form = FORMATS[name]
    if form.version.oldest == 1:
        pytest.skip("all are read")
    form.set_version(form.path(folder), form.version.oldest - 1, "")
    assert "from before a release" in check_refused(form, folder)


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.error is not None])
@pytest.mark.parametrize("how", ["half", "but a byte", "garbage", "JSON of something else"])
def test_a_damaged_file_is_refused_and_left_alone(folder: Path, name: str, how: str) -> None:
    form = FORMATS[name]
    path = form.path(folder)
    data = path.read_bytes()
    damaged = {
        "half": data[: len(data) // 2],
        "but a byte": data.rstrip(b"\n")[:-1],
        "garbage": b"\xff\x00no file of ours\n" * 100,
        "JSON of something else": b'{"a": [1, 2]}',
    }[how]
    for every in folder.glob(form.file):
        every.write_bytes(damaged)
    assert path.name in check_refused(form, folder) or name in ("history", "checkpoint")


@pytest.mark.parametrize("member", ["format", "other"])
def test_nesting_without_end_is_refused_as_any_garbage_is(member: str) -> None:
    depth = 200_000
    data = f'{{"{member}":{"[" * depth}{"]" * depth}}}'.encode()
    refusals: list[tuple[type[Exception], Callable[[], object]]] = [
        (CheckpointError, lambda: decode_manifest(data, Path("000001"))),
        (CheckpointError, lambda: history.decode(data)),
        (WireError, lambda: journal.entries_of([data], "a:8000")),
        (
            WireError,
            lambda: read_deletions(stored_formats.server_of_lists(bytes(snappy.compress_raw(data)), table=DELETED), 60),
        ),
    ]
    for error, read in refusals:
        with pytest.raises(error):
            read()
    assert uploads.decode_owner(data, Path("OWNER.json")) is None
    assert decode_owner(data) is None


@pytest.mark.parametrize("name", STATES)
def test_a_newer_state_is_refused(folder: Path, name: str) -> None:
    set_member(folder / "states" / f"{name}.json", 9, "9.8.7", "version")
    with pytest.raises(ConfigError, match=r"of version 9, written by rlds2reverb 9.8.7; .* use 9.8.7 or a newer one"):
        STATES[name](folder)


def test_a_newer_entry_of_a_journal_is_refused_and_a_member_more_is_not(folder: Path) -> None:
    (record, *_) = stored_formats.own_records(folder, "rlds2reverb.journal")
    entry = json.loads(record)
    (read,) = journal.entries_of([json.dumps({**entry, "later": 1}).encode()], "a:8000")
    assert read.id == entry["id"]
    changes: dict[str, dict[str, Any]] = {
        "of version 9, written by": {"format": 9, "kind": "split"},
        "None is no version": {"format": None},
    }
    for said, change in changes.items():
        with pytest.raises(WireError, match=said):
            journal.entries_of([json.dumps({**entry, **change}).encode()], "a:8000")
    for damaged in (record[:-1], record[: len(record) // 2], b"", b"\xff"):
        with pytest.raises(WireError, match="is no entry"):
            journal.entries_of([damaged], "a:8000")


def test_a_newer_list_of_episodes_is_refused_and_a_push_sends_nothing(folder: Path) -> None:
    (record, *_) = stored_formats.own_records(folder, DELETED)
    newer = json.loads(bytes(snappy.decompress_raw(record))) | {"format": 2, "names": {}}
    server = server_with_own_tables()
    write_records(MemoryTransport(server), DELETED, {"x": [bytes(snappy.compress_raw(json.dumps(newer).encode()))]})
    with pytest.raises(WireError, match=r"a list of episodes of version 2; .* use a newer one"):
        in_memory.push(server, stored_formats.episodes())
    assert "replay" not in server.items
    for damaged in (record[:-1], b"", b"\xff"):
        transport = stored_formats.server_of_lists(damaged, table=DELETED)
        with pytest.raises(WireError, match="no record"):
            read_deletions(transport, 60)


# What must not stop a server, and what must.


def opened(folder: Path) -> CheckpointStore:
    return CheckpointStore(folder / "server", 3)


def test_a_newer_history_is_kept_aside_and_stops_nothing(folder: Path) -> None:
    path = folder / "server" / HISTORY
    set_member(path, 2, "9.8.7")
    # Of another shape, and longer than this release's may be.
    newer = json.loads(path.read_bytes()) | {"history": {"later": ["x" * 100] * 500}}
    path.write_text(json.dumps(newer))
    store = opened(folder)
    assert choose(store, start_empty=False)[0] is not None
    file = HistoryFile(store)
    assert file.read() == History()
    file.write(History())
    assert json.loads(path.read_bytes()) == newer, "a start that is refused leaves it"
    file.note_started()
    file.write(History())
    (aside,) = (folder / "server/set_aside").glob(f"{HISTORY}-*")
    assert (aside.name, json.loads(aside.read_bytes())) == (f"{HISTORY}-newer", newer)
    assert (file.problem, HistoryFile(store).read()) == ("", History())


def test_a_start_is_refused_by_a_newer_checkpoint_and_goes_on_without_it_when_asked_to(folder: Path) -> None:
    form, store = FORMATS["checkpoint"], opened(folder)
    path = form.path(folder)
    form.set_version(path, 2, "9.8.7")
    before = contents(folder)
    with pytest.raises(CheckpointError, match=r"000002.MANIFEST.json: a checkpoint of version 2, .*--start-empty"):
        choose(store, start_empty=False)
    assert contents(folder) == before
    checkpoint, (passed,) = choose(store, start_empty=True)
    assert checkpoint is not None
    assert (checkpoint.number, passed.path, passed.is_readable) == (1, path.parent, False)
    for number in range(9):  # it is never rotated away
        (store.kept / f"{number + 10:06d}").mkdir()
    store.prune()
    after = contents(folder)
    assert {name: after.get(name) for name in before if "generations/000002" in name} == {
        name: content for name, content in before.items() if "generations/000002" in name
    }


def test_a_manifest_of_before_the_mark_is_read(folder: Path) -> None:
    path = FORMATS["checkpoint"].path(folder)
    manifest = msgspec.structs.replace(msgspec.json.decode(path.read_bytes(), type=Manifest), format=0, program="")
    document = msgspec.to_builtins(msgspec.structs.replace(manifest, xxh3=manifest.digest()))
    del document["format"], document["program"]
    path.write_text(json.dumps(document))
    checkpoint, _ = choose(opened(folder), start_empty=False)
    assert checkpoint is not None
    assert checkpoint.folder == path.parent


def test_a_manifest_that_says_nothing_hides_no_data_from_a_reader(folder: Path) -> None:
    FORMATS["checkpoint"].path(folder).write_bytes(b"\xff")
    assert list(open_source(f"reverb:{folder / 'server'}?table=replay"))


def test_an_owners_record_of_another_release_is_read_as_far_as_it_is_known(folder: Path) -> None:
    record = (folder / "server/OWNER.json").read_bytes()
    owner = decode_owner(record)
    assert owner is not None
    assert decode_owner(msgspec.json.encode({**json.loads(record), "later": {}})) == owner
    assert decode_owner(record[:40]) is None
    assert decode_owner(b'{"host": 1}') is None


# Whether all are here.


def declared() -> dict[str, FormatVersion]:
    """Every `FormatVersion` that a module has."""
    versions: dict[str, FormatVersion] = {}
    for path, text in ((path, text) for package in modules.PACKAGES for path, text in modules.modules(package).items()):
        if " = FormatVersion(" in text:
            name = path.removeprefix("server/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")
            values = vars(importlib.import_module(name)).values()
            versions |= {value.what: value for value in values if isinstance(value, FormatVersion)}
    return versions


def rows_of_page() -> dict[str, str]:
    """The page's table: what -> its version."""
    rows = re.findall(
        r"^\| ([^|]+) \|[^|]+\|[^|]+\| ([\d, to]+|none) \|", (ROOT / "docs/versions.md").read_text(), re.MULTILINE
    )
    return dict(rows)


def test_the_page_has_every_format_with_its_versions() -> None:
    rows = rows_of_page()
    for what, version in declared().items():
        versions = (
            f"{version.version}" if version.oldest == version.version else f"{version.oldest} to {version.version}"
        )
        assert rows.get(what.partition(" ")[2]) == versions, what


def test_every_format_is_tried_here() -> None:
    tried = {form.version.what for form in FORMATS.values()} | {journal.VERSION.what, episodes.VERSION.what}
    assert tried == {*declared()}


def test_the_release_that_runs_has_files() -> None:
    assert rlds2reverb.__version__ in RELEASES, "python tests/data/make_versions.py"


def test_a_refusal_names_what_is_needed() -> None:
    format_version = FormatVersion("a book", 3, 2, "burn it")
    assert [format_version.reads(version) for version in (1, 2, 3, 4, True, "2", None)] == [
        False,
        True,
        True,
        *[False] * 4,
    ]
    ours = f"this rlds2reverb {rlds2reverb.__version__} reads versions 2 to 3"
    assert format_version.refusal("x", 2) == ""
    assert (
        format_version.refusal("x", 4, "0.9")
        == f"x: a book of version 4, written by rlds2reverb 0.9; {ours}: use 0.9 or a newer one, or burn it"
    )
    assert format_version.refusal("x", 4, {}) == f"x: a book of version 4; {ours}: use a newer one, or burn it"
    assert format_version.refusal("x", 1) == f"x: a book of version 1, from before a release; {ours}; burn it"
    assert "\x1b" not in format_version.refusal("x", 4, "\x1b[2J")
