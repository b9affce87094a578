"""Commands and client for jobs on a cluster, against a small API server, and the explanation of a job."""

import json
from typing import Any

import pytest

from control.client.fake_server import PATH, FakeServer, make_job
from omni_operator.api.status import CheckpointStatus, Condition, Status
from omni_operator.client import Client, InvalidName, jobs
from omni_operator.client.explanation import explain
from omni_operator.cluster.errors import ClusterError, Unavailable


def test_jobs_are_what_the_cluster_has(server: FakeServer) -> None:
    client = server.client()
    assert [job.name for job in client.list()] == ["blue", "red-grpo"]
    assert client.get("blue").body == make_job("blue")
    assert "create the PersistentVolumeClaim" in server.drl("why", "blue").stdout


def test_suspend_and_resume_change_a_job_once(server: FakeServer) -> None:
    outputs = [server.drl(command, "blue").stdout for command in ("suspend", "suspend", "resume", "resume")]
    assert outputs == [
        "blue: suspension requested\n",
        "blue: spec.suspend is already true\n",
        "blue: resumed\n",
        "blue: not suspended\n",
    ]
    sent = "application/merge-patch+json"
    assert server.patches == [(f"{PATH}/blue", sent, {"spec": {"suspend": value}}) for value in (True, False)]


def test_who_suspends_a_job_without_a_claim_is_told_that_it_will_start_again(server: FakeServer) -> None:
    kept = {"type": "ResultsKept", "status": "True", "reason": "VolumeMounted"}
    server.jobs["blue"]["status"]["conditions"] = [kept]
    assert server.drl("suspend", "blue").stderr == ""
    server.jobs["blue"]["spec"]["suspend"] = False
    server.jobs["blue"]["status"]["conditions"] = [{**kept, "status": "False", "reason": "ResultsOnEmptyDir"}]
    suspended = server.drl("suspend", "blue")
    assert suspended.stdout == "blue: suspension requested\n"
    assert "its checkpoints are deleted with the pods, and drl resume blue starts it again" in suspended.stderr


@pytest.mark.parametrize("state", ["Succeeded", "Failed"])
@pytest.mark.parametrize("command", [("suspend",), ("resume",), ("scale", "--replicas=4")], ids=lambda words: words[0])
def test_a_job_that_has_ended_is_not_changed(state: str, command: tuple[str, ...], server: FakeServer) -> None:
    server.jobs["blue"]["status"] = {"state": state, "conditions": [{"type": state, "status": "True", "reason": "R"}]}
    server.jobs["blue"]["spec"]["suspend"] = command[0] == "resume"
    refused = server.drl(*command, "blue")
    assert (refused.exit_code, refused.stderr) == (2, f"blue is {state}: nothing to {command[0]}\n")
    assert (refused.stdout, server.patches) == ("", [])


def test_scale_changes_the_number_of_rollout_pods_once(server: FakeServer) -> None:
    outputs = [server.drl("scale", "blue", "--replicas=4").stdout for _ in range(2)]
    assert outputs == ["blue: spec.rollout.replicas is 4, was 2\n", "blue: spec.rollout.replicas is already 4\n"]
    assert [sent for _, _, sent in server.patches] == [{"spec": {"rollout": {"replicas": 4}}}]
    assert server.drl("scale", "blue", "--replicas=0").exit_code == 2


def test_a_job_without_rollout_pods_cannot_be_scaled_and_the_message_says_why(server: FakeServer) -> None:
    server.invalid = 422, {"reason": "Invalid", "message": "spec.rollout.replicas: must be all accelerators"}
    refused = server.drl("scale", "blue", "--replicas=4")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "only jobs with spec.rollout.placement: Separate can be scaled" in refused.stderr
    denial = 'admission webhook "gate.example.com" denied the request: no more GPUs'
    for code in (400, 403, 422):
        server.invalid = code, {"message": denial}
        refused = server.drl("scale", "blue", "--replicas=4")
        assert refused.exit_code == 1 and refused.stderr.endswith(f"{denial}\n")
    server.invalid = 422, {"reason": "Invalid", "message": "spec.rollout.replicas: must be all accelerators"}
    server.jobs["blue"]["spec"]["rollout"]["placement"] = "Separate"
    assert "must be all accelerators" in server.fails(1, "scale", "blue", "--replicas=4")


def test_wait_ends_with_the_state_the_end_of_the_job_or_the_deadline(server: FakeServer) -> None:
    client = server.client()
    assert client.wait("blue", "Starting", 60).status.state == "Starting"
    with pytest.raises(TimeoutError, match=r"^blue is Starting after 0 s$"):
        client.wait("blue", "Succeeded", 0)
    failed = {"type": "Failed", "status": "True", "reason": "OutOfMemory"}
    server.jobs["blue"]["status"] = {"state": "Failed", "conditions": [failed]}
    assert client.wait("blue", "Succeeded", 60).status.state == "Failed"


