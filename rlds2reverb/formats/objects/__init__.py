"""Objects in buckets, on the Hugging Face hub and on web servers: looked up, listed, and read by ranges; those in buckets are written and removed, too.

| chapter | content |
| --- | --- |
| `bucket` | what is in a bucket; ranges of objects, uploads |
| `hub` | the same of a dataset on the Hugging Face hub, which is only read |
| `web` | the same of files on a web server, which lists nothing |
| `access` | whose credentials sign requests, what is tried again, what a refusal means |
| `file` | an object as a file, read ahead; copies of objects on this machine |

An object is read as it was when it was opened: each range is asked for with the ETag of then, and a revision on the hub is resolved to its
commit once.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from rlds2reverb.formats.objects import file
from rlds2reverb.formats.objects.bucket import Bounds, Bucket
from rlds2reverb.formats.objects.file import Entry, ObjectFile
from rlds2reverb.formats.objects.hub import Hub
from rlds2reverb.formats.objects.web import WebServer

__all__ = ["Bounds", "Bucket", "Entry", "ObjectFile", "bucket_of", "forget", "forget_looks"]

_lock = threading.Lock()
_buckets: dict[tuple[str, str], Bucket] = {}
_KINDS: dict[str, type[Bucket]] = {"hf": Hub, "http": WebServer, "https": WebServer}  # others are buckets


def bucket_of(scheme: str, name: str) -> Bucket:
    """The bucket of a name, one in a process: what was looked up in it is known to all readers."""
    with _lock:
        bucket = _buckets.get((scheme, name))
        if bucket is None:
            bucket = _buckets[scheme, name] = _KINDS.get(scheme, Bucket)(scheme, name)
    return bucket


def forget_looks(scheme: str, name: str) -> None:
    """Has the next looks into a bucket ask anew. A dataset on the hub stays at its commit."""
    with _lock:
        bucket = _buckets.get((scheme, name))
    if bucket is not None:
        bucket.forget()


def forget() -> None:
    """Looks up everything anew, credentials too; in a forked process, where connections and threads are those of its parent."""
    global _lock
    _lock = threading.Lock()  # a thread of the parent may hold it
    _buckets.clear()
    file.forget()


_at_fork: Any = getattr(os, "register_at_fork", None)  # Windows has none
if _at_fork is not None:
    _at_fork(after_in_child=forget)
