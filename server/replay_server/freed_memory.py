"""Memory that was freed, and that the C library keeps for later."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Gives it back to the system: what freed memory would be used for later is asked for anew. 0.1 s for a gigabyte.

    Reverb takes a good kilobyte per item while it writes a checkpoint. glibc keeps that, once for each thread that wrote one. Source:
    malloc_trim(3), which other C libraries lack: there, nothing is done.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
