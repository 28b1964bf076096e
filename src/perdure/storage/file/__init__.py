"""The file store."""

from perdure.storage.file.backend import FileBackend, FileStore

__all__ = ["FileBackend", "FileStore"]
