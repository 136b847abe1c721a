"""Tokenizers trained on a corpus, for encoders that start from scratch.

Takes sentences, gives `building.py` a byte-pair tokenizer of the `tokenizers` library.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

PAD, UNKNOWN, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL = [PAD, UNKNOWN, CLS, SEP, MASK]
ALPHABET = 8000  # characters kept; the rest become [UNK]
MERGE_SENTENCES = 200_000  # enough to learn which characters go together; rare characters need more
CHUNK_SENTENCES = 10_000


def train_tokenizer(texts: Iterable[str], vocab_size: int, max_piece_length: int, *, special_tokens: bool) -> Tokenizer:
    """Trains a lower-casing byte-pair tokenizer that splits at spaces, punctuation and between digits and letters.

    Text without spaces, such as Chinese, is cut into entries of up to `max_piece_length` characters.

    Args:
        texts: Sentences to learn from, in random order: characters are counted in all of them, entries are learnt from
            the first `MERGE_SENTENCES`.
        vocab_size: Entries, among them five special tokens.
        max_piece_length: Characters in an entry.
        special_tokens: Whether [CLS] and [SEP] surround each sentence.

    Returns:
        The tokenizer.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN, fuse_unk=False))
    lower = normalizers.BertNormalizer(lowercase=True, strip_accents=False, handle_chinese_chars=False)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), lower])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Digits(individual_digits=False)]
    )
    sentences = list(texts)
    alphabet = _frequent_characters(sentences, min(ALPHABET, vocab_size // 2))
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        max_token_length=max_piece_length + 1,  # the trainer stops one short of it
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
    """The entries of a tokenizer trained here, by number; special tokens are left out."""
    entries = sorted((number, entry) for entry, number in tokenizer.get_vocab().items())
    return {number: entry for number, entry in entries if entry not in SPECIAL}


def _frequent_characters(sentences: list[str], count: int) -> list[str]:
    """The most frequent characters, equal counts in the order of their codes: the trainer's own choice is random."""
    counts: Counter[str] = Counter()
    for start in range(0, len(sentences), CHUNK_SENTENCES):
        counts.update(unicodedata.normalize("NFKC", " ".join(sentences[start : start + CHUNK_SENTENCES])).lower())
    visible = (character for character in counts if character.isprintable() and not character.isspace())
    return sorted(visible, key=lambda character: (-counts[character], character))[:count]
