"""Messages that are damaged inside whole files: an error of ours, or a bad episode; never another error, and never much memory."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.source import spec_of
from rlds2reverb.views import view_of
from tests.support import damage
from tests.support.push import in_memory
from tests.support.stored import folders


@pytest.mark.parametrize("view", ["two_step", "transition", "frame_stack:frames=2"])
@pytest.mark.parametrize("options", ["", "?gaps=split", "?as=items", "?streams=split"])
@pytest.mark.parametrize("part", damage.PARTS)
def test_damaged_messages_give_our_errors_or_bad_episodes(tmp_path: Path, view: str, options: str, part: int) -> None:
    episodes = in_memory.episodes(2, 5)
    signature = view_of(view).signature(spec_of(episodes[0]))
    found = folders.pushed(episodes, view_of(view), signature=signature, chunk_length=2)

    def job(name: str, draw: random.Random) -> None:
        folder = folders.write_stored(tmp_path / "checkpoint", damaged(found, draw), {"replay": signature})
        damage.check(name, f"reverb:{folder}{options}")
        shutil.rmtree(folder)

    damage.each_case(f"{view}{options}", part, few=40, deep=4_000, job=job)


def damaged(found: folders.Sent, draw: random.Random) -> folders.Sent:
    """What was sent, with a message or two changed."""
    items, chunks = list(found.items.items()), list(found.chunks.items())
    for _ in range(draw.choice((1, 1, 2, 5))):
        among = draw.choice((items, chunks))
        at = draw.randrange(len(among))
        among[at] = (among[at][0], damage.damaged(among[at][1], draw))
    return folders.Sent(dict(chunks), dict(items))


def test_a_record_that_promises_more_than_there_is_takes_no_memory(tmp_path: Path) -> None:
    folder = folders.write_checkpoint(tmp_path / "checkpoint", [b""], [b""], [b""])
    (folder / "chunks.tfrecord").write_bytes(folders.zlib.compress((1 << 40).to_bytes(8, "little") + bytes(8)))
    with pytest.raises(SourceError, match="says that it has 1,099,511,627,776 bytes"):
        list(open_source(f"reverb:{folder}"))
