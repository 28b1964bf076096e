"""Drives one run: waits, routes, commits, resumes."""
