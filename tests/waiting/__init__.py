"""Waiting, cancelling, deadlines and budgets."""
