# What is asked of the unit, inside the namespaces of the systemd that runs it.
failed=0
check() {
    name=$1
    shift
    if "$@"; then echo "ok      $name"; else echo "FAILED  $name"; failed=1; fi
}
# Waits for a condition, a minute at most.
wait_for() {
    tries=0
    while ! eval "$1"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || return 1
        sleep 0.1
    done
}
pid() { systemctl show --property MainPID --value xenstored; }
restarts() { systemctl show --property NRestarts --value xenstored; }
has() { grep -q "^$1$" "/proc/$(pid)/status"; }
is_there() { [ "$(/mnt/shared/xy store read /unit/value 2>/dev/null)" = kept ]; }
# Another process than before serves, and has what was stored.
goes_on() { wait_for "[ \"\$(pid)\" != $1 ] && systemctl --quiet is-active xenstored && is_there"; }

check "it starts and says when it serves" wait_for 'systemctl --quiet is-active xenstored'
check "a value is stored" /mnt/shared/xy store write /unit/value kept
check "not by root" has "Uid:.$(id -u xenstore).*"
check "without capabilities" has "CapBnd:.0000000000000000"
check "with a filter of system calls" has "Seccomp:.2"
for time in 1 2 3; do
    before=$(pid)
    kill -9 "$before"
    check "killed, time $time: it is restarted and continues" goes_on "$before"
done
before=$(pid) count=$(restarts)
check "systemctl reload" systemctl reload xenstored
check "the folder is still the daemon's" [ "$(stat --format %U /run/xenstored)" = xenstore ]
check "live update" /mnt/shared/xtask unit-live-update /run/xenstored/socket /usr/sbin/xylem-xenstored
check "the new process serves" goes_on "$before"
check "that was no restart" [ "$(restarts)" = "$count" ]
before=$(pid)
kill -9 "$before"
check "killed after the update: it continues" goes_on "$before"
before=$(pid)
check "systemctl restart" systemctl restart xenstored
check "it continues" goes_on "$before"
check "systemctl stop" systemctl stop xenstored
check "systemctl start" systemctl start xenstored
check "it continues" wait_for is_there
check "nothing was refused to it" sh -c '! grep -i "not permitted\|denied\|will not survive" /mnt/shared/output'
exit $failed
