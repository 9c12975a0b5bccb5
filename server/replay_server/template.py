"""A server config for one dataset, to start from and to change."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from replay_server.config import to_plain
from replay_server.tables import MOST, TableConfig
from rlds2reverb.specs import Nest
from rlds2reverb.text import counted
from rlds2reverb.views.trajectory import TRAJECTORY

_SERVER = "localhost:8000"
_ROOM = 10  # one more item for every so many: enough for some later episodes, little beside the dataset itself
_LONGEST_NAME = 60

_HEAD = """\
# A replay server for {items} of {part}{source}, for a push as below.
#   rlds2reverb serve --config THIS_FILE       (checkpoints.folder is relative to this file)
#   {push}
# max_size leaves room for at least a tenth more: {room}. A full table evicts its oldest items for new ones.
"""

_FREE_ROWS = """\
# The first size of a trajectory's leaves, the rows of an item, is free (?): TF-Agents' own push_rlds_to_reverb takes no
# other signature. A push of rlds2reverb by another view than the signature names is refused all the same.
"""


@dataclass(frozen=True)
class TableDraft:
    """A table to write into a config.

    Attributes:
      view: label of the view that makes its items.
      items: number of items that it must hold.
      by_priority: its items have priorities of their own, to sample by.
      at_least: its max_size, where that of the items is smaller.
    """

    view: str
    items: int
    signature: Nest
    by_priority: bool = False
    at_least: int = 1

    @property
    def max_size(self) -> int:
        """The items and at least a tenth more, rounded up to two digits; at least `at_least`."""
        needed = self.items + -(-self.items // _ROOM)
        step: int = 10 ** max(0, len(str(needed)) - 2)
        return max(self.at_least, min(MOST, -(-needed // step) * step))


@dataclass(frozen=True)
class ImageDraft:
    """An image column of the dataset.

    Attributes:
      is_encoded: whether the tables hold the files' bytes.
      encoded_bytes, decoded_bytes: mean bytes of a step; decoded None where that is not known.
    """

    path: str
    is_encoded: bool
    encoded_bytes: int
    decoded_bytes: int | None

    def comment(self, steps: int) -> str:
        """A line of the config's head."""
        files = _size(self.encoded_bytes, steps)
        pixels = "unknown" if self.decoded_bytes is None else _size(self.decoded_bytes, steps)
        path = _word(self.path)
        if self.is_encoded:
            return f"# {path}: as its files have it, {files}; decoded: {pixels}.\n"
        return f"# {path}: decoded, {pixels}; as its files have it: {files}. For that give --encoded {path} to inspect and push.\n"


def _size(step_bytes: int, steps: int) -> str:
    return f"{step_bytes:,} bytes per step, {step_bytes * steps / 1e6:,.1f} MB of memory"


def config_text(
    source: str,
    options: Sequence[str],
    tables: Mapping[str, TableDraft],
    episodes: int | None = None,
    images: Sequence[ImageDraft] = (),
    steps: int = 0,
) -> str:
    """YAML that the server starts from unchanged; its head has the commands.

    Args:
      source: as for `rlds2reverb push`.
      options: of that push, word by word, without the server: ["--table", "replay", "--view", "two_step"].
      tables: by name.
      episodes: number of episodes, from the start of the source, that were read; None for all.
      images: the dataset's image columns; their sizes stand in the head.
      steps: number of steps that were read.
    """
    document = {
        "tables": [_table(name, draft) for name, draft in tables.items()],
        "checkpoints": {"folder": f"checkpoints/{_folder_name(source, tables)}"},
    }
    counts = [counted(draft.items, "item") for draft in tables.values()]
    room = [f"{draft.max_size - draft.items:,} in {_word(name)}" for name, draft in tables.items()]
    head = _HEAD.format(
        items=" and ".join(counts),
        part="" if episodes is None else f"the first {counted(episodes, 'episode')} of ",
        source=_word(source),
        push=" ".join(map(_word, ("rlds2reverb", "push", source, "--server", _SERVER, *options))),
        room=", ".join(room),
    )
    head += "".join(image.comment(steps) for image in images)
    head += _FREE_ROWS if any(type(draft.signature).__name__ == TRAJECTORY for draft in tables.values()) else ""
    return head + _printable(document)


def tables_text(tables: Mapping[str, TableDraft]) -> str:
    """Entries of `tables` in YAML, by name, to be put into a config that has others."""
    return _printable({"tables": [_table(name, draft) for name, draft in tables.items()]}).partition("\n")[2]


def _printable(document: Mapping[str, Any]) -> str:
    text = _yaml(document, allow_unicode=True)
    # PyYAML leaves signs such as U+202E, which steer a terminal, as they are.
    return text if text.replace("\n", "").isprintable() else _yaml(document, allow_unicode=False)


def _yaml(document: Mapping[str, Any], allow_unicode: bool) -> str:
    text: str = yaml.safe_dump(
        document, sort_keys=False, width=120, default_flow_style=None, allow_unicode=allow_unicode
    )
    return text


def _word(text: str) -> str:
    """A word for the shell that is safe in a comment of YAML: what does not print is written as bash's $'...'."""
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(f"\\x{byte:02x}" for byte in os.fsencode(text)) + "'"


def _folder_name(source: str, tables: Mapping[str, TableDraft]) -> str:
    """A file name that is the same for the same source, tables and views, and for no others."""
    named = {name: [draft.view, to_plain(draft.signature)] for name, draft in tables.items()}
    digest = hashlib.blake2b(json.dumps([source, named], sort_keys=True).encode(), digest_size=4).hexdigest()
    readable = re.sub(r"[^A-Za-z0-9_.]+", "-", "-".join((source, *tables)))[-_LONGEST_NAME:].strip("-.")
    return f"{readable}-{digest}".lstrip("-")


def _table(name: str, draft: TableDraft) -> dict[str, Any]:
    return {
        "name": name,
        "sampler": {"kind": "prioritized", "exponent": 1.0} if draft.by_priority else TableConfig.sampler,
        "remover": TableConfig.remover,
        "max_size": draft.max_size,
        "rate_limiter": msgspec.to_builtins(TableConfig.rate_limiter),
        "signature": to_plain(draft.signature),
    }
