"""The manifests of deploy/kubernetes are at one with each other, with the image and with what was measured. Schemas: tests/systems."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rlds2reverb.strict_yaml import parse
from tests.packaging.deploy.manifests import FOLDER, NAMES, manifest

CHECKOUT = Path(__file__).parents[3]


def pod(name: str) -> dict[str, Any]:
    return dict(manifest(name)["spec"]["template"])


def container(name: str) -> dict[str, Any]:
    (only,) = pod(name)["spec"]["containers"]
    return dict(only)


def environment() -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in container("statefulset")["env"] if "value" in variable}


def test_every_manifest_is_applied_but_the_push() -> None:
    kustomization = manifest("kustomization")
    assert sorted(kustomization["resources"]) == sorted(f"{name}.yaml" for name in NAMES if name != "push")
    (config,) = kustomization["configMapGenerator"]
    volumes = pod("statefulset")["spec"]["volumes"]
    assert {"name": "config", "configMap": {"name": config["name"]}} in volumes
    assert all((FOLDER / file).is_file() for file in config["files"])
    (image,) = kustomization["images"]
    assert {container("statefulset")["image"], container("push")["image"]} == {image["name"]}


def test_they_select_the_same_pods() -> None:
    statefulset, labels = manifest("statefulset"), pod("statefulset")["metadata"]["labels"]
    assert statefulset["spec"]["serviceName"] == manifest("service")["metadata"]["name"]
    assert manifest("service")["spec"]["clusterIP"] == "None"
    for selector in (
        statefulset["spec"]["selector"]["matchLabels"],
        manifest("service")["spec"]["selector"],
        manifest("disruption")["spec"]["selector"]["matchLabels"],
        manifest("network")["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector == labels
    client = manifest("network")["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    assert client.items() <= pod("push")["metadata"]["labels"].items()


def test_every_server_is_named_wherever_all_are() -> None:
    spec = manifest("statefulset")["spec"]
    names = [f"replay-{number}.{spec['serviceName']}" for number in range(spec["replicas"])]
    ports = {port["name"]: port["containerPort"] for port in container("statefulset")["ports"]}
    (servers,) = [
        argument.removeprefix("--server=") for argument in container("push")["args"] if argument.startswith("--server=")
    ]
    assert servers.split(",") == [f"{name.split('.')[0]}={name}:{ports['grpc']}" for name in names]
    assert parse(environment()["REPLAY__HTTP__PEERS"]) == [f"{name}:{ports['http']}" for name in names]
    assert environment()["REPLAY__HTTP__ALLOWED_HOSTS"] == f"[$(POD).{spec['serviceName']}]"


def test_ports_and_users_are_those_of_the_image() -> None:
    image = (CHECKOUT / "Dockerfile").read_text()
    ports = {port["containerPort"] for port in container("statefulset")["ports"]}
    assert ports == set(map(int, re.search(r"^EXPOSE (.*)$", image, re.MULTILINE)[1].split()))  # type: ignore[index]
    assert {port["port"] for port in manifest("service")["spec"]["ports"]} == ports
    user = int(re.search(r"^USER (\d+):", image, re.MULTILINE)[1])  # type: ignore[index]
    for name in ("statefulset", "push"):
        assert pod(name)["spec"]["securityContext"]["runAsUser"] == user
        assert container(name)["securityContext"]["readOnlyRootFilesystem"] is True
        mounted = {mount["name"] for mount in container(name)["volumeMounts"]}
        claims = {claim["metadata"]["name"] for claim in manifest(name)["spec"].get("volumeClaimTemplates", ())}
        assert mounted == claims | {volume["name"] for volume in pod(name)["spec"]["volumes"]}
    folder = re.search(r"REPLAY__CHECKPOINTS__FOLDER=(\S+)", image)[1]  # type: ignore[index]
    (data,) = [mount["mountPath"] for mount in container("statefulset")["volumeMounts"] if mount["name"] == "data"]
    assert Path(folder).parent == Path(data)


def test_probes_ask_what_they_should() -> None:
    probes = {kind: container("statefulset")[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")}
    paths = {kind: probe["httpGet"]["path"] for kind, probe in probes.items()}
    assert paths == {"startup": "/readyz", "liveness": "/healthz", "readiness": "/readyz"}
    assert probes["startup"]["periodSeconds"] * probes["startup"]["failureThreshold"] >= 600


def test_the_grace_period_is_three_times_what_was_measured() -> None:
    """docs/runbook.md: SIGTERM to exit for a million items, and their memory."""
    sizing = (CHECKOUT / "docs" / "runbook.md").read_text()
    seconds = float(re.search(r"\| SIGTERM to exit, with a checkpoint \| ([\d.]+) s", sizing)[1])  # type: ignore[index]
    gigabytes = float(re.search(r"\| memory of the server \|.*: ([\d.]+) GB", sizing)[1])  # type: ignore[index]
    limit = container("statefulset")["resources"]["limits"]["memory"]
    assert limit == container("statefulset")["resources"]["requests"]["memory"]
    needed = 3 * seconds / gigabytes * int(limit.removesuffix("Gi")) * 2**30 / 1e9
    assert needed <= pod("statefulset")["spec"]["terminationGracePeriodSeconds"]


def test_the_job_gives_up_on_what_trying_again_does_not_mend() -> None:
    from rlds2reverb.cli import EXIT_CODES
    from rlds2reverb.errors import TransportError

    (retried,) = {code for kind, code in EXIT_CODES if kind is TransportError}
    rule = manifest("push")["spec"]["podFailurePolicy"]["rules"][1]
    assert rule["action"] == "FailJob"
    assert set(rule["onExitCodes"]["values"]) == {code for _, code in EXIT_CODES} - {retried}
    assert rule["onExitCodes"]["containerName"] == container("push")["name"]
    assert pod("push")["spec"]["restartPolicy"] == "Never"


@pytest.mark.full
def test_the_server_takes_its_config(monkeypatch: pytest.MonkeyPatch) -> None:
    from replay_server.config import load, table_configs
    from replay_server.http import peers_of

    told = {name: value.replace("$(POD)", "replay-1") for name, value in environment().items()}
    config = load(FOLDER / "server.yaml", (), told)
    assert [table.name for table in table_configs(config)] == ["replay"]
    assert peers_of(config.http) == ["replay-0.replay:8080", "replay-2.replay:8080"]
