"""What several tests share: a small bilingual corpus and recipes that train in seconds."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dualmoco.core import progress
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.tokenizer import train_tokenizer
from dualmoco.text.characters import character_kinds, folded_characters

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
    from starlette.testclient import TestClient

    from browser import Server

# sentence-transformers and what trains are imported by the fixtures that need them: they take eight seconds

PAIRS = 600
LONGEST = "ray_engine ablate cli resuming demo interruptions docs faults onesided training prepare curriculum".split()
"""Files that take the longest, which start first so that no process has one of them left at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts tests by `LONGEST`; the order within a file stays."""
    places = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))


@pytest.fixture(scope="session", autouse=True)
def no_progress_bars() -> Iterator[None]:
    """Keeps bars out of what tests read from standard error, however slow the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "DELAY_SECONDS", 3600.0)
        yield


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TSV of generated English-Chinese pairs."""
    path = tmp_path_factory.mktemp("corpus") / "pairs.tsv"
    path.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in generate_pairs(PAIRS, seed=1)), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def character_tables() -> None:
    """Builds the cached tables before Hypothesis, which limits the time of each example, runs the first one."""
    folded_characters()
    character_kinds()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small static English-Chinese model."""
    from dualmoco.training.recipe import load_config
    from dualmoco.training.run import train

    out = tmp_path_factory.mktemp("tiny") / "run"
    settings = ["data.train=[grammar:2000]", "data.heldout=100", "schedule.steps=20", "schedule.evaluate_every=20"]
    train(load_config(Path(__file__).parents[1] / "recipes" / "tiny.yaml", [f"out={out}", *settings]))
    return out / "model"


@pytest.fixture
def recipe(tmp_path: Path, corpus: Path) -> Path:
    """A recipe for two tiny BERTs with dropout: 12 steps of 16 pairs, checkpoints every 4."""
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"""
out: {tmp_path / "run"}
src: {{lang: en, kind: bert, width: 32, layers: 2, heads: 2, vocab_size: 400}}
tgt: {{lang: zh, kind: bert, width: 32, layers: 2, heads: 2, vocab_size: 400, max_piece_length: 4}}
data: {{train: ["{corpus}"], heldout: 50, bucket: 4}}
contrast: {{queue_size: 100, temperature: 0.05, momentum: 0.9}}
optimizer: {{lr: 1e-3, warmup_steps: 2, batch_size: 16}}
schedule: {{steps: 12, evaluate_every: 6, checkpoint_every: 4, log_every: 1}}
""",
        encoding="utf-8",
    )
    return path


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The real corpora; the test is skipped where they are absent."""
    folder = Path(os.environ.get("DUALMOCO_DATA", ""))
    if not os.environ.get("DUALMOCO_DATA") or not (folder / "eval").is_dir():
        pytest.skip("needs the real corpora: set DUALMOCO_DATA to their folder")
    return folder


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT of dimension 16 and its English tokenizer, as transformers saves them; not to be changed."""
    import torch
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("plain") / "bert"
    tokenizer = train_tokenizer([src for src, _ in generate_pairs(300, seed=1)], 300, 16, special_tokens=True)
    torch.manual_seed(5)
    shape = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    BertModel(shape).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, pad_token="[PAD]").save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def sentence_folder(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same BERT as sentence-transformers saves it, with CLS pooling and no normalisation; not to be changed."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    folder = tmp_path_factory.mktemp("sentence") / "model"
    first: Any = Transformer(str(plain))
    model = SentenceTransformer(modules=[first, Pooling(16, pooling_mode="cls")], device="cpu")
    model.save(str(folder), create_model_card=False)
    return folder


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A Chromium; tests that use it are marked `browser`."""
    from browser import chromium

    with chromium() as opened:
        yield opened


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A new page of 1280 pixels in a light colour scheme."""
    from browser import browsing

    with browsing(browser) as opened:
        yield opened


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """`dualmoco serve` on a new project in `tmp_path / "project"`, with the model en-zh-static."""
    from browser import serving

    with serving(tmp_path / "project") as started:
        yield started


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    """The studio of a new project in `tmp_path / "project"`, without a process or a port."""
    from starlette.testclient import TestClient

    from dualmoco.server.app import create_app
    from dualmoco.server.project import Project

    app = create_app(Project(tmp_path / "project"), model="en-zh-static")
    with TestClient(app, base_url="http://127.0.0.1:8477") as opened:
        yield opened


@pytest.fixture
def usual_signals() -> Iterator[None]:
    """The handlers of a new process: shells ignore SIGINT in background jobs, and Ray handles SIGTERM."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
