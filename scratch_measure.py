"""Milliseconds per training step of each scheme, eager, as one CUDA graph and compiled by blocks; checks of kernels."""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
import traceback
from contextlib import contextmanager
from copy import deepcopy

import torch
from torch import nn
from torch.nn import functional as F

import normless.nn.on_cuda as on_cuda
from normless.bench.by_hand import Bare, HandWrittenFixup
from normless.bench.step import _opened
from normless.conversion import convert
from normless.models import resnet_cifar, wide_resnet

START = time.perf_counter()
SCHEMES = ("none", "skipinit(alpha=1)", "fixup", "batch_norm")


def elapsed():
    return time.perf_counter() - START


@contextmanager
def kernels(enabled):
    before, on_cuda.ENABLED = on_cuda.ENABLED, enabled
    try:
        yield
    finally:
        on_cuda.ENABLED = before


def networks(depth, width, device):
    torch.manual_seed(0)
    network = wide_resnet(depth, width) if width else resnet_cifar(depth)
    made = {"bare": Bare(network)}
    for scheme in SCHEMES:
        try:
            made[scheme.partition("(")[0]] = convert(network, scheme)
        except Exception as error:
            print("convert", scheme, "failed:", first_line(error))
    if not width:
        made["by hand"] = HandWrittenFixup(network)
    return {name: _opened(one.to(device).to(memory_format=torch.channels_last)) for name, one in made.items()}


def first_line(error):
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:150]


def make_step(network, images, labels):
    device = images.device.type
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-6, momentum=0.9, fused=device == "cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16):
            loss = F.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()

    return step


def timed(function, repeats, is_cuda):
    values = []
    for _ in range(repeats):
        if is_cuda:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            function()
            end.record()
            end.synchronize()
            values.append(start.elapsed_time(end))
        else:
            begin = time.perf_counter()
            function()
            values.append(1000 * (time.perf_counter() - begin))
    return statistics.median(values)


def as_graph(step):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def cell(network, images, labels, mode, repeats):
    """One number: mode is eager or graph."""
    try:
        is_cuda = images.is_cuda
        step = make_step(network, images, labels)
        for _ in range(3):
            step()
        if mode == "eager":
            return timed(step, repeats, is_cuda)
        graph = as_graph(step)
        graph.replay()
        return timed(graph.replay, 3 * repeats, is_cuda)
    except Exception as error:
        if os.environ.get("TRACE"):
            traceback.print_exc()
        return first_line(error)
    finally:
        for parameter in network.parameters():
            parameter.grad = None
        gc.collect()
        if images.is_cuda:
            torch.cuda.empty_cache()


def show(name, values, unit="ms"):
    text = [f"{value:9.3f}" if isinstance(value, float) else f"{value:>9}" for value in values]
    print(f"{name:34}" + " ".join(text), flush=True)


def table(depth, width, batch, device, size, modes, repeats, names=None):
    made = networks(depth, width, device)
    images = torch.randn(batch, 3, size, size, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(10, (batch,), device=device)
    title = f"WRN-{depth}-{width}" if width else f"ResNet-{depth}"
    order = [name for name in made if names is None or name in names]
    print(f"\n{title}, batch {batch}   [{elapsed():.0f} s]")
    show("", order)
    for mode in modes:
        for enabled in (False, True):
            row = []
            for name in order:
                if not enabled and name in ("bare", "none", "batch_norm", "by hand"):
                    row.append("-")
                    continue
                with kernels(enabled):
                    row.append(cell(made[name], images, labels, mode, repeats))
            numbers = [value if isinstance(value, (float, str)) else str(value) for value in row]
            show(f"{mode}, kernels {'on' if enabled else 'off'}", [n if isinstance(n, float) or n == "-" else "ERR" for n in numbers])
            for name, value in zip(order, numbers):
                if isinstance(value, str) and value != "-":
                    print("    ", name, value)
            if enabled:
                base = row[0] if isinstance(row[0], float) else float("nan")
                show("   ratio to bare", [n / base if isinstance(n, float) else "-" for n in row])


def compiled_table(depth, width, batch, device, size, modes, repeats, names):
    from normless.compilation import compile_blocks
    from normless.residual import residual_map

    made = networks(depth, width, device)
    images = torch.randn(batch, 3, size, size, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(10, (batch,), device=device)
    for name in names:
        if elapsed() > BUDGET:
            print("out of time before", depth, batch, name)
            return
        try:
            network = made[name]
            if name != "bare":
                compile_blocks(network, residual_map=residual_map(network, images[:2]))
            else:
                torch._dynamo.config.recompile_limit = 64
                for block in network.blocks:
                    block.compile(dynamic=False)
            begin = time.perf_counter()
            step = make_step(network, images, labels)
            step()
            if device == "cuda":
                torch.cuda.synchronize()
            first = time.perf_counter() - begin
            results = [cell(network, images, labels, mode, repeats) for mode in modes]
            print(f"compile_blocks {depth} batch {batch} {name:12} first step {first:6.1f} s ", dict(zip(modes, results)), flush=True)
        except Exception as error:
            if os.environ.get("TRACE"):
                traceback.print_exc()
            print("compile_blocks", depth, batch, name, first_line(error), flush=True)


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)).item()


