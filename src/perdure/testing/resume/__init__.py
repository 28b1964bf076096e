"""The resume suite: a workflow of yours, killed again and again, and six properties that hold nevertheless.

    subject = Subject(build=my_workflow, message=7, answer=lambda request: True)

    if __name__ == "__main__":
        main(subject)

`python my_check.py` runs it in real processes with real SIGKILL on every store and prints a table. In a test,
`run_suite("my_check.py").is_clean` says the same. docs/resume-suite.md has the rest.
"""

from perdure.testing.resume.effects import effect, returned, was_begun
from perdure.testing.resume.kill_points import Chance
from perdure.testing.resume.storage_kinds import Kind, postgres_kind
from perdure.testing.resume.subject import Subject
from perdure.testing.resume.suite import Report, Violation, main, run_suite

__all__ = [
    "Chance",
    "Kind",
    "Report",
    "Subject",
    "Violation",
    "effect",
    "main",
    "postgres_kind",
    "returned",
    "run_suite",
    "was_begun",
]
