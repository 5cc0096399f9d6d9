"""Tables of the time and price of the cluster's machines, including machines that no job uses."""

from sqlalchemy import BigInteger, Column, String, Table

from tuner.store.tables import metadata

# `hour` counts hours since 1970 UTC. `price` is in micro-dollars per hour of a whole machine.
cluster_hours = Table(
    "cluster_hours",
    metadata,
    Column("project", String(100), primary_key=True),
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    Column("instance_type", String(200), primary_key=True),
    Column("market", String(20), primary_key=True),
    Column("price", BigInteger, primary_key=True, autoincrement=False),
    Column("alive_ms", BigInteger, nullable=False),
    Column("idle_ms", BigInteger, nullable=False),
)

# How much of each hour was observed, and the time of machines whose price is unknown.
cluster_watch = Table(
    "cluster_watch",
    metadata,
    Column("project", String(100), primary_key=True),
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    Column("watched_ms", BigInteger, nullable=False),
    Column("unpriced_ms", BigInteger, nullable=False),
)

# When observation began, and until when machine time has been counted.
cluster_clock = Table(
    "cluster_clock",
    metadata,
    Column("project", String(100), primary_key=True),
    Column("since", BigInteger, nullable=False),
    Column("until", BigInteger, nullable=False),
)
