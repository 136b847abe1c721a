"""Reviews of mined sentence pairs: their files in a project, and the pairs and judgements of open reviews.

A review is a folder `reviews/NAME`: `review.json` names the file of pairs, and `journal.jsonl` has the judgements.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.storage import read_json, write_json
from dualmoco.core.vectors import Ids
from dualmoco.mining.judgements import ACCEPTED, REJECTED, UNJUDGED, VERDICTS, Judgements
from dualmoco.mining.pair_columns import PairColumns, read_pair_columns
from dualmoco.server.journal import UNDO, Journal, replay
from dualmoco.server.project import NotFoundError, Project
from dualmoco.server.studio import Studio

REVIEW_FILE, REVIEW_JOURNAL = "review.json", "journal.jsonl"
JUDGE, SET_THRESHOLD = "judge", "threshold"
OPEN_REVIEWS = 3
KEPT_VIEWS = 6  # maximum lists of rows in memory per review
REVIEW_BINS = 60
LEXICON_PAIRS = 200
SHOWN = {"unjudged": UNJUDGED, "accepted": ACCEPTED, "rejected": REJECTED}
VERDICT_NAMES = {code: name for name, code in VERDICTS.items()}


class OpenReview:
    """A review with its pairs in memory. Its methods are called with its lock held.

    Args:
        path: File of pairs.
        journal: Journal of the review.
    """

    def __init__(self, path: Path, journal: Journal) -> None:
        self.lock = threading.RLock()
        self.version = _file_version(path)
        self.judgements, self.journal = Judgements(read_pair_columns(path)), journal
        self._views: OrderedDict[str, Ids] = OrderedDict()
        self._replay()

    @property
    def pairs(self) -> PairColumns:
        """The pairs."""
        return self.judgements.pairs

    def _replay(self) -> None:
        events = replay(self.journal.events())
        self.judgements.replay(event for event in events if event.get("type") == JUDGE)
        lowest = float(self.judgements.sorted_scores[-1])
        noted = self.pairs.threshold
        chosen = [event["value"] for event in events if event.get("type") == SET_THRESHOLD]
        self.threshold = float(chosen[-1]) if chosen else max(lowest, lowest if noted is None else noted)

    def append(self, event: Mapping[str, Any], expected: int) -> dict[str, Any]:
        """Writes an event and applies it; returns the row whose verdict it changes, if any, and the verdict."""
        before = replay(self.journal.events())[-1:] if event["type"] == UNDO else []
        self.journal.append(event, expected)
        if event["type"] == JUDGE:
            self.judgements.apply(event)
        else:
            self._replay()
        changed = [event, *before][-1] if event["type"] in (JUDGE, UNDO) else {}
        row = self.judgements.find(changed) if changed.get("type") == JUDGE else None
        return {"row": row, "verdict": None if row is None else VERDICT_NAMES.get(int(self.judgements.verdicts[row]))}

    def view(self, order: str, show: str, band: int | None, text: str) -> tuple[str, Ids]:
        """Rows in some order, filtered by the current judgements, and a name for `rows` to find them again."""
        rows = self._ordered(order)
        if show != "all":
            rows = rows[self.judgements.verdicts[rows] == SHOWN[show]]
        if band is not None:
            rows = rows[self.judgements.bands_of(rows) == band]
        if text:
            rows = rows[self.pairs.holds(text)[rows]]
        name = f"{self.version}-{self.journal.revision}-{order}-{show}-{band}-{text}"
        self._views[name] = rows
        while len(self._views) > KEPT_VIEWS:
            self._views.popitem(last=False)
        return name, rows

    def _ordered(self, order: str) -> Ids:
        if order == "score":
            return self.judgements.order
        if order == "random":
            return self.judgements.drawing_order
        return np.argsort(np.abs(self.pairs.scores - self.threshold), kind="stable")

    def known_view(self, name: str) -> Ids:
        """The rows of a view; NotFoundError if it is no longer in memory."""
        if name not in self._views:
            raise NotFoundError("this list is no longer available; reload the page")
        self._views.move_to_end(name)
        return self._views[name]

    def shown(self, rows: Ids) -> list[dict[str, Any]]:
        """Some pairs, as shown on the page."""
        bands = self.judgements.bands_of(rows).tolist()
        return [
            {
                "row": row,
                "src": pair["src"],
                "tgt": pair["tgt"],
                "score": pair["score"],
                "lines": [pair.get("src_line"), pair.get("tgt_line")],
                "band": band,
                "verdict": VERDICT_NAMES.get(int(self.judgements.verdicts[row])),
            }
            for row, band, pair in zip(rows.tolist(), bands, self.pairs.rows(rows), strict=True)
        ]

    def sentences(self, row: int) -> tuple[str, str]:
        """Both sentences of a pair."""
        pair = self.pairs.rows(np.array([row]))[0]
        return pair["src"], pair["tgt"]

    @cached_property
    def examples(self) -> list[tuple[str, str]]:
        """Pairs with high scores, to learn translations of words from."""
        rows = self.judgements.order[: max(1, len(self.pairs) // 2)]
        chosen = rows[np.unique(np.linspace(0, len(rows) - 1, LEXICON_PAIRS).astype(np.int64))]
        return [(pair["src"], pair["tgt"]) for pair in self.pairs.rows(chosen)]

    def state(self) -> dict[str, Any]:
        """The state that changes with every judgement."""
        return {
            "revision": self.journal.revision,
            "threshold": self.threshold,
            "counts": self.judgements.counts(),
            "gone": self.judgements.gone,
            "estimate": asdict(self.judgements.estimate(self.threshold)),
            "bands": self.bands(),
        }

    def bands(self) -> list[dict[str, Any]]:
        """The bands of scores, the highest first."""
        found = []
        scores, edges = self.judgements.sorted_scores, self.judgements.edges
        for first, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            part = self.judgements.count_right(first, end)
            quality = {"precision": part.share, "judged": part.judged, "drawn": part.drawn}
            found.append({"low": scores[end - 1], "high": scores[first], "pairs": end - first, **quality})
        return found

    def histogram(self) -> dict[str, Any]:
        """The scores in bins of equal width, and the effect of a threshold at the lower end of each bin."""
        counts, edges = np.histogram(self.pairs.scores, REVIEW_BINS)
        estimates = [asdict(self.judgements.estimate(edge)) for edge in edges[:-1].tolist()]
        return {"edges": edges.tolist(), "counts": counts.tolist(), "estimates": estimates}


def _file_version(path: Path) -> str:
    status = path.stat()
    return f"{status.st_mtime_ns}-{status.st_size}"


class Reviews:
    """The reviews of a project.

    Args:
        studio: The project, its jobs and models.
    """

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        self._open: OrderedDict[str, OpenReview] = OrderedDict()
        self._opening = threading.Lock()

    @property
    def project(self) -> Project:
        """The project."""
        return self.studio.project

    def create(self, file: str) -> str:
        """Makes a review of a file of pairs of the project, such as `documents/pairs.tsv`; returns its name."""
        path = self.project.existing(*file.split("/"))
        name = self._free_name(path.name.partition(".")[0])
        review = OpenReview(path, Journal(self.project.path("reviews", name) / REVIEW_JOURNAL))  # may be refused
        write_json(self.project.path("reviews", name, REVIEW_FILE), {"file": file})
        with self._opening:
            self._keep(name, review)
        return name

    def mine(self, src: str, tgt: str, options: Mapping[str, Any]) -> str:
        """Starts to mine two documents, and makes a review of the result; returns its name."""
        files = [self.project.existing("documents", name) for name in (src, tgt)]
        name = self._free_name("-".join(file.name.partition(".")[0] for file in files))
        out = f"reviews/{name}/pairs.tsv"
        words = ["mine", *(f"documents/{file.name}" for file in files), "--out", out]
        named = options.get("model")
        words += ["--model", self.studio.model_name(named)] if named else self.studio.model_words
        if options.get("everything"):
            words += ["--threshold", "-1"]
        write_json(self.project.path("reviews", name, REVIEW_FILE), {"file": out, "job": None})
        job = self.studio.jobs.start("mine", f"Mine {src} and {tgt}", words)
        write_json(self.project.path("reviews", name, REVIEW_FILE), {"file": out, "job": job.id})
        return name

    def _free_name(self, name: str) -> str:
        taken, number = self.project.names("reviews"), 1
        free = name = name.strip(". ")[:80] or "pairs"
        while free in taken:
            number += 1
            free = f"{name}-{number}"
        return free

    def list(self) -> list[dict[str, Any]]:
        """All reviews, with the data that are known without opening them."""
        found = []
        for name in self.project.names("reviews"):
            try:
                about = self.about(name)
                journal = Journal(self.project.path("reviews", name, REVIEW_JOURNAL))
                judged = {event["row"] for event in replay(journal.events()) if event["type"] == JUDGE}
                found.append({**about, "judged": len(judged)})
            except DataError as error:
                found.append({"name": name, "file": None, "job": None, "judged": 0, "error": str(error)})
        return found

    def about(self, name: str) -> dict[str, Any]:
        """The name, the file and the job of a review."""
        path = self.project.existing("reviews", name, REVIEW_FILE)
        try:
            noted = read_json(path)
            file, job = str(noted["file"]), noted.get("job")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DataError(f"reviews/{name}/{REVIEW_FILE}: damaged; expected the name of a file of pairs") from None
        is_there = self.project.path(*file.split("/")).exists()
        return {"name": name, "file": file, "job": job, "ready": is_there}

    def get(self, name: str) -> OpenReview:
        """An open review, read again if its file has changed."""
        about = self.about(name)
        path = self.project.existing(*about["file"].split("/"))
        with self._opening:
            review = self._open.get(name)
            if review is None or review.version != _file_version(path):
                review = OpenReview(path, Journal(self.project.path("reviews", name, REVIEW_JOURNAL)))
            self._keep(name, review)
            return review

    def _keep(self, name: str, review: OpenReview) -> None:
        self._open[name] = review
        self._open.move_to_end(name)
        while len(self._open) > OPEN_REVIEWS:
            self._open.popitem(last=False)
