"""Measure the same small work in perdure and in its peers: `python -m bench`."""
