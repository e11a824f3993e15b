"""Cases whose fault is in the batch or in what the loss is given."""

from collections.abc import Callable
from math import inf, nan

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.kinds.networks import (
    RecurrentNet,
    ResidualNet,
    SentenceNet,
    changed,
    convolutions,
    digits_mlp,
    exclusive_or,
    images,
    mlp,
    of_inputs,
    sentences,
    vectors,
)
from tests.faults.kinds.rows import adamw, add, altered, case, sgd


def with_value(value: float, *place: int) -> Callable[[Tensor], Tensor]:
    """A change of inputs: this value at this place."""
    return lambda x: x.index_put(tuple(map(torch.tensor, place)), torch.tensor(value))


def as_bytes(x: Tensor) -> Tensor:
    """Images of 0 to 255."""
    return ((x - x.min()) / (x.max() - x.min()) * 255).round()


def in_units(x: Tensor) -> Tensor:
    """Columns in the units of the data, some in thousands."""
    scales, offsets = [1, 1, 10, 100, 1e3, 1e4, 1, 0.01], [0, 0, 50, 0, 4e3, 9e4, 0, 1]
    return x * torch.tensor(scales) + torch.tensor(offsets)


def one_class() -> tuple[Tensor, Tensor]:
    """The images of one class alone."""
    x, y = images(256)
    return x[y == y[0]], y[y == y[0]]


def small_mlp() -> nn.Sequential:
    """For points of 8 features and 3 classes."""
    return mlp([8, 32, 3])


def one_number() -> nn.Sequential:
    """For points of 8 features and a number each."""
    return mlp([8, 64, 1])


def ended(build: Callable[[], nn.Module], last: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Builds a network and a module after it."""
    return lambda: nn.Sequential(build(), last())


# A pixel that a division by zero made NaN.
add("nan_pixel", ResidualNet, changed(images, with_value(nan, 3, 0, 2, 2)), sgd(), "not_finite_inputs")
# The logarithm of a zero in a table.
add("infinite_feature", small_mlp, changed(vectors, with_value(-inf, 5, 1)), None, "not_finite_inputs", aside=True)

# Images that were decoded to zeros.
add("black_images", ResidualNet, changed(images, torch.zeros_like), sgd(), "constant_inputs")
# A loader that returns the same example at every index.
repeated = changed(images, lambda x: x[:1].repeat(len(x), 1, 1, 1))
add("one_image_repeated", lambda: convolutions(3), repeated, None, "constant_inputs", aside=True)

# Images of 0 to 255, without norms.
bytes_of = changed(images, as_bytes)
add("bytes_as_floats", lambda: convolutions(4, norm=False), bytes_of, sgd(0.1), "unscaled_inputs")
columns, wide_mlp = changed(vectors, in_units), lambda: mlp([8, 64, 64, 3])
add("unscaled_table", wide_mlp, columns, sgd(0.1), "unscaled_inputs", aside=True)

# Images as they were read.
read = changed(images, lambda x: ((x - x.min()) * 60).to(torch.uint8))
add("uint8_images", ResidualNet, read, None, "integer_inputs")
# Counts, not converted to floats.
add("integer_table", small_mlp, changed(vectors, lambda x: (x * 4).long()), None, "integer_inputs", aside=True)

# Examples in the order of their classes, not shuffled.
add("sorted_data", ResidualNet, one_class, sgd(), "one_label")
# Labels that a join replaced by 0.
add("labels_lost", SentenceNet, changed(sentences, targets=torch.zeros_like), None, "one_label", aside=True)

# Classes 1 to 10 for 10 logits.
add("labels_from_one", ResidualNet, changed(images, targets=lambda y: y + 1), None, "labels_out_of_range")
# Classes -1 and 1 of another library's loss.
signs = changed(exclusive_or, targets=lambda y: 2 * y - 1)
add("labels_minus_one", lambda: mlp([2, 32, 2]), signs, None, "labels_out_of_range", aside=True)

# Classes as floats, as a data frame returns them.
add("float_labels", ResidualNet, changed(images, targets=Tensor.float), None, "label_type")
# Classes as 32-bit integers.
add("short_labels", RecurrentNet, changed(sentences, targets=Tensor.int), None, "label_type", aside=True)

# Classes (N, 1).
add("column_of_labels", small_mlp, changed(vectors, targets=lambda y: y[:, None]), None, "label_shape")
# A regression on (N,) with outputs (N, 1): the difference is (N, N).
product = of_inputs(vectors, lambda x: x[:, 0] * x[:, 1])
add("broadcast_targets", one_number, product, adamw(1e-2), "label_shape", loss=F.mse_loss, aside=True)
# Classes (N,) shifted to one example fewer than the inputs.
add("one_hot_columns", ResidualNet, changed(images, targets=lambda y: y[1:]), None, "label_shape")

# Probabilities, given to a loss that takes logits.
add("softmax_output", ended(ResidualNet, lambda: nn.Softmax(1)), images, sgd(), "softmax_before_loss")


@case("softmax_before_loss", batch=sentences, aside=True)
class FunctionalSoftmax(SentenceNet):
    """The same in forward code of a transformer."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens).softmax(-1)


LAST = "activation_after_classifier"


# Ten sigmoids, given to a cross-entropy.
add("sigmoid_output", ended(lambda: convolutions(3), nn.Sigmoid), images, sgd(), LAST, "softmax_before_loss")
# A ReLU after every layer, the last included.
add("relu_output", ended(digits_mlp, nn.ReLU), images, sgd(), LAST)
# A regression on values of both signs, that ends in a ReLU.
negative = of_inputs(vectors, lambda x: x[:, :1] - 1)
add("relu_regression", ended(one_number, nn.ReLU), negative, adamw(1e-2), LAST, loss=F.mse_loss)


@case(LAST, optimizer=adamw(), aside=True)
class TanhOutput(ResidualNet):
    """Logits between -1 and 1."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).tanh()


@case("input_independent_outputs", optimizer=sgd())
class MeanOverBatch(ResidualNet):
    """Features averaged over the batch, then repeated."""

    def features(self, x: Tensor) -> Tensor:
        return super().features(x).mean(0, keepdim=True).expand(len(x), -1)


DOMINANT, CONSTANT, ZEROS = ("dominant_class", "dominating_bias"), "input_independent_outputs", "zero_weights"
# A classifier that starts with a bias of 50 for one class, and one with biases drawn from N(0, 30²).
add("large_bias", altered(ResidualNet, lambda net: net.fc.bias[0].fill_(50.0)), images, None, *DOMINANT)
of_words = altered(SentenceNet, lambda net: nn.init.normal_(net.head.bias, std=30.0))
add("large_biases", of_words, sentences, adamw(), *DOMINANT, aside=True)


def zeros(net: nn.Module) -> None:
    """Sets all parameters to zero."""
    for parameter in net.parameters():
        nn.init.zeros_(parameter)


# A hidden layer of zeros: no information passes, and no gradient. All weights and biases start at zero.
add("zero_layer", altered(digits_mlp, lambda net: zeros(net[3])), images, sgd(), CONSTANT, ZEROS, aside=True)
add("zeros_everywhere", altered(digits_mlp, zeros), images, sgd(), ZEROS, CONSTANT)
