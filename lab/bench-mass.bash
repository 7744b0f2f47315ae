# bench-mass.bash xy|xl COUNT: prints "SAMPLE NAME VALUE" lines; /results gets the samples of CPU time and the
# counts of hypercalls, ours as xylemd tells them, xl's as its own processes made them.
. /lab/lib.sh
tool=$1
count=$2
patience=900

clock() { now=${EPOCHREALTIME/./}; }
# Milliseconds that dom0's CPUs have worked: all columns but idle, waiting and stolen.
cpu() { awk '/^cpu / { print ($2 + $3 + $4 + $7 + $8) * 10; exit }' /proc/stat; }

xl_counted() { LD_PRELOAD=/root/hypercount.so HYPERCOUNT=/results/xl-calls xl "$@"; }

create() {
    if [ "$tool" = xy ]; then xy create -q "$1" >/dev/null; else xl_counted create -q "$1" >/dev/null; fi || fail "create of $1"
}
# Nobody waits by the command: xl 4.17 crashes in `shutdown -a -w`, once the first of several domains is gone.
shut_all_down() {
    if [ "$tool" = xy ]; then xy shutdown -a; else xl_counted shutdown -a; fi >/results/shutdown.log 2>&1 || fail "shutdown: $(tail -n 3 /results/shutdown.log)"
}
# Both wait for the same: nothing of them is left in the store and at Xen, and xl's own processes have ended.
up() { [ "$(cat /var/log/xen/console/guest-mass*.log 2>/dev/null | grep -c 'XYLEM-UNIKERNEL: hello')" -ge "$count" ]; }
gone() { [ "$(xenstore-list /local/domain | wc -l)" = 1 ] && ! pidof xl >/dev/null; }

begin_phase() {
    cpu_before=$(cpu)
    clock
    begin=$now
}
# end_phase NAME
end_phase() {
    clock
    local us=$((now - begin))
    echo "SAMPLE $1-seconds $((us / 1000000)).$(printf '%06d' $((us % 1000000)))"
    echo "SAMPLE $1-cpu-ms $(($(cpu) - cpu_before))"
}

[ "$tool" = xl ] || start_xylemd
for i in $(seq "$count"); do unikernel_cfg "mass$i" "type = 'pv'"; done
# What is done once per boot is done.
unikernel_cfg first "type = 'pv'"
create /tmp/first.cfg
$tool destroy first || fail "destroy first"
wait_for gone 60 || fail "the first does not go"
rm -f /results/xl-calls /tmp/stop
/root/cpu_sampler 40 "/results/stacks-$tool" /tmp/stop xl xy xylemd xylem-xenstored xylem-broker xenstored oxenstored xenconsoled &
sampler=$!
[ "$tool" = xl ] || xy hypercalls --json >/results/activity-before.json

# All that the store's broker does is to look at domains: at all that changed, or at one that comes or goes. There is none
# beside C's store.
broker_ns() { if [ "$tool" = xy ]; then cut -d ' ' -f 1 "/proc/$(pidof xylem-broker)/schedstat"; else echo 0; fi; }
# store_counter NAME: of the store's looks at all domains; xl's store has none.
store_counter() { if [ "$tool" = xy ]; then xy store stats --json | grep -o "\"$1\": *[0-9]*" | grep -o '[0-9]*$'; else echo 0; fi; }
broker_before=$(broker_ns)
looks_before=$(store_counter looks)
looks_cpu_us_before=$(store_counter looks_cpu_us)
started=$(now)

begin_phase
for i in $(seq "$count"); do
    create "/tmp/mass$i.cfg"
    [ $((i % 50)) != 0 ] || echo "$i are made, $(seconds_since "$started") s after the first"
done
end_phase create
wait_for up $patience || fail "of $count unikernels $(cat /var/log/xen/console/guest-mass*.log | grep -c 'XYLEM-UNIKERNEL: hello') said hello"
end_phase boot
begin_phase
shut_all_down
wait_for gone $patience || fail "some are left: $(xl list)"
end_phase shutdown
echo "SAMPLE broker-cpu-ns $(($(broker_ns) - broker_before))"
echo "SAMPLE looks $(($(store_counter looks) - looks_before))"
echo "SAMPLE looks-cpu-us $(($(store_counter looks_cpu_us) - looks_cpu_us_before))"

[ "$tool" = xl ] || xy hypercalls --json >/results/activity.json
touch /tmp/stop
wait $sampler
[ -s "/results/stacks-$tool" ] || fail "the sampler saw nothing"
