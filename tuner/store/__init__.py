"""What is remembered: SQLAlchemy tables, the ledger's transactions, answers as queries."""
