"""What scripts/containers does with its engine: checks the configuration, builds, runs. Standard library only.

Usage: scenario.py check-configuration | build | run

Needs in the environment: LAB (a folder of the run), COMPOSE (docker-compose's path), DOCKER_HOST, PROMETHEUS_BINARY.
Each step ends with an exception, and the process with 1, when something is not as it must be.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

PROJECT = Path(__file__).parents[3]
LAB = Path(os.environ.get("LAB", ""))
PLAIN = ("docker-compose.yml",)
SECURE = ("docker-compose.yml", "docker-compose.secure.yml")
SANDBOX = (*PLAIN, "tests/packaging/containers/sandbox.yml")
SECURE_SANDBOX = (*SECURE, "tests/packaging/containers/sandbox.yml", "tests/packaging/containers/sandbox-secure.yml")
CERTIFICATES = LAB / "certificates"
CHECKPOINTS = "/var/lib/replay/checkpoints"
TABLE = "replay"
OTHERS = ("replay-2", "replay-3")
MEMORY_LIMIT = re.compile(r"record: replay_memory_limit_bytes\s+expr: vector\((\d+)\)")
METRIC = re.compile(r"\b(?:replay|process)_[a-z_]+\b")
ENDPOINTS = {
    "/healthz": "",
    "/readyz": "",
    "/metrics": "replay_table_size",
    "/": "<!doctype html",
    "/page/status.js": "status.json",
    "/runbook": 'id="replaydown"',
    "/status.json": TABLE,
    "/history.json": '"samples"',
}
"""Paths, and what their answers hold."""


MOST_MEGABYTES = {"rlds2reverb-replay": 350, "rlds2reverb-pusher": 200}
"""Of an image, as `docker images` has it; docs/install.md quotes what was measured."""


class Failed(Exception):
    """Something is not as it must be."""


def check(is_right: bool, where: str, expected: Any, got: Any) -> None:
    """Goes on, or fails with all that there is to say."""
    if not is_right:
        raise Failed(f"{where}: expected {expected}, got {got!r}")
    say(f"  {where}: {expected}")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run(*command: str, seconds: float, may_fail: bool = False, show: bool = False) -> str:
    """Standard output of a command; a failure or a timeout raises, with the end of both outputs."""
    environment = {**os.environ, "REPLAY_CERTIFICATES": str(CERTIFICATES), "REPLAY_CERTIFICATES_OWNER": "0:0"}
    try:
        done = subprocess.run(
            command,
            cwd=PROJECT,
            env=environment,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if show else subprocess.PIPE,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{' '.join(command)}: expected an end within {seconds} s; got {error.output or b''!r}") from error
    if show:
        say("\n".join(f"  | {line}" for line in done.stdout.splitlines()))
    if done.returncode and not may_fail:
        output = f"{done.stdout[-3000:]}\n{(done.stderr or '')[-3000:]}"
        raise Failed(f"{' '.join(command)}: expected exit code 0, got {done.returncode}:\n{output}")
    return done.stdout


class Compose:
    """docker-compose on some files."""

    def __init__(self, *files: str) -> None:
        self._command = (os.environ["COMPOSE"], *(word for file in files for word in ("-f", file)))

    def __call__(self, *arguments: str, seconds: float = 60, show: bool = False) -> str:
        return run(*self._command, *arguments, seconds=seconds, show=show)

    def config(self) -> dict[str, Any]:
        """All services, of all profiles, as compose understands the files."""
        plain: dict[str, Any] = json.loads(self("--profile", "*", "config", "--format", "json"))
        return plain

    def ask(self, path: str, *flags: str, port: int = 8080, seconds: float = 60) -> str:
        """An HTTP answer, asked for within the server's container. Anything but 200 raises."""
        probe = ("container-probe", *flags, "--print", path)
        return self("exec", "-T", "-e", f"REPLAY__HTTP__PORT={port}", "replay", *probe, seconds=seconds)

    def state(self, service: str) -> dict[str, Any]:
        """Docker's view of the one container of a service, ended ones as well."""
        (found,) = self("ps", "--all", "--quiet", service).split()
        states: list[dict[str, Any]] = json.loads(run("docker", "inspect", found, seconds=20))
        return {**states[0]["State"], "MemoryLimit": states[0]["HostConfig"]["Memory"]}


