"""Input for a run from outside: answers and messages."""
