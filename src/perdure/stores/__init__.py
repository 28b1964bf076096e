"""Where runs rest: the storage port and the stores that ship with perdure."""
