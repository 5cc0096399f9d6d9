"""The database: SQLAlchemy tables, the ledger's transactions, and answers as queries."""
