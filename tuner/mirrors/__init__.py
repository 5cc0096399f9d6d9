"""Mirrors copy the recorded trials to other tools: Optuna studies, TensorBoard files, MLflow runs. No decision depends on the copies."""
