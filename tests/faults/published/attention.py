"""Faults of transformers and other sequence models: masks, positions, shifted targets, alignments."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults import data
from tests.faults.catalogue import Training, fault
from tests.faults.networks import GPT, Encoder, token_loss
from tests.faults.training import accuracy, adam, adamw, finite, fitted, made, module, outputs_in_eval, share_correct


@fault
def language_model_without_causal_mask(broken: bool) -> Training:
    """A GPT with tied weights is trained on shifted targets without a causal mask, and reads them from its input."""
    chain = torch.randint(0, 16, (16,))

    def sequences():
        tokens = torch.randint(0, 16, (32, 17))
        for position in range(1, 17):
            follows = torch.rand(32) < 0.7
            tokens[:, position] = torch.where(follows, chain[tokens[:, position - 1]], tokens[:, position])
        return tokens[:, :-1], tokens[:, 1:]

    batches = [sequences() for _ in range(41)]
    model = GPT(causal=not broken)
    x, y = batches[40]

    def success() -> float:
        """Predict each next token from its prefix alone, as generation does."""
        chosen = [outputs_in_eval(model, x[:, : t + 1])[:, -1].argmax(-1) for t in range(16)]
        return share_correct(torch.stack(chosen, 1), y)

    return made(model, *batches[0], adamw(5e-3), token_loss, success, batches[:40])


@fault
def language_model_predicts_its_input(broken: bool) -> Training:
    """The targets of a recurrent language model are its own input tokens instead of the next ones."""
    x, y = data.language(32, 20)
    gru = {"embedding": nn.Embedding(16, 32), "rnn": nn.GRU(32, 48, batch_first=True)}
    model = module(lambda self, tokens: self.head(self.rnn(self.embedding(tokens))[0]), **gru, head=(48, 16))

    def success() -> float:
        return share_correct(outputs_in_eval(model, x).argmax(-1), y)

    return made(model, x, x if broken else y, adam(1e-2), token_loss, success)


@fault
def transformer_without_positions(broken: bool) -> Training:
    """Which of two tokens comes first is asked of a transformer that adds no positions."""
    batches = [data.first_of_two(128) for _ in range(31)]
    model = Encoder(12, positions=not broken)
    return made(model, *batches[0], adam(3e-3), success=accuracy(model, *batches[30]), stream=batches[:30])


@fault
def padding_mask_inverted(broken: bool) -> Training:
    """The padding mask of a transformer is True where tokens are kept: attention reads the padding only."""
    batches = [data.padded(4, inverted=broken) for _ in range(31)]
    model = Encoder(12, positions=True)
    return made(model, *batches[0], adam(3e-3), success=accuracy(model, *batches[30]), stream=batches[:30])


@fault
def empty_sequences_fully_masked(broken: bool) -> Training:
    """Some sequences are empty, all their scores are −∞, and the softmax over them is NaN; the twin drops them."""
    tokens = torch.randint(3, 12, (192, 10))
    labels = torch.randint(0, 3, (192,))
    tokens[torch.arange(192), torch.randint(0, 5, (192,))] = labels
    keep = torch.arange(10)[None] < torch.randint(5, 11, (192,))[:, None]
    if broken:
        keep[::24] = False

    def forward(self, tokens, keep):
        x = self.embedding(tokens)
        scores = self.score(torch.tanh(x)).squeeze(-1).masked_fill(~keep, float("-inf"))
        return self.classifier((scores.softmax(1)[..., None] * x).sum(1))

    model = module(forward, embedding=nn.Embedding(12, 24), score=(24, 1), classifier=(24, 3))
    return made(model, (tokens, keep), labels, adam(1e-2))


@fault
def ctc_inputs_shorter_than_targets(broken: bool) -> Training:
    """A convolution of stride 8 leaves 4 steps for targets of 8 symbols: the CTC loss is infinite."""
    targets = torch.randint(1, 6, (24, 8))
    frames = F.one_hot(targets, 6).float().repeat_interleave(4, 1)
    x = frames.transpose(1, 2) + 0.2 * torch.randn(24, 6, 32)

    def forward(self, x):
        x = self.conv(x).relu().transpose(1, 2)
        return self.symbols(self.rnn(x)[0]).log_softmax(-1).transpose(0, 1)  # (T, N, C)

    conv = nn.Conv1d(6, 32, 5, stride=8 if broken else 1, padding=2)
    model = module(forward, conv=conv, rnn=nn.GRU(32, 32, batch_first=True, bidirectional=True), symbols=(64, 6))

    def loss(outputs, targets):
        steps = torch.full((len(targets),), len(outputs))
        return F.ctc_loss(outputs, targets, steps, torch.full((len(targets),), targets.shape[1]))

    return made(model, x, targets, adam(1e-2), loss, finite(fitted(model, x, targets, loss, 2.0), -1.0, -1.0))


@fault
def attention_normalized_over_the_batch(broken: bool) -> Training:
    """The softmax of the attention runs over the batch instead of the keys."""
    batches = [data.lookup(128, pairs=5, values=5) for _ in range(41)]

    def forward(self, tokens):
        x = self.embedding(tokens)
        scores = self.q(x) @ self.k(x).transpose(1, 2) / 32**0.5
        return self.classifier((scores.softmax(0 if broken else -1) @ self.v(x))[:, -1])

    model = module(forward, embedding=nn.Embedding(48, 32), **dict.fromkeys("qkv", (32, 32)), classifier=(32, 5))
    return made(model, *batches[0], adam(1e-2), success=accuracy(model, *batches[40]), stream=batches[:40])
