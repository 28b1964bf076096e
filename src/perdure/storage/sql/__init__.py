"""Code that all SQL stores share: statements, rows, tables and transactions."""