def wait_for(what: str, seconds: float, condition: Callable[[], Any]) -> Any:
    """The first true value."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Failed(f"{what}: expected within {seconds} s, got {value!r}")
        time.sleep(1)


# Configuration


def check_configuration() -> None:
    """Compose takes every combination of files and profiles; ports, limits and names are what they must be."""
    for files in (PLAIN, SECURE, SANDBOX, SECURE_SANDBOX):
        for profiles in (
            (),
            ("push",),
            ("learner",),
            ("monitoring",),
            ("scale",),
            ("pusher",),
            ("push", "learner", "monitoring"),
        ):
            flags = [word for profile in profiles for word in ("--profile", profile)]
            Compose(*files)(*flags, "config", "--quiet")
        say(f"  compose takes {' + '.join(files)}, with each profile")
        binds = {
            mount["source"]
            for service in Compose(*files).config()["services"].values()
            for mount in service.get("volumes", ())
            if mount["type"] == "bind" and mount["source"] != str(CERTIFICATES)
        }
        missing = {source for source in binds if not Path(source).exists()}
        check(not missing, f"mounted folders and files of {files[-1]}", "all there", missing)
    services = Compose(*PLAIN).config()["services"]
    published = {name: [port["host_ip"] for port in service.get("ports", ())] for name, service in services.items()}
    outside = {name for name, addresses in published.items() if set(addresses) - {"127.0.0.1"}}
    check(outside == set(), "services reachable from other machines", "none", outside)
    secure = Compose(*SECURE).config()["services"]
    ports = {name: sorted(port["target"] for port in service.get("ports", ())) for name, service in secure.items()}
    check(ports["replay"] == [8080], "with TLS, published ports of replay", [8080], ports["replay"])
    check(ports["gateway"] == [8443], "with TLS, published ports of gateway", [8443], ports["gateway"])
    alerts = (PROJECT / "server/prometheus/alerts.yml").read_text()
    servers = ("replay", *OTHERS)
    limits = {*(int(services[name]["mem_limit"]) for name in servers), *map(int, MEMORY_LIMIT.findall(alerts))}
    check(len(limits) == 1, "memory limit in docker-compose.yml and alerts.yml", "the same", limits)


# Images


def build() -> None:
    """All images; what is in them and what is not."""
    CERTIFICATES.mkdir(exist_ok=True)
    started = time.monotonic()
    Compose(*SECURE_SANDBOX)("--profile", "learner", "--profile", "pusher", "build", seconds=2400)
    say(f"  built within {time.monotonic() - started:.0f} s")
    check_image("rlds2reverb-replay", ("rlds2reverb", "--version"), "10001:10001")
    check_image("rlds2reverb-gateway", ("nginx", "-v"), "")
    check_image("rlds2reverb-learner", ("python", "/opt/learners/bc_tf_agents.py", "--help"), "10001:10001")

    check_image("rlds2reverb-pusher", ("--version",), "10001:10001")
    check_pusher()


def version() -> str:
    """That of the package, as its source says."""
    text = (PROJECT / "rlds2reverb/__init__.py").read_text()
    found = re.search(r'^__version__ = "(.*)"$', text, re.MULTILINE)
    return found[1] if found else "none"


def check_pusher() -> None:
    """No TensorFlow, the libraries of its formats, on a new Python; with the build argument those of all formats, and of buckets."""
    image = "rlds2reverb-pusher"
    full, argument = f"{image}-all", ("--build-arg", "PUSHER_FORMATS=all")
    run(
        "docker",
        "build",
        "--quiet",
        "--network",
        "host",
        "--target",
        "pusher",
        *argument,
        "-t",
        full,
        ".",
        seconds=1200,
    )
    common = "array_record.python.array_record_module, h5py, imagecodecs, msgpack, PIL.Image, simplejpeg, structlog"
    more = "av, huggingface_hub, obstore.store, pyarrow.parquet, textual"
    never = "'tensorflow', 'reverb', 'flask'"
    for name, imports, absent in (
        (image, common, f"{never}, 'av', 'pyarrow', 'obstore'"),
        (full, f"{common}, {more}", never),
    ):
        code = (
            f"import ssl, sys, importlib.util as u, numpy as np, {imports}; from rlds2reverb.images import decode_images; "
            "assert ssl.create_default_context().get_ca_certs(), 'no authority is trusted'; "
            "pixels = np.arange(3 * 64 * 64, dtype=np.uint8).reshape(64, 64, 3); "
            "png, jpeg = imagecodecs.png_encode(pixels), imagecodecs.jpeg8_encode(pixels, 90); "
            "assert (decode_images([png], (64, 64, 3))[0] == pixels).all(); "
            "assert decode_images([jpeg], (64, 64, 3)).shape == (1, 64, 64, 3); "
            f"print('.'.join(map(str, sys.version_info[:2])), [n for n in ({absent}) if u.find_spec(n)])"
        )
        found = run(
            "docker", "run", "--rm", "--network", "none", "--entrypoint", "python", name, "-c", code, seconds=120
        )
        check(found == "3.13 []\n", f"{name}: Python, and libraries that it has not", "3.13 []\n", found)
    say(f"  {full}: {megabytes(full):,.0f} MB")
    start = ("docker", "run", "--rm", "--network", "none", image)
    told = run("sh", "-c", '"$@" 2>&1 || true', "-", *start, "inspect", "s3://bucket/set", seconds=60)
    check(
        "PUSHER_FORMATS=all" in " ".join(told.split()),
        f"{image}: a bucket",
        "an error that names the build argument",
        told,
    )


def megabytes(image: str) -> float:
    """The size of an image."""
    (facts,) = json.loads(run("docker", "image", "inspect", image, seconds=20))
    return float(facts["Size"] / 1e6)


def check_image(image: str, hello: tuple[str, ...], user: str) -> None:
    """Settings, and that no compiler, package index or cache came along."""
    (facts,) = json.loads(run("docker", "image", "inspect", image, seconds=20))
    settings = facts["Config"]
    most = MOST_MEGABYTES.get(image, 10_000)
    check(megabytes(image) < most, f"{image}: {megabytes(image):,.0f} MB", f"below {most:,}", megabytes(image))
    check(settings["User"] == user, f"{image}: user", user or "root, which nginx gives up itself", settings["User"])
    entry = ["tini", "--", "rlds2reverb"] if image == "rlds2reverb-pusher" else ["tini", "--"]
    check(settings["Entrypoint"] == entry, f"{image}: entrypoint", entry, settings["Entrypoint"])
    checked = settings.get("Healthcheck") or {"Test": []}
    is_server = image not in ("rlds2reverb-learner", "rlds2reverb-pusher")
    check((checked["Test"] not in ([], ["NONE"])) is is_server, f"{image}: health check", is_server, checked)
    labels = {name.removeprefix("org.opencontainers.image."): told for name, told in settings["Labels"].items()}
    check(labels.keys() >= {"title", "description", "licenses"}, f"{image}: OCI labels", "present", labels)
    check(labels.get("version") == version(), f"{image}: version", version(), labels.get("version"))
    look = (
        "for tool in gcc cc g++ make ld pip pip3 hatchling; do command -v $tool; done; "
        r"find / -xdev \( -name pip -o -name hatchling -o -name ensurepip \) -path '*-packages/*'; "
        "find /root /var/lib/apt/lists /src /wheels /build -type f -size +8k 2>/dev/null; true"
    )
    start = ("docker", "run", "--rm", "--network", "none", "--user", "0")
    found = run(*start, "--entrypoint", "/bin/sh", image, "-c", look, seconds=60)
    check(found == "", f"{image}: compilers, package tools, caches", "none", found)
    run(*start, "--read-only", image, *hello, seconds=60, show=True)


# Services


def size(compose: Compose) -> int:
    """Items in the table, as /metrics tells."""
    text = compose.ask("/metrics")
    found = re.search(rf'^replay_table_size{{table="{TABLE}"}} ([0-9.e+]+)$', text, re.MULTILINE)
    if found is None:
        raise Failed(f"/metrics: expected replay_table_size of table {TABLE}, got {text[:2000]}")
    return int(float(found[1]))


def expect_size(compose: Compose, items: int, when: str) -> None:
    """The metrics may be a few seconds old."""
    end = time.monotonic() + 20
    while size(compose) != items and time.monotonic() < end:
        time.sleep(1)
    check(size(compose) == items, f"items {when}", items, size(compose))


def push_report(compose: Compose, *flags: str, service: str = "push") -> dict[str, Any]:
    """The same push once more, with rlds2reverb's account of it."""
    command = compose.config()["services"][service]["command"]
    output = compose("run", "--rm", "--no-deps", "-T", service, *command, "--json", *flags, seconds=300)
    report: dict[str, Any] = json.loads(output[output.index("{") :])
    return report


