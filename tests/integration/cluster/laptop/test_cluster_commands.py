"""The cluster's commands where no operator runs: what they write, and every way to be refused."""

import json
import socket
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from commands import LASTMILE, User, manifest
from facts import assert_told

from tools.cluster.box import Box

NOW = "2026-01-01T00:00:00Z"


@pytest.fixture
def user(box: Box, namespace: str) -> User:
    return User(box=box, namespace=namespace)


def kubeconfig(folder: Path, server: str, ca: str = "", **credentials: str) -> Path:
    """A kubeconfig with one context, `only`."""
    cluster = {"server": server} | ({"certificate-authority-data": ca} if ca else {})
    file = folder / "kubeconfig"
    document = {
        "current-context": "only",
        "contexts": [{"name": "only", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": credentials}],
    }
    file.write_text(json.dumps(document))
    return file


def test_submit_creates_changes_and_leaves_alone(user: User) -> None:
    def submit(*options: str) -> str:
        return user.reads("submit", "-f", "-", *options, stdin=manifest())

    place = f"{user.namespace}/clicks"
    assert submit() == f"{place} created\n"
    assert submit() == f"{place} unchanged\n"
    assert submit("--set", "backoffLimit=7") == f"{place} configured\n"
    assert user.experiment()["spec"]["backoffLimit"] == 7


def test_a_bad_manifest_is_refused_before_anything_is_sent(user: User) -> None:
    both = f"{manifest('good')}\n---\n{manifest('bad', backoffLimit=-1)}"
    error = user.fails("submit", "-f", "-", stdin=both, code=2)
    assert_told(error, "… spec.backoffLimit: … 0 … -1")
    assert "good" not in user.reads("get")


def test_a_local_folder_of_code_goes_to_the_store(user: User, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "loop.py").write_text("def loop(context): ...")
    (tmp_path / "clicks.yaml").write_text(manifest(code={"workingDir": "./mine"}))
    submit = ("submit", "-f", str(tmp_path / "clicks.yaml"))
    assert "spec.code.workingDir: " in user.fails(*submit, code=2)

    user.reads(*submit, "--storage-root", str(tmp_path / "store"))
    sent = json.loads(user.reads("get", "clicks", "-o", "json"))["spec"]["code"]["workingDir"]
    assert sent.startswith(f"file://{tmp_path}/store/code/")
    assert zipfile.is_zipfile(sent.removeprefix("file://"))


def test_a_folder_of_code_that_is_not_there_is_refused(user: User) -> None:
    text = manifest(code={"workingDir": "./nowhere"})
    error = user.fails("submit", "-f", "-", "--storage-root", "x", stdin=text, code=2)
    assert "spec.code.workingDir: " in error


def test_fields_of_others_are_taken_over_only_if_asked(user: User) -> None:
    given = json.loads(manifest(backoffLimit=1)) | {}
    user.kubectl("create", "-f", "-", stdin=json.dumps(given))

    error = user.fails("submit", "-f", "-", stdin=manifest(backoffLimit=2))
    assert ".spec.backoffLimit" in error
    assert "--force-conflicts" in error
    user.reads("submit", "-f", "-", "--force-conflicts", stdin=manifest(backoffLimit=2))
    assert user.experiment()["spec"]["backoffLimit"] == 2


def test_what_stop_and_resume_set_a_manifest_may_set_too(user: User) -> None:
    user.reads("submit", "-f", "-", stdin=manifest())
    assert user.reads("stop", "clicks").startswith("clicks ")
    assert user.experiment()["spec"]["suspend"] is True
    user.reads("resume", "clicks")
    assert user.experiment()["spec"]["suspend"] is False
    assert "clicks" in user.reads("resume", "clicks")  # once more changes nothing
    assert user.experiment()["spec"]["suspend"] is False

    user.reads("submit", "-f", "-", stdin=manifest(suspend=True))
    assert user.experiment()["spec"]["suspend"] is True


def test_the_namespace_comes_from_the_option_and_the_manifest_may_not_differ(user: User) -> None:
    document = json.loads(manifest())
    document["metadata"]["namespace"] = "elsewhere"
    error = user.fails("submit", "-f", "-", stdin=json.dumps(document))
    assert_told(error, f"… --namespace … {user.namespace} … elsewhere")


@pytest.mark.parametrize(("end", "code"), [("Complete", 0), ("Failed", 1)])
def test_submit_follows_an_experiment_to_its_end(user: User, end: str, code: int) -> None:
    command = [LASTMILE, "submit", "-n", user.namespace, "--watch", "-f", "-"]
    with subprocess.Popen(
        command,
        env=user.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(manifest())
        process.stdin.close()
        user.kubectl("wait", "--for=create", "dsexp/clicks", "--timeout=60s")
        for kind, status in ((end, "False"), (end, "True")):
            condition = {
                "type": kind,
                "status": status,
                "reason": "Because",
                "message": "so it is",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
            said = {"observedGeneration": 1, "phase": end, "conditions": [condition]}
            patch_status(user, said)

        assert process.stdout is not None
        assert process.stdout.read() == f"{user.namespace}/clicks created\n{end}: so it is\n"
        assert process.wait() == code


def test_a_name_that_is_not_there_is_told_with_the_one_that_was_meant(user: User) -> None:
    user.reads("submit", "-f", "-", stdin=manifest())
    for command in ("describe", "stop"):
        assert "clicks" in user.fails(command, "click")


def test_what_get_prints_can_be_submitted_again(user: User) -> None:
    user.reads("submit", "-f", "-", stdin=manifest())
    text = user.reads("get", "clicks", "-o", "yaml")
    assert "managedFields" not in text
    assert user.reads("submit", "-f", "-", stdin=text).endswith("unchanged\n")


def test_without_a_cluster_the_address_is_told(user: User, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody_port = taken.getsockname()[1]
        nobody = kubeconfig(tmp_path, f"http://127.0.0.1:{nobody_port}")
    lost = User(box=user.box, namespace=user.namespace, kubeconfig=nobody)
    assert_told(lost.fails("get"), f"error: … API server … GET … {nobody_port}")
    assert "other" in lost.fails("get", "--context", "other")


def test_a_missing_right_is_told_in_the_api_servers_words(user: User, tmp_path: Path) -> None:
    config = json.loads(user.kubectl("config", "view", "--raw", "--flatten", "-o", "json"))
    cluster = config["clusters"][0]["cluster"]
    token = user.kubectl("create", "token", "default").strip()
    file = kubeconfig(
        tmp_path, cluster["server"], cluster["certificate-authority-data"], token=token
    )
    stranger = User(box=user.box, namespace=user.namespace, kubeconfig=file)
    error = stranger.fails("get")
    assert f'User "system:serviceaccount:{user.namespace}:default" cannot list resource' in error


def test_what_a_cluster_left_is_read_from_the_store(user: User, tmp_path: Path) -> None:
    user.reads("submit", "-f", "-", stdin=manifest())
    store = tmp_path / "experiments" / "clicks"
    patch_status(user, {"run": 2, "attempt": 2, "artifactsUri": f"file://{store}/"})
    error = user.fails("logs", "clicks", code=3)
    assert_told(error, f"… attempt 2 … clicks … file://{store}/")

    document = user.experiment()
    uid = document["metadata"]["uid"]
    folder = store / "history" / f"{uid[:8]}-2"
    event = {"reason": "Evicted", "type": "Warning", "message": "a node went", "lastTimestamp": NOW}
    event["metadata"] = {"uid": "e1", "resourceVersion": "7", "creationTimestamp": NOW}
    pod = {"metadata": {"name": "clicks-head", "uid": "p1", "creationTimestamp": NOW}}
    left: dict[str, Any] = {"events": [event], "pods": [pod], "experiment": document}
    folder.mkdir(parents=True)
    for name, content in left.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    logs = folder / "logs" / "clicks-head" / "session_1"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("raylet: out of memory\n")
    (logs / f"job-driver-clicks-{uid}-2.log").write_text("step 7\n")

    assert user.reads("logs", "clicks") == "step 7\n"
    assert "session_1/raylet.out" in user.reads("logs", "clicks", "--pods")
    one = ("logs", "clicks", "--pod", "clicks-head")
    assert "==> session_1/raylet.out <==\nraylet: out of memory\n" in user.reads(*one)
    assert user.reads(*one, "--file", "raylet.out") == "raylet: out of memory\n"
    assert "clicks-head" in user.fails("logs", "clicks", "--pod", "other")
    assert str(tmp_path) in user.fails("describe", "clicks", "--from", str(tmp_path), code=3)

    patch_status(user, {"history": {"state": "Kept"}})
    assert "a node went" in user.reads("describe", "clicks")
    (folder / "events.json").unlink()
    (folder / "events.json").mkdir()
    (folder / "pods.json").write_text("{")
    assert "a node went" not in user.reads("describe", "clicks")

    (folder / "pods.json").unlink()
    user.kubectl("delete", "dsexp", "clicks")
    assert "clicks" in user.fails("describe", "clicks")
    assert f"{user.namespace}/clicks" in user.reads("describe", "clicks", "--from", str(store))
    assert user.reads("logs", "clicks", "--from", str(store), "--run", "2") == "step 7\n"


def patch_status(user: User, status: dict[str, Any]) -> None:
    patch = json.dumps({"status": status})
    how = ("--subresource=status", "--type=merge", "-p", patch)
    user.kubectl("patch", "dsexp", "clicks", *how)
