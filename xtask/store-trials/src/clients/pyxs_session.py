# A session of pyxs with a store. What it prints is compared.
import os

import pyxs

path = os.path.join(os.environ["XENSTORED_RUNDIR"], "socket")


def attempt(what, function, *arguments):
    try:
        print(what, function(*arguments))
    except pyxs.PyXSError as error:
        print(what, "refused:", error.args[0])


with pyxs.Client(unix_socket_path=path) as client:
    client.write(b"/pyxs/a", b"value")
    client.write(b"/pyxs/b", b"~ {two words}")
    client.mkdir(b"/pyxs/c")
    attempt("read", client.read, b"/pyxs/a")
    attempt("words", client.read, b"/pyxs/b")
    attempt("default", client.read, b"/pyxs/none", b"default")
    attempt("missing", client.read, b"/pyxs/none")
    attempt("list", lambda: sorted(client.list(b"/pyxs")))
    attempt("exists", client.exists, b"/pyxs/c")
    attempt("exists not", client.exists, b"/pyxs/d")
    attempt("walk", lambda: sorted(client.walk(b"/pyxs")))
    attempt("perms", client.get_perms, b"/pyxs/a")
    client.set_perms(b"/pyxs/a", [b"r0", b"b0"])
    attempt("new perms", client.get_perms, b"/pyxs/a")
    attempt("bad perms", client.set_perms, b"/pyxs/a", [b"x0"])
    client.delete(b"/pyxs/b")
    attempt("deleted", client.exists, b"/pyxs/b")
    attempt("home", client.get_domain_path, 7)
    attempt("introduced", client.is_domain_introduced, 7)

    client.transaction()
    client.write(b"/pyxs/t", b"1")
    client.rollback()
    attempt("rolled back", client.exists, b"/pyxs/t")
    client.transaction()
    client.write(b"/pyxs/t", b"2")
    attempt("commit", client.commit)
    attempt("committed", client.read, b"/pyxs/t")

    # Two transactions in each other's way: the later commit is refused.
    with pyxs.Client(unix_socket_path=path) as other:
        client.transaction()
        other.transaction()
        for each in (client, other):
            each.write(b"/pyxs/n", each.read(b"/pyxs/t") + b"1")
            each.write(b"/pyxs/t", b"3")
        attempt("first commit", client.commit)
        attempt("second commit", other.commit)

    with client.monitor() as monitor:
        monitor.watch(b"/pyxs", b"token")
        events = monitor.wait()
        print("event", tuple(next(events)))
        with pyxs.Client(unix_socket_path=path) as other:
            other.write(b"/pyxs/e/1", b"")
            other.delete(b"/pyxs/e")
        # Removals are reported for the node that was removed.
        print("event", tuple(next(events)))
        print("event", tuple(next(events)))
        monitor.unwatch(b"/pyxs", b"token")
    client.delete(b"/pyxs")
