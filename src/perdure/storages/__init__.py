"""The public storages."""
