"""The works, a module each."""
