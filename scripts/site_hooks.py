"""Pages of the site that are no files of docs/: what its pages link to elsewhere in the repository.

mkdocs calls the functions `on_...`. A page of examples/ becomes a page; any other file, or a folder of them, becomes a page
that shows its text. Links in Markdown lead to those pages, so that the site is whole without the repository.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
GUIDES = ("examples/open_x.md",)
"""Markdown pages outside of docs/ that are pages of the site, under the same path."""
SHOWN = "sources"
"""Folder of the site in which files are shown."""
_LINK = re.compile(r"(\]\()([^)#:\s]+)(#[^)\s]*)?(\))")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".sh": "sh"}


def repository_path(page: str, link: str) -> str:
    """Where a link of a page of the site leads, from the repository's root.

    >>> repository_path("adapters/jax.md", "../../examples/learners/bc_jax.py"), repository_path("wire.md", "cli.md")
    ('examples/learners/bc_jax.py', 'docs/cli.md')
    """
    origin = page if page in GUIDES else f"docs/{page}"
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))


def site_path(target: str) -> str:
    """The page of the site for a path of the repository.

    >>> site_path("docs/cli.md"), site_path("examples/open_x.md"), site_path("configs/server.yaml")
    ('cli.md', 'examples/open_x.md', 'sources/configs/server.yaml.md')
    """
    if target in GUIDES:
        return target
    return target.removeprefix("docs/") if target.startswith("docs/") else f"{SHOWN}/{target}.md"


def leads_out(page: str, link: str) -> bool:
    """Whether a link leads to something of the repository that is no page of docs/."""
    target = repository_path(page, link)
    return not target.startswith("docs/") and target not in GUIDES and (ROOT / target).exists()


def shown(target: str) -> str:
    """A page with the text of a file, or of each file of a folder."""
    place = ROOT / target
    files = sorted(place.rglob("*")) if place.is_dir() else [place]
    texts = [_fenced(file) for file in files if file.is_file() and "__pycache__" not in file.parts]
    return f"# {target}\n\nAs it is in the repository.\n\n" + "\n\n".join(texts) + "\n"


def _fenced(file: Path) -> str:
    text = file.read_text(encoding="utf-8").rstrip("\n")
    return f"## {file.name}\n\n````{_LANGUAGES.get(file.suffix, 'text')}\n{text}\n````"


def linked(files: Mapping[str, str]) -> Iterator[str]:
    """What pages (name -> text) link to outside of docs/."""
    for page, text in files.items():
        for match in _LINK.finditer(text):
            if leads_out(page, match[2]):
                yield repository_path(page, match[2])


def on_files(files: Any, config: Any) -> Any:
    """mkdocs: adds the pages that are not in docs/."""
    from mkdocs.structure.files import File, InclusionLevel

    for guide in GUIDES:
        files.append(File.generated(config, guide, abs_src_path=str(ROOT / guide)))
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    for target in sorted(set(linked(texts))):
        page = File.generated(config, site_path(target), content=shown(target), inclusion=InclusionLevel.NOT_IN_NAV)
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """mkdocs: leads links to pages of the site."""
    name = page.file.src_uri
    if name.startswith(f"{SHOWN}/"):
        return markdown

    def replaced(match: re.Match[str]) -> str:
        if not (leads_out(name, match[2]) or name in GUIDES):
            return match[0]
        target = site_path(repository_path(name, match[2]))
        relative = os.path.relpath(target, posixpath.dirname(name) or ".").replace(os.sep, "/")
        return f"{match[1]}{relative}{match[3] or ''}{match[4]}"

    return _LINK.sub(replaced, markdown)


def on_page_content(html: str, **_: Any) -> str:
    r"""mkdocs: the corner of a table that heads nothing is no heading, and code in a table has `|` for `\|`, as on GitHub."""
    return re.sub("<td>.*?</td>", lambda cell: cell[0].replace(r"\|", "|"), html.replace("<th></th>", "<td></td>"))


def on_post_build(config: Any, **_: Any) -> None:
    """mkdocs: has the search forgive typing errors."""
    (worker,) = Path(config["site_dir"], "assets", "javascripts", "workers").glob("search.*.js")
    forgiving = (ROOT / "scripts" / "site_search.js").read_text(encoding="utf-8")
    worker.write_text(worker.read_text(encoding="utf-8") + forgiving, encoding="utf-8")
