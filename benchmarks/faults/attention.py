"""Faults of transformers and other sequence models: masks, positions, shifted targets, alignments."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.faults import data, measures
from benchmarks.faults.case import Training, fault
from benchmarks.faults.sources import defaultpp, remembered, thread
from benchmarks.faults.truth import LEAK, NOT_FINITE, NOT_FITTED, both

_FUTURE = r"future|later|causal\w*|looks? ahead|next tokens?|leak\w*|after (it|the position)"


class GPT(nn.Module):
    def __init__(self, vocabulary: int = 16, width: int = 32, causal: bool = True) -> None:
        super().__init__()
        self.tok = nn.Embedding(vocabulary, width)
        self.pos = nn.Embedding(64, width)
        self.ln1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.tok.weight
        nn.init.normal_(self.tok.weight, std=0.05)
        self.causal = causal

    def forward(self, tokens: Tensor) -> Tensor:
        n, t = tokens.shape
        x = self.tok(tokens) + self.pos(torch.arange(t))
        query, key, value = (part.view(n, t, 2, -1).transpose(1, 2) for part in self.qkv(self.ln1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.proj(mixed.transpose(1, 2).reshape(n, t, -1))
        x = x + self.mlp(self.ln2(x))
        return self.lm_head(self.ln_f(x))


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy over all tokens of (N, T, V) logits."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@fault(
    "leak",
    thread("No causal masking", "https://github.com/alex-matton/causal-transformer-decoder/issues/1"),
    both(_FUTURE, r"mask\w*|attention|token|position|causal\w*"),
    symptom=LEAK,
    reaches=0.4,
    below=0.3,
)
def language_model_without_causal_mask(broken: bool) -> Training:
    """A GPT with tied weights is trained on shifted targets without a causal mask, and reads them from its input."""
    chain = torch.randint(0, 16, (16,))

    def sequences() -> tuple[Tensor, Tensor]:
        tokens = torch.randint(0, 16, (32, 17))
        for position in range(1, 17):
            follows = torch.rand(32) < 0.7
            tokens[:, position] = torch.where(follows, chain[tokens[:, position - 1]], tokens[:, position])
        return tokens[:, :-1], tokens[:, 1:]

    batches = [sequences() for _ in range(41)]
    model = GPT(causal=not broken)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    x, y = batches[40]

    def success() -> float:
        """Predict each next token from its prefix alone, as generation does."""
        hits = [
            (measures.outputs_in_eval(model, x[:, : t + 1])[:, -1].argmax(-1) == y[:, t]).float() for t in range(16)
        ]
        return measures.above_guess(torch.stack(hits).mean().item(), y)

    return Training(model, batches[0], token_loss, optimizer, success, lambda step: batches[step % 40])


@fault(
    "leak",
    remembered("language model whose targets are its inputs (not shifted)"),
    both(
        r"target\w*|label\w*",
        r"shift\w*|same as|equal\w* (to )?(the |its )?inputs?|(the|are|its)( own)? inputs?|copy|copies|identity",
    ),
    symptom=LEAK,
    reaches=0.5,
    below=0.3,
)
def language_model_predicts_its_input(broken: bool) -> Training:
    """The targets of a recurrent language model are its own input tokens instead of the next ones."""
    x, y = data.language(32, 20)
    embedding, rnn, head = nn.Embedding(16, 32), nn.GRU(32, 48, batch_first=True), nn.Linear(48, 16)
    model = GRULanguageModel(embedding, rnn, head)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def success() -> float:
        hits = (measures.outputs_in_eval(model, x).argmax(-1) == y).float().mean().item()
        return measures.above_guess(hits, y)

    return Training(model, (x, x if broken else y), token_loss, optimizer, success)


class GRULanguageModel(nn.Module):
    def __init__(self, embedding: nn.Embedding, rnn: nn.GRU, head: nn.Linear) -> None:
        super().__init__()
        self.embedding, self.rnn, self.head = embedding, rnn, head

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(tokens))[0])


class Encoder(nn.Module):
    def __init__(self, vocabulary: int, positions: bool, layers: int = 1) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 32)
        self.position = nn.Parameter(0.5 * torch.randn(32, 32)) if positions else None
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.classifier = nn.Linear(32, 2)

    def forward(self, tokens: Tensor, ignore: Tensor | None = None) -> Tensor:
        x = self.embed(tokens)
        if self.position is not None:
            x = x + self.position[: tokens.shape[1]]
        x = self.encoder(x, src_key_padding_mask=ignore)
        if ignore is not None:
            kept = (~ignore).float()[..., None]
            return self.classifier((x * kept).sum(1) / kept.sum(1).clamp(min=1))
        return self.classifier(x.mean(1))


@fault(
    "information",
    defaultpp("POE: positional embeddings omitted"),
    both(
        r"position\w*|order|permut\w*",
        r"no |missing|without|invariant|omitted|lacks?|ignor\w*|does not|same|add|independent|cannot",
    ),
    reaches=0.8,
    below=0.4,
    constant_outputs=True,
)
def transformer_without_positions(broken: bool) -> Training:
    """Which of two tokens comes first is asked of a transformer that adds no positions."""
    batches = [data.first_of_two(128) for _ in range(31)]
    model = Encoder(12, positions=not broken)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    success = measures.accuracy(model, *batches[30])
    return Training(model, batches[0], nn.CrossEntropyLoss(), optimizer, success, lambda step: batches[step % 30])


@fault(
    "information",
    defaultpp("MIM: mask semantics inverted"),
    both(
        r"mask\w*",
        r"invert\w*|opposite|padd\w*|wrong|negat\w*|real tokens|never attend\w*|ignor\w*|all tokens|swap\w*",
    ),
    symptom=NOT_FITTED + "|" + NOT_FINITE,
    reaches=0.8,
    below=0.5,
    constant_outputs=True,
)
def padding_mask_inverted(broken: bool) -> Training:
    """The padding mask of a transformer is True where tokens are kept: attention reads the padding only."""

    def batch() -> tuple[tuple[Tensor, Tensor], Tensor]:
        tokens, labels = data.first_of_two(128, length=8)
        padded = torch.cat([tokens, torch.zeros(128, 4, dtype=torch.long)], 1)
        return (padded, padded != 0 if broken else padded == 0), labels

    batches = [batch() for _ in range(31)]
    model = Encoder(12, positions=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    success = measures.accuracy(model, *batches[30])
    return Training(model, batches[0], nn.CrossEntropyLoss(), optimizer, success, lambda step: batches[step % 30])


class MaskedPooling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 24)
        self.score = nn.Linear(24, 1)
        self.classifier = nn.Linear(24, 3)

    def forward(self, tokens: Tensor, keep: Tensor) -> Tensor:
        x = self.embedding(tokens)
        scores = self.score(torch.tanh(x)).squeeze(-1).masked_fill(~keep, float("-inf"))
        return self.classifier((scores.softmax(1)[..., None] * x).sum(1))


@fault(
    "numerics",
    thread("Nan output after masked TransformerDecoder", "https://github.com/pytorch/pytorch/issues/119371"),
    both(NOT_FINITE, r"mask\w*|softmax|attention|-inf|empty|every (token|key|position)|all (tokens|keys|positions)"),
    symptom=NOT_FINITE,
    reaches=0.8,
    below=0.2,
)
def empty_sequences_fully_masked(broken: bool) -> Training:
    """Some sequences are empty, all their scores are −∞, and the softmax over them is NaN; the twin drops them."""
    tokens = torch.randint(3, 12, (192, 10))
    labels = torch.randint(0, 3, (192,))
    tokens[torch.arange(192), torch.randint(0, 5, (192,))] = labels
    keep = torch.arange(10)[None] < torch.randint(5, 11, (192,))[:, None]
    if broken:
        keep[::24] = False
    model = MaskedPooling()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    success = measures.accuracy(model, (tokens, keep), labels)
    return Training(model, ((tokens, keep), labels), nn.CrossEntropyLoss(), optimizer, success)


class Speech(nn.Module):
    def __init__(self, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(6, 32, 5, stride=stride, padding=2)
        self.rnn = nn.GRU(32, 32, batch_first=True, bidirectional=True)
        self.symbols = nn.Linear(64, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).relu().transpose(1, 2)
        return self.symbols(self.rnn(x)[0]).log_softmax(-1).transpose(0, 1)  # (T, N, C)


@fault(
    "numerics",
    remembered("CTCLoss is infinite where the input is shorter than the target"),
    both(
        r"ctc|target|input|sequence|length|time steps?",
        r"short\w*|long\w*|length|fewer|stride|steps?",
        NOT_FINITE + "|length|short|long",
    ),
    symptom=NOT_FINITE + "|" + NOT_FITTED,
    reaches=0.5,
    below=0.2,
)
def ctc_inputs_shorter_than_targets(broken: bool) -> Training:
    """A convolution of stride 8 leaves 4 steps for targets of 8 symbols: the CTC loss is infinite."""
    targets = torch.randint(1, 6, (24, 8))
    frames = F.one_hot(targets, 6).float().repeat_interleave(4, 1)
    x = frames.transpose(1, 2) + 0.2 * torch.randn(24, 6, 32)
    model = Speech(8 if broken else 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        steps = torch.full((len(targets),), len(outputs))
        return F.ctc_loss(outputs, targets, steps, torch.full((len(targets),), targets.shape[1]))

    def success() -> float:
        value = 1 - loss(measures.outputs_in_eval(model, x), targets).item() / 2.0
        return max(value, -1.0) if value == value else -1.0

    return Training(model, (x, targets), loss, optimizer, success)


class WrongAxis(nn.Module):
    def __init__(self, axis: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(48, 32)
        self.q = nn.Linear(32, 32)
        self.k = nn.Linear(32, 32)
        self.v = nn.Linear(32, 32)
        self.classifier = nn.Linear(32, 5)
        self.axis = axis

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        scores = self.q(x) @ self.k(x).transpose(1, 2) / 32**0.5
        return self.classifier((scores.softmax(self.axis) @ self.v(x))[:, -1])


@fault(
    "mixing",
    remembered("attention weights normalized over the batch: softmax(dim=0)"),
    both(
        r"softmax|normali[sz]\w*|attention|mix\w*|depends? on|leak\w*",
        r"\bbatch\b|other examples|across examples|dim\w*|axis",
    ),
    symptom=NOT_FITTED + "|eval|generali",
    reaches=0.8,
    below=0.6,
)
def attention_normalized_over_the_batch(broken: bool) -> Training:
    """The softmax of the attention runs over the batch instead of the keys."""
    batches = [data.lookup(128, pairs=5, values=5) for _ in range(41)]
    model = WrongAxis(0 if broken else -1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    success = measures.accuracy(model, *batches[40])
    return Training(model, batches[0], nn.CrossEntropyLoss(), optimizer, success, lambda step: batches[step % 40])
