"""Host many runs in one process, with any number of processes on one store."""

from perdure.hosting.embedded import EmbeddedScheduler
from perdure.hosting.host import Host, HostHealth
from perdure.hosting.run import HostedRun, RunInfo
from perdure.hosting.scheduler import AdvanceResult, Dispatch, Rest, Scheduler

__all__ = [
    "AdvanceResult",
    "Dispatch",
    "EmbeddedScheduler",
    "Host",
    "HostHealth",
    "HostedRun",
    "Rest",
    "RunInfo",
    "Scheduler",
]
