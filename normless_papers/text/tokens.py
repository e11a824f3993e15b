"""Byte-pair encoding (Sennrich et al. 2016) by ``tokenizers``, the special tokens, padded batches, and buckets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from normless.errors import DataFormatError
from normless.extras import import_extra
from normless_lab.data import epoch_sequence

Integers = NDArray[np.int64]


class SpecialTokens(NamedTuple):
    """Numbers of the tokens for padding, before a target sentence, after every sentence, and for unknown bytes."""

    padding: int = 0
    start: int = 1
    end: int = 2
    unknown: int = 3


SPECIAL_TOKENS = SpecialTokens()


def tensors(sentences: Iterable[Sequence[int]]) -> list[Tensor]:
    """Return sentences of tokens as tensors, int64 [length] each."""
    return [torch.tensor(tokens) for tokens in sentences]


def padded(sentences: Sequence[Tensor], rows: Integers, padding: int = SPECIAL_TOKENS.padding) -> Tensor:
    """Return the sentences at some rows [B] as int64 [B, longest], the rest of each row padding."""
    return pad_sequence([sentences[row] for row in rows], batch_first=True, padding_value=padding)


def token_buckets(lengths: NDArray[Any], max_tokens: int) -> list[slice]:
    """Cut sentences [N] in ascending order of length into batches.

    A batch of B sentences, padded to its longest, has B · max(length) ≤ max_tokens tokens; none could take the next
    sentence too. The number of batches depends on the lengths alone.
    """
    if len(lengths) and lengths[-1] > max_tokens:
        raise ValueError(
            f"The longest sentence has {lengths[-1]} tokens, and a batch at most {max_tokens}; allow larger batches "
            "or leave longer sentences out."
        )
    buckets, start = [], 0
    for row, length in enumerate(lengths.tolist()):
        if (row + 1 - start) * length > max_tokens:
            buckets.append(slice(start, row))
            start = row
    if len(lengths):
        buckets.append(slice(start, len(lengths)))
    return buckets


def bucket_epoch(lengths: NDArray[Any], max_tokens: int, *, seed: int, epoch: int) -> list[Integers]:
    """Return the rows [B] of each batch of one epoch in random order: a pure function of the arguments.

    Sentences of the same length are shuffled, so an epoch has other batches than the one before.
    """
    generator = np.random.default_rng(epoch_sequence(seed, epoch))
    order = generator.permutation(len(lengths))
    order = order[np.argsort(lengths[order], kind="stable")]
    buckets = token_buckets(lengths[order], max_tokens)
    return [order[buckets[position]] for position in generator.permutation(len(buckets))]


def sorted_buckets(lengths: NDArray[Any], max_tokens: int) -> list[Integers]:
    """Return the rows [B] of each batch of an evaluation, shortest first; a longer sentence is its own batch."""
    order = np.argsort(lengths, kind="stable")
    buckets = token_buckets(np.minimum(lengths[order], max_tokens), max_tokens)
    return [order[bucket] for bucket in buckets]


# In the order of their numbers, those of `SPECIAL_TOKENS`.
_SPELLINGS = ("<pad>", "<s>", "</s>", "<unk>")


def _tokenizers() -> Any:
    return import_extra("translation", "Byte-pair encoding", "tokenizers")


class BytePairs:
    """Subwords, built by repeatedly merging the most frequent adjacent pair.

    Text is split into words, numbers and punctuation, and these into bytes, from which merging starts.
    Decoding is exact except for bytes that no training text had and for white space around the text.
    """

    def __init__(self, tokenizer: Any) -> None:
        spelled = [tokenizer.token_to_id(spelling) for spelling in _SPELLINGS]
        if spelled != list(SPECIAL_TOKENS):
            raise DataFormatError(
                f"Expected a vocabulary with {', '.join(_SPELLINGS)} as its tokens "
                f"{', '.join(map(str, SPECIAL_TOKENS))}, but this one has them as {', '.join(map(str, spelled))}."
            )
        # "</s>" in a text is text, not an end.
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer

    @classmethod
    def train(cls, texts: Iterable[str], size: int) -> BytePairs:
        """Learn the merges of some texts, independently of their order, for a vocabulary of `size` tokens.

        The size includes the special tokens; the vocabulary is smaller if pairs do not occur twice.

        Raises:
            ValueError: the size is too small for the special tokens and the bytes of the texts.
            MissingExtraError: tokenizers is not installed.
        """
        library = _tokenizers()
        tokenizer = library.Tokenizer(library.models.BPE(unk_token=_SPELLINGS[SPECIAL_TOKENS.unknown]))
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=True)
        tokenizer.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=size, min_frequency=2, special_tokens=list(_SPELLINGS), show_progress=False
        )
        tokenizer.train_from_iterator((text.strip() for text in texts), trainer)
        learned = tokenizer.get_vocab_size()
        if learned > size:
            raise ValueError(
                f"The bytes of these texts and the special tokens alone are {learned} tokens, not {size}."
            )
        return cls(tokenizer)

    @classmethod
    def load(cls, path: Path) -> BytePairs:
        """Read a vocabulary written by `save`.

        Raises:
            DataFormatError: the file is not a vocabulary, or has other special tokens.
            MissingExtraError: tokenizers is not installed.
        """
        library = _tokenizers()
        try:
            tokenizer = library.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        # The library raises Exception itself.
        except Exception as error:
            raise DataFormatError(f"{path} is not a vocabulary of byte pairs: {error}.") from error
        return cls(tokenizer)

    def save(self, path: Path) -> None:
        """Write the vocabulary as the JSON of ``tokenizers``."""
        path.write_text(self.to_json(), encoding="utf-8")

    def to_json(self) -> str:
        """Return the vocabulary as the JSON of ``tokenizers``, the same text for the same merges."""
        return str(self._tokenizer.to_str(pretty=True))

    @property
    def size(self) -> int:
        """The number of tokens, the special ones included."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text, without start and end."""
        encoded = self._tokenizer.encode_batch_fast([text.strip() for text in texts], add_special_tokens=False)
        return [encoding.ids for encoding in encoded]

    def decode(self, sentences: Iterable[Sequence[int]]) -> list[str]:
        """Return the text of each token sentence up to its end, without start and padding; unknown as "<unk>"."""
        outer = (SPECIAL_TOKENS.padding, SPECIAL_TOKENS.start)
        whole = (takewhile(lambda token: token != SPECIAL_TOKENS.end, sentence) for sentence in sentences)
        inner = [[token for token in sentence if token not in outer] for sentence in whole]
        return [text.strip() for text in self._tokenizer.decode_batch(inner, skip_special_tokens=False)]
