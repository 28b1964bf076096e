"""The parts of a graph, without a run."""
