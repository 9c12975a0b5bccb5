#!/usr/bin/env python3
"""Holds that a paragraph of the pages is one line, however long: an editor wraps it, and a change shows the sentences that changed.

docs_lines.py          lists paragraphs of several lines, and fails if there are any
docs_lines.py --write  joins their lines
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import sys
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
# MkDocs' own blocks (admonitions, tabs, snippets) look like paragraphs to CommonMark, and change when their lines are joined.
_OF_MKDOCS = re.compile(r"\s*(!!!|\?\?\?|===|:::|--8<--)")
_INDENT_AND_QUOTE = re.compile(r"^[\s>]*")


def pages() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "*.md"],  # noqa: S607 (git is wherever PATH says)
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [ROOT / name for name in listed.splitlines()]


def wrapped_paragraphs(text: str) -> list[tuple[int, int]]:
    """The lines [start, stop) of each paragraph that has several, from 0; those with a line break of their own are left out."""
    tokens = MarkdownIt().enable("table").parse(text)
    lines = text.split("\n")
    spans = []
    for token, content in itertools.pairwise(tokens):
        if token.type != "paragraph_open" or token.map is None:
            continue
        start, stop = token.map
        breaks = any(child.type in ("hardbreak", "html_inline") for child in content.children or ())
        if stop - start > 1 and not breaks and not any(_OF_MKDOCS.match(line) for line in lines[start:stop]):
            spans.append((start, stop))
    return spans


def join_paragraphs(text: str) -> str:
    lines = text.split("\n")
    for start, stop in reversed(wrapped_paragraphs(text)):
        words = [lines[start].rstrip(), *(_INDENT_AND_QUOTE.sub("", line).rstrip() for line in lines[start + 1 : stop])]
        lines[start:stop] = [" ".join(words)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="join the lines")
    writes = parser.parse_args().write
    wrapped = 0
    for page in pages():
        text = page.read_text("utf-8")
        spans = wrapped_paragraphs(text)
        if spans and writes:
            page.write_text(join_paragraphs(text), "utf-8")
        elif spans:
            wrapped += len(spans)
            print(f"{page.relative_to(ROOT)}:{spans[0][0] + 1}: {len(spans)} paragraphs of several lines")
    if wrapped:
        sys.exit("A paragraph is one line: scripts/docs_lines.py --write joins them")


if __name__ == "__main__":
    main()
