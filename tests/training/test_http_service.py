"""The rollout service over HTTP: the client, repeated requests, access, and a server that is killed."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paragent import RolloutConfig
from paragent.errors import AccessDenied, ConfigError, GroupNotOwed, ParagentError, TokensMissing, UsageError
from paragent.testing import OpenAIServer, Script
from paragent.testing.programs import alive
from paragent.training import Group, Groups, RemoteRolloutService, RolloutService, client
from paragent.training.http_service import TrainingServer
from tests.training.policy import HERE, LOOK, NO_TOKENS, config, task
from tests.waiting import wait_until

TOKEN = "a-token-of-the-tests"


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(Script(default=[LOOK, "42"])) as started:
        yield started


@pytest.fixture
def training(tmp_path: Path, server: OpenAIServer) -> Iterator[TrainingServer]:
    settings = config(tmp_path, engine="inline")
    with RolloutService(settings, server.url, Groups(n=2)) as service, TrainingServer(service, token=TOKEN) as started:
        yield started


@contextlib.contextmanager
def serving(settings: RolloutConfig, server: OpenAIServer) -> Iterator[TrainingServer]:
    with RolloutService(settings, server.url, Groups(n=2)) as service, TrainingServer(service, token=TOKEN) as started:
        yield started


def request(training: TrainingServer, method: str, path: str, body: Any = None, token: str = TOKEN) -> tuple[int, Any]:
    """Send a request as a client in another language would."""
    connection = http.client.HTTPConnection("127.0.0.1", training.port, timeout=60)
    text = body if isinstance(body, bytes) else json.dumps(body)
    headers: Any = {b"Authorization": f"Bearer {token}".encode()} if token else {}  # bytes are sent unchanged
    with contextlib.closing(connection):
        connection.request(method, path, text, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def test_a_remote_trainer_has_the_same_interface(training: TrainingServer) -> None:
    with RemoteRolloutService(training.url, TOKEN) as service:
        service.add([task("a"), {"id": "b", "question": "rewrite", "answer": "41"}])
        service.published(3)
        service.pause()
        service.resume()
        groups = {group.id: group for group in service.groups(timeout=60)}
        assert groups["b"].rewards == [0.0, 0.0]
        assert groups["a"].task["answer"] == "42"
        sample = groups["a"].samples[0]
        assert sum(sample.mask) == sum(turn.end - turn.start for turn in sample.turns)
        assert sample.logprobs is not None
        assert len(sample.logprobs) == len(sample.token_ids) == len(sample.mask)
        assert [(one.branch, one.weight) for one in groups["b"].samples] == [(0, 0.5), (1, 0.5)] * 2
        for group in groups.values():
            group.accept()
        with pytest.raises(GroupNotOwed):
            groups["a"].accept()
        status = service.status()
        assert (status.accepted, status.delivered, status.version) == (2, 0, 3)


def test_a_new_trainer_gets_what_the_last_one_did_not_accept(training: TrainingServer) -> None:
    first = RemoteRolloutService(training.url, TOKEN)
    first.add([task("a"), task("b")])
    taken = {group.id: group for group in first.groups(timeout=60)}
    taken["a"].accept()
    second = RemoteRolloutService(training.url, TOKEN)
    assert [group.id for group in second.groups(timeout=60)] == ["b"]
    replaced = [
        taken["b"].accept,
        lambda: first.next_group(timeout=60),
        lambda: first.published(7),
        first.pause,
        first.resume,
    ]
    for call in replaced:
        with pytest.raises(UsageError, match="another trainer has taken over"):
            call()
    status = second.status()
    assert (status.accepted, status.delivered, status.version, status.paused) == (1, 1, 0, False)


def test_a_replaced_trainer_cannot_accept_what_waits_for_the_new_one(training: TrainingServer) -> None:
    first = RemoteRolloutService(training.url, TOKEN)
    first.add([task("a"), task("b")])
    taken = {group.id: group for group in first.groups(timeout=60)}
    second = RemoteRolloutService(training.url, TOKEN)
    got = [second.next_group(timeout=60)]
    with pytest.raises(UsageError, match="another trainer"):
        taken[({"a", "b"} - {one.id for one in got if one}).pop()].accept()
    got.append(second.next_group(timeout=60))
    assert sorted(one.id for one in got if one) == ["a", "b"]


def test_only_deliveries_that_were_made_are_accepted(tmp_path: Path, server: OpenAIServer) -> None:
    """Also by a service that was started again, which delivers the group again if the trainer does not accept it."""
    accept = {"consumer": "me", "group": "a"}
    ask = {"consumer": "me", "request": 1, "wait": 30}
    settings = config(tmp_path, engine="inline")
    with serving(settings, server) as training:
        RemoteRolloutService(training.url, TOKEN).add([task("a"), task("b")])
        for delivery in ("", "delivery-that-never-existed"):
            wait_until(lambda: request(training, "GET", "/v1/status")[1]["finished"] == 2)
            status, _ = request(training, "POST", "/v1/accept", accept | {"delivery": delivery})
            assert status == 409
        first = {
            one["id"]: one["delivery"]
            for one in request(training, "POST", "/v1/groups", ask | {"limit": 2})[1]["groups"]
        }
        assert sorted(first) == ["a", "b"]
    with serving(settings, server) as training:
        assert request(training, "POST", "/v1/accept", accept | {"delivery": first["b"]})[0] == 409
        assert request(training, "POST", "/v1/accept", accept | {"delivery": first["a"]})[0] == 200
        assert [one["id"] for one in request(training, "POST", "/v1/groups", ask)[1]["groups"]] == ["b"]
        accept = {"consumer": "me", "group": "b", "delivery": first["b"]}
        assert request(training, "POST", "/v1/accept", accept)[0] == 409, "it was delivered again"


def test_a_trainer_stays_replaced_when_the_service_is_started_again(tmp_path: Path, server: OpenAIServer) -> None:
    settings = config(tmp_path, engine="inline")
    with serving(settings, server) as training:
        for name in ("old", "new"):
            assert request(training, "POST", "/v1/groups", {"consumer": name, "request": 1})[0] == 200
    with serving(settings, server) as training:
        for number, name in enumerate(("new", "old", "new")):
            status, answer = request(training, "POST", "/v1/groups", {"consumer": name, "request": number})
            assert (status, "another trainer" in str(answer)) == ((400, True) if name == "old" else (200, False))


def test_a_late_request_of_a_trainer_is_ignored(training: TrainingServer) -> None:
    def change(path: str, number: int, **body: Any) -> None:
        body |= {"consumer": "me", "request": number}
        assert request(training, "POST", path, body)[0] == 200

    def status() -> dict[str, Any]:
        answer: dict[str, Any] = request(training, "GET", "/v1/status")[1]
        return answer

    change("/v1/version", 1, version=1)
    change("/v1/pause", 2)
    change("/v1/version", 3, version=2)
    change("/v1/resume", 4)
    change("/v1/version", 1, version=1)
    change("/v1/pause", 2)
    assert (status()["version"], status()["paused"]) == (2, False)
    change("/v1/version", 5, version=1)
    assert status()["version"] == 1, "a trainer may go back to an earlier checkpoint"


def test_a_repeated_version_does_not_let_more_groups_start(tmp_path: Path, server: OpenAIServer) -> None:
    with (
        RolloutService(config(tmp_path, engine="inline"), server.url, Groups(n=1), 0, 2) as service,
        TrainingServer(service, token=TOKEN) as training,
    ):
        trainer = RemoteRolloutService(training.url, TOKEN)
        trainer.published(1)
        trainer.add([task(f"t{number}") for number in range(4)])
        taken = [trainer.next_group(timeout=60), trainer.next_group(timeout=60)]
        trainer.published(1)
        with pytest.raises(TimeoutError):
            trainer.next_group(timeout=0.3)
        assert trainer.status().waits_for.startswith("published()")
        trainer.published(2)
        taken += [trainer.next_group(timeout=60), trainer.next_group(timeout=60)]
        assert [one.staleness for one in taken if one] == [0, 0, 0, 0]
        assert trainer.status().late_versions == 0


def test_a_version_that_cannot_be_stored_is_rejected(tmp_path: Path, server: OpenAIServer) -> None:
    settings = config(tmp_path, engine="inline")
    with serving(settings, server) as training:
        trainer = RemoteRolloutService(training.url, TOKEN)
        with pytest.raises(ParagentError, match=r"at most 2\*\*63 - 1"):
            trainer.published(2**63)
        trainer.published(2**63 - 1)
        trainer.add([task("a")])
        [group] = trainer.groups(timeout=60)
        group.accept()
    with serving(settings, server) as training:
        assert RemoteRolloutService(training.url, TOKEN).status().version == 2**63 - 1
    with pytest.raises(ConfigError, match=r"at most 2\*\*63 - 1"):
        RolloutService(settings, server.url, version=2**63)


@pytest.mark.parametrize("value", [float("nan"), [float("inf")]])
def test_tasks_that_cannot_be_sent_are_rejected(training: TrainingServer, value: Any) -> None:
    trainer = RemoteRolloutService(training.url, TOKEN)
    with pytest.raises(ParagentError, match="JSON"):
        trainer.add([{"id": "a", "question": "what?", "answer": "42", "hint": value}])
    assert trainer.status().waiting == 0


def test_a_group_that_cannot_be_sent_stays_owed(tmp_path: Path, server: OpenAIServer) -> None:
    settings = config(tmp_path, engine="inline")
    with serving(settings, server) as training:
        RemoteRolloutService(training.url, TOKEN).add([task("a"), task("b")])
        wait_until(lambda: request(training, "GET", "/v1/status")[1]["finished"] == 2)
    body = '{"id": "b", "question": "what?", "answer": "42", "metadata": {"x": NaN}}'
    with contextlib.closing(sqlite3.connect(tmp_path / "results/run/journal.sqlite")) as journal, journal:
        journal.execute("UPDATE tasks SET body = ? WHERE id = 'b'", [body])
    with serving(settings, server) as training:
        for number in range(2):
            trainer = RemoteRolloutService(training.url, TOKEN)
            group = trainer.next_group(timeout=60)
            assert group is not None
            for _ in range(2):
                with pytest.raises(UsageError, match=r"the group 'b' cannot be delivered: .*JSON"):
                    trainer.next_group(timeout=60)
            status = trainer.status()
            assert (group.id, status.finished, status.delivered) == ("a", 1, 1), number
        limited = {"consumer": "another", "request": 1, "limit": 5, "wait": 30}
        code, answer = request(training, "POST", "/v1/groups", limited)
        assert (code, [one["id"] for one in answer["groups"]], answer["more"]) == (200, ["a"], True)


def test_a_generator_is_sent_as_far_as_the_service_has_room(training: TrainingServer) -> None:
    drawn: list[int] = []

    def endless() -> Iterator[Any]:
        while True:
            drawn.append(len(drawn))
            yield task(f"t{len(drawn)}")

    with RemoteRolloutService(training.url, TOKEN) as service:
        service.add(endless())
        groups = service.groups(timeout=60)
        assert len({next(groups).id for _ in range(3)}) == 3


def test_repeated_requests_have_no_second_effect(training: TrainingServer) -> None:
    tasks = {"tasks": [{"id": "a", "question": "what?", "answer": "42"}]}
    for _ in range(2):
        assert request(training, "POST", "/v1/tasks", tasks) == (200, {"stored": True})
    ask = {"consumer": "me", "request": 1, "limit": 5, "wait": 30}
    status, first = request(training, "POST", "/v1/groups", ask)
    assert (status, len(first["groups"])) == (200, 1)
    assert request(training, "POST", "/v1/groups", ask) == (200, first)
    status, other = request(training, "POST", "/v1/groups", {**ask, "request": 2})
    assert (other["groups"], other["more"]) == ([], False)
    [group] = first["groups"]
    accept = {"consumer": "me", "group": "a", "delivery": group["delivery"]}
    for _ in range(2):
        assert request(training, "POST", "/v1/accept", accept) == (200, {"accepted": True})
    status, problem = request(training, "POST", "/v1/accept", accept | {"delivery": "guessed"})
    assert (status, problem["error"]["type"]) == (409, "GroupNotOwed")


WRONG: list[tuple[str, Any]] = [
    ("/v1/tasks", {"tasks": "all"}),
    ("/v1/tasks", {"tasks": [{"id": 1}]}),
    ("/v1/tasks", {"tasks": [{}] * 1001}),
    ("/v1/tasks", b"not JSON"),
    ("/v1/tasks", b"[" * 100_000),
    ("/v1/tasks", [1]),
    ("/v1/groups", {"consumer": "me"}),
    ("/v1/groups", {"consumer": "me", "request": 1, "wait": 1e9}),
    ("/v1/groups", {"consumer": "me", "request": 1, "wait": "long"}),
    ("/v1/groups", {"consumer": "", "request": 1}),
    ("/v1/groups", {"consumer": "x" * 201, "request": 1}),
    ("/v1/accept", {"consumer": "me", "group": 1, "delivery": ""}),
    ("/v1/accept", {"group": "a", "delivery": "b"}),
    ("/v1/version", {"consumer": "me", "request": 1, "version": "1"}),
    ("/v1/version", {"consumer": "me", "request": 1, "version": -1}),
    ("/v1/version", {"consumer": "me", "request": 1, "version": 2**63}),
    ("/v1/version", {"version": 1}),
    ("/v1/pause", {"consumer": "me", "request": 1, "wait": True}),
    ("/v1/pause", {"wait": 1}),
    ("/v1/resume", {}),
]


def test_wrong_requests_are_answered_with_the_reason(training: TrainingServer) -> None:
    for path, body in WRONG:
        status, problem = request(training, "POST", path, body)
        assert status == 400, (path, problem)
        assert problem["error"]["message"]
    assert request(training, "GET", "/v1/status")[0] == 200


def test_nothing_is_answered_without_the_token(training: TrainingServer) -> None:
    paths = [("GET", "/v1/status"), *(("POST", f"/v1/{name}") for name in ("tasks", "groups", "accept", "pause"))]
    for token in ("", "wrong", f"{TOKEN}x", TOKEN[:-1], "\N{SNOWMAN}"):
        for method, path in paths:
            status, problem = request(training, method, path, {}, token)
            assert (status, problem["error"]["type"]) == (401, "AccessDenied")
    with pytest.raises(AccessDenied):
        RemoteRolloutService(training.url, "wrong-but-long-enough").status()


def test_unfinished_requests_of_others_do_not_keep_the_trainer_out(training: TrainingServer) -> None:
    refused = b"POST /v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"
    with contextlib.ExitStack() as opened:
        for sent in (b"POST /v1/tasks HTTP/1.1\r\nHost: x\r\n", refused) * 200:
            one = opened.enter_context(socket.create_connection(("127.0.0.1", training.port), timeout=10))
            one.sendall(sent)
        assert request(training, "GET", "/v1/status")[0] == 200


def test_a_body_that_is_too_large_is_rejected(training: TrainingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paragent.training.http_service._LARGEST_BODY", 1000)
    status, problem = request(training, "POST", "/v1/tasks", {"tasks": ["x" * 2000]})
    assert (status, "larger than" in problem["error"]["message"]) == (400, True)


def test_errors_of_the_service_reach_the_trainer(tmp_path: Path, server: OpenAIServer) -> None:
    settings = config(tmp_path, engine="inline", num_rollouts=1, extra_body=NO_TOKENS)
    with (
        RolloutService(settings, server.url, Groups(n=1)) as service,
        TrainingServer(service, token=TOKEN) as training,
    ):
        trainer = RemoteRolloutService(training.url, TOKEN)
        with pytest.raises(ParagentError, match="no question"):
            trainer.add([{"id": "b"}])
        trainer.add([task("a")])
        with pytest.raises(TokensMissing, match="return_token_ids"):
            trainer.next_group(timeout=60)
    with pytest.raises(ParagentError, match="cannot be reached"):
        RemoteRolloutService(training.url, TOKEN, retry_for=0.0).status()


def test_a_service_that_cannot_be_reached_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    trainer = RemoteRolloutService("http://127.0.0.1:9", TOKEN, retry_for=0.1)
    with pytest.raises(ParagentError, match=r"127\.0\.0\.1:9 cannot be reached"):
        trainer.status()
    [record] = caplog.records
    assert "127.0.0.1:9 cannot be reached" in record.message


def test_wrong_addresses_and_tokens_are_rejected(tmp_path: Path, server: OpenAIServer) -> None:
    with pytest.raises(UsageError, match="http://HOST:PORT"):
        RemoteRolloutService("policy:8000", TOKEN)
    service = RolloutService(config(tmp_path), server.url)
    with pytest.raises(ConfigError, match="at least 16"):
        TrainingServer(service, token="short")
    with pytest.raises(UsageError, match="cannot listen"), TrainingServer(service, host="192.0.2.1"):
        pass


def test_groups_survive_the_way_through_json() -> None:
    def accept(_: Group) -> None: ...

    turn = client.Turn(1, 2, 4, None)
    sample = client.Sample(
        "a", 1, 0, [5, 2**31 - 1, 7, 8], [0, 0, 1, 1], [0.0, 0.0, -0.1, -23.456789012345], 0.5, "failed", [turn]
    )
    assert repr(sample) == "<Sample 'a' attempt 1 branch 0: 4 tokens, 2 sampled, reward 0.5>"
    failure = client.AttemptFailure(2, "infrastructure", "endpoint", "it died")
    group = Group("a", {"id": "a"}, [sample], [1], [0.5], [failure], 4, "d", accept)
    again = client.group_from_json(json.loads(json.dumps(client.group_to_json(group))), accept)
    assert again.samples == group.samples, "exact, also the log probabilities"
    assert (again.failures, again.rewards, again.version) == (group.failures, group.rewards, 4)


def test_the_client_works_as_a_copied_file_without_paragent(tmp_path: Path, training: TrainingServer) -> None:
    (tmp_path / "rollouts.py").write_text(Path(client.__file__).read_text())
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from rollouts import RemoteRolloutService, GroupNotOwed
with RemoteRolloutService({training.url!r}, {TOKEN!r}) as service:
    service.add([{{"id": "a", "question": "what?", "answer": "42"}}])
    for group in service.groups(timeout=60):
        group.accept()
        try:
            group.accept()
        except GroupNotOwed:
            print(group.id, group.rewards, "paragent" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "a [1.0, 1.0] False"


class Serving:
    """`paragent training serve` in a process of its own, on a port that stays the same."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self._folder = folder
        settings = {"env": f"{HERE}:Room", "model": "policy", "run_name": "run", "num_rollouts": 4, "workers": 2}
        own = {"endpoint": endpoint, "n": 2, "timeout": 60, "output_dir": str(folder / "results")}
        (folder / "training.json").write_text(json.dumps(settings | own))
        self.port = 0
        self.process: subprocess.Popen[str]

    def start(self) -> str:
        command = [sys.executable, "-m", "paragent", "training", "serve", "--config", "training.json"]
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port)],
            cwd=self._folder,
            env=os.environ | {"PARAGENT_TRAINING_TOKEN": TOKEN, "PYTHONPATH": str(Path.cwd())},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        url = self.process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), url
        self.port = int(url.rpartition(":")[2])
        return url

    def kill(self, number: int) -> int:
        self.process.send_signal(number)
        assert self.process.stdout is not None
        with self.process.stdout:
            self.process.stdout.read()
        return self.process.wait(60)


@pytest.mark.slow
def test_a_server_that_is_killed_and_started_again_goes_on(tmp_path: Path, server: OpenAIServer) -> None:
    serving = Serving(tmp_path, server.url)
    trainer = RemoteRolloutService(serving.start(), TOKEN)
    trainer.add([task(f"t{number}") for number in range(6)])
    groups = trainer.groups(timeout=60)
    held = next(groups)
    done = [next(groups)]
    done[0].accept()
    serving.kill(signal.SIGKILL)
    serving.start()
    trainer.add([task(f"t{number}") for number in range(6)])
    held.accept()
    for group in groups:
        done.append(group)
        group.accept()
    assert sorted(group.id for group in [held, *done]) == [f"t{number}" for number in range(6)]
    assert trainer.status().accepted == 6
    pid = serving.process.pid
    assert serving.kill(signal.SIGTERM) == 0
    wait_until(lambda: not alive(pid), what="the server has ended")
