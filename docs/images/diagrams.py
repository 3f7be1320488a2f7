"""The diagrams of docs/concepts. `python docs/images/diagrams.py` writes them next to this file; the SVG files are committed.

`drawing.py` has the style. After a change, look at each file in a browser.
"""

from __future__ import annotations

from pathlib import Path

from drawing import BLUE, GREY, MUTED, ORANGE, PLAIN, Colours, Diagram

FOLDER = Path(__file__).parent
B, O = BLUE.stroke, ORANGE.stroke  # noqa: E741 - the colours of arrows


def overview() -> Diagram:
    """Draw the three ways in, and what they have in common."""
    d = Diagram(
        "diagram_overview",
        520,
        "Tasks, rollouts and remote agents, and what they run on",
        "Runners and paragent rollout send calls to one dispatch loop. It sends them to the workers of an engine: inline, "
        "local, Ray or Spark. Workers call a model endpoint and lease machines from a pool. to_dist runs agents on agent "
        "servers; the agent of a task may be one of them.",
    )
    d.region(16, 14, 728, 116, "your program, or the command line")
    tasks = d.box(30, 44, 216, 72, "Runners", "tasks in, responses out", colours=BLUE, code=True)
    rollouts = d.box(260, 44, 238, 72, "paragent rollout", "a benchmark in, scores out", colours=BLUE, code=True)
    remote = d.box(512, 44, 218, 72, "agent.to_dist()", "calls in, lazy results out", colours=ORANGE, code=True)
    loop = d.box(30, 178, 468, 58, "dispatch loop", "window, retries, one response for each task")
    engine = d.region(16, 284, 496, 112, "engine: inline, local, ray or spark")
    for number, lines in enumerate((("agent",), ("agent in an", "environment"), ("agent in an", "environment"))):
        d.box(30 + number * 160, 314, 148, 70, "worker", *lines, colours=GREY)
    servers = d.region(540, 178, 204, 218, "agent servers")
    d.box(554, 212, 176, 78, "child process", "agents, one call", "at a time each", colours=GREY)
    d.box(554, 304, 176, 78, "another host", "agents, one call", "at a time each", colours=GREY)
    d.box(30, 444, 216, 60, "model endpoint", "all share a rate limit")
    d.box(282, 444, 216, 60, "pool", "M machines for N rollouts")
    d.arrow(tasks.bottom(), (tasks.bottom()[0], loop.y), label="tasks", at=(148, 152), anchor="start", colour=B)
    d.arrow(
        rollouts.bottom(),
        (rollouts.bottom()[0], loop.y),
        label="each is a task",
        at=(389, 152),
        anchor="start",
        colour=B,
    )
    d.arrow(
        remote.bottom(),
        (remote.bottom()[0], servers.y),
        label="calls, results",
        at=(631, 158),
        anchor="start",
        colour=O,
        both=True,
    )
    d.arrow((264, 236), (264, 284), label="calls", at=(256, 264), anchor="end", colour=B)
    d.arrow((296, 284), (296, 236), label="outcomes", at=(304, 264), anchor="start", colour=B)
    d.arrow((138, 396), (138, 444), label="requests", at=(146, 424), anchor="start")
    d.arrow((390, 396), (390, 444), label="leases", at=(398, 424), anchor="start")
    d.arrow((engine.x + engine.width, 350), (540, 350), colour=O, dashed=True)
    d.line((548, 464), (586, 464), colour=O, dashed=True, width=1.6)
    d.text(594, 468.5, "the agent of a task", colour=ORANGE.title)
    d.text(594, 485.5, "may be remote", colour=ORANGE.title)
    return d


