# bench-create.bash TOOL CREATES: prints "SAMPLE NAME VALUE" lines.
#   xy           our toolstack on our store
#   xl           xl on whatever store runs
#   xl-on-xylem  only counts what xl asks of the store, which must be ours
. /lab/lib.sh
tool=$1
creates=$2

clock() { now=${EPOCHREALTIME/./}; }

create() {
    if [ "$tool" = xy ]; then xy create -q "/tmp/$1.cfg" >/dev/null; else xl create -q "/tmp/$1.cfg" >/dev/null; fi || fail "create $1"
}

destroy() {
    if [ "$tool" = xy ]; then xy destroy "$1"; else xl destroy "$1"; fi || fail "destroy $1"
}

# store_count NAME: a counter of xylem-xenstored.
store_count() {
    xenstore-control stats | tr ',{}' '\n\n\n' | awk -F: -v name="\"$1\"" '{ gsub(/ /, "") } $1 == name { print $2; exit }'
}

# counted AT: what one create asks of Xen and of the kernel, seen from outside.
counted() {
    local trace=/tmp/trace
    local options="-f -qq -o $trace -e trace=ioctl,fork,vfork,clone,clone3 -e raw=ioctl"
    if [ "$tool" = xy ]; then
        # The daemon works, the command only asks; both are counted.
        strace $options -p "$xylemd_pid" &
        local tracer=$!
        sleep 1
        strace -f -qq -o $trace.command -e trace=ioctl,fork,vfork,clone,clone3 -e raw=ioctl xy create -q /tmp/probe.cfg >/dev/null
        kill -INT $tracer
        wait $tracer
        cat $trace.command >>$trace
    else
        # Without the process that xl leaves behind to wait for the domain's end: strace would wait too.
        strace $options xl create -q -e /tmp/probe.cfg >/dev/null
    fi
    # 0x305000: IOCTL_PRIVCMD_HYPERCALL.
    echo "SAMPLE hypercalls-at-$1 $(grep -c 'ioctl(0x[0-9a-f]*, 0x305000' $trace)"
    # A new thread is no fork.
    echo "SAMPLE forks-at-$1 $(grep -E ' (v?fork|clone3?)\(' $trace | grep -vc CLONE_THREAD)"
    cp $trace "/results/trace-at-$1"
    destroy probe
}

# store_counted AT: what one create asks of the store.
store_counted() {
    local name
    for name in requests_total transactions_started; do eval "before_$name=$(store_count $name)"; done
    create probe
    # What guest and console daemon say after the command has ended belongs to the create.
    sleep 1
    for name in requests_total transactions_started; do eval "after_$name=$(store_count $name)"; done
    # Guests and backends talk to the store as well; what they say is the same for both toolstacks.
    echo "SAMPLE store-messages-at-$1 $((after_requests_total - before_requests_total))"
    echo "SAMPLE transactions-at-$1 $((after_transactions_started - before_transactions_started))"
    destroy probe
}

timed() {
    local i begin
    for i in $(seq "$creates"); do
        clock
        begin=$now
        create probe
        clock
        local us=$((now - begin))
        echo "SAMPLE seconds-at-$1 $((us / 1000000)).$(printf '%06d' $((us % 1000000)))"
        destroy probe
        # The old domain's last pages go while nobody measures.
        sleep 0.3
    done
}

[ "$tool" != xy ] || start_xylemd
unikernel_cfg probe "type = 'pv'"
running=0
for at in 1 50; do
    while [ $running -lt $at ]; do
        running=$((running + 1))
        unikernel_cfg "base$running" "type = 'pv'"
        create "base$running"
    done
    # Everything that is done once per boot is done.
    create probe
    destroy probe
    case $tool in
        xl-on-xylem) store_counted $at ;;
        xl) timed $at; counted $at ;;
        xy) timed $at; counted $at; store_counted $at ;;
    esac
done
