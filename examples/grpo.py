"""Reinforcement learning as language models are trained with it (GRPO), in small: generators, a scorer, a trainer.

The "model" is a table of NumPy numbers. A prompt is a number from 0 to 7, an answer is three bits, and the best answer
is that number in binary. Generators sample a group of answers for each prompt, with the weights that they last got; the
scorer gives rewards; the trainer learns from the groups, an answer that beats the mean of its group becoming likelier,
and publishes new weights, which the generators pull. The parts are the same with a real model, and so is the way in
which they talk:

    trainer --weights--> generators --answers--> scorer --groups, through a port--> trainer

The generators are always one step ahead: they sample the next groups while the trainer learns from the last ones. The
weights of a group are thus a little old, which the trainer allows for (the ratio in Trainer.learn).

    python examples/grpo.py
"""

import os

# One thread per process for linear algebra, before NumPy is imported; see examples/digits.py.
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

from typing import NamedTuple

import numpy as np

from monarch.actor import Actor, Channel, Port, current_rank, current_size, endpoint, this_host
from monarch.weights import Source, SourceHandle, Target

GENERATORS, STEPS, SEED = 2, 60, 5
PROMPTS, BITS, GROUP = 8, 3, 16  # prompts, bits of an answer, answers sampled for each prompt
RATE, CLIP = 1.0, 0.3


class Group(NamedTuple):
    """What was answered to one prompt, and how likely each bit was when it was sampled."""

    step: int
    prompt: int
    answers: np.ndarray  # [GROUP, BITS] of 0 and 1
    likelihood: np.ndarray  # [GROUP, BITS]
    rewards: np.ndarray | None = None  # [GROUP]


def likelihood_of(weights: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """The model: each bit of an answer to a prompt is 1 with the probability sigmoid(weight)."""
    ones = 1 / (1 + np.exp(-weights))
    return np.where(answers == 1, ones, 1 - ones)


class Generator(Actor):
    def __init__(self, scorer: "Scorer"):
        self.scorer = scorer
        self.random = np.random.default_rng([SEED, current_rank().rank])
        self.prompts = range(current_rank().rank, PROMPTS, current_size()["generators"])
        self.weights = np.zeros((PROMPTS, BITS))
        self.target = Target({"table": self.weights})

    @endpoint
    def load(self, trainer: SourceHandle, version: int) -> None:
        self.target.pull([trainer], version)  # straight from its memory; it keeps the last two versions

    @endpoint
    def generate(self, step: int, queue: Port[Group]) -> None:
        """Answers its share of the prompts. The answers go to the scorer, and with them the port for what it makes."""
        for prompt in self.prompts:
            ones = likelihood_of(self.weights[prompt], np.ones((GROUP, BITS)))
            answers = (self.random.random((GROUP, BITS)) < ones).astype(int)
            group = Group(step, prompt, answers, likelihood_of(self.weights[prompt], answers))
            self.scorer.score.broadcast(group, queue)


class Scorer(Actor):
    @endpoint
    def score(self, group: Group, queue: Port[Group]) -> None:
        wanted = group.prompt >> np.arange(BITS) & 1
        queue.send(group._replace(rewards=(group.answers == wanted).mean(axis=1)))


class Trainer(Actor):
    def __init__(self, generators: Generator):
        self.generators = generators
        self.weights = np.zeros((PROMPTS, BITS))
        self.source = Source({"table": self.weights})
        # The replay queue. Its port travels to the generators and on to the scorer; its receiver stays here.
        self.port, self.queue = Channel[Group].open()
        self.early: list[Group] = []  # taken from the queue, but for the next step
        self.generators.generate.broadcast(0, self.port)  # the step that they are ahead

    @endpoint
    def train(self, first: int, last: int) -> list[float]:
        """The mean reward of each step."""
        return [self.take_step(step) for step in range(first, last)]

    def take_step(self, step: int) -> float:
        if step + 1 < STEPS:
            self.generators.generate.broadcast(step + 1, self.port)  # meanwhile, this step
        groups = self.groups_of(step)
        for group in groups:
            self.learn(group)
        self.source.publish(step)
        self.generators.load.broadcast(self.source.handle(), step)
        return float(np.mean([group.rewards for group in groups]))

    def groups_of(self, step: int) -> list[Group]:
        """From the queue, to which the generators add as they come: sorted, so that each run prints the same."""
        groups, self.early = self.early, []
        while len(groups) < PROMPTS:
            group = self.queue.recv().get()
            (groups if group.step == step else self.early).append(group)
        return sorted(groups, key=lambda group: group.prompt)

    def learn(self, group: Group) -> None:
        """Policy gradient with clipped ratios: d(ratio * advantage)/d(weights), unless the ratio is too far off."""
        advantage = (group.rewards - group.rewards.mean()) / (group.rewards.std() + 1e-6)
        likelihood = likelihood_of(self.weights[group.prompt], group.answers)
        ratio = likelihood / group.likelihood
        too_far = np.where(advantage[:, None] > 0, ratio > 1 + CLIP, ratio < 1 - CLIP)
        slope = np.where(group.answers == 1, 1, -1) * (1 - likelihood)  # of log(likelihood)
        self.weights[group.prompt] += RATE * np.mean(np.where(too_far, 0, ratio * advantage[:, None] * slope), axis=0)


def main() -> None:
    scorer = this_host().spawn_procs().spawn("scorer", Scorer)
    procs = this_host().spawn_procs(per_host={"generators": GENERATORS})
    generators = procs.spawn("generators", Generator, scorer)
    trainer = this_host().spawn_procs().spawn("trainer", Trainer, generators)
    for step in range(0, STEPS, 5):
        reward = np.mean(trainer.train.call_one(step, step + 5).get())
        print(f"steps {step:2} to {step + 4:2}: reward {reward:.3f} {'#' * round(40 * reward)}")


if __name__ == "__main__":
    main()
