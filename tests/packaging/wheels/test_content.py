"""What is in the wheel and in the sdist: all of the packages, nothing of the machine, and the same bytes for the same source."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import rlds2reverb
from tests.packaging.wheels.conftest import build
from tests.packaging.wheels.installing import made, run_uv
from tests.support.project import ROOT, plain, project

PACKAGES = {"rlds2reverb": ROOT / "rlds2reverb", "replay_server": ROOT / "server" / "replay_server"}
LEFT_OUT = {".ci/run"}
"""Of what is under version control, in no sdist."""


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def source(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as the sdist has it."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (only,) = folder.iterdir()
    return only


def below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def of_the_checkout() -> set[str]:
    """Files under version control, and those that would be with `git add --all`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    return {name for name in listed.split("\0") if name and (ROOT / name).is_file()}


CONFIGS = "rlds2reverb/configs/open_x"
"""Where the wheel has the transforms of configs/open_x."""

SERVER_LOCK = "replay_server/requirements.txt"
"""Where the wheel has requirements/server.txt."""


def dist_info(unpacked: Path) -> Path:
    (found,) = unpacked.glob("*.dist-info")
    return found


def test_the_wheel_has_every_file_of_both_packages_and_no_other(unpacked: Path) -> None:
    wanted = {
        f"{name}/{path}"
        for name, folder in PACKAGES.items()
        for path in below(folder)
        if "__pycache__" not in path and not path.endswith(".pyc")
    }
    wanted |= {f"{CONFIGS}/{path}" for path in below(ROOT / "configs/open_x")} | {SERVER_LOCK}
    info = dist_info(unpacked).name
    licenses = [f"licenses/{name}" for name in project()["license-files"]]
    metadata = {f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", *licenses)}
    assert below(unpacked) == wanted | metadata
    for kind in (
        "py.typed",
        "page/index.html",
        "formats/datasets/cartpole/1.0.0/features.json",
        "cli/push.py",
        "open_x/droid.yaml",
    ):
        assert any(name.endswith(kind) for name in wanted), kind


def test_its_files_are_those_of_the_checkout(unpacked: Path) -> None:
    for name, folder in PACKAGES.items():
        for path in below(unpacked / name):
            checkout = ROOT / path if f"{name}/{path}".startswith(CONFIGS) else folder / path
            if f"{name}/{path}" == SERVER_LOCK:
                checkout = ROOT / "requirements/server.txt"
            assert (unpacked / name / path).read_bytes() == checkout.read_bytes(), path


def test_its_record_has_the_sum_of_every_file(unpacked: Path) -> None:
    info = dist_info(unpacked)
    with (info / "RECORD").open(newline="") as opened:
        rows = {name: digest for name, digest, _ in csv.reader(opened)}
    assert rows.keys() == below(unpacked)
    assert rows.pop(f"{info.name}/RECORD") == ""
    for name, digest in rows.items():
        own = hashlib.sha256((unpacked / name).read_bytes()).digest()
        assert digest == f"sha256={base64.urlsafe_b64encode(own).decode().rstrip('=')}"


def test_no_file_tells_of_the_machine(unpacked: Path, source: Path) -> None:
    """Neither the folder of the checkout, nor the home, nor the name of who built it."""
    names = {f"{ROOT}/", f"{Path.home()}/", os.uname().nodename} - {"//", "localhost"}
    words = {name.encode() for name in names if len(name) > 4}  # a short one would be in every text
    assert words
    files = [path for folder in (unpacked, source) for path in folder.rglob("*") if path.is_file()]
    assert [(path.name, word) for path in files for word in words if word in path.read_bytes()] == []


def test_times_and_rights_are_nobodys(wheel: Path, sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    assert {(member.uid, member.gid, member.uname, member.gname) for member in members} == {(0, 0, "", "")}
    assert len({member.mtime for member in members}) == 1
    assert {member.mode for member in members} <= {0o644, 0o755}
    with zipfile.ZipFile(wheel) as zipped:
        assert len({member.date_time for member in zipped.infolist()}) == 1
        assert {member.external_attr >> 16 & 0o777 for member in zipped.infolist()} <= {0o644, 0o755, 0o664}


def test_the_metadata_says_what_pyproject_does(unpacked: Path) -> None:
    told = Parser().parsestr((dist_info(unpacked) / "METADATA").read_text(encoding="utf-8"))
    known = project()
    assert (told["Name"], told["Version"]) == ("rlds2reverb", rlds2reverb.__version__)
    assert told["Summary"] == known["description"]
    assert SpecifierSet(told["Requires-Python"]) == SpecifierSet(known["requires-python"])
    assert told["License-Expression"] == known["license"]
    assert told.get_all("Classifier") == known["classifiers"]
    assert set(told.get_all("Provides-Extra") or ()) == known["optional-dependencies"].keys()
    assert told["Description-Content-Type"] == "text/markdown"
    assert told["Metadata-Version"] == "2.4"
    assert told.get_all("License-File") == known["license-files"]
    required = [Requirement(text) for text in told.get_all("Requires-Dist") or ()]
    core = {
        plain(requirement.name)
        for requirement in required
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    }
    assert core == {plain(requirement) for requirement in known["dependencies"]}
    assert not [requirement for requirement in required if requirement.url]


def test_the_long_description_is_the_readme_without_the_repository_beside_it(unpacked: Path) -> None:
    told = Parser().parsestr((dist_info(unpacked) / "METADATA").read_text(encoding="utf-8"))
    shown, readme = str(told.get_payload()), (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)]*)\)", shown)
    assert targets
    assert [target for target in targets if not target.startswith("https://")] == []
    assert 'pip install "rlds2reverb[server]"' in shown
    assert "./rlds2reverb" not in shown
    words = re.compile(r"!?\[[^]]*\]\([^)]*\)|\[|\]|[^\w\s]")
    lost = set(words.sub(" ", readme).split()) - set(words.sub(" ", shown).split())
    assert lost <= {"clone"}


