"""For an interpreter with nothing but installed packages: imports every module of both packages, and tells which fail.

Prints a JSON object: module -> [type of the error, name of the missing module, text].
"""

import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path


def modules(package: str) -> Iterator[str]:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    root = Path(spec.origin or "").parent
    for path in sorted(root.rglob("*.py")):
        name = ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
        if not name.endswith("__main__"):
            yield name


def failing(package: str) -> Iterator[tuple[str, tuple[str, str | None, str]]]:
    for name in modules(package):
        before = set(sys.modules)
        try:
            importlib.import_module(name)
        except Exception as error:
            yield name, (type(error).__name__, getattr(error, "name", None), str(error))
            for half in set(sys.modules) - before:  # of ours, what came before the error would be taken as there
                if half.startswith(package):
                    del sys.modules[half]


if __name__ == "__main__":
    json.dump(dict((*failing("rlds2reverb"), *failing("replay_server"))), sys.stdout)
