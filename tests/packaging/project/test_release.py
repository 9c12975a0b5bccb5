"""What a release needs, on a small project of its own; and that this one's version is the same everywhere."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

import rlds2reverb
from rlds2reverb.cli import cli
from tests.support.project import ROOT


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "scripts" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["release"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


release = _load()


def git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True, timeout=60)


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--message", "all")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A project that was released once, as 0.1.0, and has a fragment since."""
    files = {
        "rlds2reverb/__init__.py": '"""Words."""\n\n__version__ = "0.1.0"\n',
        "CITATION.cff": "title: x\nversion: 0.1.0\ndate-released: 2020-01-02\nlicense: y\n",
        "Dockerfile": "ARG BASE=x\nARG VERSION=0.1.0\nFROM ${BASE}\nARG VERSION\n",
        "server/nginx/Dockerfile": "ARG VERSION=0.1.0\n",
        "CHANGELOG.md": "# Changelog\n\n## 0.1.0 (2020-01-02)\n\n- first\n",
        "changelog.d/template.jinja": "t",
        "changelog.d/new.added.md": "- new",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def moved(root: Path, date: str = "2021-03-04", fragment: str = "new.added.md") -> object:
    """Does what `scripts/changelog VERSION` does."""

    def move(version: str) -> None:
        file = root / "CHANGELOG.md"
        file.write_text(file.read_text().replace("# Changelog\n", f"# Changelog\n\n## {version} ({date})\n\n- new\n"))
        (root / "changelog.d" / fragment).unlink()
        (root / release.KEPT / version).mkdir(parents=True)
        (root / release.KEPT / version / "ledger.db").touch()

    return move


def test_a_release_that_was_prepared_and_committed_has_nothing_against_it(small: Path) -> None:
    release.prepare("0.2.0", small, moved(small))
    commit(small)
    assert list(release.problems(small)) == []
    assert (small / "CITATION.cff").read_text() == "title: x\nversion: 0.2.0\ndate-released: 2021-03-04\nlicense: y\n"
    assert (small / "Dockerfile").read_text() == "ARG BASE=x\nARG VERSION=0.2.0\nFROM ${BASE}\nARG VERSION\n"
    git(small, "tag", "v0.2.0")
    assert list(release.problems(small)) == []


def test_the_first_release_has_a_date_too(small: Path) -> None:
    (small / "CHANGELOG.md").write_text("# Changelog\n")
    (small / "CITATION.cff").write_text("version: 0.1.0\nlicense: y\n")
    (small / "changelog.d" / "new.added.md").rename(small / "changelog.d" / "all.overview.md")
    commit(small)
    release.prepare("0.1.0", small, moved(small, fragment="all.overview.md"))
    commit(small)
    assert (small / "CITATION.cff").read_text() == "version: 0.1.0\ndate-released: 2021-03-04\nlicense: y\n"
    assert list(release.problems(small)) == []


def test_the_first_release_tells_of_no_change(small: Path) -> None:
    (small / "CHANGELOG.md").write_text("# Changelog\n")
    (small / "changelog.d" / "all.overview.md").write_text("It reads.\n")
    commit(small)
    with pytest.raises(release.Refused, match=r"what a user needs of new\.added\.md, and delete it"):
        release.prepare("0.1.0", small, moved(small))
    assert (small / "changelog.d" / "new.added.md").exists()


def test_everything_that_stands_against_it_is_told_at_once(small: Path) -> None:
    release.prepare("0.2.0", small, moved(small))
    commit(small)
    git(small, "tag", "v0.2.0")
    release.SOURCE.write(small, "0.2.1")
    (small / "changelog.d" / "more.fixed.md").write_text("- more")
    found = "\n".join(release.problems(small))
    assert [line.partition(":")[0] for line in found.splitlines()] == [
        *("CITATION.cff", "Dockerfile", "server/nginx/Dockerfile"),
        *("CHANGELOG.md", "changelog.d", release.KEPT, "not committed"),
    ]
    assert 'Dockerfile: expected version 0.2.1 of rlds2reverb/__init__.py, got "0.2.0"' in found
    assert "rlds2reverb/__init__.py, changelog.d/more.fixed.md" in found


def test_a_tag_of_another_commit_is_a_release_already(small: Path) -> None:
    release.prepare("0.2.0", small, moved(small))
    commit(small)
    git(small, "tag", "v0.2.0")
    (small / "README.md").write_text("changed")
    commit(small)
    (problem,) = release.problems(small)
    assert problem.startswith("the tag v0.2.0 is of another commit")


def test_a_date_that_is_not_the_changelogs_is_told(small: Path) -> None:
    release.prepare("0.2.0", small, moved(small))
    (small / "CITATION.cff").write_text("version: 0.2.0\ndate-released: 2021-03-05\n")
    commit(small)
    assert list(release.problems(small)) == [
        "CITATION.cff: expected date-released: 2021-03-04, as in CHANGELOG.md, got 2021-03-05"
    ]


@pytest.mark.parametrize("version", ["", "0.2", "v0.2.0", "0.2.0.dev1", "0.2.0\n", "latest", "0.2.0rc", "０.2.0"])
def test_what_is_no_version_is_refused(small: Path, version: str) -> None:
    with pytest.raises(release.Refused, match=re.compile("expected a version such as", re.DOTALL)):
        release.prepare(version, small, moved(small))


@pytest.mark.parametrize("version", ["0.1.0", "0.1.0rc1", "0.0.9"])
def test_versions_only_grow(small: Path, version: str) -> None:
    with pytest.raises(release.Refused, match=r"expected a version above 0\.1\.0"):
        release.prepare(version, small, moved(small))
    assert release.SOURCE.read(small) == "0.1.0"


def test_a_release_comes_after_its_candidates(small: Path) -> None:
    for version in ("0.2.0rc2", "0.2.0rc10", "0.2.0", "0.10.0"):
        (small / "changelog.d" / "new.added.md").write_text("- new")
        git(small, "add", "--all")
        git(small, "commit", "--message", "x", "--allow-empty")
        release.prepare(version, small, moved(small))
        commit(small)
        assert list(release.problems(small)) == []


def test_changes_that_are_not_committed_are_not_released(small: Path) -> None:
    (small / "new.txt").write_text("new")
    with pytest.raises(release.Refused, match="not committed"):
        release.prepare("0.2.0", small, moved(small))
    assert (small / "changelog.d" / "new.added.md").exists()


def test_without_a_checkout_there_is_no_release(small: Path) -> None:
    (small / ".git").rename(small / "git")
    (small / ".git").write_text("gitdir: nowhere\n")  # not that of a folder above
    with pytest.raises(release.Refused, match="made from a checkout"):
        release.prepare("0.2.0", small, moved(small))


def test_environments_are_made_anew_for_a_new_version(small: Path) -> None:
    (small / ".venv-core").mkdir()
    (small / ".venv-core" / ".ready").touch()
    (small / ".gitignore").write_text(".venv*/\n")
    commit(small)
    release.prepare("0.2.0", small, moved(small))
    assert not (small / ".venv-core" / ".ready").exists()


# The page of an index


def page(readme: str, **metadata: object) -> str:
    text: str = pytest.importorskip("hatch_build", reason="needs hatchling").page_for_index(readme, metadata)
    return text


README = """# A

![A picture](docs/a.svg)

`pip install "./rlds2reverb[server]"    # a clone; Linux`. See [all](docs/all.md#top), [Reverb](https://reverb/) and [below](#below).
"""


def test_an_index_shows_the_readme_without_files_that_it_does_not_have() -> None:
    assert page(README) == (
        '# A\n\n`pip install "rlds2reverb[server]"    # Linux`. See all, [Reverb](https://reverb/) and [below](#below).\n'
    )


def test_where_the_repository_is_known_links_lead_there() -> None:
    shown = page(README, urls={"Source": "https://host/a"}, version="1.2.3")
    assert "![A picture](https://host/a/raw/v1.2.3/docs/a.svg)" in shown
    assert "[all](https://host/a/blob/v1.2.3/docs/all.md#top), [Reverb](https://reverb/)" in shown


# This project


def changelog(root: Path, *arguments: str) -> str:
    command: list[str | Path] = [root / "scripts" / "changelog", *arguments]
    done = subprocess.run(
        command,
        env={**os.environ, "RUN": f"{Path(sys.executable).parent}/"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


@pytest.mark.skipif(not Path(sys.executable).with_name("towncrier").exists(), reason="needs towncrier")
def test_fragments_become_a_release_with_its_overview_on_top(small: Path) -> None:
    for name in ("pyproject.toml", "scripts/changelog", "changelog.d/template.jinja"):
        (small / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, small / name)
    (small / "CHANGELOG.md").write_text("# Changelog\n\n<!-- releases -->\n")
    (small / "changelog.d" / "more.fixed.md").write_text("A line without a dash.\n")
    (small / "changelog.d" / "all.overview.md").write_text("It reads.\n\n### Reads\n\n- all\n\n### Views\n\n- two\n")
    commit(small)
    changelog(small, "check")
    body = "It reads.\n\n### Reads\n\n- all\n\n### Views\n\n- two\n\n### Added\n\n- new\n\n### Fixed\n\n- A line without a dash.\n"
    assert changelog(small).split("\n\n", 1)[1].strip() == body.strip()
    changelog(small, "0.2.0")
    begin, _, told = (small / "CHANGELOG.md").read_text().partition("<!-- releases -->\n")
    assert begin == "# Changelog\n\n"
    assert re.fullmatch(r"\n## 0\.2\.0 \(\d{4}-\d\d-\d\d\)\n\n" + re.escape(body) + r"\n*", told)
    assert release._fragments(small) == []


@pytest.mark.parametrize("place", release.COPIES, ids=lambda place: place.file)
def test_the_version_is_the_same_everywhere(place: object) -> None:
    assert place.read(ROOT) == release.SOURCE.read(ROOT) == rlds2reverb.__version__  # type: ignore[attr-defined]


def test_the_command_line_tells_it() -> None:
    told = CliRunner().invoke(cli, ["--version"])
    assert told.output.split()[-1] == rlds2reverb.__version__


@pytest.mark.parametrize("file", ["Dockerfile", "server/nginx/Dockerfile"])
def test_every_image_is_labelled_with_it(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    stages = [stage for stage in re.split(r"^FROM ", text, flags=re.MULTILINE)[1:] if "image.title" in stage]
    assert stages
    for stage in stages:
        inherits = stage.startswith("replay AS")
        assert inherits or 'org.opencontainers.image.version="${VERSION}"' in stage
        assert inherits or re.search(r"^ARG VERSION", stage, re.MULTILINE)


def test_the_checklist_names_each_step_that_a_machine_can_do() -> None:
    told = (ROOT / "docs" / "releasing.md").read_text(encoding="utf-8")
    for target in (
        "make release VERSION=",
        "make release-check",
        "make test-packages",
        "make test-deep",
        "make test-containers",
    ):
        assert target in told, target


def test_no_other_file_has_a_version_of_ours() -> None:
    """Beside the known places: no page says `rlds2reverb 0.1.0` and grows old."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")]
    told = re.compile(rf"rlds2reverb[ =-]+v?{re.escape(rlds2reverb.__version__)}\b")
    assert [page.name for page in pages if told.search(page.read_text(encoding="utf-8"))] == []
