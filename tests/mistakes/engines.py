"""Mistakes with the installation, engines, Ray and Spark."""

from __future__ import annotations

from tests.mistakes.mistake import Mistake
from tests.mistakes.surroundings import free_port, runs

_RUN = "paragent rollout --mode math --model demo --data tasks.jsonl"
_KEY = {"OPENAI_API_KEY": "sk-mistake", "ANTHROPIC_API_KEY": "sk-mistake"}

MISTAKES = (
    Mistake(
        title="no package for endpoints",
        command="paragent rollout --mode math --model gpt-4.1 --data tasks.jsonl",
        variables=_KEY,
        without=("openai",),
        says=("the API 'chat' needs openai, which is not installed: ", "pip install ", "[rollout]'"),
    ),
    Mistake(
        title="no package for Anthropic's API",
        command="paragent rollout --mode math --model claude --api anthropic --data tasks.jsonl",
        variables=_KEY,
        without=("anthropic",),
        says=("the API 'anthropic' needs anthropic, which is not installed: ", "pip install ", "[anthropic]'"),
    ),
    Mistake(
        title="no package for --mode math",
        command=_RUN,
        without=("sympy",),
        says=("the environment 'math' needs sympy, which is not installed: ", "pip install ", "[math]'"),
    ),
    Mistake(
        title="no package for --mode rag",
        command="paragent rollout --mode rag --model demo --data tasks.jsonl --kb tasks.jsonl",
        without=("numpy",),
        says=("the environment 'rag' needs numpy, which is not installed: ", "pip install ", "[rag]'"),
    ),
    Mistake(
        title="no package for --mode web",
        command="paragent rollout --mode web --model demo --data tasks.jsonl",
        without=("playwright",),
        says=("the environment 'web' needs playwright, which is not installed: ", "pip install ", "[web]'"),
    ),
    Mistake(
        title="no package for Parquet files",
        command="paragent rollout --mode math --model demo --data tasks.parquet",
        files={"tasks.parquet": "PAR1"},
        without=("pyarrow",),
        says=("--data tasks.parquet needs pyarrow, which is not installed: ", "pip install ", "[parquet]'"),
    ),
    Mistake(
        title="no package for the Hugging Face hub",
        command="paragent rollout --mode math --model demo --data hf:openai/gsm8k",
        without=("datasets",),
        says=("--data hf:openai/gsm8k needs datasets, which is not installed: ", "pip install ", "[hf]'"),
    ),
    Mistake(
        title="no package for YAML files",
        command="paragent rollout --config settings.yaml",
        files={"settings.yaml": "mode: math\n"},
        without=("yaml",),
        says=("a YAML file needs yaml, which is not installed: ", "pip install ", "[rollout]'"),
    ),
    Mistake(
        title="no package for MCP servers",
        command=f"{_RUN} --mcp-config mcp.json",
        files={"mcp.json": '{"mcpServers": {"notes": {"command": "cat"}}}'},
        without=("mcp",),
        says=("--mcp-config needs mcp, which is not installed: ", "pip install ", "[mcp]'"),
    ),
    Mistake(
        title="no package for OpenTelemetry",
        command=f"{_RUN} --otel",
        without=("opentelemetry",),
        says=("--otel needs opentelemetry, which is not installed: ", "pip install ", "[otel]'"),
    ),
    Mistake(
        title="no package for the view",
        command="paragent view results",
        files={"results/note.txt": ""},
        without=("uvicorn",),
        says=("`paragent view` needs uvicorn, which is not installed: ", "pip install ", "[view]'"),
    ),
    Mistake(
        title="no package for training",
        command="paragent training serve --config settings.yaml",
        without=("starlette",),
        says=("`paragent training serve` needs starlette, which is not installed: ", "pip install ", "[training]'"),
    ),
    Mistake(
        title="no package for QEMU",
        command="paragent pool serve",
        without=("qemu",),
        says=("the provider 'qemu' needs qemu, which is not installed: ", "pip install ", "[qemu]'"),
    ),
    Mistake(
        title="no package for Docker",
        command="paragent pool serve --provider-name docker",
        without=("docker",),
        says=("the provider 'docker' needs docker, which is not installed: ", "pip install ", "[docker]'"),
    ),
    Mistake(
        title="no package for AWS",
        command="paragent pool serve --provider-name aws",
        without=("boto3",),
        says=("the provider 'aws' needs boto3, which is not installed: ", "pip install ", "[aws]'"),
    ),
    Mistake(
        title="an incomplete installation",
        command="paragent runs",
        given=runs,
        without=("rich",),
        says=("this command needs the package 'rich', which is not installed: ", "pip install "),
    ),
    Mistake(
        title="no bubblewrap for programs of --mode py",
        command="paragent rollout --mode py --model demo --data tasks.jsonl",
        without_programs=True,
        says=("bubblewrap (bwrap) is not installed; install the package `bubblewrap`", "--sandbox none"),
    ),
    Mistake(
        title="no bubblewrap for a program that is the agent",
        command=f"{_RUN} --agent 'cmd: python my_agent.py'",
        files={"my_agent.py": "print(5)\n"},
        without_programs=True,
        says=("the sandbox of the agent: bubblewrap (bwrap) is not installed", "or use --agent-in host"),
    ),
    Mistake(
        title="no Chromium",
        command="paragent rollout --mode web --model demo --data tasks.jsonl",
        without_programs=True,
        says=("the environment 'web': Chromium was not found", "install your system's `chromium` package"),
    ),
    Mistake(
        title="no QEMU",
        command="paragent pool serve",
        without_programs=True,
        says=("the program qemu-system-x86_64 is not installed: sudo apt-get install",),
    ),
    Mistake(
        title="no package for Ray",
        command=f"{_RUN} --engine ray",
        without=("ray",),
        says=("the engine 'ray' needs ray, which is not installed: ", "pip install ", "[ray]'"),
    ),
    Mistake(
        title="no package for Spark",
        command=f"{_RUN} --engine spark",
        without=("pyspark",),
        says=("the engine 'spark' needs pyspark, which is not installed: ", "pip install ", "[spark]'"),
    ),
    Mistake(
        title="Spark without Java",
        command=f"{_RUN} --engine spark",
        without_programs=True,
        status=1,
        says=("Spark needs a Java runtime, version 17 or later", "apt-get install openjdk-17-jre-headless"),
    ),
    Mistake(
        title="a wrong JAVA_HOME",
        command=f"{_RUN} --engine spark",
        variables={"JAVA_HOME": "/opt/no-java"},
        without_programs=True,
        status=1,
        says=("JAVA_HOME is /opt/no-java, which has no bin/java; set it to the folder of a Java runtime",),
    ),
    Mistake(
        title="a Ray cluster that does not run",
        command=f"{_RUN} --engine ray --engine-address 127.0.0.1:<port>",
        given=free_port,
        status=1,
        says=(
            "the Ray cluster at 127.0.0.1:",
            "does not answer: [Errno 111] Connection refused. Check the address, that the cluster runs, and firewalls; or start",
            "one on this host, with in_local=True or without --engine-address",
        ),
    ),
    Mistake(
        title="a Spark cluster that does not run",
        command=f"{_RUN} --engine spark --engine-address spark://127.0.0.1:<port>",
        given=free_port,
        status=1,
        says=("the Spark master at 127.0.0.1:", "does not answer: [Errno 111] Connection refused. Check the address"),
    ),
    Mistake(
        title="the address of a cluster for another engine",
        command=f"{_RUN} --engine-address 10.0.0.1:6379",
        says=("--engine-address is for ray and spark, not for --engine local",),
    ),
)
