"""The run as bytes."""
