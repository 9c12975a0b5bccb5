"""Which files a name stands for: a file, a folder, a pattern, or several of these.

A folder stands for the JSON, zip and Parquet files in it and below it. They are sorted once, numbers in their names by value, so that
`worker-0_10` comes after `worker-0_9`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, LargeZipFile, ZipFile

from rlds2reverb.errors import SourceError
from rlds2reverb.files import check_regular
from rlds2reverb.readers.paths import by_number, stays_in
from rlds2reverb.wording import shortened

JSON, PARQUET = "json", "parquet"
_KINDS = {".json": JSON, ".jsonl": JSON, ".zip": JSON, ".parquet": PARQUET}
_PATTERN = re.compile(r"[*?\[]")
_WORKER = re.compile(r"worker-(\d+)|run-(\d+)-\d+")
_RUN = re.compile(r"run-(\d+)-(\d+)")
_MOST_FILES = 10_000_000


@dataclass(frozen=True)
class DataFile:
    """A file of data.

    Attributes:
      path: on the disk.
      kind: `JSON` or `PARQUET`.
      member: of a zip file, the name inside; "" for a plain one.
    """

    path: Path
    kind: str
    member: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.member}" if self.member else str(self.path)

    @property
    def name(self) -> str:
        """Without folders."""
        return Path(self.member or self.path).name

    @property
    def worker(self) -> str:
        """The number of RLlib's worker that wrote it, of whose episodes alone the ids are unique; "" where the name does not tell."""
        for name in (self.name, self.path.parent.name):
            if found := _WORKER.search(name):
                return found[1] or found[2]
        return ""

    @property
    def run(self) -> tuple[str, int] | None:
        """Folder of the environment and worker, and the number of the writing, as RLlib's runners name folders of Parquet files."""
        found = _RUN.fullmatch(self.path.parent.name)
        return (f"{self.path.parent.parent}/{found[1]}", int(found[2])) if found else None


def find(paths: Sequence[str]) -> list[DataFile]:
    """The files of data, sorted; those of several paths as these are given.

    Args:
      paths: paths and patterns.

    Raises:
      SourceError: nothing is there, a link leads out of the folder, or there are files of both kinds.
    """
    text = ";".join(paths)
    found = [file for one in paths for file in _of(one)]
    if not found:
        raise SourceError(f"{text}: no files of data; expected .json, .zip or .parquet files, or a folder of them")
    if len({file.kind for file in found}) > 1:
        raise SourceError(f"{text}: has both JSON and Parquet files; name one kind, as in {text.rstrip('/')}/*.json")
    return [member for file in found for member in (_members(file) if file.path.suffix == ".zip" else (file,))]


def _of(text: str) -> list[DataFile]:
    path = Path(text).expanduser()
    if not text:
        raise SourceError("an empty path; expected a file, a folder or a pattern")
    try:
        if path.is_dir():
            return [_file(one, path) for one in _sorted(path.rglob("*"), path) if one.suffix.lower() in _KINDS]
        if not path.exists() and not _PATTERN.search(text):
            raise SourceError(f"{text}: no such file or folder")
        if path.exists():
            return [_file(path, None)]
        fixed = _fixed_part(path)
        return [_file(one, None) for one in _sorted(fixed.glob(str(path.relative_to(fixed))), fixed)]
    except (OSError, ValueError, NotImplementedError) as error:
        raise SourceError(f"{text}: cannot be read: {shortened(str(error))}") from error


def _fixed_part(path: Path) -> Path:
    """The folders before the first pattern."""
    fixed = Path(path.anchor or ".")
    for part in path.parts[1:] if path.anchor else path.parts:
        if _PATTERN.search(part):
            break
        fixed = fixed / part
    return fixed


def _sorted(paths: object, folder: Path) -> list[Path]:
    kept = []
    for path in paths:  # type: ignore[attr-defined]
        if not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts) and not path.is_dir():
            kept.append(path)
        if len(kept) > _MOST_FILES:
            raise SourceError(f"{folder}: more than {_MOST_FILES:,} files")
    return sorted(kept, key=lambda path: by_number(str(path)))


def _file(path: Path, folder: Path | None) -> DataFile:
    """A file that was found; it must be one, and inside the folder that it was found in."""
    check_regular(path)
    if folder is not None and not stays_in(folder, path):
        raise SourceError(f"{path}: a link that leads out of the folder; name the file itself to read it")
    return DataFile(path, _KINDS.get(path.suffix.lower(), JSON))


def _members(file: DataFile) -> list[DataFile]:
    try:
        with ZipFile(file.path) as archive:
            names = [one.filename for one in archive.infolist() if not one.is_dir()]
    except (BadZipFile, LargeZipFile, OSError, ValueError, NotImplementedError, EOFError) as error:
        raise SourceError(f"{file.path}: cannot be read as a zip file: {shortened(str(error))}") from error
    wanted = [name for name in names if Path(name).suffix.lower() in (".json", ".jsonl")]
    if not wanted:
        raise SourceError(f"{file.path}: holds no .json files; found {shortened(', '.join(names)) or 'nothing'}")
    if len(set(wanted)) < len(wanted):
        raise SourceError(f"{file.path}: two members have the same name")
    return [DataFile(file.path, JSON, name) for name in sorted(wanted, key=by_number)]
