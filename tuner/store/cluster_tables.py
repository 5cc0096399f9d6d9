"""Tables of what the cluster's machines cost, whoever uses them."""

from sqlalchemy import BigInteger, Column, String, Table

from tuner.store.tables import metadata

# By hours since 1970 UTC. `price` is in micro-dollars an hour of a whole machine.
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

# For how much of an hour somebody looked, and machine time whose price was not known.
cluster_watch = Table(
    "cluster_watch",
    metadata,
    Column("project", String(100), primary_key=True),
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    Column("watched_ms", BigInteger, nullable=False),
    Column("unpriced_ms", BigInteger, nullable=False),
)

# Since when it is known, and until when it has been counted.
cluster_clock = Table(
    "cluster_clock",
    metadata,
    Column("project", String(100), primary_key=True),
    Column("since", BigInteger, nullable=False),
    Column("until", BigInteger, nullable=False),
)
