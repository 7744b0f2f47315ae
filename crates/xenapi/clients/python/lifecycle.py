#!/usr/bin/env python3
"""The whole life of a VM by the client of PyPI, XenAPI, over XML-RPC.

Usage: lifecycle.py URL USER PASSWORD VM

VM is the name of a defined VM that is down, whose guest has PV drivers (prepare.py defines one); it is down again at the
end. USER is an admin. There is an SR that takes snapshots, and nobody else changes the host meanwhile. Ends at the first
expectation that does not hold.
"""
import sys
import time
import xmlrpc.client

import XenAPI

URL, USER, PASSWORD, VM = sys.argv[1:5]
CLASSES = """VM VM_metrics VM_guest_metrics VBD VBD_metrics VIF VIF_metrics console VTPM VGPU VGPU_type crashdump
    pool host host_metrics host_cpu host_crashdump host_patch pool_patch pool_update Certificate PCI PGPU GPU_group
    SR PBD SM VDI network PIF PIF_metrics VLAN Bond task message role subject blob""".split()


def short(it):
    text = repr(it)
    return text if len(text) <= 400 else text[:400] + "..."


def expect(what, expected, found):
    if expected != found:
        sys.exit(f"lifecycle: {what}: expected {short(expected)}, found {short(found)}")
    print(f"ok: {what}")


def fails(what, code, call, *args):
    try:
        found = call(*args)
    except XenAPI.Failure as failure:
        expect(what, code, failure.details[0])
        return failure.details
    sys.exit(f"lifecycle: {what}: expected {code}, found {short(found)}")


def raw(method, *args):
    """Without what the library does for its user."""
    return getattr(xmlrpc.client.ServerProxy(URL), method)(*args)


def sessions():
    expect("an unknown session", "SESSION_INVALID", raw("VM.get_all", "OpaqueRef:no")["ErrorDescription"][0])
    answer = raw("session.login_with_password", USER, "wrong " + PASSWORD)
    expect("a wrong password", "SESSION_AUTHENTICATION_FAILED", answer["ErrorDescription"][0])
    methods = raw("system.listMethods")
    expect("methods are a bare list", True, isinstance(methods, list) and "VM.start" in methods)
    session = XenAPI.Session(URL)
    session.xenapi.login_with_password(USER, PASSWORD, "2.21", "lifecycle.py")
    expect("the version of the interface", "2.21", session.API_version)
    return session


def reading(x):
    for name in CLASSES:
        records = getattr(x, name).get_all_records()
        references = getattr(x, name).get_all()
        expect(f"{name}: records and references", set(references), set(records))
        for reference, record in list(records.items())[:3]:
            expect(f"{name}: a record alone", record, getattr(x, name).get_record(reference))
            found = getattr(x, name).get_by_uuid(record["uuid"])
            expect(f"{name}: by its UUID", reference, found)
    fails("an unknown method", "MESSAGE_METHOD_UNKNOWN", x.VM.fly, "OpaqueRef:NULL")
    fails("an unknown class", "MESSAGE_METHOD_UNKNOWN", x.Rocket.get_all)
    fails("an unknown handle", "HANDLE_INVALID", x.VM.get_record, "OpaqueRef:NULL")
    fails("an unknown UUID", "UUID_INVALID", x.VM.get_by_uuid, "0")
    fails("too many parameters", "MESSAGE_PARAMETER_COUNT_MISMATCH", x.VM.get_all, "x")
    host = x.host.get_all()[0]
    expect("the brand", "Xylem", x.host.get_software_version(host)["product_brand"])
    fails("a plugin", "XENAPI_MISSING_PLUGIN", x.host.call_plugin, host, "updater.py", "check", {})
    expect("the host's time", True, str(x.host.get_servertime(host)).endswith("Z"))
    controls = x.VM.get_all_records_where('field "is_control_domain" = "true"')
    expect("domain 0", 1, len(controls))
    domain_0 = list(controls)[0]
    fails("domain 0 stays on", "OPERATION_NOT_ALLOWED", x.VM.hard_shutdown, domain_0)


