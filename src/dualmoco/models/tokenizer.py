"""Tokenizers trained on a corpus, for encoders that start from scratch.

Takes sentences, gives `building.py` a byte-pair tokenizer of the `tokenizers` library.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

PAD, UNKNOWN, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL = [PAD, UNKNOWN, CLS, SEP, MASK]
ALPHABET = 8000  # characters kept; the rest become [UNK]
MERGE_SENTENCES = 200_000  # enough to learn which characters go together; rare characters need more
CHUNK_SENTENCES = 10_000
WORD_START = "▁"  # before every word, where entries may be pairs of words
WORD = r" ?[\p{L}\p{M}]+(?:'\p{L}+)?"
NO_WORD = r" ?\p{N}+| ?[^ \p{L}\p{M}\p{N}]"


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
    tokenizer.normalizer = normalizers.Sequence(_normalizers())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Digits(individual_digits=False)]
    )
    sentences = list(texts)
    trainer = _trainer(sentences, vocab_size, max_piece_length)
    tokenizer.train_from_iterator(sentences[:MERGE_SENTENCES], trainer)
    if special_tokens:
        ids = [(token, tokenizer.token_to_id(token)) for token in (CLS, SEP)]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{CLS} $A {SEP}", special_tokens=ids)
    return tokenizer


def entry_texts(tokenizer: Tokenizer) -> dict[int, str]:
    """The entries of a tokenizer trained here, by number, as one would write them; special tokens are left out."""
    entries = {number: entry for entry, number in tokenizer.get_vocab().items()}
    texts = {number: entries[number].replace(WORD_START, " ").strip() for number in sorted(entries)}
    return {number: text for number, text in texts.items() if text and entries[number] not in SPECIAL}


def _normalizers() -> list[normalizers.Normalizer]:
    """Compatible forms of characters are one, and so are cases."""
    return [
        normalizers.NFKC(),
        normalizers.BertNormalizer(lowercase=True, strip_accents=False, handle_chinese_chars=False),
    ]


def _trainer(
    sentences: list[str], vocab_size: int, max_piece_length: int, more: Sequence[str] = ()
) -> trainers.BpeTrainer:
    """A trainer that starts from the frequent characters of sentences, and more."""
    alphabet = [*_frequent_characters(sentences, min(ALPHABET, vocab_size // 2)), *more]
    return trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        max_token_length=max_piece_length + 1,  # the trainer stops one short of it
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )


def _frequent_characters(sentences: list[str], count: int) -> list[str]:
    """The most frequent characters, equal counts in the order of their codes: the trainer's own choice is random."""
    counts: Counter[str] = Counter()
    for start in range(0, len(sentences), CHUNK_SENTENCES):
        counts.update(unicodedata.normalize("NFKC", " ".join(sentences[start : start + CHUNK_SENTENCES])).lower())
    visible = (character for character in counts if character.isprintable() and not character.isspace())
    return sorted(visible, key=lambda character: (-counts[character], character))[:count]


def train_pair_tokenizer(texts: Iterable[str], vocab_size: int, max_piece_length: int, word_pairs: int) -> Tokenizer:
    """Trains a tokenizer as `train_tokenizer` does, some of whose entries are two words that often follow each other.

    Args:
        texts: Sentences of a language that writes spaces, in random order.
        vocab_size: Entries, the pairs among them.
        max_piece_length: Characters in an entry of one word or less.
        word_pairs: How many entries are pairs, at most.

    Returns:
        The tokenizer; its words begin with `WORD_START`.
    """
    sentences = list(texts)
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN, fuse_unk=False))
    alike = [normalizers.Replace("’", "'"), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    tokenizer.normalizer = normalizers.Sequence([*_normalizers(), *alike])
    tokenizer.pre_tokenizer = _cut_by(f"{WORD}|{NO_WORD}")
    size = vocab_size - word_pairs
    trainer = _trainer(sentences, size, max_piece_length + len(WORD_START), more=[WORD_START])
    tokenizer.train_from_iterator(sentences[:MERGE_SENTENCES], trainer)
    tokenizer.pre_tokenizer = _cut_by(f"(?:{WORD})+|{NO_WORD}")
    parts = json.loads(tokenizer.to_str())
    vocabulary, merges = parts["model"]["vocab"], parts["model"]["merges"]
    for pair in _telling_pairs(tokenizer, sentences, word_pairs):
        vocabulary.setdefault("".join(pair), len(vocabulary))
        merges.append(pair)  # after those inside words, so words are whole before they are joined
    return Tokenizer.from_str(json.dumps(parts))


def _telling_pairs(tokenizer: Tokenizer, sentences: list[str], count: int) -> list[tuple[str, str]]:
    """Words, whole entries of a tokenizer, that follow each other far more often than their own counts explain.

    Ordered by what a pair adds to the mutual information of neighbours, so that "as well" comes before "and the".
    """
    followers: Counter[tuple[int, int]] = Counter()
    for start in range(0, len(sentences), CHUNK_SENTENCES):
        chunk = tokenizer.encode_batch_fast(sentences[start : start + CHUNK_SENTENCES], add_special_tokens=False)
        for encoding in chunk:
            followers.update(pairwise(encoding.ids))
    firsts: Counter[int] = Counter()
    seconds: Counter[int] = Counter()
    for (first, second), times in followers.items():
        firsts[first] += times
        seconds[second] += times
    total, entries = followers.total(), {number: entry for entry, number in tokenizer.get_vocab().items()}
    words = {number for number, entry in entries.items() if entry[0] == WORD_START and entry[1:2].isalpha()}
    weights = {
        (entries[a], entries[b]): times * math.log(times * total / (firsts[a] * seconds[b]))
        for (a, b), times in followers.items()
        if a in words and b in words
    }
    return sorted(weights, key=lambda pair: (-weights[pair], pair))[:count]


def _cut_by(pattern: str) -> pre_tokenizers.PreTokenizer:
    """Cuts a text into what matches a pattern, and marks where words begin, those after punctuation too."""
    marked = pre_tokenizers.Metaspace(replacement=WORD_START, prepend_scheme="always", split=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior="isolated"), marked])
