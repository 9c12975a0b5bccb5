"""How a service is asked: whose credentials sign a request, what is tried again, and what a refusal means.

Credentials are those that the vendors' own tools use, and there may be several: those are tried one after the other, and the first that is not
refused is kept. Without any, requests are not signed, as public buckets allow it. The role of the machine comes last, for where there is
none, its address only answers by a timeout.

Obstore itself tries again before an answer begins, by `_RETRY`. An answer that is cut off while it is read is an error of its body, which obstore
leaves to its caller: `_PAUSES`.
"""

from __future__ import annotations

import configparser
import errno
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from rlds2reverb.errors import SourceError, StorageError
from rlds2reverb.extras import needing
from rlds2reverb.text import shortened

T = TypeVar("T")

READ, WRITE = "read", "write"
SERVICES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST", "HF_ENDPOINT")
"""Variables that name another service than the vendor's own."""

_NO_BUCKET = "there is no such bucket; check its name, and the address of the service"


class Access:
    """The ways to ask for a bucket of a scheme."""

    def __init__(self, scheme: str, name: str) -> None:
        self._ways = list(_WAYS[scheme](name))
        self._stores: dict[str, Any] = {}
        self._chosen: dict[str, _Way] = {}  # "read", "write" -> the first way that was not refused

    def ask(self, where: str, request: Callable[[Any], T], to: str = READ) -> T:
        """The answer of the first way that is not refused; then that way is kept, one to read and one to write.

        Raises:
          FileNotFoundError: there is no such object.
          obstore.exceptions.PreconditionError: the object is another one than the request says.
          StorageError: no answer, or a refusal.
        """
        failures = obstore().exceptions
        missing: Any = (failures.NotFoundError, FileNotFoundError)
        refused: list[tuple[_Way, Exception]] = []
        for way in [self._chosen[to]] if to in self._chosen else self._ways:
            try:
                if way.what not in self._stores:
                    self._stores[way.what] = way.make()
                answer = _try_again(partial(request, self._stores[way.what]))
            except failures.PreconditionError:
                raise
            except (failures.BaseError, FileNotFoundError) as error:
                if "NoSuchBucket" in str(error):
                    raise StorageError(f"{where}: {_NO_BUCKET}") from error
                # That there is no such object is an answer: the credentials were taken.
                if isinstance(error, missing):
                    self._chosen[to] = way
                    raise FileNotFoundError(errno.ENOENT, "No such object", where) from error
                refused.append((way, error))
            else:
                self._chosen[to] = way
                return answer
        raise StorageError(f"{where}: {_explain(refused)}") from refused[0][1]


@dataclass(frozen=True)
class _Way:
    """One way to ask: `what` says whose credentials it uses; `is_signed` is False for none. `when_refused` is said without credentials."""

    what: str
    make: Callable[[], Any]
    is_signed: bool = True
    when_refused: str = (
        "access was refused: it is not public, and no credentials were found; log in with the vendor's tool "
        "(aws configure, gcloud auth application-default login), or set the variables that it reads"
    )


_RETRY = {
    "max_retries": 8,
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=10), "base": 2},
    "retry_timeout": timedelta(seconds=90),
}
_NO_RETRY = {**_RETRY, "max_retries": 1, "retry_timeout": timedelta(seconds=5)}
_CLIENT = {"timeout": "120s", "connect_timeout": "10s"}


_AWS_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_GOOGLE_CREDENTIALS = ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY")


def _ways_of_s3(name: str) -> Iterator[_Way]:
    from_environment = any(map(os.environ.get, _AWS_CREDENTIALS))
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    profile = {} if from_environment else _read_profile()
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or profile.get("region")
    settings = {"region": region or "us-east-1", **({"endpoint": endpoint} if endpoint else {})}
    client = {**_CLIENT, "allow_http": str(endpoint or "").startswith("http://")}

    def store(retry: Mapping[str, Any] = _RETRY, **more: Any) -> Any:
        return obstore().store.S3Store(name, config=settings, client_options=client, retry_config=retry, **more)

    if from_environment:
        yield _Way("the credentials in the environment", store)
        return
    if (os.environ.get("AWS_PROFILE") or profile) and find_spec("boto3") is not None:

        def by_boto3() -> Any:
            from obstore.auth.boto3 import Boto3CredentialProvider

            return store(credential_provider=Boto3CredentialProvider())

        yield _Way("the profile of the AWS tools", by_boto3)
    elif "aws_access_key_id" in profile:
        keys = {
            key: profile[f"aws_{key}"]
            for key in ("access_key_id", "secret_access_key", "session_token")
            if f"aws_{key}" in profile
        }
        yield _Way("the profile in ~/.aws/credentials", partial(store, **keys))
    yield _Way("no credentials", lambda: store(skip_signature=True), is_signed=False)
    if not endpoint:
        yield _Way("the role of this machine", lambda: store(_NO_RETRY))