def task() -> Diagram:
    """Draw the path of a task to a worker and back."""
    d = Diagram(
        "diagram_task",
        496,
        "The path of a task from the program to a worker and back",
        "A task is packed, passes the dispatch loop and the engine's thread, and is sent in a frame with other calls to a "
        "worker process. On the local engine the worker is a child process on this host. On Ray and Spark a node agent "
        "next to the worker receives the calls and watches the worker. Outcomes take the same way back, and the dispatch "
        "loop turns each into a response or a retry.",
    )
    d.region(16, 14, 352, 466, "your program")
    first = d.box(34, 50, 146, 60, "Task", "input and agent", colours=BLUE, code=True)
    last = d.box(204, 50, 146, 60, "TaskResponse", "one for each", colours=BLUE, code=True)
    packing = d.box(34, 154, 146, 80, "packing", "agent and code", "once, input each")
    loop = d.box(34, 278, 316, 66, "dispatch loop", "window, retries, smaller groups")
    d.box(34, 396, 316, 66, "engine", "one thread: which worker is next")
    d.region(470, 14, 274, 176, "local: this host")
    worker = d.box(
        486,
        48,
        242,
        126,
        "worker process",
        "code cache",
        "event loop and threads",
        "start times in shared memory",
        colours=GREY,
    )
    d.region(470, 212, 274, 268, "ray, spark: a cluster node")
    node = d.box(486, 246, 242, 84, "node agent", "started by Ray or Spark,", "watches its worker", colours=ORANGE)
    remote = d.box(486, 396, 242, 66, "worker process", "the same program", colours=GREY)
    d.arrow(first.bottom(), packing.top())
    d.arrow(packing.bottom(), (packing.bottom()[0], loop.y))
    d.arrow((277, loop.y), last.bottom())
    d.arrow((107, 344), (107, 396), label="calls", at=(115, 375), anchor="start")
    d.arrow((277, 396), (277, 344), label="outcomes", at=(269, 375), anchor="end")
    d.arrow(
        (350, 416),
        (408, 416),
        (408, 111),
        worker.left(),
        colour=B,
        both=True,
        label="calls and\noutcomes\nin frames",
        at=(426, 60),
    )
    d.arrow((350, 442), (438, 442), (438, 288), node.left(), colour=O, both=True)
    d.arrow(node.bottom(), remote.top(), both=True, label="the same frames", at=(615, 367), anchor="start")
    for number, (x, y) in enumerate(
        ((34, 50), (34, 154), (34, 278), (34, 396), (408, 230), (486, 48), (277, 252), (204, 50)), 1
    ):
        d.step(x, y, number)
    return d


def machine_states() -> Diagram:
    """Draw the states of a machine of a pool."""
    d = Diagram(
        "diagram_machine_states",
        430,
        "The states of a machine of a pool",
        "Booting becomes free when the machine answers and is clean. Free becomes leased when a request waits. Leased "
        "becomes resetting when the lease is released or expires. Resetting becomes free when the reset was verified. A "
        "machine that fails in any of these states is quarantined, and another one boots instead. A machine that is "
        "retired, or whose pool is drained or stops, is stopped.",
    )
    d.region(16, 14, 728, 226, "live machines: size + spares of them")
    width, height, y = 124, 60, 130
    booting, free, leased, resetting = (
        d.box(x, y, width, height, name, colours=colours)
        for x, name, colours in (
            (32, "booting", GREY),
            (222, "free", BLUE),
            (412, "leased", BLUE),
            (604, "resetting", GREY),
        )
    )
    d.arrow(booting.right(), free.left(), label="answers,\nis clean", at=(189, 131))
    d.arrow(free.right(), leased.left(), label="a request\nwaits", at=(379, 131))
    d.arrow(leased.right(), resetting.left(), label="released,\nexpired", at=(570, 131))
    d.arrow(
        resetting.top(),
        (666, 82),
        (284, 82),
        free.top(),
        label="reset, and verified to be clean",
        at=(475, 74),
        colour=B,
    )
    d.arrow(
        leased.bottom(0.68),
        (496, 214),
        (452, 214),
        leased.bottom(0.32),
        label="the holder asks for a reset",
        at=(505, 219),
        anchor="start",
    )
    quarantined = d.box(100, 330, 250, 82, "quarantined", "logs are kept,", "never leased again", colours=ORANGE)
    stopped = d.box(476, 330, 250, 82, "stopped", "retired, drained,", "or the pool has ended", colours=GREY)
    d.arrow(
        (225, 240),
        quarantined.top(),
        colour=O,
        label="did not boot, could not be given to its holder,\nstopped answering, could not be reset",
        at=(235, 276),
        anchor="start",
    )
    d.arrow((601, 240), stopped.top())
    d.arrow(
        quarantined.left(),
        (60, 371),
        (60, 190),
        colour=O,
        dashed=True,
        label="another\nboots",
        at=(68, 300),
        anchor="start",
    )
    return d


