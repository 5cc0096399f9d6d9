"""Search methods compared on recorded learning curves: what each finds for the money it is given."""
