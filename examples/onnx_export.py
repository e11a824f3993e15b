"""ONNX: a ResNet-18 with folded batch norms, and a ResNet-18 trained without norms, run by onnxruntime.

pip install "normless[lab,zoo]" onnx onnxscript onnxruntime
python examples/onnx_export.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import onnx
import onnxruntime
import torch
from digits import digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision.models import resnet18

import normless as nl


def trained(net: nn.Module, loader: DataLoader[tuple[Tensor, ...]], epochs: int) -> nn.Module:
    """Train the network for some epochs, so that its norms have statistics and its multipliers have changed."""
    optimizer = torch.optim.SGD(nl.param_groups(net, next(iter(loader))[0], lr=0.03, weight_decay=5e-4), momentum=0.9)
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            optimizer.step()
    return net.eval()


def export(net: nn.Module, images: Tensor, file: Path) -> dict[str, float]:
    """Write the network for batches of any size, and count each operator in the file."""
    batch = torch.export.Dim("batch", min=1)
    options = {"input_names": ["images"], "output_names": ["logits"], "dynamic_shapes": ({0: batch},)}
    torch.onnx.export(net, (images,), file, dynamo=True, external_data=False, verbose=False, **options)
    operators = [node.op_type for node in onnx.load(file).graph.node]
    return {name: operators.count(name) for name in sorted(set(operators))}


def difference(net: nn.Module, images: Tensor, file: Path) -> float:
    """Return the largest difference of a probability between torch and onnxruntime."""
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"images": images.numpy()})
    with torch.no_grad():
        return float((torch.from_numpy(logits).softmax(1) - net(images).softmax(1)).abs().max())


def main(
    build: Callable[[], nn.Module], epochs: int, out: Path, examples: int | None = None
) -> dict[str, tuple[dict[str, int], float]]:
    """Print the operators of each file, and its difference on the test set."""
    train_set, test_set = digits(examples)
    loader = DataLoader(train_set, batch_size=32, shuffle=True)
    images = test_set.tensors[0]

    with_norms = trained(build(), loader, epochs)
    folded, report = nl.fold(with_norms, images[:2])
    print(report)
    converted = trained(nl.convert(build(), "skipinit", images[:2]), loader, epochs)
    out.mkdir(parents=True, exist_ok=True)
    results = {}
    for name, net, reference in (("folded", folded, with_norms), ("skipinit", converted, converted)):
        file = out / f"{name}.onnx"
        operators = export(net, images[:2], file)
        results[name] = operators, difference(reference, images, file)
        print(f"{file}: {operators}, differs by {results[name][1]:.1e}")
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--examples", type=int, help="train on fewer than 1437")
    parser.add_argument("--out", type=Path, default=Path("exported"), help="folder of the files")
    torch.manual_seed(0)
    main(lambda: resnet18(num_classes=10), **vars(parser.parse_args()))
