#!/usr/bin/env python3
"""Defines the VM that the other scripts try things on, on a simulated host (docs/simulated-host.md).

Usage: prepare.py SOCKET [VM]
"""
import json
import socket
import sys


def call(path, request):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(json.dumps({"version": 1, **request}).encode() + b"\n")
        for line in connection.makefile():
            answer = json.loads(line)
            if "ok" in answer:
                return answer["ok"]
            if "error" in answer:
                sys.exit(f"prepare: {answer['error']}")
    sys.exit("prepare: no answer")


def main():
    path = sys.argv[1]
    name = sys.argv[2] if len(sys.argv) > 2 else "acceptance"
    config = (
        f"name = '{name}'\ntype = 'pv'\nkernel = '/boot/vmlinuz'\nramdisk = '/boot/initrd.img'\n"
        "extra = 'sim.kind=linux'\nmemory = 32\nvcpus = 2\nmaxvcpus = 4\nvif = ['']\n"
    )
    define = {"op": "define", "file": f"{name}.cfg", "config_text": config, "cwd": "/"}
    print(call(path, define)["defined"]["uuid"])


main()