def checkpoints(compose: Compose) -> dict[str, float]:
    """Folders of complete checkpoints on the volume, with the time of their DONE file; a container of its own reads."""
    look = f"find {CHECKPOINTS} -name DONE -printf '%h %T@\\n'"
    flags = ("--rm", "--no-deps", "-T", "--entrypoint", "/bin/sh")
    lines = compose("run", *flags, "replay", "-c", look, seconds=120).splitlines()
    return {folder: float(at) for folder, at in (line.split() for line in lines)}


def start(compose: Compose, *services: str) -> None:
    compose("up", "--detach", "--no-build", "--wait", *services, seconds=300)


def stop(compose: Compose) -> None:
    """As `docker compose stop` does it: SIGTERM, then a wait for the checkpoint."""
    asked_at = time.time()
    compose("stop", "replay", seconds=330)
    state = compose.state("replay")
    check(state["ExitCode"] == 0, "exit code after SIGTERM", 0, state["ExitCode"])
    check(not state["OOMKilled"], "killed for its memory", "no", state)
    written = checkpoints(compose)
    new = {folder: at for folder, at in written.items() if at > asked_at - 0.02}  # the clock of files is a coarse one
    check(bool(new), "complete checkpoint since the stop", "on the volume", written)


def replay(compose: Compose) -> int:
    """Start, fill, checkpoint, fill more, stop, start again, kill, start again: the items stay. How many a push has."""
    start(compose, "replay")
    limit = compose.state("replay")["MemoryLimit"]
    check(
        limit == int(compose.config()["services"]["replay"]["mem_limit"]), "memory limit of the container", "set", limit
    )
    for path, part in ENDPOINTS.items():
        text = compose.ask(path)
        check(part.lower() in text.lower(), f"GET {path}", f"200{part and ' with ' + part}", text[:500])
    expect_size(compose, 0, "at first")
    first = compose("run", "--rm", "--no-deps", "-T", "push", seconds=300, show=True)
    report = push_report(compose)
    items = int(report["items_confirmed"])
    check(items > 0 and f"{items:,} new" in first, "items of a second push, all of them new in the first", items, first)
    expect_size(compose, items, "after the second push, which adds none")
    say(f"  {report['episodes_pushed']} episodes, {report['steps_pushed']} steps, {items} items")
    before = checkpoints(compose)
    answer = compose.ask("/checkpoint?anew=1", "--post", seconds=330)
    new = {folder for folder, at in checkpoints(compose).items() if at > before.get(folder, 0)}
    check(bool(new), "POST /checkpoint", "a new checkpoint on the volume", answer)

    # More, of which only the checkpoint at the stop can know.
    push_report(compose, "--again")
    expect_size(compose, 2 * items, "after a push of the same under new keys")
    stop(compose)
    start(compose, "replay")
    expect_size(compose, 2 * items, "after stop and start")
    push_report(compose)
    expect_size(compose, 2 * items, "after a push of the first ones, so they are the same items")

    compose("kill", "--signal", "SIGKILL", "replay")
    wait_for("the end of the killed server", 30, lambda: compose.state("replay")["Status"] == "exited")
    start(compose, "replay")
    expect_size(compose, 2 * items, "after SIGKILL and start")
    return items


