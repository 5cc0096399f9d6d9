"""Preemption and maintenance notices of a machine from AWS, Google, Azure and signals.

    watcher = Watcher(on_notice, on_withdrawn)
    watcher.start()
    with sigterm_announced(watcher.announce, grace_s=60):
        ...
    watcher.close()

This package does not know Ray, jobs or trials. `on_notice` and `on_withdrawn` decide what a notice means for them.
"""
