"""Environment variables of a driver. Ray Tune reads them at import, so they must be set before the process starts."""

DRIVER_ENV = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    # Tune's snapshots of itself are not used: the database is the record.
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_WARN_SLOW_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "1000000",
    # Seconds after which an actor that does not end by itself is killed. With less than ten, Tune's loop blocks
    # meanwhile.
    "TUNE_FORCE_TRIAL_CLEANUP_S": "10",
    # Otherwise Tune restarts the actor of a drained node regardless of `max_failures`. The loop decides about the
    # trial instead.
    "RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE": "1",
    # Ray keeps about 40 kB of metrics per task name, and our task names contain the attempt. Metrics of machines are
    # still collected.
    "RAY_enable_metrics_collection": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONUNBUFFERED": "1",
}
