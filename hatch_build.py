"""Compiles the reader of sampled data and the resizing of images, plain C libraries that need nothing of Python, beside their bindings; and makes of the README what a package index shows.

Without a compiler the package is built all the same, and does both by Python code: slower. RLDS2REVERB_COMPILE=require makes that an error.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface
from packaging.tags import platform_tags

_SOURCES = ("rlds2reverb/wire/sample/native.c", "rlds2reverb/images.c")
_OLDEST = "manylinux_2_17_"  # memcpy is the newest symbol of glibc that they need; tests/packaging/wheels checks that


class IndexPage(MetadataHookInterface):
    """The metadata hook that pyproject.toml names: the long description."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": page_for_index(text, metadata)}


def page_for_index(text: str, metadata: dict[str, Any]) -> str:
    """The README where no file of the repository is beside it, and the package is installed by its name.

    Links to files become links into the repository at the release's tag, if `urls` names it as Source; else their words stay, and pictures go.
    """
    source = metadata.get("urls", {}).get("Source")

    def link(found: re.Match[str]) -> str:
        is_picture, words, target = found.groups()
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        if source:
            return f"{is_picture}[{words}]({source}/{'raw' if is_picture else 'blob'}/v{metadata['version']}/{target})"
        return "" if is_picture else words

    text = re.sub(r"(!?)\[([^]]*)\]\(([^)]*)\)", link, text)
    text = text.replace('"./rlds2reverb[', '"rlds2reverb[').replace("# a clone; ", "# ")
    return re.sub(r"\n{3,}", "\n\n", text)


class CompiledLibraries(BuildHookInterface[Any]):
    """The build hook of wheels that pyproject.toml names."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._made = Path(tempfile.mkdtemp(prefix="rlds2reverb-"))
        for source in (Path(self.root, name) for name in _SOURCES):
            beside = source.with_suffix(".compiled")
            if version == "editable":  # an older one would fit the sources no more
                beside.unlink(missing_ok=True)
            compiled = self._made / beside.name
            try:
                compile_library(source, compiled)
            except (OSError, subprocess.CalledProcessError) as error:
                if os.environ.get("RLDS2REVERB_COMPILE") == "require":
                    raise
                self.app.display_warning(f"rlds2reverb works without {beside.name}, which is slower: {error}")
                return
            if version == "editable":
                copied = beside.with_name(f".{beside.name}.{self._made.name}")
                shutil.copy(compiled, copied)
                copied.replace(beside)  # a program that has the former one open keeps it
                continue
            tags = list(platform_tags())
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{next((tag for tag in tags if tag.startswith(_OLDEST)), tags[0])}"
            build_data["force_include"][str(compiled)] = str(beside.relative_to(self.root))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self._made, ignore_errors=True)


def compile_library(source: Path, to: Path, *flags: str) -> None:
    """Compiles the source into a library that says which source it was made of.

    Raises:
      OSError, CalledProcessError: there is no compiler, or it fails.
    """
    if sys.maxsize < 2**32:
        raise OSError("it needs a Python of 64 bits")
    configured = sysconfig.get_config_var("CC") or ""
    compiler = os.environ.get("CC") or (configured if shutil.which((configured.split() or [""])[0]) else "cc")
    more = shlex.split(f"{os.environ.get('CFLAGS', '')} {os.environ.get('ARCHFLAGS', '')}")
    of_source = f"-DNATIVE_SOURCE={zlib.crc32(source.read_bytes())}LL"
    # A product and its sum fused into one operation rounds otherwise than numpy, and clang fuses them on arm64 by default.
    command = [
        *shlex.split(compiler),
        "-O3",
        "-std=c99",
        "-ffp-contract=off",
        "-shared",
        "-fPIC",
        of_source,
        *more,
        *flags,
    ]
    subprocess.run([*command, "-o", str(to), str(source)], check=True)
