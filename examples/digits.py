"""Data-parallel training on the handwritten digits of scikit-learn: one script, a mesh of worker processes.

Each step the script sends the parameters and the rows of one batch to every worker. Each worker answers with the
gradient over its share of the rows; the script adds the answers up and takes the step. At the end the same training
runs as an ordinary program without workers: the losses of both must agree, and the last lines say what the workers
gained. There is one worker for each core, unless you say otherwise.

With --kill two workers die while they compute. Others take their places, and the losses and the accuracy are the same.
With --hosts the workers run where worker loops are (`monarch worker --bind tcp://HOST:PORT`), N on each; nothing else
changes.

    python examples/digits.py [--workers N] [--steps N] [--kill] [--hosts ADDRESS...]
"""

import argparse
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

# One BLAS thread per process, with and without workers: the parallelism here is the mesh, and N workers with a thread
# pool of the size of the machine each would fight for its cores. Workers inherit the environment; it must be set
# before NumPy is imported.
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from monarch.actor import (
    Actor,
    SupervisionError,
    attach_to_workers,
    current_rank,
    current_size,
    default_bootstrap_cmd,
    endpoint,
    this_host,
)

# Workers on other hosts have the environment of their host, and these in it.
ONE_THREAD = {name: os.environ[name] for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")}

WIDTHS = [64, 192, 192, 10]  # pixels, two hidden layers, digits
SHAPES = [shape for pair in zip(WIDTHS, WIDTHS[1:]) for shape in (pair, pair[1:])]  # weights and bias of each layer
MOVES = [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0)]  # each image is learned in five places
BATCH, STEPS, RATE, MOMENTUM, SEED = 2395, 100, 0.2, 0.9, 7  # three batches in an epoch


# ---- The model: plain NumPy, used by workers and by the program without workers alike ----


def views(flat: np.ndarray) -> list[np.ndarray]:
    """The parameters (or gradients) that lie one after the other in `flat`."""
    ends = np.cumsum([np.prod(shape) for shape in SHAPES])
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), SHAPES, strict=True)]


def initial_parameters() -> np.ndarray:
    random = np.random.default_rng(SEED)
    layers = [random.normal(0, shape[0] ** -0.5, shape) if len(shape) == 2 else np.zeros(shape) for shape in SHAPES]
    return np.concatenate([layer.ravel() for layer in layers])


