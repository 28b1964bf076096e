"""Pure functions on frozen values: no I/O, no clock."""
