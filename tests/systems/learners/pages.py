"""Runs the code of a page about an adapter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.project import ROOT, code_of


def check_page(page: str, address: str, tmp_path: Path) -> None:
    """A comment behind a print is what it prints. Workers are started: so it is a program of its own."""
    text = code_of(ROOT / "docs" / "adapters" / f"{page}.md").replace("localhost:8000", address)
    program = tmp_path / f"page_about_{page}.py"  # not the library's own name
    main = "\n".join(f"    {line}" if line else "" for line in text.splitlines())
    program.write_text(f"if __name__ == '__main__':\n{main}\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        capture_output=True,
        timeout=240,
        check=False,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    said = re.findall(r"^ *print\(.*\)  # (.*)$", text, re.MULTILINE)
    assert said
    assert [line for line in done.stdout.splitlines() if line in said] == said
