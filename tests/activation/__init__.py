"""Inside one activation: steps, waiting, attempts, and what is told of them."""