def check_relu(shape, dtype, before, after, device, last):
    x = torch.randn(shape, device=device).to(dtype)
    if last and x.dim() == 4:
        x = x.to(memory_format=torch.channels_last)
    x.requires_grad_()
    parts = [None if v is None else nn.Parameter(torch.tensor([v], device=device)) for v in (before, after)]
    y = on_cuda.ShiftedReLUOnCuda.apply(x, *parts)
    direction = torch.randn(shape, device=device).to(dtype)
    if last and x.dim() == 4:
        direction = direction.to(memory_format=torch.channels_last)
    wanted = [x, *(p for p in parts if p is not None)]
    found = torch.autograd.grad(y, wanted, direction, retain_graph=True)
    again = torch.autograd.grad(y, wanted, direction)
    same = all(torch.equal(a, b) for a, b in zip(found, again))
    wide = [x.detach().double().requires_grad_(), *(None if p is None else p.detach().double().requires_grad_() for p in parts)]
    h = wide[0] if wide[1] is None else wide[0] + wide[1]
    reference = h.relu() if wide[2] is None else h.relu() + wide[2]
    expected = torch.autograd.grad(reference, [w for w in wide if w is not None], direction.double())
    assert y.stride() == x.stride() and y.dtype == dtype and found[0].stride() == x.stride()
    return [relative(y, reference), *(relative(a, b) for a, b in zip(found, expected))], same


def check_scaled(shape, dtype, each, device, last):
    weight = torch.randn(shape, device=device)
    if last and weight.dim() == 4:
        weight = weight.to(memory_format=torch.channels_last)
    weight.requires_grad_()
    factor = torch.randn(shape[0] if each else 1, device=device, requires_grad=True)
    y = on_cuda.ScaledOnCuda.apply(weight, factor, dtype)
    direction = torch.randn(shape, device=device).to(dtype)
    found = torch.autograd.grad(y, (weight, factor), direction, retain_graph=True)
    again = torch.autograd.grad(y, (weight, factor), direction)
    same = all(torch.equal(a, b) for a, b in zip(found, again))
    w, f = weight.detach().double().requires_grad_(), factor.detach().double().requires_grad_()
    reference = w * f.reshape(-1, *[1] * (w.dim() - 1))
    expected = torch.autograd.grad(reference, (w, f), direction.double())
    assert y.stride() == weight.stride() and found[0].stride() == weight.stride()
    return [relative(y, reference), *(relative(a, b) for a, b in zip(found, expected))], same


def check_shifted(shape, dtype, device, last):
    x = torch.randn(shape, device=device).to(dtype)
    if last and x.dim() == 4:
        x = x.to(memory_format=torch.channels_last)
    x.requires_grad_()
    shift = nn.Parameter(torch.tensor([0.3], device=device))
    y = on_cuda.ShiftedOnCuda.apply(x, shift)
    direction = (torch.randn(shape, device=device) + 0.2).to(dtype)
    found = torch.autograd.grad(y, (x, shift), direction, retain_graph=True)
    again = torch.autograd.grad(y, (x, shift), direction)
    same = all(torch.equal(a, b) for a, b in zip(found, again))
    return [relative(y, x.detach().double() + 0.3), relative(found[0], direction), relative(found[1], direction.double().sum().reshape(1))], same


def correctness(device):
    print("\ncorrectness: relative errors of y, dx, then the scalars' gradients; whether a second backward is bitwise equal")
    shapes = [(128, 16, 32, 32), (128, 64, 8, 8), (3, 5, 7, 11), (1000, 64, 16, 16), (7,), (5, 4099)]
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        worst = {}
        for shape in shapes:
            for last in (False, True):
                jobs = {
                    "relu(x+a)+b": lambda: check_relu(shape, dtype, 0.31, -0.17, device, last),
                    "relu(x)+b": lambda: check_relu(shape, dtype, None, 0.7, device, last),
                    "relu(x+a)": lambda: check_relu(shape, dtype, -0.2, None, device, last),
                    "x+a": lambda: check_shifted(shape, dtype, device, last),
                }
                for name, job in jobs.items():
                    try:
                        errors, same = job()
                        if not same:
                            print("NOT DETERMINISTIC", name, dtype, shape, last)
                        worst[name] = [max(a, b) for a, b in zip(worst.get(name, [0] * len(errors)), errors)]
                    except Exception as error:
                        print("FAILED", name, dtype, shape, last, first_line(error))
        for shape in [(16, 16, 3, 3), (64, 64, 3, 3), (10, 7), (256, 256, 3, 3), (1, 5, 1, 1)]:
            for each in (False, True):
                try:
                    errors, same = check_scaled(shape, dtype, each, device, True)
                    if not same:
                        print("NOT DETERMINISTIC scaled", dtype, shape, each)
                    name = f"w*f{' each' if each else ''}"
                    worst[name] = [max(a, b) for a, b in zip(worst.get(name, [0] * len(errors)), errors)]
                except Exception as error:
                    print("FAILED scaled", dtype, shape, each, first_line(error))
        for name, errors in worst.items():
            print(f"  {str(dtype):16} {name:14}", " ".join(f"{value:.1e}" for value in errors))
    x = torch.tensor([float("nan"), 1.0, -1.0] * 20000, device=device)
    y = on_cuda.ShiftedReLUOnCuda.apply(x, torch.zeros(1, device=device), torch.ones(1, device=device))
    print("  NaN stays:", bool(y[0].isnan()), " inactive equals b:", y[2].item() == 1.0)


