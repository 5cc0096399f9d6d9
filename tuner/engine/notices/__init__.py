"""Preemption and maintenance notices of a machine from AWS, Google, Azure, signals and operators.

    watcher = Watcher(on_notice, on_withdrawn)
    watcher.start()
    with sigterm_announced(watcher.announce, grace_s=60):
        ...
    watcher.close()

This package does not know Ray, jobs or trials. The two functions decide what a notice means for them.
"""

from tuner.engine.notices.clouds import Cloud, Sources, cloud_of_this_machine
from tuner.engine.notices.notice import Kind, MalformedNotice, Notice, Source
from tuner.engine.notices.watcher import Watcher
from tuner.engine.notices.within import sigterm_announced

__all__ = [
    "Cloud",
    "Kind",
    "MalformedNotice",
    "Notice",
    "Source",
    "Sources",
    "Watcher",
    "cloud_of_this_machine",
    "sigterm_announced",
]
