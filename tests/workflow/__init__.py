"""Workflows, built and run."""
