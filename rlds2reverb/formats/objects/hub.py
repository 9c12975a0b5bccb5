"""A dataset on the Hugging Face hub, as a bucket that is only read.

Files are looked up and listed by `huggingface_hub`, which knows the hub's tokens and errors; their bytes are read as those of any bucket, by
ranges over HTTP. At a commit nothing changes, so that no ETag is needed.
"""

from __future__ import annotations

import errno
import posixpath
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, NoReturn, TypeVar

from rlds2reverb.errors import SourceError, StorageError
from rlds2reverb.extras import needing
from rlds2reverb.formats.block_cache import version_of
from rlds2reverb.formats.objects.access import without_query
from rlds2reverb.formats.objects.bucket import Bounds, Bucket
from rlds2reverb.formats.objects.file import Entry
from rlds2reverb.text import shortened

T = TypeVar("T")


class Hub(Bucket):
    """A dataset on the Hugging Face hub, at the commit that its revision had when it was first asked for."""

    def __init__(self, scheme: str, name: str, bounds: Bounds = Bounds()) -> None:
        super().__init__(scheme, name, bounds)
        self._repo, _, revision = name.removeprefix("datasets/").partition("@")
        self._commit = _ask_hub(
            self._url, bounds, lambda api: api.repo_info(self._repo, repo_type="dataset", revision=revision or None)
        ).sha

    def _version(self, key: str, entry: Entry) -> str:
        return version_of(f"{self._service}{self._url}/{key}", self._commit, entry.size)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise StorageError(
            f"{self._url}: the hub is only read; write into a folder here, and upload that: hf upload {self._repo} FOLDER --repo-type dataset"
        )

    upload = upload_bytes = remove = _refuse

    def walk(self, key: str) -> dict[str, Entry]:
        tree = self._list_tree(key, recursive=True)
        return {
            about.path: _read_entry(f"{self._url}/{about.path}", about)
            for about in sorted(tree, key=lambda about: str(about.path))
            if hasattr(about, "size")
        }

    def _key(self, key: str) -> str:
        return f"datasets/{self._repo}/resolve/{self._commit}/{key}"

    def _head(self, key: str) -> Entry | None:
        where = f"{self._url}/{key}"
        files = _ask_hub(
            where,
            self._bounds,
            lambda api: api.get_paths_info(self._repo, [key], repo_type="dataset", revision=self._commit),
        )
        return next((_read_entry(where, about) for about in files if hasattr(about, "size")), None)

    def _list(self, key: str) -> tuple[dict[str, Entry], list[str]]:
        tree = self._list_tree(key)
        objects = {
            posixpath.basename(about.path): _read_entry(f"{self._url}/{about.path}", about)
            for about in tree
            if hasattr(about, "size")
        }
        return objects, [posixpath.basename(about.path) for about in tree if not hasattr(about, "size")]

    def _list_tree(self, key: str, **options: Any) -> list[Any]:
        """What the hub says of files and folders in a folder; [] if there is none."""
        where = f"{self._url}/{key}"

        def list_tree(api: Any) -> list[Any]:
            tree = api.list_repo_tree(self._repo, key or None, repo_type="dataset", revision=self._commit, **options)
            return list(self._bounds.limit(where, tree))

        try:
            return _ask_hub(where, self._bounds, list_tree)
        except FileNotFoundError:
            return []


def list_repositories(organisation: str, bounds: Bounds = Bounds()) -> list[str]:
    """The names of the datasets of an organisation, or a person, on the hub: "ORGANISATION/NAME"; [] for an unknown one.

    Raises:
      StorageError: the hub does not answer.
    """
    where = f"hf://datasets/{organisation}"
    return _ask_hub(
        where,
        bounds,
        lambda api: [about.id for about in bounds.limit(where, api.list_datasets(author=organisation))],
    )


def _read_entry(where: str, about: Any) -> Entry:
    """Reads what the hub says of a file; a folder has no size. Raises `StorageError` where the size is no number of bytes."""
    if type(about.size) is not int or about.size < 0:
        raise StorageError(
            f"{where}: the hub says that its size is {shortened(repr(about.size))}; expected a whole number of bytes: check HF_ENDPOINT, and try again"
        )
    large = getattr(about, "lfs", None)
    digest = str(getattr(large, "sha256", None) or "")
    return Entry(about.size, 0, "", str(about.blob_id or ""), digest)  # of a commit, so that it cannot change


def _ask_hub(where: str, bounds: Bounds, ask: Callable[[Any], T]) -> T:
    """An answer of the hub, within the time of the bounds.

    Its library waits for each byte anew, and cannot be stopped. So it asks on a thread of its own, which is left alone when the time is over.
    """
    with needing("reading hf://", "cloud", SourceError):
        import huggingface_hub
        from huggingface_hub import errors
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask(huggingface_hub.HfApi()))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="hub", daemon=True).start()
    if not wait([answer], bounds.seconds).done:
        raise bounds.exceeded_time(where)
    try:
        return answer.result()
    except StorageError:
        raise
    except errors.EntryNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "No such file", where) from error
    except errors.GatedRepoError as error:
        raise StorageError(
            f"{where}: its owner lets only some users in; ask on its page, then log in: hf auth login"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise StorageError(
            f"{where}: there is no such dataset, or it is private; log in: hf auth login, or set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise StorageError(f"{where}: there is no such revision") from error
    except Exception as error:  # of the HTTP library, which differs between versions
        raise StorageError(
            f"{where}: the hub did not answer: {without_query(error)}; check the network, and try again"
        ) from error
