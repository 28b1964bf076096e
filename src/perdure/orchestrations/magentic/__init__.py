"""Magentic: a manager plans, a team follows the plan, and the manager replans when progress stalls."""
