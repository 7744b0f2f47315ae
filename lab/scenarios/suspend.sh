# Guests of every kind are suspended and resumed, many times, by both triggers; what they do not do is told apart, and
# whatever happens to the daemon they go on.
. /lab/lib.sh
start_xylemd
host_state >/results/state.before
rounds=20
# state NAME: the letters of `xl list`.
state() { xl list "$1" | awk 'NR == 2 { print $5 }'; }
# said NAME TEXT COUNT: so many lines of the guest's console have it.
said() { [ "$(grep -c -- "$2" "$(console_log "$1")")" = "$3" ]; }
# ports NAME: event channels that the domain has in use.
ports() { ls /usr/lib/xen-*/bin/lsevtchn >/dev/null 2>&1 && /usr/lib/xen-*/bin/lsevtchn "$(xy domid "$1")" | grep -vc free; }
# step_ms NAME: what the step of the last suspend took, in milliseconds.
step_ms() { xy trace "$1" | awk '/suspend the guest/ { print }' | tail -1; }

suspended_and_resumed() {
    name=$1 returned=$2
    for round in $(seq $rounds); do
        xy suspend "$name" || { echo "round $round: suspend"; return 1; }
        [ "$(state "$name")" = ---ss- ] || { echo "round $round: $(state "$name")"; return 1; }
        [ "$round" = 2 ] && before=$(ports "$name")
        xy resume "$name" || { echo "round $round: resume"; return 1; }
        wait_for "said $name '$returned' $round" 60 || { echo "round $round: it does not continue"; return 1; }
    done
    [ "$(ports "$name")" = "$before" ] || { echo "ports: $before, then $(ports "$name")"; return 1; }
}

echo "== unikernels"
for kind in pv pvh; do
    for way in event-channel store; do
        name=$kind-$way
        unikernel_cfg "$name" "type = '$kind'" "extra = 'xylem.suspend=$way'"
        [ $way = store ] || unikernel_cfg "$name" "type = '$kind'"
        check "create $name" xy create -q "/tmp/$name.cfg"
        check "$name is up" console_wait "$name" 'hello mode' 60
        port=$(xenstore-read "/local/domain/$(xy domid "$name")/device/suspend/event-channel")
        case $way in
            store) check "it offers no port" [ -z "$port" ] ;;
            *) check "it offers a port" [ "$port" -gt 0 ] ;;
        esac
        check "$rounds times" suspended_and_resumed "$name" 'resumed here'
        check "no xylemd holds an event channel" eval '! ls -l /proc/$(pidof xylemd)/fd | grep -q evtchn'
        xy trace "$name"
    done
done
check "one that is not suspended is refused" refused_with 'is not suspended' xy resume pv-store
xy pause pv-store
check "a paused one is refused" refused_with 'is paused' xy suspend pv-store
xy unpause pv-store

echo "== one that never suspends"
unikernel_cfg never "type = 'pvh'" "extra = 'xylem.suspend=never'"
check "create" xy create -q /tmp/never.cfg
check "it is up" console_wait never 'hello mode' 60
start=$(now)
check "it is told what the guest did" refused_with 'acknowledged the suspend and did not suspend within 30 s' xy suspend never
echo "after $(seconds_since "$start") s"
check "it runs on" xy shutdown -w never
unikernel_cfg never "type = 'pvh'" "extra = 'xylem.suspend=never'"
check "create again" xy create -q /tmp/never.cfg
check "it is up again" console_wait never 'hello mode' 60
xy suspend never >/tmp/never.out 2>&1 &
waiting=$!
sleep 1
start=$(now)
check "a destroy does not wait for it" xy destroy never
echo "destroyed after $(seconds_since "$start") s"
wait $waiting
check "who suspended it is told" grep -q 'destroyed while it was being suspended' /tmp/never.out

echo "== a daemon that is killed while a guest is suspended"
xy suspend pvh-event-channel
kill_xylemd
start_xylemd
check "the VM is known to be suspended" eval 'xy vm-list | grep pvh-event-channel | grep -q suspended'
check "resume" xy resume pvh-event-channel
check "it continues" wait_for "said pvh-event-channel 'resumed here' $((rounds + 1))" 60
check "suspend" xy suspend pvh-event-channel
check "and again" xy resume pvh-event-channel

echo "== Linux"
cp /guest/disk.img /disk.img
linux_cfg linux "type = 'pv'" "memory = 128" "extra = 'console=hvc0 quiet $FAST_BOOT xylem.ip=10.0.0.5 xylem.io=1 xylem.tick=1'" "disk = ['/disk.img,raw,xvda,w']" "vif = ['bridge=xenbr0']"
check "create" xy create -q /tmp/linux.cfg
check "it is up" console_wait linux 'XYLEM-GUEST: ready' 400
for round in 1 2 3 4 5; do
    check "suspend" xy suspend linux
    check "it is" [ "$(state linux)" = ---ss- ]
    check "resume" xy resume linux
    ticks=$(grep -c tick= "$(console_log linux)")
    check "time passes" wait_for "[ \$(grep -c tick= $(console_log linux)) -gt $((ticks + 2)) ]" 60
done
xy trace linux
check "it answers" wait_for 'ping -c 1 -W 2 10.0.0.5' 60
check "nothing that it read was wrong" no_failed_io "$(console_log linux)"
check "it obeys" xy shutdown -w linux

for name in pv-event-channel pv-store pvh-event-channel pvh-store; do
    check "shutdown of $name" xy shutdown -w $name
done
check "dom0 is as before" same_state /results/state.before