def durable() -> Diagram:
    """Draw when the parts of one rollout are on disk."""
    d = Diagram(
        "diagram_durable",
        432,
        "What is on disk at which moment of a rollout",
        "The tasks are committed to the journal before the first rollout starts. While a rollout works, only small status "
        "files exist. When its result arrives at the driver, images are written to files, then result, trajectory and "
        "events are committed in one transaction, then a line is appended to results.jsonl. A kill before the commit "
        "means that the rollout runs again; a kill after it means that it counts.",
    )
    rows = {"driver": 66, "worker": 152, "on disk": 248}
    for name, y in rows.items():
        d.text(18, y + 4.5, name, weight="600", colour=MUTED)
        d.line((88, y), (744, y), colour="#c3c8d4")
    commit = 540
    d.line((commit, 34), (commit, 372), colour=B, dashed=True, width=1.6)
    d.text(commit, 25, "commit", weight="600", anchor="middle", colour=BLUE.title)
    d.bar(96, 50, 66, 32, GREY, "begins")
    d.bar(172, 50, 92, 32, GREY, "dispatches")
    d.bar(440, 50, 92, 32, GREY, "records")
    d.bar(552, 50, 64, 32, GREY, "counts")
    d.bar(672, 50, 70, 32, GREY, "finishes")
    d.bar(236, 136, 220, 32, BLUE, "one execution of the rollout")
    d.arrow((218, 82), (218, 152), (236, 152))
    d.arrow((456, 152), (472, 152), (472, 82), label="result", at=(464, 118), anchor="end")
    _disk(d, 96, 220, 122, BLUE, "journal:", "tasks")
    _disk(d, 236, 220, 192, GREY, "live/: status files,", "not durable")
    _disk(d, 440, 220, 92, GREY, "images/:", "files")
    _disk(d, commit, 198, 202, BLUE, "journal: result,", "trajectory, events")
    _disk(d, commit + 16, 260, 186, GREY, "then results.jsonl, at", "the end summary.json")
    d.arrow((129, 82), (129, 220))
    d.arrow((332, 168), (332, 220), dashed=True, label="twice a second", at=(340, 200), anchor="start")
    d.arrow((504, 82), (504, 220))
    d.arrow((532, 66), (552, 66))
    d.text(18, 344, "after", weight="600", colour=MUTED)
    d.text(18, 361, "a kill", weight="600", colour=MUTED)
    d.bar(172, 328, 360, 44, ORANGE)
    d.text(352, 347, "the rollout is pending: it runs again, at once", anchor="middle", colour=ORANGE.title)
    d.text(352, 364, "or when the command is repeated", anchor="middle", colour=ORANGE.title)
    d.bar(548, 328, 194, 44, BLUE)
    d.text(645, 347, "the result counts,", anchor="middle", colour=BLUE.title)
    d.text(645, 364, "it is not executed again", anchor="middle", colour=BLUE.title)
    d.arrow((88, 400), (744, 400), label="time", at=(728, 420))
    return d


def _disk(d: Diagram, x: float, y: float, width: float, colours: Colours, *lines: str) -> None:
    """Draw files on disk: two lines of text in a bar."""
    d.bar(x, y, width, 54, colours)
    for number, line in enumerate(lines):
        d.text(x + width / 2, y + 23 + number * 18, line, anchor="middle", colour=colours.title, room=width - 8)


