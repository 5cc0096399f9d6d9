"""Mark the schema of the first release, on which later migrations build.

This migration changes nothing: `Database.migrate` creates the tables of an empty database from their definitions.
"""

revision = "0028"
down_revision = None


def upgrade() -> None:
    """Do nothing."""


def downgrade() -> None:
    """Do nothing. `tuner migrate` cannot go back to a revision before this one."""
