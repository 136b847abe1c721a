"""A project: the folder of plain files that a server works on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dualmoco.core import VERSION
from dualmoco.core.errors import DataError
from dualmoco.core.storage import LOCK, MAX_NAME_BYTES, check_contained, locked, write_json

PROJECT_FOLDERS = ("documents", "alignments", "reviews", "indexes", "exports", "jobs")
PROJECT_RECORD = "project.json"  # marks a folder as a project
UNPORTABLE = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*]|^[. ~-]|[. ]$|^(con|prn|aux|nul|com\d|lpt\d)(\.|$)', re.IGNORECASE)


class NotFoundError(DataError):
    """A file of the project does not exist."""


class Project:
    """The files of a project.

    Args:
        folder: An existing project, or an empty or missing folder, which becomes one.

    Raises:
        DataError: The folder has other contents.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).resolve()
        if self.folder.exists() and not self.folder.is_dir():
            raise DataError(f"{folder}: a file; expected a project, or an empty or new folder for one")
        held = sorted(path.name for path in self.folder.iterdir()) if self.folder.is_dir() else []
        if PROJECT_RECORD in held:
            return
        if others := [name for name in held if name != LOCK]:
            raise DataError(
                f"{folder}: contains {others[0]}, but no project; expected a project, or an empty or new folder for one"
            )
        write_json(self.folder / PROJECT_RECORD, {"tool": f"dualmoco {VERSION}", "format": 1})

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.name

    def path(self, *parts: str) -> Path:
        """The path of a file or folder of the project, whether it exists or not.

        Args:
            parts: Names of folders and of the file; the first is one of PROJECT_FOLDERS.

        Raises:
            DataError: A name is invalid on some systems or leads out of the project by `..` or a link, or the project
                was moved or deleted.
        """
        if not (self.folder / PROJECT_RECORD).is_file():
            raise DataError(f"{self.folder}: the project was moved or deleted; restore it, or start the server again")
        if not parts or parts[0] not in PROJECT_FOLDERS:
            raise DataError(f"{'/'.join(parts)}: not in a project; expected one of {', '.join(PROJECT_FOLDERS)}")
        for part in parts:
            if not part or UNPORTABLE.search(part) or len(part.encode()) > MAX_NAME_BYTES:
                raise DataError(
                    f"{part!r:.100}: not a file name that works on every system; expected letters, digits and spaces, "
                    "without slashes and control characters"
                )
        path = self.folder.joinpath(*parts)
        check_contained(path, self.folder)
        return path

    def existing(self, *parts: str) -> Path:
        """Same as `path`, with NotFoundError if the file or folder does not exist."""
        path = self.path(*parts)
        if not path.exists():
            raise NotFoundError(f"{'/'.join(parts)}: no such file in the project")
        return path

    def names(self, *parts: str) -> list[str]:
        """The names of the files and folders in a folder of the project, in order, without temporary ones."""
        path = self.path(*parts)
        return sorted(file.name for file in path.iterdir() if file.name[0] != ".") if path.is_dir() else []


@contextmanager
def open_project(folder: str | Path) -> Iterator[Project]:
    """Locks a project against other servers; RunError if another server has opened it."""
    project = Project(folder)
    with locked(project.folder):
        yield project