def groups() -> Diagram:
    """Draw the states of a group of training."""
    d = Diagram(
        "diagram_groups",
        214,
        "A group of training from add to accept",
        "A group waits when its task was added, is admitted when its rollouts may start, is delivered when all attempts "
        "have ended, and is accepted by the trainer. Waiting, admitted and accepted are on disk. Delivered is not: after "
        "a kill, the group is delivered again.",
    )
    y, height = 66, 74
    waiting = d.box(24, y, 136, height, "waiting", "on disk when", "`add` returns", colours=BLUE)
    admitted = d.box(220, y, 146, height, "admitted", "on disk before", "rollouts start", colours=BLUE)
    delivered = d.box(436, y, 124, height, "delivered", "in memory", "only", colours=ORANGE)
    accepted = d.box(620, y, 124, height, "accepted", "on disk when", "it returns", colours=BLUE)
    d.arrow(waiting.right(), admitted.left())
    d.arrow(admitted.right(), delivered.left(), label="all attempts\nhave ended", at=(401, 34))
    d.arrow(delivered.right(), accepted.left(), label="accept()", at=(590, 50))
    d.arrow(delivered.bottom(), (498, 176), (293, 176), admitted.bottom(), colour=O, dashed=True)
    d.text(395, 196, "trainer or service killed: delivered again", anchor="middle", colour=ORANGE.title)
    return d


def rollout() -> Diagram:
    """Draw the parts of one rollout."""
    d = Diagram(
        "diagram_rollout",
        432,
        "The parts of one rollout in a worker",
        "In the worker, the episode stands between the agent, the environment and the model client, and records "
        "everything. The built-in agent and classes call the episode. Functions and programs call the model gateway, "
        "which passes requests to the episode. The environment uses a leased machine if it needs one. The model client "
        "sends requests to the endpoint within its share of the run's rate limit.",
    )
    d.region(182, 14, 372, 402, "worker process")
    agent = d.box(200, 50, 158, 68, "agent", "class with", "`run_episode`", colours=BLUE)
    environment = d.box(378, 50, 158, 68, "environment", "question, tools,", "own scores", colours=BLUE)
    episode = d.box(200, 178, 336, 66, "episode", "turns, tool calls, trajectory, images")
    gateway = d.box(200, 312, 158, 84, "model gateway", "OpenAI and", "Anthropic, HTTP", colours=ORANGE)
    client = d.box(378, 312, 158, 84, "model client", "retries, cache,", "token ids", colours=BLUE)
    program = d.box(16, 312, 120, 84, "your agent", "program or", "function", colours=ORANGE)
    machine = d.box(608, 50, 136, 68, "machine", "leased for this", "rollout", colours=GREY)
    driver = d.box(608, 178, 136, 66, "driver", "rate limit", "of the run", colours=GREY)
    endpoint = d.box(608, 312, 136, 84, "endpoint", "of the model", colours=GREY)
    d.arrow(agent.bottom(), (agent.bottom()[0], episode.y), both=True, label="complete", at=(287, 152), anchor="start")
    d.arrow(
        environment.bottom(),
        (environment.bottom()[0], episode.y),
        both=True,
        label="tool calls",
        at=(465, 152),
        anchor="start",
    )
    d.arrow(gateway.top(), (gateway.top()[0], 244), both=True, label="a turn", at=(287, 283), anchor="start", colour=O)
    d.arrow((client.top()[0], 244), client.top(), both=True, label="requests", at=(465, 283), anchor="start")
    d.arrow(program.right(), gateway.left(), both=True, colour=O)
    d.arrow(environment.right(), machine.left(), both=True)
    d.arrow(client.right(), endpoint.left(), both=True)
    d.arrow(
        client.right(0.2),
        (572, 329),
        (572, 211),
        driver.left(),
        both=True,
        dashed=True,
        label="share",
        at=(580, 270),
        anchor="start",
    )
    d.text(76, 284, "sandbox, host,", anchor="middle", colour=MUTED)
    d.text(76, 301, "machine or worker", anchor="middle", colour=MUTED)
    return d


