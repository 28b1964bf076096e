"""What comes to a run from outside: answers and messages."""
