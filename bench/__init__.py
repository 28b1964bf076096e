"""The same small work in perdure and in its peers, measured side by side: `python -m bench`."""
