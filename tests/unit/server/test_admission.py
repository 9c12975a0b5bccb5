"""Who may ask over HTTP: names against DNS rebinding, origins against foreign pages, a token."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import example, given
from hypothesis import strategies as st
from replay_server.admission import names_of, read_token, refuse_host, refuse_origin, refuse_token
from replay_server.config import HttpSection, decode, load, table_configs
from replay_server.http import make_app
from replay_server.service import ReplayService
from replay_server.status import status

from rlds2reverb.errors import ConfigError
from rlds2reverb.strict_yaml import parse

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

CHECKOUT = Path(__file__).parents[3]
OURS = names_of("replay.internal", ["Prometheus-Target", "gpu_box."])
SECRET = "s3cret-Token=/+"
ORIGINS = ["http://[", "null", "http://a, http://b", "http://a http://b", "", "localhost", "http://", "http://a/b", "*"]


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:8080",
        "localhost.:8080",
        "127.0.0.1:9",
        "10.1.2.3:8080",
        "[::1]:8080",
        "[fd00::7]",
        "replay.internal:8080",
        "prometheus-target:8080",
        "GPU_BOX:1",
    ],
)
def test_our_names_and_any_address_are_taken(host: str) -> None:
    assert refuse_host(host, "HTTP/1.1", OURS) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "127.1",
        "0x7f.1",
        "2130706433",
    ],
)
def test_any_other_name_is_misdirected_and_told_which_option_takes_it(host: str) -> None:
    for listening in ("127.0.0.1", "0.0.0.0", "::"):
        refusal = refuse_host(host, "HTTP/1.1", names_of(listening, []))
        assert refusal is not None
        assert refusal.status == 421
        assert f"add '{host.partition(':')[0]}' to http.allowed_hosts" in refusal.error


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "a b",
        "localhost, evil.example",
        "http://localhost",
        "localhost:x",
        "user@localhost",
        "[::1",
        "[:::]",
        "[1]x",
    ],
)
def test_a_host_that_is_none_is_a_bad_request(host: str | None) -> None:
    refusal = refuse_host(host, "HTTP/1.1", OURS)
    assert refusal is not None
    assert refusal.status in (400, 421)


def test_a_request_of_old_http_needs_no_host() -> None:
    assert refuse_host(None, "HTTP/1.0", OURS) is None
    assert refuse_host("evil.example", "HTTP/1.0", OURS) is not None


@given(st.text(), st.sampled_from(["localhost:8080", "[::1]:8080", ""]))
@example("http://[", "localhost:8080")
@example("http://localhost:8080@evil.example", "localhost:8080")
@example("file://localhost:8080", "localhost:8080")
def test_only_a_page_of_the_same_host_may_ask(origin: str, host: str) -> None:
    refusal = refuse_origin(origin, host)
    assert (refusal is None) == (host != "" and origin in (f"http://{host}", f"https://{host}"))
    assert refusal is None or refusal.status in (400, 403)


@pytest.mark.parametrize("origin", ORIGINS)
def test_an_origin_that_is_none_is_refused(origin: str) -> None:
    refusal = refuse_origin(origin, "localhost:8080")
    assert refusal is not None
    assert refusal.status == (403 if origin == "null" else 400)


@given(st.none() | st.text() | st.text(max_size=9).map(lambda text: f"Bearer {text}"))
@example("Bearer")
@example(f"Basic {SECRET}")
@example(f"Bearer {SECRET}x")
def test_only_the_token_itself_is_taken(header: str | None) -> None:
    refusal = refuse_token(header, SECRET)
    assert refusal is not None
    assert refusal.status == 401
    assert SECRET not in refusal.error
    assert refuse_token(header, None) is None


def test_the_token_is_taken_in_any_spelling_of_its_scheme() -> None:
    assert refuse_token(f"Bearer {SECRET}", SECRET) is None
    assert refuse_token(f"bearer  {SECRET} ", SECRET) is None


def test_a_token_file_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    assert read_token(None, str(file)) == SECRET
    for text in ("", "\n", "two words", "two\nlines", "h\xe4", "x" * 5000):
        file.write_text(text)
        with pytest.raises(ConfigError, match=rf"\$\.http\.token_file: {file}: expected one line"):
            read_token(None, str(file))
    with pytest.raises(ConfigError, match=r"\$\.http\.token_file: .*missing: cannot be read"):
        read_token(None, str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="give one of them"):
        read_token(SECRET, str(file))


def service(folder: Path, **http: Any) -> ReplayService:
    """One that is ready, says it, and has no Reverb behind it; its checkpoints fail."""
    config = decode({"tables": [{"name": "t"}], "http": http, "checkpoints": {"folder": str(folder)}}, "config")
    made = ReplayService(config, table_configs(config))
    made.checkpoints._request = lambda: str(folder / "nowhere")
    made.state.phase = "ready"
    return made


def client_of(service: ReplayService) -> FlaskClient:
    return make_app(service.state, service.requested_checkpoint).test_client()


def test_every_path_but_that_of_liveness_wants_a_name_of_ours(tmp_path: Path) -> None:
    client = client_of(service(tmp_path, host="0.0.0.0", allowed_hosts=["replay"]))
    for path in ("/status.json", "/readyz", "/metrics", "/nothing"):
        answer = client.get(path, headers={"Host": "evil.example"})
        assert (answer.status_code, "http.allowed_hosts" in answer.get_json()["error"]) == (421, True)
        assert client.get(path, headers={"Host": "replay:8080"}).status_code in (200, 404, 503)
    assert client.get("/healthz", headers={"Host": "evil.example"}).status_code == 200
    rebound = {"Host": "evil.example:8080", "Origin": "http://evil.example:8080"}
    assert client.post("/checkpoint", headers=rebound).status_code == 421


@pytest.mark.parametrize("origin", ORIGINS)
def test_a_malformed_origin_is_no_error_of_the_server(tmp_path: Path, origin: str) -> None:
    client = client_of(service(tmp_path))
    answer = client.post("/checkpoint", headers={"Origin": origin})
    assert answer.status_code in (400, 403)
    assert answer.get_json()["error"]


def test_a_token_is_wanted_of_posts_only_and_shown_nowhere(tmp_path: Path) -> None:
    made = service(tmp_path, token=SECRET)
    client = client_of(made)
    for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer h\xe4"}):
        answer = client.post("/checkpoint", headers=header)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert SECRET not in answer.get_data(as_text=True)
    assert client.post("/checkpoint", headers={"Authorization": f"Bearer {SECRET}"}).status_code == 503  # it failed
    assert client.get("/status.json").status_code == 200
    assert SECRET not in json.dumps(status(made.state)) + repr(made.config)


def test_hosts_and_token_come_from_the_environment_and_no_error_quotes_the_token(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("tables: [{name: a}]")
    environment = {"REPLAY__HTTP__ALLOWED_HOSTS": "[replay, gateway]", "REPLAY__HTTP__TOKEN": SECRET}
    http = load(file, (), environment).http
    assert (http.allowed_hosts, http.token) == (("replay", "gateway"), SECRET)
    for text in (f"[{SECRET}", f"a: {SECRET}", f"'{SECRET} {SECRET}'", f"!!int {SECRET}"):
        for overrides, environment in (([f"http.token={text}"], {}), ([], {"REPLAY__HTTP__TOKEN": text})):
            with pytest.raises(ConfigError) as caught:
                load(file, overrides, environment)
            assert SECRET not in str(caught.value)


@pytest.mark.parametrize("file", ["prometheus.yml", "scale.yml"])
def test_the_shipped_prometheus_peers_and_probes_are_let_in(file: str) -> None:
    """As compose starts the servers: the image's environment, then that of each service."""
    image = dict(re.findall(r"(REPLAY__\w+)=(\S+)", (CHECKOUT / "Dockerfile").read_text()))
    services = parse((CHECKOUT / "docker-compose.yml").read_text())["services"]
    servers = {name: definition for name, definition in services.items() if re.fullmatch(r"replay(-\d)?", name)}
    config = CHECKOUT / "configs" / "server.yaml"
    https = {name: load(config, (), {**image, **server["environment"]}).http for name, server in servers.items()}
    scraped = parse((CHECKOUT / "server" / "prometheus" / file).read_text())["scrape_configs"]
    targets = [target for job in scraped for group in job["static_configs"] for target in group["targets"]]
    assert targets == [f"{name}:{http.port}" for name, http in https.items()][: len(targets)]
    for name, http in https.items():
        assert http.host == "0.0.0.0"
        peers = [target for other in https.values() for target in other.peers if target.startswith(f"{name}:")]
        assert set(peers) <= {f"{name}:{http.port}"}
        for host in (f"{name}:{http.port}", "localhost:8080", "127.0.0.1:8080"):
            assert refuse_host(host, "HTTP/1.1", names_of(http.host, http.allowed_hosts)) is None


@pytest.mark.parametrize("name", ["http://replay", "replay:8080", "", "*", "a b"])
def test_an_allowed_host_is_a_name_alone(name: str) -> None:
    with pytest.raises(ConfigError, match=r"\$\.http\.allowed_hosts\[0\]"):
        decode({"tables": [{"name": "a"}], "http": {"allowed_hosts": [name]}}, "config")


def test_a_section_does_not_show_its_token() -> None:
    assert SECRET not in repr(HttpSection(token=SECRET))
