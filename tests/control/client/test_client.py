"""Commands and client for jobs on a cluster, against a small API server, and the explanation of a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from control.client.fake_server import PATH, FakeServer, drl, make_job
from omni_operator.api.status import Condition, Status
from omni_operator.cli.main import app
from omni_operator.client import Client, InvalidName, jobs
from omni_operator.client.explanation import explain
from omni_operator.cluster.errors import Unavailable

EXAMPLE = Path(__file__).parents[3] / "examples" / "red-grpo-cluster.yaml"


def test_list_and_get_print_what_the_cluster_has(kubeconfig: Path) -> None:
    rows = [line.split() for line in drl(kubeconfig, "list").stdout.splitlines()]
    same = ["Starting", "ClaimNotFound", "3/10", "0.5"]
    assert rows == [["NAME", "STATE", "REASON", "STEP", "REWARD"], ["blue", *same], ["red-grpo", *same]]
    assert [job["metadata"]["name"] for job in json.loads(drl(kubeconfig, "list", "--json").stdout)] == [
        "blue",
        "red-grpo",
    ]
    assert json.loads(drl(kubeconfig, "get", "blue", "--json").stdout) == make_job("blue")
    assert "ClaimNotFound: no claim runs" in drl(kubeconfig, "get", "blue").stdout
    assert "create the PersistentVolumeClaim" in drl(kubeconfig, "why", "blue").stdout
    assert drl(kubeconfig, "list", "-n", "team").exit_code == 0


def test_suspend_and_resume_change_a_job_once(server: FakeServer, kubeconfig: Path) -> None:
    said = [drl(kubeconfig, command, "blue").stdout for command in ("suspend", "suspend", "resume", "resume")]
    assert said == [
        "blue: suspension requested\n", "blue: spec.suspend is already true\n",
        "blue: resumed\n", "blue: not suspended\n",
    ]  # fmt: skip
    sent = "application/merge-patch+json"
    assert server.patches == [(f"{PATH}/blue", sent, {"spec": {"suspend": value}}) for value in (True, False)]


@pytest.mark.parametrize("state", ["Succeeded", "Failed"])
@pytest.mark.parametrize("command", [("suspend",), ("resume",), ("scale", "--replicas=4")], ids=lambda words: words[0])
def test_a_job_that_has_ended_is_not_changed(
    state: str, command: tuple[str, ...], server: FakeServer, kubeconfig: Path
) -> None:
    server.jobs["blue"]["status"] = {
        "state": state, "conditions": [{"type": state, "status": "True", "reason": "R"}],
    }  # fmt: skip
    server.jobs["blue"]["spec"]["suspend"] = command[0] == "resume"
    said = drl(kubeconfig, *command, "blue")
    assert (said.exit_code, said.stderr) == (2, f"blue is {state}: nothing to {command[0]}\n")
    assert (said.stdout, server.patches) == ("", [])


def test_scale_changes_the_number_of_rollout_pods_once(server: FakeServer, kubeconfig: Path) -> None:
    said = [drl(kubeconfig, "scale", "blue", "--replicas=4").stdout for _ in range(2)]
    assert said == ["blue: spec.rollout.replicas is 4, was 2\n", "blue: spec.rollout.replicas is already 4\n"]
    assert [sent for _, _, sent in server.patches] == [{"spec": {"rollout": {"replicas": 4}}}]
    assert drl(kubeconfig, "scale", "blue", "--replicas=0").exit_code == 2


def test_a_job_without_rollout_pods_cannot_be_scaled_and_the_message_says_why(
    server: FakeServer, kubeconfig: Path
) -> None:
    server.invalid = 422, {"reason": "Invalid", "message": "spec.rollout.replicas: must be all accelerators"}
    refused = drl(kubeconfig, "scale", "blue", "--replicas=4")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "only jobs with spec.rollout.placement: Separate can be scaled" in refused.stderr
    server.jobs["blue"]["spec"]["rollout"]["placement"] = "Separate"
    refused = drl(kubeconfig, "scale", "blue", "--replicas=4")
    assert (refused.exit_code, "must be all accelerators" in refused.stderr) == (1, True)


def test_cancel_asks_and_deletes_the_job_that_was_shown(server: FakeServer, kubeconfig: Path) -> None:
    asked = CliRunner().invoke(app, ["cancel", "blue", f"--kubeconfig={kubeconfig}"], input="n\n")
    assert (asked.exit_code, server.deletions) == (2, [])
    assert "the run folder on the claim runs is kept" in asked.stderr and "Delete" not in asked.stdout
    closed = CliRunner().invoke(app, ["cancel", "blue", f"--kubeconfig={kubeconfig}"], input="")
    assert (closed.exit_code, server.deletions) == (2, [])
    assert closed.stderr.splitlines()[-1] == "nothing was deleted: without a terminal to answer on, give --yes"
    done = drl(kubeconfig, "cancel", "blue", "--yes")
    assert done.stdout == "blue: deletion requested; the run folder on the claim runs is kept\n"
    options = {"propagationPolicy": "Background", "preconditions": {"uid": "uid-blue"}}
    assert server.deletions == [(f"{PATH}/blue", options)]


def test_wait_ends_with_the_state_the_end_of_the_job_or_the_deadline(server: FakeServer, kubeconfig: Path) -> None:
    assert drl(kubeconfig, "wait", "blue", "--for=Starting").stdout == "blue is Starting\n"
    late = drl(kubeconfig, "wait", "blue", "--timeout=0")
    assert (late.exit_code, late.stderr) == (1, "blue is Starting after 0 s\n")
    failed = {"type": "Failed", "status": "True", "reason": "OutOfMemory"}
    server.jobs["blue"]["status"] = {"state": "Failed", "conditions": [failed]}
    ended = drl(kubeconfig, "wait", "blue")
    assert (ended.exit_code, ended.stderr) == (1, "blue is Failed; run drl why blue\n")
    unknown = drl(kubeconfig, "wait", "blue", "--for=Runing")
    assert (unknown.exit_code, "did you mean 'Running'?" in unknown.stderr) == (2, True)


def test_commands_that_change_a_job_or_wait_for_it_print_json(server: FakeServer, kubeconfig: Path) -> None:
    def said(*arguments: str) -> Any:
        done = drl(kubeconfig, *arguments, "--json")
        assert (done.exit_code, done.stderr) == (0, ""), done.output
        return json.loads(done.stdout)

    why = said("why", "blue")
    assert (why["name"], why["state"], why["reason"]) == ("blue", "Starting", "ClaimNotFound")
    assert why["text"] == drl(kubeconfig, "why", "blue").stdout.rstrip("\n")
    assert said("wait", "blue", "--for=Starting") == make_job("blue")
    assert [said("suspend", "blue") for _ in range(2)] == [{"name": "blue", "changed": each} for each in (True, False)]
    assert said("resume", "blue") == {"name": "blue", "changed": True}
    assert said("scale", "blue", "--replicas=4") == {"name": "blue", "changed": True, "replicas": 4}
    assert said("cancel", "blue", "--yes") == {"name": "blue", "claim": "runs"}
    ended = {"state": "Failed", "conditions": [{"type": "Failed", "status": "True", "reason": "OutOfMemory"}]}
    server.jobs["blue"]["status"] = ended
    failed = drl(kubeconfig, "wait", "blue", "--json")
    assert (failed.exit_code, json.loads(failed.stdout)["status"]) == (1, ended)


def test_errors_say_what_is_wrong(server: FakeServer, kubeconfig: Path, tmp_path: Path) -> None:
    missing = drl(kubeconfig, "get", "red-grp")
    assert (missing.exit_code, missing.stderr) == (
        2, "no job 'red-grp' in namespace team; did you mean 'red-grpo'?\n",
    )  # fmt: skip
    server.objects[PATH] = 403, {"message": "User u cannot list"}
    missing = drl(kubeconfig, "get", "red-grp")
    assert (missing.exit_code, missing.stderr) == (2, "no job 'red-grp' in namespace team\n"), "may get, not list"
    del server.objects[PATH]
    context = drl(kubeconfig, "list", "--context=mian")
    assert (context.exit_code, "did you mean 'main'?" in context.stderr) == (2, True)
    absent = drl(tmp_path / "none", "list")
    assert (absent.exit_code, "cannot use the kubeconfig" in absent.stderr) == (2, True)
    malformed = tmp_path / "malformed"
    for text in (
        "contexts: 3",
        "- a",
        "{current-context: a, contexts: [{name: a, context: 5}], clusters: [], users: []}",
    ):
        malformed.write_text(text)
        refused = drl(malformed, "list")
        assert (refused.exit_code, "cannot use the kubeconfig" in refused.stderr) == (2, True), text
    server.refusal = 404, {}
    assert (drl(kubeconfig, "list").exit_code, "not installed" in drl(kubeconfig, "list").stderr) == (2, True)
    server.refusal = 403, {"message": "User u cannot list"}
    assert (drl(kubeconfig, "list").exit_code, "User u cannot list" in drl(kubeconfig, "list").stderr) == (1, True)


def test_what_a_newer_operator_writes_hides_nothing(server: FakeServer, kubeconfig: Path) -> None:
    """A state, a value of a condition and a field that this version does not have."""
    ready = {"type": "Ready", "status": "False", "reason": "ClaimNotFound"}
    conditions = [{"type": "Ready", "status": "Perhaps", "reason": "New"}, ready]
    server.jobs["blue"]["status"] = {"state": "Paused", "conditions": conditions, "new": 1}
    assert [line.split()[:2] for line in drl(kubeconfig, "list").stdout.splitlines()[1:]] == [
        ["blue", "Paused"], ["red-grpo", "Starting"],
    ]  # fmt: skip
    assert drl(kubeconfig, "get", "blue").stdout.splitlines()[0] == "blue: Paused"
    assert drl(kubeconfig, "wait", "blue", "--timeout=0").stderr == "blue is Paused after 0 s\n"
    assert drl(kubeconfig, "why", "blue").stdout.startswith(
        "blue is Paused. Ready is False: ClaimNotFound. What to do: "
    )


def test_a_time_limit_ends_the_repetition_of_unanswered_requests(
    server: FakeServer, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PATIENCE_SECONDS", 5.0)
    found = Client.from_kubeconfig(str(kubeconfig)).follow("blue", poll=0.05, seconds=0.1)
    next(found)
    server.refusal = 503, {}
    with pytest.raises(Unavailable):
        next(found)
    assert len(server.queries) < 10


def test_a_user_whose_exec_plugin_fails_has_no_credentials(kubeconfig: Path) -> None:
    config = json.loads(kubeconfig.read_text())
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "false", "interactiveMode": "Never"}
    config["users"][0]["user"] = {"exec": plugin}
    kubeconfig.write_text(json.dumps(config))
    said = drl(kubeconfig, "list")
    assert (said.exit_code, "user 'u' has no credentials" in said.stderr) == (2, True), said.output
    assert "; exec: process returned 1" in said.stderr and len(said.stderr.splitlines()) == 1


def test_a_cluster_that_does_not_answer_is_an_error(kubeconfig: Path, tmp_path: Path) -> None:
    config = json.loads(kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
    kubeconfig.write_text(json.dumps(config))
    result = drl(kubeconfig, "list")
    assert result.exit_code == 1
    assert result.stderr.startswith("no answer from the cluster: GET ") and "Connection refused" in result.stderr
    assert result.stderr.endswith("; check the server of the kubeconfig, VPN and proxy\n")


# Each would be the path of other objects, or a request that is none of a job.
NO_NAMES = (
    "",
    ".",
    "..",
    "../../../api/v1/namespaces/team",
    "blue?dryRun=All",
    "blue/status",
    "blue%2f..",
    "Blue",
    "a" * 254,
)
ONE_JOB: tuple[tuple[str, ...], ...] = (
    ("get",), ("why",), ("suspend",), ("resume",), ("scale", "--replicas=2"), ("cancel", "--yes"), ("wait",),
    ("watch",), ("logs",), ("fetch",), ("open",),
)  # fmt: skip


@pytest.mark.parametrize("command", ONE_JOB, ids=lambda words: words[0])
def test_a_command_sends_nothing_for_what_is_no_name(
    command: tuple[str, ...], server: FakeServer, kubeconfig: Path
) -> None:
    for name in NO_NAMES:
        refused = drl(kubeconfig, *command, name)
        assert (refused.exit_code, f"{name!r} is not a valid name of a job" in refused.stderr) == (2, True), name
    nowhere = drl(kubeconfig, *command, "blue", "--namespace=")
    assert (nowhere.exit_code, "'' is not a valid name of a namespace" in nowhere.stderr) == (2, True)
    assert (server.queries, server.patches, server.deletions) == ([], [], [])


def test_a_namespace_that_is_none_gets_no_job(server: FakeServer, kubeconfig: Path) -> None:
    for command in (("list",), ("submit", str(EXAMPLE))):
        refused = drl(kubeconfig, *command, "--namespace=team/../other")
        assert (refused.exit_code, "is not a valid name of a namespace" in refused.stderr) == (2, True), refused.output
    assert (server.queries, server.posts) == ([], [])


def test_every_method_refuses_what_is_no_name(server: FakeServer, kubeconfig: Path) -> None:
    client = Client.from_kubeconfig(str(kubeconfig))
    methods: list[Any] = [
        client.get, client.suspend, client.cancel, lambda name: client.scale(name, 2),
        lambda name: next(client.follow(name)), lambda name: client.wait(name, "Running", 0.0),
        lambda name: client.submit({"metadata": {"name": name}}),
    ]  # fmt: skip
    for method in methods:
        for name in NO_NAMES:
            with pytest.raises(InvalidName):
                method(name)
    for namespace in ("", "..", "team/../other", "team.x", "a" * 64):
        with pytest.raises(InvalidName):
            Client(client.connection, namespace)
    assert server.queries == []


@pytest.mark.parametrize("command", [("list",), ("get", "blue"), ("why", "blue"), ("cancel", "blue", "--yes")])
def test_an_answer_that_is_not_of_kubernetes_is_an_error_in_words(
    server: FakeServer, kubeconfig: Path, command: tuple[str, ...]
) -> None:
    path = PATH if command == ("list",) else f"{PATH}/blue"
    for text, said in (
        ("<html>Please log in</html>", "the answer is not one of Kubernetes: GET "),
        ("<html>Please log in</html>", "'<html>Please log in</html>"),
        ('["a"]', "the answer is not one of Kubernetes: GET "),
        ('{"error": "login"}', "not one of Kubernetes" if command == ("list",) else "is not a job: it has the field"),
    ):  # fmt: skip
        server.texts[path] = [[text]]
        refused = drl(kubeconfig, *command)
        assert (refused.exit_code, said in refused.stderr) == (1, True), refused
    assert server.deletions == []


def test_cancel_deletes_no_job_that_was_created_after_the_question(server: FakeServer, kubeconfig: Path) -> None:
    client = Client.from_kubeconfig(str(kubeconfig))
    seen = client.get("blue")
    server.jobs["blue"]["metadata"]["uid"] = "uid-later"
    client.cancel(seen)
    assert [options["preconditions"] for _, options in server.deletions] == [{"uid": seen.uid}]
    server.queries.clear()
    server.deletion = 409, {"reason": "Conflict", "message": "Precondition failed: UID in precondition: uid-later"}
    refused = CliRunner().invoke(app, ["cancel", "blue", f"--kubeconfig={kubeconfig}"], input="y\n")
    assert len(server.queries) == 1, "the job is read once, before the question"
    assert refused.exit_code == 1
    assert refused.stderr.endswith("blue was deleted, and created again: the new one was not deleted\n")
    server.deletion = 404, {"message": "not found", "details": {"name": "blue"}}
    assert drl(kubeconfig, "cancel", "blue", "--yes").stderr == "blue was deleted already\n"


def test_an_answer_without_uid_deletes_nothing(server: FakeServer, kubeconfig: Path) -> None:
    del server.jobs["blue"]["metadata"]["uid"]
    refused = drl(kubeconfig, "cancel", "blue", "--yes")
    assert (refused.exit_code, "has no uid: nothing was deleted" in refused.stderr) == (1, True)
    assert server.deletions == []


def holding(state: Any, kind: str, value: Any, reason: str) -> Status:
    at = "2026-01-01T00:00:00Z"
    condition = Condition(type=kind, status=value, reason=reason, message="text.", last_transition_time=at)
    return Status(state=state, conditions=(condition,))


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (holding("Queued", "Admitted", "False", "Queued"), "the queue decides"),
        (holding("Pending", "Ready", "False", "QuotaExceeded"), "ResourceQuota"),
        (holding("Running", "ProgressStalled", "True", "HeartbeatStopped"), "log of the trainer pod"),
        (holding("Suspended", "Suspended", "True", "Suspended"), "drl resume"),
        (holding("Failed", "Failed", "True", "OutOfMemory"), "Failed is True since 2026-01-01T00:00:00Z: OutOfMemory"),
        (holding("Failed", "Failed", "True", "OutOfMemory"), "What to do: raise the memory or lower the batch"),
        (holding("Running", "Ready", "True", "Serving"), "Nothing holds it"),
        (Status(), "no operator has seen it"),
        (holding(None, "ReconcileError", "True", "DefinitionOutdated"), "red has no state yet. ReconcileError is True"),
        (holding(None, "ReconcileError", "True", "DefinitionOutdated"), "apply crds/; else report"),
        (holding("Running", "ReconcileError", "True", "Refused"), "What to do: with DefinitionOutdated, "),
    ],
)
def test_the_explanation_names_cause_and_remedy(status: Status, expected: str) -> None:
    said = explain("red", status, None)
    assert expected in said
    assert said.startswith("red ")
    assert ".." not in said


def test_a_job_that_is_being_deleted_says_so() -> None:
    assert explain("red", Status(), None, "2026-01-01T00:00:00Z") == "red is being deleted since 2026-01-01T00:00:00Z."
