"""Pairs of English and another language from Debian packages, for a third language to join a space.

    python -m benchmarks.debian --lang de --out debian-de

needs Debian's `apt-get` and `dpkg-deb`, and writes to the folder

- `mo/`: the message catalogues of that language in the packages below, which `dualmoco prepare` can read,
- `dictionary.tsv`: for German, entries of the dictionary in `trans-de-en`,
- `descriptions.tsv`: sentences of package descriptions with the same number of sentences in both languages.

Each file keeps the licence of its package; none of them is part of this project. `recipes/prepare-en-de.yaml` uses
them.
"""

from __future__ import annotations

import argparse
import io
import itertools
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from dualmoco.core.storage import new_file

PACKAGES = """
    aisleriot akregator apt aptitude-common audacity-data bash binutils-common cataclysm-dda-data coreutils darktable
    digikam-data dolphin dpkg epiphany-browser-data evolution-common freeciv-data gcc-12-locales gimp-data git
    gnome-control-center-data gnucash-common gnupg-l10n gramps hugin-data inkscape iso-codes kalzium-data kate5-data
    kdenlive-data kdepim-runtime kdevelop-l10n kile kmail kmymoney-common konversation korganizer krita-l10n kstars-data
    libkf5i18n-data libreoffice-l10n-{lang} lordsawar-data lyx-common marble-data mutt nautilus-data okular pan
    pioneers-data plasma-workspace-data quadrapassel rhythmbox-data scribus skrooge-common step tellico-data
    tuxpaint-data vlc-l10n warzone2100-data wesnoth-1.16-core wesnoth-1.16-data
""".split()
DICTIONARIES = {"de": ("trans-de-en", "/trans/de-en")}  # package, and how the path of its file ends
REMARKS = re.compile(r"\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|/[^/]*/|<[^>]*>")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-ZÄÖÜÉÀ])")
DESCRIPTION = re.compile(r"^Description-md5: (\w+)\nDescription-\w+: (.*?)(?=^\w|\Z)", re.DOTALL | re.MULTILINE)
SYNONYMS = 2  # maximum synonyms per entry


def main() -> None:
    """Downloads packages one at a time, and keeps the needed files of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lang", required=True, help="language code, such as de")
    parser.add_argument("--out", required=True, type=Path, help="folder to write to")
    parser.add_argument("--debs", type=Path, help="folder with packages that were already downloaded")
    parsed = parser.parse_args()
    (parsed.out / "mo").mkdir(parents=True, exist_ok=True)
    wanted = f"/{parsed.lang}/LC_MESSAGES/"
    for package in tqdm(PACKAGES, desc="packages"):
        for path, content in files_of(package.format(lang=parsed.lang), parsed.debs):
            if wanted in path and path.endswith(".mo"):
                with new_file(parsed.out / "mo" / f"{package.format(lang='')}.{Path(path).name}") as stream:
                    stream.write(content)
    if parsed.lang in DICTIONARIES:
        package, ending = DICTIONARIES[parsed.lang]
        found = [content for path, content in files_of(package, parsed.debs) if path.endswith(ending)]
        write_pairs(parsed.out / "dictionary.tsv", dictionary_pairs(found[0].decode("utf-8")))
    write_pairs(parsed.out / "descriptions.tsv", description_pairs(parsed.lang))


def files_of(
    package: str, debs: Path | None, endings: tuple[str, ...] = (".mo", "/de-en")
) -> Iterator[tuple[str, bytes]]:
    """Paths and contents of the files of a package; if it cannot be downloaded, prints that and returns none."""
    with tempfile.TemporaryDirectory() as folder:
        known = sorted(debs.glob(f"{package}_*.deb")) if debs else []
        if not known:
            done = subprocess.run(["apt-get", "download", "-qq", package], cwd=folder, capture_output=True, check=False)
            known = sorted(Path(folder).glob("*.deb"))
            if done.returncode or not known:
                print(f"{package}: cannot be downloaded, skipped")
                return
        archive = subprocess.run(["dpkg-deb", "--fsys-tarfile", known[0]], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            opened = files.extractfile(member) if member.isfile() else None
            if opened and member.name.endswith(endings):
                yield member.name, opened.read()


def dictionary_pairs(text: str) -> Iterator[tuple[str, str]]:
    """English and other side of a dictionary's entries: `word; synonym | other form :: ...`, without remarks."""
    for line in text.splitlines():
        if line.startswith("#") or " :: " not in line:
            continue
        other, english = (REMARKS.sub(" ", side).split("|") for side in line.split(" :: ", 1))
        for forms in zip(english, other, strict=False):
            synonyms = [[" ".join(word.split()) for word in form.split(";")[:SYNONYMS]] for form in forms]
            yield from ((src, tgt) for src, tgt in itertools.product(*synonyms) if src and tgt)


def description_pairs(lang: str) -> Iterator[tuple[str, str]]:
    """Sentences of package descriptions in both languages, by the checksum of the English one."""
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("lists/partial", "cache"):
            (Path(folder) / kind).mkdir(parents=True)
        options = [
            f"Dir::State::lists={folder}/lists",
            f"Dir::Cache={folder}/cache",
            f"Acquire::Languages={lang},en",
            "Acquire::GzipIndexes=false",
        ]
        words = [word for option in options for word in ("-o", option)]
        subprocess.run(["apt-get", *words, "update", "-qq"], capture_output=True, check=False)
        english, other = (
            dict(itertools.chain.from_iterable(map(stanzas, Path(folder, "lists").glob(f"*Translation-{code}*"))))
            for code in ("en", lang)
        )
    for checksum, translated in other.items():
        paragraphs = [english.get(checksum, []), translated]
        if len(paragraphs[0]) != len(paragraphs[1]):
            continue
        for pair in zip(*paragraphs, strict=True):
            sides = [SENTENCE_END.split(side) for side in pair]
            if len(sides[0]) == len(sides[1]):
                yield from zip(*sides, strict=True)


def stanzas(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Checksums and paragraphs of the descriptions in one of apt's lists."""
    text = path.read_text(encoding="utf-8")
    for stanza in text.split("\n\n"):
        found = re.search(
            r"^Description-md5: (\w+)\nDescription-\w+: (.*?)(?=^\w|\Z)", stanza, re.DOTALL | re.MULTILINE
        )
        if found:
            title, *body = found[2].strip("\n").split("\n")
            joined = "\n".join(line.strip() for line in body)
            yield found[1], [title, *(" ".join(part.split()) for part in re.split(r"^\.$", joined, flags=re.MULTILINE))]


def write_pairs(path: Path, pairs: Iterator[tuple[str, str]]) -> None:
    """Writes distinct pairs as TSV and prints their number."""
    distinct = dict.fromkeys(pairs)
    with new_file(path) as stream:
        stream.write("".join(f"{src}\t{tgt}\n" for src, tgt in distinct).encode("utf-8"))
    print(f"{path}: {len(distinct):,} pairs")


if __name__ == "__main__":
    main()
