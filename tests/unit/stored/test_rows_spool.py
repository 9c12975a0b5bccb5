"""What is laid aside comes back, in any order; a full disk is told."""

from __future__ import annotations

import io
import tempfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import SourceError
from rlds2reverb.stored import rows


@pytest.mark.parametrize("has_pread", [True, False])
@given(texts=st.lists(st.binary(max_size=60)), at_once=st.sampled_from([1, 50, 1 << 20]))
def test_what_was_written_is_read_in_any_order(has_pread: bool, texts: list[bytes], at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "_AT_ONCE_BYTES", at_once)
        if not has_pread:
            patch.setattr(rows, "_PREAD", None)
        made = rows.Spool()
        places = [made.write(text) for text in texts]
        made.close_writing()
        assert made.size == sum(map(len, texts))
        assert [made.read(at, len(text)) for at, text in reversed([*zip(places, texts)])] == texts[::-1]


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, _: Any) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())
    made = rows.Spool()
    made.write(b"some")
    with pytest.raises(SourceError, match=r"No space left on device.*TMPDIR"):
        made.close_writing()
