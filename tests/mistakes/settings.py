"""Mistakes in commands, flags, variables and settings files."""

from __future__ import annotations

from tests.mistakes.mistake import Mistake

_RUN = "paragent rollout --mode math --model demo --data tasks.jsonl"

MISTAKES = (
    Mistake(
        title="typing error in a command",
        command="paragent rolout",
        says=("there is no command 'rolout'; did you mean rollout?",),
    ),
    Mistake(
        title="typing error in a flag",
        command=f"{_RUN} --num-rolouts 4",
        says=("there is no flag --num-rolouts; did you mean --num-rollouts?",),
    ),
    Mistake(
        title="a flag without its value",
        command="paragent export first --format jsonl",
        says=("missing: --output; see `paragent export --help`",),
    ),
    Mistake(
        title="no --mode",
        command="paragent rollout --model demo --data tasks.jsonl",
        says=("--mode is missing; it is one of: math,",),
    ),
    Mistake(
        title="typing error in the name of an environment",
        command="paragent rollout --mode mth --model demo --data tasks.jsonl",
        says=("there is no environment called 'mth', did you mean 'math'? There are:",),
    ),
    Mistake(
        title="typing error in the name of an engine",
        command=f"{_RUN} --engine sparc",
        says=("there is no engine called 'sparc', did you mean 'spark'? There are:",),
    ),
    Mistake(
        title="typing error in the name of a scorer",
        command=f"{_RUN} --metric exact_mach",
        says=("there is no metric called 'exact_mach', did you mean 'exact_match'? There are:",),
    ),
    Mistake(
        title="a text instead of a number",
        command=f"{_RUN} --num-rollouts many",
        says=("--num-rollouts must be an integer, not 'many'",),
    ),
    Mistake(
        title="a number that is too small",
        command=f"{_RUN} --attempts 0",
        says=("--attempts must be an integer of at least 1, not 0",),
    ),
    Mistake(
        title="a time limit in words",
        command=f"{_RUN} --timeout soon",
        says=("--timeout must be a number of seconds, or a time such as 90s, 30m or 1h30m, not 'soon'",),
    ),
    Mistake(
        title="a temperature out of range",
        command=f"{_RUN} --temperature 9",
        says=("--temperature must be a number from 0 to 2, not 9.0",),
    ),
    Mistake(
        title="an unknown protocol",
        command=f"{_RUN} --api openai",
        says=("--api must be one of 'chat', 'responses', 'anthropic', not 'openai'",),
    ),
    Mistake(
        title="--extra-body that is not JSON",
        command=f"{_RUN} --extra-body top_k=20",
        says=("--extra-body must be JSON, such as",),
    ),
    Mistake(
        title="an option that the environment does not have",
        command=f"{_RUN} --env-option colour=red",
        says=("the environment 'math': the option 'colour' is unknown; known are:",),
    ),
    Mistake(
        title="--kb for an environment without documents",
        command=f"{_RUN} --kb tasks.jsonl",
        says=("--kb is not an option of the environment 'math'; remove it",),
    ),
    Mistake(
        title="--mode rag without documents",
        command="paragent rollout --mode rag --model demo --data tasks.jsonl",
        says=("the environment 'rag' needs a knowledge base: set --kb",),
    ),
    Mistake(
        title="documents that do not exist",
        command="paragent rollout --mode rag --model demo --data tasks.jsonl --kb docs",
        says=("does not exist; give a .json or .jsonl file or a folder of texts",),
    ),
    Mistake(
        title="machines for an environment that needs none",
        command=f"{_RUN} --use-vm-pool --num-vms 4",
        says=("the environment 'math' needs no machine: remove --use-vm-pool",),
    ),
    Mistake(
        title="a budget without prices",
        command=f"{_RUN} --max-cost 5",
        says=("--max-cost needs the price of demo: add --prices FILE",),
    ),
    Mistake(
        title="a file of prices of another form",
        command=f"{_RUN} --max-cost 5 --prices prices.json",
        files={"prices.json": '{"demo": 3}'},
        says=("prices.json: the price of demo needs two numbers, as in",),
    ),
    Mistake(
        title="--view and --detach together",
        command=f"{_RUN} --view --detach",
        says=("--view ends with this command, so it cannot be used with --detach; use `paragent view`",),
    ),
    Mistake(
        title="--cache-dir without --cache",
        command=f"{_RUN} --cache-dir replies",
        says=("--cache-dir is for runs with --cache: add --cache, or remove it",),
    ),
    Mistake(
        title="typing error in the name of a settings file",
        command="paragent rollout --config setings.yaml",
        files={"settings.yaml": "mode: math\n"},
        says=("there is no file setings.yaml, did you mean 'settings.yaml'?",),
    ),
    Mistake(
        title="an unknown key in a settings file",
        command="paragent rollout --config settings.yaml",
        files={"settings.yaml": "mode: math\nmodell: demo\n"},
        says=("settings.yaml: paragent rollout has no setting 'modell', did you mean 'model'?",),
    ),
    Mistake(
        title="a settings file that is not YAML",
        command="paragent rollout --config settings.yaml",
        files={"settings.yaml": "mode: [math\ndata: tasks.jsonl\n"},
        says=("settings.yaml cannot be read: line 2, column",),
    ),
    Mistake(
        title="a settings file that is not TOML",
        command="paragent rollout --config settings.toml",
        files={"settings.toml": "mode = math\n"},
        says=("settings.toml cannot be read: Invalid value (at line 1, column 8)",),
    ),
    Mistake(
        title="a list instead of settings",
        command="paragent rollout --config settings.yaml",
        files={"settings.yaml": "- mode: math\n"},
        says=("settings.yaml must have one `key: value` for each setting, such as `num_rollouts: 8`",),
    ),
    Mistake(
        title="a wrong value in a settings file",
        command="paragent rollout --config settings.yaml",
        files={"settings.yaml": "mode: math\ndata: tasks.jsonl\nmodel: demo\nfresh: perhaps\n"},
        says=("--fresh must be true or false, not 'perhaps' (set in settings.yaml)",),
    ),
    Mistake(
        title="a wrong value in an environment variable",
        command=_RUN,
        variables={"PARAGENT_NUM_ROLLOUTS": "four"},
        says=("--num-rollouts must be an integer, not 'four' (set by PARAGENT_NUM_ROLLOUTS)",),
    ),
    Mistake(
        title="a name of a run with a slash",
        command=f"{_RUN} --run-name today/first",
        says=("--run-name must be a name without '/' and leading '.', not 'today/first'",),
    ),
    Mistake(
        title="another protocol of OpenTelemetry",
        command=f"{_RUN} --otel",
        variables={"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
        says=("OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc', and --otel sends http/protobuf: set",),
    ),
    Mistake(
        title="a file of MCP servers of another form",
        command=f"{_RUN} --mcp-config mcp.json",
        files={"mcp.json": '{"servers": {}}'},
        says=('--mcp-config: mcp.json must have the form {"mcpServers": {NAME: {...}}} with a server',),
    ),
    Mistake(
        title="an MCP server that does not start",
        command=f"{_RUN} --mcp-config mcp.json",
        files={"mcp.json": '{"mcpServers": {"notes": {"command": "no-such-program"}}}'},
        waits=True,
        says=("--mcp-config: the MCP server 'notes' cannot be used", "Check the command or url of this server"),
    ),
    Mistake(
        title="`paragent training serve` with tasks in the settings",
        command="paragent training serve --config settings.yaml --endpoint http://127.0.0.1:8000/v1",
        files={"settings.yaml": "mode: math\nmodel: policy\ndata: tasks.jsonl\n"},
        says=("the tasks of this run arrive while it runs: remove `data`",),
    ),
    Mistake(
        title="`paragent training serve` without an endpoint",
        command="paragent training serve --config settings.yaml",
        files={"settings.yaml": "mode: math\nmodel: policy\n"},
        says=("--endpoint is missing: the address of the endpoint that serves the policy, as http",),
    ),
    Mistake(
        title="`paragent env serve` of an OpenEnv server over standard streams",
        command="paragent env serve --mode math --protocol openenv --transport stdio",
        says=("--protocol openenv needs --transport http",),
    ),
    Mistake(
        title="a file of the token that does not exist",
        command="paragent env serve --mode math --transport http --token-file token.txt",
        says=("--token-file: there is no file token.txt; relative paths start at",),
    ),
)
