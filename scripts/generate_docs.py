"""Writes the generated parts of docs/: everything between `<!-- generated: NAME -->` and `<!-- end -->`.

`python scripts/generate_docs.py` writes them; `--check` exits 1 when a page is stale.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

import click

from rlds2reverb import cli
from rlds2reverb.validation import CODES

DOCS = Path(__file__).parent.parent / "docs"
_WIDTH = 100


def codes_table() -> str:
    """Every problem code: meaning, advice, repairable."""
    rows = ["| code | meaning | advice | `repair` mends it |", "| --- | --- | --- | --- |"]
    for name, code in CODES.items():
        rows.append(
            f"| `{name}` | {code.meaning} | {'yes' if code.is_advice else ''} | {'yes' if code.is_repairable else ''} |"
        )
    return "\n".join(rows)


def cli_reference() -> str:
    """The exit codes, and the help of every command."""
    exit_codes = (cli.__doc__ or "").partition("\n\n")[2].strip()
    pages = [_help(cli.cli, "rlds2reverb")]
    for name in cli.COMMANDS:
        command = cli.cli.get_command(click.Context(cli.cli), name)
        assert command is not None  # the table names only commands that exist
        pages.append(_help(command, f"rlds2reverb {name}"))
    return "\n\n".join(["## Exit codes", exit_codes, *pages])


def _help(command: click.Command, path: str) -> str:
    context = click.Context(command, info_name=path, max_content_width=_WIDTH, terminal_width=_WIDTH)
    context.help_option_names = ["-h", "--help"]
    return f"## {path}\n\n```\n{command.get_help(context).strip()}\n```"


SECTIONS: dict[str, tuple[str, Callable[[], str]]] = {
    "codes": ("validation.md", codes_table),
    "cli": ("cli.md", cli_reference),
}
"""Section -> page and what writes it."""


def render(name: str) -> tuple[Path, str, str]:
    """A section's page, its text now, and its text as it should be."""
    page, write = SECTIONS[name]
    now = (DOCS / page).read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    return DOCS / page, now, pattern.sub(lambda match: f"{match[1]}{write()}\n{match[2]}", now)


def main() -> None:
    """Writes or checks every section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page is stale")
    check = parser.parse_args().check
    stale = []
    for name in SECTIONS:
        path, now, wanted = render(name)
        if now != wanted:
            stale.append(path.name)
            if not check:
                path.write_text(wanted, encoding="utf-8")
    if stale:
        sys.stderr.write(f"{'stale' if check else 'written'}: {', '.join(stale)}\n")
    sys.exit(bool(stale) and check)


if __name__ == "__main__":
    main()
