"""The database itself: connections and transactions, tables, migrations, and how values are stored."""