def rollout_time() -> Diagram:
    """Draw the activities of one rollout over time."""
    rows = (
        ("starting", PLAIN, ((0, 3),)),
        ("waiting for a machine", PLAIN, ((3, 14),)),
        ("opening", ORANGE, ((14, 22),)),
        ("working", BLUE, ((22, 24), (33, 35), (39, 41), (59, 61), (66, 68))),
        ("generating", BLUE, ((24, 33), (50, 59), (68, 78))),
        ("acting", BLUE, ((35, 39), (61, 66))),
        ("waiting for the endpoint", PLAIN, ((41, 50),)),
        ("scoring", ORANGE, ((78, 87),)),
        ("closing", ORANGE, ((87, 92),)),
    )
    top, step, left, scale = 64, 27, 206, 5.75
    d = Diagram(
        "diagram_rollout_time",
        top + step * len(rows) + 62,
        "The activities of one rollout over time",
        "A rollout starts, waits for a machine, opens the environment, then alternates between the agent's own work, "
        "generating and acting, and sometimes waits for the endpoint. At the end it is scored and closed. Waiting does "
        "not count against the time limit. Opening, scoring and closing have limits of their own.",
    )
    bottom = top + step * len(rows)

    def x(value: float) -> float:
        return left + value * scale

    for number, (name, colours, spans) in enumerate(rows):
        y = top + number * step
        d.line((left, y + step - 3), (744, y + step - 3), colour="#e3e6ec", width=1)
        d.text(194, y + 15, name, anchor="end")
        for begin, end in spans:
            d.bar(x(begin), y + 1, (end - begin) * scale, step - 8, colours)
    d.arrow((x(14), 36), (x(92), 36), both=True)
    d.text((x(14) + x(92)) / 2, 27, "holds the machine", anchor="middle")
    for position in (14, 92):
        d.line((x(position), 44), (x(position), bottom), dashed=True, colour="#9aa1b0", width=1)
    y = bottom + 24
    legend = (
        (206, BLUE, "counts against --timeout"),
        (424, PLAIN, "does not count"),
        (562, ORANGE, "has its own limit"),
    )
    for position, colours, label in legend:
        d.bar(position, y, 18, 14, colours)
        d.text(position + 25, y + 11.5, label, colour=MUTED)
    return d


def remote() -> Diagram:
    """Draw a call of a remote agent."""
    d = Diagram(
        "diagram_remote",
        474,
        "A call of a remote agent, and a result that is passed on",
        "A call of the proxy returns a Result at once. The link sends the call in a frame with others to the agent "
        "server. There it waits in the queue of its agent, which executes one call at a time: sync methods in threads, "
        "async methods on one event loop. The result comes back and the Result has its value. If the Result is an "
        "argument of a call to an agent on another server, only a reference is sent, and that server fetches the value "
        "from the first.",
    )
    d.region(16, 14, 262, 320, "your program")
    proxy = d.box(34, 48, 226, 64, "proxy", "has the methods of the agent", colours=BLUE)
    link = d.box(34, 146, 226, 72, "link", "calls without an answer,", "code that the server has")
    result = d.box(34, 252, 226, 64, "Result", "waits when it is used", colours=BLUE, code=True)
    d.region(444, 14, 300, 320, "agent server")
    session = d.box(462, 48, 264, 64, "session", "one for each client; its limits")
    queue = d.box(462, 146, 264, 72, "queue of one agent", "one call at a time,", "in the order of each caller")
    agent = d.box(462, 252, 264, 64, "agent", "in a thread, or on the event loop", colours=BLUE)
    d.arrow(proxy.bottom(0.35), link.top(0.35), label="call", at=(121, 134), anchor="start")
    d.arrow(proxy.left(0.7), (24, 93), (24, 284), result.left(), dashed=True)
    d.arrow(
        link.right(), (352, 182), (352, 80), session.left(), colour=B, label="calls, many\nin a frame", at=(361, 44)
    )
    d.arrow(session.bottom(), queue.top())
    d.arrow(queue.bottom(), agent.top())
    d.arrow(agent.left(), result.right(), colour=B, label="results, errors,\nstream items", at=(361, 302))
    second = d.region(444, 358, 300, 102, "another agent server")
    other = d.box(462, 388, 264, 58, "agent b", "starts when the value is there", colours=ORANGE)
    passing = d.box(34, 388, 226, 58, "b.reply(result)", "sends a reference", colours=ORANGE, code=True)
    d.arrow(result.bottom(), passing.top(), colour=O)
    d.arrow(passing.right(), other.left(), colour=O, label="reference", at=(361, 409))
    d.arrow((594, 334), (594, second.y), colour=O, dashed=True)
    d.text(604, 351, "the value, fetched", colour=ORANGE.title)
    return d


