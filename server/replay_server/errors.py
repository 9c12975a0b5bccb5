"""Errors of checkpoints. None of them means a bug.

```
CheckpointError            cannot be written, verified or restored; what was written is broken or missing
├── CheckpointUnreadable   there, and the system does not hand it out: nothing is known of its content
│   └── CheckpointNewer    there, and only a newer release reads it
└── CannotKeepError        nothing is wrong with it, but it cannot be kept: the disk is full, say
    └── FolderLost         the checkpoint folder is not this server's any more
StartStopped               the server is to end before it has started; nothing is wrong
```
"""

from __future__ import annotations

from rlds2reverb.errors import Rlds2ReverbError


class CheckpointError(Rlds2ReverbError):
    """A checkpoint cannot be written, verified or restored.

    Attributes:
      is_broken: it was written and is broken, so another try would find the same.
    """

    is_broken = True


class CheckpointUnreadable(CheckpointError):
    """A checkpoint is there and cannot be read (permission, input/output error): nothing is known of its content."""

    is_broken = False


class CheckpointNewer(CheckpointUnreadable):
    """A checkpoint, or a record beside it, was written by a newer release, and is left where it is."""


class CannotKeepError(CheckpointError):
    """A checkpoint could not be kept though nothing is wrong with it: the disk is full, say."""

    is_broken = False


class StartStopped(Rlds2ReverbError):
    """The server is to end before it has started; nothing is wrong."""


class FolderLost(CannotKeepError):
    """Another server has the checkpoint folder, or it is gone: nothing may be written to it."""