def test_commands_about_one_job_print_json(server: FakeServer) -> None:
    def printed(*arguments: str) -> Any:
        done = server.drl(*arguments, "--json")
        assert (done.exit_code, done.stderr) == (0, ""), done.output
        return json.loads(done.stdout)

    why = printed("why", "blue")
    assert (why["name"], why["state"], why["reason"]) == ("blue", "Starting", "ClaimNotFound")
    assert why["text"] == server.drl("why", "blue").stdout.rstrip("\n")
    for changed in (True, False):
        assert printed("suspend", "blue") == {"name": "blue", "changed": changed}
    assert printed("resume", "blue") == {"name": "blue", "changed": True}
    assert printed("scale", "blue", "--replicas=4") == {"name": "blue", "changed": True, "replicas": 4}


def test_errors_say_what_is_wrong(server: FakeServer) -> None:
    missing = server.drl("why", "red-grp")
    assert (missing.exit_code, missing.stderr) == (2, "no job 'red-grp' in namespace team; did you mean 'red-grpo'?\n")
    server.objects[PATH] = 403, {"message": "User u cannot list"}
    missing = server.drl("why", "red-grp")
    assert (missing.exit_code, missing.stderr) == (2, "no job 'red-grp' in namespace team\n"), "may get, not list"
    del server.objects[PATH]
    assert "did you mean 'main'?" in server.fails(2, "why", "blue", "--context=mian")
    server.refusal = 404, {}
    with pytest.raises(ClusterError, match="not installed"):
        server.client().list()
    server.refusal = 403, {"message": "User u cannot get"}
    assert "User u cannot get" in server.fails(1, "why", "blue")


def test_what_a_newer_operator_writes_hides_nothing(server: FakeServer) -> None:
    """A state, a value of a condition and a field that this version does not have."""
    ready = {"type": "Ready", "status": "False", "reason": "ClaimNotFound"}
    conditions = [{"type": "Ready", "status": "Perhaps", "reason": "New"}, ready]
    server.jobs["blue"]["status"] = {"state": "Paused", "conditions": conditions, "new": 1}
    client = server.client()
    assert [job.status.state for job in client.list()] == ["Paused", "Starting"]
    with pytest.raises(TimeoutError, match=r"^blue is Paused after 0 s$"):
        client.wait("blue", "Succeeded", 0)
    assert server.drl("why", "blue").stdout.startswith("blue is Paused. Ready is False: ClaimNotFound. What to do: ")


