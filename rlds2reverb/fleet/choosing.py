"""Which executor runs the tasks."""

from __future__ import annotations

from collections.abc import Callable

from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import Lazily, needing
from rlds2reverb.fleet.driver import Executor, Job
from rlds2reverb.fleet.processes import Processes

_on_ray: Callable[[Job, int | None, str], Executor] = Lazily("rlds2reverb.fleet.ray:on_ray")


def executor_of(workers: int | None, ray: str | None) -> Callable[[Job], Executor]:
    """What makes the executor of a job.

    Args:
      workers: how many tasks run at a time; None for one per processor of the cluster.
      ray: address of a Ray cluster; None for processes of this machine.

    Raises (when it is called):
      ConfigError: the job cannot be pickled, or the library Ray is missing.
    """

    def made(job: Job) -> Executor:
        if ray is None:
            return Processes(job, workers or 1)
        with needing("work on Ray", "ray", ConfigError):
            return _on_ray(job, workers, ray)

    return made
