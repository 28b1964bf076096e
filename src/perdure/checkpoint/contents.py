"""What a checkpoint has at which path, wherever it stands: in itself, in its table of contents or the base of that."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from perdure.codec import DamagedPartError, dumps, loads, quoted, verified
from perdure.data import value
from perdure.records import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from perdure.checkpoint.documents import Entry
    from perdure.records import Manifest

TOC_LENGTH_MAX = 4096
"""A longer table of contents stands in a part of its own, and a checkpoint says what has changed since."""

# Requests stay in the table itself, where stores compare what a command expects; and what says how the run stands, or
# what it gave, is read without the rest, which may be much.
_LISTED = ("state/", "executor/", "carried/", "child/")

_ENTRY_LENGTH = 48
"""Of an entry of the table beside its path: a hash and what is around it."""


@value
class Contents:
    """The entries of one checkpoint. Those in `pieces` and `toc` go before those that are `listed` in its base."""

    pieces: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Texts that stand in the checkpoint itself."""
    toc: Mapping[str, str] = field(default_factory=dict[str, str])
    base: str | None = None
    listed: Mapping[str, str] = field(default_factory=dict[str, str])
    gone: Mapping[str, None] = field(default_factory=dict[str, None])
    """The paths of the base that are not there any more, in order."""
    spent: int = 0
    """What the differences from the base have taken in all checkpoints since it was written."""

    @classmethod
    def of(cls, manifest: Manifest, parts: Mapping[str, bytes]) -> Contents:
        """Those of a checkpoint, from the part of its base if it has one. Raises DamagedPartError."""
        listed = {} if manifest.base is None else _listed(verified(parts, manifest.base))
        changed = sum(map(_is_listed, manifest.toc)) + len(manifest.gone)
        return cls(
            pieces_of(manifest),
            manifest.toc,
            manifest.base,
            listed,
            dict.fromkeys(manifest.gone),
            # As if they had come one by one.
            spent=changed * changed * _ENTRY_LENGTH // 2,
        )

    def entries(self) -> dict[str, Entry]:
        """All of them by path: the hash of a part, or a text."""
        rest = {path: address for path, address in self.listed.items() if path not in self.gone}
        return {**rest, **self.toc, **self.pieces}

    def address(self, path: str) -> str | None:
        """The hash of the part that stands at a path."""
        if path in self.pieces:
            return None
        return self.toc.get(path) or (None if path in self.gone else self.listed.get(path))

    def followed(
        self, pieces: Mapping[str, bytes], *, changed: Mapping[str, str], removed: Iterable[str]
    ) -> tuple[Contents, Part | None]:
        """The contents of the next checkpoint, and the part that they rest on, if it is a new one.

        `pieces` are all that stand in it; `changed` and `removed` are what changes in the table of contents.
        """
        toc, gone = self._changed(pieces, changed, removed)
        if toc is self.toc and self.base is None:
            return Contents(pieces, toc), None
        spent = self.spent + _length(toc) + _length(gone)
        after = Contents(pieces, toc, self.base, self.listed, gone, spent)
        return after._rebased() if after._needs_base() else (after, None)

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

    def _needs_base(self) -> bool:
        if self.base is None:
            return _length(filter(_is_listed, self.toc)) > TOC_LENGTH_MAX
        return self.spent > _length(self.listed)

    def _rebased(self) -> tuple[Contents, Part | None]:
        """The same with a new base, or with none if it would be short by now."""
        mine = {path: address for path, address in self.toc.items() if _is_listed(path)}
        rest = {path: address for path, address in self.toc.items() if not _is_listed(path)}
        kept = {path: address for path, address in self.listed.items() if path not in self.gone}
        listed = {path: address for path, address in {**kept, **mine}.items() if path not in self.pieces}
        if _length(listed) <= TOC_LENGTH_MAX // 2:
            return Contents(self.pieces, {**rest, **listed}), None
        addresses = list(listed.values())
        # Written like a value with chunks: whoever asks what a part refers to finds it.
        text = b'{"~":"toc","paths":%b,"chunks":%b}' % (dumps(list(listed)), dumps(addresses))
        part = Part.of(text, tuple(sorted(set(addresses))))
        return Contents(self.pieces, rest, part.hash, listed), part


def pieces_of(manifest: Manifest) -> dict[str, bytes]:
    """What stands in a checkpoint itself, by path. Raises DamagedPartError."""
    return {path: dumps(tree) for path, tree in _pieces(manifest).items()}


def pieces_text(pieces: Mapping[str, bytes]) -> bytes:
    """The same as a manifest has it."""
    if not pieces:
        return b""
    return b"{" + b",".join([quoted(path) + b":" + text for path, text in pieces.items()]) + b"}"


def paths_of(manifest: Manifest) -> set[str]:
    """The paths of a checkpoint that say how the run stands and what it gave, without reading any part."""
    return {*manifest.toc, *_pieces(manifest)}


def entries_of(manifest: Manifest, parts: Mapping[str, bytes]) -> dict[str, Entry]:
    """Everything that a checkpoint has, by path: the hash of a part, or the text that stands in the checkpoint itself.

    `parts` holds its base, if it has one. Raises DamagedPartError.
    """
    return Contents.of(manifest, parts).entries()


def only(manifest: Manifest, beginnings: tuple[str, ...]) -> Manifest:
    """A manifest with some of its paths: nothing else is read, nor has to be known by its type.

    What stands in the base is not among them. Raises DamagedPartError.
    """
    toc = {path: address for path, address in manifest.toc.items() if path.startswith(beginnings)}
    pieces = {path: text for path, text in pieces_of(manifest).items() if path.startswith(beginnings)}
    return replace(manifest, toc=toc, pieces=pieces_text(pieces), base=None, gone=())


def _pieces(manifest: Manifest) -> dict[str, Any]:
    trees: Any = loads(manifest.pieces) if manifest.pieces else {}
    if type(trees) is not dict:
        raise DamagedPartError("what stands in it is no JSON object")
    return cast("dict[str, Any]", trees)


def _listed(text: bytes) -> dict[str, str]:
    try:
        table: Any = loads(text)
        return dict(zip(table["paths"], table["chunks"], strict=True))
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedPartError(f"its table of contents is none: {error!r}") from error


def _is_listed(path: str) -> bool:
    return path.startswith(_LISTED)


def _length(paths: Iterable[str]) -> int:
    return sum([len(path) + _ENTRY_LENGTH for path in paths])


WIDTH = 16


class Gathered(NamedTuple):
    """A part that puts others together, at the path of the first of them."""

    path: str
    part: Part
    gone: tuple[str, ...]
    """The paths of the others, where nothing stands any more."""


def gathered(path: str, address: Callable[[str], str | None]) -> Iterator[Gathered]:
    """What is to be put together now that a chunk is full. `address` says what stands at a path, step by step."""
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
        yield Gathered(paths[0], Part.of(text, tuple(sorted(set(known)))), tuple(paths[1:]))
        step *= WIDTH


def _address(trail: str, first: int, step: int, address: Callable[[str], str | None]) -> str | None:
    """What holds so many chunks; None if they stand one by one, as those of earlier releases do."""
    if step > 1 and address(f"{trail}/{first + 1}") is not None:
        return None
    return address(f"{trail}/{first}")
