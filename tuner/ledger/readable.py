"""Read-only aliases of the ledger's tables, for queries in other packages.

Each alias has the name and the columns of its table. A query with aliases therefore compiles to the same SQL, except that it contains
`FROM accounts AS accounts`.
"""

from sqlalchemy import Table
from sqlalchemy.sql.selectable import FromClauseAlias

from tuner.database import ledger_tables


class ReadOnly(FromClauseAlias):
    """An alias of a table. SQLAlchemy refuses the alias in INSERT, UPDATE and DELETE.

    SQLAlchemy's own `Alias` is not enough: version 2.1 accepts it in UPDATE and DELETE, which then change the table.
    """

    __visit_name__ = "alias"
    inherit_cache = True


def _read_only(table: Table) -> ReadOnly:
    return ReadOnly._construct(table, name=table.name)


accounts = _read_only(ledger_tables.accounts)
holds = _read_only(ledger_tables.holds)
entries = _read_only(ledger_tables.entries)
