"""States of PyTorch's datasets that earlier releases have saved are restored; newer ones are refused. See tests/contract/test_stored_formats.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rlds2reverb.errors import ConfigError
from tests.support.releases import EXPECTED, FOLDER, plain, set_member
from tests.support.torch_states import READERS


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("release", sorted(path.name for path in FOLDER.iterdir()))
def test_a_state_of_a_release_is_restored_and_a_newer_one_refused(release: str, name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDER / release, tmp_path / release)
    expected = json.loads((folder / EXPECTED).read_bytes())
    assert plain(READERS[name](folder)) == expected[name]
    set_member(folder / "states" / f"{name}.json", 9, "9.8.7", "version")
    with pytest.raises(ConfigError, match=r"of version 9, written by rlds2reverb 9.8.7; .* use 9.8.7 or a newer one"):
        READERS[name](folder)
