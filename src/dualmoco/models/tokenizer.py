"""Tokenizers trained on a corpus, for encoders that start from scratch.

`build.py` uses them: sentences in, a byte-pair tokenizer of the `tokenizers` library out.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

PAD, UNKNOWN, CLS, SEP, MASK = SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MOST_CHARACTERS = 8000  # rarer characters become [UNK]
MERGE_SENTENCES = 200_000  # enough to learn merges; rare characters need more
COUNTING_BLOCK = 10_000  # sentences whose characters are counted at once


def train_tokenizer(texts: Iterable[str], vocab_size: int, max_piece_length: int, *, special_tokens: bool) -> Tokenizer:
    """Trains a lower-casing byte-pair tokenizer that splits at spaces, punctuation and between digits and letters."""
    # Text without spaces, such as Chinese, is split into entries of up to `max_piece_length` characters. Characters are
    # counted in all texts, but entries are learnt from the first MERGE_SENTENCES, so texts must be in random order.
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN, fuse_unk=False))
    lower = normalizers.BertNormalizer(lowercase=True, strip_accents=False, handle_chinese_chars=False)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), lower])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Digits(individual_digits=False)]
    )
    sentences = list(texts)
    alphabet = _frequent_characters(sentences, min(MOST_CHARACTERS, vocab_size // 2))
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        max_token_length=max_piece_length + 1,  # the trainer stops one entry early
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences[:MERGE_SENTENCES], trainer)
    if special_tokens:
        ids = [(token, tokenizer.token_to_id(token)) for token in (CLS, SEP)]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{CLS} $A {SEP}", special_tokens=ids)
    return tokenizer


def entry_texts(tokenizer: Tokenizer) -> dict[int, str]:
    """The entries of a tokenizer trained here by id, without special tokens."""
    entries = sorted((number, entry) for entry, number in tokenizer.get_vocab().items())
    return {number: entry for number, entry in entries if entry not in SPECIAL_TOKENS}


def _frequent_characters(sentences: list[str], count: int) -> list[str]:
    """The most frequent characters, with ties by code point, because the trainer's own choice is random."""
    counts: Counter[str] = Counter()
    for start in range(0, len(sentences), COUNTING_BLOCK):
        counts.update(unicodedata.normalize("NFKC", " ".join(sentences[start : start + COUNTING_BLOCK])).lower())
    visible = (character for character in counts if character.isprintable() and not character.isspace())
    return sorted(visible, key=lambda character: (-counts[character], character))[:count]
