"""Information that never reaches the output: narrow layers, unread inputs, no order, and gradients through time."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.checks.rows import adam, checks, given, layers, numbers
from tests.faults.training import module


def _gated():
    """A gate of one unit that is not the only path."""

    def forward(self, x):
        h = F.relu(self.body(x))
        return self.head(h * self.gate(h).sigmoid())

    return given(module(forward, body=(12, 32), gate=(32, 1), head=(32, 6)), *numbers())


checks(_gated, {"gate_of_one_unit": ("", ())})


def _reader(positions, attends=True, ordered=True):
    """A transformer, or a mean of embeddings; targets depend on the first token, or on their sum."""
    half = torch.randint(0, 9, (32, 6))
    tokens = torch.cat([half, half.flip(1)])
    torch.manual_seed(0)
    parts = {"embed": nn.Embedding(9, 32), "head": nn.Linear(32, 3)}
    places = nn.Parameter(torch.randn(1, 6, 32) * positions)
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
    body = nn.TransformerEncoder(layer, 1) if attends else nn.Identity()
    forward = lambda self, tokens: self.head(self.body(self.embed(tokens) + self.positions).mean(1))  # noqa: E731
    model = module(forward, **parts, positions=places, body=body)
    return given(model, tokens, tokens[:, 0] % 3 if ordered else tokens.sum(1) % 3)


rows = {
    "tokens_without_positions": ("unordered", False, True),
    "mean_of_embeddings": ("unordered", (False, False)),
    # Without a nonlinear function between them, the mean removes the positions.
    "mean_of_embeddings_and_positions": ("unordered", (True, False)),
    "sum_of_tokens_without_positions": ("", (False, True, False)),
}
checks(_reader, rows)


def _padded(positions, longest, examples=24):
    source = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 12, (examples, positions), generator=source)
    lengths = torch.randint(3, longest, (examples,), generator=source)
    ids[torch.arange(positions) >= lengths[:, None]] = 0
    return ids, lengths


def _last(way, positions=50, longest=8):
    """A recurrence that reads the last step of the batch, of each sequence, or packs the sequences."""

    def forward(self, ids, lengths):
        if way == "packed":
            packed = nn.utils.rnn.pack_padded_sequence(self.embed(ids), lengths, True, enforce_sorted=False)
            return self.head(self.layer(packed)[1][-1])
        states = self.layer(self.embed(ids))[0]
        return self.head(states[:, -1] if way == "last" else states[torch.arange(len(ids)), lengths - 1])

    gru = {"embed": nn.Embedding(12, 16), "layer": nn.GRU(16, 16, batch_first=True), "head": nn.Linear(16, 3)}
    return given(module(forward, **gru), _padded(positions, longest), torch.arange(24) % 3)


rows = {
    "last_step_of_padding": ("read_after_padding", ("last",), ("own",)),
    "packed_sequences_of_padding": ("", ("packed",)),
    "little_padding": ("", ("last", 9, 9)),
}
checks(_last, rows)


def _pooled(along):
    """Attention of one query over the elements of a sequence, with a mask along keys or queries."""

    def forward(self, x, valid):
        h = F.relu(self.embed(x))
        scores = (h + self.query) @ h.transpose(1, 2) / 4
        weights = scores.masked_fill(~(valid[:, None] if along == "keys" else valid[..., None]), -1e9).softmax(-1)
        return self.head((weights @ h)[:, 0])

    embed, query = nn.Linear(5, 16), nn.Parameter(torch.randn(16))
    model = module(forward, embed=embed, query=query, head=(16, 3))
    source = torch.Generator().manual_seed(0)
    x = torch.randn(24, 9, 5, generator=source)
    return given(model, (x, torch.arange(9) < torch.randint(2, 9, (24, 1), generator=source)), torch.arange(24) % 3)


checks(_pooled, {"mask_of_queries": ("padding_read", ("queries",), ("keys",))})


def _summary(inverted):
    """A summary token that attends to tokens; torch's padding masks are True at positions to be ignored."""

    def forward(self, ids):
        query, h = self.token.expand(len(ids), 1, -1), self.embed(ids)
        mask = ids != 0 if inverted else ids == 0
        return self.head(self.attention(query, h, h, key_padding_mask=mask)[0][:, 0])

    embed, token = nn.Embedding(12, 16), nn.Parameter(torch.randn(16))
    attention = nn.MultiheadAttention(16, 2, batch_first=True)
    model = module(forward, embed=embed, token=token, head=(16, 3), attention=attention)
    return given(model, _padded(12, 10)[0], torch.arange(24) % 3)


