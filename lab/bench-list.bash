# bench-list.bash ROUNDS SIZE...: prints "SAMPLE NAME VALUE" lines, at each number of unikernels in turn.
# `xy list` and `xl list` take turns in one boot, on the same domains. The domains are paused: they have
# all that a running one has, and leave the CPUs alone.
. /lab/lib.sh
rounds=$1
shift

clock() { now=${EPOCHREALTIME/./}; }

# timed NAME COMMAND...: one sample, in seconds.
timed() {
    local name=$1 begin us
    shift
    clock
    begin=$now
    "$@" >/tmp/listing || fail "$*"
    clock
    us=$((now - begin))
    # Dom0, the unikernels and the heading.
    lines=$(wc -l </tmp/listing)
    [ "$lines" = $((running + 2)) ] || fail "$* shows $lines lines with $running unikernels"
    echo "SAMPLE $name-seconds-at-$running $((us / 1000000)).$(printf '%06d' $((us % 1000000)))"
}

# calls TRACE: hypercalls in a trace. 0x305000: IOCTL_PRIVCMD_HYPERCALL.
calls() { grep -c 'ioctl(0x[0-9a-f]*, 0x305000' "$1"; }

# counted: the hypercalls of one listing, seen from outside. The daemon works, `xy` only asks; both count.
counted() {
    local options="-f -qq -e trace=ioctl -e raw=ioctl" tracer
    strace $options -o /tmp/trace-xylemd -p "$xylemd_pid" &
    tracer=$!
    wait_for "grep -q '^TracerPid:[^0-9]*[1-9]' /proc/$xylemd_pid/status" 60 || fail "strace does not attach"
    # It attaches to the threads one by one; the last is in when all have a tracer.
    wait_for "! grep -L '^TracerPid:[^0-9]*[1-9]' /proc/$xylemd_pid/task/*/status | grep -q ." 60 || fail "strace does not attach to all threads"
    strace $options -o /tmp/trace-xy xy list >/dev/null
    kill -INT $tracer
    wait $tracer
    cat /tmp/trace-xy >>/tmp/trace-xylemd
    echo "SAMPLE xy-calls-at-$running $(calls /tmp/trace-xylemd)"
    strace $options -o /tmp/trace-xl xl list >/dev/null
    echo "SAMPLE xl-calls-at-$running $(calls /tmp/trace-xl)"
    cp /tmp/trace-xylemd "/results/trace-xy-at-$running"
    cp /tmp/trace-xl "/results/trace-xl-at-$running"
}

start_xylemd
running=0
for size; do
    while [ "$running" -lt "$size" ]; do
        unikernel_cfg "base$running" "type = 'pv'"
        xy create -q -p "/tmp/base$running.cfg" >/dev/null || fail "create $running"
        rm "/tmp/base$running.cfg"
        running=$((running + 1))
    done
    # What the creates left to do in other daemons is done.
    sleep 2
    xy list >/dev/null
    xl list >/dev/null
    for _ in $(seq "$rounds"); do
        timed xy xy list
        timed xl xl list
    done
    counted
    if [ -x /root/xen_listing ]; then
        /root/xen_listing "$rounds" >/tmp/ways || fail "xen_listing"
        awk -v at="$running" '{ print $1, $2 "-at-" at, $3 }' /tmp/ways
    fi
done