def pusher(compose: Compose, items: int) -> None:
    """The same push out of the small image: the items that are there. A conversion and a ledger stay on its volume."""
    report = push_report(compose, "--ledger", "push.db", service="pusher")
    check(report["items_confirmed"] == items, "items of the pusher, by its report", items, report)
    report = push_report(compose, "--ledger", "push.db", service="pusher")
    check(report["items_confirmed"] == 0, "items of a push again, by its ledger in another container", 0, report)
    expect_size(compose, 2 * items, "after the pusher, which adds none")
    one_shot = ("run", "--rm", "--no-deps", "-T", "pusher")
    compose(*one_shot, "convert", "bundled:cartpole", "minari:made/test-v0", "--verify", seconds=300, show=True)
    compose(*one_shot, "inspect", "minari:made/test-v0", seconds=120, show=True)
    config = compose(*one_shot, "inspect", "minari:made/test-v0", "--server-config", seconds=120)
    check("\ntables:\n" in config, "config that the pusher writes", "tables", config)
    mounted = ("run", "--rm", "--no-deps", "-T", "-v", f"{PROJECT}/configs:/configs:ro", "pusher")
    found = compose(*mounted, "serve", "--config", "/configs/server.yaml", "--check", seconds=120)
    check("at_start: empty" in found, "a server's config, checked by the pusher", "at_start: empty", found)


