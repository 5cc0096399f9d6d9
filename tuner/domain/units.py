"""Units of bytes and of floating-point operations."""

MIB = 2**20
GIB = 2**30
GB = 10**9
TERA = 10**12