def test_the_wheel_is_for_every_python_on_machines_like_this(wheel: Path, unpacked: Path) -> None:
    tag = f"py3-none-manylinux_2_17_{platform.machine()}"
    assert wheel.name == f"rlds2reverb-{rlds2reverb.__version__}-{tag}.whl"
    written = (dist_info(unpacked) / "WHEEL").read_text()
    assert "Root-Is-Purelib: false" in written
    assert f"Tag: {tag}" in written
    assert (dist_info(unpacked) / "entry_points.txt").read_text().split() == [
        *("[console_scripts]", "rlds2reverb", "=", "rlds2reverb.cli:main")
    ]


@pytest.mark.parametrize("name", ["native", "images"])
def test_the_compiled_libraries_run_with_the_glibc_of_the_tag(unpacked: Path, name: str) -> None:
    (library,) = unpacked.rglob(f"{name}.compiled")
    needed = {(int(major), int(minor)) for major, minor in re.findall(rb"GLIBC_(\d+)\.(\d+)", library.read_bytes())}
    assert needed or name == "images"  # it calls nothing of glibc where the compiler copies memory by itself
    assert max(needed, default=(2, 17)) <= (2, 17)


def test_without_a_compiler_the_wheel_is_for_any_machine(tmp_path: Path) -> None:
    (wheel,) = build(tmp_path / "dist", CC="/no/compiler").glob("*.whl")
    assert wheel.name == f"rlds2reverb-{rlds2reverb.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as zipped:
        assert not [name for name in zipped.namelist() if name.endswith(".compiled")]


def test_the_sdist_is_the_checkout(source: Path) -> None:
    assert below(source) - {"PKG-INFO"} == of_the_checkout() - LEFT_OUT
    for name in below(source) - {"PKG-INFO"}:
        assert (source / name).read_bytes() == (ROOT / name).read_bytes(), name


def test_the_checkout_gives_the_wheel_that_the_sdist_gives(
    wheel: Path, sdist: Path, source: Path, tmp_path: Path
) -> None:
    """And another folder, another time of its files and other rights change no byte of either."""
    other = tmp_path / "somewhere else"
    shutil.copytree(source, other)
    (other / "PKG-INFO").unlink()
    for path in other.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
        if path.is_file():
            path.chmod(path.stat().st_mode & 0o700)
    with tarfile.open(sdist) as archive:
        epoch = str(int(archive.getmembers()[0].mtime))
    again = build(tmp_path / "again", other, SOURCE_DATE_EPOCH=epoch)
    assert (again / sdist.name).read_bytes() == sdist.read_bytes()
    assert (again / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_page_of_the_project_can_be_shown(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    """The README as an index shows it, and metadata that it takes."""
    tools = made(tmp_path / "tools", "3.11")
    lock = ROOT / "requirements" / "packages.txt"
    run_uv("pip", "install", "--quiet", "--python", str(tools.python), "--require-hashes", "--requirement", str(lock))
    told = tools("twine", "check", "--strict", str(wheel), str(sdist))
    assert len(re.findall("PASSED", told)) == 2, told
