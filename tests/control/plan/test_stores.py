"""Stores in a job's pods: who gets keys, what downloads the model, where results go, which ports are open."""

import json
from typing import Any

import pytest

from control.plan.rendered_objects import SETTINGS, by_kind, make_job, pod_settings, ray, ray_job
from omni_operator import plan
from omni_operator.api import DiffusionRLJob
from omni_operator.plan.pod_policy import PodPolicy

STORAGE = "spec.storage={endpoint: 'http://minio.store:9000', secretName: keys}"
SEPARATE = "spec.rollout.placement=Separate"
HUB = "spec.output={url: hf://owner/adapters}"
DENY = "spec.security.networkPolicy=DefaultDeny"
KEYS = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"]


def pods(job: DiffusionRLJob) -> dict[str, Any]:
    """Pod specs by group; `head` too."""
    cluster = ray_job(job)["spec"]["rayClusterSpec"]
    groups = {group["groupName"]: group["template"]["spec"] for group in cluster["workerGroupSpecs"]}
    return {"head": cluster["headGroupSpec"]["template"]["spec"], **groups}


def keys(container: dict[str, Any]) -> list[str]:
    keys = [entry for entry in container.get("env", ()) if entry["name"].startswith(("AWS_", "HF_TOKEN"))]
    assert all(entry["valueFrom"]["secretKeyRef"]["name"] == "keys" for entry in keys)
    return [entry["name"] for entry in keys]


def test_only_the_trainer_gets_the_keys_of_its_output_and_data() -> None:
    for change in ("spec.output={url: s3://b/runs}", "spec.data.train=['s3://b/t.jsonl']"):
        specs = pods(make_job(change, STORAGE, SEPARATE))
        of_groups = {group: keys(spec["containers"][0]) for group, spec in specs.items()}
        assert of_groups == {"head": [], "trainer": KEYS, "rollout": []}
        assert "initContainers" not in specs["trainer"]


def test_only_the_trainer_gets_the_token_of_the_hub_and_may_reach_it() -> None:
    specs = pods(make_job(HUB, "spec.storage={secretName: keys}", SEPARATE))
    of_groups = {group: keys(spec["containers"][0]) for group, spec in specs.items()}
    assert of_groups == {"head": [], "trainer": ["HF_TOKEN"], "rollout": []}
    offline = {
        group: [item["value"] for item in spec["containers"][0].get("env", ()) if item["name"] == "HF_HUB_OFFLINE"]
        for group, spec in specs.items()
    }
    assert offline == {"head": [], "trainer": [""], "rollout": ["1"]}


def test_one_secret_may_have_the_token_and_the_keys_or_leave_those_to_the_pods_identity() -> None:
    specs = pods(make_job(HUB, "spec.data.train=['s3://b/t.jsonl']", "spec.storage={secretName: keys}"))
    (container,) = specs["trainer"]["containers"]
    assert keys(container) == [*KEYS, "HF_TOKEN"]
    sources = {item["name"]: item["valueFrom"]["secretKeyRef"] for item in container["env"] if "valueFrom" in item}
    assert [sources[name].get("optional") for name in (*KEYS, "HF_TOKEN")] == [True, True, True, None]


def test_a_job_that_cannot_send_to_the_hub_is_refused() -> None:
    def refusals(*changes: str) -> list[tuple[Any, str]]:
        return [(refusal.at[1:], refusal.text) for refusal in plan.find_refusals(make_job(HUB, *changes), SETTINGS)]

    def variables(*entries: str) -> str:
        return f"spec.trainer.podTemplate={{spec: {{containers: [{{name: ray, env: [{', '.join(entries)}]}}]}}}}"

    secret = "spec.storage={secretName: keys}"
    assert refusals(secret) == []
    ((at, text),) = refusals()
    assert at == ("storage", "secretName") and "name a Secret with the key HF_TOKEN" in text
    variable = "{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: mine, key: token}}}"
    assert refusals(variables(variable)) == []
    ((at, text),) = refusals(secret, variables("{name: HF_HUB_OFFLINE, value: '1'}"))
    assert at == ("output", "url") and "spec.trainer.podTemplate sets HF_HUB_OFFLINE=1: remove the variable" in text
    assert refusals(secret, variables("{name: HF_HUB_OFFLINE, value: '0'}")) == []


