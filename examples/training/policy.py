"""A policy that solves word problems with a calculator: its tokens, and a small neural network in numpy.

A reply is `<call> FIRST + SECOND <end>`, a call of the calculator, or `<answer> RESULT <end>`, a final answer. FIRST, SECOND and
RESULT are tokens that copy a number: the two of the question, and the last result of the calculator.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DIGITS = [*"0123456789", "-"]
MARKS = ["<system>", "<question>", "<result>", "<call>", "<answer>", "<end>"]
COPIES = ["FIRST", "SECOND", "RESULT"]
OPERATORS = ["plus", "minus", "times"]
WORDS = [
    "has",
    "coins",
    "and",
    "finds",
    "more",
    "loses",
    "birds",
    "are",
    "on",
    "join",
    "gone",
    "boxes",
    "with",
    "rows",
    "of",
    "each",
]
VOCABULARY = [*MARKS, "<unknown>", *DIGITS, *COPIES, *OPERATORS, *WORDS]
IDS = {token: number for number, token in enumerate(VOCABULARY)}
SIZE = len(VOCABULARY)
SYSTEM, QUESTION, RESULT, CALL, ANSWER, END, UNKNOWN = range(len(MARKS) + 1)
SIGNS = {"plus": "+", "minus": "-", "times": "*"}
MAX_REPLY = 6
"""The most tokens of one reply: `<call>`, an expression of three tokens, and `<end>` are five."""
HIDDEN = 48
INPUTS = 3 * SIZE + 3
"""The last two tokens, the words of the question, and the number of results (0, 1, more)."""


def tokens_of(text):
    """Return the token ids of a text. Each digit is a token."""
    return [IDS.get(part, UNKNOWN) for part in re.findall(r"[\d-]|[A-Za-z]+", text)]


def render(messages):
    """Return the prompt: the token ids of a conversation.

    The id of a tool call contains the tokens that were sampled. So the history is exactly what was sampled, also if another
    process of the endpoint renders it.
    """
    ids = []
    for message in messages:
        match message["role"]:
            case "system":
                ids.append(SYSTEM)
            case "user":
                ids += [QUESTION, *tokens_of(message["content"])]
            case "tool":
                ids += [RESULT, *tokens_of(message["content"])]
            case "assistant" if message.get("tool_calls"):
                ids += map(int, message["tool_calls"][0]["id"].split("-")[1:])
    return ids


def numbers_after(mark, ids):
    """Return the numbers in the tokens that follow the last `mark`."""
    if mark not in ids:
        return []
    start = len(ids) - ids[::-1].index(mark)
    text = ""
    for token in ids[start:]:
        if token < len(MARKS):
            break
        text += VOCABULARY[token] if VOCABULARY[token] in DIGITS else " "
    return text.split()


def message_of(prompt, reply):
    """Return the assistant's message for sampled tokens."""
    asked, results = numbers_after(QUESTION, prompt), numbers_after(RESULT, prompt)
    first, second, *_ = [*asked, "?", "?"]
    copied = {"FIRST": first, "SECOND": second, "RESULT": results[0] if results else "?"}
    words = [copied.get(name) or SIGNS.get(name, name) for name in (VOCABULARY[one] for one in reply[1:] if one != END)]
    text = " ".join(words)
    if reply[0] == CALL:
        function = {"name": "calculator", "arguments": json.dumps({"expression": text})}
        call = {"id": "-".join(map(str, ["call", *reply])), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    content = f"\\boxed{{{text}}}" if reply[0] == ANSWER else VOCABULARY[reply[0]] + " " + text
    return {"role": "assistant", "content": content}


def features(ids, position):
    """Return the inputs of the network for the token at `position`: what precedes it, and nothing else."""
    inputs = np.zeros(INPUTS)
    before = ids[:position]
    inputs[before[-1]] = 1
    inputs[SIZE + before[-2]] = 1
    start = before.index(QUESTION) + 1 if QUESTION in before else 0
    for token in before[start:]:
        if token < len(MARKS):
            break
        inputs[2 * SIZE + token] = 1
    inputs[3 * SIZE + min(before.count(RESULT), 2)] = 1
    return inputs


@dataclass
class Policy:
    """The weights of one version, in double precision."""

    version: int
    weights: dict

    @classmethod
    def new(cls, seed):
        """Return random weights."""
        random = np.random.default_rng(seed)
        return cls(
            0,
            {
                "hidden": random.normal(0, 0.3, (INPUTS, HIDDEN)),
                "hidden_bias": np.zeros(HIDDEN),
                "output": random.normal(0, 0.1, (HIDDEN, SIZE)),
                "output_bias": np.zeros(SIZE),
            },
        )

    def forward(self, inputs):
        """Return the activations of the hidden layer and the log probabilities of all tokens."""
        hidden = np.tanh(inputs @ self.weights["hidden"] + self.weights["hidden_bias"])
        logits = hidden @ self.weights["output"] + self.weights["output_bias"]
        logits = logits - logits.max(axis=-1, keepdims=True)
        return hidden, logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

    def gradient(self, inputs, hidden, by_logits):
        """Return the gradient of the weights from the gradient of the logits."""
        by_hidden = (by_logits @ self.weights["output"].T) * (1 - hidden**2)
        return {
            "hidden": inputs.T @ by_hidden,
            "hidden_bias": by_hidden.sum(axis=0),
            "output": hidden.T @ by_logits,
            "output_bias": by_logits.sum(axis=0),
        }

    def sample(self, prompt, random):
        """Sample one reply; return its tokens and their log probabilities."""
        reply, logprobs = [], []
        while len(reply) < MAX_REPLY and END not in reply:
            ids = prompt + reply
            _, all_logprobs = self.forward(features(ids, len(ids)))
            token = int(random.choice(SIZE, p=np.exp(all_logprobs)))
            reply.append(token)
            logprobs.append(float(all_logprobs[token]))
        return reply, logprobs

    def logprobs(self, ids, positions):
        """Return the log probabilities of the tokens at `positions`."""
        _, all_logprobs = self.forward(np.array([features(ids, one) for one in positions]))
        return all_logprobs[np.arange(len(positions)), [ids[one] for one in positions]]

    def save(self, path):
        """Write the weights to a file that is complete or not there."""
        part = Path(path).with_suffix(".part")
        with part.open("wb") as file:
            np.savez(file, version=self.version, **self.weights)
        part.replace(path)

    @classmethod
    def load(cls, path):
        """Read the weights from a file."""
        with np.load(path) as stored:
            return cls(int(stored["version"]), {name: stored[name] for name in stored.files if name != "version"})
