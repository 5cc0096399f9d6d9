"""The tuning logic: decide what a job does next. It is pure: it uses no clock, network or global random generator."""
