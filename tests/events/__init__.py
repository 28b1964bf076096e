"""The log of what commits have told."""
