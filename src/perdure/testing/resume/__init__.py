"""The resume suite: kills your workflow again and again, and checks six properties.

    subject = Subject(build=my_workflow, message=7, answer=lambda request: True)

    if __name__ == "__main__":
        main(subject)

`python my_check.py` runs it in real processes with real SIGKILL on every store and prints a table. In a test, check
`run_suite("my_check.py").is_clean`. See docs/resume-suite.md.
"""

from perdure.testing.resume.kill_points import WINDOWS, Chance, effect, reach, returned, was_begun
from perdure.testing.resume.storage_kinds import SHIPPED, Kind, Storages, postgres_kind
from perdure.testing.resume.subject import Subject
from perdure.testing.resume.suite import Report, Violation, main, run_suite

__all__ = [
    "SHIPPED",
    "WINDOWS",
    "Chance",
    "Kind",
    "Report",
    "Storages",
    "Subject",
    "Violation",
    "effect",
    "main",
    "postgres_kind",
    "reach",
    "returned",
    "run_suite",
    "was_begun",
]
