# bench-earlier.bash ROUNDS: prints "SAMPLE NAME-now VALUE" and "SAMPLE NAME-earlier VALUE" lines. The store is handed from one
# build to the other by a live update, so each toolstack runs on the store of its own commit.
. /lab/lib.sh
rounds=$1
path=$PATH

clock() { now=${EPOCHREALTIME/./}; }
begin() { clock; begun=$now; }
# sample NAME: the seconds since `begin`.
sample() {
    clock
    local us=$((now - begun))
    echo "SAMPLE $1-$arm $((us / 1000000)).$(printf '%06d' $((us % 1000000)))"
}

# created AT: times of three creates.
created() {
    local i
    for i in 1 2 3; do
        begin
        xy create -q /tmp/probe.cfg >/dev/null || fail "create"
        sample "create-at-$1"
        xy destroy probe || fail "destroy"
        # The old domain's last pages go while nobody measures.
        sleep 0.3
    done
}
gone() { [ "$(xenstore-list /local/domain | wc -l)" = 1 ]; }

# measure now|earlier
measure() {
    arm=$1
    local folder=/usr/local/bin i
    [ "$arm" = now ] || folder=/root/earlier
    local before
    before=$(store_pid)
    xenstore-control live-update "$folder/xylem-xenstored" || fail "live update to $folder"
    wait_for '[ -n "$(store_pid)" ] && xenstore-read /local/domain/0/name' 60 || fail "the store of $folder does not answer"
    PATH=$folder:$path
    start_xylemd
    # What is done once per daemon is done.
    xy create -q /tmp/probe.cfg >/dev/null && xy destroy probe || fail "the first create"
    xy create -q /tmp/vm0.cfg >/dev/null || fail "create vm0"
    created 1
    xy destroy vm0 || fail "destroy vm0"
    wait_for gone 60
    begin
    for i in $(seq 50); do xy create -q "/tmp/vm$i.cfg" >/dev/null || fail "create vm$i"; done
    sample mass-create
    created 50
    for i in 1 2 3 4 5; do
        begin
        xy list >/dev/null || fail "list"
        sample list-at-50
    done
    begin
    xy shutdown -a >/dev/null 2>&1 || fail "shutdown -a"
    wait_for gone 300 || fail "some are left: $(xl list)"
    sample mass-shutdown
    kill "$xylemd_pid"
    wait "$xylemd_pid" 2>/dev/null
    echo "measured $arm (store $before -> $(store_pid))"
}

unikernel_cfg probe "type = 'pv'"
for i in $(seq 0 50); do unikernel_cfg "vm$i" "type = 'pv'"; done
for round in $(seq "$rounds"); do
    # Who comes first changes.
    if [ $((round % 2)) = 1 ]; then measure now; measure earlier; else measure earlier; measure now; fi
done