def whole_network(device):
    print("\nwhole ResNet-20 fixup: kernels on vs off in float32 and bf16 autocast, worst relative difference of gradients")
    torch.manual_seed(0)
    network = _opened(convert(resnet_cifar(20), "fixup").to(device).to(memory_format=torch.channels_last))
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.numel() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    images = torch.randn(64, 3, 32, 32, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(10, (64,), device=device)
    for precision in ("float64", "float32", "bf16"):
        results = {}
        for enabled in (False, True):
            twin = deepcopy(network).double() if precision == "float64" else deepcopy(network)
            data = images.double() if precision == "float64" else images
            with kernels(enabled), torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
                F.cross_entropy(twin(data), labels).backward()
            results[enabled] = {name: p.grad for name, p in twin.named_parameters()}
        if precision == "float64":
            exact = results[True]
            continue
        for enabled in (False, True):
            errors = {name: relative(results[enabled][name], exact[name]) for name in exact}
            scalars = [v for n, v in errors.items() if exact[n].numel() == 1]
            weights = [v for n, v in errors.items() if exact[n].numel() > 1]
            print(f"  {precision} kernels {'on ' if enabled else 'off'} vs float64: weights median {statistics.median(weights):.1e} max {max(weights):.1e}; scalars median {statistics.median(scalars):.1e} max {max(scalars):.1e}")


def profile(device):
    """Kernel counts and times of a fixup and a bare step."""
    from torch.profiler import ProfilerActivity, profile as record

    for name in ("bare", "fixup"):
        network = networks(110, 0, device)[name]
        images = torch.randn(128, 3, 32, 32, device=device).to(memory_format=torch.channels_last)
        labels = torch.randint(10, (128,), device=device)
        step = make_step(network, images, labels)
        for _ in range(3):
            step()
        with record(activities=[ProfilerActivity.CUDA]) as prof:
            step()
            torch.cuda.synchronize()
        rows = sorted(prof.key_averages(), key=lambda row: -row.device_time_total)
        print(f"\nkernels of one eager step, ResNet-110 batch 128, {name}: {sum(r.count for r in rows)} launches, {sum(r.device_time_total for r in rows) / 1000:.2f} ms")
        for row in rows[:16]:
            print(f"  {row.count:5d} x {row.device_time_total / max(row.count, 1):7.2f} us  {row.key[:110]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--budget", type=float, default=130.0)
    parser.add_argument("--only", default="correct,graph,profile,compile")
    options = parser.parse_args()
    BUDGET = options.budget
    device, on_card = options.device, options.device == "cuda"
    parts = options.only.split(",")
    print("torch", torch.__version__, torch.cuda.get_device_name() if on_card else "cpu")
    for name, job in {
        "correct": lambda: correctness(device), "correct2": lambda: whole_network(device),
    }.items():
        if "correct" in parts and on_card:
            try:
                job()
            except Exception as error:
                print(name, "failed:", first_line(error))
                traceback.print_exc(limit=3)
    modes = ["graph", "eager"] if on_card else ["eager"]
    plans = [(110, 0, 128), (16, 4, 128), (16, 4, 1024), (110, 0, 1024)]
    if options.tiny:
        plans = [(8, 0, 4), (10, 1, 4)]
    for depth, width, batch in plans if "graph" in parts else ():
        try:
            few = modes if batch == 128 or not on_card else ["graph"]
            table(depth, width, batch, device, 32 if not options.tiny else 8, few, 8 if not options.tiny else 1)
        except Exception as error:
            print("table failed:", first_line(error))
            traceback.print_exc(limit=3)
    if "profile" in parts and on_card:
        try:
            profile(device)
        except Exception as error:
            print("profile failed:", first_line(error))
    for depth, width, batch in plans if "compile" in parts else ():
        try:
            compiled_table(depth, width, batch, device, 32 if not options.tiny else 8, list(reversed(modes)), 8 if not options.tiny else 1, ["fixup", "skipinit", "batch_norm", "bare"] if width or batch == 128 else ["fixup", "batch_norm"])
        except Exception as error:
            print("compiled table failed:", first_line(error))
    print(f"\nfinished after {elapsed():.0f} s")
