"""HTTP to a replay server (`rlds2reverb serve`): its status, and checkpoints on request.

No proxy and no redirect is followed: a token is for the named server only. Answers are bounded in size and time, and their types
are checked.
"""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec

from rlds2reverb.errors import ConfigError, ServerUnreachable, TransportError, WireError

if TYPE_CHECKING:
    from http.client import HTTPResponse

MOST_BYTES = 8 << 20  # of an answer; a status of a thousand tables with all their rates has 4 MB
_MOST_SECONDS = 86_400.0  # for an answer; sockets take at most some 68 years

_EXPECTED = "expected an address such as http://127.0.0.1:8080"

Number = Annotated[float, msgspec.Meta(gt=-(2.0**63), lt=2.0**63)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class ServerPart(msgspec.Struct, frozen=True):
    """`server` of a status document. Times are Unix times of the server's clock."""

    state: str  # such as "ready"
    problem: str  # why Reverb does not answer, or ""
    now: Number
    started_at: Number
    memory_bytes: Count  # 0 if unknown
    ready_seconds: Number | None = None  # from its start until it was ready; None before, and of an older server
    restored_items: Count = 0  # by its start


class NewestCheckpoint(msgspec.Struct, frozen=True):
    """The newest checkpoint of a server.

    Attributes:
      generation: its number.
      created: Unix time.
      bytes: on disk.
      seconds: that writing it took.
    """

    generation: Count
    created: Number
    bytes: Count
    seconds: Number = 0.0


class Upload(msgspec.Struct, frozen=True):
    """What sends a server's checkpoints to a bucket.

    Attributes:
      place: where they go.
      generations: whole checkpoints that are there; null before the place was looked at.
      sending: number of the one that is being sent.
      behind_seconds: age of the oldest checkpoint that is newer than all that are there; 0 when the newest is there.
      failures: attempts that failed since the start.
      last_error: of the newest failure; empty when one has succeeded since.
      waiting: checkpoints that are newer than all that are there; null where the server does not say.
    """

    place: str
    generations: Count | None
    sending: Count | None
    behind_seconds: Number
    failures: Count
    last_error: str
    waiting: Count | None = None


class KeptCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that a server keeps.

    Attributes:
      generation: its number.
      name: of its folder, for `rlds2reverb serve --start-from`.
      created: Unix time; null where its manifest cannot be read.
      age_seconds: since then, by the server's clock; null likewise.
      items: table -> items in it.
      bytes: size on disk; null likewise.
      kept: the rules of `checkpoints.keep` that keep it (`last`, `hourly`, `daily`, `weekly`), `pinned`, or why else; empty if the next one takes its place.
      valid: whether its manifest can be read and its files have their sizes. Their content is compared by a start.
      problem: why it is not valid; empty if it is.
    """

    generation: Count
    name: str
    created: Number | None
    age_seconds: Number | None
    items: dict[str, Count]
    bytes: Count | None
    kept: list[str]
    valid: bool
    problem: str


class KeptCheckpoints(msgspec.Struct, frozen=True):
    """All checkpoints that a server keeps.

    Attributes:
      checkpoints: newest first.
    """

    checkpoints: list[KeptCheckpoint]


class CheckpointPart(msgspec.Struct, frozen=True):
    """`checkpoints` of a status document."""

    last: NewestCheckpoint | None
    writing_since: Number | None  # None while no checkpoint is being written
    failures: Count  # since the start
    last_error: str  # why the newest attempt failed, or ""
    problem: str  # why nothing may be written to the folder, or ""
    upload: Upload | None = None  # None where none is configured
    all: list[KeptCheckpoint] | None = None  # newest first; None of a server of an older version


class LimiterPart(msgspec.Struct, frozen=True):
    inserts_blocked: bool
    samples_blocked: bool


class TablePart(msgspec.Struct, frozen=True):
    """An entry of `tables` of a status document."""

    name: str
    size: Count
    max_size: Count
    episodes: int
    inserts: int
    samples: int
    limiter: LimiterPart


class NewestEntry(msgspec.Struct, frozen=True):
    """An entry of the server's journal.

    Attributes:
      kind: such as push.
      state: how it ended, such as done.
      began: Unix time.
      source: the dataset.
      user, host: who did it, and where.
      items: confirmed, or deleted.
      items_new: items that were not there before; null where that is not known.
    """

    kind: str
    state: str
    began: Number
    source: str
    user: str
    host: str
    items: Count
    items_new: Count | None


class JournalPart(msgspec.Struct, frozen=True):
    newest: list[NewestEntry]


class Status(msgspec.Struct, frozen=True):
    """What is read of /status.json; see `replay_server.status`."""

    server: ServerPart
    checkpoints: CheckpointPart
    tables: list[TablePart]
    journal: JournalPart | None = None  # None of a server without one


class WrittenCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that the server has written when it was asked, or before.

    Attributes:
      generation: its number.
      folder: where it is, on the server's machine.
      items: table -> items in it.
      bytes: size on disk.
      seconds: how long it took.
      written: false when nothing had changed since this one was written, so that none was written now.
    """

    generation: Count
    folder: str
    items: dict[str, Count]
    bytes: Count
    seconds: Number
    written: bool = True


class _Refusal(msgspec.Struct):
    error: str


T = TypeVar("T")


@dataclass(frozen=True)
class _Answer:
    status: int
    reason: str
    body: bytes


class ServerHttp:
    """The HTTP interface of one replay server.

    Args:
      url: such as http://127.0.0.1:8080, with a path behind a proxy.
      authority, certificate, key: files (PEM) for https; by default the system's authorities, and no client certificate.

    Raises:
      ConfigError: not an address of http or https, or a file that cannot be used.
    """

    def __init__(
        self, url: str, authority: Path | None = None, certificate: Path | None = None, key: Path | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self._parts = _split(url)
        self._tls = None if self._parts.scheme == "http" else _tls(url, authority, certificate, key)

    def status(self, seconds: float) -> Status:
        """The server's status document.

        Raises:
          ServerUnreachable: no answer within `seconds`, or what answers does not speak HTTP.
          TransportError: the server refuses.
          WireError: what answers is no replay server.
        """
        answer = self._ask("GET", "/status.json", {}, seconds)
        if answer.status == HTTPStatus.MISDIRECTED_REQUEST:
            raise TransportError(
                f"{self.url}: the server does not accept this host name; add it to its http.allowed_hosts"
            )
        if answer.status != HTTPStatus.OK:
            raise TransportError(f"{self.url}: HTTP {answer.status}; is this the server's http.port?")
        return self._decode(answer.body, Status, "status")

    def checkpoint(self, seconds: float, token: str | None = None, is_anew: bool = False) -> WrittenCheckpoint:
        """Has the server write a checkpoint if anything has changed since the newest one, and waits for it.

        Args:
          seconds: deadline; the server continues to write after it.
          token: the server's http.token, if it has one.
          is_anew: whether it is written whatever has changed.

        Raises:
          ServerUnreachable: no answer in time, or what answers does not speak HTTP.
          TransportError: the server cannot write it, and says why. Retryable if it is busy or not ready.
          WireError: what answers is no replay server.
        """
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        answer = self._ask("POST", "/checkpoint?anew=1" if is_anew else "/checkpoint", headers, seconds)
        if answer.status != HTTPStatus.OK:
            try:
                why = msgspec.json.decode(answer.body, type=_Refusal).error
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                why = f"HTTP {answer.status} {answer.reason}; is this the replay server's HTTP address?"
            is_busy = answer.status == HTTPStatus.SERVICE_UNAVAILABLE
            raise TransportError(f"{self.url}: no checkpoint: {why}", retryable=is_busy)
        return self._decode(answer.body, WrittenCheckpoint, "answer")

    def _ask(self, method: str, path: str, headers: dict[str, str], seconds: float) -> _Answer:
        import http.client  # takes some milliseconds, which most commands do without

        seconds = min(seconds, _MOST_SECONDS)
        host, port = self._parts.hostname or "", self._parts.port
        connection = (
            http.client.HTTPConnection(host, port, timeout=seconds)
            if self._tls is None
            else http.client.HTTPSConnection(host, port, timeout=seconds, context=self._tls)
        )
        try:
            connection.request(
                method, f"{self._parts.path.rstrip('/')}{path}", headers={**headers, "Connection": "close"}
            )
            answer = connection.getresponse()
            return _Answer(answer.status, answer.reason, self._body(answer, time.monotonic() + seconds))
        except http.client.HTTPException as error:
            raise ServerUnreachable(
                f"{self.url}: what answers there does not speak HTTP; give http.port of `rlds2reverb serve`, not the port of gRPC"
            ) from error
        except OSError as error:
            raise ServerUnreachable(
                f"{self.url}: no answer ({error or type(error).__name__}); "
                "is `rlds2reverb serve` running there, and is this its http.port?"
            ) from error
        finally:
            connection.close()

    def _body(self, answer: HTTPResponse, until: float) -> bytes:
        # In parts, each of what has come: a socket's timeout counts anew with every byte, so it bounds no whole answer.
        body = b""
        while part := answer.read1(1 << 16):
            body += part
            if len(body) > MOST_BYTES:
                raise WireError(f"{self.url}: its answer is larger than {MOST_BYTES:,} bytes")
            if time.monotonic() > until:
                raise TimeoutError("it comes too slowly")
        return body

    def _decode(self, body: bytes, kind: type[T], what: str) -> T:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as error:
            raise WireError(f"{self.url}: its {what} is not that of a replay server: {error}") from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise WireError(f"{self.url}: its {what} is not JSON; is this the server's http.port?") from error


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise ConfigError(f'--http "{url}": {_EXPECTED} ({error})') from error
    if not is_known or parts.query or parts.fragment or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(f'--http "{url}": {_EXPECTED}')
    return parts


def _tls(url: str, authority: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=authority)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f'--http "{url}": the certificates cannot be used ({error})') from error
    return context
