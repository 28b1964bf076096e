"""The entries of a checkpoint by path. An entry is inline, in the table of contents, or in the base of that table.

Full chunks of a trail are grouped by sixteen, so that the table of contents stays short however long a run gets.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from perdure.codec import DamagedPartError, dumps, loads, quoted, verified
from perdure.records import Blob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from perdure.checkpoint.documents import Entry
    from perdure.records import Manifest

TOC_LENGTH_MAX = 4096
"""A longer table of contents becomes a blob, and later checkpoints only list the differences from it."""

# Requests stay in the table, because stores compare them with what a command expects. Entries about status and outputs
# stay too, so that they can be read without the rest.
_LISTED = ("state/", "executor/", "carried/", "child/")

_ENTRY_LENGTH = 48
"""The length of a table entry without its path: a hash and punctuation."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The entries of one checkpoint. Those in `pieces` and `toc` override those `listed` in the base."""

    pieces: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Inline texts."""
    toc: Mapping[str, str] = field(default_factory=dict[str, str])
    base: str | None = None
    listed: Mapping[str, str] = field(default_factory=dict[str, str])
    gone: Mapping[str, None] = field(default_factory=dict[str, None])
    """The paths of the base that no longer exist, in order."""
    spent: int = 0
    """The total size of the differences from the base in all checkpoints since it was written."""

    @classmethod
    def of(cls, manifest: Manifest, blobs: Mapping[str, bytes]) -> Contents:
        """Read the contents of a checkpoint. `blobs` must hold its base. Raises DamagedPartError."""
        listed = {} if manifest.base is None else _listed(verified(blobs, manifest.base))
        changed = sum(map(_is_listed, manifest.toc)) + len(manifest.gone)
        return cls(
            pieces_of(manifest),
            manifest.toc,
            manifest.base,
            listed,
            dict.fromkeys(manifest.gone),
            # The cost as if the differences had come one by one.
            spent=changed * changed * _ENTRY_LENGTH // 2,
        )

    def entries(self) -> dict[str, Entry]:
        """Return all entries by path: a hash or an inline text."""
        rest = {path: address for path, address in self.listed.items() if path not in self.gone}
        return {**rest, **self.toc, **self.pieces}

    def address(self, path: str) -> str | None:
        """Return the hash of the blob at a path."""
        if path in self.pieces:
            return None
        return self.toc.get(path) or (None if path in self.gone else self.listed.get(path))

    def followed(
        self, pieces: Mapping[str, bytes], *, changed: Mapping[str, str], removed: Iterable[str]
    ) -> tuple[Contents, Blob | None]:
        """Return the contents of the next checkpoint, and the blob of its base if that is new.

        `pieces` are all inline texts; `changed` and `removed` are differences in the table of contents.
        """
        toc, gone = self._changed(pieces, changed, removed)
        if toc is self.toc and self.base is None:
            return Contents(pieces, toc), None
        spent = self.spent + _length(toc) + _length(gone)
        after = Contents(pieces, toc, self.base, self.listed, gone, spent)
        if self.base is None:
            needs_base = _length(filter(_is_listed, toc)) > TOC_LENGTH_MAX
        else:
            needs_base = spent > _length(self.listed)
        return after._rebased() if needs_base else (after, None)

    def _changed(
        self, pieces: Mapping[str, bytes], changed: Mapping[str, str], removed: Iterable[str]
    ) -> tuple[Mapping[str, str], Mapping[str, None]]:
        overruled = [path for path in pieces if path in self.toc]
        if not changed and not removed and not overruled:
            return self.toc, self.gone
        toc, gone = dict(self.toc), dict(self.gone)
        for path in overruled:
            del toc[path]
        for path in removed:
            toc.pop(path, None)
            if path in self.listed:
                gone[path] = None
        for path, address in changed.items():
            gone.pop(path, None)
            if self.listed.get(path) == address:
                toc.pop(path, None)
            else:
                toc[path] = address
        return toc, gone

    def _rebased(self) -> tuple[Contents, Blob | None]:
        """Move the table into a new base, or drop the base if the table is short."""
        mine = {path: address for path, address in self.toc.items() if _is_listed(path)}
        rest = {path: address for path, address in self.toc.items() if not _is_listed(path)}
        kept = {path: address for path, address in self.listed.items() if path not in self.gone}
        listed = {path: address for path, address in {**kept, **mine}.items() if path not in self.pieces}
        if _length(listed) <= TOC_LENGTH_MAX // 2:
            return Contents(self.pieces, {**rest, **listed}), None
        addresses = list(listed.values())
        # Written like a value with chunks, so that its references are found.
        text = b'{"~":"toc","paths":%b,"chunks":%b}' % (dumps(list(listed)), dumps(addresses))
        blob = Blob.of(text, tuple(sorted(set(addresses))))
        return Contents(self.pieces, rest, blob.hash, listed), blob


def pieces_of(manifest: Manifest) -> dict[str, bytes]:
    """Return the inline texts of a checkpoint by path. Raises DamagedPartError."""
    return {path: dumps(tree) for path, tree in _pieces(manifest).items()}


def pieces_text(pieces: Mapping[str, bytes]) -> bytes:
    """Format inline texts for a manifest."""
    if not pieces:
        return b""
    return b"{" + b",".join([quoted(path) + b":" + text for path, text in pieces.items()]) + b"}"


def paths_of(manifest: Manifest) -> set[str]:
    """Return the paths about the run's status and outputs, without reading a blob."""
    return {*manifest.toc, *_pieces(manifest)}


