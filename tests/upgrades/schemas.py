"""Descriptions of a database's schema, to compare schemas with each other."""

from typing import Any

from sqlalchemy import Connection, inspect

Schema = dict[str, dict[str, Any]]


def described(db: Connection) -> Schema:
    """Return the columns, keys, constraints and indexes of each table, without the order of their definitions."""
    inspector = inspect(db)
    return {
        table: {
            "columns": {
                column["name"]: {
                    "type": str(column["type"]),
                    "nullable": column["nullable"],
                    "default": column["default"],
                }
                for column in inspector.get_columns(table)
            },
            "primary key": inspector.get_pk_constraint(table)["constrained_columns"],
            "checks": {(check["name"], check["sqltext"]) for check in inspector.get_check_constraints(table)},
            "foreign": {
                (*key["constrained_columns"], key["referred_table"])
                for key in inspector.get_foreign_keys(table)
            },
            "unique": {tuple(rule["column_names"]) for rule in inspector.get_unique_constraints(table)}
            | {tuple(index["column_names"]) for index in inspector.get_indexes(table) if index["unique"]},
            "indexes": {(index["name"], *index["column_names"]) for index in inspector.get_indexes(table)},
        }
        for table in inspector.get_table_names()
        if table != "alembic_version"
    }
