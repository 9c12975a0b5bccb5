"""Which datasets of Minari there are, on this machine and at a remote place, with what `minari list` shows of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rlds2reverb.errors import SourceError
from rlds2reverb.formats.minari.dataset import PEOPLE, datasets_root, list_ids, people_of, plain_value, read_metadata
from rlds2reverb.formats.minari.remote import (
    DOWNLOAD,
    MINARIS_REMOTE,
    NEVER,
    REMOTE_VARIABLE,
    list_remote,
    remote_folder,
    split_full_name,
)
from rlds2reverb.formats.options import split_options
from rlds2reverb.plain import Count, members, printed

_READ_AT_ONCE = 10


@printed("*")
@dataclass(frozen=True)
class ListedDataset:
    """A dataset in a list.

    Attributes:
      id: its id.
      place: the folder of all datasets on this machine, or the remote place.
      bytes: of its files.
      episodes, steps: as it says; None where it does not.
      authors: as it says.
      minari_version: the version that wrote it, or versions that read it; "" where it does not say.
      problem: why nothing more is known of it; "" if all is well.
    """

    id: str
    place: str
    bytes: Count
    episodes: Count | None = None
    steps: Count | None = None
    authors: tuple[str, ...] = ()
    minari_version: str = ""
    problem: str = ""


@printed("*")
@dataclass(frozen=True)
class MinariList:
    """Datasets of Minari.

    Attributes:
      datasets: the names by which they are opened.
      about: what is known of each, in the same order.
    """

    datasets: list[str]
    about: list[ListedDataset]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return members(self)


@dataclass(frozen=True)
class ListRequest:
    """What is listed.

    Attributes:
      local, remote: the folder of all datasets, and the remote place; None and "" where they are not asked.
      prefix: the beginning of the ids; "" for all.
    """

    local: Path | None
    remote: str
    prefix: str

    @staticmethod
    def of(text: str) -> ListRequest | None:
        """What a text behind "minari:" asks to list; None if it names a dataset.

        | text | lists |
        | --- | --- |
        | nothing | what is on this machine and at `$MINARI_REMOTE` |
        | `D4RL/` | of these what is in a namespace |
        | `hf://farama-minari`, `hf://farama-minari/D4RL/` | a remote place, or a namespace there |

        Behind it may stand the option `remote` with a place, or "never".

        Raises:
          SourceError: another option.
        """
        place, options = split_options(text)
        key, _, value = options.partition("=")
        full_name = split_full_name(place)
        is_list = not place or place.endswith("/") or (full_name is not None and not full_name[1])
        if not is_list or place.startswith(("/", "./", "../", "~")) or (full_name is None and "://" in place):
            return None
        if options and (key != "remote" or "," in value or value in ("", DOWNLOAD)):
            raise SourceError(f'"minari:{text}": a list of datasets has the option remote=PLACE or remote={NEVER} only')
        if full_name is not None:
            if options:
                raise SourceError(f'"minari:{text}": says where they lie twice; leave {options} out')
            remote, prefix = full_name
            return ListRequest(None, remote, f"{prefix}/" if prefix else "")
        remote = "" if value == NEVER else value or os.environ.get(REMOTE_VARIABLE, "")
        return ListRequest(datasets_root(), remote, place)

    def name_of(self, dataset: ListedDataset) -> str:
        """The name by which a listed dataset is opened: of a remote place that no variable names, the full one."""
        is_here = self.local is not None and dataset.place == str(self.local)
        is_found = is_here or (self.local is not None and self.remote == os.environ.get(REMOTE_VARIABLE))
        return f"minari:{dataset.id}" if is_found else f"minari:{dataset.place.rstrip('/')}/{dataset.id}"


def list_local(root: Path, prefix: str = "") -> Iterator[ListedDataset]:
    """The datasets below the folder of all datasets, sorted by id; those that cannot be read, too."""
    names = [name for name in list_ids(root) if name.startswith(prefix)]
    for name in names:
        yield _describe(str(root), name, root / name / "data", None)


def list_at(remote: str, prefix: str = "") -> list[ListedDataset]:
    """The datasets at a remote place, sorted by id.

    Raises:
      SourceError: no remote place is written so.
      StorageError: it does not answer.
    """
    sizes = list_remote(remote, prefix)
    with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
        return list(pool.map(partial(_describe_remote, remote, sizes), sizes))


def _describe_remote(remote: str, sizes: Mapping[str, int], name: str) -> ListedDataset:
    return _describe(remote, name, remote_folder(remote, name) / "data", sizes[name])


def _describe(place: str, name: str, folder: Path, count: int | None) -> ListedDataset:
    try:
        if count is None:
            count = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        metadata, _ = read_metadata(folder)
    except (SourceError, OSError) as error:
        return ListedDataset(name, place, count or 0, problem=str(error))
    told = {
        key: plain_value(metadata.get(key)) for key in ("total_episodes", "total_steps", "minari_version", PEOPLE[0])
    }
    authors = told[PEOPLE[0]] or []
    said = plain_value(metadata.get("dataset_id"))
    return ListedDataset(
        name,
        place,
        count,
        _count(told["total_episodes"]),
        _count(told["total_steps"]),
        tuple(map(str, people_of(authors) if isinstance(authors, str) else authors)),
        str(told["minari_version"] or ""),
        "" if said in (name, None) else f"it says that its id is {said}: Minari does not find it here",
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def hint_at_remote() -> str:
    """How to see what Minari's own remote place has."""
    return f"rlds2reverb inspect minari:{MINARIS_REMOTE} lists what Minari itself has"