def learner(compose: Compose) -> None:
    """The learner, and the push that it waits for, with one command; it learns, and says so."""
    output = compose("run", "--rm", "-T", "learner", seconds=400)
    say("\n".join(f"  | {line}" for line in output.splitlines()))
    found = re.search(r"^learned ([0-9.]+) +random policy ([0-9.]+)", output, re.MULTILINE)
    if found is None:
        raise Failed(f"learner: expected a report, got {output[-2000:]}")
    learned, chance = map(float, found.groups())
    check(learned > 4 * chance, "return that was learned", "over four times that of a random policy", (learned, chance))


def prometheus(compose: Compose, query: str) -> list[Any]:
    """The answer to one query."""
    answer = json.loads(compose.ask(f"/api/v1/query?query={quote(query)}", port=9090))
    result: list[Any] = answer["data"]["result"]
    return result


def queries() -> Iterator[tuple[str, str]]:
    """Title and query of each target of the dashboard, with Grafana's variables filled in."""
    dashboard = json.loads((PROJECT / "server/grafana/dashboards/replay.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$__rate_interval", "1m").replace("$__range", "1m").replace("$table", ".*")
            yield f"{panel['title']}: {target.get('legendFormat', '')}", query


def monitoring(compose: Compose) -> None:
    """Prometheus reads the server, knows the alerts, none fires; each panel of the dashboard has something to show."""
    compose("--profile", "monitoring", "up", "--detach", "--no-build", "--no-deps", "prometheus", seconds=120)

    def is_up() -> bool:
        try:
            return [sample["value"][1] for sample in prometheus(compose, 'up{job="replay"}')] == ["1"]
        except Failed:
            return False

    wait_for("Prometheus reads the server", 60, is_up)
    groups = json.loads(compose.ask("/api/v1/rules", port=9090))["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    rarely = {"replay_memory_limit_bytes", "replay_upload_behind_seconds"}  # with a limit; with checkpoints.upload
    known = set(METRIC.findall(compose.ask("/metrics"))) | rarely
    for rule in rules:
        check(rule["health"] != "err", f"rule {rule['name']}", "evaluated", rule)
        unknown = set(METRIC.findall(rule["query"])) - known
        check(not unknown, f"metrics of {rule['name']}", "all known to the server", unknown)
    firing = {rule["name"] for rule in rules if rule.get("state") == "firing"}
    check(firing == set(), "alerts that fire", "none", firing)
    time.sleep(20)  # two more readings, for rates
    empty = {title for title, query in queries() if not prometheus(compose, query)}
    check(empty == set(), "dashboard queries without an answer", "none", empty)
    compose("--profile", "monitoring", "rm", "--stop", "--force", "prometheus", seconds=60)


def scale(items: int) -> None:
    """Three servers: one push fills all, one page sums them up, Prometheus reads all; one is killed, and comes back with what it had."""
    compose = Compose(*SANDBOX)
    compose("--profile", "scale", "up", "--detach", "--no-build", "--wait", *OTHERS, seconds=300)
    report = push_report(compose, service="push-all")
    check(report["items_confirmed"] == items, "items of a push to three servers", items, report)
    counts = {name: server["items_confirmed"] for name, server in report["servers"].items()}
    check(all(counts.values()), "items on each server", "some", counts)

    def together() -> dict[str, Any]:
        document: dict[str, Any] = json.loads(compose.ask("/status.json", port=8081))["together"]
        return document

    def tables() -> dict[str, int]:
        return {table["name"]: table["size"] for table in together()["tables"]}

    expected = (
        2 * items + sum(counts.values()) - counts["replay:8000"]
    )  # the first server had all of it already, and more
    wait_for(f"{expected} items together on the page of replay-2", 20, lambda: tables()[TABLE] == expected)
    compose(
        "exec", "-T", "-e", "REPLAY__HTTP__PORT=8082", "replay", "container-probe", "--post", "/checkpoint", seconds=330
    )
    compose("kill", "--signal", "SIGKILL", "replay-3")
    wait_for(
        "one server is missing on the page",
        20,
        lambda: [server["state"] for server in together()["servers"]].count("ready") == 2,
    )
    compose("--profile", "scale", "up", "--detach", "--no-build", "--wait", *OTHERS, seconds=300)
    wait_for("it is back with its items", 20, lambda: tables()[TABLE] == expected)
    compose("--profile", "scale", "up", "--detach", "--no-build", "--no-deps", "prometheus-all", seconds=120)

    def up() -> list[str]:
        try:
            return sorted(sample["metric"]["instance"] for sample in prometheus(compose, 'up{job="replay"} == 1'))
        except Failed:
            return []

    wait_for("Prometheus reads all", 60, lambda: up() == ["replay-2:8081", "replay-3:8082", "replay:8080"])
    compose("--profile", "scale", "rm", "--stop", "--force", "prometheus-all", *OTHERS, seconds=360)


def secure(items: int) -> None:
    """Through nginx with TLS: with a client certificate the push passes, without one it does not."""
    run("server/nginx/make-test-certificates", str(CERTIFICATES), seconds=30)
    compose = Compose(*SECURE_SANDBOX)
    start(compose, "gateway")
    expect_size(compose, 2 * items, "before the push with TLS")
    compose("run", "--rm", "--no-deps", "-T", "push", seconds=300, show=True)
    report = push_report(compose)
    check(report["items_confirmed"] == items, "items confirmed through nginx", items, report)
    expect_size(compose, 2 * items, "after the push with TLS, which adds none")
    anonymous = ("rlds2reverb", "status", "--server", "gateway:8443", "--tls-ca", "/certificates/ca.crt")
    script = 'out=$("$@" 2>&1) && code=0 || code=$?; echo "exit $code: $out"'
    answer = compose("run", "--rm", "--no-deps", "-T", "push", "sh", "-c", script, "-", *anonymous, seconds=120)
    refused = "exit 0" not in answer and "UNAUTHENTICATED" in answer
    check(refused, "without a client certificate", "refused as UNAUTHENTICATED", answer)
    compose("down", "--volumes", "--timeout", "30", seconds=120)


def run_services() -> None:
    """All of it, on one volume; the logs of what failed."""
    compose = Compose(*SANDBOX)
    try:
        say("== the server")
        items = replay(compose)
        say("== the pusher")
        pusher(compose, items)
        say("== a learner")
        learner(compose)
        say("== monitoring")
        monitoring(compose)
        say("== three servers")
        scale(items)
        say("== TLS")
        secure(items)
    except Failed:
        for container in run("docker", "ps", "--all", "--quiet", seconds=20).split():
            name = run("docker", "inspect", "--format", "{{.Name}}", container, seconds=20).strip()
            say(f"== log of {name}")
            run("docker", "logs", "--tail", "40", container, seconds=20, may_fail=True, show=True)
        raise


STEPS = {"check-configuration": check_configuration, "build": build, "run": run_services}


def main(arguments: list[str]) -> int:
    """Runs one step."""
    if len(arguments) != 1 or arguments[0] not in STEPS:
        sys.stderr.write(str(__doc__))
        return 2
    try:
        STEPS[arguments[0]]()
    except Failed as error:
        sys.stderr.write(f"FAILED: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
