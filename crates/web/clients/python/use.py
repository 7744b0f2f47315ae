#!/usr/bin/env python3
"""Uses the client that openapi-python-client has made from /v1/openapi.json (docs/remote.md).

Usage: use.py URL TOKEN VM
"""
import sys
import time

from xylem_client import AuthenticatedClient
from xylem_client.api.objects import get_objects
from xylem_client.api.requests import post_requests_info, post_requests_list
from xylem_client.api.tasks import get_tasks_id
from xylem_client.api.vms import get_vms, get_vms_vm, get_vms_vm_devices, post_vms_vm_action
from xylem_client.models import (
    Done,
    PostRequestsInfoBody,
    PostRequestsListBody,
    PostVmsVmActionAction,
    PostVmsVmActionBody,
    Problem,
    ReplyDomains,
    ReplyInfo,
    Started,
    Task,
    TaskStatus,
    VmObject,
)


def check(what: str, holds: bool) -> None:
    if not holds:
        sys.exit(f"use.py: not so: {what}")
    print(f"ok: {what}")


def main() -> None:
    url, token, name = sys.argv[1:4]
    client = AuthenticatedClient(base_url=url, token=token)

    vms = get_vms.sync(client=client)
    check("all VMs are listed", isinstance(vms, list) and name in [vm.name for vm in vms])

    def state() -> str:
        vm = get_vms_vm.sync(name, client=client)
        assert isinstance(vm, VmObject), vm
        return str(vm.state)

    def act(action: PostVmsVmActionAction, prefer: str = "") -> Done | Started | Problem | None:
        done = post_vms_vm_action.sync(
            name, action, client=client, body=PostVmsVmActionBody(), prefer=prefer
        )
        return done if isinstance(done, (Done, Started, Problem)) else None

    check("a VM is started", isinstance(act(PostVmsVmActionAction.START), Done))
    check("it runs", state() == "running")
    devices = get_vms_vm_devices.sync(name, client=client)
    check("its devices are listed", isinstance(devices, list) and len(devices) > 0)
    listed = post_requests_list.sync(client=client, body=PostRequestsListBody())
    assert isinstance(listed, Done) and isinstance(listed.ok, ReplyDomains), listed
    check("it is in xy's list", name in [row.name for row in listed.ok.domains])
    info = post_requests_info.sync(client=client, body=PostRequestsInfoBody())
    assert isinstance(info, Done) and isinstance(info.ok, ReplyInfo), info
    check("the host is told of", "total_memory" in [row[0] for row in info.ok.info])
    refused = act(PostVmsVmActionAction.START)
    check("what makes no sense is refused", isinstance(refused, Problem) and refused.status == 409)
    nobody = get_vms_vm.sync("nobody", client=client)
    check("there is no other", isinstance(nobody, Problem) and nobody.status == 404)

    started = act(PostVmsVmActionAction.DESTROY, "respond-async")
    assert isinstance(started, Started), started
    task: Task | Problem | None = None
    for _ in range(100):
        task = get_tasks_id.sync(started.task.rsplit("/", 1)[-1], client=client)
        assert isinstance(task, Task), task
        if task.status is not TaskStatus.PENDING:
            break
        time.sleep(0.1)
    check("a task ends it", isinstance(task, Task) and task.status is TaskStatus.SUCCESS)
    changes = get_objects.sync(client=client, class_="vm")
    assert changes is not None and not isinstance(changes, Problem), changes
    check("changes are told", changes.is_last and len(changes.changes) > 0)


main()
