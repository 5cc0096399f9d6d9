"""Interruption notices: what a machine is told before it is taken away, from whichever cloud it is on.

    watcher = Watcher(on_notice, on_withdrawn)
    watcher.start()
    with sigterm_announced(watcher.announce, grace_s=60):
        ...
    watcher.close()

Nothing here knows Ray, jobs or trials: what a notice means for them is up to the two functions.
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
