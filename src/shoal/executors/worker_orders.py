"""Orders for sessions on nodes: a worker as bytes, with the secrets that this session may have, and no others."""

import json
from collections.abc import Iterator

from shoal.adapters.client import this_host
from shoal.adapters.registry import adapter_of
from shoal.errors import Unavailable
from shoal.model.agent import SCRIPTED, AgentSpec
from shoal.model.policy import NETWORKS
from shoal.model.resolved_task import ResolvedTask
from shoal.model.worker_order import WorkerOrder
from shoal.sessions.context import RunContext
from shoal.sessions.credentials import client_variables
from shoal.sessions.policy import network_of
from shoal.sessions.worker import WorkerSpec
from shoal.store.plans import Unrecordable, encode_model


def encode_order(context: RunContext, worker: WorkerSpec) -> bytes:
    """Encode *worker*; raise `Unavailable` for one that can run only in this process."""
    assert_can_travel(worker)
    order = WorkerOrder(
        step=worker.step,
        index=worker.index,
        count=worker.count,
        task=worker.task,
        hex=worker.hex,
        label=worker.label,
        base=context.base.commit,
        trusted=context.trusted_base.commit,
        purpose=worker.purpose,
        attempt=worker.attempt,
        visit=worker.visit,
        start_note=worker.start_note,
        content=worker.content,
        spent_before=worker.spent_before,
        database=worker.database,
        trusts_base=worker.trusts_base,
        item=worker.item,
        artifacts=worker.artifacts,
        contracts=worker.contracts,
        trial=worker.trial,
        reviewers=worker.reviewers,
        sandbox=None if worker.sandbox is None else worker.sandbox.name,
        isolation=None if worker.kind is None else worker.kind.name,
        stands_for=worker.origin,
    )
    try:
        text = encode_model(order)
    except Unrecordable as error:
        raise _cannot_travel(worker, str(error)) from None
    secrets = {name: value for values in _secrets(context, worker) for name, value in values.items()}
    return json.dumps({"order": text, "secrets": secrets}).encode()


def assert_can_travel(worker: WorkerSpec) -> None:
    """Refuse a worker that only this process can run."""
    if worker.function is not None:
        raise _cannot_travel(worker, "its function runs in a thread of this program")
    if worker.task.talk is not None or worker.task.agent.talk is not None:
        raise _cannot_travel(worker, "it talks with other agents, which happens in this process")
    if worker.is_in_process:
        if worker.task.agent.made is not None or _asks_a_model(worker.task.agent):
            raise _cannot_travel(worker, "its agent asks its model from this process, which has the key")
    elif type(worker.adapter) is not type(adapter_of(worker.task.agent, this_host())):
        raise _cannot_travel(worker, "its adapter exists only in this program")


def _asks_a_model(agent: AgentSpec) -> bool:
    return agent.mind is None or agent.mind.model != SCRIPTED


def _cannot_travel(worker: WorkerSpec, why: str) -> Unavailable:
    return Unavailable(f"a node for {worker.step}", why, "use a client or a command, or leave `--on` out")


def _secrets(context: RunContext, worker: WorkerSpec) -> Iterator[dict[str, str]]:
    """Return values by the names of the variables that they come from, as far as this session may have them."""
    for task in (worker.task, *worker.reviewers.values()):
        yield from _name_secrets(task)
        yield from _name_secrets(task.agent)
        adapter = adapter_of(task.agent, this_host())
        given = client_variables(task, adapter, context.environ)
        has_gateway = NETWORKS[network_of(task, adapter)].has_listener
        keys = adapter.client.keys if adapter.client is not None and has_gateway else ()
        yield {name: value for name, value in given.items() if name not in keys}


def _name_secrets(source: ResolvedTask | AgentSpec) -> Iterator[dict[str, str]]:
    yield {source.secret_sources.get(name, name): source.env[name] for name in source.secrets}