def _read_profile() -> dict[str, str]:
    """Reads the settings of the chosen profile in the AWS tools' files; {} if there are none."""
    name = os.environ.get("AWS_PROFILE", "default")
    settings: dict[str, str] = {}
    for variable, usual, section in (
        ("AWS_CONFIG_FILE", "~/.aws/config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", name),
    ):
        parser = configparser.RawConfigParser()  # raw: a secret key may hold a "%"
        try:
            parser.read(Path(os.environ.get(variable) or usual).expanduser())
        except (OSError, RuntimeError, configparser.Error, UnicodeError):
            continue  # as if it were not there: the request will say what is missing
        if parser.has_section(section):
            settings |= dict(parser.items(section))
    return settings


def _ways_of_gs(name: str) -> Iterator[_Way]:
    emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
    if emulator:
        base = emulator if "://" in emulator else f"http://{emulator}"
        key = f'{{"gcs_base_url": "{base.rstrip("/")}", "disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}}'
        client = {**_CLIENT, "allow_http": base.startswith("http://")}
        yield _Way(
            "the emulator",
            lambda: obstore().store.GCSStore(name, service_account_key=key, client_options=client, retry_config=_RETRY),
        )
        return

    def store(retry: Mapping[str, Any] = _RETRY, **more: Any) -> Any:
        return obstore().store.GCSStore(name, client_options=_CLIENT, retry_config=retry, **more)

    own = (
        Path(os.environ.get("CLOUDSDK_CONFIG") or "~/.config/gcloud").expanduser()
        / "application_default_credentials.json"
    )
    if any(map(os.environ.get, _GOOGLE_CREDENTIALS)) or own.exists():
        yield _Way("the application default credentials", store)
    yield _Way("no credentials", lambda: store(skip_signature=True), is_signed=False)
    yield _Way("the service account of this machine", lambda: store(_NO_RETRY))


def _ways_of_hf(_: str) -> Iterator[_Way]:
    def store() -> Any:
        with needing("reading hf://", "cloud", SourceError):
            import huggingface_hub
        base = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
        token = huggingface_hub.get_token()
        headers = {"default_headers": {"authorization": f"Bearer {token}"}} if token else {}
        client = {**_CLIENT, "allow_http": base.startswith("http://"), **headers}
        return obstore().store.HTTPStore.from_url(base, client_options=client, retry_config=_RETRY)

    yield _Way("the token of the hub", store)


def _ways_of_web(scheme: str, name: str) -> Iterator[_Way]:
    client = {**_CLIENT, "allow_http": scheme == "http"}
    yield _Way(
        "no credentials",
        lambda: obstore().store.HTTPStore.from_url(f"{scheme}://{name}", client_options=client, retry_config=_RETRY),
        is_signed=False,
        when_refused="the server refuses access; download what needs a login, and name the copy",
    )


_WAYS: dict[str, Callable[[str], Iterator[_Way]]] = {
    "s3": _ways_of_s3,
    "gs": _ways_of_gs,
    "hf": _ways_of_hf,
    "http": partial(_ways_of_web, "http"),
    "https": partial(_ways_of_web, "https"),
}


@cache
def obstore() -> Any:
    with needing("reading from buckets", "cloud", SourceError):
        import obstore
        import obstore.exceptions
        import obstore.store
    return obstore


_PAUSES = (0.5, 1.0, 2.0, 4.0)
"""Seconds between requests whose answers were cut off."""
_PASSING = ("body", "connection closed", "incomplete", "timed out", "decoding")
_REFUSED = re.compile(r"status code: 4(?!08|29)\d\d")  # but for a timeout and too many requests


def _try_again(ask: Callable[[], T]) -> T:
    """The answer of a request, which is repeated after those that were cut off."""
    pauses = iter(_PAUSES)
    while True:
        try:
            return ask()
        except obstore().exceptions.GenericError as error:
            # The debug text, which repeats the request, may hold any word.
            text = str(error).split("Debug source")[0].lower()
            is_passing = "status code: 429" in text or any(sign in text for sign in _PASSING)
            pause = next(pauses, None)
            if pause is None or not is_passing or _REFUSED.search(text):
                raise
            time.sleep(pause)


def _explain(refused: list[tuple[_Way, Exception]]) -> str:
    """Why a request failed in every way, and how to go on; without anything of a credential or a signature."""
    failures = obstore().exceptions
    for way, error in refused:
        text = str(error).lower()
        if "expired" in text:
            return f"the request was refused: {way.what} expired; log in again"
        if "redirect" in text and "region" in text:
            return "the bucket is in another region; set AWS_REGION to its region"
    denied = [
        way
        for way, error in refused
        if isinstance(error, (failures.PermissionDeniedError, failures.UnauthenticatedError))
    ]
    if any(way.is_signed for way in denied):
        return f"access was refused with {denied[0].what}: they do not allow it, or there is no such bucket"
    if denied:
        return denied[0].when_refused
    return f"no answer: {without_query(refused[0][1])}; check the network and the address, and try again"


def without_query(error: BaseException) -> str:
    """The heart of a library's message, on one line, without the query of an address, which may hold a signature."""
    text = re.sub(r"(https?://[^\s?()]*)\?\S*", r"\1", " ".join(str(error).split()))
    text = text.split("Debug source:")[0].strip()
    return shortened(text)
