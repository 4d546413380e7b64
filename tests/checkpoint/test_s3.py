"""A real S3 protocol: a server on the loopback device; two ranks save, retain, resume, and die during an upload."""

from __future__ import annotations

import logging
import os
from typing import Any

import boto3
import pytest
import torch.distributed as dist
from moto.server import ThreadedMotoServer

from tests.distributed.checkpoint_toy import Layout, Run
from tests.distributed.ranks import RankError, run_ranks
from titan.checkpoint import commit_remote
from titan.checkpoint.folders import complete_steps
from titan.checkpoint.storage import at
from titan.checkpoint.verify import verify
from titan.cli import main
from titan.config.layout import Degrees

BUCKET = "titan-runs"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def server() -> Any:
    """The environment that leads to the server."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    one = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    one.start()
    host, port = one.get_host_and_port()
    values = {**KEYS, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}
    with pytest.MonkeyPatch.context() as patch:
        for key, value in values.items():
            patch.setenv(key, value)
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield values
    one.stop()


@pytest.fixture
def uri(server: dict[str, str], request: pytest.FixtureRequest) -> str:
    return f"s3://{BUCKET}/{request.node.name}/checkpoint"


def save_three(server: dict[str, str], uri: str, mode: str) -> None:
    os.environ.update(server)
    run = Run(Layout(Degrees(dp_shard=2)), uri, filled=True, keep_latest_k=2, async_mode=mode)
    for step in (8, 9, 10):
        run.manager.save(step, {"step": step})
    run.manager.close()


def resume(server: dict[str, str], uri: str) -> tuple[int, list[str]]:
    os.environ.update(server)
    run = Run(Layout(Degrees(tp=2)), uri, filled=False, verify_on_load=True)
    state = run.manager.load()
    wrong = run.wrong()
    run.manager.close()
    return (state or {}).get("step", 0), wrong


@pytest.mark.parametrize("mode", ["disabled", "async"])
def test_two_ranks_save_retain_and_resume_at_another_layout(server, uri, mode, capsys):
    run_ranks(save_three, 2, server, uri, mode)
    assert complete_steps(uri) == [9, 10]
    assert at(uri).listing().folders == {"step-9", "step-10"}
    assert run_ranks(resume, 2, server, uri) == [(10, [])] * 2
    assert main(["checkpoint", "list", uri]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert main(["checkpoint", "verify", uri]) == 0
    assert "step-10: whole, 4 files" in capsys.readouterr().out
    with at(f"{uri}/step-10").create("__1_0.distcp") as file:
        file.write(b"short")
    assert main(["checkpoint", "verify", uri]) == 1
    assert "__1_0.distcp has 5 bytes, the manifest says" in capsys.readouterr().out
    assert run_ranks(resume, 2, server, uri) == [(9, [])] * 2


def die_before_the_manifest(server: dict[str, str], uri: str) -> None:
    os.environ.update(server)
    run = Run(Layout(Degrees(dp_shard=2)), uri, filled=True, keep_latest_k=1)
    run.manager.save(1, {})
    if dist.get_rank() == 0:
        commit_remote.RemoteCommit.publish = lambda *_: os._exit(9)  # type: ignore[method-assign]
    run.manager.save(2, {})


def resume_and_save(server: dict[str, str], uri: str) -> tuple[int, list[str]]:
    os.environ.update(server)
    run = Run(Layout(Degrees(dp_shard=2)), uri, filled=False, keep_latest_k=1)
    state = run.manager.load()
    wrong = run.wrong()
    run.manager.save(2, {})
    run.manager.close()
    return (state or {}).get("step", 0), wrong


def test_a_job_killed_before_the_manifest_leaves_the_last_one_and_the_step_can_be_saved_again(server, uri):
    with pytest.raises(RankError):
        run_ranks(die_before_the_manifest, 2, server, uri)
    assert complete_steps(uri) == [1]
    assert {"__0_0.distcp", "__1_0.distcp", ".metadata", "state.json"} <= set(at(f"{uri}/step-2").listing().files)
    assert run_ranks(resume_and_save, 2, server, uri) == [(1, [])] * 2
    assert at(uri).listing().folders == {"step-2"}
    assert verify(at(f"{uri}/step-2")).problems == []


def save_into_no_bucket(server: dict[str, str], uri: str) -> str:
    os.environ.update(server)
    run = Run(Layout(Degrees(dp_shard=2)), uri, filled=True)
    try:
        run.manager.save(1, {})
    except Exception as error:
        return f"{type(error).__name__} {error}"
    finally:
        run.manager.close()
    return "no error"


def test_a_bucket_that_is_not_there_is_not_made_but_named_on_all_ranks(server):
    uri = "s3://no-such-bucket/run"
    first, second = run_ranks(save_into_no_bucket, 2, server, uri)
    assert first == second
    assert first.startswith("CheckpointError")
    assert uri in first
    assert "bucket does not exist" in first
