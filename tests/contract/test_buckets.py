"""Every format reads from a bucket what it reads from this machine's disk, under the same names."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlds2reverb.formats import open_source
from rlds2reverb.formats.options import escape_text
from tests.contract.test_damaged import WRITTEN
from tests.contract.test_sources import contents
from tests.support.buckets import Faults, Storage
from tests.support.profiles import DEEP

SERVERS = ("reverb",)
"""Formats that read from a running server, or from its own disk."""

NAMES = [name for name in WRITTEN if name.split(",")[0] not in SERVERS]


SCHEMES = ("s3", "gs")

# No format knows the scheme, so that one of the two tells of a format what the other would.
PLACES = [(name, scheme) for at, name in enumerate(NAMES) for scheme in (SCHEMES if DEEP else SCHEMES[at % 2 :][:1])]


@pytest.mark.parametrize(("name", "scheme"), PLACES)
def test_a_bucket_gives_what_the_disk_gives(
    name: str, scheme: str, storage: Storage, cloud: Faults, tmp_path: Path
) -> None:
    folder = tmp_path / "written"
    folder.mkdir()
    source = WRITTEN[name](folder)
    before = contents(open_source(source))
    storage.create("datasets")
    prefix = f"{scheme}/{tmp_path.name}"
    storage.upload(folder, "datasets", prefix)
    there = open_source(source.replace(escape_text(folder), f"{scheme}://datasets/{prefix}"))
    assert contents(there) == before
    assert contents(there) == before, "the second time"
    assert there.name.startswith(f"{source.partition(':')[0]}:{scheme}://")
    assert any(request.range for request in cloud.requests)