def test_an_endpoint_is_that_of_the_hub_or_the_store() -> None:
    named = "{spec: {containers: [{name: ray, env: [{name: HF_ENDPOINT, value: 'http://hub.test:81'}]}]}}"
    hub = f"spec.trainer.podTemplate={named}"
    data = "spec.data.train=['s3://b/t.jsonl']"

    def verdict(*changes: str) -> tuple[list[str], list[int]]:
        """What is refused, and the open ports."""
        of_hub = make_job(HUB, STORAGE, DENY, *changes)
        ports = by_kind(of_hub)["NetworkPolicy"]["spec"]["egress"][2]["ports"]
        return [refusal.text for refusal in plan.find_refusals(of_hub, SETTINGS)], [port["port"] for port in ports]

    assert verdict() == ([], [9000])
    assert verdict(data, hub) == ([], [81, 9000])
    in_store = "spec.model.base=s3://b/m"
    endpoint = "trainer.store.endpoint='http://minio.store:9000'"
    assert verdict(in_store, hub) == ([], [81, 9000])
    for change, expected in ((data, True), (in_store, False)):
        overrides = plan.render_pod_overrides(*plan.resolve_for_pods(make_job(HUB, STORAGE, hub, change)))
        assert (endpoint in overrides) is expected, "only if the trainer itself reads from the store"
    ((text,), _) = verdict(data)
    assert text.startswith("is ambiguous, because the job uses an S3-compatible store and the Hugging Face hub")
    ((text,), _) = verdict(hub)
    assert "the trainer's variable HF_ENDPOINT is http://hub.test:81: write one of them" in text


def test_a_model_in_a_store_is_downloaded_where_it_is_loaded_and_its_keys_stay_in_the_init_container() -> None:
    fetching = make_job("spec.model={base: s3://b/sd35, cache: {claimName: models}}", STORAGE, SEPARATE)
    folder = "/var/lib/diffusionrl/models/b/sd35"
    for group, spec in pods(fetching).items():
        if group == "head":
            assert "initContainers" not in spec
            continue
        (fetch,) = spec["initContainers"]
        command = f"python3 -m verl_omni.utils.stores download s3://b/sd35 {folder} --endpoint http://minio.store:9000"
        assert fetch["command"] == command.split()
        assert keys(fetch) == KEYS
        assert keys(spec["containers"][0]) == []
        assert {"name": "models", "persistentVolumeClaim": {"claimName": "models"}} in spec["volumes"]
    assert pod_settings(fetching)["actor_rollout_ref.model.path"] == folder


def test_a_session_token_may_be_absent_and_without_a_secret_the_pods_identity_counts() -> None:
    (container,) = pods(make_job("spec.output={url: s3://b}", STORAGE))["trainer"]["containers"]
    optional = {
        e["name"]: e["valueFrom"]["secretKeyRef"].get("optional") for e in container["env"] if "AWS" in e["name"]
    }
    assert optional == dict(zip(KEYS, (None, None, True), strict=True))
    (container,) = pods(make_job("spec.output={url: s3://b}"))["trainer"]["containers"]
    assert keys(container) == []


def test_the_settings_name_a_folder_of_the_job_and_how_the_store_is_reached() -> None:
    def sent(output: str, storage: str) -> list[Any]:
        settings = pod_settings(make_job(f"spec.output={output}", storage))
        return [settings[f"trainer.{name}"] for name in ("output.url", "output.deadline_s", "store.endpoint")]

    hub = "spec.storage={endpoint: 'https://hub', secretName: keys}"
    store = ["s3://b/runs/a-job", 60, "http://minio.store:9000"]
    assert sent("{url: s3://b/runs/, deadlineSeconds: 60}", STORAGE) == store
    assert sent("{url: hf://owner/adapters/}", hub) == ["hf://owner/adapters/a-job", 600, "https://hub"]


def test_a_claim_for_results_is_mounted_where_the_url_says() -> None:
    specs = pods(make_job("spec.output={url: file:///results/team, claimName: results}"))
    assert {"name": "output", "mountPath": "/results/team"} in specs["trainer"]["containers"][0]["volumeMounts"]
    assert {"name": "output", "persistentVolumeClaim": {"claimName": "results"}} in specs["trainer"]["volumes"]
    assert not any(volume["name"] == "output" for volume in specs["head"]["volumes"])


