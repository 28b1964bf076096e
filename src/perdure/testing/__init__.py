"""What users need to test their own workflows and stores.

`perdure.testing.resume` kills real processes that run a workflow of yours, and says whether six properties hold.
`perdure.testing.crash` does it in one process, at every call to the store. `perdure.testing.stores` and
`perdure.testing.storages` hold suites for pytest to subclass: what every store, and every object with the six methods,
must do; `perdure.testing.disk` is a disk that loses what was not synced. `perdure.testing.clock` is a clock to set.
"""
