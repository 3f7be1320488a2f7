"""Mistakes with the model and its endpoint."""

from __future__ import annotations

from tests.mistakes.mistake import Mistake
from tests.mistakes.surroundings import ENDPOINT, endpoint, free_port, web_server

_RUN = "paragent rollout --mode math --data tasks.jsonl --limit 1 --engine inline --max-retries 0"

MISTAKES = (
    Mistake(
        title="no key",
        command=f"{_RUN} --model gpt-4.1",
        says=(
            "there is no API key for the model's endpoint: set OPENAI_API_KEY in the environment or in a file .env",
            "or use `--model demo`",
        ),
    ),
    Mistake(
        title="no key for Anthropic's API",
        command=f"{_RUN} --model claude --api anthropic",
        variables={"OPENAI_API_KEY": "sk-mistake"},
        says=("there is no API key for the model's endpoint: set ANTHROPIC_API_KEY",),
    ),
    Mistake(
        title="no --model, in a script",
        command=_RUN,
        variables={"OPENAI_API_KEY": "sk-mistake"},
        says=(
            "with the default model,",
            "nothing was started. Choose a model with --model, or accept this one with --yes",
        ),
    ),
    Mistake(
        title="an address without http://",
        command=f"{_RUN} --model gpt-4.1",
        variables={"OPENAI_BASE_URL": "localhost:8000/v1", "OPENAI_API_KEY": "sk-mistake"},
        says=("OPENAI_BASE_URL: the address of an endpoint begins with http:// or https://, not 'localhost:8000/v1'",),
    ),
    Mistake(
        title="a wrong key",
        command=f"{_RUN} --model gpt-4.1",
        given=endpoint(401, "Incorrect API key provided", "invalid_api_key"),
        variables=ENDPOINT,
        status=1,
        waits=True,
        says=(
            "does not accept the API key (HTTP 401): Incorrect API key provided",
            "Set OPENAI_API_KEY to a key of this endpoint",
            "1 rollout without a result",
        ),
    ),
    Mistake(
        title="a model that the endpoint does not have",
        command=f"{_RUN} --model gpt-4.11",
        given=endpoint(404, "The model 'gpt-4.11' does not exist", "model_not_found"),
        variables=ENDPOINT,
        status=1,
        says=("refuses model 'gpt-4.11' (HTTP 404)", "Check --model and OPENAI_API_KEY"),
    ),
    Mistake(
        title="a model that the key may not use",
        command=f"{_RUN} --model gpt-4.1",
        given=endpoint(403, "Your project has no access"),
        variables=ENDPOINT,
        status=1,
        says=("refuses model 'gpt-4.1' (HTTP 403): Your project has no access. Check --model and OPENAI_API_KEY",),
    ),
    Mistake(
        title="an address without /v1",
        command=f"{_RUN} --model gpt-4.1",
        given=web_server(404),
        variables=ENDPOINT,
        status=1,
        says=(
            "is not the address of an endpoint with --api chat (HTTP 404): the reply is a web page. Correct OPENAI_BASE_URL,",
            "which often ends with /v1",
        ),
    ),
    Mistake(
        title="the address of a web site",
        command=f"{_RUN} --model gpt-4.1",
        given=web_server(200),
        variables=ENDPOINT,
        status=1,
        waits=True,
        says=("MalformedReply: the reply is a web page. Check OPENAI_BASE_URL and --api, which is chat",),
    ),
    Mistake(
        title="http:// instead of https://",
        command=f"{_RUN} --model gpt-4.1",
        given=web_server(301, ""),
        variables=ENDPOINT,
        status=1,
        says=("is not the address of an endpoint with --api chat (HTTP 301)", "Correct OPENAI_BASE_URL"),
    ),
    Mistake(
        title="an endpoint that does not run",
        command=f"{_RUN} --model gpt-4.1",
        given=free_port,
        variables=ENDPOINT,
        status=1,
        waits=True,
        says=(
            "stopped early: the endpoint has never answered",
            "ConnectionRefusedError",
            "Check that the endpoint runs and that OPENAI_BASE_URL is right",
        ),
    ),
    Mistake(
        title="an account without credit",
        command=f"{_RUN} --model gpt-4.1",
        given=endpoint(429, "You exceeded your current quota", "insufficient_quota"),
        variables=ENDPOINT,
        status=1,
        says=(
            "has no credit for 'gpt-4.1': You exceeded your current quota",
            "Add credit or use another OPENAI_API_KEY, and start the same command again",
        ),
    ),
    Mistake(
        title="an endpoint without tools",
        command=f"{_RUN} --model gpt-4.1",
        given=endpoint(400, "tools are not supported"),
        variables=ENDPOINT,
        status=1,
        says=(
            "rejects the request (HTTP 400): tools are not supported. If the endpoint does not support tools, use",
            "--tool-format text",
        ),
    ),
    Mistake(
        title="a time in an unknown unit",
        command=f"{_RUN} --model gpt-4.1 --max-time 1ms",
        variables={"OPENAI_API_KEY": "sk-mistake"},
        says=("--max-time must be a number of seconds, or a time such as 90s, 30m or 1h30m, not '1ms'",),
    ),
    Mistake(
        title="a turn limit that is too small",
        command="paragent rollout --mode math --data tasks.jsonl --model demo --engine inline --max-turns 1",
        status=1,
        waits=True,
        says=("all rollouts used up their turns and none scored above 0; see --max-turns and `paragent show`",),
    ),
)
