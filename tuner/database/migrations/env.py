"""Alembic's entry point. It runs on the connection that `Database.migrate` passes on."""

from alembic import context

from tuner.database.tables import projects

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=projects.metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