def labels(x, vm):
    x.VM.set_other_config(vm, {})
    x.VM.add_to_other_config(vm, "colour", "<green> & blue")
    fails("a key that is there", "MAP_DUPLICATE_KEY", x.VM.add_to_other_config, vm, "colour", "red")
    expect("a label", {"colour": "<green> & blue"}, x.VM.get_other_config(vm))
    x.VM.remove_from_other_config(vm, "colour")
    x.VM.remove_from_other_config(vm, "colour")
    expect("no label", {}, x.VM.get_other_config(vm))
    x.VM.add_tags(vm, "a")
    x.VM.add_tags(vm, "b")
    x.VM.remove_tags(vm, "a")
    expect("tags", ["b"], x.VM.get_tags(vm))
    x.VM.set_blocked_operations(vm, {"start": "held"})
    fails("a blocked operation", "OPERATION_BLOCKED", x.VM.start, vm, False, False)
    x.VM.set_blocked_operations(vm, {})
    fails("a field that is no label", "NOT_IMPLEMENTED", x.VM.set_PV_args, vm, "quiet")
    x.VM.set_name_label(vm, VM + "-renamed")
    expect("by another name", [vm], x.VM.get_by_name_label(VM + "-renamed"))
    x.VM.set_name_label(vm, VM)
    expect("by its name", [vm], x.VM.get_by_name_label(VM))


def paper(x, vm):
    """What a VM that is down is made of."""
    mib = 1 << 20
    x.VM.set_memory_limits(vm, "0", str(64 * mib), str(48 * mib), str(48 * mib))
    expect("other memory", (str(64 * mib), str(48 * mib)),
           (x.VM.get_memory_static_max(vm), x.VM.get_memory_dynamic_max(vm)))
    x.VM.set_VCPUs_max(vm, "4")
    x.VM.set_VCPUs_at_startup(vm, "2")
    expect("other vCPUs", ("4", "2"), (x.VM.get_VCPUs_max(vm), x.VM.get_VCPUs_at_startup(vm)))
    fails("more vCPUs than its maximum", "MEMORY_CONSTRAINT_VIOLATION", x.VM.set_VCPUs_at_startup, vm, "5")
    sr, network = x.SR.get_all()[0], x.network.get_all()[0]
    vdi = x.VDI.create({"SR": sr, "virtual_size": str(8 * mib), "name_label": "paper", "type": "user",
                        "sharable": False, "read_only": False, "other_config": {}})
    vbd = x.VBD.create({"VM": vm, "VDI": vdi, "userdevice": "autodetect", "bootable": False, "mode": "RW",
                        "type": "Disk", "empty": False, "other_config": {"k": "v"}, "qos_algorithm_type": "",
                        "qos_algorithm_params": {}})
    expect("a disk in its definition", ("0", vdi), (x.VBD.get_userdevice(vbd), x.VBD.get_VDI(vbd)))
    expect("its label", {"k": "v"}, x.VBD.get_other_config(vbd))
    vifs = x.VM.get_VIFs(vm)
    vif = x.VIF.create({"VM": vm, "network": network, "device": "3", "MAC": "00:16:3e:01:02:03", "MTU": "1500",
                        "other_config": {}, "qos_algorithm_type": "", "qos_algorithm_params": {}})
    expect("an interface in its definition", set(vifs + [vif]), set(x.VM.get_VIFs(vm)))
    x.VM.start(vm, False, False)
    expect("both are there when it runs", (True, True),
           (x.VBD.get_currently_attached(vbd), x.VIF.get_currently_attached(vif)))
    fails("no other sizes while it runs", "VM_BAD_POWER_STATE", x.VM.set_VCPUs_max, vm, "3")
    x.VM.hard_shutdown(vm)
    x.VBD.destroy(vbd)
    x.VIF.destroy(vif)
    expect("both are gone", ([], vifs), (x.VM.get_VBDs(vm), x.VM.get_VIFs(vm)))
    x.VDI.destroy(vdi)


