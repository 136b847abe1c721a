"""Projects, and what they refuse."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from dualmoco.core.errors import DataError, RunError
from dualmoco.server.project import NotFoundError, Project, open_project


def test_new_and_empty_folders_become_projects(tmp_path: Path) -> None:
    """And open again as what they are."""
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        Project(tmp_path / name)
        (tmp_path / name / "notes.txt").write_text("may be there")
        assert Project(tmp_path / name).name == name


def test_other_folders_are_refused(tmp_path: Path) -> None:
    """Nothing is written into them."""
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(DataError, match=r"contains thesis\.txt, but no project"):
        Project(tmp_path)
    with pytest.raises(DataError, match="a file; expected a project"):
        Project(tmp_path / "thesis.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_two_servers_cannot_open_one_project(tmp_path: Path) -> None:
    """The second one hears why."""
    with open_project(tmp_path / "p"):
        with pytest.raises(RunError, match="in use by another process"), open_project(tmp_path / "p"):
            pass
    with open_project(tmp_path / "p"):
        pass


@pytest.mark.parametrize("name", ["第一章.txt", "Chapter 1.txt", "a-b_c (2).tmx", "résumé.docx"])
def test_usual_names_are_taken(tmp_path: Path, name: str) -> None:
    """Of any language."""
    assert Project(tmp_path / "p").path("documents", name) == (tmp_path / "p" / "documents" / name).resolve()


@pytest.mark.parametrize(
    "name", ["", "..", ".", "a/b", "a\\b", "/etc", "a\0", "NUL", "lpt1.txt", "a.", "a ", "-x", "a:b"]
)
def test_unportable_names_are_refused(tmp_path: Path, name: str) -> None:
    """Before anything is read or written."""
    with pytest.raises(DataError, match="not a file name"):
        Project(tmp_path / "p").path("documents", name)


def test_links_out_of_the_project_are_refused(tmp_path: Path) -> None:
    """Of a file, and of a folder on the way."""
    project = Project(tmp_path / "p")
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "p" / "documents").mkdir()
    (tmp_path / "p" / "documents" / "a.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "p" / "reviews").symlink_to(tmp_path)
    for parts in (("documents", "a.txt"), ("reviews", "secret.txt")):
        with pytest.raises(DataError, match="is outside"):
            project.path(*parts)


def test_what_is_missing_has_its_own_error(tmp_path: Path) -> None:
    """Other folders are not part of a project."""
    project = Project(tmp_path / "p")
    with pytest.raises(NotFoundError, match=r"documents/a\.txt"):
        project.existing("documents", "a.txt")
    with pytest.raises(DataError, match="expected one of documents"):
        project.path("private", "a.txt")


def test_a_deleted_project_is_an_error_of_the_request(client: TestClient, tmp_path: Path) -> None:
    """The server goes on, and works again when the folder is back; nothing is created where it was."""
    (tmp_path / "project").rename(tmp_path / "moved")
    answer = client.put("/api/documents/a.txt", content=b"A")
    assert answer.status_code == 400 and "moved or deleted" in answer.json()["error"]["message"]
    assert not (tmp_path / "project").exists()
    (tmp_path / "moved").rename(tmp_path / "project")
    assert client.put("/api/documents/a.txt", content=b"A").status_code == 201


def test_documents_come_and_go(client: TestClient, tmp_path: Path) -> None:
    """As files of the project; two browsers see the same."""
    name = "第 1 章 #2.txt"
    assert client.put("/api/documents/" + name.replace(" ", "%20").replace("#", "%23"), content=b"Hello.").json() == {
        "name": name,
        "bytes": 6,
    }
    assert (tmp_path / "project" / "documents" / name).read_bytes() == b"Hello."
    assert client.get("/api/documents").json() == {"documents": [{"name": name, "bytes": 6}]}
    shutil.copy(tmp_path / "project" / "documents" / name, tmp_path / "project" / "documents" / "b.txt")
    assert client.delete("/api/documents/b.txt").json() == {"name": "b.txt"}
    assert client.delete("/api/documents/b.txt").status_code == 404
