"""Files on a web server, as a bucket that is only read and never listed: `https://HOST/PATH`.

A file is looked up by HEAD, or by its first byte where a server answers no HEAD, and read by ranges. A server that answers none sends all
of it at the first read, into a copy on this machine. Redirects are followed, but not from https to http.

Source: RFC 9110, sections 8.8.3 and 13.1.1: weak ETags never satisfy If-Match.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any, NoReturn
from urllib.parse import unquote

from rlds2reverb.errors import StorageError
from rlds2reverb.formats.objects.access import obstore
from rlds2reverb.formats.objects.bucket import Bounds, Bucket, read_entry
from rlds2reverb.formats.objects.file import Copies, Entry

_CHUNK = 1 << 20


class WebServer(Bucket):
    """The files of one web server."""

    has_listings = False

    def __init__(self, scheme: str, name: str, bounds: Bounds = Bounds()) -> None:
        super().__init__(scheme, name, bounds)
        self._unranged: set[str] = set()  # keys whose server answers no ranges
        self._copies = Copies()

    def is_folder(self, key: str) -> bool:
        return False

    def _list(self, key: str) -> NoReturn:
        raise StorageError(
            f"{self._url}/{key}: a web server lists nothing; name a format and files, such as ilr:https://HOST/demos-{{000..010}}.tar"
        )

    def walk(self, key: str) -> NoReturn:
        self._list(key)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise StorageError(f"{self._url}: a web server is only read; write into a folder here")

    upload = upload_bytes = remove = _refuse

    def _key(self, key: str) -> str:
        return unquote(key)  # addresses have "%20" for a space; the library writes it so again

    def _head(self, key: str) -> Entry | None:
        entry = super()._head(key)
        if entry is not None:
            return entry

        def ask_first_byte(store: Any) -> Any:
            return obstore().get(store, self._key(key), options={"range": (0, 1)}).meta

        try:
            return read_entry(self._access.ask(f"{self._url}/{key}", ask_first_byte))
        except FileNotFoundError:
            return None
        except StorageError as error:
            if not isinstance(error.__cause__, obstore().exceptions.NotSupportedError):
                raise
            raise StorageError(
                f"{self._url}/{key}: its server answers neither HEAD nor ranges, so nothing tells its size; download it, and name the copy"
            ) from error

    def _is_other(self, entry: Entry, about: Mapping[str, Any]) -> bool:
        return entry.is_other(read_entry(about))

    def _fetch(self, key: str, entry: Entry, start: int, stop: int) -> memoryview:
        if key not in self._unranged:
            try:
                return super()._fetch(key, entry, start, stop)
            except StorageError as error:
                if not isinstance(error.__cause__, obstore().exceptions.NotSupportedError):
                    raise
            self._unranged.add(key)
        with self._copies.keep(f"{self._url}/{key}", entry, lambda file: self._download(key, entry, file)).open(
            "rb"
        ) as copy:
            copy.seek(start)
            return memoryview(copy.read(stop - start))

    def _download(self, key: str, entry: Entry, file: IO[bytes]) -> None:
        where = f"{self._url}/{key}"

        def get(store: Any) -> Any:
            file.seek(0)
            file.truncate()
            answer = obstore().get(store, self._key(key))
            for chunk in answer.stream(min_chunk_size=_CHUNK):
                file.write(chunk)
            return answer.meta

        try:
            now = read_entry(self._access.ask(where, get))
        except FileNotFoundError as error:
            raise self._gone(where) from error
        if entry.is_other(now) or file.tell() != entry.size:
            raise self._changed(where)
