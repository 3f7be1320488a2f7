"""Learning: the first weights, and one step of GRPO with the gradients computed by hand."""

import numpy as np
from policy import ANSWER, CALL, COPIES, END, IDS, OPERATORS, QUESTION, RESULT, SYSTEM, Policy, features, tokens_of

FIRST_STEP_SIZE, STEP_SIZE = 0.02, 0.01
CLIP = 0.2
"""How far the probability of a token may be from that when it was sampled, until it is no longer pushed away."""


class Adam:
    """The optimizer, and its state for the checkpoint."""

    def __init__(self, policy, state=None):
        self.state = state or {"step": 0}
        for name, weights in policy.weights.items():
            self.state.setdefault(f"mean {name}", np.zeros_like(weights))
            self.state.setdefault(f"square {name}", np.zeros_like(weights))

    def step(self, policy, gradient, size):
        """Change the weights against the gradient."""
        state = self.state
        state["step"] = int(state["step"]) + 1
        for name, slope in gradient.items():
            mean, square = f"mean {name}", f"square {name}"
            state[mean] = 0.9 * state[mean] + 0.1 * slope
            state[square] = 0.99 * state[square] + 0.01 * slope**2
            unbiased = state[mean] / (1 - 0.9 ** state["step"])
            spread = np.sqrt(state[square] / (1 - 0.99 ** state["step"]))
            policy.weights[name] = policy.weights[name] - size * unbiased / (spread + 1e-8)


def first_policy(seed, questions, steps=150):
    """Return a policy that knows the form of replies, as a base model does, but not which reply is right.

    It is trained to imitate random replies of that form, which do not depend on the question.
    """
    random = np.random.default_rng(seed)
    policy = Policy.new(seed)
    optimizer = Adam(policy)
    for _ in range(steps):
        rows, targets = [], []
        for question in random.choice(questions, 16):
            ids = [SYSTEM, QUESTION, *tokens_of(question)]
            for results in range(random.integers(1, 3)):
                reply = random_reply(random, results)
                for token in reply:
                    rows.append(features(ids, len(ids)))
                    targets.append(token)
                    ids = [*ids, token]
                ids = [*ids, RESULT, *tokens_of(str(random.integers(-20, 99)))]
        inputs = np.array(rows)
        hidden, logprobs = policy.forward(inputs)
        by_logits = np.exp(logprobs)
        by_logits[np.arange(len(targets)), targets] -= 1
        optimizer.step(policy, policy.gradient(inputs, hidden, by_logits / len(targets)), FIRST_STEP_SIZE)
    return policy


def random_reply(random, results):
    """Return a random reply of the right form."""
    numbers, operators = [IDS[name] for name in COPIES], [IDS[name] for name in OPERATORS]
    if random.random() < (0.75 if results else 0.25):
        return [ANSWER, random.choice(numbers if results else numbers[:2]), END]
    first, second = random.permutation(numbers[:2])
    return [CALL, first, random.choice(operators), second, END]


def learn(policy, optimizer, samples):
    """Make one step and return the policy of the next version.

    Args:
        policy: the current version.
        optimizer: its state.
        samples: token ids, mask, log probabilities when they were sampled, and advantage. Those without an advantage say
            nothing about the weights and are left out.
    """
    samples = [sample for sample in samples if sample[-1] != 0]
    updated = Policy(policy.version + 1, dict(policy.weights))
    if not samples:
        return updated
    rows, targets, sampled, weights = [], [], [], []
    for ids, mask, logprobs, advantage in samples:
        for position in np.flatnonzero(mask):
            rows.append(features(ids, position))
            targets.append(ids[position])
            sampled.append(logprobs[position])
            weights.append(advantage)
    inputs, weights = np.array(rows), np.array(weights)
    hidden, all_logprobs = policy.forward(inputs)
    chosen = np.arange(len(targets)), targets
    ratio = np.exp(all_logprobs[chosen] - sampled)
    clipped = np.where(weights > 0, ratio > 1 + CLIP, ratio < 1 - CLIP)
    scale = np.where(clipped, 0.0, ratio * weights) / len(samples)
    by_logits = np.exp(all_logprobs) * scale[:, None]
    by_logits[chosen] -= scale
    optimizer.step(updated, policy.gradient(inputs, hidden, by_logits), STEP_SIZE)
    return updated