def test_a_time_limit_ends_the_repetition_of_unanswered_requests(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PATIENCE_SECONDS", 5.0)
    follower = server.client().follow("blue", poll=0.05, seconds=0.1)
    next(follower)
    server.refusal = 503, {}
    with pytest.raises(Unavailable):
        next(follower)
    assert len(server.queries) < 10


# Each would be the path of other objects, or a request that is none of a job.
NO_NAMES = (
    *("", ".", "..", "../../../api/v1/namespaces/team"),
    *("blue?dryRun=All", "blue/status", "blue%2f..", "Blue", "a" * 254),
)
ONE_JOB = ("why", "suspend", "resume", "scale --replicas=2", "watch", "logs", "fetch", "open")


@pytest.mark.parametrize("command", ONE_JOB)
def test_a_command_sends_nothing_for_what_is_no_name(command: str, server: FakeServer) -> None:
    for name in NO_NAMES:
        assert f"{name!r} is not a valid name of a job" in server.fails(2, *command.split(), name), name
    assert "'' is not a valid name of a namespace" in server.fails(2, *command.split(), "blue", "--namespace=")
    assert (server.queries, server.patches, server.deletions) == ([], [], [])


def test_cancel_deletes_only_the_job_that_was_read(server: FakeServer) -> None:
    client = server.client()
    client.cancel("blue")
    options = {"propagationPolicy": "Background", "preconditions": {"uid": "uid-blue"}}
    seen = client.get("blue")
    server.jobs["blue"]["metadata"]["uid"] = "uid-later"
    client.cancel(seen)
    assert server.deletions == [(f"{PATH}/blue", options)] * 2
    server.deletion = 409, {"reason": "Conflict", "message": "Precondition failed: UID in precondition: uid-later"}
    with pytest.raises(ClusterError, match=r"^blue was deleted, and created again: the new one was not deleted$"):
        client.cancel(seen)
    server.deletion = 404, {"message": "not found", "details": {"name": "blue"}}
    with pytest.raises(ClusterError, match=r"^blue was deleted already$"):
        client.cancel(seen)
    del server.jobs["blue"]["metadata"]["uid"]
    server.deletions.clear()
    with pytest.raises(ClusterError, match="has no uid: nothing was deleted"):
        client.cancel("blue")
    for name in NO_NAMES:
        with pytest.raises(InvalidName):
            client.cancel(name)
    for namespace in ("", "..", "team/../other", "team.x", "a" * 64):
        with pytest.raises(InvalidName):
            Client(client.connection, namespace)
    assert server.deletions == []


@pytest.mark.parametrize("command", [("why", "blue"), ("suspend", "blue")])
def test_an_answer_that_is_not_of_kubernetes_is_an_error_in_words(server: FakeServer, command: tuple[str, ...]) -> None:
    for text, message in (
        ("<html>Please log in</html>", "the answer is not one of Kubernetes: GET "),
        ("<html>Please log in</html>", "'<html>Please log in</html>"),
        ('["a"]', "the answer is not one of Kubernetes: GET "),
        ('{"error": "login"}', "is not a job: it has the field"),
    ):
        server.texts[f"{PATH}/blue"] = [[text]]
        assert message in server.fails(1, *command)
    assert server.deletions == []


def holding(state: Any, kind: str, value: Any, reason: str, message: str = "text.") -> Status:
    at = "2026-01-01T00:00:00Z"
    condition = Condition(type=kind, status=value, reason=reason, message=message, last_transition_time=at)
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
        (holding("Running", "Updated", "False", "RollingUpdate"), "Nothing holds it"),
        (holding("Running", "Updated", "False", "RolledBack"), "What to do: correct the spec of these pods, or change"),
        (holding("Running", "Admitted", "True", "PartiallyAdmitted"), "PartiallyAdmitted: text."),
        (Status(), "no operator has seen it"),
        (holding(None, "ReconcileError", "True", "DefinitionOutdated"), "red has no state yet. ReconcileError is True"),
        (holding(None, "ReconcileError", "True", "DefinitionOutdated"), "apply crds/; else report"),
        (holding("Running", "ReconcileError", "True", "Refused"), "What to do: with DefinitionOutdated, "),
        (
            holding("Starting", "Ready", "False", "QuotaExceeded", "failed quota: q: must specify limits.cpu for: ray"),
            "What to do: set what the message says must be specified in resources",
        ),
    ],
)
def test_the_explanation_names_cause_and_remedy(status: Status, expected: str) -> None:
    explanation = explain("red", status, None)
    assert expected in explanation
    assert explanation.startswith("red ")
    assert ".." not in explanation


@pytest.mark.parametrize(
    ("attempts", "kept", "last", "expected"),
    [
        (0, "VolumeMounted", None, "drl resume starts it."),
        (1, "VolumeMounted", None, "drl resume continues from the newest checkpoint, if there is one."),
        (1, "VolumeMounted", "step_000020", "drl resume continues from step_000020."),
        (1, "ResultsOnEmptyDir", "step_000020", "drl resume starts it again: its checkpoints were deleted"),
        (1, "OutputGiven", "step_000020", "drl resume starts it again: its checkpoints were deleted"),
    ],
)
def test_a_suspended_job_says_where_it_would_begin(attempts: int, kept: str, last: str | None, expected: str) -> None:
    suspended = holding("Suspended", "Suspended", "True", "Suspended")
    volume = Condition(type="ResultsKept", status="True", reason=kept)
    changed = {
        "attempts": attempts,
        "conditions": (*suspended.conditions, volume),
        "checkpoint": CheckpointStatus(last=last),
    }
    assert f"What to do: {expected}" in explain("red", suspended.model_copy(update=changed), None)


def test_a_job_that_is_being_deleted_says_so() -> None:
    assert explain("red", Status(), None, "2026-01-01T00:00:00Z") == "red is being deleted since 2026-01-01T00:00:00Z."


@pytest.mark.parametrize(
    ("finalizers", "kept"),
    [
        (
            ["foregroundDeletion"],
            "It is kept until all of its objects are deleted. What to do: kubectl get rayjobs,rayclu",
        ),
        (["x.com/a"], "Finalizers of other programs keep it and its pods: x.com/a. What to do: find out why these "),
        (["x.com/a", "foregroundDeletion"], "Finalizers of other programs keep it: x.com/a. What to do: find out why "),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)
def test_what_keeps_a_job_that_is_being_deleted_is_named(server: FakeServer, finalizers: list[str], kept: str) -> None:
    at = "2026-01-01T00:00:00Z"
    server.jobs["blue"]["metadata"] |= {"deletionTimestamp": at, "finalizers": finalizers}
    assert f"blue is being deleted since {at}. {kept}" in " ".join(server.drl("why", "blue").stdout.split())
