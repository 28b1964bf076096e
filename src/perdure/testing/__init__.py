"""What users need to test their own workflows and stores.

`perdure.testing.stores` and `perdure.testing.storages` hold suites for pytest to subclass: what every store, and every
object with the six methods, must do. `perdure.testing.crash` kills a run at every call to its store.
"""
