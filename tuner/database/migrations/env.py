"""Alembic's entry point. It uses the connection that `Database.migrate` or `Database.downgrade` has opened."""

from alembic import context

from tuner.database.ledger_tables import metadata

# Migrations name constraints and indexes by the naming convention in `target_metadata`.
context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
