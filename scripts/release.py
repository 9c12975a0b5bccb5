"""What of a release a machine can do; docs/releasing.md has the rest.

`python scripts/release.py prepare VERSION` writes the version wherever it stands, and moves the fragments of changelog.d into CHANGELOG.md.
`python scripts/release.py check` tells everything that stands against a release of what is committed, and exits 1 if there is anything.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
RELEASE = re.compile(r"([0-9]+)\.([0-9]+)\.([0-9]+)(?:rc([0-9]+))?")
"""How a release is called: "0.2.0", and "0.2.0rc1" before it."""
HEADING = re.compile(r"^## (\S+) \((\d{4}-\d{2}-\d{2})\)$", re.MULTILINE)
"""Of a release in CHANGELOG.md: version and date."""
KEPT = "tests/data/versions"
"""What each release wrote, which all later ones read."""
RELEASED = re.compile(r"^date-released: (.*)$", re.MULTILINE)
OVERVIEW = ".overview.md"
"""How fragments end whose text stands at the top of a release, without a heading of the changelog's own."""


class Refused(Exception):
    """Why a release cannot be prepared, as a sentence."""


@dataclass(frozen=True)
class Place:
    """Where the version stands.

    Attributes:
      file: path in the project.
      pattern: of the line; its one group is the version.
    """

    file: str
    pattern: str

    def read(self, root: Path) -> str:
        """The version that stands there, "" for none."""
        found = re.search(self.pattern, self._text(root), re.MULTILINE)
        return found[1] if found else ""

    def write(self, root: Path, version: str) -> None:
        """Puts another one there."""

        def changed(line: re.Match[str]) -> str:
            return line[0].replace(line[1], version)

        (root / self.file).write_text(re.sub(self.pattern, changed, self._text(root), count=1, flags=re.MULTILINE))

    def _text(self, root: Path) -> str:
        return (root / self.file).read_text(encoding="utf-8")


SOURCE = Place("rlds2reverb/__init__.py", r'^__version__ = "(.*)"$')
"""The one that counts: the wheel's, `rlds2reverb --version` and the server's come from it."""
COPIES = (
    Place("CITATION.cff", r"^version: (.*)$"),
    Place("Dockerfile", r"^ARG VERSION=(.*)$"),
    Place("server/nginx/Dockerfile", r"^ARG VERSION=(.*)$"),
)
"""Files that no program of ours makes."""


def prepare(version: str, root: Path = ROOT, changelog: Callable[[str], None] | None = None) -> None:
    """Makes the working tree that of a release; committing it is left to people.

    Args:
      version: of the release.
      root: of the project.
      changelog: moves the fragments into CHANGELOG.md; `scripts/changelog` by default.

    Raises:
      Refused: no version of a release, one that is not above the last, or changes that are not committed; or the first
        release would tell of changes, which nobody can have noticed.
    """
    _check_new(version, root)
    if _git(root, "status", "--porcelain"):
        raise Refused("there are changes that are not committed: commit them, or take them away")
    if not _newest(root)[0]:
        _check_first(root)
    (changelog or _move_fragments)(version)
    for place in (SOURCE, *COPIES):
        place.write(root, version)
    _write_date(root, _newest(root)[1])
    for ready in root.glob(".venv*/.ready"):  # an environment knows the version that it was made with
        ready.unlink()


def problems(root: Path = ROOT) -> Iterator[str]:
    """Everything that stands against a release of what is committed, each as a sentence that says how to go on."""
    version = SOURCE.read(root)
    if not RELEASE.fullmatch(version):
        yield f'{SOURCE.file}: expected a version such as 0.2.0, got "{version}"; run `make release VERSION=...`'
    for place in COPIES:
        if place.read(root) != version:
            yield f'{place.file}: expected version {version} of {SOURCE.file}, got "{place.read(root)}"'
    yield from _problems_of_texts(root, version)
    if not (root / KEPT / version).is_dir():
        yield f"{KEPT}: expected the files that {version} writes, for later releases to read; make_versions.py beside it says how"
    if changed := _git(root, "status", "--porcelain"):
        yield f"not committed: {', '.join(line[3:] for line in changed.splitlines()[:5])}; commit it, or take it away"
    tagged = _git(root, "tag", "--list", f"v{version}")
    if tagged and f"v{version}" not in _git(root, "tag", "--points-at", "HEAD").split():
        yield f"the tag v{version} is of another commit: a release is not changed, take the next version"