def forward(flat: np.ndarray, images: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """What goes into each layer, and for each image the probabilities of the ten digits."""
    parts = views(flat)
    inputs = [images]
    for weights, bias in zip(parts[0:-2:2], parts[1:-2:2], strict=True):
        outputs = inputs[-1] @ weights
        outputs += bias
        inputs.append(np.maximum(outputs, 0, out=outputs))
    scores = inputs[-1] @ parts[-2] + parts[-1]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return inputs, powers / powers.sum(axis=1, keepdims=True)


def loss_and_gradient(flat: np.ndarray, images: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """Cross entropy and its gradient, both summed (not averaged) over the images, so that shares just add up."""
    inputs, probabilities = forward(flat, images)
    everyone = np.arange(len(labels))
    loss = -np.log(probabilities[everyone, labels]).sum()
    error = probabilities
    error[everyone, labels] -= 1
    gradient = np.empty_like(flat)
    parts, slots = views(flat), views(gradient)
    for layer in reversed(range(len(inputs))):
        slots[2 * layer][:], slots[2 * layer + 1][:] = inputs[layer].T @ error, error.sum(axis=0)
        if layer > 0:
            error = error @ parts[2 * layer].T
            error *= inputs[layer] > 0
    return float(loss), gradient


def batches(count: int, steps: int) -> Iterator[np.ndarray]:
    """The rows of one batch after the other: every row once per epoch, in an order that the seed decides."""
    random = np.random.default_rng(SEED)
    order = np.empty(0, dtype=np.intp)
    for _ in range(steps):
        if len(order) < BATCH:
            order = random.permutation(count)
        yield order[:BATCH]
        order = order[BATCH:]


class Training(NamedTuple):
    parameters: np.ndarray
    losses: list[float]
    seconds: float


def train(gradient_of: Callable, count: int, steps: int, progress: Callable[[int, float], None]) -> Training:
    """Gradient descent with momentum. `gradient_of(parameters, rows)` is all that differs with and without workers."""
    flat = initial_parameters()
    velocity = np.zeros_like(flat)
    losses = []
    start = time.perf_counter()
    for step, rows in enumerate(batches(count, steps)):
        loss, gradient = gradient_of(flat, rows)
        velocity = MOMENTUM * velocity - RATE / len(rows) * gradient
        flat = flat + velocity
        losses.append(loss / len(rows))
        progress(step + 1, losses[-1])
    return Training(flat, losses, time.perf_counter() - start)


# ---- The workers ----


class Worker(Actor):
    """Holds the training data and computes gradients of its share of each batch."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray):
        self.images, self.labels = pixels / 16, labels
        self.rank, self.size = current_rank().rank, math.prod(current_size().values())
        self.samples, self.computing = 0, 0.0
        self.first, self.last = None, 0.0  # when the first gradient was begun, and the latest finished

    @endpoint
    def gradient(self, flat: np.ndarray, rows: np.ndarray) -> tuple[float, np.ndarray]:
        begin = time.perf_counter()
        mine = rows[self.rank :: self.size]
        answer = loss_and_gradient(flat, self.images[mine], self.labels[mine])
        self.last = time.perf_counter()
        self.first = self.first or begin
        self.samples += len(mine)
        self.computing += self.last - begin
        return answer

    @endpoint
    def report(self) -> tuple[int, int, float, float, str]:
        """(pid, samples, seconds computing, seconds waiting for the next batch, BLAS threads)"""
        waiting = self.last - (self.first or self.last) - self.computing
        return os.getpid(), self.samples, self.computing, waiting, os.environ.get("OPENBLAS_NUM_THREADS", "all")


# ---- Who dies, with --kill ----


class Killer:
    """Kills a worker a third through the training and another one at two thirds, a moment into a step."""

    def __init__(self, steps: int, pids: list[int]):
        self.plan = {steps // 3: (0, signal.SIGKILL), 2 * steps // 3: (len(pids) - 1, signal.SIGSEGV)}
        self.pids = pids  # by rank
        self.killed = 0.0  # when
        self.lines = ["rank      pid  died of      noticed         back  next pid"]

    def after_step(self, step: int) -> None:
        if step in self.plan:
            threading.Timer(0.002, self.kill, self.plan[step]).start()

    def kill(self, rank: int, by: signal.Signals) -> None:
        self.killed = time.perf_counter()
        os.kill(self.pids[rank], by)

    def note(self, death: SupervisionError, noticed: float, next_pid: int) -> None:
        after_ms = [1000 * (when - self.killed) for when in (noticed, time.perf_counter())]
        times = "".join(f" {ms:9.2f} ms" for ms in after_ms)
        self.lines.append(f"{death.rank:4} {death.pid:8}  {signal.Signals(death.signal).name}{times} {next_pid:9}")
        self.pids[death.rank] = next_pid


# ---- The script ----


def moved(images: np.ndarray) -> np.ndarray:
    """The images, then the images moved by a pixel to each side: which digit it is does not depend on its place."""
    framed = np.pad(images.reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)))
    return np.concatenate([framed[:, 1 + y : 9 + y, 1 + x : 9 + x].reshape(-1, 64) for y, x in MOVES])


def load() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits  # in here: the workers get arrays, and never import scikit-learn
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images, test_images, labels, test_labels = train_test_split(
        images / 16.0, labels, test_size=0.2, random_state=SEED, stratify=labels
    )
    return moved(images), test_images, np.tile(labels, len(MOVES)), test_labels


def progress_bar(steps: int) -> Callable[[int, float], None]:
    """One line that fills up on a terminal; a few plain lines anywhere else."""

    def show(step: int, loss: float) -> None:
        if sys.stdout.isatty():
            if step % 10 == 0 or step == steps:
                bar = "#" * (40 * step // steps)
                end = "\n" if step == steps else ""
                print(f"\r[{bar:40}] step {step}/{steps}, loss {loss:.4f}", end=end, flush=True)
        elif step in {steps * quarter // 4 for quarter in (1, 2, 3, 4)}:
            print(f"step {step}/{steps}, loss {loss:.4f}")

    return show


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--workers", type=int, default=cores, help=f"processes, on each host (a core each: {cores})")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"number of training steps ({STEPS})")
    parser.add_argument("--kill", action="store_true", help="let two workers die on the way")
    parser.add_argument(
        "--hosts", nargs="+", metavar="ADDRESS", help="where the workers run: tcp://HOST:PORT of each `monarch worker`"
    )
    options = parser.parse_args()

    hosts = attach_to_workers(workers=options.hosts) if options.hosts else this_host()
    command = default_bootstrap_cmd().with_env(ONE_THREAD) if options.hosts else None
    # they start while we load the data
    procs = hosts.spawn_procs(per_host={"workers": options.workers}, bootstrap_command=command)
    images, test_images, labels, test_labels = load()
    print(f"{len(images)} digits to train on, {len(test_images)} to test with, {len(procs)} worker processes")
    pixels = (images * 16).astype(np.uint8)  # they are whole numbers, which take an eighth of the room
    workers = procs.spawn("workers", Worker, pixels, labels)
    reports = workers.report.call().get()  # everybody is up: start-up is not part of the time per step

    def on_the_mesh(flat: np.ndarray, rows: np.ndarray) -> tuple[float, np.ndarray]:
        answers = workers.gradient.call(flat, rows).get().values()
        return sum(loss for loss, _ in answers), sum(gradient for _, gradient in answers)

    def through_deaths(flat: np.ndarray, rows: np.ndarray) -> tuple[float, np.ndarray]:
        while True:
            try:
                return on_the_mesh(flat, rows)
            except SupervisionError as death:  # of a worker; the parameters are here: the step can be repeated
                noticed = time.perf_counter()
                procs.respawn().get()  # a new process for each that has ended, with its actors; `workers` finds them
                pid, *_ = workers.flatten("rank").slice(rank=death.rank).report.call_one().get()
                killer.note(death, noticed, pid)

    def alone(flat: np.ndarray, rows: np.ndarray) -> tuple[float, np.ndarray]:
        return loss_and_gradient(flat, images[rows], labels[rows])

    killer = Killer(options.steps, [pid for pid, *_ in reports.values()])
    show = progress_bar(options.steps)

    def show_and_kill(step: int, loss: float) -> None:
        show(step, loss)
        killer.after_step(step)

    if options.kill:
        mesh = train(through_deaths, len(images), options.steps, show_and_kill)
    else:
        mesh = train(on_the_mesh, len(images), options.steps, show)
    reports = workers.report.call().get()
    procs.stop().get()
    single = train(alone, len(images), options.steps, lambda step, loss: None)

    accuracy, accuracy_alone = (
        (forward(training.parameters, test_images)[1].argmax(axis=1) == test_labels).mean()
        for training in (mesh, single)
    )
    difference = max(abs(a - b) for a, b in zip(mesh.losses, single.losses, strict=True))
    print(f"test accuracy {accuracy:.4f}\n")
    if options.kill:
        print(*killer.lines, sep="\n", end="\n\n")
    print("rank      pid  samples  computing  waiting")
    for point, (pid, samples, computing, waiting, _) in reports.items():
        print(f"{point.rank:4} {pid:8} {samples:8} {computing:8.3f} s {waiting:6.3f} s")
    print()
    for name, training in [(f"{len(procs)} workers", mesh), ("one process", single)]:
        step_ms = 1000 * training.seconds / options.steps
        print(f"{name:12} {step_ms:6.2f} ms per step, last loss {training.losses[-1]:.6f}")
    threads = "one BLAS thread" if {report[-1] for report in reports.values()} == {"1"} else "BLAS threads of its own"
    print(f"with workers {single.seconds / mesh.seconds:6.2f} times as fast, each process with {threads}")
    print(f"largest difference of a loss: {difference:.1e}")
    if options.kill:
        print(f"test accuracy {accuracy:.4f}, and {accuracy_alone:.4f} where nobody died")
    assert difference < 1e-9 and accuracy == accuracy_alone, (
        "the same seed must give the same losses, with workers and without"
    )


if __name__ == "__main__":
    main()