def copies(x, vm):
    """A VM from a template, which has a disk."""
    vdi = x.VDI.create({"SR": x.SR.get_all()[0], "virtual_size": str(8 << 20), "name_label": "template", "type": "user",
                        "sharable": False, "read_only": False, "other_config": {}})
    vbd = x.VBD.create({"VM": vm, "VDI": vdi, "userdevice": "0", "bootable": True, "mode": "RW", "type": "Disk",
                        "empty": False, "other_config": {}, "qos_algorithm_type": "", "qos_algorithm_params": {}})
    x.VM.set_is_a_template(vm, True)
    fails("a template is not started", "VM_IS_TEMPLATE", x.VM.start, vm, False, False)
    copy = x.VM.clone(vm, "a copy")
    expect("it is a template, too", True, x.VM.get_is_a_template(copy))
    x.VM.provision(copy)
    expect("it is a VM", False, x.VM.get_is_a_template(copy))
    expect("its name", "a-copy", x.VM.get_name_label(copy))
    mine = x.VBD.get_VDI(x.VM.get_VBDs(copy)[0])
    expect("it has a disk of its own", (True, str(8 << 20)), (mine != vdi, x.VDI.get_virtual_size(mine)))
    x.VM.start(copy, False, False)
    expect("it runs", "Running", x.VM.get_power_state(copy))
    address = lambda: x.VIF.get_MAC(x.VM.get_VIFs(copy)[0])
    # The façade asks for addresses of the host's choice when an interface is there.
    for _ in range(50):
        if address():
            break
        time.sleep(0.1)
    expect("it has an address", 17, len(address()))
    fails("a VM that runs stays", "VM_BAD_POWER_STATE", x.VM.destroy, copy)
    x.VM.hard_shutdown(copy)
    x.VM.destroy(copy)
    fails("it is gone", "HANDLE_INVALID", x.VM.get_record, copy)
    x.VDI.destroy(mine)
    x.VM.set_is_a_template(vm, False)
    x.VBD.destroy(vbd)
    x.VDI.destroy(vdi)


def power(x, vm):
    state = lambda: x.VM.get_power_state(vm)
    expect("it is down", "Halted", state())
    fails("a VM that is down is not paused", "VM_BAD_POWER_STATE", x.VM.pause, vm)
    x.VM.assert_can_boot_here(vm, x.host.get_all()[0])
    x.VM.start(vm, True, False)
    expect("it is started paused", "Paused", state())
    x.VM.unpause(vm)
    expect("it runs", "Running", state())
    expect("it is on the host", x.host.get_all()[0], x.VM.get_resident_on(vm))
    details = fails("a VM that runs is not started", "VM_BAD_POWER_STATE", x.VM.start, vm, False, False)
    expect("states in the failure", [vm, "halted", "running"], details[1:])
    x.VM.pause(vm)
    expect("it is paused", "Paused", state())
    x.VM.unpause(vm)
    time.sleep(1)
    before = x.VM.get_domid(vm)
    x.VM.clean_reboot(vm)
    expect("it is another domain", True, before != x.VM.get_domid(vm))
    expect("it runs after a reboot", "Running", state())
    time.sleep(1)
    x.VM.suspend(vm)
    expect("it is suspended", "Suspended", state())
    x.VM.resume(vm, False, False)
    expect("it goes on", "Running", state())
    before = x.VM.get_domid(vm)
    x.VM.hard_reboot(vm)
    expect("it runs after a hard reboot", "Running", state())
    expect("it is another domain again", True, before != x.VM.get_domid(vm))
    time.sleep(1)
    x.VM.set_VCPUs_number_live(vm, "3")
    fails("more memory than its file says", "MEMORY_CONSTRAINT_VIOLATION",
          x.VM.set_memory_dynamic_range, vm, "1", str(1 << 40))
    fails("no other host", "OPERATION_NOT_ALLOWED", x.VM.pool_migrate, vm, x.host.get_all()[0], {})
    fails("what Xylem has not", "NOT_IMPLEMENTED", x.VM.snapshot_with_quiesce, vm, "x")


