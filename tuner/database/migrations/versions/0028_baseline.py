"""Mark the schema of the first release, on which later migrations build.

It changes nothing: `Database.migrate` creates the tables of an empty database from their definitions.
"""

revision = "0028"
down_revision = None


def upgrade() -> None:
    """Do nothing."""


def downgrade() -> None:
    """Do nothing. `tuner migrate` does not go back to before this revision."""
