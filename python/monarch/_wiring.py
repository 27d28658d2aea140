"""Puts the layers of this package together: what the core calls, and what begins and ends with the runtime.

Whatever can start the runtime imports this first: ``monarch.actor`` and the programs of worker processes.
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

from monarch._calls import endpoint, future, pickling, versions
from monarch._errors.exceptions import DeadlineExceeded
from monarch._meshes import actor_mesh, block_end, instance
from monarch._ports.port import Port
from monarch._processes import launch
from monarch._running import unhandled
from monarch._runtime import context, deadline, forks, runtime
from monarch._values.geometry import Extent, Point
from monarch._values.value_mesh import Lazy


class Callbacks(NamedTuple):
    """What the core calls, and makes objects of: bindings/python/state.h says what each is given."""

    dumps: Any
    loads: Any
    unreadable: Any
    future_type: Any
    port_type: Any
    value_mesh: Any
    lazy: Any
    actor_error: Any
    supervision_error: Any
    timed_out: Any
    bind_arguments: Any
    warn_running_loop: Any
    construct: Any
    run_async: Any
    run_swarm: Any
    end_actor: Any
    stop_owned: Any
    undeliverable: Any
    supervise: Any
    supervise_all: Any
    watch_failures: Any
    watch_restarts: Any
    pack_answer: Any
    format_failure: Any
    end_child: Any
    context_var: Any
    deadline_var: Any
    deadline_exceeded: Any
    make_point: Any
    make_extent: Any
    keep: Any
    add_missing: Any
    report_stacks: Any


def _value_mesh(ep: Any, entries: list[Any]) -> Any:
    return ep._gather(entries)


def _late(module: str, name: str) -> Callable[..., Any]:
    """A function that is imported when it is called first: most scripts run no actors, and see no errors."""
    found: Callable[..., Any] | None = None

    def call(*args: Any) -> Any:
        nonlocal found
        if found is None:
            found = getattr(importlib.import_module(f"monarch.{module}"), name)
        return found(*args)

    return call


def _started(processes: bool) -> None:
    if processes:
        launch.start_fork_server()
        # While that starts, so that who waits for a process that dies does not wait for this.
        from monarch._calls import outcomes  # noqa: F401
    unhandled.begin()
    from monarch._meshes import controllers

    controllers.offer()
    from monarch._runtime import log_prefix  # logging

    log_prefix.watch()


def _losses(grace: float | None) -> list[str]:
    from monarch._calls import outcomes

    lines = outcomes.losses(grace)
    unhandled.script_ends()
    return lines


context.provide_client(instance.client)
block_end.provide(unhandled.block_ended)
actor_mesh.provide_remote_endpoint(_late("_meshes.remote_results", "RemoteEndpoint"))
runtime.wire(
    runtime.Wired(
        callbacks=Callbacks(
            dumps=pickling.dumps,
            loads=pickle.loads,
            unreadable=versions.explain,
            future_type=future.Future,
            port_type=Port,
            value_mesh=_value_mesh,
            lazy=lambda raw: Lazy(raw, versions.loads),
            actor_error=_late("_calls.outcomes", "actor_error"),
            supervision_error=_late("_calls.outcomes", "supervision_error"),
            timed_out=_late("_calls.outcomes", "timed_out"),
            bind_arguments=endpoint.bind_arguments,
            warn_running_loop=future.warn_running_loop,
            construct=_late("_running.construct", "construct"),
            run_async=_late("_running.event_loop", "run"),
            run_swarm=_late("_running.event_loop", "run_swarm"),
            end_actor=_late("_running.ends", "end_actor"),
            stop_owned=_late("_meshes.owned", "stop"),
            undeliverable=_late("_running.ends", "undeliverable"),
            supervise=_late("_running.supervision", "supervise"),
            supervise_all=_late("_running.supervision", "supervise_all"),
            watch_failures=unhandled.watch_failures,
            watch_restarts=_late("_running.restarting", "watch_restarts"),
            pack_answer=_late("_calls.packing", "pack_answer"),
            format_failure=_late("_running.ends", "format_failure"),
            end_child=forks.end,
            context_var=context.current,
            deadline_var=deadline.current,
            deadline_exceeded=DeadlineExceeded,
            make_point=Point,
            make_extent=lambda labels, sizes: Extent(list(labels), list(sizes)),
            keep=_late("_meshes.remote_results", "keep"),
            add_missing=_late("_calls.outcomes", "add_missing"),
            report_stacks=_late("_meshes.stacks", "report"),
        ),
        started=_started,
        ended=context.forget_client,
        losses=_losses,
    )
)
