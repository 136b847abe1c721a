"""Writes the generated pages of the documentation, and the tables between markers in other pages: `make reference`.

A table stands between two comments, `<!-- generated: NAME -->` and `<!-- end: NAME -->`; NAME is one of SECTIONS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

import reference_commands as commands
import reference_data as data
import reference_keys as keys
import reference_results as results
from dualmoco.models.embedded import HOME

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MARKED = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end: \2 -->)", re.DOTALL)
SECTIONS: dict[str, Callable[[], str]] = {
    "commands": commands.command_table,
    "exit-statuses": commands.status_table,
    "bitext-formats": data.bitext_formats,
    "document-formats": data.document_formats,
    "pair-files": data.pair_files,
    "pair-columns": data.pair_columns,
    "alignment-files": data.alignment_files,
    "model-names": data.model_names,
    "embedded-models": data.embedded_models,
    "extras": data.extras,
    "recipes": data.recipes,
    "python": data.python_table,
    **results.SECTIONS,
}
"""What stands between the markers, by name."""


def whole_pages() -> dict[Path, str]:
    """The pages that are generated as a whole."""
    reference = DOCS / "reference"
    pages = {
        reference / "recipe-keys.md": keys.recipe_keys(),
        reference / "prepare-keys.md": keys.prepare_keys(),
        reference / "study-keys.md": keys.study_keys(),
    }
    for name in commands.leaves():
        pages[reference / "commands" / commands.file_name(name)] = commands.command_page(name)
    for folder in data.TOPICS:
        pages[reference / "python" / f"{folder}.md"] = data.python_page(folder)
    return {path: f"{text.rstrip()}\n" for path, text in pages.items()}


def fill_in(text: str) -> str:
    """A page with the tables between its markers as they should be."""
    return MARKED.sub(lambda found: f"{found[1]}\n{SECTIONS[found[2]]()}\n\n{found[3]}", text)


def read_config() -> Any:
    """The settings of the site; the tags that only Zensical understands are left out."""
    text = re.sub(r"!!python/\S+", "", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    return yaml.safe_load(text)


def titled_pages(entries: Any, section: str = "") -> Iterator[tuple[str, str, str]]:
    """Yields section, title and file of every page of the navigation; a page without a title has its heading."""
    for entry in entries:
        title, value = next(iter(entry.items())) if isinstance(entry, dict) else ("", entry)
        if isinstance(value, list):
            yield from titled_pages(value, section or title)
        else:
            yield section, title, value


def summary(page: Path) -> tuple[str, str]:
    """The heading of a page, and its first paragraph as plain text on one line."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    heading = re.search(r"^# (.+)$", text, flags=re.MULTILINE)
    paragraphs = [block for block in text.split("\n\n") if re.match(r"[\w`*\"(\[]", block)]
    first = " ".join(paragraphs[0].split()) if paragraphs else ""
    return (heading[1] if heading else page.stem), re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", first)


def llms_txt() -> str:
    """The site for language models, as https://llmstxt.org describes it: every page with its first sentence."""
    config = read_config()
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}."]
    last = None
    for section, title, page in titled_pages(config["nav"]):
        if section != last:
            lines += ["", f"## {section or 'Start'}", ""]
            last = section
        heading, first = summary(DOCS / page)
        sentence = re.split(r"(?<=[.!?]) ", first)[0].rstrip(":")
        lines.append(f"- [{title or heading}]({page.removesuffix('.md')}.html): {sentence}")
    return "\n".join(lines) + "\n"


def expected_files() -> dict[Path, str]:
    """Every file that `make reference` writes, and what must be in it."""
    files = whole_pages()
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), *sorted(HOME.glob("*/README.md"))]:
        text = page.read_text(encoding="utf-8")
        if page not in files and MARKED.search(text):
            files[page] = fill_in(text)
    return files


def write_all() -> None:
    """Writes all of them, and llms.txt, which is made of the pages."""
    for path, text in expected_files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (DOCS / "llms.txt").write_text(llms_txt(), encoding="utf-8")


if __name__ == "__main__":
    write_all()
