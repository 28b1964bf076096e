"""Chat clients: the base class, its layers, middleware and options."""