def disks(x, vm):
    sr = x.SR.get_all()[0]
    x.SR.scan(sr)
    vdi = x.VDI.create({"SR": sr, "virtual_size": str(8 << 20), "name_label": "a disk, of tests", "type": "user",
                        "sharable": False, "read_only": False, "other_config": {"by": "lifecycle"}})
    expect("a disk's name", "a disk, of tests", x.VDI.get_name_label(vdi))
    expect("a disk's size", str(8 << 20), x.VDI.get_virtual_size(vdi))
    x.VDI.resize(vdi, str(16 << 20))
    expect("a larger disk", str(16 << 20), x.VDI.get_virtual_size(vdi))
    places = x.VM.get_allowed_VBD_devices(vm)
    vbd = x.VBD.create({"VM": vm, "VDI": vdi, "userdevice": places[0], "bootable": False, "mode": "RW",
                        "type": "Disk", "empty": False, "other_config": {}, "qos_algorithm_type": "",
                        "qos_algorithm_params": {}})
    expect("it is not plugged", False, x.VBD.get_currently_attached(vbd))
    expect("it is the VM's", True, vbd in x.VM.get_VBDs(vm))
    expect("its place is taken", False, places[0] in x.VM.get_allowed_VBD_devices(vm))
    x.VBD.plug(vbd)
    expect("it is plugged", True, x.VBD.get_currently_attached(vbd))
    expect("it has a disk", vdi, x.VBD.get_VDI(vbd))
    expect("its disk knows it", [vbd], x.VDI.get_VBDs(vdi))
    fails("it is plugged once", "DEVICE_ALREADY_ATTACHED", x.VBD.plug, vbd)
    fails("it is part of the VM", "OPERATION_NOT_ALLOWED", x.VBD.destroy, vbd)
    fails("a disk in use stays", "VDI_IN_USE", x.VDI.destroy, vdi)
    x.VBD.unplug(vbd)
    expect("it is unplugged", False, x.VBD.get_currently_attached(vbd))
    fails("it is unplugged once", "DEVICE_ALREADY_DETACHED", x.VBD.unplug, vbd)
    x.VBD.plug(vbd)
    x.VBD.unplug(vbd)
    x.VBD.destroy(vbd)
    fails("it is gone", "HANDLE_INVALID", x.VBD.get_record, vbd)
    snapshot = x.VDI.snapshot(vdi)
    expect("a snapshot", vdi, x.VDI.get_snapshot_of(snapshot))
    clone = x.VDI.clone(snapshot)
    for it in clone, snapshot, vdi:
        x.VDI.destroy(it)
        fails("a disk that is gone", "HANDLE_INVALID", x.VDI.get_record, it)


def interfaces(x, vm):
    network = x.network.get_all()[0]
    device = x.VM.get_allowed_VIF_devices(vm)[0]
    vif = x.VIF.create({"VM": vm, "network": network, "device": device, "MAC": "", "MTU": "1500",
                        "other_config": {}, "qos_algorithm_type": "", "qos_algorithm_params": {}})
    expect("an interface has an address", True, x.VIF.get_MAC(vif).startswith("00:16:3e:"))
    x.VIF.plug(vif)
    expect("it is plugged", True, x.VIF.get_currently_attached(vif))
    expect("it is on its network", True, vif in x.network.get_VIFs(network))
    x.VIF.unplug(vif)
    expect("it is unplugged", False, x.VIF.get_currently_attached(vif))
    x.VIF.destroy(vif)
    fails("it is gone", "HANDLE_INVALID", x.VIF.get_record, vif)


