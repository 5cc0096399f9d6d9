"""The environment of a driver. Ray Tune reads it when it is imported, so it is set from outside."""

DRIVER_ENV = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    # Tune's snapshots of itself, which nobody reads: the database is the record.
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_WARN_SLOW_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "1000000",
    # Seconds after which an actor that does not end by itself is killed; below ten, Tune's loop stands still meanwhile.
    "TUNE_FORCE_TRIAL_CLEANUP_S": "10",
    # Or Tune starts an actor of a drained node anew, whatever `max_failures` says; what becomes of a trial is ours to decide.
    "RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE": "1",
    # Ray keeps figures of each name that a task has had, some 40 kB; those of ours say the attempt. Machines tell their own still.
    "RAY_enable_metrics_collection": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONUNBUFFERED": "1",
}
