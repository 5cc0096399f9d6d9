"""Compare search methods on recorded learning curves by what each finds for the same money."""
