"""Ready-made shapes of several agents, built from what everybody can build from."""
