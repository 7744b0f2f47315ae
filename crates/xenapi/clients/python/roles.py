#!/usr/bin/env python3
"""What operators and viewers may do, by the client of PyPI, XenAPI.

Usage: roles.py URL OPERATOR PASSWORD VIEWER PASSWORD VM

VM is the name of a defined VM that is down; it is down again at the end.
"""
import sys

import XenAPI

URL, OPERATOR, OPERATORS_WORD, VIEWER, VIEWERS_WORD, VM = sys.argv[1:7]


def check(what, is_right):
    if not is_right:
        sys.exit(f"roles: {what}: not so")
    print(f"ok: {what}")


def is_refused(call, *args):
    try:
        call(*args)
    except XenAPI.Failure as failure:
        return failure.details[0] == "RBAC_PERMISSION_DENIED"
    return False


def login(user, password):
    session = XenAPI.Session(URL)
    session.xenapi.login_with_password(user, password, "2.21", "roles.py")
    return session


def main():
    operator, viewer = login(OPERATOR, OPERATORS_WORD), login(VIEWER, VIEWERS_WORD)
    o, v = operator.xenapi, viewer.xenapi
    vm = v.VM.get_by_name_label(VM)[0]
    check("a viewer sees a VM", v.VM.get_power_state(vm) == "Halted")
    check("a viewer starts nothing", is_refused(v.VM.start, vm, False, False))
    check("a viewer sets no labels", is_refused(v.VM.add_tags, vm, "x"))
    o.VM.start(vm, False, False)
    check("an operator starts a VM", v.VM.get_power_state(vm) == "Running")
    check("an operator gives it no disk", is_refused(o.VBD.create, {}))
    check("an operator does not rename it", is_refused(o.VM.set_name_label, vm, "x"))
    check("an operator takes away no disk", is_refused(o.VDI.destroy, "OpaqueRef:NULL"))
    task = o.task.create("mine", "")
    check("a viewer ends no task of others", is_refused(v.task.destroy, task))
    o.task.destroy(task)
    o.VM.hard_shutdown(vm)
    check("an operator stops it", v.VM.get_power_state(vm) == "Halted")
    own, others = viewer._session, operator._session
    check("sessions are secrets", v.session.get_this_host(own) == v.host.get_all()[0])
    try:
        v.session.get_this_host(others)
        sys.exit("roles: a session of others is told")
    except XenAPI.Failure as failure:
        check("those of others are unknown", failure.details[0] == "HANDLE_INVALID")
    viewer.xenapi.session.logout()
    operator.xenapi.session.logout()
    print("roles: all is as expected")


main()
