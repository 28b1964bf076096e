"""The peers, a module each. A module imports its library at the top: import it only where that may fail."""