def _problems_of_texts(root: Path, version: str) -> Iterator[str]:
    """Of the changelog, and of the date that others cite."""
    newest, date = _newest(root)
    if newest != version:
        yield f'CHANGELOG.md: expected {version} as its newest release, got "{newest}"; run `make release VERSION={version}`'
    if left := _fragments(root):
        yield f"changelog.d: {len(left)} fragments are in no release, {left[0]} first; run `make release VERSION=...`"
    cited = RELEASED.search((root / "CITATION.cff").read_text(encoding="utf-8"))
    if newest == version and (cited is None or cited[1] != date):
        yield f"CITATION.cff: expected date-released: {date}, as in CHANGELOG.md, got {cited[1] if cited else 'none'}"


def _check_new(version: str, root: Path) -> None:
    wanted = _numbers(version)
    if wanted is None:
        raise Refused(f'expected a version such as 0.2.0 or 0.2.0rc1, got "{version}"')
    newest = _newest(root)[0]
    last = _numbers(newest)
    if last is not None and wanted <= last:
        raise Refused(f"expected a version above {newest}, the last release, got {version}")


def _check_first(root: Path) -> None:
    """The first release is an account of what there is: no user has seen a state before it that was changed."""
    changes = [name for name in _fragments(root) if not name.endswith(OVERVIEW)]
    if changes:
        raise Refused(
            f"this is the first release, so it is told as a whole, in changelog.d/*{OVERVIEW}: "
            f"say there what a user needs of {', '.join(changes)}, and delete {'it' if len(changes) == 1 else 'them'}"
        )


def _fragments(root: Path) -> list[str]:
    """Names of the files in changelog.d that are in no release."""
    return sorted(path.name for path in (root / "changelog.d").glob("*.md"))


def _numbers(version: str) -> tuple[float, ...] | None:
    """What orders versions: a candidate comes before what it is a candidate for. None for what is no version."""
    found = RELEASE.fullmatch(version)
    if found is None:
        return None
    major, minor, patch, candidate = found.groups()
    return int(major), int(minor), int(patch), float("inf") if candidate is None else int(candidate)


def _newest(root: Path) -> tuple[str, str]:
    """Version and date of the newest release in CHANGELOG.md, "" each for none."""
    found = HEADING.search((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    return (found[1], found[2]) if found else ("", "")


def _write_date(root: Path, date: str) -> None:
    """Says in CITATION.cff when the version came out: on the line below it."""
    file = root / "CITATION.cff"
    rest = RELEASED.sub("", file.read_text(encoding="utf-8")).replace("\n\n", "\n")
    file.write_text(re.sub(r"^(version: .*)$", rf"\1\ndate-released: {date}", rest, count=1, flags=re.MULTILINE))


def _move_fragments(version: str) -> None:
    subprocess.run([str(ROOT / "scripts" / "changelog"), version], cwd=ROOT, check=True)


def _git(root: Path, *arguments: str) -> str:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise Refused(f"git {arguments[0]}: {done.stderr.strip()}; releases are made from a checkout")
    return done.stdout.rstrip("\n")


def _told(check: Callable[[], Iterator[str]]) -> int:
    """Tells every problem; the exit code."""
    found = list(check())
    for problem in found:
        sys.stderr.write(f"release: {problem}\n")
    if not found:
        sys.stdout.write(f"release: nothing stands against {SOURCE.read(ROOT)}\n")
    return 1 if found else 0


def main(arguments: list[str]) -> int:
    """Runs one of the two; its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("prepare").add_argument("version")
    commands.add_parser("check")
    given = parser.parse_args(arguments)
    try:
        if given.command == "check":
            return _told(problems)
        prepare(given.version)
    except Refused as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    sys.stdout.write(f"release: {given.version} is in the files; read `git diff`, then commit it\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