@pytest.mark.parametrize(
    ("changes", "port"),
    [
        (["spec.output={url: s3://b}", STORAGE], 9000),
        (["spec.output={url: s3://b}"], 443),
        ([HUB], 443),
        ([HUB, "spec.storage={endpoint: 'http://hub.store:8080', secretName: keys}"], 8080),
        (["spec.model.base=s3://b/m", STORAGE], 9000),
        (["spec.data.train=['s3://b/t.jsonl']", STORAGE], 9000),
    ],
)
def test_the_port_of_the_store_is_open_in_the_network_policy(changes: list[str], port: int) -> None:
    policy = by_kind(make_job(*changes, DENY))["NetworkPolicy"]
    assert {"ports": [{"protocol": "TCP", "port": port}]} in policy["spec"]["egress"]


def test_a_folder_that_vanishes_with_the_pod_is_refused() -> None:
    def refusals(*changes: str) -> list[str]:
        return [refusal.text for refusal in plan.find_refusals(make_job(*changes), SETTINGS)]

    (refusal,) = refusals("spec.output={url: file:///results}")
    assert "/results is in the pod, and is deleted with it; name a claim" in refusal
    mounted = "{spec: {containers: [{name: ray, volumeMounts: [{name: v, mountPath: /results}]}], "
    mounted += "volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]}}"
    assert refusals("spec.output={url: file:///results/a}", f"spec.trainer.podTemplate={mounted}") == []
    assert refusals("spec.output={url: file:///results, claimName: c}") == []
    (refusal,) = refusals("spec.output={url: file:///runs, claimName: c}")
    assert "is spec.checkpoint.path" in refusal


def test_results_that_are_sent_are_not_warned_of_as_lost() -> None:
    for changes, warned in (((), True), (("spec.output={url: s3://b}",), False)):
        fields = {warning.at for warning in plan.find_warnings(make_job(*changes))}
        assert (("spec", "checkpoint", "claimName") in fields) is warned


def test_an_admin_decides_which_secrets_hold_keys() -> None:
    strict = SETTINGS.model_copy(update={"pod_policy": PodPolicy.model_validate({"secrets": ["team-*"]})})
    (refusal,) = plan.find_refusals(make_job("spec.output={url: s3://b}", STORAGE), strict)
    assert refusal.at == ("spec", "storage", "secretName")


def test_a_download_has_the_variables_and_mounts_of_the_pods_main_container_and_its_image() -> None:
    ray = {
        "name": "ray",
        "image": "own:2",
        "envFrom": [{"configMapRef": {"name": "proxies"}}],
        "env": [{"name": "AWS_CA_BUNDLE", "value": "/ca/ca.pem"}, {"name": "AWS_ACCESS_KEY_ID", "value": "other"}],
        "volumeMounts": [{"name": "ca", "mountPath": "/ca"}],
    }
    template = json.dumps({"spec": {"containers": [ray], "volumes": [{"name": "ca", "configMap": {"name": "ca"}}]}})
    rollout = (SEPARATE, f"spec.rollout.podTemplate={template}")
    specs = pods(make_job("spec.model.base=s3://b/sd35", STORAGE, *rollout, "spec.checkpoint.claimName=runs"))
    (fetch,) = specs["rollout"]["initContainers"]
    (plain,) = specs["trainer"]["initContainers"]
    assert (fetch["image"], plain["image"], fetch["envFrom"]) == ("own:2", "rollout:1", ray["envFrom"])
    assert [mount["mountPath"] for mount in fetch["volumeMounts"]] == ["/ca", "/var/lib/diffusionrl/models"]
    assert keys({"env": fetch["env"][1:]}) == KEYS, "the keys of the job win"
    assert fetch["env"][0] == ray["env"][0] and "/ca" not in json.dumps(plain)


def test_programs_cannot_change_the_models_that_were_downloaded() -> None:
    specs = pods(make_job("spec.model.base=s3://b/sd35", STORAGE, SEPARATE))
    for pod in (specs["rollout"], specs["trainer"]):
        containers = (*pod["initContainers"], pod["containers"][0])
        mounts = [mount for container in containers for mount in container["volumeMounts"] if mount["name"] == "models"]
        assert [mount.get("readOnly", False) for mount in mounts] == [False, True]


def test_the_port_of_a_mirror_is_open_for_downloads() -> None:
    template = json.dumps({"spec": ray(env=[{"name": "HF_ENDPOINT", "value": "http://mirror.models:8081"}])})
    for base, expected in (("a/b", 8081), ("./model", None)):
        job = make_job(DENY, f"spec.model.base={base}", f"spec.trainer.podTemplate={template}")
        policy = by_kind(job)["NetworkPolicy"]
        ports = {port["port"] for rule in policy["spec"]["egress"] for port in rule.get("ports", ())}
        assert ports == ({53, expected} if expected else {53})
