"""What the file store does in a commit. Its caller holds the directory's lock."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from perdure.errors import WorkflowCheckpointException
from perdure.storage import rules
from perdure.storage.file.collecting import needs
from perdure.storage.file.document import Document, RunAfter
from perdure.storage.file.documents import usual_id
from perdure.storage.file.placing import placed
from perdure.storage.file.runinbox import CONSUMED_MAX
from perdure.storage.file.runjournal import Stay
from perdure.storage.file.runline import RunLine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.records import Claim, Command, Commit, Part
    from perdure.storage.backend import PendingCommit
    from perdure.storage.file.forgetting import Forgetting
    from perdure.storage.file.layout import Layout
    from perdure.storage.file.runlog import RunLog
    from perdure.storage.file.telling import Telling


@dataclass(frozen=True, slots=True, kw_only=True)
class Committing:
    """Lets checkpoints appear, with all that belongs to them."""

    layout: Layout
    telling: Telling
    forgetting: Forgetting

    def commit(self, pending: PendingCommit) -> None:
        """Write one commit, and note what waits and what is gone after it."""
        claim, commit = pending.claim, pending.commit
        files, checkpoint_id = self.layout, commit.manifest.checkpoint_id
        log, inbox = files.logs.of(claim.run_id), files.inboxes.of(claim.run_id)
        before = require(log.current(), claim, expected_head=commit.expected_head)
        rules.require_next(before.state, commit)
        parent = before.state.rests_on
        if parent is not None and not files.documents.exists(parent):
            rules.require_whole(before.state, commit)
        if files.documents.exists(checkpoint_id):
            raise rules.exists_already(checkpoint_id)
        waiting = inbox.waiting(before)
        rules.require_done({command.id for command in waiting}, commit)
        document, beside = self._prepared(before, commit)
        # One of a deleted checkpoint, whose id could be the one that is committed now.
        files.journals.of(claim.run_id).drop_if_void(Stay.of(before.state.record))
        files.protection.note(needs(document))
        files.besides.add(beside.values())
        if len(before.consumed) > CONSUMED_MAX:
            inbox.shorten(before)
            before = replace(before, consumed=())
        consumed = [command for command in waiting if command.id in commit.consumed]
        after = self._after(log, before, commit, document=document, consumed=consumed)
        told_of = RunAfter(commit.expected_head, after.consumed, after.forgotten)
        self._put(log, before, after, replace(document, run=told_of))
        pending.waiting = max((command.number for command in waiting if command not in consumed), default=0)
        # The commit has happened; what can't be forgotten now is forgotten after the next one.
        with contextlib.suppress(OSError, WorkflowCheckpointException):
            self._drop_void(log, before, after, consumed)
            self.forgetting.prune(log, after)
            self.forgetting.remove_finished(pending)

    def _prepared(self, before: RunLine, commit: Commit) -> tuple[Document, Mapping[str, Part]]:
        """The file to be written, and the parts to be written beside it."""
        previous = self.layout.documents.find(commit.expected_head) if commit.expected_head else None
        told = commit.events
        inline, beside = placed(
            commit.manifest.roots,
            carried=previous.parts if previous else {},
            new={part.hash: part for part in (*commit.parts, *(told.parts if told else ()))},
            told=told.refs if told else (),
        )
        document = Document(
            manifest=replace(commit.manifest, toc=MappingProxyType(dict(commit.manifest.toc))),
            settled=commit.settled,
            sequence=self.layout.counter.take(),
            parts=inline,
            status=commit.status,
            wake_at=commit.wake_at,
            events=before.state.record.events + (told.count if told else 0),
            batch=rules.told(before.state, commit),
        )
        return document, beside

    def _after(
        self, log: RunLog, before: RunLine, commit: Commit, *, document: Document, consumed: Sequence[Command]
    ) -> RunLine:
        """The run after the commit."""
        entry = document.entry
        return RunLine(
            change="commit",
            state=rules.committed(before.state, commit),
            newest=entry,
            subject=entry.checkpoint_id,
            life=before.life,
            consumed=(*before.consumed, *(command.number for command in consumed)),
            forgotten=self.telling.forgotten_with(log, before, entry),
        )

    def _put(self, log: RunLog, before: RunLine, after: RunLine, document: Document) -> None:
        """Let the commit happen: when its file appears, all else is there already."""
        manifest = document.manifest
        is_first = before.state.record.position == rules.BEFORE_THE_FIRST
        due = usual_id(manifest.run_id, before.state.record.position + 1)
        # Whoever comes to the end of the log looks for it under that name.
        is_found = not is_first and manifest.checkpoint_id == due and log.has_room
        if not is_found:
            log.append(after, sync=True)
        if is_first:
            self.layout.logs.sync()
        self.layout.workflows.note(manifest.workflow_name, manifest.run_id, manifest.position)
        self.layout.documents.put(document)
        if is_found:
            log.note(after)

    def _drop_void(self, log: RunLog, before: RunLine, after: RunLine, consumed: Sequence[Command]) -> None:
        """Remove what the commit has made void."""
        files, name = self.layout, log.path.name
        files.drop_journal(name)
        if consumed and not files.inboxes.named(name).waiting(after):
            self.forgetting.settle(log, after)
            files.inboxes.named(name).drop()
        files.count_pruned(sum(1 for command in consumed if command.refs))
        if after.forgotten > before.forgotten:
            files.events.named(name).shorten(after)
            files.count_pruned(1)


def require(line: RunLine | None, claim: Claim, *, expected_head: str | None) -> RunLine:
    """The run, if the claim still stands and the head is the expected one."""
    state = rules.require_claim(line.state if line else None, claim, expected_head=expected_head)
    rules.require_head(state, expected_head)
    assert line is not None, "there is no state without a line"
    return line