def security() -> Diagram:
    """Draw who trusts whom."""
    d = Diagram(
        "diagram_security",
        560,
        "Who trusts whom",
        "The driver, its workers, child processes and pools belong to one user account and trust each other; they prove "
        "to each other that they know a token. Outside are the browser, other programs of the user on other hosts, "
        "clients of a restricted agent server, the model endpoint, the sandbox with programs of models and agents, and "
        "machines. Each connection has its own guard.",
    )
    d.region(252, 14, 256, 420, "your account: trusted")
    driver = d.box(270, 48, 220, 66, "driver", "journal, control of the run", colours=BLUE)
    workers = d.box(270, 156, 220, 66, "workers", "agents, key of the endpoint", colours=BLUE)
    gateway = d.box(270, 250, 220, 58, "model gateway", "a key for each rollout", colours=BLUE)
    pool = d.box(270, 350, 220, 66, "pool", "machines and their secrets", colours=BLUE)
    browser = d.box(16, 48, 132, 66, "browser", "`paragent view`", colours=GREY)
    nodes = d.box(16, 156, 132, 66, "cluster nodes", "Ray, Spark", colours=GREY)
    clients = d.box(16, 350, 132, 84, "other hosts", "workers, agent", "servers", colours=GREY)
    d.box(612, 122, 132, 66, "endpoint", "of the model", colours=GREY)
    d.box(612, 216, 132, 108, "sandbox", "programs, code", "that models", "wrote", colours=ORANGE)
    d.box(612, 350, 132, 84, "machine", "code in it is", "not trusted", colours=ORANGE)
    d.arrow(browser.right(), driver.left(), label="token, cookie\nloopback", at=(200, 58), both=True)
    d.arrow(nodes.right(), (252, 189), label="secret of\nthe run", at=(200, 166), both=True)
    d.arrow(clients.right(), (252, 392), label="token,\nTLS optional", at=(200, 358), both=True)
    d.arrow((490, 172), (612, 172), label="API key", at=(560, 164), both=True)
    d.arrow(
        gateway.right(), (612, 279), label="key of one\nrollout, on a\nUnix socket", at=(560, 236), both=True, colour=O
    )
    d.arrow(pool.right(), (612, 383), label="token of\none lease", at=(561, 352), both=True, colour=O)
    d.arrow(driver.bottom(), workers.top(), both=True)
    d.region(16, 456, 728, 90, "restricted agent server: clients that you do not trust")
    d.box(34, 486, 210, 46, "client", colours=ORANGE)
    d.box(516, 486, 210, 46, "restricted server", colours=BLUE)
    d.arrow((244, 502), (516, 502), colour=O, label="data only: nothing is unpickled", at=(380, 496))
    d.arrow((516, 518), (244, 518), label="results are unpickled by the client", at=(380, 536))
    return d


if __name__ == "__main__":
    for draw in (overview, task, machine_states, durable, groups, rollout, rollout_time, remote, security):
        draw().save(FOLDER)
