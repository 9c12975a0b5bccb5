"""The manifests of deploy/kubernetes are right by Kubernetes' own schemas, and a mistake in one is found."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from tests.packaging.deploy.manifests import NAMES, manifest

kubernetes_validate = pytest.importorskip("kubernetes_validate")

VERSIONS = ("1.29", "1.33")
"""The oldest whose schema has every field that is used, and a later one."""


def validated(document: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NAMES)
def test_kubernetes_takes_it(name: str, version: str) -> None:
    validated(manifest(name), version)


def broken() -> Iterator[tuple[str, dict[str, Any]]]:
    """Manifests with one mistake each."""
    for name, path, value in (
        ("statefulset", ("spec", "replicas"), "three"),
        ("statefulset", ("spec", "template", "spec", "terminationGracePeriodSecs"), 300),
        ("statefulset", ("spec", "template", "spec", "containers", 0, "livenessProbe", "httpGet", "port"), None),
        ("disruption", ("spec", "maxUnavailble"), 1),
        ("push", ("spec", "podFailurePolicy", "rules", 1, "action"), None),
    ):
        document = node = copy.deepcopy(manifest(name))
        for key in path[:-1]:
            node = node[key]  # type: ignore[index]
        node[path[-1]] = value  # type: ignore[index]
        yield f"{name}.{path[-1]}", document


@pytest.mark.parametrize("document", [pytest.param(broken_document, id=name) for name, broken_document in broken()])
def test_a_mistake_is_found(document: dict[str, Any]) -> None:
    with pytest.raises(kubernetes_validate.ValidationError):
        validated(document, VERSIONS[0])
