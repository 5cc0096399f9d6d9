"""Alembic's entry point. It runs on the connection that `Database.migrate` passes on."""

from alembic import context

from tuner.database.ledger_tables import metadata

# Operations on a table read the naming convention of `target_metadata`.
context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
