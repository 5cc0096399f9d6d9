"""Trials as other tools know them: Optuna studies, TensorBoard event files, MLflow runs. Written from the record, never read back."""
