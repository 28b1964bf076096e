"""Crashes, in this process and of real ones."""
