#!/bin/sh
# An agent without any library: one request with curl. It reads the question from stdin and prints the answer.
#
#     paragent rollout --mode math --data tasks.jsonl --agent "cmd: sh examples/agents/shell_agent.sh"
#
# It needs curl and jq.
set -eu
body=$(jq -Rs --arg model "$PARAGENT_MODEL" '{model: $model, messages: [{role: "user", content: .}]}')
curl --silent --show-error --fail-with-body "$OPENAI_BASE_URL/chat/completions" \
    -H "Authorization: Bearer $OPENAI_API_KEY" -H "Content-Type: application/json" -d "$body" |
    jq -r '.choices[0].message.content'