checks(_summary, {"inverted_padding_mask_of_torch": ("inverted_mask", True, False)})


def _two(second):
    """A network of two arguments, with the second used, thrown away, or never read."""

    def forward(self, x, z):
        h = self.first(x)
        if second != "never read":
            h = h + self.other(z) * (second == "used")
        return self.head(F.relu(h))

    model = module(forward, first=(6, 16), other=(4, 16), head=(16, 3))
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(24, 6, generator=source), torch.randn(24, 4, generator=source)
    return given(model, inputs, torch.arange(24) % 3)


rows = {
    "argument_thrown_away": ("discarded_input", ("discarded",), ("used",)),
    "argument_never_read": ("", ("never read",)),
}
checks(_two, rows)


def _triplets(is_equal):
    model = module(lambda self, *triplet: tuple(map(self.body, triplet)), body=layers(8, 32, 8))
    torch.manual_seed(2)
    anchor = torch.randn(32, 8)
    positive, negative = anchor + 0.1 * torch.randn(32, 8), torch.randn(32, 8)
    batch = anchor, positive, positive.clone() if is_equal else negative
    return given(model, batch, torch.zeros(32), lambda o, _: F.triplet_margin_loss(*o), adam(), trial_steps=20)


def _both():
    """Equal inputs of a network that trains."""
    x = torch.randn(32, 8)
    model = module(lambda self, first, second: self.body(torch.cat([first, second], 1)), body=layers(16, 64, 4))
    return given(model, (x, x.clone()), torch.arange(32) % 4, optimizer=adam(), trial_steps=20)


checks(_triplets, {"negatives_that_are_positives": ("equal_inputs", True, False)})
checks(_both, {"equal_inputs_that_train": ("", ())})


def _operated(function):
    """Three layers, with a function before the last one."""

    def forward(self, x):
        h = F.relu(self.second(F.relu(self.first(x))))
        return self.last(function(h))

    model = module(forward, first=(12, 64), second=(64, 64), last=(64, 4))
    return given(model, *numbers(32, 12, 4), optimizer=adam(), trial_steps=20)


says = "mul.*information.py.*where=..forward"
rows = {"values_of_a_ten_millionth": ("prevented_by_operation", lambda x: 1e-7 * x, lambda x: 0.1 * x)}
checks(_operated, rows, says)


def _masked(seen):
    """One attention with an additive mask that leaves the positions from the first up to `seen`."""

    def forward(self, x):
        query, key, value = self.mixing(self.tokens(x) + self.places).chunk(3, -1)
        weights = (query @ key.transpose(1, 2) / 32**0.5 + self.mask).softmax(-1)
        return self.last((weights @ value)[:, -1])

    tokens, places = nn.Embedding(20, 32), nn.Parameter(0.1 * torch.randn(8, 32))
    model = module(forward, tokens=tokens, places=places, mixing=(32, 96), last=(32, 4))
    model.register_buffer("mask", torch.zeros(8, 8).masked_fill(torch.arange(8) >= seen, -1e9))
    torch.manual_seed(3)
    x = torch.randint(0, 20, (32, 8))
    x[:, 0] = 1
    return given(model, x, torch.arange(32) % 4, optimizer=adam(), trial_steps=20)


checks(_masked, {"mask_of_all_but_one": ("prevented_by_operation", 1, 8, "mask")})
