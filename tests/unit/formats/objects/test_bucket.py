"""Listings of a bucket or of the hub that never end, trickle, or say what is no size: each is an error with its bound."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("obstore")
pytest.importorskip("huggingface_hub")

from rlds2reverb.errors import StorageError
from rlds2reverb.formats import objects
from rlds2reverb.formats.objects import Bounds, Bucket
from rlds2reverb.formats.objects.hub import Hub
from tests.support.buckets import environment

SHA = "0123456789" * 4
PAGE = 20
INFO = {"id": "team/set", "sha": SHA, "siblings": [], "private": False, "tags": [], "downloads": 0, "likes": 0}


class Service:
    """A service that answers every listing in one way.

    Attributes:
      pages: listings that were asked for.
      is_over: set when the test is over, so that an answer that trickles may end.
    """

    def __init__(self) -> None:
        self.pages, self.url, self.is_over = 0, "", threading.Event()


@contextmanager
def service(answer: Callable[[Service, BaseHTTPRequestHandler], None]) -> Iterator[Service]:
    told = Service()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if "/tree/" in self.path or "list-type=" in self.path:
                told.pages += 1
                with suppress(OSError):  # who asked has gone
                    answer(told, self)
            elif "/api/datasets/" in self.path:
                send(self, json.dumps(INFO))
            else:  # what the hub's library asks beside
                self.send_error(404)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    told.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield told
    finally:
        told.is_over.set()
        server.shutdown()
        server.server_close()
        thread.join()
        objects.forget()


def send(handler: BaseHTTPRequestHandler, body: str, **headers: str) -> None:
    handler.send_response(200)
    for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body.encode())


def trickle(told: Service, handler: BaseHTTPRequestHandler) -> None:
    """One byte, and the rest when the test is over."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    handler.wfile.write(b"[")
    handler.wfile.flush()
    told.is_over.wait(60)


def never_ending_tree(told: Service, handler: BaseHTTPRequestHandler) -> None:
    files = [{"type": "file", "oid": SHA, "size": 1, "path": f"{told.pages}-{number}"} for number in range(PAGE)]
    send(handler, json.dumps(files), Link=f'<{told.url}{urlsplit(handler.path).path}?cursor={told.pages}>; rel="next"')


def never_ending_bucket(told: Service, handler: BaseHTTPRequestHandler) -> None:
    one = "<Contents><Key>%d-%d</Key><Size>1</Size><LastModified>2020-01-01T00:00:00.000Z</LastModified><ETag>a</ETag></Contents>"
    files = "".join(one % (told.pages, number) for number in range(PAGE))
    end = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{told.pages}</NextContinuationToken>"
    send(
        handler,
        f"<ListBucketResult><Name>b</Name>{files}{end}</ListBucketResult>",
        **{"Content-Type": "application/xml"},
    )


def hub(told: Service, monkeypatch: pytest.MonkeyPatch, bounds: Bounds) -> Bucket:
    monkeypatch.setenv("HF_ENDPOINT", told.url)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", told.url)
    return Hub("hf", "datasets/team/set", bounds)


def bucket(told: Service, monkeypatch: pytest.MonkeyPatch, home: Path, bounds: Bounds) -> Bucket:
    for name, value in environment(told.url, home).items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    return Bucket("s3", "b", bounds)


def test_an_endless_listing_of_the_hub_ends_at_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    with service(never_ending_tree) as told:
        found = hub(told, monkeypatch, Bounds(entries=50))
        with pytest.raises(
            StorageError, match=r"hf://datasets/team/set/data: its listing has more than 50 entries.*name a folder"
        ):
            found.names("data")
        assert told.pages == 3


def test_as_many_entries_as_the_bound_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_page(told: Service, handler: BaseHTTPRequestHandler) -> None:
        send(
            handler,
            json.dumps([{"type": "file", "oid": SHA, "size": 1, "path": f"data/{number}"} for number in range(PAGE)]),
        )

    with service(one_page) as told:
        assert len(hub(told, monkeypatch, Bounds(entries=PAGE)).names("data")) == PAGE


def test_a_hub_that_trickles_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with service(trickle) as told:
        found = hub(told, monkeypatch, Bounds())
        found._bounds = Bounds(seconds=0.2)
        with pytest.raises(
            StorageError, match=r"hf://datasets/team/set/data: its listing did not end within 0\.2 seconds"
        ):
            found.names("data")


@pytest.mark.parametrize("size", ["abc", None, -1, 2.5, True])
def test_a_size_that_is_none_is_told_with_its_file(monkeypatch: pytest.MonkeyPatch, size: Any) -> None:
    def odd(_: Service, handler: BaseHTTPRequestHandler) -> None:
        send(handler, json.dumps([{"type": "file", "oid": SHA, "size": size, "path": "data/a.npz"}]))

    with (
        service(odd) as told,
        pytest.raises(StorageError, match=r"team/set/data/a\.npz: the hub says that its size is"),
    ):
        hub(told, monkeypatch, Bounds()).names("data")


def test_an_endless_listing_of_a_bucket_ends_at_a_bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with service(never_ending_bucket) as told:
        found = bucket(told, monkeypatch, tmp_path, Bounds(entries=50))
        with pytest.raises(StorageError, match=r"s3://b/data: its listing has more than 50 entries"):
            found.walk("data")
        found = bucket(told, monkeypatch, tmp_path, Bounds(seconds=0.3))
        with pytest.raises(
            StorageError, match=r"s3://b/data: its listing did not end within 0\.3 seconds.*check the address"
        ):
            found.names("data")


@pytest.mark.parametrize("ask", [Bucket.walk, Bucket.names])
def test_a_bucket_that_trickles_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ask: Any) -> None:
    with service(trickle) as told:
        found = bucket(told, monkeypatch, tmp_path, Bounds(seconds=0.3))
        with pytest.raises(StorageError, match=r"s3://b/data: its listing did not end within 0\.3 seconds"):
            ask(found, "data")


def test_a_size_of_a_bucket_that_is_none_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def odd(_: Service, handler: BaseHTTPRequestHandler) -> None:
        one = "<Contents><Key>data/a</Key><Size>abc</Size><LastModified>2020-01-01T00:00:00.000Z</LastModified></Contents>"
        send(handler, f"<ListBucketResult><Name>b</Name>{one}<IsTruncated>false</IsTruncated></ListBucketResult>")

    with service(odd) as told, pytest.raises(StorageError, match="s3://b/data: no answer"):
        bucket(told, monkeypatch, tmp_path, Bounds()).names("data")
