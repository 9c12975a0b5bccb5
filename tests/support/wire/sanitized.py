"""A plugin of pytest: the compiled reader is the one that SANITIZED names, where it names one."""

from __future__ import annotations

import os
from pathlib import Path

from rlds2reverb.compiled import load_library
from rlds2reverb.wire.sample import native

if named := os.environ.get("SANITIZED"):
    native.LIBRARY = load_library(Path(native.__file__).with_name("native.c"), native._FUNCTIONS, Path(named))
    assert native.LIBRARY is not None
