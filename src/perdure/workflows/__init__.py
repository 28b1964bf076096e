"""The public objects: builder, workflow, run."""
