"""Workflows that are written as functions: steps, questions and waits, in the order of the code."""