def checkpoints(x, vm):
    snapshot = x.VM.checkpoint(vm, "before the test")
    expect("a checkpoint", True, x.VM.get_is_a_snapshot(snapshot))
    expect("it is of the VM", vm, x.VM.get_snapshot_of(snapshot))
    expect("the VM knows it", [snapshot], x.VM.get_snapshots(vm))
    fails("it is not started", "VM_IS_SNAPSHOT", x.VM.start, snapshot, False, False)
    before = x.VM.get_domid(vm)
    x.VM.revert(snapshot)
    expect("it is another domain", True, before != x.VM.get_domid(vm))
    x.VM.destroy(snapshot)
    fails("it is gone", "HANDLE_INVALID", x.VM.get_record, snapshot)


def ended(x, task):
    for _ in range(300):
        record = x.task.get_record(task)
        if record["status"] != "pending":
            return record
        time.sleep(0.1)
    sys.exit("lifecycle: a task does not end")


def tasks(x, vm):
    task = x.Async.VM.pause(vm)
    expect("a task's end", "success", ended(x, task)["status"])
    x.task.destroy(task)
    fails("it is gone", "HANDLE_INVALID", x.task.get_record, task)
    fails("what is wrong at once is told at once", "VM_BAD_POWER_STATE", x.Async.VM.pause, vm)
    x.VM.unpause(vm)
    task = x.task.create("mine", "of a client")
    x.task.set_progress(task, 0.5)
    expect("progress", 0.5, x.task.get_progress(task))
    x.task.add_to_other_config(task, "k", "v")
    x.task.cancel(task)
    expect("it is cancelled", "cancelled", x.task.get_status(task))
    x.task.destroy(task)


def events(x, vm):
    known = x.event_from(["*"], "", 0.0)
    counts = known["valid_ref_counts"]
    adds = [it for it in known["events"] if it["class"] == "vm"]
    expect("all VMs are told first", counts["vm"], len(adds))
    expect("they are new", {"add"}, {it["operation"] for it in adds})
    began = time.time()
    nothing = x.event_from(["console"], known["token"], 1.0)
    expect("nothing new", [], nothing["events"])
    expect("it waits for that", True, time.time() - began > 0.8)
    x.VM.pause(vm)
    x.VM.unpause(vm)
    news = x.event_from(["vm"], known["token"], 10.0)
    mine = [it for it in news["events"] if it["ref"] == vm]
    expect("one event for all changes", 1, len(mine))
    expect("it says what is now", ("mod", "Running"), (mine[0]["operation"], mine[0]["snapshot"]["power_state"]))
    expect("tokens grow", True, news["token"] > known["token"])
    pool = x.pool.get_all()[0]
    token = x.event.inject("pool", pool)
    news = x.event_from(["pool"], token, 10.0)
    expect("an injected event", [pool], [it["ref"] for it in news["events"]])
    one = x.event_from(["vm/" + vm], "", 0.0)
    expect("one object", [vm], [it["ref"] for it in one["events"]])
    fails("no token", "EVENT_FROM_TOKEN_PARSE_FAILURE", x.event_from, ["vm"], "x", 0.0)
    fails("an old token", "EVENTS_LOST", x.event_from, ["vm"], "%020d,%020d" % (1, 1), 0.0)


class Methods:
    """`from` is a word of Python."""

    def __init__(self, session):
        self.session = session

    def __getattr__(self, name):
        return getattr(self.session.xenapi, name)

    def event_from(self, *args):
        return self.session.xenapi_request("event.from", args)


def main():
    session = sessions()
    x = Methods(session)
    vm = x.VM.get_by_name_label(VM)[0]
    reading(x)
    labels(x, vm)
    paper(x, vm)
    copies(x, vm)
    power(x, vm)
    disks(x, vm)
    interfaces(x, vm)
    checkpoints(x, vm)
    tasks(x, vm)
    events(x, vm)
    x.VM.clean_shutdown(vm)
    expect("it is down", "Halted", x.VM.get_power_state(vm))
    x.VM.start(vm, False, False)
    x.VM.hard_shutdown(vm)
    expect("it is down again", "Halted", x.VM.get_power_state(vm))
    session.xenapi.session.logout()
    print("lifecycle: all is as expected")


main()
