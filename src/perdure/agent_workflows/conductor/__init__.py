"""The conductor of an execution: it decides which nodes run, gives them tasks, and records their outputs."""
