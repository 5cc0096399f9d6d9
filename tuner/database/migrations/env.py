"""Alembic's entry point. It runs on the connection that `Database.migrate` passes on."""

from alembic import context

from tuner.database.tables import metadata

# Operations read the naming convention of `target_metadata`, and none of its tables. So it does not matter that the tables of
# `tuner.ledger`, a higher layer, may be missing from it.
context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