def entries_of(manifest: Manifest, blobs: Mapping[str, bytes]) -> dict[str, Entry]:
    """Return all entries of a checkpoint by path: the hash of a blob, or an inline text.

    `blobs` must hold its base. Raises DamagedPartError.
    """
    return Contents.of(manifest, blobs).entries()


def only(manifest: Manifest, beginnings: tuple[str, ...]) -> Manifest:
    """Return a manifest with only the paths that start with one of `beginnings`, so that nothing else is read.

    Entries of the base are left out. Raises DamagedPartError.
    """
    toc = {path: address for path, address in manifest.toc.items() if path.startswith(beginnings)}
    pieces = {path: text for path, text in pieces_of(manifest).items() if path.startswith(beginnings)}
    return replace(manifest, toc=toc, pieces=pieces_text(pieces), base=None, gone=())


def _pieces(manifest: Manifest) -> dict[str, Any]:
    trees: Any = loads(manifest.pieces) if manifest.pieces else {}
    if type(trees) is not dict:
        raise DamagedPartError("its inline entries are not a JSON object")
    return cast("dict[str, Any]", trees)


def _listed(text: bytes) -> dict[str, str]:
    try:
        table: Any = loads(text)
        return dict(zip(table["paths"], table["chunks"], strict=True))
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedPartError(f"its table of contents can't be read: {error!r}") from error


def _is_listed(path: str) -> bool:
    return path.startswith(_LISTED)


def _length(paths: Iterable[str]) -> int:
    return sum([len(path) + _ENTRY_LENGTH for path in paths])


WIDTH = 16


class Gathered(NamedTuple):
    """A blob that groups chunks, at the path of the first of them."""

    path: str
    blob: Blob
    gone: tuple[str, ...]
    """The paths of the other chunks, which are removed."""


def gathered(path: str, address: Callable[[str], str | None]) -> Iterator[Gathered]:
    """Yield the groups to form now that the chunk at `path` is full. `address` returns the hash at a path."""
    trail, _, number = path.rpartition("/")
    count, step = int(number) + 1, 1
    while count % (step * WIDTH) == 0:
        firsts = range(count - step * WIDTH, count, step)
        addresses = [_address(trail, first, step, address) for first in firsts]
        known = [each for each in addresses if each is not None]
        if len(known) < WIDTH:
            return
        text = b'{"~":"index","chunks":%b}' % dumps(known)
        paths = [f"{trail}/{first}" for first in firsts]
        yield Gathered(paths[0], Blob.of(text, tuple(sorted(set(known)))), tuple(paths[1:]))
        step *= WIDTH


def _address(trail: str, first: int, step: int, address: Callable[[str], str | None]) -> str | None:
    """Return the hash of a group of `step` chunks; None if they are not grouped, as in earlier releases."""
    if step > 1 and address(f"{trail}/{first + 1}") is not None:
        return None
    return address(f"{trail}/{first}")
