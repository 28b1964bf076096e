"""A picture in the notation of Graphviz."""
