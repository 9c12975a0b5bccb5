"""The manifests of deploy/kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlds2reverb.strict_yaml import parse

FOLDER = Path(__file__).parents[3] / "deploy" / "kubernetes"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem not in ("kustomization", "server"))


def manifest(name: str) -> dict[str, Any]:
    return dict(parse((FOLDER / f"{name}.yaml").read_text()))
